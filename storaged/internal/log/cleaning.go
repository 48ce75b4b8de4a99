package log

import (
	"errors"
	"fmt"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// ErrCleaningAborted says that the log has changed in a way that makes a cleaning that is under way worthless: it was cut,
// deleted or closed, or retention took the segments.
var ErrCleaningAborted = errors.New("the cleaning is aborted: the log has changed meanwhile")

// CleanBounds is what of a log the cleaner may work on.
type CleanBounds struct {
	// FirstDirty is where the part begins whose keys have not been compared with those before.
	FirstDirty int64
	// FirstUncleanable is where the cleaner must stop: the base of a segment, never above the active one's.
	FirstUncleanable int64
	// CleanBytes lie before the dirty part, CleanableBytes in it.
	CleanBytes, CleanableBytes int64
	// Overdue is how long ago max.compaction.lag.ms has passed for the oldest dirty record; 0 while it has not.
	Overdue time.Duration
	// Config is the topic's configs.
	Config *configdef.Topic
}

// TotalBytes is the size of all that a cleaning would read.
func (b *CleanBounds) TotalBytes() int64 { return b.CleanBytes + b.CleanableBytes }

// DirtyRatio is the dirty share of what a cleaning would read.
func (b *CleanBounds) DirtyRatio() float64 {
	if b.TotalBytes() == 0 {
		return 0
	}
	return float64(b.CleanableBytes) / float64(b.TotalBytes())
}

// CleanedTo is the offset below which the log is clean; 0 before its first cleaning.
func (l *Log) CleanedTo() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.cleanedTo
}

// SetCleanedTo notes that the log is clean below an offset. Any goroutine may call it; a log that has been cut below since
// the cleaning began keeps what is true of it.
func (c *Cleaning) SetCleanedTo(offset int64) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if c.log.cuts == c.cuts {
		c.log.cleanedTo = offset
	}
}

// CleanBounds says what may be cleaned at a time. The end is the last stable offset, the active segment, or the first segment
// with a record younger than min.compaction.lag.ms, whichever comes first. Any goroutine may call it.
func (l *Log) CleanBounds(now time.Time) (CleanBounds, error) {
	l.mu.RLock()
	segments, config := l.segments, l.config
	b := CleanBounds{FirstDirty: max(l.cleanedTo, l.logStart), Config: config}
	l.mu.RUnlock()
	active := segments[len(segments)-1].base
	limit := min(l.LastStableOffset(), active)
	dirty := max(0, indexOfSegment(segments, b.FirstDirty))
	if config.MinCompactionLagMs > 0 {
		for _, s := range segments[dirty : len(segments)-1] {
			largest, err := l.largestOf(s)
			if err != nil {
				return b, err
			}
			if largest > now.UnixMilli()-config.MinCompactionLagMs {
				limit = min(limit, s.base)
				break
			}
		}
	}
	limit = max(limit, b.FirstDirty)
	b.FirstUncleanable = segments[max(0, indexOfSegment(segments, min(limit, active)))].base
	oldest := int64(1<<63 - 1)
	for i, s := range segments[:len(segments)-1] {
		size := l.sizeOf(s)
		if s.base < b.FirstDirty {
			b.CleanBytes += size
		}
		if i >= dirty && s.base < b.FirstUncleanable {
			b.CleanableBytes += size
		}
		if i >= dirty && config.MaxCompactionLagMs < 1<<63-1 {
			t, err := l.firstTimeOf(s)
			if err != nil {
				return b, err
			}
			if t > 0 {
				oldest = min(oldest, t)
			}
		}
	}
	if until := now.UnixMilli() - max(0, config.MaxCompactionLagMs); oldest < until {
		b.Overdue = configdef.Millis(until - oldest)
	}
	return b, nil
}

func (l *Log) sizeOf(s *segment) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return s.size
}

// firstTimeOf is the largest timestamp of a closed segment's first batch, -1 for none.
func (l *Log) firstTimeOf(s *segment) (int64, error) {
	v, ok := l.viewOfSegment(s)
	if !ok || v.size == 0 {
		if ok {
			v.close()
		}
		return -1, nil
	}
	defer v.close()
	if err := v.prepare(); err != nil {
		return -1, v.readError(err)
	}
	scan := scanner{file: v.file, end: v.size, buf: make([]byte, recordbatch.HeaderSize)}
	h, err := scan.next()
	if err != nil {
		return -1, v.readError(err)
	}
	return h.MaxTimestamp(), nil
}

