// Package memlog is a replica's log in memory, for tests and simulations: it keeps the contract of a log, without disks.
//
// It owns batches, leader epochs and the last batch of each producer. It must never be used to keep anything.
package memlog

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
)

// Log is a log in memory.
type Log struct {
	mu       sync.Mutex
	batches  []entry
	epochs   []partition.EpochStart
	logStart int64
	end      int64
	hw       int64
	// Fail is what every write fails with; nil for none.
	fail error
}

type entry struct {
	header recordbatch.Header
	bytes  []byte
}

var _ replica.Log = (*Log)(nil)

// New makes an empty log.
func New() *Log { return &Log{} }

// FailWrites makes every later write fail.
func (l *Log) FailWrites(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

// Append is part of replica.Log.
func (l *Log) Append(batches []recordbatch.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	for i := range batches {
		l.add(batches[i].Bytes())
	}
	return nil
}

func (l *Log) add(b []byte) {
	h := recordbatch.Header(b)
	l.assign(h.LeaderEpoch(), h.BaseOffset())
	l.batches = append(l.batches, entry{header: h, bytes: b})
	l.end = h.NextOffset()
}

// AppendAsFollower is part of replica.Log.
func (l *Log) AppendAsFollower(records mem.BufferSlice) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	data := records.Materialize()
	it := recordbatch.Iterate(data)
	for it.Next() {
		if it.Header().BaseOffset() < l.end {
			return errcode.CorruptMessage.Errorf("batch at %d, log ends at %d", it.Header().BaseOffset(), l.end)
		}
		l.add(slices.Clone(it.Bytes()))
	}
	return it.Err()
}

// AssignEpochStart is part of replica.Log.
func (l *Log) AssignEpochStart(epoch int32, offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.assign(epoch, offset)
	return nil
}

func (l *Log) assign(epoch int32, offset int64) {
	if k := len(l.epochs); k > 0 && l.epochs[k-1].Epoch == epoch {
		return
	}
	l.epochs = append(slices.DeleteFunc(l.epochs, func(e partition.EpochStart) bool {
		return e.Epoch >= epoch || e.Offset >= offset
	}), partition.EpochStart{Epoch: epoch, Offset: offset})
}

// TruncateTo is part of replica.Log.
func (l *Log) TruncateTo(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.batches) > 0 && l.batches[len(l.batches)-1].header.LastOffset() >= offset {
		l.batches = l.batches[:len(l.batches)-1]
	}
	l.end = min(l.end, offset)
	if k := len(l.batches); k > 0 {
		l.end = l.batches[k-1].header.NextOffset()
	}
	l.epochs = slices.DeleteFunc(l.epochs, func(e partition.EpochStart) bool { return e.Offset >= l.end })
	return nil
}

// TruncateFullyAndStartAt is part of replica.Log.
func (l *Log) TruncateFullyAndStartAt(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches, l.epochs = nil, nil
	l.logStart, l.end = offset, offset
	return nil
}

// SetLogStartOffset is part of replica.Log.
func (l *Log) SetLogStartOffset(offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logStart = max(l.logStart, offset)
	return nil
}

// SetHighWatermark is part of replica.Log.
func (l *Log) SetHighWatermark(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hw = offset
}

// DeleteRetired is part of replica.Log.
func (l *Log) DeleteRetired(time.Time) (bool, error) { return false, nil }

// Flush is part of replica.Log.
func (l *Log) Flush() error { return nil }

// FlushDue is part of replica.Log.
func (l *Log) FlushDue(time.Time) error { return nil }

// SetConfig is part of replica.Log.
func (l *Log) SetConfig(*configdef.Topic) {}

// Close is part of replica.Log.
func (l *Log) Close() error { return nil }

// Delete is part of replica.Log.
func (l *Log) Delete() error { return nil }

// LogStartOffset is part of replica.LogReader.
func (l *Log) LogStartOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logStart
}

// LogEndOffset is part of replica.LogReader.
func (l *Log) LogEndOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// LastStableOffset is part of replica.LogReader.
func (l *Log) LastStableOffset() int64 { return l.LogEndOffset() }

// RecoveryPoint is part of replica.LogReader.
func (l *Log) RecoveryPoint() int64 { return l.LogEndOffset() }

// FirstSegmentOffset is part of replica.LogReader.
func (l *Log) FirstSegmentOffset() int64 { return 0 }

// LatestEpoch is part of replica.LogReader.
func (l *Log) LatestEpoch() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.epochs) == 0 {
		return -1
	}
	return l.epochs[len(l.epochs)-1].Epoch
}

