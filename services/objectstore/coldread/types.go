package coldread

import (
	"chancery/services/objectstore"
	"chancery/services/storage"
)

// Segment is a remote segment in a view of a partition.
type Segment struct {
	*objectstore.SegmentMetadata
	// FirstOffset and LastOffset bound the records of the segment that belong to the partition's history: usually its base
	// and end offset, less when the next segment or an unclean election takes over within it, or the log start offset lies
	// in it.
	FirstOffset int64
	LastOffset  int64
}

// ReadRequest asks for whole batches of one partition.
type ReadRequest struct {
	// Segments are the partition's remote segments in the order of their offsets; they do not overlap. The reader reads
	// ahead into them. They must not be changed afterwards.
	Segments []Segment
	// Offset is where to begin. The first batch is the one that holds it, so it may begin before.
	Offset int64
	// LimitOffset, when it is not 0, ends the read: no batch that begins at or after it is returned.
	LimitOffset int64
	// MaxBytes is how much to return. A first batch that is larger is returned by itself when MinOneBatch is set, and
	// otherwise nothing.
	MaxBytes    int
	MinOneBatch bool
	// ReadCommitted asks for the aborted transactions of the range.
	ReadCommitted bool
}

// ReadResult is what was read.
type ReadResult struct {
	// Records are whole batches. The caller releases them.
	Records storage.Records
	// NextOffset is the offset after the last batch, or the request's when there is none.
	NextOffset int64
	// AbortedTransactions are those that overlap the batches, if the request asked for them. AbortedComplete is false when
	// there may be more in the local log: transactions whose markers come after the last remote segment.
	AbortedTransactions []storage.AbortedTransaction
	AbortedComplete     bool
}

// TimestampOffset is a record that was found by its timestamp.
type TimestampOffset struct {
	Offset      int64
	TimestampMs int64
	LeaderEpoch int32
}
