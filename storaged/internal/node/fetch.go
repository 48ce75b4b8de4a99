package node

import (
	"context"
	"slices"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// fetch is a fetch under way.
type fetch struct {
	node     *Node
	req      *storage.FetchRequest
	at       time.Time
	follower bool
	targets  []fetchTarget
}

// fetchTarget is one partition of a fetch.
type fetchTarget struct {
	// replica is nil where there is none; code and leader then say why.
	replica *replica.Replica
	code    errcode.Code
	leader  storage.CurrentLeader
	// view is what the last read went by.
	view *replica.View
}

// Fetch is part of storage.Node.
func (n *Node) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	select {
	case <-n.stopping:
		return nil, errcode.NotLeaderOrFollower.Errorf("the storage node is stopping")
	default:
	}
	f := &fetch{node: n, req: req, at: time.Now(), follower: req.ReplicaID >= 0, targets: make([]fetchTarget, len(req.Partitions))}
	if f.follower {
		n.metrics.FollowerFetches.Add(1)
		n.sessions.contacted(req.ReplicaID, f.at)
	} else {
		n.metrics.ConsumerFetches.Add(1)
	}
	if f.follower && req.Session != nil {
		return n.fetchInSession(ctx, req, f.at)
	}
	maxWait := time.Duration(req.MaxWaitMs) * time.Millisecond
	if f.resolve() && n.AppliedOffset() < req.MetadataOffset && n.await(ctx, req.MetadataOffset, maxWait) {
		f.resolve()
	}
	res, enough := f.read(true)
	if !enough && maxWait > 0 {
		res = f.wait(ctx, res, maxWait-time.Since(f.at))
	}
	n.countFetch(req, res)
	return res, nil
}

// resolve finds the replicas and says whether a newer image might find more.
func (f *fetch) resolve() (refused bool) {
	leaderOnly := f.follower || f.req.RackID == ""
	for i := range f.targets {
		t, p := &f.targets[i], &f.req.Partitions[i]
		t.replica, t.code, t.leader = f.node.find(replica.Key{TopicID: p.TopicID, Partition: p.Partition})
		if t.replica == nil {
			refused = true
			continue
		}
		switch t.replica.View().Check(p.CurrentLeaderEpoch, leaderOnly) {
		case errcode.UnknownLeaderEpoch, errcode.NotLeaderOrFollower:
			refused = true
		default:
		}
	}
	return refused
}

// read reads all partitions in the order of the request and says whether the answer can go out. The first read of a
// follower's fetch tells the replicas how far it is.
func (f *fetch) read(first bool) (res *storage.FetchResult, enough bool) {
	res = &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, len(f.targets))}
	left, bytes, minOne := int(f.req.MaxBytes), 0, true
	watchable := 0
	enough = f.req.MinBytes <= 0 || f.req.MaxWaitMs <= 0
	for i := range f.targets {
		t, p := &f.targets[i], &f.req.Partitions[i]
		out := &res.Partitions[i]
		if t.replica == nil {
			*out = replica.FailedFetch(p, t.code, t.leader)
			// A topic that does not exist does not keep the others from waiting.
			enough = enough || t.code == errcode.NotLeaderOrFollower
			continue
		}
		watchable++
		if id := f.preferred(t.replica, p); id >= 0 {
			*out = f.redirect(t, p, id)
			enough = true
			continue
		}
		if f.node.throttled(f.req, t.replica) {
			*out, t.view = t.replica.Read(f.req, p, 0, false)
		} else {
			*out, t.view = t.replica.Read(f.req, p, min(left, int(p.MaxBytes)), minOne)
		}
		n := out.Records.Len()
		if n > 0 {
			minOne = false
		}
		left, bytes = max(0, left-n), bytes+n
		if out.Error != errcode.None || out.Diverging != storage.NoDivergence || out.Tiered {
			enough = true
			continue
		}
		if f.follower {
			if first {
				t.replica.Report(f.req, p, t.view, f.at)
			}
			// The follower is to learn at once that records were deleted: DeleteRecords waits for it.
			enough = enough || t.view.LogStart > p.LogStartOffset
		}
	}
	return res, enough || watchable == 0 || bytes >= int(f.req.MinBytes)
}

