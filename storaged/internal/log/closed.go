package log

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
)

// TierSegment is a segment as tiering sees it.
type TierSegment struct {
	BaseOffset int64
	// EndOffset is where the next segment begins, or the log ends.
	EndOffset      int64
	SizeBytes      int64
	MaxTimestampMs int64
}

// TierSegments are the segments that do not end at or before an offset, the oldest first; the last one is active. Any goroutine
// may call it.
func (l *Log) TierSegments(from int64) ([]TierSegment, error) {
	l.mu.RLock()
	segments, end := l.segments, l.logEnd
	sizes := make([]int64, len(segments))
	for i, s := range segments {
		sizes[i] = s.size
	}
	l.mu.RUnlock()
	var out []TierSegment
	for i, s := range segments {
		next := end
		if i+1 < len(segments) {
			next = segments[i+1].base
		}
		if next <= from && i+1 < len(segments) {
			continue
		}
		t, err := l.largestOf(s)
		if err != nil {
			return nil, err
		}
		if t == 1<<63-1 {
			t = -1 // its index has to be made anew, which describing it does
		}
		out = append(out, TierSegment{BaseOffset: s.base, EndOffset: next, SizeBytes: sizes[i], MaxTimestampMs: t})
	}
	return out, nil
}

// ClosedSegment is what lies beside the records of a closed segment, each as in Kafka's file of that name.
type ClosedSegment struct {
	TierSegment
	// CRC32C is the checksum of the records' bytes, all of which were found to be good.
	CRC32C                                                     uint32
	OffsetIndex, TimeIndex, TransactionIndex, ProducerSnapshot []byte
	// Epochs are those of the segment's records.
	Epochs []storage.EpochStart
}

var (
	// ErrNoSegment says that there is no closed segment with that base offset.
	ErrNoSegment = errors.New("no such closed segment")
	// ErrIndex says that a segment's indexes do not fit its records: RepairIndexes makes them anew.
	ErrIndex = errIndex
)

// closedAt gives a hold on a closed segment.
func (l *Log) closedAt(base int64) (segmentView, error) {
	l.mu.RLock()
	i := l.segmentAt(base)
	ok := i >= 0 && i+1 < len(l.segments) && l.segments[i].base == base
	var s *segment
	if ok {
		s = l.segments[i]
	}
	l.mu.RUnlock()
	if ok {
		if v, ok := l.viewOfSegment(s); ok && !v.active {
			return v, nil
		}
	}
	return segmentView{}, fmt.Errorf("%w: %d in %s", ErrNoSegment, base, l.dir)
}

// DescribeClosed checks every batch of a closed segment and that its indexes point at them. Any goroutine may call it.
func (l *Log) DescribeClosed(base int64) (*ClosedSegment, error) {
	v, err := l.closedAt(base)
	if err != nil {
		return nil, err
	}
	defer v.close()
	out, err := v.describe()
	if err == nil && v.moved() {
		err = fmt.Errorf("%w: %s was cut", ErrNoSegment, l.dir)
	}
	return out, err
}

