package fetcher

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// round is the handing out of one answer.
type round struct {
	worker *worker
	taken  sync.WaitGroup
	// again are the partitions whose next position the leader waits for.
	again, lost, tiered []*part
}

// fetch asks the leader and hands out what comes.
func (w *worker) fetch(ctx context.Context, req *storage.FetchRequest) {
	res, err := w.ask(ctx, req)
	if err != nil {
		w.session.Epoch = 0
		w.failed(ctx, err)
		return
	}
	w.failures = 0
	w.session.Epoch++
	defer res.Release()
	r := round{worker: w}
	for i, p := range w.match(res) {
		if p != nil {
			r.hand(p, &res.Partitions[i])
		}
	}
	r.taken.Wait()
	w.mu.Lock()
	for _, p := range r.again {
		w.queue(p)
	}
	w.mu.Unlock()
	if len(r.lost) == 0 && len(r.tiered) == 0 {
		return
	}
	// The interrupt of the fetch is not meant for what follows; the end of the set is.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.config.Timeout)
	defer cancel()
	defer context.AfterFunc(w.set.ctx, cancel)() //nolint:contextcheck // two contexts end this: its own and the set's
	if len(r.lost) > 0 {
		w.rejoin(ctx, r.lost)
	}
	if len(r.tiered) > 0 {
		w.startLocally(ctx, r.tiered)
	}
}

// match finds the partitions that an answer is about; nil where it is about one that the leader does not know the present
// position of.
func (w *worker) match(res *storage.FetchResult) []*part {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*part, len(res.Partitions))
	for i := range res.Partitions {
		r := &res.Partitions[i]
		if p := w.parts[replica.Key{TopicID: r.TopicID, Partition: r.Partition}]; p != nil && p.sent {
			out[i] = p
		}
	}
	return out
}

// hand gives a partition what came for it.
func (r *round) hand(p *part, res *storage.FetchPartitionResult) {
	if res.ExpectsPosition(&p.position) {
		r.again = append(r.again, p)
	}
	switch res.Error {
	case errcode.None:
		if _, throttled := p.replica.Throttled(); throttled {
			r.worker.config.Quota.Record(time.Now(), res.Records.Len())
		}
		p.leaderHigh.Store(res.HighWatermark)
		if !p.replica.News(res) {
			r.worker.settled(p, errcode.None)
			return
		}
		r.taken.Add(1)
		p.replica.TakeCopied(&replica.Copied{
			LeaderEpoch: p.leaderEpoch, FetchOffset: p.position.FetchOffset, Result: res,
			Done: func(code errcode.Code) {
				r.worker.settled(p, code)
				r.taken.Done()
			},
		})
	case errcode.OffsetOutOfRange:
		r.lost = append(r.lost, p)
	case errcode.OffsetMovedToTieredStorage:
		r.tiered = append(r.tiered, p)
	default:
		r.worker.delay(p, res.Error)
	}
}

// failed waits before the next try when a fetch as a whole came to nothing.
func (w *worker) failed(ctx context.Context, err error) {
	if ctx.Err() != nil || errcode.Of(err) == errcode.FetchSessionIdNotFound {
		return
	}
	w.failures++
	w.config.Metrics.ReplicaFetchErrors.Add(1)
	if w.failures == 1 {
		w.mu.Lock()
		n := len(w.parts)
		w.mu.Unlock()
		w.config.Logger.Warn("cannot copy from the leader", "leader", w.leader, "partitions", n, "error", err)
	}
	pause(ctx, backoff(w.failures, w.config.Backoff))
}

func (w *worker) ask(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	c := w.config
	node, err := c.Nodes(w.leader)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.MaxWait+c.Timeout)
	defer cancel()
	return node.Fetch(ctx, req)
}

// delay keeps a partition out of the next fetches.
func (w *worker) delay(p *part, code errcode.Code) {
	w.mu.Lock()
	p.failures++
	p.notBefore = time.Now().Add(backoff(p.failures, w.config.Backoff))
	failures := p.failures
	w.mu.Unlock()
	w.config.Metrics.ReplicaFetchErrors.Add(1)
	// The usual reason is that one of the two nodes has heard of a new leader first, which ends by itself.
	log := w.config.Logger.Debug
	if failures > 5 {
		log = w.config.Logger.Warn
	}
	log("cannot copy a partition", "partition", p.replica.String(), "leader", w.leader, "epoch", p.leaderEpoch, "error", code.Name())
}

// settled takes in what the replica made of the leader's answer.
func (w *worker) settled(p *part, code errcode.Code) {
	if code != errcode.None {
		w.delay(p, code)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.failures, p.notBefore = 0, time.Time{}
}

func backoff(failures int, longest time.Duration) time.Duration {
	d := minBackoff << min(failures-1, 10)
	d = min(d, max(longest, minBackoff))
	return d/2 + rand.N(d/2+1)
}
