package controller

import (
	"context"
	"time"

	controllerv1 "chancery/proto/controller/v1"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/metarecord"
)

const (
	// leaderWait bounds how long an answer waits for the leaders of new partitions: longer than a live node needs, and
	// not so long that one that hangs holds everybody up.
	leaderWait = 5 * time.Second
	// snapshotTimeout bounds one attempt to store a snapshot.
	snapshotTimeout = time.Minute
	// maxFencesAtOnce is how many members are fenced before other work has its turn.
	maxFencesAtOnce = 100
)

// periodic does what time brings, and says when to look again.
func (t *activeTerm) periodic(now time.Time) time.Duration {
	c := t.c
	if c.manager.ShardsChanged() {
		t.run(nil, func(m *control.Manager) (control.Decision, error) { return m.AssignShards(), nil })
	}
	expiry := c.manager.NextExpiry()
	if !expiry.IsZero() && !expiry.After(now) || !now.Before(t.nextSweep) {
		t.sweep()
		t.nextSweep = now.Add(tick)
		expiry = c.manager.NextExpiry()
	}
	t.elections(now)
	next := t.nextSweep
	if !expiry.IsZero() && expiry.Before(next) {
		next = expiry
	}
	return max(next.Sub(now), 0) + time.Millisecond
}

// sweep fences members that are silent, one after the other.
func (t *activeTerm) sweep() {
	for range maxFencesAtOnce {
		found := false
		t.run(nil, func(m *control.Manager) (d control.Decision, err error) {
			d, found = m.FenceSilent()
			return d, nil
		})
		if !found {
			return
		}
		t.c.Metrics.TimedOutMembers.Add(1)
	}
}

// elections moves leaders where time has come for that.
func (t *activeTerm) elections(now time.Time) {
	due := func(next *time.Time, interval time.Duration, elect func(*control.Manager) (control.Decision, bool)) {
		if interval <= 0 || now.Before(*next) {
			return
		}
		*next = now.Add(interval)
		t.run(nil, func(m *control.Manager) (control.Decision, error) {
			d, more := elect(m)
			if more {
				*next = now
			}
			return d, nil
		})
	}
	due(&t.nextBalance, t.c.BalanceInterval, (*control.Manager).BalanceLeaders)
	due(&t.nextUnclean, t.c.UncleanInterval, (*control.Manager).ElectUncleanLeaders)
}

// deliver gives an answer out; one about new partitions first waits until their leaders serve.
func (c *Controller) deliver(a parkedAnswer) {
	if len(a.leaders) == 0 || a.err != nil {
		a.op.finish(a.answer, a.err)
		return
	}
	c.spawn(func(ctx context.Context) {
		limit := time.Now().Add(leaderWait)
		if a.op.deadline.Before(limit) {
			limit = a.op.deadline
		}
		ctx, cancel := context.WithDeadline(ctx, limit)
		defer cancel()
		err := c.Acks.Await(ctx, func() <-chan struct{} { return c.Feed.State().Changed }, func() bool {
			return c.leadersServe(a.leaders, a.answer.Offset)
		})
		if err != nil {
			c.Logger.Warn("leaders of new partitions do not serve yet", "nodes", a.leaders, "offset", a.answer.Offset)
		}
		a.op.finish(a.answer, nil)
	})
}

// leadersServe says whether nodes have applied the log up to an offset. Those that are fenced lead nothing any more.
func (c *Controller) leadersServe(nodes []int32, offset int64) bool {
	image := c.Feed.Image()
	for _, n := range nodes {
		b := image.Broker(n)
		if b == nil || b.Fenced {
			continue
		}
		ack, _ := c.Acks.Get(feed.Follower{Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, ID: n})
		if ack.Epoch != b.Epoch || ack.Offset < offset {
			return false
		}
	}
	return true
}

// maybeSnapshot stores a snapshot when enough log, or enough time with changes, has passed since the last one.
func (t *activeTerm) maybeSnapshot() {
	c := t.c
	grown := c.Feed.GrownBytes()
	due := grown >= c.SnapshotBytes || grown > 0 && time.Since(t.lastSnapshot) >= c.SnapshotInterval
	if t.snapshotting || !due {
		return
	}
	t.snapshotting, t.lastSnapshot = true, time.Now()
	image := c.Feed.Image()
	c.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
		defer cancel()
		begin := time.Now()
		info := metalog.SnapshotInfo{EndOffset: image.Offset() + 1, Epoch: image.Epoch()}
		err := t.term.PutSnapshot(ctx, info, func(yield func([]byte) bool) {
			for r := range image.Records() {
				if !yield(metarecord.Encode(r)) {
					return
				}
			}
		})
		if err == nil {
			c.Feed.Snapshotted(grown)
			c.Logger.Info("stored a snapshot of the metadata", "offset", image.Offset(), "took", time.Since(begin))
		}
		t.snapshotDone <- err
	})
}

func (t *activeTerm) snapshotted(err error) {
	t.snapshotting = false
	if err != nil {
		t.c.Logger.Warn("storing a snapshot of the metadata", "error", err)
	}
}
