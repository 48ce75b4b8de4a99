package cleaner

import (
	"context"
	"time"

	"chancery/services/kafka/recordbatch"
	"chancery/storaged/internal/log"
)

// Limits bound what one thread may use.
type Limits struct {
	// DedupeBytes is the memory of the map of keys, LoadFactor how full it may become.
	DedupeBytes int64
	LoadFactor  float64
	// IOBufferBytes is the size of the buffers for reading and for writing, each.
	IOBufferBytes int
}

// Stats tells what a pass has done.
type Stats struct {
	BytesRead, BytesWritten       int64
	MessagesRead, MessagesWritten int64
	// MapBytesRead and MapMessagesRead are those of the first part, which reads the dirty records.
	MapBytesRead, MapMessagesRead int64
	// InvalidMessages are records without a key, which a compacted log must not have.
	InvalidMessages int64
	// BufferUtilization is how full the map of keys was.
	BufferUtilization float64
	// MapTime is how long the first part took, Time how long both did.
	MapTime, Time time.Duration
}

// checkEvery is how many bytes go by between two looks at whether to go on.
const checkEvery = 64 << 10

// pass is one cleaning of one log.
type pass struct {
	ctx      context.Context
	cleaning *log.Cleaning
	limits   Limits
	keys     *offsetMap
	filter   *recordbatch.Filter
	nowMs    int64
	stats    Stats
	// spend waits until bytes may be read or written; replace runs a function in the log's writer.
	spend   func(ctx context.Context, bytes int64) error
	replace func(func() error) error

	unchecked int64
	txns      *transactions
	// out is the segment that is written to, which begins with the first batch that stays.
	out     *log.CleanedSegment
	outputs int
	changed bool
}

// run cleans everything below the bounds' end, or as much as the map of keys can hold. It gives the offset up to which the log
// is clean now.
func (p *pass) run(b log.CleanBounds) (int64, error) {
	p.keys = newOffsetMap(p.limits.DedupeBytes, p.limits.LoadFactor, b.FirstUncleanable-b.FirstDirty)
	if err := p.readKeys(b.FirstDirty); err != nil {
		return 0, err
	}
	end := p.keys.latest + 1
	p.txns = newTransactions()
	sources := p.cleaning.Sources()
	for first := 0; first < len(sources) && sources[first].Base < end; {
		count := groupFrom(sources[first:], end, b.Config.SegmentBytes, b.Config.SegmentIndexBytes)
		if err := p.rewrite(first, count); err != nil {
			return 0, err
		}
		first += count
	}
	p.stats.BufferUtilization = p.keys.utilization()
	return max(end, b.FirstDirty), nil
}

// groupFrom says how many segments may become one: together they, and their indexes, are not larger than a segment may be.
func groupFrom(sources []log.CleanSource, end int64, segmentBytes, indexBytes int) int {
	first := &sources[0]
	size, offsets, times := first.SizeBytes, first.IndexBytes, first.TimeIndexBytes
	n := 1
	for ; n < len(sources) && sources[n].Base < end; n++ {
		s := &sources[n]
		size, offsets, times = size+s.SizeBytes, offsets+s.IndexBytes, times+s.TimeIndexBytes
		if size > int64(segmentBytes) || offsets > int64(indexBytes) || times > int64(indexBytes) ||
			s.SizeBytes > 0 && s.End-1-first.Base > maxOffsetRange {
			break
		}
	}
	return n
}

// maxOffsetRange is how far apart the offsets of a segment may be.
const maxOffsetRange = 1<<31 - 1

// readKeys is the first part: it notes the keys from an offset on.
func (p *pass) readKeys(from int64) error {
	sources := p.cleaning.Sources()
	txns := newTransactions()
	if len(sources) > 0 {
		aborted, err := p.cleaning.Aborted(from, sources[len(sources)-1].End)
		if err != nil {
			return err
		}
		txns.expect(aborted)
	}
	for i := range sources {
		if sources[i].End <= from {
			continue
		}
		full, err := p.readKeysOf(i, from, txns)
		if err != nil || full {
			return err
		}
		p.keys.latest = max(p.keys.latest, sources[i].End-1)
	}
	return nil
}

func (p *pass) readKeysOf(source int, from int64, txns *transactions) (full bool, err error) {
	batches, err := p.cleaning.Read(source, from, p.limits.IOBufferBytes)
	if err != nil {
		return false, err
	}
	for {
		batch, err := batches.Next()
		if err != nil || batch == nil {
			return false, err
		}
		h := recordbatch.Header(batch)
		p.stats.MapBytesRead += int64(len(batch))
		p.stats.MapMessagesRead += int64(h.Count())
		if err := p.spent(int64(len(batch))); err != nil {
			return false, err
		}
		if h.IsControl() {
			_, _, err = txns.marker(batch)
		} else if !txns.data(h) && h.LastOffset() >= from {
			full, err = p.readKeysIn(batch, from)
		}
		if err != nil || full {
			return full, err
		}
		if h.LastOffset() >= from {
			p.keys.latest = h.LastOffset()
		}
	}
}

func (p *pass) readKeysIn(batch []byte, from int64) (full bool, err error) {
	records, err := p.filter.Records(batch)
	if err != nil {
		return false, err
	}
	for records.Next() {
		r := records.Record()
		if r.Key != nil && r.Offset >= from && !p.keys.put(r.Key, r.Offset) {
			return true, nil
		}
	}
	return false, records.Err()
}

