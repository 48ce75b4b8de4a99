package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

const (
	// appendTimeout bounds one append; after it the outcome is unknown and the log is claimed again.
	appendTimeout = 5 * time.Second
	// batchBytes is how much of what waits one append takes; a single request may bring more.
	batchBytes = 128 << 10
	// maxBatchBytes is where a request is split into several batches.
	maxBatchBytes = 512 << 10
	// maxQueuedBytes is where the loop takes no more requests until an append is done.
	maxQueuedBytes = 16 << 20
	// tick is the longest the loop sleeps.
	tick = time.Second
	// resolveTimeout bounds the wait for the truth about an append whose outcome is unknown.
	resolveTimeout = 10 * time.Second
)

// piece is a part of the log to come: the records of a request, or a part of them.
type piece struct {
	frames  [][]byte
	records []metarecord.Record
	bytes   int
	// alone says that the piece must begin a batch, closed that it must end one.
	alone, closed bool
	// parked are the answers that wait for this piece and for all before it.
	parked []parkedAnswer
}

// parkedAnswer is an answer that waits until it is durable.
type parkedAnswer struct {
	op      *operation
	answer  Answer
	err     error
	leaders []int32
}

// activeTerm is the time of one claim. It belongs to the loop.
type activeTerm struct {
	c    *Controller
	term metalog.Term
	// working is the loader behind the manager's image: what is durable and what waits to be.
	working *metadata.Loader
	queue   []*piece
	queued  int
	// flying are the pieces of the append under way, batch what it appends.
	flying  []*piece
	batch   metalog.Batch
	results chan error
	// next is the base offset of the next append. failure is how the last one failed.
	next    int64
	failure error

	snapshotting bool
	snapshotDone chan error
	lastSnapshot time.Time
	nextBalance  time.Time
	nextUnclean  time.Time
	nextSweep    time.Time
}

// runTerm claims the log and is the active controller until that fails or the context ends.
func (c *Controller) runTerm(ctx context.Context) error {
	t, err := c.claim(ctx)
	if err != nil {
		return err
	}
	if c.manager.Image().FeatureLevel("metadata.version") == 0 {
		t.run(nil, func(m *control.Manager) (control.Decision, error) { return m.Bootstrap(), nil })
	}
	t.startAppend()
	c.Logger.Info("this controller is active", "epoch", t.term.Epoch(), "offset", c.manager.Image().Offset())
	c.Metrics.Terms.Add(1)
	c.term.Store(t)
	err = t.loop(ctx)
	c.term.Store(nil)
	t.standDown()
	return err
}

// claim makes this controller the only one that appends, and brings the manager to the end of the log.
func (c *Controller) claim(ctx context.Context) (*activeTerm, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	term, err := c.Log.Claim(ctx, c.Address)
	if err != nil {
		return nil, err
	}
	state, err := c.Feed.Await(ctx, func(s feed.State) bool { return s.Loaded && s.Next >= term.EndOffset() })
	if err != nil {
		return nil, fmt.Errorf("catch up with the metadata log: %w", err)
	}
	if state.InTransaction {
		// Whoever began it cannot end it any more.
		reason := "Controller failover"
		b := metalog.Batch{BaseOffset: state.Next, Epoch: term.Epoch(), TimestampMs: time.Now().UnixMilli(),
			Records: metarecord.EncodeAll([]metarecord.Record{&metarecord.AbortTransactionRecord{Reason: &reason}})}
		if err := term.Append(ctx, b); err != nil {
			return nil, err
		}
		if state, err = c.Feed.Await(ctx, func(s feed.State) bool { return s.Next >= b.EndOffset() }); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	t := &activeTerm{
		c: c, term: term, working: metadata.NewLoader(state.Image), next: state.Next,
		results: make(chan error, 1), snapshotDone: make(chan error, 1), lastSnapshot: now,
		nextBalance: now.Add(c.BalanceInterval), nextUnclean: now.Add(c.UncleanInterval),
	}
	c.manager.Reset(state.Image, state.Next, now)
	return t, nil
}

// loop decides about requests and about what time brings.
func (t *activeTerm) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		requests := t.c.requests
		if t.queued > maxQueuedBytes {
			requests = nil
		}
		select {
		case op := <-requests:
			t.run(op, op.decide)
			t.drain()
		case err := <-t.results:
			if err := t.appended(err); err != nil {
				return err
			}
		case err := <-t.snapshotDone:
			t.snapshotted(err)
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Reset(t.periodic(time.Now()))
		t.startAppend()
	}
}

