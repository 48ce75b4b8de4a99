package log

import (
	"fmt"
	"iter"
	"math"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"

	"google.golang.org/grpc/mem"
)

// Append writes batches whose headers have been stamped with consecutive offsets, from the log's end on, and the leader's
// epoch. As many as fit into the active segment go out in one write. Writer only; the batches' bytes are not kept.
//
// When it returns nil all batches are in the log and readers can see them. After KafkaStorageError none of the log's writes
// will succeed any more, and it is not known what is on disk: the log must be opened anew.
func (l *Log) Append(batches []recordbatch.Batch) error {
	if err := l.writable(); err != nil {
		return err
	}
	a := l.begin()
	defer a.done()
	for i := range batches {
		if err := a.add(&batches[i]); err != nil {
			return err
		}
	}
	return a.flush()
}

// AppendAsFollower writes what was copied from a leader, with the offsets and epochs that are in it. Each batch's checksum
// is verified, and offsets may not go back; if anything is wrong nothing is written. A batch that is cut off at the end is
// left out. Writer only; the bytes are not kept.
func (l *Log) AppendAsFollower(records mem.BufferSlice) error {
	return l.AppendAsFollowerOf(records, math.MaxInt32)
}

// AppendAsFollowerOf is AppendAsFollower up to the first batch of an epoch above the given one: a leader that has lost
// its office while it answered may send what its successor wrote, which the follower must not take from it.
func (l *Log) AppendAsFollowerOf(records mem.BufferSlice, leaderEpoch int32) error {
	if err := l.writable(); err != nil {
		return err
	}
	end, err := l.checkCopied(records, leaderEpoch)
	if err != nil {
		return err
	}
	a := l.begin()
	defer a.done()
	from := bufferRange{buffers: records}
	for it := recordbatch.IterateBuffers(records); it.Next() && it.Position() < end; {
		h := it.Header()
		if err := a.prepare(h); err != nil {
			return err
		}
		for p := range from.take(it.Position(), h.Size()) {
			a.put(p)
		}
		if err := a.note(h, records, it.Position()+recordbatch.HeaderSize); err != nil {
			return err
		}
	}
	return a.flush()
}

// checkCopied checks a leader's answer and says up to which byte it may be appended.
func (l *Log) checkCopied(records mem.BufferSlice, leaderEpoch int32) (int, error) {
	it := recordbatch.IterateBuffers(records)
	next := l.logEnd
	for it.Next() {
		h := it.Header()
		if h.Magic() != recordbatch.Magic {
			return 0, errcode.CorruptMessage.Errorf("batch of format %d from the leader of %s-%d", h.Magic(), l.topic, l.partition)
		}
		if h.LeaderEpoch() > leaderEpoch {
			l.logger.Info("batch of a newer leader epoch is left out", "batch", h.String(), "epoch", leaderEpoch)
			return it.Position(), nil
		}
		if !it.CheckCRC() {
			return 0, errcode.CorruptMessage.Errorf("Record is corrupt (stored crc = %d) in topic partition %s-%d.", h.CRC(), l.topic, l.partition)
		}
		if h.BaseOffset() < next || h.LastOffsetDelta() < 0 {
			return 0, errcode.InvalidRecord.Wrap(fmt.Errorf("batch at offset %d where %s-%d ends at %d", h.BaseOffset(), l.topic, l.partition, next))
		}
		next = h.NextOffset()
	}
	return it.Position(), it.Err()
}

// bufferRange gives out pieces of buffers, going forward only.
type bufferRange struct {
	buffers mem.BufferSlice
	start   int // where the first of buffers begins
}

// take gives the pieces of n bytes from a position on.
func (r *bufferRange) take(position, n int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for n > 0 {
			p := r.buffers[0].ReadOnlyData()
			if position >= r.start+len(p) {
				r.start += len(p)
				r.buffers = r.buffers[1:]
				continue
			}
			p = p[position-r.start:]
			p = p[:min(len(p), n)]
			if !yield(p) {
				return
			}
			position += len(p)
			n -= len(p)
		}
	}
}