// rewrite is the second part for a group of segments: it makes new ones of what stays of them, and puts those into their place.
func (p *pass) rewrite(first, count int) error {
	sources := p.cleaning.Sources()[first : first+count]
	// A group becomes at least one segment, even if it has no records any more.
	if err := p.begin(sources[0].Base); err != nil {
		return err
	}
	p.outputs, p.changed = 1, count > 1
	last := p.cleaning.LastRecords()
	for i := range sources {
		aborted, err := p.cleaning.Aborted(sources[i].Base, sources[i].End)
		if err != nil {
			return err
		}
		p.txns.expect(aborted)
		if err := p.rewriteSource(first+i, last); err != nil {
			return err
		}
	}
	if !p.changed && p.outputs == 1 {
		p.cleaning.Discard()
		return nil
	}
	if err := p.out.Finish(sources[count-1].Modified); err != nil {
		return err
	}
	return p.replace(func() error { return p.cleaning.Replace(first, count) })
}

func (p *pass) begin(base int64) (err error) {
	p.out, err = p.cleaning.NewSegment(base, p.limits.IOBufferBytes)
	return err
}

func (p *pass) rewriteSource(source int, last map[int64]log.LastRecord) error {
	batches, err := p.cleaning.Read(source, 0, p.limits.IOBufferBytes)
	if err != nil {
		return err
	}
	modified := p.cleaning.Sources()[source].Modified
	for {
		batch, err := batches.Next()
		if err != nil || batch == nil {
			return err
		}
		kept, marker, err := p.filterBatch(batch, last)
		if err != nil {
			return err
		}
		p.stats.BytesRead += int64(len(batch))
		p.stats.BytesWritten += int64(len(kept.Batch))
		p.stats.MessagesRead += int64(kept.Read)
		p.stats.MessagesWritten += int64(kept.Kept)
		if err := p.spent(int64(len(batch) + len(kept.Batch))); err != nil {
			return err
		}
		p.changed = p.changed || kept.Changed
		if kept.Batch == nil {
			continue
		}
		h := recordbatch.Header(kept.Batch)
		if !p.out.Takes(len(kept.Batch), h.LastOffset()) {
			if err := p.out.Finish(modified); err != nil {
				return err
			}
			if err := p.begin(h.BaseOffset()); err != nil {
				return err
			}
			p.outputs++
		}
		if err := p.out.Append(kept.Batch); err != nil {
			return err
		}
		if marker != nil {
			p.out.AppendAborted(*marker)
		}
	}
}

// filterBatch decides what stays of a batch. For the marker of an aborted transaction of which records were seen it gives the
// transaction.
func (p *pass) filterBatch(batch []byte, last map[int64]log.LastRecord) (recordbatch.Filtered, *log.AbortedTxn, error) {
	h := recordbatch.Header(batch)
	how := recordbatch.Filtering{DeleteHorizonMs: p.nowMs + p.cleaning.Config().DeleteRetentionMs, KeepEmpty: p.keepsHeader(h, last)}
	horizon, hasHorizon := h.DeleteHorizon()
	over := hasHorizon && horizon <= p.nowMs
	var kept *log.AbortedTxn
	if h.IsControl() {
		var err error
		if how.Marker, kept, err = p.txns.marker(batch); err != nil {
			return recordbatch.Filtered{}, nil, err
		}
		drop := how.Marker && over
		how.Keep = func(*recordbatch.Record) bool { return !drop }
	} else if p.txns.data(h) {
		how.Keep = func(*recordbatch.Record) bool { return false }
	} else {
		how.Keep = func(r *recordbatch.Record) bool { return p.keepsRecord(r, over) }
	}
	out, err := p.filter.Apply(batch, &how)
	return out, kept, err
}

// keepsHeader says whether a batch's header must stay: it is the last of its producer, or at the high watermark, which a
// follower or a reader may be about to look up.
func (p *pass) keepsHeader(h recordbatch.Header, last map[int64]log.LastRecord) bool {
	if h.HasProducerID() {
		if r, ok := last[h.ProducerID()]; ok {
			if r.LastOffset >= 0 && h.LastOffset() == r.LastOffset {
				return true
			}
			if r.LastOffset < 0 && h.IsControl() && h.ProducerEpoch() == r.Epoch {
				return true
			}
		}
	}
	return h.NextOffset() == p.cleaning.HighWatermark()
}

// keepsRecord says whether a record of data stays. horizonOver says that the delete horizon of its batch has passed.
func (p *pass) keepsRecord(r *recordbatch.Record, horizonOver bool) bool {
	if r.Offset > p.keys.latest {
		return true
	}
	if r.Key == nil {
		p.stats.InvalidMessages++
		return false
	}
	return r.Offset >= p.keys.get(r.Key) && (r.Value != nil || !horizonOver)
}

// spent counts bytes, and from time to time looks whether the pass may go on, and waits as the rate limit asks.
func (p *pass) spent(bytes int64) error {
	p.unchecked += bytes
	if p.unchecked < checkEvery {
		return nil
	}
	bytes, p.unchecked = p.unchecked, 0
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if err := p.cleaning.Alive(); err != nil {
		return err
	}
	return p.spend(p.ctx, bytes)
}
