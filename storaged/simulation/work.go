package simulation

import (
	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
)

// State is what can be seen of a replica.
type State struct {
	Leads, Follows, Failed              bool
	Leader, LeaderEpoch, PartitionEpoch int32
	LogStart, HighWatermark, LogEnd     int64
	ISR                                 []int32
}

// State tells the state of a replica; false when the node has none.
func (n *Node) State(k Key) (State, bool) {
	r := n.replicas[k]
	if r == nil {
		return State{}, false
	}
	v := r.View()
	return State{
		Leads: v.Leads(), Follows: v.Role == partition.Following, Failed: v.Failed,
		Leader: v.Leader, LeaderEpoch: v.LeaderEpoch, PartitionEpoch: v.PartitionEpoch,
		LogStart: v.LogStart, HighWatermark: v.HighWatermark, LogEnd: v.LogEnd, ISR: v.ISR,
	}, true
}

// Keys are the partitions that the node has replicas of.
func (n *Node) Keys() []Key {
	var out []Key
	for _, r := range n.sorted() {
		out = append(out, r.key)
	}
	return out
}

// Append writes a batch as a client would; done may be called much later, out of any other method.
func (n *Node) Append(k Key, acks int16, batch []byte, done func(storage.PartitionAppendResult)) {
	op := replica.NewAppendOp(&storage.AppendRequest{
		Acks: acks, WriterEpoch: storage.NoWriterEpoch, APIVersion: 12,
		Partitions: []storage.PartitionAppend{{TopicID: k.TopicID, Partition: k.Partition, Records: mem.BufferSlice{mem.SliceBuffer(batch)}}},
	}, func(res *storage.AppendResult) {
		n.completed = append(n.completed, func() { done(res.Partitions[0]) })
	})
	r := n.replicas[k]
	if r == nil {
		op.Refuse(0, errcode.NotLeaderOrFollower, storage.NoLeader)
		n.complete()
		return
	}
	r.Append(op, 0)
	n.settle(r)
}

// Fetch answers a fetch of one partition. The records are copied out.
func (n *Node) Fetch(req *storage.FetchRequest) storage.FetchPartitionResult {
	p := &req.Partitions[0]
	r := n.replicas[Key{TopicID: p.TopicID, Partition: p.Partition}]
	if r == nil {
		return replica.FailedFetch(p, errcode.NotLeaderOrFollower, storage.NoLeader)
	}
	at := n.o.Now()
	res, view := r.Read(req, p, int(p.MaxBytes), true)
	if res.Records.Len() > 0 {
		data, err := res.Records.ReadAll()
		res.Records.Release()
		if err != nil {
			return replica.FailedFetch(p, errcode.KafkaStorageError, storage.NoLeader)
		}
		res.Records = storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(data)}}
	}
	if req.ReplicaID >= 0 && res.Error == errcode.None && res.Diverging == storage.NoDivergence {
		r.Report(req, p, view, at)
		n.settle(r)
	}
	return res
}

// Copies says whom a follower copies from.
func (n *Node) Copies(k Key) (leader, leaderEpoch int32, ok bool) {
	r := n.replicas[k]
	if r == nil || r.from == nil {
		return -1, -1, false
	}
	return r.from.Leader, r.from.LeaderEpoch, true
}

// Position is the next fetch of a follower.
func (n *Node) Position(k Key, leaderEpoch, maxBytes int32) *storage.FetchRequest {
	return &storage.FetchRequest{
		ReplicaID: n.o.ID, ReplicaEpoch: n.epoch, MetadataOffset: n.newest.Offset(),
		Partitions: []storage.FetchPartition{n.replicas[k].Position(leaderEpoch, maxBytes)},
	}
}

// Take gives a follower what a fetch in a leader epoch brought.
func (n *Node) Take(k Key, leaderEpoch int32, fetchOffset int64, res *storage.FetchPartitionResult) {
	r := n.replicas[k]
	if r == nil || !r.News(res) {
		return
	}
	r.TakeCopied(&replica.Copied{LeaderEpoch: leaderEpoch, FetchOffset: fetchOffset, Result: res, Done: func(errcode.Code) {}})
	n.settle(r)
}

// The positions of ListOffsets that a simulation asks for.
const (
	Latest   int64 = -1
	Earliest int64 = -2
)

// FindOffset answers ListOffsets.
func (n *Node) FindOffset(k Key, replicaID, leaderEpoch int32, position int64) (offset int64, code errcode.Code) {
	r := n.replicas[k]
	if r == nil {
		return -1, errcode.NotLeaderOrFollower
	}
	o := r.FindOffset(&storagev1.ListOffsetsRequest{ReplicaId: replicaID}, &storagev1.ListOffsetsPartition{
		TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: leaderEpoch, Timestamp: position,
	})
	n.settle(r)
	return o.Offset, o.Code
}

// Rejoin brings a follower back whose offset the leader does not have.
func (n *Node) Rejoin(k Key, leaderEpoch int32, start, end int64) {
	if r := n.replicas[k]; r != nil {
		r.Rejoin(leaderEpoch, start, end)
		n.settle(r)
	}
}

