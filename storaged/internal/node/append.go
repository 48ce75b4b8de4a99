package node

import (
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// Append is part of storage.Node.
func (n *Node) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	if req.Acks < storage.AcksAll || req.Acks > storage.AcksLeader {
		op := replica.NewAppendOp(req, done)
		for i := range req.Partitions {
			op.Refuse(i, errcode.InvalidRequiredAcks, storage.NoLeader)
		}
		return
	}
	if len(req.Partitions) == 0 {
		done(&storage.AppendResult{})
		return
	}
	// The request belongs to the replicas from the moment when the last of them has its part.
	acksAll, timeout := req.Acks == storage.AcksAll, time.Duration(req.TimeoutMs)*time.Millisecond
	op := replica.NewAppendOp(req, done)
	held := false
	for i := range req.Partitions {
		held = n.place(op, i) || held
	}
	if held || acksAll {
		op.Watch(timeout)
	}
}

// place gives one partition of an append to its replica, or holds it until the image says whether there is one.
func (n *Node) place(op *replica.AppendOp, i int) (held bool) {
	k := appendKey(op, i)
	if n.held.count.Load() == 0 {
		if r, where := n.routeAppend(op.Request(), k); where == toReplica {
			r.Append(op, i)
			return false
		}
	}
	n.held.mu.Lock()
	r, where := n.routeAppend(op.Request(), k)
	// Nobody may overtake those who wait for the same partition.
	if len(n.held.byKey[k]) > 0 || where == toHold {
		n.held.add(k, op, i)
		n.held.mu.Unlock()
		op.Held(i)
		return true
	}
	if where == toReplica {
		r.Append(op, i)
	}
	n.held.mu.Unlock()
	if where == toRefusal {
		_, code, leader := n.find(k)
		op.Refuse(i, code, leader)
	}
	return false
}

func appendKey(op *replica.AppendOp, i int) replica.Key {
	p := &op.Request().Partitions[i]
	return replica.Key{TopicID: p.TopicID, Partition: p.Partition}
}

type appendRoute int8

const (
	toReplica appendRoute = iota
	toHold
	toRefusal
)

// routeAppend says where an append goes. It is held when this node would have to refuse it, but its sender knows a newer
// image.
func (n *Node) routeAppend(req *storage.AppendRequest, k replica.Key) (*replica.Replica, appendRoute) {
	r := n.lookup(k)
	behind := n.applied.load().Offset() < req.MetadataOffset
	switch {
	case r == nil && behind:
		return nil, toHold
	case r == nil:
		return nil, toRefusal
	case behind && (!r.View().Leads() || n.writerAhead(req, r)):
		return nil, toHold
	}
	return r, toReplica
}

// writerAhead says whether a coordinator writes with a shard epoch that this node does not know yet.
func (n *Node) writerAhead(req *storage.AppendRequest, r *replica.Replica) bool {
	return req.WriterEpoch > n.newest.Load().Shard(shardsOf(r.Topic()), r.Key().Partition).Epoch
}

// shardsOf is the kind of shards whose state a topic holds; 0 for ordinary topics.
func shardsOf(topic string) metadata.ShardKind {
	switch topic {
	case "__consumer_offsets":
		return metadata.GroupShard
	case "__transaction_state":
		return metadata.TransactionShard
	case "__share_group_state":
		return metadata.ShareShard
	case "__remote_log_metadata":
		return metadata.RemoteLogShard
	}
	return 0
}

// heldAppends are the appends that wait for the image, in the order of the calls for each partition.
type heldAppends struct {
	count atomic.Int64
	mu    sync.Mutex
	byKey map[replica.Key][]heldAppend
}

type heldAppend struct {
	op    *replica.AppendOp
	index int
}

func (h *heldAppends) add(k replica.Key, op *replica.AppendOp, i int) {
	if h.byKey == nil {
		h.byKey = map[replica.Key][]heldAppend{}
	}
	h.byKey[k] = append(h.byKey[k], heldAppend{op, i})
	h.count.Add(1)
}

// releaseHeld lets go of the appends that the applied image decides about, and of those whose time is over.
func (n *Node) releaseHeld() {
	if n.held.count.Load() == 0 {
		return
	}
	var refused []heldAppend
	n.held.mu.Lock()
	for k, waiting := range n.held.byKey {
		taken := 0
		for _, h := range waiting {
			if h.op.Settled(h.index) {
				h.op.Discard(h.index)
				taken++
				continue
			}
			r, where := n.routeAppend(h.op.Request(), k)
			if where == toHold {
				break
			}
			if where == toReplica {
				r.Append(h.op, h.index)
			} else {
				refused = append(refused, h)
			}
			taken++
		}
		n.held.count.Add(-int64(taken))
		if taken == len(waiting) {
			delete(n.held.byKey, k)
		} else {
			n.held.byKey[k] = waiting[taken:]
		}
	}
	n.held.mu.Unlock()
	// Callbacks may append again, so they run outside of the lock.
	for _, h := range refused {
		_, code, leader := n.find(appendKey(h.op, h.index))
		h.op.Refuse(h.index, code, leader)
	}
}
