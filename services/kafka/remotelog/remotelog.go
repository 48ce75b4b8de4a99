// Package remotelog is the records of __remote_log_metadata: what is known of the segments in the remote tier.
//
// It owns their format, which is Kafka's, and the words for their states. It must never know what follows from a record:
// package tiering/internal/remotestate does.
package remotelog

import (
	"fmt"

	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

// Partition names a user partition.
type Partition struct {
	TopicID   uuid.UUID
	Partition int32
}

// EpochStart is a leader epoch and the offset of its first record.
type EpochStart struct {
	Epoch       int32
	StartOffset int64
}

// SegmentState is how far a remote segment is in its life.
type SegmentState int8

// The states of a segment, in the order of its life.
const (
	CopyStarted SegmentState = iota
	CopyFinished
	DeleteStarted
	DeleteFinished
)

// String is Kafka's name of the state.
func (s SegmentState) String() string {
	names := [...]string{"COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("SEGMENT_STATE_%d", int8(s))
	}
	return names[s]
}

// MayFollow says whether a segment may go from a state to this one. The same state again is a repetition, which may be.
func (s SegmentState) MayFollow(from SegmentState) bool {
	switch s {
	case CopyStarted:
		return from == CopyStarted
	case CopyFinished:
		return from == CopyStarted || from == CopyFinished
	case DeleteStarted:
		return from != DeleteFinished
	case DeleteFinished:
		return from == DeleteStarted || from == DeleteFinished
	}
	return false
}

// DeleteState is how far the deletion of a partition is.
type DeleteState int8

// The states of a partition's deletion, in their order.
const (
	PartitionMarked DeleteState = iota
	PartitionStarted
	PartitionFinished
)

// String is Kafka's name of the state.
func (s DeleteState) String() string {
	names := [...]string{"DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("DELETE_STATE_%d", int8(s))
	}
	return names[s]
}

// Record is a record of the topic: *Segment, *SegmentUpdate or *PartitionDelete. Records are not changed once they are made.
type Record interface {
	// Of is the partition that the record is about.
	Of() Partition
	fields(c *fieldcodec.Codec)
	recordType() uint32
}

// Segment begins the life of a remote segment.
type Segment struct {
	Topic     string
	Partition Partition
	ID        uuid.UUID
	// StartOffset and EndOffset are those of the first and the last record.
	StartOffset, EndOffset int64
	BrokerID               int32
	MaxTimestampMs         int64
	EventTimestampMs       int64
	LeaderEpochs           []EpochStart
	SizeBytes              int32
	// CustomMetadata is what the store wants to be told again; nil for null.
	CustomMetadata []byte
	State          SegmentState
	// TxnIndexEmpty says that no aborted transaction ends in the segment.
	TxnIndexEmpty bool
}

// Of is the segment's partition.
func (s *Segment) Of() Partition { return s.Partition }

// SegmentUpdate moves a segment on in its life.
type SegmentUpdate struct {
	Topic            string
	Partition        Partition
	ID               uuid.UUID
	BrokerID         int32
	EventTimestampMs int64
	CustomMetadata   []byte
	State            SegmentState
}

// Of is the segment's partition.
func (u *SegmentUpdate) Of() Partition { return u.Partition }

// PartitionDelete says that everything remote of a partition is to go, or has gone.
type PartitionDelete struct {
	Topic            string
	Partition        Partition
	BrokerID         int32
	EventTimestampMs int64
	State            DeleteState
}

// Of is the partition.
func (d *PartitionDelete) Of() Partition { return d.Partition }

// The types of records. Snapshots are in files of Kafka's only, never in the topic.
const (
	segmentType   = 0
	updateType    = 1
	partitionType = 2
	snapshotType  = 3
)

func (*Segment) recordType() uint32         { return segmentType }
func (*SegmentUpdate) recordType() uint32   { return updateType }
func (*PartitionDelete) recordType() uint32 { return partitionType }

func (s *Segment) fields(c *fieldcodec.Codec) {
	segmentID(c, &s.Topic, &s.Partition, &s.ID)
	c.Int64(&s.StartOffset)
	c.Int64(&s.EndOffset)
	c.Int32(&s.BrokerID)
	c.Int64(&s.MaxTimestampMs)
	c.Int64(&s.EventTimestampMs)
	epochs(c, &s.LeaderEpochs)
	c.Int32(&s.SizeBytes)
	c.NullableBytes(&s.CustomMetadata)
	c.Int8((*int8)(&s.State))
	taggedBool(c, &s.TxnIndexEmpty)
}

func (u *SegmentUpdate) fields(c *fieldcodec.Codec) {
	segmentID(c, &u.Topic, &u.Partition, &u.ID)
	c.Int32(&u.BrokerID)
	c.Int64(&u.EventTimestampMs)
	c.NullableBytes(&u.CustomMetadata)
	c.Int8((*int8)(&u.State))
	c.Tags()
}

func (d *PartitionDelete) fields(c *fieldcodec.Codec) {
	topicPartition(c, &d.Topic, &d.Partition)
	c.Int32(&d.BrokerID)
	c.Int64(&d.EventTimestampMs)
	c.Int8((*int8)(&d.State))
	c.Tags()
}