// preferred is the replica that a consumer should rather read from; -1 for this one.
func (f *fetch) preferred(r *replica.Replica, p *storage.FetchPartition) int32 {
	if !f.node.rackAware || f.follower || f.req.RackID == "" || !r.View().Leads() {
		return -1
	}
	return f.node.closest(r, p.FetchOffset, f.req.RackID)
}

// closest is the in-sync replica in a rack that is furthest; -1 when this one is in the rack as well, or none is.
func (n *Node) closest(r *replica.Replica, offset int64, rack string) int32 {
	image := n.newest.Load()
	best, bestEnd := int32(-1), int64(-1)
	for id, end := range r.Readable(offset) {
		b := image.Broker(id)
		if b == nil || b.Fenced || b.Rack == nil || *b.Rack != rack {
			continue
		}
		if id == n.o.ID {
			return -1
		}
		if end > bestEnd {
			best, bestEnd = id, end
		}
	}
	return best
}

// throttled says whether a follower gets no records now: the quota of leaders is used up, the partition is one of those that
// it is for, and the follower is not in sync, so that no producer waits for it.
func (n *Node) throttled(req *storage.FetchRequest, r *replica.Replica) bool {
	asLeader, _ := r.Throttled()
	return asLeader && req.ReplicaID >= 0 && !slices.Contains(r.View().ISR, req.ReplicaID) && n.quotas.leader.Exceeded(time.Now())
}

func (f *fetch) redirect(t *fetchTarget, p *storage.FetchPartition, id int32) storage.FetchPartitionResult {
	v := t.replica.View()
	t.view = v
	if code := v.Check(p.CurrentLeaderEpoch, true); code != errcode.None {
		return replica.FailedFetch(p, code, v.CurrentLeader())
	}
	out := replica.FailedFetch(p, errcode.None, storage.NoLeader)
	out.HighWatermark, out.LastStableOffset, out.LogStartOffset = v.HighWatermark, v.LastStable, v.LogStart
	out.PreferredReadReplica = id
	return out
}

// wait reads again whenever there is news, until the answer can go out or the time is over.
func (f *fetch) wait(ctx context.Context, res *storage.FetchResult, left time.Duration) *storage.FetchResult {
	bound := replica.BoundOf(f.req)
	w := replica.NewWaiter(len(f.targets))
	defer w.Close()
	for i := range f.targets {
		if t := &f.targets[i]; t.replica != nil {
			w.Watch(t.replica, bound, f.req.Partitions[i].FetchOffset)
		}
	}
	f.node.waiting.fetches.Add(1)
	defer f.node.waiting.fetches.Add(-1)
	timer := time.NewTimer(left)
	defer timer.Stop()
	over := false
	for news := f.missed(); ; news = true {
		if news {
			res.Release()
			var enough bool
			if res, enough = f.read(false); enough || over {
				return res
			}
		}
		select {
		case <-w.C:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		case <-f.node.stopping:
			over = true
		}
	}
}

// missed says whether a replica has changed between the read and the registration of the waiter.
func (f *fetch) missed() bool {
	for i := range f.targets {
		if t := &f.targets[i]; t.replica != nil && t.replica.View() != t.view {
			return true
		}
	}
	return false
}

// countFetch counts what a fetch brought.
func (n *Node) countFetch(req *storage.FetchRequest, res *storage.FetchResult) {
	follower := req.ReplicaID >= 0
	bytes, failed := 0, 0
	for i := range res.Partitions {
		p := &res.Partitions[i]
		size := p.Records.Len()
		bytes += size
		if p.Error != errcode.None {
			failed++
		}
		if size == 0 || !follower {
			continue
		}
		if r := n.lookup(replica.Key{TopicID: p.TopicID, Partition: p.Partition}); r != nil {
			r.CountReplicated(time.Now(), size)
		}
	}
	n.metrics.FailedFetchPartitions.Add(int64(failed))
	if follower {
		n.metrics.ReplicationBytesOut.Add(int64(bytes))
	} else {
		n.metrics.BytesOut.Add(int64(bytes))
	}
}
