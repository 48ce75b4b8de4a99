package node

import (
	"context"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// Followers fetch in sessions (storage.FetchSession): the leader's node remembers where each follower is, and looks only at the
// partitions that have news, so that the others cost nothing.

// sessionIdle is after how long without a fetch a session is forgotten.
const sessionIdle = time.Minute

// sessions are the sessions of all followers.
type sessions struct {
	mu   sync.Mutex
	byID map[sessionID]*session
	// contacts are when nodes last fetched.
	contacts map[int32]time.Time
}

type sessionID struct {
	replica int32
	id      uint64
}

// session is what the node knows of one session.
type session struct {
	node         *Node
	replicaEpoch int64

	// The mutex of the sessions guards epoch and used.
	epoch int32
	used  time.Time

	// turn has a token for the one fetch that may be under way; it owns entries. over is closed when the session is not wanted
	// any more.
	turn    chan struct{}
	over    chan struct{}
	entries map[replica.Key]*sessionEntry

	// ready are the partitions that may have news, in the order in which they had it first; wake has room for one signal that
	// there is more than a new high watermark.
	mu    sync.Mutex
	ready []*sessionEntry
	wake  chan struct{}
}

// sessionEntry is one partition of a session.
type sessionEntry struct {
	session *session
	// position is where the follower is; fresh says that the replica has not been told of it yet, waiting that the follower has
	// to tell a new one before anything more is read.
	position       storage.FetchPartition
	fresh, waiting bool
	// registration is at the partition's replica; nil where there is none, and code and leader then say why.
	registration *replica.Registration
	code         errcode.Code
	leader       storage.CurrentLeader
	// toldHigh and toldRemote are the high watermark and the end of the remote tier that the follower knows of.
	toldHigh, toldRemote int64
	// queued says that the entry is among those that are ready; the session's mu guards it.
	queued bool
}

// contacted notes that a node fetches.
func (s *sessions) contacted(id int32, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.contacts == nil {
		s.contacts = map[int32]time.Time{}
	}
	s.contacts[id] = at
}

func (s *sessions) lastContact(id int32) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contacts[id]
}

// take finds the session of a request, or begins it.
func (s *sessions) take(n *Node, req *storage.FetchRequest, now time.Time) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := sessionID{req.ReplicaID, req.Session.ID}
	x := s.byID[id]
	if req.Session.Epoch != 0 {
		if x == nil || x.replicaEpoch != req.ReplicaEpoch || x.epoch+1 != req.Session.Epoch {
			return nil, errcode.FetchSessionIdNotFound.Err()
		}
		x.epoch, x.used = req.Session.Epoch, now
		return x, nil
	}
	if x != nil {
		close(x.over)
		go x.drop()
	}
	x = &session{
		node: n, replicaEpoch: req.ReplicaEpoch, used: now, turn: make(chan struct{}, 1), over: make(chan struct{}),
		entries: make(map[replica.Key]*sessionEntry, len(req.Partitions)), wake: make(chan struct{}, 1),
	}
	x.turn <- struct{}{}
	if s.byID == nil {
		s.byID = map[sessionID]*session{}
	}
	s.byID[id] = x
	return x, nil
}

// expire forgets the sessions of followers that have gone.
func (s *sessions) expire() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.byID {
		if now.Sub(x.used) >= sessionIdle {
			delete(s.byID, id)
			close(x.over)
			go x.drop()
		}
	}
}

// drop ends the session's registrations, after the fetch that may be under way.
func (x *session) drop() {
	<-x.turn
	for _, e := range x.entries {
		e.forget()
	}
	x.entries = nil
}

func (e *sessionEntry) forget() {
	if e.registration != nil {
		e.registration.Close()
		e.registration = nil
	}
	e.waiting = true // what is still queued is passed over
}

// Woken is part of replica.Listener.
func (e *sessionEntry) Woken(soft bool) {
	x := e.session
	x.mu.Lock()
	if !e.queued {
		e.queued = true
		x.ready = append(x.ready, e)
	}
	x.mu.Unlock()
	if !soft {
		select {
		case x.wake <- struct{}{}:
		default: // it has been told
		}
	}
}

// fetchInSession answers a fetch of a follower's session.
func (n *Node) fetchInSession(ctx context.Context, req *storage.FetchRequest, at time.Time) (*storage.FetchResult, error) {
	x, err := n.sessions.take(n, req, at)
	if err != nil {
		return nil, err
	}
	select {
	case <-x.turn:
	case <-x.over:
		return nil, errcode.FetchSessionIdNotFound.Err()
	case <-ctx.Done():
		return nil, errcode.FetchSessionIdNotFound.Wrap(ctx.Err())
	}
	defer func() { x.turn <- struct{}{} }()
	maxWait := time.Duration(req.MaxWaitMs) * time.Millisecond
	x.update(ctx, req, maxWait)
	return x.collect(ctx, req, at, maxWait), nil
}

