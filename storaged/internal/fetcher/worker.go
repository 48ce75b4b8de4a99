package fetcher

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// worker copies some replicas from one leader. It ends when it has none left.
type worker struct {
	config *Config
	leader int32
	// failures counts fetches in a row that brought nothing at all; run's.
	failures int

	mu    sync.Mutex
	ended bool
	parts map[replica.Key]*part
	// order is in which order partitions are asked for. Those that brought something go to the end, so that a few busy ones
	// cannot fill every answer.
	order []*part
	// interrupt ends the wait of the fetch under way, or the pause; nil when there is neither.
	interrupt context.CancelFunc
}

// part is a replica that is being copied.
type part struct {
	replica     *replica.Replica
	leaderEpoch int32
	// notBefore is when to ask again after failures; zero for now.
	notBefore time.Time
	failures  int
	removed   bool
}

func newWorker(c *Config, leader int32) *worker {
	return &worker{config: c, leader: leader, parts: map[replica.Key]*part{}}
}

// add gives the worker a replica; false when the worker has ended.
func (w *worker) add(r *replica.Replica, epoch int32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	p := &part{replica: r, leaderEpoch: epoch}
	w.parts[r.Key()] = p
	w.order = append(w.order, p)
	// Without this the replica would have to wait until the other ones have news.
	w.interruptLocked()
	return true
}

func (w *worker) remove(k replica.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.parts[k]
	if p == nil {
		return
	}
	p.removed = true
	delete(w.parts, k)
	if len(w.parts) == 0 {
		w.interruptLocked()
	}
}

func (w *worker) interruptLocked() {
	if w.interrupt != nil {
		w.interrupt()
	}
}

// run copies until there is nothing left to copy, or the context ends.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		fetchCtx, cancel := context.WithCancel(ctx)
		req, parts, wait, ok := w.build(cancel)
		switch {
		case !ok:
			cancel()
			return
		case req == nil:
			pause(fetchCtx, wait)
		default:
			w.fetch(fetchCtx, req, parts)
		}
		cancel()
	}
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
}

// build makes the next request; without one it says how long until there may be something to ask for. ok is false when
// the worker has ended.
func (w *worker) build(interrupt context.CancelFunc) (req *storage.FetchRequest, parts []*part, wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.parts) == 0 {
		w.ended = true
		return nil, nil, 0, false
	}
	w.interrupt = interrupt
	c := w.config
	now := time.Now()
	wait = c.Backoff
	kept := w.order[:0]
	for _, p := range w.order {
		if p.removed {
			continue
		}
		kept = append(kept, p)
		if d := p.notBefore.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		parts = append(parts, p)
	}
	clear(w.order[len(kept):])
	w.order = kept
	if len(parts) == 0 {
		return nil, nil, wait, true
	}
	req = &storage.FetchRequest{
		ReplicaID: c.Self, ReplicaEpoch: c.Epoch(),
		MaxWaitMs: int32(c.MaxWait.Milliseconds()), MinBytes: int32(c.MinBytes), MaxBytes: int32(c.ResponseMaxBytes),
		MetadataOffset: c.MetadataOffset(),
		Partitions:     make([]storage.FetchPartition, len(parts)),
	}
	if len(parts) < len(kept) {
		// Someone waits for a pause to end: the answer must not take longer.
		req.MaxWaitMs = min(req.MaxWaitMs, int32(wait.Milliseconds())+1)
	}
	for i, p := range parts {
		req.Partitions[i] = p.replica.Position(p.leaderEpoch, int32(c.PartitionMaxBytes))
	}
	return req, parts, 0, true
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

