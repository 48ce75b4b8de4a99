// Package shards keeps the shards of one kind that the metadata gives to an instance: coordinators and tiering instances are
// built on it.
//
// It owns which shards run here: it starts those that the instance is given, ends those that it loses, hands the new epoch
// to a new shard, and starts one again that has ended by itself. It must never run a shard that the metadata gives to another
// instance, nor know what its commands mean.
package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

const (
	// stopTimeout bounds how long a shard that another instance owns may take to bring appends to their end: they are about to be
	// refused.
	stopTimeout = 2 * time.Second
	// restartDelay is how long a shard that has ended by itself, though it is ours, stays away.
	restartDelay = time.Second
)

// Config is what a Set needs.
type Config[C, R, A any] struct {
	NodeID int32
	Kind   metadata.ShardKind
	// Topic is the internal topic whose partitions are the shards.
	Topic string
	// Build makes a shard that does not run yet. It is called with the set's mutex held.
	Build func(s Spec) *statemachine.Shard[C, R, A]
	// Image is the newest image that has been published here.
	Image func() *metadata.Image
}

// Set is the shards of one kind that the metadata gives to this instance. Its methods may be called from any goroutine.
type Set[C, R, A any] struct {
	config Config[C, R, A]

	mu sync.Mutex
	// topicID is that of the topic when the shards were last looked at.
	topicID uuid.UUID
	owned   map[int32]*Owned[C, R, A]
	// changed is closed and replaced when owned changes.
	changed  chan struct{}
	draining bool
	// ending waits for the goroutines that end shards or start them again.
	ending sync.WaitGroup
}

// Spec is what a shard is made of.
type Spec struct {
	Number, Epoch int32
	TopicID       uuid.UUID
	// Image is the one that gave the shard to this instance, or a newer one.
	Image *metadata.Image
}

// Owned is a shard that the metadata gives to this instance.
type Owned[C, R, A any] struct {
	Number, Epoch int32
	Shard         *statemachine.Shard[C, R, A]
	ctx           context.Context // the life of the shard here
	cancel        context.CancelFunc
}

// Context ends when the shard is not wanted any more, or another one has taken its place.
func (o *Owned[C, R, A]) Context() context.Context { return o.ctx }

// New makes a set without shards.
func New[C, R, A any](c Config[C, R, A]) *Set[C, R, A] {
	return &Set[C, R, A]{config: c, owned: map[int32]*Owned[C, R, A]{}, changed: make(chan struct{})}
}

// Follow looks which shards are ours where the image says something new about that.
func (s *Set[C, R, A]) Follow(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining && s.assignmentChanged(delta, image) {
		s.assign(ctx, image)
	}
}

// assignmentChanged says whether the shards have to be looked at.
func (s *Set[C, R, A]) assignmentChanged(delta *metadata.Delta, image *metadata.Image) bool {
	if topic := image.TopicByName(s.config.Topic); topic == nil && !s.topicID.IsZero() || topic != nil && topic.ID != s.topicID {
		return true
	}
	for id := range delta.Shards() {
		if id.Kind == s.config.Kind {
			return true
		}
	}
	return false
}

