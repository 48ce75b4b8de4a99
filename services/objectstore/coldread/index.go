package coldread

import (
	"container/list"
	"context"
	"encoding/binary"
	"fmt"
	"sort"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

const (
	offsetEntryBytes = 8
	timeEntryBytes   = 12
	txnEntryBytes    = 34
)

// positionOf finds where to begin to look for an offset: the position of the last entry that is not behind it.
func positionOf(x *objectstore.Indexes, base, offset int64) int64 {
	n := len(x.Offset) / offsetEntryBytes
	i := sort.Search(n, func(i int) bool {
		return base+int64(int32(binary.BigEndian.Uint32(x.Offset[i*offsetEntryBytes:]))) > offset
	})
	if i == 0 {
		return 0
	}
	return int64(int32(binary.BigEndian.Uint32(x.Offset[(i-1)*offsetEntryBytes+4:])))
}

// offsetBefore finds an offset up to which no record has a timestamp as late as the given one.
func offsetBefore(x *objectstore.Indexes, base, timestampMs int64) int64 {
	n := len(x.Time) / timeEntryBytes
	i := sort.Search(n, func(i int) bool {
		return int64(binary.BigEndian.Uint64(x.Time[i*timeEntryBytes:])) >= timestampMs
	})
	if i == 0 {
		return base
	}
	return base + int64(int32(binary.BigEndian.Uint32(x.Time[(i-1)*timeEntryBytes+8:])))
}

// abortedTxn is an entry of a transaction index.
type abortedTxn struct {
	producerID, first, last, lastStable int64
}

func abortedTxns(x *objectstore.Indexes) ([]abortedTxn, error) {
	out := make([]abortedTxn, 0, len(x.Transaction)/txnEntryBytes)
	for b := x.Transaction; len(b) >= txnEntryBytes; b = b[txnEntryBytes:] {
		if v := binary.BigEndian.Uint16(b); v != 0 {
			return nil, fmt.Errorf("%w: version %d of an aborted transaction", objectstore.ErrCorrupt, v)
		}
		field := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[2+8*i:])) }
		out = append(out, abortedTxn{field(0), field(1), field(2), field(3)})
	}
	return out, nil
}

// indexCache keeps the indexes of segments within a bound. The reader's lock guards it.
type indexCache struct {
	capacity int64
	kept     int64
	entries  map[uuid.UUID]*list.Element
	recent   *list.List
	flights  map[uuid.UUID]*indexFlight
}

type indexEntry struct {
	segment uuid.UUID
	indexes *objectstore.Indexes
	bytes   int64
}

// indexFlight is indexes that are being read.
type indexFlight struct {
	done    chan struct{}
	indexes *objectstore.Indexes
	err     error
}

func newIndexCache(capacity int64) *indexCache {
	return &indexCache{capacity: capacity, entries: make(map[uuid.UUID]*list.Element), recent: list.New(), flights: make(map[uuid.UUID]*indexFlight)}
}

func (c *indexCache) get(segment uuid.UUID) (*objectstore.Indexes, bool) {
	e, ok := c.entries[segment]
	if !ok {
		return nil, false
	}
	c.recent.MoveToFront(e)
	return e.Value.(*indexEntry).indexes, true
}

// resize changes the bound.
func (c *indexCache) resize(capacity int64) {
	c.capacity = capacity
	c.shrink()
}

// shrink drops what was not wanted for longest, down to the bound; the newest stays.
func (c *indexCache) shrink() {
	for c.kept > c.capacity && c.recent.Len() > 1 {
		c.remove(c.recent.Back())
	}
}

func (c *indexCache) keep(segment uuid.UUID, x *objectstore.Indexes) {
	const overhead = 256
	entry := &indexEntry{segment: segment, indexes: x, bytes: overhead + int64(len(x.Offset)+len(x.Time)+len(x.ProducerSnapshot)+
		len(x.Transaction)+16*len(x.LeaderEpochs)+4*len(x.BlockCRCs))}
	c.entries[segment] = c.recent.PushFront(entry)
	c.kept += entry.bytes
	c.shrink()
}

func (c *indexCache) remove(e *list.Element) {
	entry := e.Value.(*indexEntry)
	c.recent.Remove(e)
	delete(c.entries, entry.segment)
	c.kept -= entry.bytes
}

func (c *indexCache) forget(segment uuid.UUID) {
	if e, ok := c.entries[segment]; ok {
		c.remove(e)
	}
}

// SetIndexBytes changes the most that indexes take in memory, which stays within what the reader was made with.
func (r *Reader) SetIndexBytes(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.indexes.resize(min(most, r.config.IndexBytes))
}

// Indexes gives the indexes of a segment: those for reading it, its producer snapshot and its leader epochs.
func (r *Reader) Indexes(ctx context.Context, s *objectstore.SegmentMetadata) (*objectstore.Indexes, error) {
	r.mu.Lock()
	if x, ok := r.indexes.get(s.ID); ok {
		r.mu.Unlock()
		r.metrics.indexHit(ctx, true)
		return x, nil
	}
	f := r.indexes.flights[s.ID]
	if f == nil {
		if r.closed {
			r.mu.Unlock()
			return nil, errClosed
		}
		f = &indexFlight{done: make(chan struct{})}
		r.indexes.flights[s.ID] = f
		r.running.Go(func() { r.fillIndexes(s, f) })
	}
	r.mu.Unlock()
	r.metrics.indexHit(ctx, false)
	select {
	case <-f.done:
		return f.indexes, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *Reader) fillIndexes(s *objectstore.SegmentMetadata, f *indexFlight) {
	ctx, cancel := context.WithTimeout(r.ctx, r.config.FillTimeout)
	defer cancel()
	f.indexes, f.err = r.manager.FetchIndexes(ctx, s)
	r.mu.Lock()
	delete(r.indexes.flights, s.ID)
	if f.err == nil {
		r.indexes.keep(s.ID, f.indexes)
	}
	r.mu.Unlock()
	close(f.done)
}
