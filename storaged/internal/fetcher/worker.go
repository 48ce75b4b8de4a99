package fetcher

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"chancery/storaged/internal/replica"
)

const (
	// A busy partition counts as quiet after coolAfter without records. Partitions change lanes at most every coolEvery, and
	// only when there are more than fewPartitions, since below that a second fetch saves nothing.
	coolAfter     = 5 * time.Second
	coolEvery     = time.Second
	fewPartitions = 64
)

// worker copies some replicas from one leader.
type worker struct {
	set    *Set
	config *Config
	leader int32

	// mu guards the partitions and where they are. Replicas are never called while it is held.
	mu    sync.Mutex
	parts map[replica.Key]*part
	busy  lane
	quiet lane
}

// part is a replica that is being copied.
type part struct {
	replica     *replica.Replica
	leaderEpoch int32
	// lane is the one that asks for it; nil when it is not copied any more.
	lane *lane
	// notBefore is when to ask again after failures; zero for now.
	notBefore time.Time
	failures  int
	// leaderHigh is the leader's high watermark as of the last fetch.
	leaderHigh atomic.Int64
	// lastNews is when it brought records last, or was added.
	lastNews time.Time
}

func newWorker(s *Set, leader int32) *worker {
	w := &worker{set: s, config: &s.config, leader: leader, parts: map[replica.Key]*part{}}
	w.busy.worker, w.quiet.worker = w, w
	return w
}

func (w *worker) add(r *replica.Replica, epoch int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &part{replica: r, leaderEpoch: epoch, lastNews: time.Now()}
	p.leaderHigh.Store(math.MaxInt64) // nobody knows yet how far it is behind
	w.parts[r.Key()] = p
	w.busy.put(p)
}

func (w *worker) remove(k replica.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[k]
	if p == nil {
		return
	}
	delete(w.parts, k)
	p.lane.size--
	if p.lane.size == 0 {
		p.lane.wake()
	}
	p.lane = nil
}

// lane is one fetch that goes round: build a request, send it, hand out the answer. It has a goroutine while it has
// partitions. The worker's mutex guards its fields, but for failures.
type lane struct {
	worker *worker
	// order is in which order partitions are asked for; those that have left are still in it until the next request.
	// size counts those that have not.
	order   []*part
	size    int
	running bool
	// interrupt ends the wait of the fetch under way, or the pause; nil when there is neither.
	interrupt context.CancelFunc
	cooled    time.Time
	// failures counts fetches in a row that brought nothing at all; run's.
	failures int
}

// put gives the lane a partition. The fetch under way is cut short: without that the newcomer would have to wait until the
// others have news.
func (l *lane) put(p *part) {
	p.lane = l
	l.order = append(l.order, p)
	l.size++
	if l.running {
		l.wake()
		return
	}
	l.running = true
	l.worker.set.done.Go(l.run)
}

func (l *lane) wake() {
	if l.interrupt != nil {
		l.interrupt()
	}
}

// run copies until there is nothing left to copy, or the set is closed.
func (l *lane) run() {
	for {
		ctx, cancel := context.WithCancel(l.worker.set.ctx)
		req, parts, wait, ok := l.build(cancel)
		switch {
		case !ok:
			cancel()
			return
		case req == nil:
			pause(ctx, wait)
		default:
			l.fetch(ctx, req, parts)
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

// news takes in which partitions brought records, and lets partitions change lanes.
func (l *lane) news(brought []*part) {
	w := l.worker
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range brought {
		p.lastNews = now
		if p.lane == &w.quiet {
			w.move(p, &w.busy)
		}
	}
	if l != &w.busy || l.size <= fewPartitions || now.Sub(l.cooled) < coolEvery {
		return
	}
	l.cooled = now
	for _, p := range l.order {
		if p.lane == l && p.notBefore.IsZero() && now.Sub(p.lastNews) > coolAfter {
			w.move(p, &w.quiet)
		}
	}
}

func (w *worker) move(p *part, to *lane) {
	p.lane.size--
	to.put(p)
}
