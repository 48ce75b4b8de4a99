// Package controller runs a controller: it keeps up with the metadata log and, while it leads, decides about requests one at a
// time, appends what follows from them and answers when that is durable.
//
// It owns the order of things: decide, apply to the working image, append, answer. It must never answer before the records
// behind the answer are durable, never append the same thing twice, and never let a request end its leadership.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/transport"
)

const (
	// retryPause is how long a failed step of following or claiming waits before the next attempt.
	retryPause = 50 * time.Millisecond
	// claimTimeout bounds one attempt to claim the log and to catch up with it.
	claimTimeout = 5 * time.Second
	// grace is how long what is under way may go on when the controller stops.
	grace = time.Second
	// queueDepth is how many requests may wait for the loop.
	queueDepth = 1024
)

// Options describe a controller.
type Options struct {
	ID int32
	// Address is where other services reach it.
	Address   string
	ClusterID string
	Log       metalog.Log
	Feed      *feed.Feed
	Acks      *feed.Acks
	Control   control.Settings

	SnapshotBytes    int64
	SnapshotInterval time.Duration
	// BalanceInterval and UncleanInterval are the periods of the two kinds of elections; 0 means never.
	BalanceInterval time.Duration
	UncleanInterval time.Duration
	Logger          *slog.Logger
}

// Controller is one controller; Run makes it work.
type Controller struct {
	Options
	Metrics  *Metrics
	manager  *control.Manager
	requests chan *operation
	// term is the present term while this controller is the active one and ready, else nil.
	term atomic.Pointer[activeTerm]
	// wait is for the goroutines of appends, answers and snapshots. Their context, work, outlives that of Run a little: what
	// is under way at the end may still come to its end.
	wait sync.WaitGroup
	work context.Context
}

// New makes a controller.
func New(o Options) *Controller {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	return &Controller{
		Options:  o,
		Metrics:  NewMetrics(),
		manager:  control.New(o.Control, random, uuid.Random, o.Logger),
		requests: make(chan *operation, queueDepth),
	}
}

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context) {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	c.work = work
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, stopWork) })()
	var loops sync.WaitGroup
	loops.Go(func() { c.follow(ctx) })
	loops.Go(func() { c.lead(ctx) })
	loops.Wait()
	c.wait.Wait()
}

// spawn runs something whose end the controller waits for when it stops.
func (c *Controller) spawn(do func(ctx context.Context)) {
	c.wait.Go(func() { do(c.work) })
}

// IsActive says whether this controller decides.
func (c *Controller) IsActive() bool { return c.term.Load() != nil }

// Answer is what a request comes to.
type Answer struct {
	Reply any
	// Offset is that of the last record that the answer rests on.
	Offset int64
}

// operation is a request on its way.
type operation struct {
	decide func(*control.Manager) (control.Decision, error)
	// deadline bounds the wait for leaders of new partitions.
	deadline time.Time
	// asked is when it began to wait for its turn.
	asked time.Time
	done  chan outcome
}

type outcome struct {
	answer Answer
	err    error
}

func (o *operation) finish(a Answer, err error) {
	select {
	case o.done <- outcome{a, err}:
	default: // It was answered before.
	}
}

// Do has the loop decide about something, and gives the answer when it is durable. The decision must not wait, and must
// change nothing but what it returns. An answer about new partitions waits for their leaders, but not beyond patience.
func (c *Controller) Do(ctx context.Context, patience time.Duration, decide func(*control.Manager) (control.Decision, error)) (Answer, error) {
	if !c.IsActive() {
		return Answer{}, c.notActive()
	}
	op := &operation{decide: decide, asked: time.Now(), deadline: time.Now().Add(min(patience, leaderWait)), done: make(chan outcome, 1)}
	if end, ok := ctx.Deadline(); ok && end.Before(op.deadline) {
		op.deadline = end
	}
	select {
	case c.requests <- op:
	case <-ctx.Done():
		return Answer{}, errcode.RequestTimedOut.Wrap(ctx.Err())
	}
	select {
	case r := <-op.done:
		return r.answer, r.err
	case <-ctx.Done():
		return Answer{}, errcode.RequestTimedOut.Wrap(ctx.Err())
	}
}

