package fetcher

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// minBackoff is the pause after a first failure; it doubles with each further one.
const minBackoff = 20 * time.Millisecond

// The positions of ListOffsets that a follower asks for.
const (
	latest   int64 = -1
	earliest int64 = -2
)

// build makes the next request; without one it says how long until there may be something to ask for. ok is false when
// the lane has ended.
func (l *lane) build(interrupt context.CancelFunc) (req *storage.FetchRequest, parts []*part, wait time.Duration, ok bool) {
	c := l.worker.config
	parts, wait, all, ok := l.due(interrupt)
	if !ok || len(parts) == 0 {
		return nil, nil, wait, ok
	}
	req = &storage.FetchRequest{
		ReplicaID: c.Self, ReplicaEpoch: c.Epoch(),
		MaxWaitMs: int32(c.MaxWait.Milliseconds()), MinBytes: int32(c.MinBytes), MaxBytes: int32(c.ResponseMaxBytes),
		MetadataOffset: c.MetadataOffset(),
		Partitions:     make([]storage.FetchPartition, len(parts)),
	}
	if !all {
		// Someone waits for a pause to end: the answer must not take longer.
		req.MaxWaitMs = min(req.MaxWaitMs, int32(wait.Milliseconds())+1)
	}
	for i, p := range parts {
		req.Partitions[i] = p.replica.Position(p.leaderEpoch, int32(c.PartitionMaxBytes))
	}
	return req, parts, 0, true
}

// due are the partitions to ask for now. When those are not all, wait is when the next one follows.
func (l *lane) due(interrupt context.CancelFunc) (parts []*part, wait time.Duration, all, ok bool) {
	w := l.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.size == 0 || w.set.ctx.Err() != nil {
		l.running, l.order, l.interrupt = false, nil, nil
		return nil, 0, false, false
	}
	l.interrupt = interrupt
	now := time.Now()
	wait = w.config.Backoff
	kept := l.order[:0]
	parts = make([]*part, 0, l.size)
	for _, p := range l.order {
		if p.lane != l {
			continue
		}
		kept = append(kept, p)
		if d := p.notBefore.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		if d := l.throttled(p, now); d > 0 {
			wait = min(wait, d)
			continue
		}
		parts = append(parts, p)
	}
	clear(l.order[len(kept):])
	l.order = kept
	return parts, wait, len(parts) == len(kept), true
}

// throttled is how long a partition may not be copied, because the quota of followers is used up and the partition is one of
// those that it is for. Those in sync are copied all the same: they would fall out of the ISR.
func (l *lane) throttled(p *part, now time.Time) time.Duration {
	if _, ok := p.replica.Throttled(); !ok || p.replica.View().LogEnd >= p.leaderHigh.Load() {
		return 0
	}
	return l.worker.config.Quota.Wait(now)
}

// fetch asks the leader and hands out what comes.
func (l *lane) fetch(ctx context.Context, req *storage.FetchRequest, parts []*part) {
	res, err := l.ask(ctx, req)
	if err != nil {
		l.failed(ctx, err, len(parts))
		return
	}
	l.failures = 0
	defer res.Release()
	var taken sync.WaitGroup
	var lost, tiered, brought []*part
	bytes := 0
	for i, p := range parts {
		r := &res.Partitions[i]
		switch r.Error {
		case errcode.None:
			if n := r.Records.Len(); n > 0 {
				brought, bytes = append(brought, p), bytes+n
				if _, throttled := p.replica.Throttled(); throttled {
					l.worker.config.Quota.Record(time.Now(), n)
				}
			}
			p.leaderHigh.Store(r.HighWatermark)
			if !p.replica.News(r) {
				l.taken(p, errcode.None)
				continue
			}
			taken.Add(1)
			p.replica.TakeCopied(&replica.Copied{
				LeaderEpoch: p.leaderEpoch, FetchOffset: req.Partitions[i].FetchOffset, Result: r,
				Done: func(code errcode.Code) {
					l.taken(p, code)
					taken.Done()
				},
			})
		case errcode.OffsetOutOfRange:
			lost = append(lost, p)
		case errcode.OffsetMovedToTieredStorage:
			tiered = append(tiered, p)
		default:
			l.delay(p, r.Error)
		}
	}
	taken.Wait()
	if len(brought) > 0 && bytes >= l.worker.config.ResponseMaxBytes/2 {
		l.rotate(brought[len(brought)-1])
	}
	l.news(brought)
	if len(lost) == 0 && len(tiered) == 0 {
		return
	}
	// The interrupt of the fetch is not meant for what follows; the end of the set is.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.worker.config.Timeout)
	defer cancel()
	defer context.AfterFunc(l.worker.set.ctx, cancel)() //nolint:contextcheck // two contexts end this: its own and the set's
	if len(lost) > 0 {
		l.rejoin(ctx, lost)
	}
	if len(tiered) > 0 {
		l.startLocally(ctx, tiered)
	}
}

