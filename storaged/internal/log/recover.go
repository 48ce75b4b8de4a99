package log

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/vfs"

	"google.golang.org/grpc/mem"
)

type header = recordbatch.Header

// recoverBuffer is how much of a segment is read at once during recovery.
const recoverBuffer = 1 << 20

// recoverFrom checks every batch from the segment of an offset on. The first broken one ends the log: it and everything
// after it goes. Indexes are rebuilt on the way, and so are transaction indexes, for which the producers are brought to
// each segment's begin.
func (l *Log) recoverFrom(offset int64) error {
	first := max(0, l.segmentAt(offset))
	if err := l.restoreProducers(l.segments[first].base); err != nil {
		return err
	}
	if err := l.replayProducers(l.segments[first].base); err != nil {
		return err
	}
	for i := first; i < len(l.segments); i++ {
		s := l.segments[i]
		r := recovery{log: l, segment: s, producers: &l.producers}
		cut, err := r.run()
		if err != nil {
			return fmt.Errorf("recover segment %d: %w", s.base, err)
		}
		if !cut && i+1 < len(l.segments) && r.end < l.segments[i+1].base && !l.config.CleanupCompact && r.end >= l.cleanedTo {
			// Only the cleaner leaves gaps between segments, also in a topic that is not compacted any more. Where it has not
			// been, the end of this one never reached the disk, and what is behind must not be read as if nothing were missing.
			cut, r.reason = true, fmt.Errorf("%w: offsets %d to %d are missing", errBatch, r.end, l.segments[i+1].base)
		}
		if !cut {
			if err := l.snapshotBetween(i); err != nil {
				return err
			}
			continue
		}
		l.logger.Warn("the log is cut where it is broken", "segment", s.base, "bytes", r.size-s.size, "end", r.end, "why", r.reason)
		gone := l.segments[i+1:]
		l.segments = l.segments[: i+1 : i+1]
		if err := l.removeFiles(gone, false); err != nil {
			return err
		}
		if err := l.removeSnapshots(func(o int64) bool { return o > r.end }); err != nil {
			return err
		}
		return l.fs.SyncDir(l.dir) // so that nothing of it comes back
	}
	return nil
}

// snapshotBetween writes the producers as they are before the segment after one that has been recovered, so that each
// segment has its snapshot, as it would without the crash.
func (l *Log) snapshotBetween(i int) error {
	if i+1 == len(l.segments) {
		return nil
	}
	l.producers.end = l.segments[i+1].base
	return l.takeSnapshot()
}

// rebuildIndexes makes a segment's offset and time index anew. A broken batch in the middle of the log, which nothing can
// be done about here, is an error.
func (l *Log) rebuildIndexes(s *segment) error {
	r := recovery{log: l, segment: s}
	cut, err := r.run()
	if err == nil && cut {
		err = errcode.CorruptMessage.Wrap(fmt.Errorf("segment %d of %s is broken at %d: %w", s.base, l.dir, s.size, r.reason))
	}
	return err
}

// recovery reads one segment from its begin.
type recovery struct {
	log     *Log
	segment *segment
	// producers, if set, are brought along, and the transaction index is rebuilt; broken batches are cut off only then.
	producers *producers

	// size is the file's size before, end the offset after the last good batch, reason what was wrong with the next.
	size   int64
	end    int64
	reason error

	position  int64
	lastEntry int64
	offsets   []byte
	times     []byte
	aborted   []abortedTxn
	maxTime   int64
	maxOffset int64
}

func (r *recovery) run() (cut bool, err error) {
	s, l := r.segment, r.log
	f, err := l.open(s)
	if err != nil {
		return false, err
	}
	if r.size, err = f.Size(); err != nil {
		return false, err
	}
	r.end, r.maxTime, r.maxOffset = s.base, -1, s.base
	read := batchReader{file: f, end: r.size}
	for {
		batch, err := read.next()
		if err == nil && batch == nil {
			break
		}
		if err == nil {
			err = r.take(batch)
		}
		if errors.Is(err, errBatch) {
			r.reason = err
			break
		}
		if err != nil {
			return false, err
		}
	}
	if r.position < r.size && r.producers == nil {
		return true, nil
	}
	return r.position < r.size, r.finish(f)
}