// Cleaning is one cleaning of a log: a hold on its closed segments, from which new ones are made that take their place. It is
// for one goroutine, but for Replace, which the log's writer calls while that goroutine waits.
type Cleaning struct {
	log     *Log
	sources []CleanSource
	// all are the segments of the log from the first source on, the active one too, for their aborted transactions.
	all    []*segment
	cuts   uint64
	config *configdef.Topic
	// written are the segments that have been begun and not yet replaced anything.
	written []*CleanedSegment
}

// CleanSource is a closed segment as the cleaner sees it.
type CleanSource struct {
	Base int64
	// End is the base of the next segment.
	End int64
	// SizeBytes, IndexBytes and TimeIndexBytes are the sizes of its files.
	SizeBytes, IndexBytes, TimeIndexBytes int64
	Modified                              time.Time

	segment *segment
}

// BeginCleaning takes a hold on all segments below an offset, which is CleanBounds.FirstUncleanable. The caller must Close the
// Cleaning. Any goroutine may call it.
func (l *Log) BeginCleaning(b CleanBounds) (*Cleaning, error) {
	if err := l.writable(); err != nil {
		return nil, err
	}
	if l.RecoveryPoint() < b.FirstUncleanable {
		// An older record goes because of a newer one, which must not be lost with the power then.
		if err := l.Flush(); err != nil {
			return nil, err
		}
	}
	c := &Cleaning{log: l, config: b.Config}
	l.mu.RLock()
	c.cuts = l.cuts
	c.all = l.segments
	for i, s := range l.segments[:len(l.segments)-1] {
		if s.base < b.FirstUncleanable {
			s.retain()
			c.sources = append(c.sources, CleanSource{Base: s.base, End: l.segments[i+1].base, SizeBytes: s.size, segment: s})
		}
	}
	l.mu.RUnlock()
	for i := range c.sources {
		if err := c.describe(&c.sources[i]); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// describe fills in what the file system knows.
func (c *Cleaning) describe(s *CleanSource) error {
	for _, x := range []struct {
		suffix string
		size   *int64
	}{{indexSuffix, &s.IndexBytes}, {timeIndexSuffix, &s.TimeIndexBytes}, {logSuffix, new(int64)}} {
		st, err := c.log.fs.Stat(s.segment.path(x.suffix))
		if isNotExist(err) && x.suffix != logSuffix {
			continue // it will be rebuilt when somebody needs it
		}
		if err != nil {
			return c.readError(s, err)
		}
		*x.size, s.Modified = st.Size(), st.ModTime()
	}
	return nil
}

// Sources are the segments that may be cleaned, the oldest first.
func (c *Cleaning) Sources() []CleanSource { return c.sources }

// Config is the topic's configs as they were when the cleaning was decided.
func (c *Cleaning) Config() *configdef.Topic { return c.config }

// HighWatermark is the log's high watermark now.
func (c *Cleaning) HighWatermark() int64 {
	c.log.mu.RLock()
	defer c.log.mu.RUnlock()
	return c.log.highWatermark
}

// Alive is ErrCleaningAborted when what is being made cannot take the place of anything any more.
func (c *Cleaning) Alive() error {
	if err := c.log.writable(); err != nil {
		return err
	}
	c.log.mu.RLock()
	defer c.log.mu.RUnlock()
	if c.log.cuts != c.cuts {
		return ErrCleaningAborted
	}
	return nil
}

// Close gives the segments back and removes what has been made but not used.
func (c *Cleaning) Close() {
	for i := range c.sources {
		c.sources[i].segment.release()
	}
	c.sources = nil
	c.Discard()
}

// Discard removes the segments that have been made since the last Replace.
func (c *Cleaning) Discard() {
	for _, s := range c.written {
		if err := s.remove(); err != nil {
			c.log.logger.Warn("files of an aborted cleaning could not be removed", "error", err)
		}
	}
	c.written = nil
}

// readError is the error of reading a source: that of the disk, unless the log has changed under the cleaner.
func (c *Cleaning) readError(s *CleanSource, err error) error {
	if c.Alive() != nil || isNotExist(err) {
		return ErrCleaningAborted // a file that is gone is that of a segment which retention has taken
	}
	if errcode.Of(err) != errcode.UnknownServerError || errors.Is(err, errBatch) {
		return fmt.Errorf("segment %d: %w", s.Base, err)
	}
	return errcode.KafkaStorageError.Wrap(fmt.Errorf("clean segment %d of %s: %w", s.Base, c.log.dir, err))
}

// CleanReader reads the batches of a source.
type CleanReader struct {
	cleaning *Cleaning
	source   *CleanSource
	batches  batchReader
}

// Read begins at the batch that holds an offset, or at the begin of the segment. bufferBytes is how much is read at once.
func (c *Cleaning) Read(source int, from int64, bufferBytes int) (*CleanReader, error) {
	s := &c.sources[source]
	f, err := c.log.open(s.segment)
	if err != nil {
		return nil, c.readError(s, err)
	}
	position := int64(0)
	if from > s.Base {
		if position, err = c.positionOf(s, from); err != nil {
			return nil, err
		}
	}
	return &CleanReader{cleaning: c, source: s, batches: batchReader{file: f, at: position, end: s.SizeBytes, bufferBytes: bufferBytes}}, nil
}

// positionOf gives the position of an index entry before an offset.
func (c *Cleaning) positionOf(s *CleanSource, offset int64) (int64, error) {
	v, ok := c.log.viewOfSegment(s.segment)
	if !ok {
		return 0, ErrCleaningAborted
	}
	defer v.close()
	if err := v.prepare(); err != nil {
		return 0, v.readError(err)
	}
	page := c.log.pools.page()
	defer c.log.pools.freePage(page)
	position, err := v.seek(offset-s.Base, entryOffset, *page)
	if err != nil {
		return 0, v.readError(err)
	}
	return position, nil
}

// Next gives the next batch, valid until the next call; nil at the end.
func (r *CleanReader) Next() ([]byte, error) {
	b, err := r.batches.next()
	if err != nil {
		return nil, r.cleaning.readError(r.source, err)
	}
	return b, nil
}

// AbortedTxn is an aborted transaction as the transaction index has it.
type AbortedTxn struct {
	ProducerID int64
	// FirstOffset is that of its first record, LastOffset that of its marker.
	FirstOffset, LastOffset int64
	// LastStableOffset is the last stable offset after the marker.
	LastStableOffset int64
}

// Aborted are the aborted transactions with anything in a range of offsets.
func (c *Cleaning) Aborted(from, to int64) ([]AbortedTxn, error) {
	var out []AbortedTxn
	for _, s := range c.all[max(0, indexOfSegment(c.all, from)):] {
		list, err := c.log.abortedOf(s)
		if err != nil {
			return nil, c.readError(&CleanSource{Base: s.base}, err)
		}
		for _, t := range list {
			if t.last >= from && t.first < to {
				out = append(out, AbortedTxn{t.producerID, t.first, t.last, t.lastStable})
			}
			if t.lastStable >= to {
				return out, nil
			}
		}
	}
	return out, nil
}

// LastRecord is what must be kept of a producer so that its state can be found in the log.
type LastRecord struct {
	// LastOffset is that of its last batch of data; -1 when only a marker is known of its epoch.
	LastOffset int64
	Epoch      int16
}

// LastRecords gives the last record of every producer that the log knows.
func (c *Cleaning) LastRecords() map[int64]LastRecord {
	p := &c.log.producers
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[int64]LastRecord, len(p.byID))
	for id, x := range p.byID {
		last := LastRecord{LastOffset: -1, Epoch: x.epoch}
		if x.n > 0 {
			last.LastOffset = x.batches[x.n-1].lastOffset
		}
		out[id] = last
	}
	return out
}

// indexOfSegment is segmentAt for a list of segments; -1 when the offset lies before all.
func indexOfSegment(segments []*segment, offset int64) int {
	lo, hi := 0, len(segments)
	for lo < hi {
		if mid := (lo + hi) / 2; segments[mid].base <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// Compacted says whether the topic's cleanup.policy has compact. Any goroutine may ask.
func (l *Log) Compacted() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.config.CleanupCompact
}