// assign starts the shards that are ours and ends the others. The topic itself may have been made anew.
func (s *Set[C, R, A]) assign(ctx context.Context, image *metadata.Image) {
	wanted := map[int32]int32{} // epoch by shard
	topic := image.TopicByName(s.config.Topic)
	remade := topic == nil || topic.ID != s.topicID
	s.topicID = uuid.Zero
	if topic != nil {
		s.topicID = topic.ID
		for id, a := range image.Shards() {
			if id.Kind == s.config.Kind && a.Owner == s.config.NodeID && int(id.Shard) < len(topic.Partitions) {
				wanted[id.Shard] = a.Epoch
			}
		}
	}
	for number, o := range s.owned {
		if epoch, ok := wanted[number]; ok && epoch == o.Epoch && !remade {
			delete(wanted, number)
			continue
		}
		delete(s.owned, number)
		var next *Owned[C, R, A]
		if epoch, ok := wanted[number]; ok {
			next = s.own(number, epoch, image)
			delete(wanted, number)
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		s.releaseLocked(stopCtx, o, func() {
			cancel()
			if next != nil {
				s.run(next)
			}
		})
	}
	for number, epoch := range wanted {
		s.run(s.own(number, epoch, image))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// own makes a shard that is ours. It answers that it loads until it is run.
func (s *Set[C, R, A]) own(number, epoch int32, image *metadata.Image) *Owned[C, R, A] {
	o := &Owned[C, R, A]{
		Number: number, Epoch: epoch,
		Shard: s.config.Build(Spec{Number: number, Epoch: epoch, TopicID: s.topicID, Image: image}),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	s.owned[number] = o
	return o
}

// run starts a shard and watches over it.
func (s *Set[C, R, A]) run(o *Owned[C, R, A]) {
	o.Shard.Start()
	s.ending.Go(func() { s.watch(o) })
}

// watch starts a shard again that has ended though it is ours: it was refused because another instance owns it, which
// this instance is about to learn, or its log could not be read.
func (s *Set[C, R, A]) watch(o *Owned[C, R, A]) {
	select {
	case <-o.ctx.Done():
		return
	case <-o.Shard.Done():
	}
	select {
	case <-o.ctx.Done():
		return
	case <-time.After(restartDelay):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned[o.Number] == o {
		o.cancel()
		s.run(s.own(o.Number, o.Epoch, s.config.Image()))
	}
}

// releaseLocked ends a shard without making the caller wait, and then goes on with after.
func (s *Set[C, R, A]) releaseLocked(ctx context.Context, o *Owned[C, R, A], after func()) {
	o.cancel()
	s.ending.Go(func() {
		o.Shard.Stop(ctx)
		if after != nil {
			after()
		}
	})
}

// AwaitEmpty waits until the metadata gives this instance no shard any more.
func (s *Set[C, R, A]) AwaitEmpty(ctx context.Context) {
	for {
		s.mu.Lock()
		n, changed := len(s.owned), s.changed
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Drain ends the shards that are still here.
func (s *Set[C, R, A]) Drain(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	for number, o := range s.owned {
		s.releaseLocked(ctx, o, nil)
		delete(s.owned, number)
	}
	s.mu.Unlock()
	s.ending.Wait()
}

// Find gives the shard of a number, nil when it is not ours.
func (s *Set[C, R, A]) Find(number int32) *Owned[C, R, A] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owned[number]
}

// Do carries out a command on a shard.
func (s *Set[C, R, A]) Do(ctx context.Context, number int32, command C) (A, error) {
	o := s.Find(number)
	if o == nil {
		var none A
		return none, notHere(number)
	}
	return o.Shard.Do(ctx, command)
}

// DoEach carries out commands that follow one another on a shard.
func (s *Set[C, R, A]) DoEach(ctx context.Context, number int32, commands []C) ([]A, []error) {
	if o := s.Find(number); o != nil {
		return o.Shard.DoEach(ctx, commands)
	}
	errs := make([]error, len(commands))
	for i := range errs {
		errs[i] = notHere(number)
	}
	return make([]A, len(commands)), errs
}

// notHere is the answer to a command for a shard that is not ours.
func notHere(number int32) error {
	return errcode.NotCoordinator.Wrap(fmt.Errorf("shard %d is not here: %w", number, statemachine.ErrNotDecided))
}

// DoAll carries out a command on all shards that are ours.
func (s *Set[C, R, A]) DoAll(ctx context.Context, command C) ([]A, error) {
	all := s.All()
	replies := make([]A, 0, len(all))
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for _, o := range all {
		wg.Go(func() {
			reply, err := o.Shard.Do(ctx, command)
			if errcode.Of(err) == errcode.NotCoordinator {
				return // it has moved, and its new owner answers for it
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !errors.Is(err, context.Canceled) {
				first = errors.Join(first, err)
			}
			replies = append(replies, reply)
		})
	}
	wg.Wait()
	if first != nil {
		return nil, first
	}
	return replies, ctx.Err()
}

// All are the shards that are ours, by number.
func (s *Set[C, R, A]) All() map[int32]*Owned[C, R, A] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.owned)
}

// Tell carries out a command on all shards, for whose answer nobody waits.
func (s *Set[C, R, A]) Tell(command C) {
	for _, o := range s.All() {
		o.Shard.Tell(command)
	}
}
