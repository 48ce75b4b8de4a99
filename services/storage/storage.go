// Package storage is the contract of the data path: what a storage node offers to gateways, coordinators, tiering and
// its own peers, in the form that crosses no codec when both ends are in one process.
//
// It owns the messages of Append and Fetch and the rules of who owns their bytes; it must never know how a node keeps
// its logs, nor how the messages travel (services/clients/storageclient and storaged's gRPC server do that, with the wire
// form of proto/storage/v1).
package storage

import (
	"context"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// Node is one storage node. All methods may be called from any goroutine.
type Node interface {
	Partitions
	Tier

	// Handle answers client requests that address this very node: DescribeLogDirs, AlterReplicaLogDirs,
	// DescribeConfigs of its broker resource, DescribeProducers.
	Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error)
}

// Partitions is the part of a node that clients' requests about partitions work with.
type Partitions interface {
	// Append writes record batches to partitions that the node leads. It returns at once; done is called exactly once,
	// from any goroutine, and must not block. Requests that name the same partition are appended in the order of the
	// calls. The node takes over req and the buffers of its records, and releases them when it needs them no more.
	//
	// The result comes when each partition has failed or reached what req.Acks asks for. With acks=0 that is the local
	// append, as with acks=1: nobody waits for the answer, but what the client asks next on its connection must see it.
	Append(req *AppendRequest, done func(*AppendResult))

	// Fetch reads from partitions that the node holds. It waits up to req.MaxWaitMs for req.MinBytes; a partition error
	// or a cancelled ctx ends the wait at once with what is there. The caller must Release the result.
	// An error means that nothing was learned from the node: it could not be reached, or it is stopping.
	Fetch(ctx context.Context, req *FetchRequest) (*FetchResult, error)

	// ListOffsets finds offsets by timestamp or special position.
	ListOffsets(ctx context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error)
	// OffsetForLeaderEpoch finds the end offsets of leader epochs (KIP-101, KIP-279).
	OffsetForLeaderEpoch(ctx context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error)
	// DeleteRecords moves log start offsets up (KIP-107) and waits until every live replica has done so.
	DeleteRecords(ctx context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error)
}

// Tier is the part of a node that tiering works with.
type Tier interface {
	// DescribeTier tells which segments the leader has and what it knows of the remote tier.
	DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error)
	// UpdateTier tells leaders what the remote tier has.
	UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error)
	// DescribeSegment checks a closed segment and gives what lies beside its records. NotLeaderOrFollower,
	// FencedLeaderEpoch and OffsetOutOfRange (no such segment any more) mean that the caller has to look anew.
	DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error)
	// ReadSegment reads a part of the records of a closed segment, all that was asked for.
	ReadSegment(ctx context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error)
}

// Acks values of a produce request.
const (
	AcksNone   int16 = 0
	AcksLeader int16 = 1
	AcksAll    int16 = -1
)

// NoWriterEpoch marks an append by an ordinary client, which owns no coordinator shard.
const NoWriterEpoch int32 = -1

// AdminWriterEpoch marks an append by one of Kafka's administrative tools, which may write to internal topics as well, without
// owning a shard.
const AdminWriterEpoch int32 = -2

// AppendRequest carries record batches for partitions that one node leads.
type AppendRequest struct {
	Acks      int16
	TimeoutMs int32
	// MetadataOffset is the offset of the sender's metadata image. A node that is behind it and does not (yet) lead a
	// named partition waits for its own image to catch up before it refuses: so the first batch after CreateTopics and
	// the first after an election are never refused because the sender knew first.
	MetadataOffset int64
	// WriterEpoch is the shard epoch of the coordinator that writes to its own shard; the node refuses an epoch older
	// than the one in its image with NotCoordinator. NoWriterEpoch for clients, who may not write to internal topics
	// where Kafka does not let them.
	WriterEpoch int32
	// CheckEndOffset makes the append conditional: the leader appends to a partition only while its log ends at the
	// EndOffset given there, and otherwise refuses with OffsetOutOfRange and OutcomeUnknown false. It is for the only writer
	// of a partition, a coordinator: an append of which it has lost sight can then never land behind its back, after what
	// it wrote later. A partition may be named several times, with one batch after the other.
	CheckEndOffset bool
	// APIVersion is the version of the Produce request, which decides some answers (zstd before 7, transactions from 11).
	// Coordinators give the newest.
	APIVersion      int16
	TransactionalID string
	Partitions      []PartitionAppend
}

// PartitionAppend is the batches for one partition.
type PartitionAppend struct {
	TopicID   uuid.UUID
	Partition int32
	// Records is what the client sent for the partition, not yet checked: the node checks everything.
	Records Buffers
	// EndOffset is where the log has to end for this append, with CheckEndOffset.
	EndOffset int64
}

// AppendResult answers an AppendRequest; Partitions is in the order of the request.
type AppendResult struct {
	Partitions []PartitionAppendResult
}

// PartitionAppendResult is the outcome for one partition.
type PartitionAppendResult struct {
	TopicID   uuid.UUID
	Partition int32
	Error     errcode.Code
	// ErrorMessage is for the client; empty means none.
	ErrorMessage string
	RecordErrors []RecordError
	// BaseOffset is the offset of the first record, also for a duplicate of a batch that is already there; -1 on errors.
	BaseOffset      int64
	LogAppendTimeMs int64
	LogStartOffset  int64
	// Leader is the node's own view of who leads, given with NotLeaderOrFollower and FencedLeaderEpoch.
	Leader CurrentLeader
	// OutcomeUnknown says that the batch may be in the log although Error is set: leadership or the connection was lost
	// after the append began, or the time ran out. Such an append may be sent again only for an idempotent producer.
	OutcomeUnknown bool
}

