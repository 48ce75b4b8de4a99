package coldread

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/mem"

	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// flight is a block that is being read.
type flight struct {
	key   blockKey
	bytes int
	// waiting is how many wait for it, each of whom gets a reference; wanted says that there was one. The reader's lock
	// guards these.
	waiting int
	wanted  bool
	// forgotten says that the segment has been deleted meanwhile: those who wait get the block, and nothing keeps it.
	forgotten bool
	done      chan struct{}
	// data and err are set before done is closed.
	data mem.Buffer
	err  error
}

// wait notes that somebody waits. The caller holds the lock.
func (f *flight) wait() {
	f.waiting++
	f.wanted = true
}

// blockBytes is the length of a block of a segment.
func blockBytes(s *objectstore.SegmentMetadata, index int32) int64 {
	return min(objectstore.BlockBytes, s.SizeBytes-int64(index)*objectstore.BlockBytes)
}

// block gives a block of a segment, with a reference that the caller frees. When it has to be read, the missing blocks behind
// it, count in all, are asked for with it.
func (r *Reader) block(ctx context.Context, s *objectstore.SegmentMetadata, index int32, count int32) (mem.Buffer, error) {
	key := blockKey{s.ID, index}
	hit := true
	for attempt := 0; ; attempt++ {
		f, own, err := r.demand(ctx, s, key, count)
		if err != nil {
			return nil, err
		}
		select {
		case <-f.done:
		default:
			hit = false
			select {
			case <-f.done:
			case <-ctx.Done():
				r.giveUp(f)
				return nil, ctx.Err()
			}
		}
		if f.err == nil {
			r.metrics.blockRead(ctx, hit)
			return f.data, nil
		}
		// What failed for another reader, or ahead of all, gets an attempt of its own.
		if own || attempt > 0 {
			return nil, f.err
		}
	}
}

// giveUp ends a wait, and frees the reference that came in the same moment.
func (r *Reader) giveUp(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-f.done:
		if f.err == nil {
			f.data.Free()
		}
	default:
		f.waiting--
	}
}