// drain decides about what has queued meanwhile, so that it goes out in one append.
func (t *activeTerm) drain() {
	for range queueDepth {
		select {
		case op := <-t.c.requests:
			t.run(op, op.decide)
			if t.queued > maxQueuedBytes {
				return
			}
		default:
			return
		}
	}
}

// run decides about one thing. A nil operation is one of our own, which nobody waits for.
func (t *activeTerm) run(op *operation, decide func(*control.Manager) (control.Decision, error)) {
	begin := time.Now()
	if op != nil {
		t.c.Metrics.QueueTime.Observe(begin.Sub(op.asked))
		t.c.Metrics.Operations.Add(1)
	}
	defer func() { t.c.Metrics.ProcessingTime.Observe(time.Since(begin)) }()
	d, err := t.decide(decide)
	if err == nil {
		err = t.accept(&d)
	}
	if err != nil {
		d = control.Decision{}
	}
	if op == nil {
		if err != nil {
			t.c.Logger.Error("a decision failed", "error", err)
		}
		return
	}
	answer := parkedAnswer{op: op, err: err, leaders: d.Leaders, answer: Answer{Reply: d.Reply, Offset: t.working.NextOffset() - 1}}
	t.park(answer)
}

// decide calls a decision and survives its faults: no request may end the leadership.
func (t *activeTerm) decide(decide func(*control.Manager) (control.Decision, error)) (d control.Decision, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			t.c.Metrics.FailedOperations.Add(1)
			t.c.Logger.Error("a decision broke off", "fault", fault)
			err = errcode.UnknownServerError.Wrap(fmt.Errorf("decision broke off: %v", fault))
		}
	}()
	t.c.manager.At(time.Now())
	return decide(t.c.manager)
}

// accept applies the records of a decision to the working image and queues them.
func (t *activeTerm) accept(d *control.Decision) error {
	if len(d.Records) == 0 {
		return nil
	}
	frames := metarecord.EncodeAll(d.Records)
	size := sizeOf(frames)
	if size > maxBatchBytes && d.Atomic {
		name := "Large operation"
		d.Records = append(append([]metarecord.Record{&metarecord.BeginTransactionRecord{Name: &name}}, d.Records...),
			&metarecord.EndTransactionRecord{})
		frames = metarecord.EncodeAll(d.Records)
	}
	base := t.working.NextOffset()
	if err := t.working.Add(base, t.term.Epoch(), d.Records); err != nil {
		// The image is as it was; only the loader has to begin anew.
		t.working = metadata.NewLoader(t.c.manager.Image())
		return errcode.UnknownServerError.Wrap(err)
	}
	t.c.Metrics.countElections(t.c.manager.Image(), d.Records)
	t.c.manager.Apply(t.working.Take(), t.working.NextOffset())
	transaction := size > maxBatchBytes && d.Atomic
	for start := 0; start < len(frames); {
		end, bytes := start, 0
		for end < len(frames) && (end == start || bytes+len(frames[end]) <= maxBatchBytes) {
			bytes += len(frames[end])
			end++
		}
		t.queue = append(t.queue, &piece{frames: frames[start:end], records: d.Records[start:end], bytes: bytes,
			alone: transaction, closed: transaction})
		t.queued += bytes
		start = end
	}
	return nil
}

func sizeOf(frames [][]byte) int {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	return size
}