// failed waits before the next try when a fetch as a whole came to nothing.
func (l *lane) failed(ctx context.Context, err error, partitions int) {
	if ctx.Err() != nil {
		return
	}
	w := l.worker
	l.failures++
	w.config.Metrics.ReplicaFetchErrors.Add(1)
	if l.failures == 1 {
		w.config.Logger.Warn("cannot copy from the leader", "leader", w.leader, "partitions", partitions, "error", err)
	}
	pause(ctx, backoff(l.failures, w.config.Backoff))
}

func (l *lane) ask(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	c := l.worker.config
	node, err := c.Nodes(l.worker.leader)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.MaxWait+c.Timeout)
	defer cancel()
	res, err := node.Fetch(ctx, req)
	if err == nil && len(res.Partitions) != len(req.Partitions) {
		res.Release()
		return nil, errcode.UnknownServerError.Errorf("the leader answered %d of %d partitions", len(res.Partitions), len(req.Partitions))
	}
	return res, err
}

// delay keeps a partition out of the next fetches.
func (l *lane) delay(p *part, code errcode.Code) {
	w := l.worker
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

// taken takes in what the replica made of the leader's answer.
func (l *lane) taken(p *part, code errcode.Code) {
	if code != errcode.None {
		l.delay(p, code)
		return
	}
	if p.failures == 0 {
		return
	}
	l.worker.mu.Lock()
	defer l.worker.mu.Unlock()
	p.failures, p.notBefore = 0, time.Time{}
}

func backoff(failures int, longest time.Duration) time.Duration {
	d := minBackoff << min(failures-1, 10)
	d = min(d, max(longest, minBackoff))
	return d/2 + rand.N(d/2+1)
}

// rotate lets the partitions that were served wait until those have been asked that the answer had no room for: they all
// stand behind the last one that brought something.
func (l *lane) rotate(last *part) {
	l.worker.mu.Lock()
	defer l.worker.mu.Unlock()
	at := slices.Index(l.order, last) + 1
	if at == 0 || at == len(l.order) {
		return
	}
	l.order = append(slices.Clone(l.order[at:]), l.order[:at]...)
}

// rejoin brings replicas back whose offset the leader does not have: they have to know where its log begins and ends.
func (l *lane) rejoin(ctx context.Context, lost []*part) {
	c := l.worker.config
	node, err := c.Nodes(l.worker.leader)
	if err != nil {
		l.delayAll(lost)
		return
	}
	ask := &storagev1.ListOffsetsRequest{ReplicaId: c.Self, MetadataOffset: c.MetadataOffset(), TimeoutMs: int32(c.Timeout.Milliseconds())}
	for _, p := range lost {
		k := p.replica.Key()
		for _, position := range []int64{earliest, latest} {
			ask.Partitions = append(ask.Partitions, &storagev1.ListOffsetsPartition{
				TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: p.leaderEpoch, Timestamp: position,
			})
		}
	}
	resp, err := node.ListOffsets(ctx, ask)
	if err != nil || len(resp.GetPartitions()) != len(ask.Partitions) {
		l.delayAll(lost)
		return
	}
	for i, p := range lost {
		start, end := resp.GetPartitions()[2*i], resp.GetPartitions()[2*i+1]
		code := errcode.Code(start.GetErrorCode())
		if code == errcode.None {
			code = errcode.Code(end.GetErrorCode())
		}
		if code != errcode.None {
			l.delay(p, code)
			continue
		}
		p.replica.Rejoin(p.leaderEpoch, start.GetOffset(), end.GetOffset())
	}
}

// startLocally lets replicas go on where the leader's local log begins. The leader has all that they need to know of what is
// before that, in the remote tier.
func (l *lane) startLocally(ctx context.Context, tiered []*part) {
	c := l.worker.config
	node, err := c.Nodes(l.worker.leader)
	if err != nil {
		l.delayAll(tiered)
		return
	}
	ask := &storagev1.DescribeTierRequest{MetadataOffset: c.MetadataOffset()}
	for _, p := range tiered {
		k := p.replica.Key()
		ask.Partitions = append(ask.Partitions, &storagev1.DescribeTierPartition{
			TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: p.leaderEpoch, FromOffset: math.MaxInt64, WithProducers: true,
		})
	}
	resp, err := node.DescribeTier(ctx, ask)
	if err != nil || len(resp.GetPartitions()) != len(tiered) {
		l.delayAll(tiered)
		return
	}
	for i, p := range tiered {
		d := resp.GetPartitions()[i]
		if code := errcode.Code(d.GetErrorCode()); code != errcode.None {
			l.delay(p, code)
			continue
		}
		p.replica.StartLocally(p.leaderEpoch, d)
	}
}

func (l *lane) delayAll(parts []*part) {
	for _, p := range parts {
		l.delay(p, errcode.NetworkException)
	}
}