// DeleteRecords moves the log start of a leader up; nobody waits for the followers.
func (n *Node) DeleteRecords(k Key, offset int64) errcode.Code {
	r := n.replicas[k]
	if r == nil {
		return errcode.NotLeaderOrFollower
	}
	result := make(chan replica.Deleted, 1)
	r.DeleteRecords(offset, result)
	n.settle(r)
	r.ForgetDelete(result)
	n.settle(r)
	select {
	case d := <-result:
		return d.Code
	default:
		return errcode.None
	}
}

// TakeProposals are the ISRs that leaders have asked for since the last call.
func (n *Node) TakeProposals() []Proposal {
	out := n.proposals
	n.proposals = nil
	return out
}

// TakeMoved are the partitions whose copying has begun, ended or changed since the last call.
func (n *Node) TakeMoved() []Key {
	out := n.moved
	n.moved = nil
	return out
}

// TakeRolled are the partitions in whose logs a segment has ended since the last call: they are to be flushed.
func (n *Node) TakeRolled() []Key {
	out := n.rolled
	n.rolled = nil
	return out
}

// Altered gives a leader the controller's agreement.
func (n *Node) Altered(p Proposal, leaderEpoch, partitionEpoch int32, isr []int32) {
	if r := n.replicas[p.Key]; r != nil {
		r.Altered(p.asked, partition.Altered{LeaderEpoch: leaderEpoch, PartitionEpoch: partitionEpoch, ISR: isr})
		n.settle(r)
	}
}

// AlterFailed gives a leader the controller's refusal.
func (n *Node) AlterFailed(p Proposal, code errcode.Code) {
	if r := n.replicas[p.Key]; r != nil {
		r.AlterFailed(p.asked, code)
		n.settle(r)
	}
}

// Tick looks for followers that lag.
func (n *Node) Tick() {
	for _, r := range n.sorted() {
		if r.View().Leads() {
			r.Tick()
			n.settle(r)
		}
	}
}

// Flush makes a log durable.
func (n *Node) Flush(k Key) {
	if r := n.replicas[k]; r != nil && r.dir >= 0 {
		r.Flush()
		n.settle(r)
	}
}

// Checkpoints are what a node writes down of its replicas from time to time. It also removes files that were to be removed.
func (n *Node) Checkpoints() map[Key]Checkpoint {
	for _, f := range n.removals {
		f()
	}
	n.removals = nil
	n.o.Checkpoints = n.look()
	return n.o.Checkpoints
}

// look gives the checkpoints as they would be now.
func (n *Node) look() map[Key]Checkpoint {
	out := map[Key]Checkpoint{}
	for k, r := range n.replicas {
		if r.dir < 0 || n.failed[r.dir] {
			continue
		}
		out[k] = Checkpoint{HighWatermark: r.View().HighWatermark, RecoveryPoint: r.Log().RecoveryPoint(), LogStart: r.Log().LogStartOffset()}
	}
	return out
}

// FailedDirectories are the directories that cannot be used any more.
func (n *Node) FailedDirectories() []uuid.UUID {
	var out []uuid.UUID
	for i, failed := range n.failed {
		if failed {
			out = append(out, n.o.Directories[i].ID)
		}
	}
	return out
}

// OnlineDirectories are the others.
func (n *Node) OnlineDirectories() []uuid.UUID {
	var out []uuid.UUID
	for i, failed := range n.failed {
		if !failed {
			out = append(out, n.o.Directories[i].ID)
		}
	}
	return out
}

// Misplaced are the replicas that are in another directory than the controller has them.
func (n *Node) Misplaced() map[Key]uuid.UUID {
	out := map[Key]uuid.UUID{}
	for k, r := range n.replicas {
		reg := n.base.Partition(k.TopicID, k.Partition)
		if reg == nil || r.dir < 0 || n.failed[r.dir] {
			continue
		}
		if actual := n.o.Directories[r.dir].ID; actual != n.assigned(reg) {
			out[k] = actual
		}
	}
	return out
}

// Records are the batches of a replica's log from an offset on, as they are on disk.
func (n *Node) Records(k Key, from int64) ([]byte, error) {
	l := n.replicas[k].Log()
	var out []byte
	end := l.LogEndOffset()
	for from < end {
		records, err := l.Read(from, 1<<20, end, true)
		if err != nil {
			return nil, err
		}
		data, err := records.ReadAll()
		records.Release()
		if err != nil || len(data) == 0 {
			return out, err
		}
		out = append(out, data...)
		for it := recordbatch.Iterate(data); it.Next(); {
			from = it.Header().NextOffset()
		}
	}
	return out, nil
}

// Stop closes all logs in order and gives the last checkpoints.
func (n *Node) Stop() map[Key]Checkpoint {
	before := n.Checkpoints()
	for _, r := range n.sorted() {
		if err := r.Close(false); err != nil {
			n.broken = true
		}
		n.finishFailures()
		n.complete()
		if c, ok := before[r.key]; ok && r.dir >= 0 && !n.failed[r.dir] {
			c.RecoveryPoint, c.LogStart = r.Log().RecoveryPoint(), r.Log().LogStartOffset()
			before[r.key] = c
		}
	}
	return before
}

// Kill ends the node as a crash does: nothing more is written.
func (n *Node) Kill() {
	for _, r := range n.sorted() {
		r.GoOffline(nil)
		r.Do(func() {})
		if r.Log() != nil {
			r.Log().Abandon()
		}
	}
	n.completed = nil
}
