package fetcher

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// minBackoff is the pause after a first failure; it doubles with each further one.
const minBackoff = 20 * time.Millisecond

// worker copies some replicas from one leader, with one fetch at a time. It has a goroutine while it has replicas.
type worker struct {
	set    *Set
	config *Config
	leader int32

	// mu guards the partitions. Replicas are never called while it is held, but for what does not wait.
	mu    sync.Mutex
	parts map[replica.Key]*part
	// due are the partitions that the leader is to be told of with the next fetch, or when their pause is over; forgotten
	// those that it is to forget.
	due       []*part
	forgotten []storage.PartitionKey
	running   bool
	// interrupt ends the wait of the fetch under way, or the pause; nil when there is neither.
	interrupt context.CancelFunc

	// session is the one with the leader; an epoch of 0 begins it anew. failures counts fetches in a row that brought nothing at
	// all. Both are run's.
	session  storage.FetchSession
	failures int
}

// part is a replica that is being copied.
type part struct {
	replica     *replica.Replica
	leaderEpoch int32
	// position is what the leader was told last, in the present session if sent is set. It is run's.
	position storage.FetchPartition
	// leaderHigh is the leader's high watermark as of the last answer about this partition.
	leaderHigh atomic.Int64

	// The worker's mutex guards what follows. queued says that it is among those that are due.
	sent, queued, removed bool
	// notBefore is when to ask again after failures; zero for now.
	notBefore time.Time
	failures  int
}

func newWorker(s *Set, leader int32) *worker {
	return &worker{
		set: s, config: &s.config, leader: leader, parts: map[replica.Key]*part{},
		session: storage.FetchSession{ID: rand.Uint64() | 1},
	}
}

// add begins to copy a replica. The fetch under way is cut short: without that the newcomer would have to wait until the others
// have news.
func (w *worker) add(r *replica.Replica, epoch int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &part{replica: r, leaderEpoch: epoch}
	p.leaderHigh.Store(math.MaxInt64) // nobody knows yet how far it is behind
	w.parts[r.Key()] = p
	w.queue(p)
	if w.running {
		w.wake()
		return
	}
	w.running = true
	w.set.done.Go(w.run)
}

func (w *worker) remove(k replica.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[k]
	if p == nil {
		return
	}
	delete(w.parts, k)
	p.removed = true
	if p.sent {
		w.forgotten = append(w.forgotten, storage.PartitionKey{TopicID: k.TopicID, Partition: k.Partition})
	}
	if len(w.parts) == 0 {
		w.wake()
	}
}

// touch says that a replica has another position than the leader was told, though nothing was copied.
func (w *worker) touch(k replica.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.parts[k]; p != nil && p.sent {
		w.queue(p)
	}
}

// all gives the replicas that are being copied.
func (w *worker) all() []*part {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*part, 0, len(w.parts))
	for _, p := range w.parts {
		out = append(out, p)
	}
	return out
}

// queue makes a partition due. The caller holds mu.
func (w *worker) queue(p *part) {
	if !p.queued && !p.removed {
		p.queued = true
		w.due = append(w.due, p)
	}
}

func (w *worker) wake() {
	if w.interrupt != nil {
		w.interrupt()
	}
}

// run copies until there is nothing left to copy, or the set is closed.
func (w *worker) run() {
	for {
		ctx, cancel := context.WithCancel(w.set.ctx)
		req, wait, ok := w.build(cancel)
		switch {
		case !ok:
			cancel()
			return
		case req == nil:
			pause(ctx, wait)
		default:
			w.fetch(ctx, req)
		}
		cancel()
	}
}

// pause waits until the time is over or the context ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// build makes the next request; without one it says how long until there may be something to ask for. ok is false when there
// is nothing left to copy.
func (w *worker) build(interrupt context.CancelFunc) (req *storage.FetchRequest, wait time.Duration, ok bool) {
	told, forgotten, wait, watched, ok := w.take(interrupt)
	if !ok || !watched {
		return nil, wait, ok
	}
	c := w.config
	session := w.session
	session.Forgotten = forgotten
	req = &storage.FetchRequest{
		ReplicaID: c.Self, ReplicaEpoch: c.Epoch(),
		MaxWaitMs: int32(min(c.MaxWait, wait).Milliseconds()), MinBytes: int32(c.MinBytes), MaxBytes: int32(c.ResponseMaxBytes),
		MetadataOffset: c.MetadataOffset(),
		Session:        &session,
		Partitions:     make([]storage.FetchPartition, len(told)),
	}
	for i, p := range told {
		p.position = p.replica.Position(p.leaderEpoch, int32(c.PartitionMaxBytes))
		req.Partitions[i] = p.position
	}
	return req, 0, true
}

// take gives the partitions to tell the leader of now, and those to be forgotten. wait is when further ones are due; watched says
// whether the leader watches any partition for this worker.
func (w *worker) take(interrupt context.CancelFunc) (told []*part, forgotten []storage.PartitionKey, wait time.Duration, watched, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.parts) == 0 || w.set.ctx.Err() != nil {
		w.running, w.interrupt, w.due, w.forgotten = false, nil, nil, nil
		w.session.Epoch = 0
		return nil, nil, 0, false, false
	}
	w.interrupt = interrupt
	if w.session.Epoch == 0 {
		w.forgotten = nil
		for _, p := range w.parts {
			p.sent = false
			w.queue(p)
		}
	}
	now := time.Now()
	wait = max(w.config.MaxWait, w.config.Backoff)
	kept := w.due[:0]
	for _, p := range w.due {
		if p.removed {
			continue
		}
		if d := max(p.notBefore.Sub(now), w.throttled(p, now)); d > 0 {
			wait = min(wait, d+time.Millisecond)
			kept = append(kept, p)
			continue
		}
		p.queued, p.sent = false, true
		told = append(told, p)
	}
	clear(w.due[len(kept):])
	w.due = kept
	for _, k := range w.forgotten {
		// One that has come back since is told anew instead.
		if w.parts[replica.Key{TopicID: k.TopicID, Partition: k.Partition}] == nil {
			forgotten = append(forgotten, k)
		}
	}
	w.forgotten = nil
	return told, forgotten, wait, len(kept) < len(w.parts), true
}

// throttled is how long a partition may not be copied, because the quota of followers is used up and the partition is one of
// those that it is for. Those in sync are copied all the same: they would fall out of the ISR.
func (w *worker) throttled(p *part, now time.Time) time.Duration {
	if _, ok := p.replica.Throttled(); !ok || p.replica.View().LogEnd >= p.leaderHigh.Load() {
		return 0
	}
	return w.config.Quota.Wait(now)
}
