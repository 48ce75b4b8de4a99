package coldread

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/objectstore"
	"chancery/services/storage"
)

// errClosed is the answer of a reader that has been closed.
var errClosed = fmt.Errorf("%w: the reader is closed", objectstore.ErrTransient)

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Reader reads remote segments. Its methods may be called from any goroutine.
type Reader struct {
	manager objectstore.RemoteStorageManager
	config  Config
	deps    Deps
	metrics *metrics
	codecs  *recordbatch.Codecs
	// ctx is that of all reads from the store; it ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	// running is every goroutine of the reader. Nothing is added once closed is set.
	running sync.WaitGroup
	// slots are the places for reads at the same time; ahead are those of them that reading ahead may take.
	slots, ahead chan struct{}
	pool         blockPool
	// disk is nil without a disk tier.
	disk *disk

	// mu guards what follows. It is never held while anything is waited for.
	mu      sync.Mutex
	closed  bool
	memory  *memory
	flights map[blockKey]*flight
	// freed is closed, and made anew, whenever a flight has ended.
	freed   chan struct{}
	indexes *indexCache
	streams *streams
}

// New makes a reader. It does not close the manager.
func New(manager objectstore.RemoteStorageManager, config Config, deps Deps) (*Reader, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	r := &Reader{
		manager: manager, config: config, deps: deps, codecs: recordbatch.NewCodecs(),
		slots: make(chan struct{}, config.Concurrency), ahead: make(chan struct{}, max(1, config.Concurrency*3/4)),
		flights: make(map[blockKey]*flight), freed: make(chan struct{}), indexes: newIndexCache(config.IndexBytes),
		streams: newStreams(config.ReadAheadMaxBytes),
	}
	capacity := config.MemoryBytes
	if r.disk = diskOf(config, deps.Logger); r.disk != nil {
		// What waits to be written to disk is memory, too.
		capacity = max(capacity/2, capacity-diskQueue*objectstore.BlockBytes)
	}
	r.memory = newMemory(capacity, r.evicted)
	var err error
	if r.metrics, err = newMetrics(deps.Meter, r); err != nil {
		if r.disk != nil {
			r.disk.close()
		}
		return nil, fmt.Errorf("metrics: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close ends the reads in flight.
func (r *Reader) Close() error {
	r.mu.Lock()
	wasClosed := r.closed
	r.closed = true
	r.mu.Unlock()
	if wasClosed {
		return nil
	}
	r.cancel()
	r.running.Wait()
	if r.disk != nil {
		r.disk.close()
	}
	return r.metrics.close()
}

// evicted is told about blocks that leave the memory; the caller holds the lock.
func (r *Reader) evicted(b *block, unread bool) {
	r.metrics.evicted(unread)
	if unread {
		r.streams.pressure(time.Now())
	}
	if r.disk != nil {
		r.disk.offer(b)
	}
}

// Forget drops what is kept of segments that have been deleted.
func (r *Reader) Forget(segments ...*objectstore.SegmentMetadata) {
	for _, s := range segments {
		r.mu.Lock()
		r.memory.forget(s.ID)
		for key, f := range r.flights {
			if key.segment == s.ID {
				f.forgotten = true
			}
		}
		r.indexes.forget(s.ID)
		r.mu.Unlock()
		if r.disk != nil {
			r.disk.forget(s.ID)
		}
	}
}

// segmentAt finds the segment that has an offset, or the first behind it when the offset is in a gap that compaction left;
// -1 when there is none.
func segmentAt(segments []Segment, offset int64) int {
	i := sort.Search(len(segments), func(i int) bool { return segments[i].LastOffset >= offset })
	if i == len(segments) || i == 0 && segments[0].FirstOffset > offset {
		return -1
	}
	return i
}

// Read reads whole batches. When nothing of the segments holds the offset, the error is errcode.OffsetOutOfRange; damaged
// data and a store that fails give an error of objectstore's kinds, and the next read tries again. It returns what it has
// when the context ends and there is at least one batch.
func (r *Reader) Read(ctx context.Context, req ReadRequest) (*ReadResult, error) {
	i := segmentAt(req.Segments, req.Offset)
	if i < 0 {
		return nil, errcode.OffsetOutOfRange.Errorf("offset %d is in no remote segment", req.Offset)
	}
	topic, partition, began := req.Segments[i].TopicID, req.Segments[i].Partition, time.Now()
	r.mu.Lock()
	st, sequential := r.streams.get(streamKey{topic, partition, req.Offset})
	if sequential {
		r.streams.grow(began, &st, r.config.ReadAheadMaxBytes)
		r.metrics.window(st.window)
	}
	r.mu.Unlock()

	w := &walk{r: r, req: &req, i: i, stream: st, next: req.Offset, patient: sequential}
	defer w.release()
	if err := w.begin(ctx, sequential); err != nil {
		return nil, err
	}
	// What came before the error is good; the error comes again with the next read.
	if err := w.run(ctx); err != nil && w.bytes == 0 {
		return nil, err
	}
	w.shrink()
	// From here on the result has the references.
	result := &ReadResult{Records: storage.Records{Buffers: w.out}, NextOffset: w.next, AbortedComplete: true}
	if req.ReadCommitted && w.bytes > 0 {
		var err error
		result.AbortedTransactions, result.AbortedComplete, err = r.AbortedTransactions(ctx, req.Segments[i:], req.Offset, w.next)
		if err != nil {
			result.Records.Release()
			return nil, err
		}
	}
	if w.bytes > 0 {
		w.stream.consumed += int64(w.bytes)
		w.stream.took(began, int64(w.bytes))
		r.mu.Lock()
		r.streams.put(streamKey{topic, partition, w.next}, w.stream)
		r.mu.Unlock()
	}
	return result, nil
}

// walk is one Read on its way through the segments.
type walk struct {
	r      *Reader
	req    *ReadRequest
	i      int
	stream stream
	// position is where the next batch begins in segment i.
	position int64
	// patient walks wait for more than the first batch; others take what comes with it.
	patient bool
	// guessed says that the position comes from an index and no batch has confirmed it yet.
	guessed bool

	head [recordbatch.HeaderSize]byte
	// held is the block that was looked into last.
	held    mem.Buffer
	heldKey blockKey

	out mem.BufferSlice
	// The last part of out is the bytes [lastFrom, lastTo) of a block.
	lastKey          blockKey
	lastFrom, lastTo int
	bytes            int
	next             int64
}

// release gives back what the walk holds, other than the result.
func (w *walk) release() {
	if w.held != nil {
		w.held.Free()
		w.held = nil
	}
}

// holdShare is how much more memory than its bytes a result may hold.
const holdShare = 4

// shrink copies a result that is small beside the blocks it is in, which it would keep from their next use for as long as the
// client takes to read it.
func (w *walk) shrink() {
	if holdShare*w.bytes >= len(w.out)*objectstore.BlockBytes {
		return
	}
	data := w.out.Materialize()
	w.out.Free()
	w.out = mem.BufferSlice{mem.SliceBuffer(data)}
}

// hold gives a block; it stays until the next one is asked for.
func (w *walk) hold(ctx context.Context, s *objectstore.SegmentMetadata, index, count int32) (mem.Buffer, error) {
	key := blockKey{s.ID, index}
	if w.held != nil && w.heldKey == key {
		return w.held, nil
	}
	data, err := w.r.block(ctx, s, index, count)
	if err != nil {
		return nil, err
	}
	w.release()
	w.held, w.heldKey = data, key
	return data, nil
}

// begin finds the position of the first batch.
func (w *walk) begin(ctx context.Context, sequential bool) error {
	s := w.segment()
	switch {
	case sequential && w.stream.segment == s.ID:
		w.position = w.stream.position
	case w.next > s.BaseOffset:
		x, err := w.r.Indexes(ctx, s.SegmentMetadata)
		if err != nil {
			return err
		}
		w.position, w.guessed = positionOf(x, s.BaseOffset, w.next), true
		if w.position < 0 || w.position >= s.SizeBytes {
			w.position = 0
		}
	}
	w.r.readAhead(w.req.Segments, w.i, w.position, &w.stream)
	return nil
}

func (w *walk) segment() *Segment { return &w.req.Segments[w.i] }

// run takes batches until there are enough, or an error.
func (w *walk) run(ctx context.Context) error {
	for {
		s := w.segment()
		if w.position >= s.SizeBytes || w.next > s.LastOffset {
			if w.i+1 == len(w.req.Segments) {
				// Compaction may have left no batch at the end.
				w.next = max(w.next, s.LastOffset+1)
				return nil
			}
			w.i++
			w.position = 0
			if next := w.segment(); max(w.next, next.FirstOffset) > next.BaseOffset {
				// Where the next segment counts only from its middle on, the position is looked up.
				w.next = max(w.next, next.FirstOffset)
				if err := w.begin(ctx, false); err != nil {
					return err
				}
			}
			continue
		}
		h, err := w.header(ctx)
		if w.guessed && w.position > 0 && (errors.Is(err, errNoBatch) || h != nil && h.BaseOffset() > w.next) {
			// The index is wrong; the log need not be.
			w.position, w.guessed = 0, false
			continue
		}
		if err != nil || h == nil {
			return err
		}
		w.guessed = false
		done, err := w.batch(ctx, s, h)
		if done || err != nil {
			return err
		}
	}
}

// errNoBatch says that there is no batch at a position.
var errNoBatch = fmt.Errorf("%w: no batch", objectstore.ErrCorrupt)

// batch takes the batch at the position, or leaves it out; done says that there is no more to be taken.
func (w *walk) batch(ctx context.Context, s *Segment, h recordbatch.Header) (done bool, err error) {
	size := h.Size()
	switch {
	case h.LastOffset() < max(w.next, s.FirstOffset):
		w.position += int64(size)
		return false, nil
	case h.BaseOffset() > s.LastOffset:
		// What follows belongs to the next segment.
		w.position = s.SizeBytes
		return false, nil
	case w.req.LimitOffset > 0 && h.BaseOffset() >= w.req.LimitOffset:
		return true, nil
	case w.bytes+size > w.req.MaxBytes && (w.bytes > 0 || !w.req.MinOneBatch):
		return true, nil
	}
	next, position := h.NextOffset(), w.position
	parts, err := w.at(ctx, position, size)
	if err != nil || parts == nil {
		return parts == nil, err
	}
	w.add(parts, position)
	w.bytes += size
	w.next = next
	w.position += int64(size)
	w.stream.segment, w.stream.position = s.ID, w.position
	return false, nil
}

// add puts a batch behind those before. Batches of one block become one part.
func (w *walk) add(parts mem.BufferSlice, position int64) {
	for _, part := range parts {
		key, from := blockKey{w.segment().ID, int32(position / objectstore.BlockBytes)}, int(position%objectstore.BlockBytes)
		to := from + part.Len()
		position += int64(part.Len())
		if n := len(w.out); n > 0 && w.lastKey == key && w.lastTo == from && w.heldKey == key {
			w.out[n-1].Free()
			part.Free()
			w.lastTo = to
			w.out[n-1] = w.held.Slice(w.lastFrom, w.lastTo)
			continue
		}
		w.out = append(w.out, part)
		w.lastKey, w.lastFrom, w.lastTo = key, from, to
	}
}

// header reads the header of the batch at the position; nil when it would have to be waited for and need not be.
func (w *walk) header(ctx context.Context) (recordbatch.Header, error) {
	s := w.segment()
	if s.SizeBytes-w.position < recordbatch.HeaderSize {
		return nil, fmt.Errorf("%w in %d bytes at the end of segment %s", errNoBatch, s.SizeBytes-w.position, s.ID)
	}
	parts, err := w.at(ctx, w.position, recordbatch.HeaderSize)
	if err != nil || parts == nil {
		return nil, err
	}
	// A copy, since the block may go while the header is still looked at.
	parts.CopyTo(w.head[:])
	parts.Free()
	h := recordbatch.Header(w.head[:])
	if h.Magic() != recordbatch.Magic || h.Size() < recordbatch.HeaderSize || int64(h.Size()) > s.SizeBytes-w.position ||
		h.BaseOffset() < s.BaseOffset || h.LastOffsetDelta() < 0 || h.LastOffset() > s.EndOffset {
		return nil, fmt.Errorf("%w at position %d of segment %s", errNoBatch, w.position, s.ID)
	}
	return h, nil
}

// at gives bytes of the segment, in one part for each block, which the caller frees. A walk that is not patient gets nil for
// what is not there once it has a batch.
func (w *walk) at(ctx context.Context, position int64, n int) (mem.BufferSlice, error) {
	s := w.segment()
	var parts mem.BufferSlice
	last := int32((position + int64(n) - 1) / objectstore.BlockBytes)
	for n > 0 {
		index := int32(position / objectstore.BlockBytes)
		if w.bytes > 0 && !w.patient && !w.r.present(blockKey{s.ID, index}) {
			parts.Free()
			return nil, nil
		}
		data, err := w.hold(ctx, s.SegmentMetadata, index, max(last-index+1, requestBlocks(w.stream.window)))
		if err != nil {
			parts.Free()
			return nil, err
		}
		from := int(position % objectstore.BlockBytes)
		part := data.Slice(from, min(data.Len(), from+n))
		parts = append(parts, part)
		position += int64(part.Len())
		n -= part.Len()
	}
	return parts, nil
}

// present says whether a block is in memory.
func (r *Reader) present(key blockKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory.has(key)
}

// MemoryBytes is what blocks take in memory now, those that are being read among them.
func (r *Reader) MemoryBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory.kept + r.memory.inFlight
}
