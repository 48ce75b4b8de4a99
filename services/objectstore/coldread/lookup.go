package coldread

import (
	"context"
	"errors"
	"fmt"
	"math"

	"chancery/services/kafka/recordbatch"
	"chancery/services/objectstore"
	"chancery/services/storage"
)

// AbortedTransactions are those that a reader of the offsets from one up to, and without, another has to skip, as far as the
// indexes of the segments say. complete is false when later segments, the local ones, may know of more: a transaction is in
// the index of the segment with its marker.
func (r *Reader) AbortedTransactions(ctx context.Context, segments []Segment, from, to int64) (list []storage.AbortedTransaction, complete bool, err error) {
	for i := max(0, segmentAt(segments, from)); i < len(segments); i++ {
		s := &segments[i]
		if s.TxnIndexEmpty {
			continue
		}
		x, err := r.Indexes(ctx, s.SegmentMetadata)
		if err != nil {
			return nil, false, err
		}
		entries, err := abortedTxns(x)
		if err != nil {
			return nil, false, fmt.Errorf("segment %s: %w", s.ID, err)
		}
		for _, t := range entries {
			if t.last > s.LastOffset {
				break // it ended in another history than the reader's, where it may have been committed
			}
			if t.last >= from && t.first < to {
				list = append(list, storage.AbortedTransaction{ProducerID: t.producerID, FirstOffset: t.first})
			}
			if t.lastStable >= to {
				return list, true, nil
			}
		}
	}
	return list, false, nil
}

// maxBatchBytes bounds what a batch may become when it is looked into: the leader has checked it, so the bound is that of
// the format.
const maxBatchBytes = math.MaxInt32 - 8

// OffsetForTimestamp finds the first record, not before minOffset, whose timestamp is not smaller; false when the segments
// have none.
func (r *Reader) OffsetForTimestamp(ctx context.Context, segments []Segment, timestampMs, minOffset int64) (TimestampOffset, bool, error) {
	for i := range segments {
		s := &segments[i]
		if s.MaxTimestampMs < timestampMs || s.LastOffset < minOffset {
			continue
		}
		found, ok, err := r.firstWithTime(ctx, segments[i:i+1], timestampMs, max(minOffset, s.FirstOffset))
		if err != nil || ok {
			return found, ok, err
		}
	}
	return TimestampOffset{}, false, nil
}

// firstWithTime looks through one segment.
func (r *Reader) firstWithTime(ctx context.Context, segment []Segment, timestampMs, minOffset int64) (TimestampOffset, bool, error) {
	s := &segment[0]
	x, err := r.Indexes(ctx, s.SegmentMetadata)
	if err != nil {
		return TimestampOffset{}, false, err
	}
	from := max(minOffset, min(offsetBefore(x, s.BaseOffset, timestampMs), s.LastOffset))
	w := &walk{r: r, req: &ReadRequest{Segments: segment}, next: from}
	// What is looked through is read in larger pieces when it is long, as for a reader that goes on.
	w.stream.window = 2 * firstWindow
	defer w.release()
	if err := w.begin(ctx, false); err != nil {
		return TimestampOffset{}, false, err
	}
	for w.position < s.SizeBytes {
		h, err := w.header(ctx)
		if w.guessed && w.position > 0 && (errors.Is(err, errNoBatch) || h != nil && h.BaseOffset() > from) {
			w.position, w.guessed = 0, false
			continue
		}
		if err != nil {
			return TimestampOffset{}, false, err
		}
		w.guessed = false
		if h.BaseOffset() > s.LastOffset {
			break
		}
		if h.MaxTimestamp() < timestampMs || h.LastOffset() < minOffset {
			w.position += int64(h.Size())
			w.r.readAhead(segment, 0, min(w.position, s.SizeBytes-1), &w.stream)
			continue
		}
		found, ok, err := w.searchBatch(ctx, h.Size(), timestampMs, minOffset, s.LastOffset)
		if err != nil || ok {
			return found, ok, err
		}
		w.position += int64(h.Size())
	}
	return TimestampOffset{}, false, nil
}

// searchBatch looks through the records of the batch at the position.
func (w *walk) searchBatch(ctx context.Context, size int, timestampMs, minOffset, maxOffset int64) (TimestampOffset, bool, error) {
	parts, err := w.at(ctx, w.position, size)
	if err != nil {
		return TimestampOffset{}, false, err
	}
	batch := parts.Materialize()
	parts.Free()
	records := w.r.codecs.Records(batch, maxBatchBytes)
	for records.Next() {
		record := records.Record()
		if record.Timestamp >= timestampMs && record.Offset >= minOffset && record.Offset <= maxOffset {
			return TimestampOffset{record.Offset, record.Timestamp, recordbatch.Header(batch).LeaderEpoch()}, true, nil
		}
	}
	if err := records.Err(); err != nil {
		return TimestampOffset{}, false, fmt.Errorf("%w: %w", objectstore.ErrCorrupt, err)
	}
	return TimestampOffset{}, false, nil
}
