// Package memlog is a metadata log in memory, for tests: several controllers share one Store.
//
// It owns the same promises as the real log, and faults on demand. It must never be used for a cluster's data: it forgets.
package memlog

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sort"
	"sync"

	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/uuid"
)

// Fault is what happens to one append or claim.
type Fault int

// The faults. LostAnswer makes the change and says that its outcome is unknown, LostRequest only says so.
const (
	NoFault Fault = iota
	LostAnswer
	LostRequest
)

// Store is what the quorum holds.
type Store struct {
	mu        sync.Mutex
	clusterID string
	holder    *metalog.Holder
	// batches are the log from start on, in the order of their offsets.
	batches []*metalog.Batch
	// snapshots are the last two, the newer one last.
	snapshots []snapshot
	nodes     map[int32]*Node
	// changed is closed and replaced at each change that followers see.
	changed chan struct{}
	// fault decides what happens to the next change; nil means none.
	fault func() Fault
}

type snapshot struct {
	info    metalog.SnapshotInfo
	records [][]byte
}

// NewStore makes an empty one.
func NewStore() *Store {
	return &Store{nodes: map[int32]*Node{}, changed: make(chan struct{})}
}

// SetFault sets what decides about the fate of each change; nil means that all succeed.
func (s *Store) SetFault(fault func() Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

func (s *Store) nextFaultLocked() Fault {
	if s.fault == nil {
		return NoFault
	}
	return s.fault()
}

// Node is the log as controller id sees it; the same one for the same id. A closed node starts anew.
func (s *Store) Node(id int32) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil {
		n = &Node{store: s, id: id, contact: true, leadership: make(chan bool, 1), failed: make(chan error, 1), closed: make(chan struct{})}
		n.leadership <- false
		s.nodes[id] = n
	}
	return n
}

// Elect makes one controller the leader, and no other one; -1 for nobody.
func (s *Store) Elect(id int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		n.setLeaderLocked(n.id == id)
	}
}

// Batches are the batches in the log.
func (s *Store) Batches() []*metalog.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

func (s *Store) endLocked() int64 {
	if len(s.batches) == 0 {
		return 0
	}
	return s.batches[len(s.batches)-1].EndOffset()
}

func (s *Store) signalLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Node is one controller's view; it is a metalog.Log.
type Node struct {
	store      *Store
	id         int32
	leadership chan bool
	failed     chan error
	closed     chan struct{}
	// leader and contact are guarded by the store's lock.
	leader  bool
	contact bool
}

var _ metalog.Log = (*Node)(nil)

func (n *Node) setLeaderLocked(leader bool) {
	n.leader = leader
	select {
	case <-n.leadership:
	default:
	}
	n.leadership <- leader
}

// SetContact plays a loss of contact with the quorum, or its end.
func (n *Node) SetContact(contact bool) {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	n.contact = contact
}

// ClusterID gives the id, which the first proposal settles.
func (n *Node) ClusterID(_ context.Context, proposed string) (string, error) {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	if n.store.clusterID == "" {
		n.store.clusterID = proposed
	}
	return n.store.clusterID, nil
}

// Leadership tells who was elected.
func (n *Node) Leadership() <-chan bool { return n.leadership }

// InContact is what SetContact said.
func (n *Node) InContact() bool {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	return n.contact
}

// Failed never tells anything.
func (n *Node) Failed() <-chan error { return n.failed }

// Close ends all Follows and forgets the node.
func (n *Node) Close(context.Context) error {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	if n.store.nodes[n.id] == n {
		delete(n.store.nodes, n.id)
		close(n.closed)
	}
	return nil
}

// Voters are the nodes.
func (n *Node) Voters(context.Context) ([]metalog.Voter, error) {
	n.store.mu.Lock()
	defer n.store.mu.Unlock()
	var voters []metalog.Voter
	for id, other := range n.store.nodes {
		voters = append(voters, metalog.Voter{ID: id, Leader: other.leader})
	}
	sort.Slice(voters, func(i, j int) bool { return voters[i].ID < voters[j].ID })
	return voters, nil
}

// Members are none: the nodes of a store are fixed.
func (n *Node) Members(context.Context, int32, uuid.UUID) ([]metalog.Member, error) { return nil, nil }

// AddVoter refuses.
func (n *Node) AddVoter(context.Context, metalog.NewVoter) error { return metalog.ErrStaticVoters }

// RemoveVoter refuses.
func (n *Node) RemoveVoter(context.Context, int32, uuid.UUID) error { return metalog.ErrStaticVoters }

