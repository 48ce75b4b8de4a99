// Package fetcher copies from leaders to the followers on this node.
//
// It owns who copies what from where, and when to try again after a failure. It must never change a log: what a fetch brings
// goes to the replica, which knows whether it still wants it.
//
// # Sessions
//
// A worker tells the leader of a partition's position once, and again when it has changed; the leader remembers the rest. So a
// fetch, which waits at the leader until there is news, costs what has changed, however many partitions are quiet.
package fetcher

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"chancery/services/storage"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
	"chancery/storaged/internal/throttle"
)

// Config is how a node copies.
type Config struct {
	Self int32
	// Epoch is the node's broker epoch, which leaders check; -1 while it has none.
	Epoch func() int64
	// Nodes gives the leaders.
	Nodes func(id int32) (storage.Node, error)
	// BehindRemote is follower.fetch.last.tiered.offset.enable: new replicas of tiered partitions begin behind what is remote.
	BehindRemote func() bool
	// MetadataOffset is that of the node's newest image.
	MetadataOffset func() int64
	// Fetchers is how many fetches run at a time from one leader (num.replica.fetchers).
	Fetchers int
	// MaxWait, MinBytes, ResponseMaxBytes and PartitionMaxBytes are replica.fetch.wait.max.ms and so on.
	MaxWait           time.Duration
	MinBytes          int
	ResponseMaxBytes  int
	PartitionMaxBytes int
	// Backoff is the longest pause after a failure (replica.fetch.backoff.ms).
	Backoff time.Duration
	// Timeout bounds a fetch beyond MaxWait (replica.socket.timeout.ms).
	Timeout time.Duration
	// Quota bounds the copying of the partitions whose topics' configs name them (follower.replication.throttled.rate).
	Quota   *throttle.Quota
	Metrics *replica.Metrics
	Logger  *slog.Logger
}

// Set is all the fetchers of a node. Its methods may be called from any goroutine and do not wait.
type Set struct {
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	// fetchers is the present number of workers for each leader.
	fetchers int
	workers  map[workerID]*worker
	// placed says where a replica's copying is done.
	placed map[replica.Key]*worker
}

type workerID struct {
	leader int32
	index  int
}

// New makes a set without work.
func New(c Config) *Set {
	ctx, cancel := context.WithCancel(context.Background())
	return &Set{config: c, ctx: ctx, cancel: cancel, fetchers: c.Fetchers, workers: map[workerID]*worker{}, placed: map[replica.Key]*worker{}}
}

// Start begins to copy a replica from a leader, in place of what it copied from before.
func (s *Set) Start(r *replica.Replica, from partition.FetchFrom) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.startLocked(r, from)
}

func (s *Set) startLocked(r *replica.Replica, from partition.FetchFrom) {
	s.removeLocked(r.Key())
	id := workerID{leader: from.Leader, index: spread(r.Key(), s.fetchers)}
	w := s.workers[id]
	if w == nil {
		w = newWorker(s, from.Leader)
		s.workers[id] = w
	}
	w.add(r, from.LeaderEpoch)
	s.placed[r.Key()] = w
}

// spread chooses one of n fetchers for a replica.
func spread(k replica.Key, n int) int {
	h := uint32(k.Partition)
	for _, b := range k.TopicID {
		h = h*31 + uint32(b)
	}
	return int(h % uint32(max(1, n)))
}

// Reconfigure changes how many workers there are for each leader.
func (s *Set) Reconfigure(fetchers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || fetchers == s.fetchers {
		return
	}
	s.fetchers = fetchers
	for id, w := range s.workers {
		for _, p := range w.all() {
			if id.index != spread(p.replica.Key(), fetchers) {
				s.startLocked(p.replica, partition.FetchFrom{Leader: id.leader, LeaderEpoch: p.leaderEpoch})
			}
		}
	}
}

// Touch says that a replica has another position than its leader was told, though nothing was copied: its log begins later.
func (s *Set) Touch(k replica.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.placed[k]; w != nil {
		w.touch(k)
	}
}

// Stop ends the copying of a replica. What is on its way is still offered to it.
func (s *Set) Stop(k replica.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(k)
}

func (s *Set) removeLocked(k replica.Key) {
	if w := s.placed[k]; w != nil {
		w.remove(k)
		delete(s.placed, k)
	}
}

// Close ends all copying and waits for it.
func (s *Set) Close() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
}