// fetch asks the leader and hands out what comes.
func (w *worker) fetch(ctx context.Context, req *storage.FetchRequest, parts []*part) {
	res, err := w.ask(ctx, req)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		w.failures++
		w.config.Metrics.ReplicaFetchErrors.Add(1)
		if w.failures == 1 {
			w.config.Logger.Warn("cannot copy from the leader", "leader", w.leader, "partitions", len(parts), "error", err)
		}
		pause(ctx, backoff(w.failures, w.config.Backoff))
		return
	}
	w.failures = 0
	defer res.Release()
	var taken sync.WaitGroup
	var lost []*part
	var last *part
	bytes := 0
	for i, p := range parts {
		r := &res.Partitions[i]
		if n := r.Records.Len(); n > 0 {
			last = p
			bytes += n
		}
		switch r.Error {
		case errcode.None:
			p.failures, p.notBefore = 0, time.Time{}
			taken.Add(1)
			p.replica.TakeCopied(&replica.Copied{
				LeaderEpoch: p.leaderEpoch, FetchOffset: req.Partitions[i].FetchOffset, Result: r, Done: taken.Done,
			})
		case errcode.OffsetOutOfRange:
			lost = append(lost, p)
		default:
			w.delay(p, r.Error)
		}
	}
	taken.Wait()
	if last != nil && bytes >= w.config.ResponseMaxBytes/2 {
		w.rotate(last)
	}
	w.rejoin(ctx, lost)
}

func (w *worker) ask(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	node, err := w.config.Nodes(w.leader)
	if err != nil {
		return nil, err
	}
	stuck := time.AfterFunc(w.config.MaxWait+w.config.Timeout, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.interruptLocked()
	})
	defer stuck.Stop()
	res, err := node.Fetch(ctx, req)
	if err == nil && len(res.Partitions) != len(req.Partitions) {
		res.Release()
		return nil, errcode.UnknownServerError.Errorf("the leader answered %d of %d partitions", len(res.Partitions), len(req.Partitions))
	}
	return res, err
}

// delay keeps a partition out of the next fetches.
func (w *worker) delay(p *part, code errcode.Code) {
	p.failures++
	p.notBefore = time.Now().Add(backoff(p.failures, w.config.Backoff))
	w.config.Metrics.ReplicaFetchErrors.Add(1)
	// The usual reason is that one of the two nodes has heard of a new leader first, which ends by itself.
	level := w.config.Logger.Debug
	if p.failures > 5 {
		level = w.config.Logger.Warn
	}
	level("cannot copy a partition", "partition", p.replica.String(), "leader", w.leader, "epoch", p.leaderEpoch, "error", code.Name())
}

func backoff(failures int, longest time.Duration) time.Duration {
	d := minBackoff << min(failures-1, 10)
	d = min(d, max(longest, minBackoff))
	return d/2 + rand.N(d/2+1)
}

// rotate lets the partitions that were served wait until those have been asked that the answer had no room for: they all
// stand behind the last one that brought something.
func (w *worker) rotate(last *part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.Index(w.order, last) + 1
	if at == 0 || at == len(w.order) {
		return
	}
	w.order = append(slices.Clone(w.order[at:]), w.order[:at]...)
}

// rejoin brings replicas back whose offset the leader does not have: they have to know where its log begins and ends.
func (w *worker) rejoin(ctx context.Context, lost []*part) {
	if len(lost) == 0 {
		return
	}
	node, err := w.config.Nodes(w.leader)
	if err != nil {
		w.delayAll(lost)
		return
	}
	ask := &storagev1.ListOffsetsRequest{ReplicaId: w.config.Self, MetadataOffset: w.config.MetadataOffset(), TimeoutMs: int32(w.config.Timeout.Milliseconds())}
	for _, p := range lost {
		k := p.replica.Key()
		for _, position := range []int64{earliest, latest} {
			ask.Partitions = append(ask.Partitions, &storagev1.ListOffsetsPartition{
				TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: p.leaderEpoch, Timestamp: position,
			})
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.config.Timeout)
	defer cancel()
	resp, err := node.ListOffsets(ctx, ask)
	if err != nil || len(resp.GetPartitions()) != len(ask.Partitions) {
		w.delayAll(lost)
		return
	}
	for i, p := range lost {
		start, end := resp.GetPartitions()[2*i], resp.GetPartitions()[2*i+1]
		if start.GetErrorCode() != 0 || end.GetErrorCode() != 0 {
			w.delay(p, errcode.Code(start.GetErrorCode()|end.GetErrorCode()))
			continue
		}
		p.replica.Rejoin(p.leaderEpoch, start.GetOffset(), end.GetOffset())
	}
}

// The positions of ListOffsets that a follower asks for.
const (
	latest   int64 = -1
	earliest int64 = -2
)

func (w *worker) delayAll(parts []*part) {
	for _, p := range parts {
		w.delay(p, errcode.NetworkException)
	}
}