// errBatch says that what is on disk is no good batch.
var errBatch = errors.New("broken batch")

// take checks one batch and notes what it says.
func (r *recovery) take(batch []byte) error {
	h, s := header(batch), r.segment
	switch {
	case !recordbatch.CheckCRC(batch):
		return fmt.Errorf("%w at %d: checksum", errBatch, r.position)
	case h.BaseOffset() < r.end || h.LastOffsetDelta() < 0 || h.LastOffset()-s.base > math.MaxInt32:
		return fmt.Errorf("%w at %d: offsets %d to %d where %d is next", errBatch, r.position, h.BaseOffset(), h.LastOffset(), r.end)
	}
	if t := newestIn(h); t > r.maxTime {
		r.maxTime, r.maxOffset = t, h.LastOffset()
	}
	if r.position-r.lastEntry > int64(r.log.config.IndexIntervalBytes) {
		r.offsets = appendOffsetEntry(r.offsets, h.LastOffset()-s.base, r.position)
		r.addTime()
		r.lastEntry = r.position
	}
	if r.producers != nil {
		if err := r.follow(h, batch); err != nil {
			return err
		}
	}
	r.position += int64(len(batch))
	r.end = h.NextOffset()
	return nil
}

func (r *recovery) addTime() {
	if n := len(r.times); r.maxTime >= 0 && (n == 0 || entryTime(r.times[n-timeEntryBytes:]) < r.maxTime) {
		r.times = appendTimeEntry(r.times, r.maxTime, r.maxOffset-r.segment.base)
	}
}

// follow brings epochs and producers along.
func (r *recovery) follow(h header, batch []byte) error {
	if h.LeaderEpoch() > r.log.epochs.latest() {
		r.log.epochs.assign(h.LeaderEpoch(), h.BaseOffset())
	}
	if h.HasProducerID() {
		t, aborted, err := r.log.applyBatch(h, mem.BufferSlice{mem.SliceBuffer(batch)})
		if err != nil {
			return fmt.Errorf("%w at %d: %w", errBatch, r.position, err)
		}
		if aborted {
			r.aborted = append(r.aborted, t)
		}
	}
	r.producers.end = h.NextOffset()
	return nil
}

// finish cuts the file behind the last good batch and writes the indexes.
func (r *recovery) finish(f vfs.File) error {
	s, l := r.segment, r.log
	if r.position < r.size {
		if err := f.Truncate(r.position); err != nil {
			return err
		}
	}
	r.addTime()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range []struct {
		index *index
		data  []byte
	}{{&s.offsets, r.offsets}, {&s.times, r.times}} {
		if err := x.index.replace(l.fs, x.data); err != nil {
			return err
		}
	}
	s.size, s.loaded = r.position, true
	s.maxTime, s.maxTimeOffset = r.maxTime, r.maxOffset
	s.sinceEntry = int(r.position - r.lastEntry)
	if r.producers == nil {
		return nil
	}
	s.aborted, s.abortedLoaded = r.aborted, true
	return r.writeAborted()
}

func (r *recovery) writeAborted() error {
	path := r.segment.path(txnIndexSuffix)
	if len(r.aborted) == 0 {
		return removeIfThere(r.log.fs, path)
	}
	var data []byte
	for _, t := range r.aborted {
		data = appendAbortedTxn(data, t)
	}
	return vfs.WriteFileAtomically(r.log.fs, path, data, false)
}

// replace writes the whole index anew. The log's lock is held.
func (x *index) replace(fsys vfs.FS, data []byte) error {
	if err := x.open(fsys); err != nil {
		return err
	}
	if err := x.file.Truncate(0); err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := x.file.WriteAt(data, 0); err != nil {
			return err
		}
	}
	x.setAll(data)
	return nil
}