func (v *segmentView) describe() (*ClosedSegment, error) {
	l, s := v.log, v.segment
	if err := l.loadIndexes(s); err != nil {
		return nil, err
	}
	file, err := l.open(s)
	if err != nil {
		return nil, err
	}
	out := &ClosedSegment{TierSegment: TierSegment{BaseOffset: s.base, EndOffset: v.end, SizeBytes: v.size}}
	for _, f := range []struct {
		suffix string
		into   *[]byte
	}{{indexSuffix, &out.OffsetIndex}, {timeIndexSuffix, &out.TimeIndex}, {txnIndexSuffix, &out.TransactionIndex}} {
		if *f.into, err = l.fs.ReadFile(s.path(f.suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	out.ProducerSnapshot, err = l.fs.ReadFile(segmentPath(l.dir, v.end, snapshotSuffix))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if _, err := parseAbortedTxns(out.TransactionIndex, s.base); err != nil {
		return nil, err
	}
	check := indexCheck{base: s.base, offsets: out.OffsetIndex, times: out.TimeIndex}
	read := batchReader{file: file, end: v.size}
	position := int64(0)
	out.MaxTimestampMs = -1
	for {
		batch, err := read.next()
		if err == nil && batch == nil {
			break
		}
		if err == nil && !recordbatch.CheckCRC(batch) {
			err = fmt.Errorf("%w at %d: checksum", errBatch, position)
		}
		if err != nil {
			return nil, errcode.CorruptMessage.Wrap(fmt.Errorf("segment %d of %s: %w", s.base, l.dir, err))
		}
		h := header(batch)
		out.CRC32C = crc32.Update(out.CRC32C, castagnoli, batch)
		out.MaxTimestampMs = max(out.MaxTimestampMs, h.MaxTimestamp())
		check.batch(h, position)
		if n := len(out.Epochs); n == 0 || h.LeaderEpoch() > out.Epochs[n-1].Epoch {
			out.Epochs = append(out.Epochs, storage.EpochStart{Epoch: h.LeaderEpoch(), StartOffset: h.BaseOffset()})
		}
		position += int64(len(batch))
	}
	if err := check.done(v.end); err != nil {
		return nil, fmt.Errorf("segment %d of %s: %w", s.base, l.dir, err)
	}
	if len(out.Epochs) > 0 {
		out.Epochs[0].StartOffset = s.base
	}
	return out, nil
}

// indexCheck walks the indexes along with the batches.
type indexCheck struct {
	base           int64
	offsets, times []byte
	wrong          string
}

// batch looks at the offset entry that points at a batch, if one does.
func (c *indexCheck) batch(h header, position int64) {
	if len(c.offsets) < offsetEntryBytes || c.wrong != "" {
		return
	}
	switch at := entryPosition(c.offsets); {
	case at == position:
		if c.base+entryOffset(c.offsets) < h.BaseOffset() {
			c.wrong = fmt.Sprintf("an entry of the offset index has offset %d at %d, where %d begins", c.base+entryOffset(c.offsets), position, h.BaseOffset())
		}
		c.offsets = c.offsets[offsetEntryBytes:]
	case at < position:
		c.wrong = fmt.Sprintf("an entry of the offset index points at %d, where no batch begins", at)
	}
}

func (c *indexCheck) done(end int64) error {
	if c.wrong == "" && len(c.offsets) > 0 {
		c.wrong = "the offset index points beyond the segment"
	}
	if n := len(c.times); c.wrong == "" && n >= timeEntryBytes && c.base+entryTimeOffset(c.times[n-timeEntryBytes:]) >= end {
		c.wrong = "the time index points beyond the segment"
	}
	if c.wrong != "" {
		return fmt.Errorf("%w: %s", errIndex, c.wrong)
	}
	return nil
}

// ReadClosed reads bytes of a closed segment's records. Any goroutine may call it.
func (l *Log) ReadClosed(base, position int64, p []byte) error {
	v, err := l.closedAt(base)
	if err != nil {
		return err
	}
	defer v.close()
	if position < 0 || position+int64(len(p)) > v.size {
		return fmt.Errorf("%w: %d bytes at %d of %d in %s: %w", ErrNoSegment, len(p), position, v.size, l.dir, io.ErrUnexpectedEOF)
	}
	file, err := l.open(v.segment)
	if err != nil {
		return err
	}
	if err := readFull(file, p, position); err != nil {
		return v.readError(err)
	}
	if v.moved() {
		return fmt.Errorf("%w: %s was cut", ErrNoSegment, l.dir)
	}
	return nil
}

// RepairIndexes makes the indexes of a segment anew from its records. Writer only.
func (l *Log) RepairIndexes(base int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	i := l.segmentAt(base)
	if i < 0 || l.segments[i].base != base {
		return nil
	}
	l.logger.Warn("the indexes of a segment are made anew", "segment", base)
	return l.rebuildIndexes(l.segments[i])
}

// ProducersAt is the producer snapshot of an offset; empty when there is none. Any goroutine may call it.
func (l *Log) ProducersAt(offset int64) ([]byte, error) {
	data, err := l.fs.ReadFile(segmentPath(l.dir, offset, snapshotSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