// appender collects batches for one write to the active segment. What it changes in the segment's state shows in its own
// fields until the write has succeeded.
type appender struct {
	log     *Log
	segment *segment

	gather  []byte
	buffers [][]byte
	// position is where the next batch goes, end the offset after the last one.
	position int64
	end      int64
	// The segment's bookkeeping, as it will be.
	maxTime       int64
	maxTimeOffset int64
	sinceEntry    int
	lastEntryTime int64
	offsets       []byte
	times         []byte
	batches       []recentBatch
	produced      []producedBatch
}

// producedBatch is a batch with a producer id.
type producedBatch struct {
	header [recordbatch.HeaderSize]byte
	marker *recordbatch.EndTxnMarker
}

func (l *Log) begin() *appender {
	a, _ := l.pools.appenders.Get().(*appender)
	if a == nil {
		a = &appender{gather: make([]byte, 0, gatherBytes)}
	}
	a.log = l
	a.take(l.active())
	return a
}

// take begins with a segment.
func (a *appender) take(s *segment) {
	a.segment = s
	a.position, a.end = s.size, a.log.logEnd
	a.maxTime, a.maxTimeOffset, a.sinceEntry = s.maxTime, s.maxTimeOffset, s.sinceEntry
	a.lastEntryTime = -1
	if len(s.times.tail) > 0 {
		a.lastEntryTime = entryTime(s.times.tail[len(s.times.tail)-timeEntryBytes:])
	} else if s.times.n > 0 {
		// A full page has just ended. Its last entry is not in memory, but none is above the largest timestamp.
		a.lastEntryTime = s.maxTime
	}
}

// done gives the appender back.
func (a *appender) done() {
	l := a.log
	a.clear()
	a.log, a.segment = nil, nil
	l.pools.appenders.Put(a)
}

func (a *appender) clear() {
	clear(a.buffers)
	clear(a.produced)
	a.gather, a.buffers, a.offsets, a.times = a.gather[:0], a.buffers[:0], a.offsets[:0], a.times[:0]
	a.batches, a.produced = a.batches[:0], a.produced[:0]
}

// add takes one batch of a leader.
func (a *appender) add(b *recordbatch.Batch) error {
	h := b.Header()
	if h.BaseOffset() < a.end {
		return fmt.Errorf("append %s to %s, which ends at %d", h, a.log.dir, a.end)
	}
	if err := a.prepare(h); err != nil {
		return err
	}
	if size := h.Size(); size < copyBelow {
		if len(a.gather)+size > cap(a.gather) {
			if err := a.flush(); err != nil {
				return err
			}
		}
		at := len(a.gather)
		a.gather = append(a.gather, h...)
		from := bufferRange{buffers: b.Body}
		for p := range from.take(b.Skip, size-recordbatch.HeaderSize) {
			a.gather = append(a.gather, p...)
		}
		a.put(a.gather[at:])
	} else {
		a.put(h)
		from := bufferRange{buffers: b.Body}
		for p := range from.take(b.Skip, size-recordbatch.HeaderSize) {
			a.put(p)
		}
	}
	return a.note(h, b.Body, b.Skip)
}

// put adds bytes to the write. What lies behind the last bytes in memory becomes one buffer with them.
func (a *appender) put(p []byte) {
	if n := len(a.buffers); n > 0 && len(p) > 0 {
		last := a.buffers[n-1]
		if cap(last)-len(last) >= len(p) && &last[:len(last)+1][len(last)] == &p[0] {
			a.buffers[n-1] = last[:len(last)+len(p)]
			return
		}
	}
	a.buffers = append(a.buffers, p)
}

// prepare makes sure that the active segment may take a batch, and rolls it otherwise.
func (a *appender) prepare(h recordbatch.Header) error {
	roll, err := a.mustRoll(h)
	if err != nil || !roll {
		return err
	}
	if err := a.flush(); err != nil {
		return err
	}
	// The next segment begins where this one ends, though the cleaner may have been at work where the batch comes from and it
	// begins later: recovery takes a gap between segments for a loss.
	base := a.log.logEnd
	if h.LastOffset()-base > math.MaxInt32 {
		base = max(h.BaseOffset(), base)
	}
	if err := a.log.rollAt(base); err != nil {
		return err
	}
	a.take(a.log.active())
	return nil
}

