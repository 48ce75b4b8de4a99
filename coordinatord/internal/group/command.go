package group

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// Command is what the machine can be asked: one of the types below. What a command is answered with stands beside it.
type Command interface{ command() }

// Reply is the answer to a command.
type Reply any

// Join is a JoinGroup request, answered with *kmsg.JoinGroupResponse when the group has gathered.
type Join struct {
	Request *kmsg.JoinGroupRequest
	// ClientID and ClientHost are shown to users; the client id also begins a dynamic member's id.
	ClientID   string
	ClientHost string
	// Image is the metadata by which the request is carried out; nil for what is known already.
	Image metadata.Reader
}

// ConsumerHeartbeat is a ConsumerGroupHeartbeat request, answered with *kmsg.ConsumerGroupHeartbeatResponse.
type ConsumerHeartbeat struct {
	Request              *kmsg.ConsumerGroupHeartbeatRequest
	ClientID, ClientHost string
	Image                metadata.Reader
}

// DescribeConsumerGroups asks for consumer groups, answered with []kmsg.ConsumerGroupDescribeResponseGroup in the order
// of the command.
type DescribeConsumerGroups struct {
	IDs   []string
	Image metadata.Reader
}

// NewImage tells of newer metadata; NewTopics says that there are topics in it that were not there before. It is answered
// with nil.
type NewImage struct {
	Image     metadata.Reader
	NewTopics bool
}

// Sync is a SyncGroup request, answered with *kmsg.SyncGroupResponse when the leader has assigned.
type Sync struct{ Request *kmsg.SyncGroupRequest }

// Heartbeat keeps a member alive. It is answered with an errcode.Code.
type Heartbeat struct {
	Group      string
	MemberID   string
	InstanceID *string
	Generation int32
}

// Leave removes members, answered with LeaveReply.
type Leave struct {
	Group   string
	Members []LeavingMember
}

// LeavingMember is a member by its id or, when that is empty, by its instance.
type LeavingMember struct {
	ID         string
	InstanceID *string
	Reason     string
}

// LeaveReply has a code for each member, in the order of the command. Found is false when there is no such group.
type LeaveReply struct {
	Found bool
	Codes []errcode.Code
}

// CommitOffsets commits offsets of partitions that exist, answered with CommitReply.
type CommitOffsets struct {
	Group      string
	MemberID   string
	InstanceID *string
	Generation int32
	// APIVersion is that of OffsetCommit, which decides between two codes for a group that does not exist.
	APIVersion int16
	// RetentionMs is how long to keep these offsets; -1 for as long as the cluster's setting says.
	RetentionMs int64
	Offsets     []OffsetToCommit
}

// OffsetToCommit is one offset of a CommitOffsets.
type OffsetToCommit struct {
	Key         offsets.Key
	TopicID     uuid.UUID
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// CommitReply has a code for the whole command, or else one for each offset in the order of the command.
type CommitReply struct {
	Code  errcode.Code
	Codes []errcode.Code
}

// CommitInTransaction commits offsets in a transaction: they are to be seen when it is committed. It is answered with
// TxnCommitReply.
type CommitInTransaction struct {
	CommitOffsets
	ProducerID    int64
	ProducerEpoch int16
	// Verified is the guard of an earlier answer, when the transaction's coordinator has vouched for the group's being in
	// the transaction since; 0 without.
	Verified Guard
	// Trusted says that no coordinator needs to vouch.
	Trusted bool
}

// TxnCommitReply is the answer to CommitInTransaction.
type TxnCommitReply struct {
	CommitReply
	// Guard is not 0 when nothing was done, since the coordinator has to vouch first: the command is to be sent again with it.
	Guard Guard
}

// EndTransaction writes the marker that ends a transaction. It is answered with an errcode.Code.
type EndTransaction struct {
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Commit           bool
	// Version is the transaction.version by which the coordinator ends it.
	Version int16
}

// FetchOffsets asks for a group's committed offsets, answered with FetchReply.
type FetchOffsets struct {
	Group string
	// RequireStable includes what is not durable yet, so that the answer waits for it, and refuses offsets that an open
	// transaction is going to change.
	RequireStable bool
	// MemberID and MemberEpoch are those of a member that asks; nil and -1 for anyone else.
	MemberID    *string
	MemberEpoch int32
	// Partitions says which; nil means all that there are.
	Partitions []PartitionToFetch
	All        bool
}

// PartitionToFetch is a partition by name; TopicID is zero when the client knows none.
type PartitionToFetch struct {
	Key     offsets.Key
	TopicID uuid.UUID
}

// FetchReply has a code for the whole command, or the offsets in the order of the command, in no order when it asked for
// all.
type FetchReply struct {
	Code    errcode.Code
	Offsets []FetchedOffset
}

// FetchedOffset is a committed offset; Offset is -1 when there is none.
type FetchedOffset struct {
	Key         offsets.Key
	TopicID     uuid.UUID
	Code        errcode.Code
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// ListGroups asks for the groups of the shard, answered with []ListedGroup. Empty filters let everything pass; they do
// not mind upper and lower case.
type ListGroups struct {
	States []string
	Types  []string
}

// ListedGroup is a group in a list.
type ListedGroup struct {
	ID           string
	ProtocolType string
	State        string
	Type         string
}

// DescribeGroups asks for groups, answered with []DescribedGroup in the order of the command.
type DescribeGroups struct{ IDs []string }

// DescribedGroup is a group with its members.
type DescribedGroup struct {
	ID     string
	Exists bool
	// Missing says why there is no such group, when Exists is false.
	Missing      string
	State        string
	ProtocolType string
	Protocol     string
	Members      []kmsg.DescribeGroupsResponseGroupMember
}

// DeleteGroups deletes groups without members, with all their offsets. It is answered with []errcode.Code in the order of
// the command. An id must not be named twice.
type DeleteGroups struct{ IDs []string }

// DeleteOffsets deletes offsets of topics that the group does not consume, answered with CommitReply.
type DeleteOffsets struct {
	Group      string
	Partitions []offsets.Key
}

// TopicsGone deletes the offsets of topics that do not exist any more. It is answered with nil.
type TopicsGone struct {
	// Gone tells by name and id; the id is zero for offsets that older brokers have written.
	Gone func(topic string, id uuid.UUID) bool
}

// Count asks how much there is, answered with Counts.
type Count struct{}

// Counts is what metrics show of a shard.
type Counts struct{ Groups, Members, Offsets int }

func (*Join) command()                   {}
func (*ConsumerHeartbeat) command()      {}
func (*DescribeConsumerGroups) command() {}
func (*NewImage) command()               {}
func (*regexResolved) command()          {}
func (*Sync) command()                   {}
func (*Heartbeat) command()              {}
func (*Leave) command()                  {}
func (*CommitOffsets) command()          {}
func (*EndTransaction) command()         {}
func (*FetchOffsets) command()           {}
func (*ListGroups) command()             {}
func (*DescribeGroups) command()         {}
func (*DeleteGroups) command()           {}
func (*DeleteOffsets) command()          {}
func (*TopicsGone) command()             {}
func (*Count) command()                  {}