// EndOffsetForEpoch is part of replica.LogReader.
func (l *Log) EndOffsetForEpoch(epoch int32) storage.EpochEndOffset {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := len(l.epochs)
	if k == 0 || epoch > l.epochs[k-1].Epoch {
		return storage.NoDivergence
	}
	end := l.end
	for i := k - 1; i >= 0; i-- {
		if l.epochs[i].Epoch <= epoch {
			return storage.EpochEndOffset{Epoch: l.epochs[i].Epoch, EndOffset: end}
		}
		end = l.epochs[i].Offset
	}
	return storage.EpochEndOffset{Epoch: epoch, EndOffset: end}
}

// EpochForOffset is part of replica.LogReader.
func (l *Log) EpochForOffset(offset int64) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.epochs) - 1; i >= 0; i-- {
		if l.epochs[i].Offset <= offset {
			return l.epochs[i].Epoch
		}
	}
	return -1
}

// Read is part of replica.LogReader.
func (l *Log) Read(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out storage.Records
	n := 0
	for _, e := range l.batches {
		if e.header.LastOffset() < offset {
			continue
		}
		first := n == 0 && minOne
		if e.header.BaseOffset() >= limit || !first && n+len(e.bytes) > maxBytes {
			break
		}
		out.Buffers = append(out.Buffers, mem.SliceBuffer(e.bytes))
		n += len(e.bytes)
	}
	return out, nil
}

// AbortedTransactions is part of replica.LogReader.
func (l *Log) AbortedTransactions(int64, int64) ([]storage.AbortedTransaction, error) {
	return nil, nil
}

// OffsetForTimestamp is part of replica.LogReader.
func (l *Log) OffsetForTimestamp(timestamp int64) (replica.TimestampOffset, bool, error) {
	return l.search(func(t int64) bool { return t >= timestamp })
}

// OffsetOfMaxTimestamp is part of replica.LogReader.
func (l *Log) OffsetOfMaxTimestamp() (replica.TimestampOffset, bool, error) {
	newest := int64(-1)
	l.mu.Lock()
	for _, e := range l.batches {
		newest = max(newest, e.header.MaxTimestamp())
	}
	l.mu.Unlock()
	return l.search(func(t int64) bool { return t == newest })
}

// search finds the first record that fits; batches must not be compressed.
func (l *Log) search(fits func(timestamp int64) bool) (replica.TimestampOffset, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.batches {
		records := recordbatch.RecordsOf(e.bytes)
		for records.Next() {
			if r := records.Record(); r.Offset >= l.logStart && fits(r.Timestamp) {
				return replica.TimestampOffset{Timestamp: r.Timestamp, Offset: r.Offset, LeaderEpoch: e.header.LeaderEpoch()}, true, nil
			}
		}
	}
	return replica.TimestampOffset{}, false, nil
}

// Size is part of replica.LogReader.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, e := range l.batches {
		n += len(e.bytes)
	}
	return int64(n)
}

// CheckProducer is part of replica.LogProducers: a batch must follow the producer's last one, or be one of the last five.
func (l *Log) CheckProducer(h recordbatch.Header, _ recordbatch.Origin) (replica.Duplicate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := 0
	for i := len(l.batches) - 1; i >= 0 && seen < 5; i-- {
		old := l.batches[i].header
		if old.ProducerID() != h.ProducerID() {
			continue
		}
		if old.ProducerEpoch() > h.ProducerEpoch() {
			return replica.Duplicate{}, errcode.InvalidProducerEpoch.Err()
		}
		if old.ProducerEpoch() < h.ProducerEpoch() {
			break
		}
		if old.BaseSequence() == h.BaseSequence() && old.LastSequence() == h.LastSequence() {
			return replica.Duplicate{Found: true, BaseOffset: old.BaseOffset(), LastOffset: old.LastOffset(), TimestampMs: old.MaxTimestamp()}, nil
		}
		if seen == 0 && h.BaseSequence() != recordbatch.IncrementSequence(old.LastSequence(), 1) {
			return replica.Duplicate{}, errcode.OutOfOrderSequenceNumber.Err()
		}
		seen++
	}
	return replica.Duplicate{}, nil
}

// InTransaction is part of replica.LogProducers.
func (l *Log) InTransaction(int64) bool { return false }

// ActiveProducers is part of replica.LogProducers.
func (l *Log) ActiveProducers() []replica.Producer {
	l.mu.Lock()
	defer l.mu.Unlock()
	byID := map[int64]replica.Producer{}
	for _, e := range l.batches {
		if h := e.header; h.HasProducerID() {
			byID[h.ProducerID()] = replica.Producer{
				ID: h.ProducerID(), Epoch: h.ProducerEpoch(), LastSequence: h.LastSequence(), LastTimestampMs: h.MaxTimestamp(),
				CoordinatorEpoch: -1, TxnStart: -1,
			}
		}
	}
	var out []replica.Producer
	for _, p := range byID {
		out = append(out, p)
	}
	return out
}

// ExpireProducers is part of replica.LogProducers.
func (l *Log) ExpireProducers(time.Time) {}