// demand finds a block, or the flight that brings it, or starts one. It waits while there is no memory for it.
func (r *Reader) demand(ctx context.Context, s *objectstore.SegmentMetadata, key blockKey, count int32) (f *flight, own bool, err error) {
	for {
		r.mu.Lock()
		if data, ok := r.memory.get(key); ok {
			r.mu.Unlock()
			return &flight{key: key, data: data, done: closedChannel}, false, nil
		}
		if f := r.flights[key]; f != nil {
			f.wait()
			r.mu.Unlock()
			return f, false, nil
		}
		if r.closed {
			r.mu.Unlock()
			return nil, false, errClosed
		}
		if flights := r.takeOff(s, key.index, count, true); flights != nil {
			flights[0].wait()
			r.running.Go(func() { r.fill(s, flights, nil) })
			r.mu.Unlock()
			return flights[0], true, nil
		}
		freed := r.freed
		r.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// takeOff makes flights for missing blocks one behind the other; nil when there is no memory. A demand makes do with what
// memory there is. The caller holds the lock.
func (r *Reader) takeOff(s *objectstore.SegmentMetadata, first, count int32, demand bool) []*flight {
	var flights []*flight
	last := min(int64(first)+int64(count), segmentobject.Blocks(s.SizeBytes))
	for i := first; int64(i) < last; i++ {
		key := blockKey{s.ID, i}
		if r.memory.has(key) || r.flights[key] != nil {
			break
		}
		n := blockBytes(s, i)
		// Reading ahead leaves half of the memory to those who wait, and to what was read ahead before.
		if !demand && r.memory.inFlight+n > r.memory.capacity/2 || !r.memory.reserve(n) {
			break
		}
		f := &flight{key: key, bytes: int(n), done: make(chan struct{})}
		r.flights[key] = f
		flights = append(flights, f)
	}
	return flights
}

// prefetch begins to read missing blocks of a range that nobody waits for; false when there is no room for it now.
func (r *Reader) prefetch(s *objectstore.SegmentMetadata, first, count int32) bool {
	for end := first + count; first < end; {
		r.mu.Lock()
		key := blockKey{s.ID, first}
		if r.memory.has(key) || r.flights[key] != nil {
			r.mu.Unlock()
			first++
			continue
		}
		if r.closed {
			r.mu.Unlock()
			return false
		}
		select {
		case r.ahead <- struct{}{}:
		default:
			r.mu.Unlock()
			return false
		}
		flights := r.takeOff(s, first, end-first, false)
		if flights == nil {
			<-r.ahead
			r.mu.Unlock()
			return false
		}
		r.running.Go(func() { r.fill(s, flights, r.ahead) })
		r.mu.Unlock()
		first += int32(len(flights))
	}
	return true
}

// fill reads blocks, from disk where they are and from the store where not. It goes on when nobody waits any more. The place
// in release is given back at the end.
func (r *Reader) fill(s *objectstore.SegmentMetadata, flights []*flight, release chan struct{}) {
	ctx, cancel := context.WithTimeout(r.ctx, r.config.FillTimeout)
	defer cancel()
	if release != nil {
		defer func() { <-release }()
	}
	left := flights
	err := r.slot(ctx)
	if err == nil {
		defer func() { <-r.slots }()
		for len(left) > 0 && err == nil {
			n := 0
			for n < len(left) && (r.disk == nil || !r.disk.has(left[n].key)) {
				n++
			}
			if n == 0 {
				n = 1
				if r.fromDisk(ctx, s, left[0]) {
					left = left[1:]
					continue
				}
			}
			var done int
			done, err = r.fromStore(ctx, s, left[:n])
			left = left[done:]
		}
	}
	for _, f := range left {
		r.land(f, nil, 0, err)
	}
}

// slot waits for one of the places for reads at the same time.
func (r *Reader) slot(ctx context.Context) error {
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// land ends a flight: the memory keeps the block, and each of those who wait gets a reference. An error gives the bytes
// back, if there are any.
func (r *Reader) land(f *flight, data *[]byte, crc uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.err = err
	delete(r.flights, f.key)
	if err == nil {
		f.data = mem.NewBuffer(data, &r.pool)
		for range f.waiting {
			f.data.Ref()
		}
		if f.forgotten {
			r.memory.cancel(int64(f.bytes))
			f.data.Free()
		} else {
			r.memory.keep(&block{key: f.key, data: f.data, crc: crc, unread: !f.wanted})
		}
	} else {
		r.memory.cancel(int64(f.bytes))
		if data != nil {
			r.pool.Put(data)
		}
	}
	close(r.freed)
	r.freed = make(chan struct{})
	close(f.done)
}

// fromDisk reads a block from the disk tier.
func (r *Reader) fromDisk(ctx context.Context, s *objectstore.SegmentMetadata, f *flight) bool {
	x, err := r.Indexes(ctx, s)
	if err != nil {
		return false
	}
	data, crc := r.pool.Get(f.bytes), x.BlockCRCs[f.key.index]
	if !r.disk.get(f.key, *data, crc) {
		r.pool.Put(data)
		return false
	}
	r.metrics.fromDisk(ctx, len(*data))
	r.land(f, data, crc, nil)
	return true
}

// fromStore reads blocks with one request, and says how many it has landed. The indexes, which have the checksums, come at
// the same time.
func (r *Reader) fromStore(ctx context.Context, s *objectstore.SegmentMetadata, flights []*flight) (landed int, err error) {
	start := int64(flights[0].key.index) * objectstore.BlockBytes
	end := start
	for _, f := range flights {
		end += int64(f.bytes)
	}
	if r.deps.FetchLimiter != nil {
		if err := r.deps.FetchLimiter.Wait(ctx, end-start); err != nil {
			return 0, err
		}
	}
	checksums := make(chan error, 1)
	var x *objectstore.Indexes
	r.running.Go(func() {
		var err error
		x, err = r.Indexes(ctx, s)
		checksums <- err
	})
	body, err := r.manager.FetchLogSegment(ctx, s, start, end)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	for i, f := range flights {
		data := r.pool.Get(f.bytes)
		_, err := io.ReadFull(body, *data)
		if i == 0 {
			if indexErr := <-checksums; err == nil {
				err = indexErr
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: block %d of segment %s is cut short", objectstore.ErrCorrupt, f.key.index, s.ID)
		}
		if err != nil {
			r.pool.Put(data)
			return i, err
		}
		r.metrics.fromStore(ctx, len(*data))
		crc := x.BlockCRCs[f.key.index]
		if segmentobject.Checksum(*data) != crc {
			err = r.again(ctx, s, f, *data, crc)
		}
		r.land(f, data, crc, err)
	}
	return len(flights), nil
}

// again reads a block whose checksum was wrong once more: it may have been damaged on its way.
func (r *Reader) again(ctx context.Context, s *objectstore.SegmentMetadata, f *flight, data []byte, crc uint32) error {
	r.metrics.crcFailed(ctx)
	start := int64(f.key.index) * objectstore.BlockBytes
	body, err := r.manager.FetchLogSegment(ctx, s, start, start+int64(len(data)))
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.ReadFull(body, data); err != nil {
		return err
	}
	if got := segmentobject.Checksum(data); got != crc {
		r.metrics.crcFailed(ctx)
		r.deps.Logger.Error("a block of a remote segment is damaged", "topic", s.Topic, "partition", s.Partition, "segment", s.ID.String(), "block", f.key.index)
		return fmt.Errorf("%w: the checksum of block %d of segment %s of %s-%d is %08x, want %08x", objectstore.ErrCorrupt, f.key.index, s.ID, s.Topic, s.Partition, got, crc)
	}
	return nil
}
