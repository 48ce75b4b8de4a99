package log

import (
	"errors"
	"fmt"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// TimestampOffset is a record's place and time.
type TimestampOffset struct {
	Timestamp   int64
	Offset      int64
	LeaderEpoch int32
}

// OffsetForTimestamp finds the first record, not before the log's start, whose timestamp is not smaller; false when there
// is none. Any goroutine may call it.
func (l *Log) OffsetForTimestamp(timestamp int64) (TimestampOffset, bool, error) {
	return l.retryTimes(func() (TimestampOffset, bool, error) {
		l.mu.RLock()
		segments, start := l.segments, l.logStart
		l.mu.RUnlock()
		for _, s := range segments {
			largest, err := l.largestOf(s)
			if err != nil {
				return TimestampOffset{}, false, err
			}
			if largest < timestamp {
				continue
			}
			v, ok := l.viewOfSegment(s)
			if !ok {
				continue
			}
			t, found, err := v.firstWithTime(timestamp, start)
			v.close()
			if err == nil && v.moved() {
				err = errMoved
			}
			if err != nil {
				return t, false, v.readError(err)
			}
			if found {
				return t, true, nil
			}
			// What made the segment's largest timestamp lies before the log's start; records that count may come later.
		}
		return TimestampOffset{}, false, nil
	})
}

// OffsetOfMaxTimestamp finds the first record with the largest timestamp; false when no record has one. Any goroutine may
// call it.
func (l *Log) OffsetOfMaxTimestamp() (TimestampOffset, bool, error) {
	return l.retryTimes(func() (TimestampOffset, bool, error) {
		l.mu.RLock()
		segments := l.segments
		l.mu.RUnlock()
		var best *segment
		largest, where := int64(-1), int64(0)
		for _, s := range segments {
			t, offset, err := l.maxTimeOf(s)
			if err != nil {
				return TimestampOffset{}, false, err
			}
			if t > largest {
				best, largest, where = s, t, offset
			}
		}
		if best == nil {
			return TimestampOffset{}, false, nil
		}
		v, ok := l.viewOfSegment(best)
		if !ok {
			return TimestampOffset{}, false, nil
		}
		t, found, err := v.recordWithTime(where, largest)
		v.close()
		if err == nil && v.moved() {
			err = errMoved
		}
		if err != nil {
			return t, false, v.readError(err)
		}
		return t, found, nil
	})
}

func (l *Log) retryTimes(f func() (TimestampOffset, bool, error)) (TimestampOffset, bool, error) {
	for range readRetries {
		// A segment that is not there any more has been deleted, or others have taken its place. Only then it must be looked
		// for again.
		before := l.changesNow()
		t, found, err := f()
		if !errors.Is(err, errMoved) && l.changesNow() == before {
			return t, found, err
		}
		l.awaitNames()
	}
	return TimestampOffset{}, false, errcode.UnknownServerError.Wrap(fmt.Errorf("search %s by time: %w", l.dir, errMoved))
}

// largestOf is largestTime for readers, who hold no segment: one that has been deleted has no times left.
func (l *Log) largestOf(s *segment) (int64, error) {
	v, ok := l.viewOfSegment(s)
	if !ok {
		return -1, nil
	}
	defer v.close()
	t, err := l.largestTime(s)
	if errors.Is(err, errIndex) {
		return 1<<63 - 1, nil // the records themselves will tell
	}
	if err != nil {
		return 0, v.readError(err)
	}
	return t, nil
}

// maxTimeOf gives a segment's largest timestamp, -1 for none, and where it is.
func (l *Log) maxTimeOf(s *segment) (timestamp, offset int64, err error) {
	v, ok := l.viewOfSegment(s)
	if !ok {
		return -1, 0, nil
	}
	defer v.close()
	switch err := l.loadIndexes(s); {
	case errors.Is(err, errIndex):
		return v.newestBatch()
	case err != nil:
		return -1, 0, v.readError(err)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return s.maxTime, s.maxTimeOffset, nil
}

// newestBatch finds the first batch with the segment's largest timestamp in the records themselves.
func (v *segmentView) newestBatch() (timestamp, offset int64, err error) {
	if err := v.prepare(); err != nil {
		return -1, 0, v.readError(err)
	}
	scan := scanner{file: v.file, end: v.size, buf: make([]byte, scanBytes)}
	for timestamp = -1; ; {
		h, err := scan.next()
		if err != nil {
			return -1, 0, v.readError(err)
		}
		if h == nil {
			return timestamp, offset, nil
		}
		if t := newestIn(h); t > timestamp {
			timestamp, offset = t, h.LastOffset()
		}
	}
}

// viewOfSegment is viewOf for a segment that may have been deleted: then it is false.
func (l *Log) viewOfSegment(s *segment) (segmentView, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := l.segmentAt(s.base)
	if i < 0 || l.segments[i] != s || l.closed.Load() {
		return segmentView{}, false
	}
	v := segmentView{log: l, segment: s, file: s.file, offsets: s.offsets, loaded: s.loaded, size: s.size, end: l.logEnd, changes: l.changes}
	v.active = i == len(l.segments)-1
	if !v.active {
		v.end = l.segments[i+1].base
	}
	s.retain()
	return v, true
}

// firstWithTime finds the first record from start on whose timestamp is at least the given one.
func (v *segmentView) firstWithTime(timestamp, start int64) (TimestampOffset, bool, error) {
	if err := v.prepare(); err != nil {
		return TimestampOffset{}, false, err
	}
	page := v.log.pools.page()
	defer v.log.pools.freePage(page)
	from := start
	v.log.mu.RLock()
	times := v.segment.times
	v.log.mu.RUnlock()
	// No record up to the entry's offset is later than the entry's time.
	slot, entry, err := times.search(timestamp-1, entryTime, *page)
	if err != nil {
		return TimestampOffset{}, false, err
	}
	if slot >= 0 {
		from = max(from, v.segment.base+entryTimeOffset(entry[:]))
	}
	position, err := v.seek(from-v.segment.base, entryOffset, *page)
	if err != nil {
		return TimestampOffset{}, false, err
	}
	scan := scanner{file: v.file, at: position, end: v.size, buf: (*page)[:scanBytes]}
	for {
		h, err := scan.next()
		if err != nil || h == nil {
			return TimestampOffset{}, false, err
		}
		if h.MaxTimestamp() < timestamp || h.LastOffset() < start {
			continue
		}
		t, found, err := v.searchBatch(scan.position, h.Size(), func(r *recordbatch.Record) bool {
			return r.Timestamp >= timestamp && r.Offset >= start
		})
		if err != nil || found {
			return t, found, err
		}
	}
}

// recordWithTime finds the first record with exactly the given time, in the first batch at or after an offset whose
// largest time it is.
func (v *segmentView) recordWithTime(offset, timestamp int64) (TimestampOffset, bool, error) {
	if err := v.prepare(); err != nil {
		return TimestampOffset{}, false, err
	}
	page := v.log.pools.page()
	defer v.log.pools.freePage(page)
	position, err := v.seek(offset-v.segment.base, entryOffset, *page)
	if err != nil {
		return TimestampOffset{}, false, err
	}
	scan := scanner{file: v.file, at: position, end: v.size, buf: (*page)[:scanBytes]}
	for {
		h, err := scan.next()
		if err != nil || h == nil {
			return TimestampOffset{}, false, err
		}
		if h.MaxTimestamp() == timestamp {
			return v.searchBatch(scan.position, h.Size(), func(r *recordbatch.Record) bool { return r.Timestamp == timestamp })
		}
	}
}

// searchBatch looks for a record in the batch at a position.
func (v *segmentView) searchBatch(position int64, size int, match func(*recordbatch.Record) bool) (TimestampOffset, bool, error) {
	batch := make([]byte, size)
	if err := readFull(v.file, batch, position); err != nil {
		return TimestampOffset{}, false, err
	}
	records := v.log.codecs.Records(batch, v.log.maxDecompressed())
	for records.Next() {
		if r := records.Record(); match(r) {
			return TimestampOffset{Timestamp: r.Timestamp, Offset: r.Offset, LeaderEpoch: recordbatch.Header(batch).LeaderEpoch()}, true, nil
		}
	}
	return TimestampOffset{}, false, records.Err()
}

// maxDecompressed bounds what a batch of this log may become when it is looked into. The leader has checked it already,
// against the topic's config of its time, so the bound here is that of the format.
func (l *Log) maxDecompressed() int { return 1<<31 - 9 }