// park keeps an answer until all that it rests on is durable; it goes out at once when everything is.
func (t *activeTerm) park(a parkedAnswer) {
	switch {
	case len(t.queue) > 0:
		last := t.queue[len(t.queue)-1]
		last.parked = append(last.parked, a)
	case len(t.flying) > 0:
		last := t.flying[len(t.flying)-1]
		last.parked = append(last.parked, a)
	default:
		t.c.deliver(a)
	}
}

// startAppend appends what has queued, if nothing is under way.
func (t *activeTerm) startAppend() {
	if len(t.flying) > 0 || len(t.queue) == 0 {
		return
	}
	n, bytes, frames := 0, 0, 0
	for n < len(t.queue) {
		p := t.queue[n]
		if n > 0 && (bytes+p.bytes > batchBytes || p.alone || t.queue[n-1].closed) {
			break
		}
		bytes += p.bytes
		frames += len(p.frames)
		n++
	}
	t.flying = t.queue[:n:n]
	t.queue = t.queue[n:]
	t.queued -= bytes
	b := metalog.Batch{BaseOffset: t.next, Epoch: t.term.Epoch(), TimestampMs: time.Now().UnixMilli(), Records: make([][]byte, 0, frames)}
	records := make([]metarecord.Record, 0, frames)
	for _, p := range t.flying {
		b.Records = append(b.Records, p.frames...)
		records = append(records, p.records...)
	}
	t.batch = b
	t.c.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, appendTimeout)
		defer cancel()
		err := t.term.Append(ctx, b)
		if err == nil {
			err = t.c.Feed.Offer(&b, records)
		}
		t.results <- err
	})
}

// appended takes the result of the append under way: on success the answers go out.
func (t *activeTerm) appended(err error) error {
	if err != nil {
		t.failure = err
		return err
	}
	t.next = t.batch.EndOffset()
	for _, p := range t.flying {
		for _, a := range p.parked {
			t.c.deliver(a)
		}
	}
	t.flying, t.batch = nil, metalog.Batch{}
	t.maybeSnapshot()
	return nil
}

// standDown ends a term: what was not appended is refused, and what may have been appended is told when the truth is known.
func (t *activeTerm) standDown() {
	for _, p := range t.queue {
		t.c.refuse(p.parked)
	}
	if len(t.flying) == 0 {
		return
	}
	t.c.spawn(func(ctx context.Context) {
		cause := t.failure
		if cause == nil {
			cause = <-t.results // The append is still under way.
		}
		t.c.resolve(ctx, t.term.Epoch(), t.batch.BaseOffset, t.flying, cause)
	})
}

// resolve answers for an append whose outcome the loop did not learn. A batch that is in the log before the next claim is
// durable; one that is not by then never will be.
func (c *Controller) resolve(ctx context.Context, epoch int32, base int64, flying []*piece, cause error) {
	var parked []parkedAnswer
	for _, p := range flying {
		parked = append(parked, p.parked...)
	}
	if cause == nil {
		for _, a := range parked {
			c.deliver(a)
		}
		return
	}
	if errors.Is(cause, metalog.ErrFenced) || errors.Is(cause, metalog.ErrNoSpace) {
		c.refuse(parked)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	state, err := c.Feed.Await(ctx, func(s feed.State) bool { return s.Holder.Epoch > epoch || s.Next > base })
	at, known := c.Feed.EpochAt(base)
	switch {
	case err == nil && known && at == epoch:
		for _, a := range parked {
			c.deliver(a)
		}
	case err == nil && (known || state.Next <= base):
		c.refuse(parked)
	default:
		for _, a := range parked {
			a.op.finish(Answer{}, errcode.RequestTimedOut.Wrap(cause))
		}
	}
}

// refuse answers what was certainly not done: another controller may do it.
func (c *Controller) refuse(parked []parkedAnswer) {
	for _, a := range parked {
		a.op.finish(Answer{}, c.notActive())
	}
}
