package metarecord

import "chancery/services/kafka/uuid"

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

func (r *TopicRecord) fields(c *codec) {
	c.string(&r.Name)
	c.uuid(&r.TopicID)
	c.tags()
}

// RemoveTopicRecord deletes a topic, its partitions and its configs.
type RemoveTopicRecord struct {
	TopicID uuid.UUID
}

// RecordType is RemoveTopic.
func (*RemoveTopicRecord) RecordType() Type { return RemoveTopic }

func (r *RemoveTopicRecord) fields(c *codec) {
	c.uuid(&r.TopicID)
	c.tags()
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

func (r *PartitionRecord) fields(c *codec) {
	c.int32(&r.PartitionID)
	c.uuid(&r.TopicID)
	c.int32s(&r.Replicas)
	c.int32s(&r.ISR)
	c.int32s(&r.RemovingReplicas)
	c.int32s(&r.AddingReplicas)
	c.int32(&r.Leader)
	c.int32(&r.LeaderEpoch)
	c.int32(&r.PartitionEpoch)
	if c.version >= 1 {
		c.uuids(&r.Directories)
	}
	c.tags(
		taggedField{tag: 0, present: r.LeaderRecoveryState != 0, walk: func(c *codec) { c.int8(&r.LeaderRecoveryState) }},
		taggedField{tag: 1, since: 2, present: r.EligibleLeaderReplicas != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.EligibleLeaderReplicas) }},
		taggedField{tag: 2, since: 2, present: r.LastKnownELR != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.LastKnownELR) }},
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

func (r *PartitionChangeRecord) fields(c *codec) {
	c.int32(&r.PartitionID)
	c.uuid(&r.TopicID)
	if c.reading {
		r.Leader, r.LeaderRecoveryState = NoLeaderChange, RecoveryNoChange
	}
	c.tags(
		taggedField{tag: 0, present: r.ISR != nil, walk: func(c *codec) { c.nullableInt32s(&r.ISR) }},
		taggedField{tag: 1, present: r.Leader != NoLeaderChange, walk: func(c *codec) { c.int32(&r.Leader) }},
		taggedField{tag: 2, present: r.Replicas != nil, walk: func(c *codec) { c.nullableInt32s(&r.Replicas) }},
		taggedField{tag: 3, present: r.RemovingReplicas != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.RemovingReplicas) }},
		taggedField{tag: 4, present: r.AddingReplicas != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.AddingReplicas) }},
		taggedField{tag: 5, present: r.LeaderRecoveryState != RecoveryNoChange,
			walk: func(c *codec) { c.int8(&r.LeaderRecoveryState) }},
		taggedField{tag: 6, since: 2, present: r.EligibleLeaderReplicas != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.EligibleLeaderReplicas) }},
		taggedField{tag: 7, since: 2, present: r.LastKnownELR != nil,
			walk: func(c *codec) { c.nullableInt32s(&r.LastKnownELR) }},
		taggedField{tag: 8, since: 1, present: r.Directories != nil,
			walk: func(c *codec) { c.nullableUUIDs(&r.Directories) }},
	)
}

// ClearElrRecord empties the ELR and the last known ELR of a topic's partitions, of all topics when the name is empty.
type ClearElrRecord struct {
	TopicName string
}

// RecordType is ClearElr.
func (*ClearElrRecord) RecordType() Type { return ClearElr }

func (r *ClearElrRecord) fields(c *codec) {
	c.string(&r.TopicName)
	c.tags()
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

func (r *ConfigRecord) fields(c *codec) {
	c.int8(&r.ResourceType)
	c.string(&r.ResourceName)
	c.string(&r.Name)
	c.nullableString(&r.Value)
	c.tags()
}