// update takes in what the follower says.
func (x *session) update(ctx context.Context, req *storage.FetchRequest, maxWait time.Duration) {
	for _, k := range req.Session.Forgotten {
		key := replica.Key{TopicID: k.TopicID, Partition: k.Partition}
		if e := x.entries[key]; e != nil {
			e.forget()
			delete(x.entries, key)
		}
	}
	refused := false
	for i := range req.Partitions {
		p := &req.Partitions[i]
		key := replica.Key{TopicID: p.TopicID, Partition: p.Partition}
		e := x.entries[key]
		if e == nil {
			e = &sessionEntry{session: x, toldHigh: -1, toldRemote: -1}
			x.entries[key] = e
		}
		if e.position.CurrentLeaderEpoch != p.CurrentLeaderEpoch {
			e.toldHigh, e.toldRemote = -1, -1 // what was told in another epoch may not have been taken
		}
		e.position, e.fresh, e.waiting = *p, true, false
		refused = e.place() || refused
	}
	if refused && x.node.AppliedOffset() < req.MetadataOffset && x.node.await(ctx, req.MetadataOffset, maxWait) {
		for i := range req.Partitions {
			p := &req.Partitions[i]
			x.entries[replica.Key{TopicID: p.TopicID, Partition: p.Partition}].place()
		}
	}
	for i := range req.Partitions {
		p := &req.Partitions[i]
		x.entries[replica.Key{TopicID: p.TopicID, Partition: p.Partition}].Woken(true)
	}
}

// place finds the entry's replica and says whether a newer image might find another answer.
func (e *sessionEntry) place() (refused bool) {
	r, code, leader := e.session.node.find(replica.Key{TopicID: e.position.TopicID, Partition: e.position.Partition})
	if e.registration != nil && e.registration.Replica() != r {
		e.registration.Close()
		e.registration = nil
	}
	if r == nil {
		e.code, e.leader = code, leader
		return true
	}
	if e.registration == nil {
		e.registration = r.Listen(e, replica.ToLogEnd, e.position.FetchOffset)
	} else {
		e.registration.Move(e.position.FetchOffset)
	}
	code = r.View().Check(e.position.CurrentLeaderEpoch, true)
	return code == errcode.UnknownLeaderEpoch || code == errcode.NotLeaderOrFollower
}

// collect reads what has news until the answer can go out or the time is over.
func (x *session) collect(ctx context.Context, req *storage.FetchRequest, at time.Time, maxWait time.Duration) *storage.FetchResult {
	c := &collection{session: x, req: req, at: at, left: int(req.MaxBytes), result: &storage.FetchResult{}}
	over := maxWait <= 0
	var timer *time.Timer
	for {
		c.round()
		if c.enough || over || c.bytes > 0 && c.bytes >= int(req.MinBytes) {
			x.node.countFetch(req, c.result)
			return c.result
		}
		if timer == nil {
			x.node.waiting.fetches.Add(1)
			defer x.node.waiting.fetches.Add(-1)
			timer = time.NewTimer(max(0, maxWait-time.Since(at)))
			defer timer.Stop()
		}
		select {
		case <-x.wake:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		case <-x.over:
			over = true
		case <-x.node.stopping:
			over = true
		}
	}
}

// collection is the answer of a session's fetch while it is put together.
type collection struct {
	session *session
	req     *storage.FetchRequest
	at      time.Time
	result  *storage.FetchResult
	// left is how many bytes there is still room for, bytes how many there are; enough says that the answer must not wait.
	left, bytes int
	enough      bool
}

// round reads the partitions that are ready now, each once. Those that there is no room for stay in the queue, before those that
// come later.
func (c *collection) round() {
	x := c.session
	x.mu.Lock()
	n := len(x.ready)
	x.mu.Unlock()
	for range n {
		x.mu.Lock()
		e := x.ready[0]
		x.ready[0] = nil
		x.ready = x.ready[1:]
		e.queued = false
		x.mu.Unlock()
		if !e.waiting && c.read(e) {
			e.Woken(true)
		}
	}
	x.mu.Lock()
	if len(x.ready) == 0 {
		x.ready = nil
	}
	x.mu.Unlock()
}

// read adds what a partition has to the answer, and says whether there is more.
func (c *collection) read(e *sessionEntry) (more bool) {
	p := &e.position
	var out storage.FetchPartitionResult
	var view *replica.View
	if e.registration == nil {
		out = replica.FailedFetch(p, e.code, e.leader)
	} else {
		r := e.registration.Replica()
		room := min(c.left, int(p.MaxBytes))
		if c.session.node.throttled(c.req, r) {
			room = 0
		}
		out, view = r.Read(c.req, p, room, c.bytes == 0 && room > 0)
		if e.fresh && out.Error == errcode.None && out.Diverging == storage.NoDivergence && !out.Tiered {
			r.Report(c.req, p, view, c.at)
		}
	}
	e.fresh = false
	size := out.Records.Len()
	c.left, c.bytes = max(0, c.left-size), c.bytes+size
	if out.ExpectsPosition(p) {
		// The follower is to learn at once that records were deleted, too: DeleteRecords waits for it.
		e.waiting = true
		c.enough = c.enough || size == 0
	} else {
		more = view.LogEnd > p.FetchOffset
		if out.HighWatermark == e.toldHigh && out.RemoteEndOffset == e.toldRemote {
			return more
		}
	}
	e.toldHigh, e.toldRemote = out.HighWatermark, out.RemoteEndOffset
	c.result.Partitions = append(c.result.Partitions, out)
	return more
}
