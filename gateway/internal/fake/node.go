package fake

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// key names a partition of a node.
type key struct {
	topic     uuid.UUID
	partition int32
}

// batch is a stored batch with the offset after its last record.
type batch struct {
	bytes []byte
	base  int64
	next  int64
}

// partitionLog is what a node has of a partition.
type partitionLog struct {
	batches []batch
	next    int64
}

// Node is a storage node that keeps batches in memory. The fields that are functions are set before it is used.
type Node struct {
	storage.Tier
	cluster *Cluster
	id      int32
	// Refuse gives an append an error instead of carrying it out; nil or None lets it pass.
	Refuse func(req *storage.AppendRequest, p *storage.PartitionAppend) storage.PartitionAppendResult
	// Hold keeps the results of appends back: they are handed to it instead of being given at once.
	Hold func(finish func())
	// Preferred is the read replica that is named to readers with a rack; 0 for none.
	Preferred int32
	// TieredBelow is where the local logs begin: what is before that is marked as tiered. LocalAborted are the transactions that
	// go with the mark.
	TieredBelow  int64
	LocalAborted []storage.AbortedTransaction
	// AfterRead is called when a fetch has its regions.
	AfterRead func()
	// HandleFunc answers Handle.
	HandleFunc func(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error)

	mu      sync.Mutex
	changed chan struct{}
	logs    map[key]*partitionLog
	file    *os.File
	fileEnd int64
	// Appends and Fetches are the requests that came; a Fetch without its result.
	Appends []*storage.AppendRequest
	Fetches []*storage.FetchRequest
}

func newNode(c *Cluster, id int32) *Node {
	return &Node{cluster: c, id: id, logs: make(map[key]*partitionLog), changed: make(chan struct{})}
}

// KeepInFile makes the node answer fetches with regions of this file, to which batches are appended.
func (n *Node) KeepInFile(f *os.File) { n.file = f }

func (n *Node) log(id uuid.UUID, partition int32) *partitionLog {
	k := key{id, partition}
	if n.logs[k] == nil {
		n.logs[k] = &partitionLog{}
	}
	return n.logs[k]
}

// leads says whether the node leads a partition by the newest image.
func (n *Node) leads(id uuid.UUID, partition int32) bool {
	p := n.cluster.Image().Partition(id, partition)
	return p != nil && p.Leader == n.id
}

// Append is part of storage.Node.
func (n *Node) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	n.mu.Lock()
	n.Appends = append(n.Appends, req)
	res := &storage.AppendResult{}
	for i := range req.Partitions {
		res.Partitions = append(res.Partitions, n.appendOne(req, &req.Partitions[i]))
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	if n.Hold != nil {
		n.Hold(func() { done(res) })
		return
	}
	done(res)
}

func (n *Node) appendOne(req *storage.AppendRequest, p *storage.PartitionAppend) storage.PartitionAppendResult {
	defer p.Records.Free()
	out := storage.PartitionAppendResult{
		TopicID: p.TopicID, Partition: p.Partition, BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: -1, Leader: storage.NoLeader,
	}
	if n.Refuse != nil {
		if r := n.Refuse(req, p); r.Error != errcode.None {
			out.Error, out.OutcomeUnknown = r.Error, r.OutcomeUnknown
			return out
		}
	}
	bytes := p.Records.Materialize()
	switch {
	case !n.leads(p.TopicID, p.Partition):
		out.Error = errcode.NotLeaderOrFollower
		return out
	case len(bytes) < 61:
		out.Error = errcode.InvalidRecord
		return out
	}
	l := n.log(p.TopicID, p.Partition)
	count := int64(binary.BigEndian.Uint32(bytes[23:])) + 1
	binary.BigEndian.PutUint64(bytes, uint64(l.next))
	out.BaseOffset, out.LogStartOffset = l.next, 0
	l.batches = append(l.batches, batch{bytes: bytes, base: l.next, next: l.next + count})
	l.next += count
	return out
}

// End is the offset after the last record of a partition.
func (n *Node) End(id uuid.UUID, partition int32) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log(id, partition).next
}

// Fetch is part of storage.Node.
func (n *Node) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	timer := time.NewTimer(time.Duration(req.MaxWaitMs) * time.Millisecond)
	defer timer.Stop()
	n.mu.Lock()
	n.Fetches = append(n.Fetches, req)
	n.mu.Unlock()
	for last := false; ; {
		n.mu.Lock()
		res, bytes, failed := n.read(req)
		changed := n.changed
		n.mu.Unlock()
		if last || failed || bytes >= int(req.MinBytes) || req.MaxWaitMs <= 0 {
			return res, nil
		}
		res.Release()
		select {
		case <-changed:
		case <-timer.C:
			last = true
		case <-ctx.Done():
			last = true
		}
	}
}