// applyBatch takes a batch that is in the log into the producers' state, and gives the transaction that it aborts.
func (l *Log) applyBatch(h header, batch mem.BufferSlice) (t abortedTxn, aborted bool, err error) {
	l.producers.mu.Lock()
	defer l.producers.mu.Unlock()
	if !h.IsControl() {
		l.producers.appended(h)
		return t, false, nil
	}
	m, err := markerOf(h, batch, recordbatch.HeaderSize)
	if err != nil || m == nil {
		return t, false, err
	}
	t, aborted = l.producers.ended(h, *m)
	return t, aborted, nil
}

// replayBatch applies the batch at a position; only a control batch has to be read for that.
func (l *Log) replayBatch(s *segment, h header, position int64) error {
	if !h.IsControl() {
		_, _, err := l.applyBatch(h, nil)
		return err
	}
	f, err := l.open(s)
	if err != nil {
		return err
	}
	batch := make([]byte, h.Size())
	if _, err := f.ReadAt(batch, position); err != nil {
		return err
	}
	_, _, err = l.applyBatch(batch, mem.BufferSlice{mem.SliceBuffer(batch)})
	return err
}

// eachHeader calls f for each batch of a segment from a position on.
func (l *Log) eachHeader(s *segment, position int64, f func(h header, position int64) error) error {
	if s.size == 0 {
		return nil
	}
	file, err := l.open(s)
	if err != nil {
		return err
	}
	scan := scanner{file: file, at: position, end: s.size, buf: make([]byte, scanBytes)}
	for {
		h, err := scan.next()
		if err != nil {
			return fmt.Errorf("segment %d: %w", s.base, err)
		}
		if h == nil {
			return nil
		}
		if err := f(h, scan.position); err != nil {
			return err
		}
	}
}

// batchReader reads whole batches one after the other.
type batchReader struct {
	file vfs.File
	at   int64 // in the file, of the byte after buf
	end  int64
	// bufferBytes is how much is read at once, recoverBuffer if 0.
	bufferBytes int

	buf  []byte
	rest []byte // what of buf has not been given out
}

// next gives the next batch, valid until the next call; nil at the end of the file. errBatch says that there is something
// else.
func (b *batchReader) next() ([]byte, error) {
	if err := b.want(recordbatch.HeaderSize); err != nil {
		return nil, err
	}
	if len(b.rest) == 0 {
		return nil, nil
	}
	position := b.at - int64(len(b.rest))
	if len(b.rest) < recordbatch.HeaderSize {
		return nil, fmt.Errorf("%w at %d: only %d bytes", errBatch, position, len(b.rest))
	}
	h := header(b.rest)
	size := h.Size()
	if h.Magic() != recordbatch.Magic || size < recordbatch.HeaderSize || int64(size) > b.end-position {
		return nil, fmt.Errorf("%w at %d: format %d, size %d", errBatch, position, h.Magic(), size)
	}
	if err := b.want(size); err != nil {
		return nil, err
	}
	batch := b.rest[:size]
	b.rest = b.rest[size:]
	return batch, nil
}

// want reads until rest has n bytes, or all that there are.
func (b *batchReader) want(n int) error {
	if len(b.rest) >= n || b.at >= b.end {
		return nil
	}
	left := len(b.rest) + int(b.end-b.at)
	if size := max(n, min(cmp.Or(b.bufferBytes, recoverBuffer), left)); cap(b.buf) < size {
		old := b.rest
		b.buf = make([]byte, size)
		b.rest = b.buf[:copy(b.buf, old)]
	} else {
		b.rest = b.buf[:copy(b.buf, b.rest)]
	}
	have := len(b.rest)
	fill := int(min(int64(len(b.buf)-have), b.end-b.at))
	if err := readFull(b.file, b.buf[have:have+fill], b.at); err != nil {
		return err
	}
	b.at += int64(fill)
	b.rest = b.buf[:have+fill]
	return nil
}
