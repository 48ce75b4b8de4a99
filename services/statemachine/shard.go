package statemachine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// How a Log's operations end when not with success or a code.
var (
	// ErrFenced says that another instance owns the shard.
	ErrFenced = errors.New("another instance owns the shard")
	// ErrOutcomeUnknown says that an append may or may not be in the log, or that the log is not where the shard thinks.
	ErrOutcomeUnknown = errors.New("the log is not known any more")
	// ErrNotDecided marks failures of commands that were not carried out at all, and may be sent again.
	ErrNotDecided = errors.New("the command was not carried out")

	errStopped = errors.New("stopped")
)

// Log is the log of one shard. *Partition is the one on storage nodes.
type Log interface {
	// Load gives every record up to the present end of the log, all of which are durable, and that end. It makes sure that
	// nothing of an earlier owner can follow. It tries again by itself until ctx ends, each doesn't agree, or ErrFenced.
	Load(ctx context.Context, each func(recordbatch.Header, *recordbatch.Record) error) (end int64, err error)
	// Append writes batches, one after the other, if the log ends at end, and calls done once all are durable, or with an
	// *errcode.Error if none is in the log nor will be, or with ErrFenced or ErrOutcomeUnknown. Done may be called from any
	// goroutine.
	Append(ctx context.Context, batches [][]byte, end int64, done func(base int64, err error))
}

// Config is what a shard needs.
type Config[C, R, A any] struct {
	// Name is for logs.
	Name string
	// New makes an empty machine.
	New   func() Machine[C, R, A]
	Codec Codec[R]
	Log   Log
	// Compression is that of the batches; Codecs is needed with one.
	Compression recordbatch.Compression
	Codecs      *recordbatch.Codecs
	// MaxBatchBytes bounds a batch. What one command writes goes into one batch all the same, unless it may be split.
	MaxBatchBytes int
	// MaxQueuedBytes bounds what waits for the log; beyond it commands are refused.
	MaxQueuedBytes int
	// AnswerTimeout is how long an answer waits for the log.
	AnswerTimeout time.Duration
	// OnServing is called each time the shard has loaded and serves.
	OnServing func()
	Logger    *slog.Logger
}

// Stats counts what a shard has done. The fields may be read at any time.
type Stats struct {
	Commands, Records, Batches, Rollbacks, Loads atomic.Int64
	// LoadedRecords and LoadMs are those of the last load.
	LoadedRecords, LoadMs atomic.Int64
}

// state is what a shard does with commands.
type state int8

const (
	loading state = iota
	serving
	// stopping: what was decided is brought to its end, nothing new is taken.
	stopping
	stopped
)

// Shard runs one machine. All methods may be called from any goroutine.
type Shard[C, R, A any] struct {
	config Config[C, R, A]
	stats  Stats
	ctx    context.Context // ends the loop; it is not a request's
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu      sync.Mutex
	state   state
	started bool
	inbox   []request[C, A]
	spare   []request[C, A]
	// settled is the outcome of the append that was in flight.
	settled *settled
}

type request[C, A any] struct {
	command C
	caller  chan outcome[A]
}

type settled struct {
	base int64
	err  error
}

// maxInbox bounds the commands that wait for the loop.
const maxInbox = 1 << 16

// NewShard makes a shard. It answers that it loads until Start lets it.
func NewShard[C, R, A any](c Config[C, R, A]) *Shard[C, R, A] {
	s := &Shard[C, R, A]{config: c, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Start begins to load the shard and returns at once. After Stop it does nothing.
func (s *Shard[C, R, A]) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stopped {
		return
	}
	s.started = true
	go s.run(s.ctx)
}

// Stop brings what was decided to its end, within the context's time, and ends the shard. Callers that still wait then are
// told NotCoordinator.
func (s *Shard[C, R, A]) Stop(ctx context.Context) {
	s.mu.Lock()
	switch {
	case !s.started && s.state != stopped:
		s.state = stopped
		close(s.done)
	case s.state == loading:
		s.cancel()
	case s.state == serving:
		s.state = stopping
	}
	s.mu.Unlock()
	s.wakeUp()
	select {
	case <-s.done:
	case <-ctx.Done():
		s.cancel()
		<-s.done
	}
	s.cancel()
}

// Done is closed when the shard has ended, be it because it was stopped or because another instance owns it.
func (s *Shard[C, R, A]) Done() <-chan struct{} { return s.done }

// Stats are the shard's counters.
func (s *Shard[C, R, A]) Stats() *Stats { return &s.stats }

// Serving says whether the shard carries out commands.
func (s *Shard[C, R, A]) Serving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == serving
}