func (n *Node) read(req *storage.FetchRequest) (res *storage.FetchResult, bytes int, failed bool) {
	res = &storage.FetchResult{}
	left := int(req.MaxBytes)
	for i := range req.Partitions {
		p := &req.Partitions[i]
		out := storage.FetchPartitionResult{
			TopicID: p.TopicID, Partition: p.Partition, HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1,
			PreferredReadReplica: -1, Diverging: storage.NoDivergence, Leader: storage.NoLeader,
		}
		l := n.log(p.TopicID, p.Partition)
		switch {
		case n.cluster.Image().Partition(p.TopicID, p.Partition) == nil:
			out.Error = errcode.UnknownTopicOrPartition
		case !n.leads(p.TopicID, p.Partition) && req.RackID == "":
			out.Error = errcode.NotLeaderOrFollower
		case p.FetchOffset > l.next || p.FetchOffset < 0:
			out.Error = errcode.OffsetOutOfRange
		default:
			out.HighWatermark, out.LastStableOffset, out.LogStartOffset = l.next, l.next, 0
			if req.RackID != "" && n.Preferred != 0 {
				out.PreferredReadReplica = n.Preferred
				failed = true
				break
			}
			if p.FetchOffset < n.TieredBelow {
				out.Tiered, out.TieredEpoch, out.LocalLogStart, out.AbortedTransactions = true, 0, n.TieredBelow, n.LocalAborted
				out.TieredLeaderEpoch = TieredLeaderEpoch
				failed = true
				break
			}
			out.Records = n.records(l, p, left, bytes == 0)
		}
		size := out.Records.Len()
		bytes += size
		left -= size
		failed = failed || out.Error != errcode.None
		res.Partitions = append(res.Partitions, out)
	}
	return res, bytes, failed
}

// TieredLeaderEpoch is the leader epoch in whose history what is remote is to be read.
const TieredLeaderEpoch = 7

func (n *Node) records(l *partitionLog, p *storage.FetchPartition, left int, first bool) storage.Records {
	limit := min(left, int(p.MaxBytes))
	var bytes []byte
	for _, b := range l.batches {
		if b.next <= p.FetchOffset {
			continue
		}
		if len(bytes)+len(b.bytes) > limit && (len(bytes) > 0 || !first) {
			break
		}
		bytes = append(bytes, b.bytes...)
	}
	if len(bytes) == 0 {
		return storage.Records{}
	}
	if n.file == nil {
		return storage.Records{Buffers: storage.Buffers{mem.SliceBuffer(bytes)}}
	}
	at := n.fileEnd
	if _, err := n.file.WriteAt(bytes, at); err != nil {
		panic(err) //nolint:forbidigo // a mistake in a test ends that test
	}
	n.fileEnd += int64(len(bytes))
	if n.AfterRead != nil {
		n.AfterRead()
	}
	return storage.Records{Files: []storage.FileRegion{{File: n.file, Offset: at, Length: len(bytes)}}}
}

// ListOffsets is part of storage.Node: it knows the ends only.
func (n *Node) ListOffsets(_ context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	resp := &storagev1.ListOffsetsResponse{}
	for _, p := range req.GetPartitions() {
		id, _ := uuid.FromBytes(p.GetTopicId())
		resp.Partitions = append(resp.Partitions, &storagev1.ListOffsetsPartitionResult{
			TopicId: p.GetTopicId(), Partition: p.GetPartition(), Timestamp: -1, Offset: n.log(id, p.GetPartition()).next,
			SearchTier: n.TieredBelow > 0 && p.GetTimestamp() >= 0, LocalLogStartOffset: n.TieredBelow,
		})
	}
	return resp, nil
}

// OffsetForLeaderEpoch is part of storage.Node.
func (n *Node) OffsetForLeaderEpoch(context.Context, *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	return nil, errcode.UnsupportedVersion.Err()
}

// DeleteRecords is part of storage.Node.
func (n *Node) DeleteRecords(context.Context, *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	return nil, errcode.UnsupportedVersion.Err()
}

// Handle is part of storage.Node.
func (n *Node) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	if n.HandleFunc == nil {
		return nil, errcode.UnsupportedVersion.Err()
	}
	return n.HandleFunc(ctx, req)
}

// Copy takes over what another node has, as a follower would.
func (n *Node) Copy(from *Node) {
	from.mu.Lock()
	defer from.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, l := range from.logs {
		n.logs[k] = &partitionLog{batches: l.batches, next: l.next}
	}
}
