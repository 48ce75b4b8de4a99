package partition_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/partition"
)

// The simulation runs one partition on a few nodes against a model of the controller. Everything between them is a message
// that may arrive late, in another order, or never; nodes stop and come back, with or without the tail of their logs.

const simMinISR = 2

type simRecord struct {
	id    int
	epoch int32
}

type simNode struct {
	id          int32
	machine     *partition.Partition
	log         []simRecord
	epochs      []partition.EpochStart
	brokerEpoch int64
	up          bool
	// seen is the registration that the node applied last.
	seen int
	// checkpoint is the high watermark on disk.
	checkpoint int64
	// fetching is the answer that is on its way to a follower.
	fetching *simFetch
}

type simFetch struct {
	epoch    int32
	records  []simRecord
	at       int64
	hw       int64
	diverged *storage.EpochEndOffset
}

type simProposal struct {
	node     *simNode
	boot     int64
	proposal *partition.AlterPartition
}

type sim struct {
	t        *rapid.T
	now      time.Time
	nodes    []*simNode
	history  []*metadata.Partition
	fenced   map[int32]bool
	epochs   map[int32]int64
	requests []simProposal
	nextID   int
	// committed is the log that was ever below some leader's high watermark.
	committed []simRecord
}

func newSim(t *rapid.T, n int) *sim {
	s := &sim{t: t, now: time.Unix(1000, 0), fenced: map[int32]bool{}, epochs: map[int32]int64{}}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i + 1)
		s.epochs[ids[i]] = 1
	}
	s.history = []*metadata.Partition{{Replicas: ids, ISR: slices.Clone(ids), Leader: 1}}
	for _, id := range ids {
		node := &simNode{id: id, seen: -1}
		s.nodes = append(s.nodes, node)
		s.boot(node)
	}
	return s
}

func (s *sim) boot(n *simNode) {
	n.up, n.seen, n.fetching = true, -1, nil
	n.brokerEpoch = s.epochs[n.id]
	n.machine = partition.New(&partition.Config{
		Self:              n.id,
		ReplicaLagTimeMax: 10 * time.Second,
		Broker: func(id int32) (partition.BrokerState, bool) {
			return partition.BrokerState{Epoch: s.epochs[id], Fenced: s.fenced[id]}, true
		},
		SelfEpoch: func() int64 { return n.brokerEpoch },
	}, 0, n.checkpoint, int64(len(n.log)))
}

func (s *sim) current() *metadata.Partition { return s.history[len(s.history)-1] }

// change appends a registration, with a new leader epoch when the leader is another.
func (s *sim) change(isr []int32, leader int32) {
	next := *s.current()
	next.ISR = isr
	next.PartitionEpoch++
	if leader != next.Leader {
		next.Leader = leader
		next.LeaderEpoch++
	}
	s.history = append(s.history, &next)
}

func (s *sim) node(id int32) *simNode { return s.nodes[id-1] }

// effects carries out what a machine asks for.
func (s *sim) effects(n *simNode, out partition.Effects) {
	if out.AssignEpoch != nil {
		n.assign(*out.AssignEpoch)
	}
	if out.AlterPartition != nil {
		s.requests = append(s.requests, simProposal{node: n, boot: n.brokerEpoch, proposal: out.AlterPartition})
	}
	if out.Fetch != nil || out.StopFetching {
		n.fetching = nil
	}
	if out.HighWatermarkMoved && n.machine.Role() == partition.Leading {
		hw := int(n.machine.HighWatermark())
		if hw > len(s.committed) {
			s.committed = append(s.committed, n.log[len(s.committed):hw]...)
		}
	}
}

// apply lets a node take in the next registration.
func (s *sim) apply(n *simNode) {
	if !n.up || n.seen == len(s.history)-1 {
		return
	}
	if n.seen < 0 {
		n.seen = len(s.history) - 2 // a node that starts reads a snapshot
	}
	n.seen++
	reg := s.history[n.seen]
	if reg.Leader == n.id {
		s.effects(n, n.machine.BecomeLeader(s.now, reg, simMinISR))
	} else {
		s.effects(n, n.machine.BecomeFollower(reg))
	}
}