// mustRoll says whether a batch has to begin a new segment.
func (a *appender) mustRoll(h recordbatch.Header) (bool, error) {
	s, c := a.segment, a.log.config
	if h.LastOffset()-s.base > math.MaxInt32 {
		return true, nil
	}
	if a.position == 0 {
		return false, nil
	}
	if a.position+int64(h.Size()) > int64(min(c.SegmentBytes, maxSegmentBytes)) {
		return true, nil
	}
	if s.offsets.n+len(a.offsets)/offsetEntryBytes >= c.SegmentIndexBytes/offsetEntryBytes ||
		s.times.n+len(a.times)/timeEntryBytes >= c.SegmentIndexBytes/timeEntryBytes-1 {
		return true, nil
	}
	waited, err := a.log.waitedForRoll(s, h.MaxTimestamp())
	return waited > longestSegment(c)-s.jitter, err
}

// longestSegment is how much time a segment may cover: segment.ms, or less where records must be compacted earlier, since the
// cleaner leaves the active segment alone.
func longestSegment(c *configdef.Topic) time.Duration {
	ms := c.SegmentMs
	if c.CleanupCompact && c.MaxCompactionLagMs > 0 {
		ms = min(ms, c.MaxCompactionLagMs)
	}
	return configdef.Millis(ms)
}

// waitedForRoll is how much time a segment covers: by the records' clock if its first batch has a timestamp, else by the
// machine's.
func (l *Log) waitedForRoll(s *segment, timestamp int64) (time.Duration, error) {
	if s.firstTime == noFirstTime && s.size > 0 {
		h, err := l.headerAt(s, 0)
		switch {
		case err == nil:
			s.firstTime = h.MaxTimestamp()
		case errcode.Of(err) == errcode.CorruptMessage:
			// What is behind it is as good as before, and so is the disk for new records: the machine's clock has to do.
			s.firstTime = recordbatch.NoTimestamp
		default:
			return 0, l.fail("read the first batch", err)
		}
	}
	if s.firstTime < 0 {
		return l.now().Sub(s.created), nil
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(timestamp-s.firstTime, most)) * time.Millisecond, nil
}

// note does the bookkeeping for a batch whose bytes have been put. Its records begin in body at skip.
func (a *appender) note(h recordbatch.Header, body mem.BufferSlice, skip int) error {
	l := a.log
	if h.LeaderEpoch() != l.epochs.latest() {
		if err := l.AssignEpochStart(h.LeaderEpoch(), h.BaseOffset()); err != nil {
			return err
		}
	}
	if a.position == 0 {
		a.segment.firstTime = h.MaxTimestamp()
	}
	if t := newestIn(h); t > a.maxTime {
		a.maxTime, a.maxTimeOffset = t, h.LastOffset()
	}
	if a.sinceEntry > l.config.IndexIntervalBytes {
		a.offsets = appendOffsetEntry(a.offsets, h.LastOffset()-a.segment.base, a.position)
		if a.maxTime > a.lastEntryTime {
			a.times = appendTimeEntry(a.times, a.maxTime, a.maxTimeOffset-a.segment.base)
			a.lastEntryTime = a.maxTime
		}
		a.sinceEntry = 0
	}
	a.batches = append(a.batches, recentBatch{base: h.BaseOffset(), last: h.LastOffset(), position: a.position, size: int32(h.Size())})
	a.position += int64(h.Size())
	a.sinceEntry += h.Size()
	a.end = h.NextOffset()
	if !h.HasProducerID() {
		return nil
	}
	var p producedBatch
	copy(p.header[:], h)
	if h.IsControl() {
		m, err := markerOf(h, body, skip)
		if err != nil {
			return err
		}
		if m == nil {
			return nil
		}
		p.marker = m
	}
	a.produced = append(a.produced, p)
	return nil
}

// newestIn is a batch's largest timestamp; none for a batch of which the cleaner has left only the header.
func newestIn(h header) int64 {
	if h.Count() == 0 {
		return recordbatch.NoTimestamp
	}
	return h.MaxTimestamp()
}

