package replica

import (
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/storaged/internal/log"
)

// Log is a replica's log; *log.Log is one on disk. The methods of LogReader may be called from any goroutine, the others by the replica's
// loop only.
type Log interface {
	LogReader
	LogProducers

	// Append writes batches whose headers have been stamped with offsets and epoch, in one write where it can.
	Append(batches []recordbatch.Batch) error
	// AppendAsFollowerOf writes what was copied from a leader, with the offsets that are in it, up to the first batch of an
	// epoch above the leader's.
	AppendAsFollowerOf(records mem.BufferSlice, leaderEpoch int32) error
	// AssignEpochStart notes where a leader epoch begins.
	AssignEpochStart(epoch int32, offset int64) error
	// TruncateTo removes everything from an offset on.
	TruncateTo(offset int64) error
	// TruncateFullyAndStartAt empties the log and lets it begin at an offset.
	TruncateFullyAndStartAt(offset int64) error
	// SetLogStartOffset hides everything before an offset and deletes segments that are hidden as a whole.
	SetLogStartOffset(offset int64) error
	// SetHighWatermark tells how far records are committed: transactions that ended below are done, and retention deletes
	// nothing above.
	SetHighWatermark(offset int64)
	// DeleteRetired deletes segments by time and size, and says whether the log start moved.
	DeleteRetired(now time.Time) (bool, error)
	SetConfig(c *configdef.Topic)
	// Close makes everything durable and ends the use of the log; Abandon only ends it, and Delete also removes the log
	// from disk.
	Close() error
	Abandon()
	Delete() error
}

// LogReader is what may be asked of a log from any goroutine.
type LogReader interface {
	LogStartOffset() int64
	LogEndOffset() int64
	// LastStableOffset is the offset below which no transaction is open, bounded by the high watermark.
	LastStableOffset() int64
	// RecoveryPoint is the offset below which everything is durable.
	RecoveryPoint() int64
	// Segments are all segments, the oldest first.
	Segments() []log.SegmentInfo
	// Flush makes everything durable that is in the log; LastFlush is when it was called last.
	Flush() error
	LastFlush() time.Time
	// LatestEpoch is the newest leader epoch in the log; -1 for none.
	LatestEpoch() int32
	// EndOffsetForEpoch gives the largest epoch that is not above the given one, and its end; NoDivergence when unknown.
	EndOffsetForEpoch(epoch int32) storage.EpochEndOffset
	// EpochForOffset gives the epoch of the record at an offset; -1 when unknown.
	EpochForOffset(offset int64) int32
	// Read gives whole batches from an offset on that begin below limit, at most maxBytes, but for the first one, when
	// minOne is set.
	Read(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, error)
	// AbortedTransactions are those that a reader of [from, to) has to skip.
	AbortedTransactions(from, to int64) ([]storage.AbortedTransaction, error)
	// OffsetForTimestamp finds the first record with a timestamp that is not smaller; false when there is none.
	OffsetForTimestamp(timestamp int64) (log.TimestampOffset, bool, error)
	// OffsetOfMaxTimestamp finds the record with the largest timestamp; false when there is none.
	OffsetOfMaxTimestamp() (log.TimestampOffset, bool, error)
	// Size is the size of the segments in bytes.
	Size() int64
}

// LogProducers is what a log knows of the producers that wrote to it.
type LogProducers interface {
	// CheckProducer judges a batch with a producer id and the offset that it will have. It gives the batch that it repeats,
	// or an error with the code for the producer. What passes counts as written for those that follow, until a batch at the
	// log's end is checked.
	CheckProducer(h recordbatch.Header, origin recordbatch.Origin) (log.Duplicate, error)
	// InTransaction says whether the producer has a transaction open in the partition.
	InTransaction(producerID int64) bool
	ActiveProducers() []log.Producer
	// ExpireProducers forgets producers that have not written for the time set.
	ExpireProducers(now time.Time)
}

var _ Log = (*log.Log)(nil)