func (s *sim) append(n *simNode) {
	if !n.up || n.machine.CheckAppend(true) != errcode.None {
		return
	}
	s.nextID++
	n.log = append(n.log, simRecord{id: s.nextID, epoch: n.machine.LeaderEpoch()})
	s.effects(n, n.machine.Appended(s.now, int64(len(n.log))))
}

// epochEnd answers as a log's leader epochs do: an epoch below all known ones ends where the first of them starts.
func epochEnd(n *simNode, epoch int32) (storage.EpochEndOffset, bool) {
	for i := len(n.epochs) - 1; i >= 0; i-- {
		if n.epochs[i].Epoch > epoch {
			continue
		}
		end := int64(len(n.log))
		if i+1 < len(n.epochs) {
			end = n.epochs[i+1].Offset
		}
		return storage.EpochEndOffset{Epoch: n.epochs[i].Epoch, EndOffset: end}, true
	}
	if len(n.epochs) > 0 {
		return storage.EpochEndOffset{Epoch: epoch, EndOffset: n.epochs[0].Offset}, true
	}
	return storage.NoDivergence, false
}

// assign notes the start of an epoch; entries that it contradicts go.
func (n *simNode) assign(e partition.EpochStart) {
	if k := len(n.epochs); k > 0 && n.epochs[k-1].Epoch == e.Epoch {
		return
	}
	n.epochs = append(slices.DeleteFunc(n.epochs, func(o partition.EpochStart) bool { return o.Epoch >= e.Epoch || o.Offset >= e.Offset }), e)
}

func (n *simNode) cut(end int64) {
	n.log = n.log[:end]
	n.epochs = slices.DeleteFunc(n.epochs, func(e partition.EpochStart) bool { return e.Offset >= end })
}

// fetch lets a follower ask its leader; the answer stays on its way.
func (s *sim) fetch(n *simNode) {
	if !n.up || n.machine.Role() != partition.Following || n.fetching != nil {
		return
	}
	leader := s.node(n.machine.Leader())
	if !leader.up || leader.machine.Role() != partition.Leading || leader.machine.LeaderEpoch() != n.machine.LeaderEpoch() {
		return
	}
	at := int64(len(n.log))
	answer := &simFetch{epoch: n.machine.LeaderEpoch(), at: at, hw: leader.machine.HighWatermark()}
	if at > 0 {
		last := n.log[at-1].epoch
		end, ok := epochEnd(leader, last)
		if !ok {
			return
		}
		if end.Epoch < last || end.EndOffset < at {
			answer.diverged = &end
			n.fetching = answer
			return
		}
	}
	leaderEnd := int64(len(leader.log))
	if at > leaderEnd {
		return
	}
	answer.records = slices.Clone(leader.log[at:min(leaderEnd, at+2)])
	s.effects(leader, leader.machine.FollowerFetched(s.now, partition.FollowerFetch{
		Replica: n.id, BrokerEpoch: n.brokerEpoch, LeaderEpoch: answer.epoch,
		FetchOffset: at, LeaderEnd: leaderEnd, At: s.now,
	}))
	n.fetching = answer
}

// deliver brings a follower the answer to its fetch.
func (s *sim) deliver(n *simNode) {
	f := n.fetching
	if f == nil || !n.up {
		return
	}
	n.fetching = nil
	if !n.machine.FollowsIn(f.epoch) || f.at != int64(len(n.log)) {
		return
	}
	if f.diverged != nil {
		local, ok := epochEnd(n, f.diverged.Epoch)
		cut := n.machine.TruncateTo(*f.diverged, local, ok)
		if cut < int64(len(s.committed)) && s.inISR(n.id) && cut < s.agreed(n) {
			s.t.Fatalf("node %d cuts committed records: to %d of %d", n.id, cut, len(s.committed))
		}
		n.cut(cut)
		s.effects(n, n.machine.Truncated(cut))
		return
	}
	for _, r := range f.records {
		n.assign(partition.EpochStart{Epoch: r.epoch, Offset: int64(len(n.log))})
		n.log = append(n.log, r)
	}
	s.effects(n, n.machine.Followed(int64(len(n.log)), f.hw))
}