// markerOf reads the transaction marker of a control batch; nil for a batch that the cleaner has emptied.
func markerOf(h recordbatch.Header, body mem.BufferSlice, skip int) (*recordbatch.EndTxnMarker, error) {
	if h.Count() == 0 {
		return nil, nil
	}
	batch := append(make([]byte, 0, h.Size()), h[:recordbatch.HeaderSize]...)
	from := bufferRange{buffers: body}
	for p := range from.take(skip, h.Size()-recordbatch.HeaderSize) {
		batch = append(batch, p...)
	}
	records := recordbatch.RecordsOf(batch)
	if !records.Next() {
		return nil, records.Err()
	}
	m, err := recordbatch.ParseEndTxnMarker(records.Record())
	return &m, err
}

// flush writes the batches that have been put, and lets readers see them.
func (a *appender) flush() error {
	if len(a.batches) == 0 {
		return nil
	}
	l, s := a.log, a.segment
	f, err := l.open(s)
	if err == nil {
		_, err = f.WriteBuffers(a.buffers, s.size)
	}
	if err == nil {
		err = l.writeEntries(&s.offsets, a.offsets)
	}
	if err == nil {
		err = l.writeEntries(&s.times, a.times)
	}
	if err != nil {
		return l.fail("append", err)
	}
	aborted, unstable := a.applyProducers()
	for i, t := range aborted {
		if err := writeAbortedTxn(l.fs, s.path(txnIndexSuffix), len(s.aborted)+i, t); err != nil {
			return l.fail("append to the transaction index", err)
		}
	}
	l.mu.Lock()
	s.size, l.logEnd, l.firstUnstable = a.position, a.end, unstable
	s.maxTime, s.maxTimeOffset, s.sinceEntry = a.maxTime, a.maxTimeOffset, a.sinceEntry
	s.offsets.add(a.offsets)
	s.times.add(a.times)
	for _, b := range a.batches[max(0, len(a.batches)-recentCount):] {
		l.recent.add(b)
	}
	s.aborted = append(s.aborted, aborted...)
	unflushed := l.logEnd - l.recoveryPoint
	l.settleFiles(s)
	l.mu.Unlock()
	a.clear()
	if unflushed >= l.config.FlushMessages {
		return l.Flush()
	}
	return nil
}

// applyProducers takes the written batches into the producers' state. It gives the transactions that were aborted, and
// the first offset that is not stable.
func (a *appender) applyProducers() (aborted []abortedTxn, unstable int64) {
	s := &a.log.producers
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.pending)
	for i := range a.produced {
		p := &a.produced[i]
		if p.marker == nil {
			s.appended(p.header[:])
		} else if t, ok := s.ended(p.header[:], *p.marker); ok {
			aborted = append(aborted, t)
		}
	}
	s.end = a.end
	return aborted, s.firstUnstable()
}

// Roll begins a new segment at the log's end, if the active one is not empty. Writer only.
func (l *Log) Roll() error {
	if err := l.writable(); err != nil {
		return err
	}
	return l.rollAt(l.logEnd)
}

func (l *Log) rollAt(base int64) error {
	old := l.active()
	if old.base == base {
		return nil
	}
	if err := l.finishSegment(old); err != nil {
		return l.fail("close a segment", err)
	}
	s, err := l.createSegment(base)
	if err != nil {
		return l.fail("begin a segment", err)
	}
	l.producers.mu.Lock()
	l.producers.end = base
	l.producers.mu.Unlock()
	if err := l.takeSnapshot(); err != nil {
		return l.fail("write a producer snapshot", err)
	}
	l.mu.Lock()
	l.segments = append(l.segments[:len(l.segments):len(l.segments)], s)
	l.recent.clear()
	l.dirDirty = true
	l.mu.Unlock()
	if l.rolled != nil {
		l.rolled()
	}
	return nil
}

// finishSegment writes the last entry of the time index: the largest timestamp, by which the segment will be retired.
func (l *Log) finishSegment(s *segment) error {
	last, err := s.times.last()
	if err != nil {
		return err
	}
	if s.maxTime < 0 || last != nil && entryTime(last) >= s.maxTime {
		return nil
	}
	e := appendTimeEntry(nil, s.maxTime, s.maxTimeOffset-s.base)
	if err := l.writeEntries(&s.times, e); err != nil {
		return err
	}
	l.mu.Lock()
	s.times.add(e)
	l.mu.Unlock()
	return nil
}
