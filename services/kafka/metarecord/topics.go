package metarecord

import (
	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

// The special leaders of partition records.
const (
	// NoLeader says that a partition has no leader.
	NoLeader int32 = -1
	// NoLeaderChange, in a PartitionChangeRecord, leaves the leader and its epoch as they are.
	NoLeaderChange int32 = -2
)

// The states of a leader after its election, for LeaderRecoveryState.
const (
	// RecoveryNoChange, in a PartitionChangeRecord, leaves the state as it is.
	RecoveryNoChange int8 = -1
	// Recovered is the normal state; Recovering is that of a leader that was elected out of the ISR.
	Recovered  int8 = 0
	Recovering int8 = 1
)

// TopicRecord makes a topic; its partitions follow in records of their own.
type TopicRecord struct {
	Name    string
	TopicID uuid.UUID
}

// RecordType is Topic.
func (*TopicRecord) RecordType() Type { return Topic }

func (r *TopicRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.Name)
	c.UUID(&r.TopicID)
	c.Tags()
}

// RemoveTopicRecord deletes a topic, its partitions and its configs.
type RemoveTopicRecord struct {
	TopicID uuid.UUID
}

// RecordType is RemoveTopic.
func (*RemoveTopicRecord) RecordType() Type { return RemoveTopic }

func (r *RemoveTopicRecord) fields(c *fieldcodec.Codec) {
	c.UUID(&r.TopicID)
	c.Tags()
}

// PartitionRecord makes a partition, or replaces everything that is known of it.
type PartitionRecord struct {
	PartitionID         int32
	TopicID             uuid.UUID
	Replicas            []int32
	ISR                 []int32
	RemovingReplicas    []int32
	AddingReplicas      []int32
	Leader              int32
	LeaderRecoveryState int8
	LeaderEpoch         int32
	PartitionEpoch      int32
	// Directories is the log directory of each replica, by index of Replicas; empty when none is known.
	Directories []uuid.UUID
	// EligibleLeaderReplicas and LastKnownELR are nil when there are none, to save space.
	EligibleLeaderReplicas []int32
	LastKnownELR           []int32
}

// RecordType is Partition.
func (*PartitionRecord) RecordType() Type { return Partition }

func (r *PartitionRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.PartitionID)
	c.UUID(&r.TopicID)
	c.Int32s(&r.Replicas)
	c.Int32s(&r.ISR)
	c.Int32s(&r.RemovingReplicas)
	c.Int32s(&r.AddingReplicas)
	c.Int32(&r.Leader)
	c.Int32(&r.LeaderEpoch)
	c.Int32(&r.PartitionEpoch)
	if c.Version() >= 1 {
		c.UUIDs(&r.Directories)
	}
	c.Tags(
		fieldcodec.Tagged{Tag: 0, Present: r.LeaderRecoveryState != 0, Walk: func(c *fieldcodec.Codec) { c.Int8(&r.LeaderRecoveryState) }},
		fieldcodec.Tagged{Tag: 1, Since: 2, Present: r.EligibleLeaderReplicas != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.EligibleLeaderReplicas) }},
		fieldcodec.Tagged{Tag: 2, Since: 2, Present: r.LastKnownELR != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.LastKnownELR) }},
	)
}

// PartitionChangeRecord changes parts of a partition. Nil lists leave what they name as it is.
//
// Make one with NewPartitionChange: the zero value would elect node 0.
type PartitionChangeRecord struct {
	PartitionID            int32
	TopicID                uuid.UUID
	ISR                    []int32
	Leader                 int32
	Replicas               []int32
	RemovingReplicas       []int32
	AddingReplicas         []int32
	LeaderRecoveryState    int8
	EligibleLeaderReplicas []int32
	LastKnownELR           []int32
	Directories            []uuid.UUID
}

// NewPartitionChange makes a record that changes nothing yet.
func NewPartitionChange(topicID uuid.UUID, partition int32) *PartitionChangeRecord {
	return &PartitionChangeRecord{
		PartitionID:         partition,
		TopicID:             topicID,
		Leader:              NoLeaderChange,
		LeaderRecoveryState: RecoveryNoChange,
	}
}

// RecordType is PartitionChange.
func (*PartitionChangeRecord) RecordType() Type { return PartitionChange }

func (r *PartitionChangeRecord) fields(c *fieldcodec.Codec) {
	c.Int32(&r.PartitionID)
	c.UUID(&r.TopicID)
	if c.Reading() {
		r.Leader, r.LeaderRecoveryState = NoLeaderChange, RecoveryNoChange
	}
	c.Tags(
		fieldcodec.Tagged{Tag: 0, Present: r.ISR != nil, Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.ISR) }},
		fieldcodec.Tagged{Tag: 1, Present: r.Leader != NoLeaderChange, Walk: func(c *fieldcodec.Codec) { c.Int32(&r.Leader) }},
		fieldcodec.Tagged{Tag: 2, Present: r.Replicas != nil, Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.Replicas) }},
		fieldcodec.Tagged{Tag: 3, Present: r.RemovingReplicas != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.RemovingReplicas) }},
		fieldcodec.Tagged{Tag: 4, Present: r.AddingReplicas != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.AddingReplicas) }},
		fieldcodec.Tagged{Tag: 5, Present: r.LeaderRecoveryState != RecoveryNoChange,
			Walk: func(c *fieldcodec.Codec) { c.Int8(&r.LeaderRecoveryState) }},
		fieldcodec.Tagged{Tag: 6, Since: 2, Present: r.EligibleLeaderReplicas != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.EligibleLeaderReplicas) }},
		fieldcodec.Tagged{Tag: 7, Since: 2, Present: r.LastKnownELR != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableInt32s(&r.LastKnownELR) }},
		fieldcodec.Tagged{Tag: 8, Since: 1, Present: r.Directories != nil,
			Walk: func(c *fieldcodec.Codec) { c.NullableUUIDs(&r.Directories) }},
	)
}

// ClearElrRecord empties the ELR and the last known ELR of a topic's partitions, of all topics when the name is empty.
type ClearElrRecord struct {
	TopicName string
}

// RecordType is ClearElr.
func (*ClearElrRecord) RecordType() Type { return ClearElr }

func (r *ClearElrRecord) fields(c *fieldcodec.Codec) {
	c.String(&r.TopicName)
	c.Tags()
}

// ConfigRecord sets a dynamic config of a resource, or removes it when Value is nil.
type ConfigRecord struct {
	ResourceType int8
	ResourceName string
	Name         string
	Value        *string
}

// RecordType is Config.
func (*ConfigRecord) RecordType() Type { return Config }

func (r *ConfigRecord) fields(c *fieldcodec.Codec) {
	c.Int8(&r.ResourceType)
	c.String(&r.ResourceName)
	c.String(&r.Name)
	c.NullableString(&r.Value)
	c.Tags()
}