// Do carries out a command and waits for its answer. It fails with CoordinatorLoadInProgress while the shard loads, and
// with NotCoordinator when it ends; errors.Is(err, ErrNotDecided) then tells whether the command was not carried out.
func (s *Shard[C, R, A]) Do(ctx context.Context, command C) (A, error) {
	var none A
	caller := make(chan outcome[A], 1)
	if err := s.submit(request[C, A]{command: command, caller: caller}); err != nil {
		return none, err
	}
	select {
	case o := <-caller:
		return o.reply, o.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// DoEach carries out commands one after the other, with no other between them, and waits for all their answers. Each has an
// answer or an error, as Do gives it.
func (s *Shard[C, R, A]) DoEach(ctx context.Context, commands []C) (replies []A, errs []error) {
	replies, errs = make([]A, len(commands)), make([]error, len(commands))
	requests := make([]request[C, A], len(commands))
	for i, c := range commands {
		requests[i] = request[C, A]{command: c, caller: make(chan outcome[A], 1)}
	}
	if err := s.submit(requests...); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return replies, errs
	}
	for i := range requests {
		select {
		case o := <-requests[i].caller:
			replies[i], errs[i] = o.reply, o.err
		case <-ctx.Done():
			errs[i] = ctx.Err()
		}
	}
	return replies, errs
}

// Tell carries out a command for whose answer nobody waits. It says whether the shard serves.
func (s *Shard[C, R, A]) Tell(command C) bool {
	return s.submit(request[C, A]{command: command}) == nil
}

func (s *Shard[C, R, A]) submit(r ...request[C, A]) error {
	s.mu.Lock()
	err := s.refusal()
	if err == nil {
		s.inbox = append(s.inbox, r...)
	}
	s.mu.Unlock()
	if err == nil {
		s.wakeUp()
	}
	return err
}

// refusal is why a command cannot be taken now.
func (s *Shard[C, R, A]) refusal() error {
	switch {
	case s.state == loading:
		return errcode.CoordinatorLoadInProgress.Wrap(ErrNotDecided)
	case s.state != serving:
		return errcode.NotCoordinator.Wrap(ErrNotDecided)
	case len(s.inbox) >= maxInbox:
		return errcode.CoordinatorNotAvailable.Wrap(ErrNotDecided)
	}
	return nil
}

func (s *Shard[C, R, A]) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// enter changes the state, and refuses what waits in the inbox where the new state does not serve. It says false when the
// shard is being stopped instead.
func (s *Shard[C, R, A]) enter(st state) bool {
	s.mu.Lock()
	if s.state == stopping && st != stopped {
		s.mu.Unlock()
		return false
	}
	s.state, s.settled = st, nil
	var refused []request[C, A]
	err := s.refusal()
	if err != nil {
		refused, s.inbox = s.inbox, nil
	}
	s.mu.Unlock()
	s.refuse(refused, err)
	return true
}

func (s *Shard[C, R, A]) refuse(requests []request[C, A], err error) {
	for _, r := range requests {
		if r.caller != nil {
			r.caller <- outcome[A]{err: err}
		}
	}
}

// run loads and serves, again and again, until the shard ends.
func (s *Shard[C, R, A]) run(ctx context.Context) {
	defer close(s.done)
	defer s.enter(stopped)
	for {
		c, err := s.load(ctx)
		if err != nil {
			s.end(err)
			return
		}
		s.enter(serving)
		if s.config.OnServing != nil {
			s.config.OnServing()
		}
		err = s.serve(ctx, c)
		if !errors.Is(err, ErrOutcomeUnknown) || !s.enter(loading) {
			c.abandon(errcode.NotCoordinator)
			s.end(err)
			return
		}
		c.abandon(errcode.CoordinatorNotAvailable)
		s.config.Logger.Warn("shard is loaded anew", slog.String("shard", s.config.Name), slog.Any("error", err))
	}
}

// end logs why the shard ends.
func (s *Shard[C, R, A]) end(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, errStopped) {
		s.config.Logger.Info("shard has stopped", slog.String("shard", s.config.Name))
		return
	}
	s.config.Logger.Warn("shard is given up", slog.String("shard", s.config.Name), slog.Any("error", err))
}