// agreed is how much of the committed log a node has.
func (s *sim) agreed(n *simNode) int64 {
	i := 0
	for i < len(n.log) && i < len(s.committed) && n.log[i] == s.committed[i] {
		i++
	}
	return int64(i)
}

func (s *sim) inISR(id int32) bool { return slices.Contains(s.current().ISR, id) }

// alter lets the controller carry out one of the proposals under way, in any order, and answer or not.
func (s *sim) alter(at int, lose bool) {
	r := s.requests[at]
	s.requests = slices.Delete(s.requests, at, at+1)
	code, answer := s.decide(r)
	if lose || !r.node.up || r.node.brokerEpoch != r.boot {
		code = errcode.NetworkException
	}
	if !r.node.up || r.node.brokerEpoch != r.boot {
		return
	}
	if code != errcode.None {
		s.effects(r.node, r.node.machine.AlterPartitionFailed(s.now, r.proposal, code))
		return
	}
	s.effects(r.node, r.node.machine.AlterPartitionDone(s.now, r.proposal, answer))
}

func (s *sim) decide(r simProposal) (errcode.Code, partition.Altered) {
	now := s.current()
	switch {
	case now.Leader != r.node.id || now.LeaderEpoch != r.proposal.LeaderEpoch:
		return errcode.FencedLeaderEpoch, partition.Altered{}
	case now.PartitionEpoch != r.proposal.PartitionEpoch:
		return errcode.InvalidUpdateVersion, partition.Altered{}
	}
	var isr []int32
	for _, m := range r.proposal.ISR {
		if s.fenced[m.ID] || m.BrokerEpoch != -1 && m.BrokerEpoch != s.epochs[m.ID] {
			return errcode.IneligibleReplica, partition.Altered{}
		}
		isr = append(isr, m.ID)
	}
	s.change(isr, now.Leader)
	next := s.current()
	return errcode.None, partition.Altered{LeaderEpoch: next.LeaderEpoch, PartitionEpoch: next.PartitionEpoch, ISR: next.ISR}
}

// fence is the controller losing sight of a node.
func (s *sim) fence(id int32) {
	if s.fenced[id] {
		return
	}
	s.fenced[id] = true
	s.leave(id)
}

// leave takes a node out of the ISR, unless it is the last one, and finds another leader.
func (s *sim) leave(id int32) {
	reg := s.current()
	isr := slices.DeleteFunc(slices.Clone(reg.ISR), func(m int32) bool { return m == id })
	if len(isr) == 0 {
		isr = reg.ISR
	}
	leader := reg.Leader
	if leader == id || leader == metadata.NoLeader {
		leader = metadata.NoLeader
		for _, m := range isr {
			if !s.fenced[m] {
				leader = m
			}
		}
	}
	s.change(isr, leader)
}

func (s *sim) stop(n *simNode) {
	n.up = false
	n.checkpoint = min(n.checkpoint, int64(len(n.log)))
}

// start brings a node back. When it has lost the tail of its log, it comes as one that the controller takes out of the
// ISR first; the last of the ISR never loses anything here, because nothing could save what only it had.
func (s *sim) start(n *simNode, lost int) {
	if n.up {
		return
	}
	s.epochs[n.id]++
	if lost > 0 && len(n.log) > 0 && (!s.inISR(n.id) || len(s.current().ISR) > 1) {
		s.leave(n.id)
		n.cut(int64(max(0, len(n.log)-lost)))
		n.checkpoint = min(n.checkpoint, int64(len(n.log)))
	}
	if s.fenced[n.id] {
		s.fenced[n.id] = false
		if s.current().Leader == metadata.NoLeader && s.inISR(n.id) {
			s.change(s.current().ISR, n.id)
		}
	} else if s.current().Leader == n.id {
		s.leave(n.id)
		if s.current().Leader == metadata.NoLeader || s.current().Leader == n.id {
			s.change(s.current().ISR, metadata.NoLeader)
			s.change(s.current().ISR, n.id)
		}
	}
	s.boot(n)
}