// notActive tells whom to ask instead.
func (c *Controller) notActive() error {
	holder := c.Feed.State().Holder
	if holder.ID == c.ID {
		return errcode.NotController.Err()
	}
	return transport.WithHint(errcode.NotController.Err(), holder.Address)
}

// pause waits a little, unless the context ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// follow keeps the feed up with the log.
func (c *Controller) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.followOnce(ctx)
		if ctx.Err() != nil || errors.Is(err, metalog.ErrClosed) {
			return
		}
		c.Logger.Warn("following the metadata log", "error", err)
		pause(ctx, retryPause)
	}
}

func (c *Controller) followOnce(ctx context.Context) error {
	if !c.Feed.State().Loaded {
		if err := c.load(ctx); err != nil {
			return err
		}
	}
	for event, err := range c.Log.Follow(ctx, c.Feed.State().Next) {
		var truncated *metalog.TruncatedError
		switch {
		case errors.As(err, &truncated):
			return c.load(ctx)
		case err != nil:
			return err
		case event.Holder != nil:
			c.Feed.SetHolder(*event.Holder)
		default:
			if err := c.Feed.Offer(event.Batch, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// load brings the feed to the last snapshot, or to the empty log.
func (c *Controller) load(ctx context.Context) error {
	s, err := c.Log.Snapshot(ctx)
	if errors.Is(err, metalog.ErrNoSnapshot) {
		c.Feed.Reset(metadata.Empty(c.ClusterID), -1)
		return nil
	}
	if err != nil {
		return err
	}
	var records []metarecord.Record
	for b, err := range s.Records {
		if err != nil {
			return err
		}
		r, err := metarecord.Decode(b)
		if err != nil {
			return fmt.Errorf("snapshot at offset %d: %w", s.EndOffset, err)
		}
		records = append(records, r)
	}
	delta, err := metadata.Empty(c.ClusterID).Apply(s.EndOffset-1, s.Epoch, records...)
	if err != nil {
		return fmt.Errorf("snapshot at offset %d: %w", s.EndOffset, err)
	}
	c.Feed.Reset(delta.Image(), s.Epoch)
	c.Logger.Info("loaded a snapshot of the metadata", "offset", s.EndOffset-1, "records", len(records))
	return nil
}

// lead is the active controller whenever the log says that this one should be. In between it refuses what waits.
func (c *Controller) lead(ctx context.Context) {
	leads := false
	for ctx.Err() == nil {
		if !leads {
			select {
			case leads = <-c.Log.Leadership():
			case op := <-c.requests:
				op.finish(Answer{}, c.notActive())
			case <-ctx.Done():
				return
			}
			continue
		}
		termCtx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := c.runTerm(termCtx); err != nil && termCtx.Err() == nil {
				c.Logger.Warn("the active controller stands down", "error", err)
			}
		}()
		leads = c.watchTerm(ctx, ended)
		cancel()
		<-ended
	}
}

// watchTerm waits until a term must end or has ended, and says whether this controller should claim the log again.
func (c *Controller) watchTerm(ctx context.Context, ended <-chan struct{}) bool {
	for {
		select {
		case leads := <-c.Log.Leadership():
			if !leads {
				return false
			}
		case <-ended:
			// Still the leader: it claims again at once, since nobody else will.
			return c.stillLeads(ctx)
		case <-ctx.Done():
			return false
		}
	}
}

// stillLeads waits a moment after a failed term, and says whether to try again.
func (c *Controller) stillLeads(ctx context.Context) bool {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	for {
		select {
		case leads := <-c.Log.Leadership():
			return leads
		case op := <-c.requests:
			op.finish(Answer{}, c.notActive())
		case <-t.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
