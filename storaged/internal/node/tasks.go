package node

import (
	"context"
	"maps"
	"sync"
	"time"

	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
)

// waitingInterval is how often records that wait for followers are looked at, as often as a follower of Kafka's fetches
// (replica.fetch.wait.max.ms).
const waitingInterval = 500 * time.Millisecond

// startTasks starts what is done from time to time.
func (n *Node) startTasks(ctx context.Context) {
	config := n.o.Static
	// A follower leaves the ISR at most half as much later than it should.
	n.every(ctx, max(time.Millisecond, config.Duration("replica.lag.time.max.ms")/2), n.checkISR)
	n.every(ctx, waitingInterval, n.checkWaiting)
	highWatermarks := &checkpointWriter{node: n}
	n.every(ctx, config.Duration("replica.high.watermark.checkpoint.interval.ms"), highWatermarks.highWatermarks)
	n.every(ctx, config.Duration("log.flush.offset.checkpoint.interval.ms"), n.recoveryPoints.recoveryPoints)
	logStarts := &checkpointWriter{node: n}
	n.every(ctx, config.Duration("log.flush.start.offset.checkpoint.interval.ms"), logStarts.logStarts)
	n.every(ctx, config.Duration("log.flush.offset.checkpoint.interval.ms"), n.checkpoints.cleanerOffsets)
	n.every(ctx, config.Duration("log.retention.check.interval.ms"), n.retain)
	n.every(ctx, config.Duration("producer.id.expiration.check.interval.ms"), n.expireProducers)
	n.every(ctx, config.Duration("remote.log.manager.task.interval.ms"), n.retainTiered)
	n.every(ctx, config.Duration("log.flush.scheduler.interval.ms"), n.flushDue)
	n.every(ctx, time.Second, n.releaseHeld)
	n.every(ctx, sessionIdle/2, n.sessions.expire)
	if config.Bool("log.cleaner.enable") {
		n.cleaning.Store(true)
		n.cleaner.Start(cleanerConfig(n.config.Load()))
	}
}

// every runs a task again and again, one run after the other.
func (n *Node) every(ctx context.Context, interval time.Duration, task func()) {
	if interval <= 0 {
		return
	}
	n.tasks.Go(func() {
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				task()
			case <-ctx.Done():
				return
			}
		}
	})
}

// checkISR looks for followers that lag, or that could be back in the ISR.
func (n *Node) checkISR() {
	for _, r := range n.all() {
		if v := r.View(); v.Leads() && (len(v.ISR) > 1 || v.UnderReplicated) {
			r.Tick()
		}
	}
}

// checkWaiting looks at what waits for followers: with time alone, one of them may have stopped to count.
func (n *Node) checkWaiting() {
	for _, r := range n.all() {
		if v := r.View(); v.Leads() && v.HighWatermark < v.LogEnd {
			r.Tick()
		}
	}
}

// retain deletes what has been kept long enough.
func (n *Node) retain() {
	now := time.Now()
	for _, r := range n.all() {
		select {
		case <-n.stopping:
			return
		default:
		}
		r.Retain(now)
	}
}

// retainTiered is retain for tiered logs alone, whose local part may be meant to be short.
func (n *Node) retainTiered() {
	now := time.Now()
	for _, r := range n.all() {
		if r.Tiered() {
			r.Retain(now)
		}
	}
}

// expireProducers forgets producers that have not written for producer.id.expiration.ms.
func (n *Node) expireProducers() {
	now, after := time.Now(), n.config.Load().Duration("producer.id.expiration.ms")
	for _, r := range n.all() {
		if l := r.Log(); l != nil {
			l.ExpireProducers(now, after)
		}
	}
}

// flushDue makes logs durable that have not been flushed for flush.ms.
func (n *Node) flushDue() {
	now := time.Now()
	for _, r := range n.all() {
		r.FlushDue(now)
	}
}

// checkpointWriter writes one kind of checkpoint, and only when it has changed.
type checkpointWriter struct {
	node *Node

	mu      sync.Mutex
	written map[*logdir.Dir]logdir.Offsets
}

func (w *checkpointWriter) highWatermarks() {
	w.write(logdir.HighWatermarkFile, func(r *replica.Replica) (int64, bool) { return r.View().HighWatermark, true })
}

func (w *checkpointWriter) recoveryPoints() {
	w.write(logdir.RecoveryPointFile, func(r *replica.Replica) (int64, bool) { return r.Log().RecoveryPoint(), true })
}

// logStarts leaves out logs whose start is known from their first segment.
func (w *checkpointWriter) logStarts() {
	w.write(logdir.LogStartFile, func(r *replica.Replica) (int64, bool) {
		start, segments := r.Log().LogStartOffset(), r.Log().Segments()
		return start, len(segments) == 0 || start != segments[0].BaseOffset
	})
}

func (w *checkpointWriter) write(file string, offset func(*replica.Replica) (int64, bool)) {
	if !w.node.opened.Load() {
		return // What is on disk is about replicas that are still to be opened.
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[*logdir.Dir]logdir.Offsets{}
	for _, d := range w.node.o.Dirs.Online() {
		found[d] = logdir.Offsets{}
	}
	for _, r := range w.node.all() {
		offsets := found[r.Dir()]
		if offsets == nil || r.Log() == nil {
			continue
		}
		if o, ok := offset(r); ok {
			offsets[logdir.Replica{Topic: r.Topic(), Partition: r.Key().Partition}] = o
		}
	}
	if w.written == nil {
		w.written = map[*logdir.Dir]logdir.Offsets{}
	}
	for d, offsets := range found {
		if old, ok := w.written[d]; ok && maps.Equal(old, offsets) {
			// A directory that has gone away is noticed here, also by a node without work.
			if err := d.Check(); err != nil {
				w.node.LogFailed(d, err)
			}
			continue
		}
		if err := d.Write(file, offsets); err != nil {
			w.node.LogFailed(d, err)
			continue
		}
		w.written[d] = offsets
	}
}

// checkpointHighWatermarks and checkpointLogs write everything, at the end.
func (n *Node) checkpointHighWatermarks() { (&checkpointWriter{node: n}).highWatermarks() }

func (n *Node) checkpointLogs() {
	(&checkpointWriter{node: n}).recoveryPoints()
	(&checkpointWriter{node: n}).logStarts()
	n.checkpoints.cleanerOffsets()
}
