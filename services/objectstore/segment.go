package objectstore

import (
	"io"

	"chancery/services/kafka/uuid"
)

// BlockBytes is the size of the blocks of a segment that have a checksum each. The last block of a segment may be shorter.
const BlockBytes = 1 << 20

// EpochStart is where a leader epoch begins in a partition.
type EpochStart struct {
	Epoch       int32
	StartOffset int64
}

// SegmentMetadata describes a remote segment, as the records of __remote_log_metadata do. A manager takes all it needs
// from here, so that a read needs no other request.
type SegmentMetadata struct {
	TopicID uuid.UUID
	// Topic is the topic's name when the segment was copied. It is for people: keys are made of the topic id.
	Topic     string
	Partition int32
	// ID is the segment's own id. Each attempt to copy a segment gets a new one.
	ID uuid.UUID
	// BaseOffset and EndOffset are the offsets of the first and of the last record.
	BaseOffset int64
	EndOffset  int64
	// MaxTimestampMs is the largest timestamp in the segment.
	MaxTimestampMs int64
	// SizeBytes is the length of the log file.
	SizeBytes int64
	// LeaderEpochs are the epochs of the segment, each with where it begins; the first begins at or before BaseOffset.
	LeaderEpochs []EpochStart
	// TxnIndexEmpty says that no aborted transaction ends in the segment, which saves reading its index.
	TxnIndexEmpty bool
	// Custom is what CopyLogSegmentData returned; nil while the copy is not finished.
	Custom []byte
}

// LastLeaderEpoch is the epoch of the segment's last record, or -1 when none is known.
func (m *SegmentMetadata) LastLeaderEpoch() int32 {
	if len(m.LeaderEpochs) == 0 {
		return -1
	}
	return m.LeaderEpochs[len(m.LeaderEpochs)-1].Epoch
}

// SegmentData is a closed segment with its indexes, to be copied.
type SegmentData struct {
	// Log is the log file. A manager reads exactly SizeBytes of it, more than once, from several goroutines; so it is a
	// file, or something that can be read again.
	Log io.ReaderAt
	// CRC32C is the checksum of the log file that was computed where the segment was closed. The copy fails with ErrCorrupt
	// when what Log gives is something else, so that a disk's bit rot is not copied. HasCRC says that it is known.
	CRC32C uint32
	HasCRC bool
	// Indexes are the files beside the log. BlockCRCs and SegmentCRC are ignored: the manager computes them.
	Indexes Indexes
}

// Indexes are what is kept beside the log of a segment, each as in Kafka's file of that name.
type Indexes struct {
	// Offset is the .index file: 8 bytes per entry, the offset relative to the base offset and the position.
	Offset []byte
	// Time is the .timeindex file: 12 bytes per entry, the timestamp and the offset relative to the base offset.
	Time []byte
	// ProducerSnapshot is the .snapshot file at the segment's end; empty when there is none.
	ProducerSnapshot []byte
	// Transaction is the .txnindex file: 34 bytes per entry; empty when no transaction was aborted.
	Transaction []byte
	// LeaderEpochs are the partition's epochs up to the segment's end.
	LeaderEpochs []EpochStart
	// BlockCRCs are the CRC-32C of each block of BlockBytes of the log.
	BlockCRCs []uint32
	// SegmentCRC is the CRC-32C of the log.
	SegmentCRC uint32
}