// load brings a new machine to the end of the log.
func (s *Shard[C, R, A]) load(ctx context.Context) (*core[C, R, A], error) {
	began := time.Now()
	c := &core[C, R, A]{
		machine:       s.config.New(),
		codec:         s.config.Codec,
		batchOptions:  recordbatch.NewOptions(),
		codecs:        s.config.Codecs,
		maxBatchBytes: s.config.MaxBatchBytes,
		answerTimeout: s.config.AnswerTimeout,
		waiters:       map[Ticket]chan outcome[A]{},
		stats:         &s.stats,
	}
	c.batchOptions.Codec = s.config.Compression
	c.framer, _ = s.config.Codec.(Framer[R])
	records := int64(0)
	end, err := s.config.Log.Load(ctx, func(h recordbatch.Header, record *recordbatch.Record) error {
		r, ok, err := s.config.Codec.Decode(h, record)
		if err != nil || !ok {
			return err
		}
		records++
		c.machine.Apply(r)
		c.machine.Commit(began, record.Offset, r, &c.effects)
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.effects.Reset()
	c.end = end
	now := time.Now()
	c.machine.Loaded(now, &c.effects)
	c.carryOut(now)
	s.stats.Loads.Add(1)
	s.stats.LoadedRecords.Store(records)
	s.stats.LoadMs.Store(now.Sub(began).Milliseconds())
	s.config.Logger.Info("shard is loaded", slog.String("shard", s.config.Name), slog.Int64("records", records),
		slog.Int64("end", end), slog.Duration("took", now.Sub(began)))
	return c, nil
}

// serve carries out commands until the shard ends.
func (s *Shard[C, R, A]) serve(ctx context.Context, c *core[C, R, A]) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		requests, result, leaving := s.take()
		now := time.Now()
		if result != nil {
			if err := s.settle(now, c, result); err != nil {
				return err
			}
		}
		if leaving {
			s.refuse(requests, errcode.NotCoordinator.Wrap(ErrNotDecided))
		} else {
			s.decide(now, c, requests)
		}
		s.recycle(requests)
		c.tick(now)
		if run, end, ok := c.flush(now); ok {
			s.config.Log.Append(ctx, run, end, s.append)
		}
		if leaving && c.inFlight == 0 {
			return errStopped
		}
		if due := c.due(); due.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(due))
		}
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Shard[C, R, A]) settle(now time.Time, c *core[C, R, A], result *settled) error {
	switch {
	case result.err == nil:
		c.appended(now, result.base)
	case errors.Is(result.err, ErrFenced), errors.Is(result.err, ErrOutcomeUnknown):
		return result.err
	default:
		s.config.Logger.Warn("append has failed", slog.String("shard", s.config.Name), slog.Any("error", result.err))
		c.refused(now, errcode.Of(result.err))
	}
	return nil
}

func (s *Shard[C, R, A]) decide(now time.Time, c *core[C, R, A], requests []request[C, A]) {
	for i := range requests {
		r := &requests[i]
		if c.queuedBytes > s.config.MaxQueuedBytes {
			s.refuse(requests[i:i+1], errcode.CoordinatorNotAvailable.Wrap(ErrNotDecided))
			continue
		}
		c.decide(now, r.command, r.caller)
	}
	s.stats.Commands.Add(int64(len(requests)))
}

// append is called when an append has ended.
func (s *Shard[C, R, A]) append(base int64, err error) {
	s.mu.Lock()
	s.settled = &settled{base: base, err: err}
	s.mu.Unlock()
	s.wakeUp()
}

// take empties the inbox.
func (s *Shard[C, R, A]) take() (requests []request[C, A], result *settled, leaving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests, s.inbox, s.spare = s.inbox, s.spare[:0], nil
	result, s.settled = s.settled, nil
	return requests, result, s.state != serving
}

// recycle gives the memory of an inbox back.
func (s *Shard[C, R, A]) recycle(requests []request[C, A]) {
	clear(requests)
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(requests) <= 1024 {
		s.spare = requests[:0]
	}
}