func (s *sim) check() {
	for _, id := range s.current().ISR {
		n := s.node(id)
		if got := s.agreed(n); got < int64(len(s.committed)) {
			s.t.Fatalf("node %d is in the ISR with %d of %d committed records", id, got, len(s.committed))
		}
	}
	for _, n := range s.nodes {
		m := n.machine
		if !n.up {
			continue
		}
		if m.HighWatermark() > m.LogEnd() || m.LogStart() > m.HighWatermark() || m.LogEnd() != int64(len(n.log)) {
			s.t.Fatalf("node %d: start %d, high watermark %d, end %d, log %d", n.id, m.LogStart(), m.HighWatermark(), m.LogEnd(), len(n.log))
		}
		if hw := m.HighWatermark(); hw > s.agreed(n) {
			s.t.Fatalf("node %d shows %d records, of which %d are committed", n.id, hw, s.agreed(n))
		}
	}
}

func (s *sim) step() {
	n := s.nodes[rapid.IntRange(0, len(s.nodes)-1).Draw(s.t, "node")]
	switch action := rapid.IntRange(0, 99).Draw(s.t, "action"); {
	case action < 25:
		s.append(n)
	case action < 45:
		s.fetch(n)
	case action < 65:
		s.deliver(n)
	case action < 80:
		s.apply(n)
	case action < 88:
		if len(s.requests) > 0 {
			s.alter(rapid.IntRange(0, len(s.requests)-1).Draw(s.t, "request"), rapid.Bool().Draw(s.t, "lose"))
		}
	case action < 90:
		s.now = s.now.Add(time.Duration(rapid.IntRange(1, 15).Draw(s.t, "seconds")) * time.Second)
	case action < 92:
		if n.up {
			s.effects(n, n.machine.Tick(s.now))
		}
	case action < 94:
		s.fence(n.id)
	case action < 96:
		s.stop(n)
	case action < 97:
		if n.up {
			s.effects(n, n.machine.BrokersChanged(s.now))
		}
	case action < 98:
		s.start(n, rapid.IntRange(0, 3).Draw(s.t, "lost"))
	default:
		n.checkpoint = n.machine.HighWatermark()
	}
	s.check()
}

// converge heals everything and lets the nodes talk until nothing moves: then all must have one log.
func (s *sim) converge() {
	for _, n := range s.nodes {
		if n.up && s.fenced[n.id] {
			s.stop(n)
		}
		s.start(n, 0)
	}
	s.append(s.node(max(1, s.current().Leader)))
	for range 400 {
		for _, n := range s.nodes {
			s.apply(n)
			s.fetch(n)
			s.deliver(n)
		}
		for len(s.requests) > 0 {
			s.alter(0, false)
		}
		s.check()
	}
	leader := s.node(s.current().Leader)
	s.append(leader)
	for range 10 {
		for _, n := range s.nodes {
			s.fetch(n)
			s.deliver(n)
		}
	}
	if len(s.current().ISR) != len(s.nodes) {
		s.t.Fatalf("the ISR did not grow back: %v", s.current().ISR)
	}
	for _, n := range s.nodes {
		if !slices.Equal(n.log, leader.log) || n.machine.HighWatermark() != int64(len(leader.log)) {
			s.t.Fatalf("node %d did not converge: %s", n.id, s.describe())
		}
	}
}

func (s *sim) describe() string {
	out := ""
	for _, n := range s.nodes {
		out += fmt.Sprintf("\n%d: role %d epoch %d hw %d log %v", n.id, n.machine.Role(), n.machine.LeaderEpoch(), n.machine.HighWatermark(), n.log)
	}
	return out
}

func TestReplicationKeepsWhatWasCommitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, 3)
		steps := rapid.IntRange(50, 400).Draw(t, "steps")
		for range steps {
			s.step()
		}
		s.converge()
	})
}