// Claim fences all earlier claims.
func (n *Node) Claim(_ context.Context, address string) (metalog.Term, error) {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := s.nextFaultLocked()
	if fault == LostRequest {
		return nil, metalog.ErrUnknown
	}
	holder := metalog.Holder{Epoch: 1, ID: n.id, Address: address}
	if s.holder != nil {
		holder.Epoch = s.holder.Epoch + 1
	}
	s.holder = &holder
	s.signalLocked()
	if fault == LostAnswer {
		return nil, metalog.ErrUnknown
	}
	return &term{store: s, epoch: holder.Epoch, start: s.endLocked(), next: s.endLocked()}, nil
}

type term struct {
	store *Store
	epoch int32
	start int64
	// next is where the next append goes; -1 after an error.
	next int64
}

func (t *term) Epoch() int32     { return t.epoch }
func (t *term) EndOffset() int64 { return t.start }

func (t *term) Append(_ context.Context, b metalog.Batch) error {
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.next < 0 {
		return fmt.Errorf("append after an error: %w", metalog.ErrFenced)
	}
	if b.BaseOffset != t.next || b.Epoch != t.epoch || len(b.Records) == 0 {
		return fmt.Errorf("batch at offset %d of epoch %d with %d records does not fit offset %d of epoch %d",
			b.BaseOffset, b.Epoch, len(b.Records), t.next, t.epoch)
	}
	t.next = -1
	fault := s.nextFaultLocked()
	if fault == LostRequest {
		return metalog.ErrUnknown
	}
	if s.holder.Epoch != t.epoch || s.endLocked() != b.BaseOffset {
		return metalog.ErrFenced
	}
	s.batches = append(s.batches, &b)
	s.signalLocked()
	if fault == LostAnswer {
		return metalog.ErrUnknown
	}
	t.next = b.EndOffset()
	return nil
}

func (t *term) PutSnapshot(_ context.Context, info metalog.SnapshotInfo, records iter.Seq[[]byte]) error {
	copied := slices.Collect(records)
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder.Epoch != t.epoch {
		return metalog.ErrFenced
	}
	s.snapshots = append(s.snapshots, snapshot{info, copied})
	if len(s.snapshots) < 2 {
		return nil
	}
	s.snapshots = slices.Clone(s.snapshots[len(s.snapshots)-2:])
	// The newest batch stays, so that the end of the log is known.
	for len(s.batches) > 1 && s.batches[0].EndOffset() <= s.snapshots[0].info.EndOffset {
		s.batches = s.batches[1:]
	}
	return nil
}

// Snapshot opens the last one.
func (n *Node) Snapshot(context.Context) (metalog.Snapshot, error) {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.snapshots) == 0 {
		return metalog.Snapshot{}, metalog.ErrNoSnapshot
	}
	last := s.snapshots[len(s.snapshots)-1]
	return metalog.Snapshot{SnapshotInfo: last.info, Records: func(yield func([]byte, error) bool) {
		for _, r := range last.records {
			if !yield(r, nil) {
				return
			}
		}
	}}, nil
}

// Follow gives the holder, the batches and what comes.
func (n *Node) Follow(ctx context.Context, from int64) iter.Seq2[metalog.Event, error] {
	return func(yield func(metalog.Event, error) bool) {
		var epoch int32
		for {
			events, changed, err := n.after(from, epoch)
			if err != nil {
				yield(metalog.Event{}, err)
				return
			}
			for _, e := range events {
				if e.Holder != nil {
					epoch = e.Holder.Epoch
				} else {
					from = e.Batch.EndOffset()
				}
				if !yield(e, nil) {
					return
				}
			}
			if len(events) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				yield(metalog.Event{}, ctx.Err())
				return
			case <-n.closed:
				yield(metalog.Event{}, metalog.ErrClosed)
				return
			}
		}
	}
}

// after gives the events since an offset and a claim, and what is closed when there are more.
func (n *Node) after(from int64, epoch int32) ([]metalog.Event, <-chan struct{}, error) {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []metalog.Event
	if s.holder != nil && s.holder.Epoch > epoch {
		holder := *s.holder
		events = append(events, metalog.Event{Holder: &holder})
	}
	if len(s.batches) > 0 && from < s.batches[0].BaseOffset {
		return nil, nil, &metalog.TruncatedError{Start: s.batches[0].BaseOffset}
	}
	if from > s.endLocked() {
		return nil, nil, fmt.Errorf("follow from offset %d, but the log ends at %d", from, s.endLocked())
	}
	for _, b := range s.batches {
		if b.BaseOffset >= from {
			events = append(events, metalog.Event{Batch: b})
		}
	}
	return events, s.changed, nil
}