// RecordError names a record that made its batch fail (KIP-467).
type RecordError struct {
	BatchIndex int32
	Message    string
}

// CurrentLeader is a node's knowledge of a partition's leader; ID -1 when unknown.
type CurrentLeader struct {
	ID    int32
	Epoch int32
}

// NoLeader is the CurrentLeader that says nothing.
var NoLeader = CurrentLeader{ID: -1, Epoch: -1}

// ConsumerReplicaID is the replica id of a fetch by a client.
const ConsumerReplicaID int32 = -1

// Isolation levels of a fetch.
const (
	ReadUncommitted int8 = 0
	ReadCommitted   int8 = 1
)

// FetchRequest reads from partitions that one node holds.
type FetchRequest struct {
	// ReplicaID is the id of the follower that replicates, or ConsumerReplicaID.
	ReplicaID int32
	// ReplicaEpoch is the follower's broker epoch (KIP-903); -1 for consumers.
	ReplicaEpoch   int64
	MaxWaitMs      int32
	MinBytes       int32
	MaxBytes       int32
	Isolation      int8
	RackID         string
	MetadataOffset int64
	// Session is set in the fetches of a follower's session, nil in all others.
	Session    *FetchSession
	Partitions []FetchPartition
}

// FetchSession lets a follower say only what has changed. The node remembers which partitions the session has, and where the
// follower is in each. The request names those with a new position; the result has those with news, in any order, which may be none
// at all. A session that the node does not know fails the whole fetch with FetchSessionIdNotFound.
//
// When a result expects it (FetchPartitionResult.ExpectsPosition), the node says nothing more about that partition until the follower has
// told its position again.
type FetchSession struct {
	// ID is the follower's name for the session, unique among its sessions with one node; never 0.
	ID uint64
	// Epoch is 0 in the request that begins the session, which names all partitions, and one more in each that follows. One
	// request is under way at a time.
	Epoch int32
	// Forgotten are partitions that leave the session.
	Forgotten []PartitionKey
}

// PartitionKey names a partition.
type PartitionKey struct {
	TopicID   uuid.UUID
	Partition int32
}

// FetchPartition says where to read in one partition.
type FetchPartition struct {
	TopicID            uuid.UUID
	Partition          int32
	CurrentLeaderEpoch int32
	FetchOffset        int64
	// LastFetchedEpoch is the epoch of the last record the reader has; -1 when it does not take part in divergence checks.
	LastFetchedEpoch int32
	// LogStartOffset is the follower's; -1 for consumers.
	LogStartOffset int64
	MaxBytes       int32
}

// FetchResult answers a FetchRequest; Partitions is in the order of the request.
type FetchResult struct {
	Partitions []FetchPartitionResult
}

// Release frees what the records hold. The result must not be used afterwards. It may be called twice.
func (r *FetchResult) Release() {
	if r == nil {
		return
	}
	for i := range r.Partitions {
		r.Partitions[i].Records.Release()
	}
}

// FetchPartitionResult is what was read from one partition.
type FetchPartitionResult struct {
	TopicID              uuid.UUID
	Partition            int32
	Error                errcode.Code
	HighWatermark        int64
	LastStableOffset     int64
	LogStartOffset       int64
	AbortedTransactions  []AbortedTransaction
	PreferredReadReplica int32
	// Diverging is set when the reader's last fetched epoch and offset are not in this log: the largest epoch here that
	// is not above the reader's, and its end (KIP-595). Epoch -1 means no divergence.
	Diverging EpochEndOffset
	Leader    CurrentLeader
	Records   Records
	// Tiered says that the offset is below the local log: its records, of which there are none here, are in the remote tier.
	// TieredEpoch is the leader epoch of the offset, TieredLeaderEpoch that of the leader in whose history it is to be read, and
	// LocalLogStart where the local log begins. AbortedTransactions are then those that began in the remote part and ended in the
	// local one.
	Tiered                         bool
	TieredEpoch, TieredLeaderEpoch int32
	LocalLogStart                  int64
	// RemoteEndOffset is the offset after the last record that is in the remote tier, as far as the node knows; 0 for none.
	RemoteEndOffset int64
}

// ExpectsPosition says whether a follower, which fetched from a position, has to tell where it is after it has taken this in: there
// is more than a new high watermark.
func (r *FetchPartitionResult) ExpectsPosition(asked *FetchPartition) bool {
	return r.Error != errcode.None || r.Diverging != NoDivergence || r.Tiered || r.Records.Len() > 0 || r.LogStartOffset > asked.LogStartOffset
}

// AbortedTransaction is an aborted transaction that a read_committed reader must skip from FirstOffset on.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// EpochEndOffset is a leader epoch and the offset after its last record.
type EpochEndOffset struct {
	Epoch     int32
	EndOffset int64
}

// EpochStart is a leader epoch and the offset of its first record.
type EpochStart struct {
	Epoch       int32
	StartOffset int64
}

// NoDivergence is the EpochEndOffset that says nothing.
var NoDivergence = EpochEndOffset{Epoch: -1, EndOffset: -1}
