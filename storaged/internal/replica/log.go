package replica

import (
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
)

// Log is a replica's log on disk. The methods of LogReader may be called from any goroutine, the others by the replica's
// loop only.
type Log interface {
	LogReader
	LogProducers

	// Append writes batches whose headers have been stamped with offsets and epoch, in one write where it can.
	Append(batches []recordbatch.Batch) error
	// AppendAsFollower writes what was copied from a leader, with the offsets that are in it.
	AppendAsFollower(records mem.BufferSlice) error
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
	// Flush makes everything durable; FlushDue does when flush.ms have passed since the last time.
	Flush() error
	FlushDue(now time.Time) error
	SetConfig(c *configdef.Topic)
	// Close ends the use of the log; Delete also removes it from disk.
	Close() error
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
	// FirstSegmentOffset is the offset that the oldest segment is named by.
	FirstSegmentOffset() int64
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
	OffsetForTimestamp(timestamp int64) (TimestampOffset, bool, error)
	// OffsetOfMaxTimestamp finds the record with the largest timestamp; false when there is none.
	OffsetOfMaxTimestamp() (TimestampOffset, bool, error)
	// Size is the size of the segments in bytes.
	Size() int64
}

// LogProducers is what a log knows of the producers that wrote to it.
type LogProducers interface {
	// CheckProducer judges a batch with a producer id. It gives the batch that it repeats, or an error with the code for
	// the producer.
	CheckProducer(h recordbatch.Header, origin recordbatch.Origin) (Duplicate, error)
	// InTransaction says whether the producer has a transaction open in the partition.
	InTransaction(producerID int64) bool
	ActiveProducers() []Producer
	// ExpireProducers forgets producers that have not written for the time set.
	ExpireProducers(now time.Time)
}

// TimestampOffset is a record's place and time.
type TimestampOffset struct {
	Timestamp   int64
	Offset      int64
	LeaderEpoch int32
}

// Duplicate is the batch that a producer sends again.
type Duplicate struct {
	Found       bool
	BaseOffset  int64
	LastOffset  int64
	TimestampMs int64
}

// Producer is the state of a producer, for DescribeProducers.
type Producer struct {
	ID               int64
	Epoch            int16
	LastSequence     int32
	LastTimestampMs  int64
	CoordinatorEpoch int32
	// TxnStart is the first offset of the open transaction; -1 for none.
	TxnStart int64
}
