package coordinatord

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

// shardSet is the shards of one kind that the metadata gives to this instance. Its methods may be called from any goroutine.
type shardSet[C, R, A any] struct {
	nodeID int32
	kind   metadata.ShardKind
	// topic is the internal topic whose partitions are the shards.
	topic string
	// build makes a shard that does not run yet.
	build func(s shardSpec) *statemachine.Shard[C, R, A]
	// image is the newest image that has been published here.
	image func() *metadata.Image

	mu sync.Mutex
	// topicID is that of the topic when the shards were last looked at.
	topicID uuid.UUID
	owned   map[int32]*ownedShard[C, R, A]
	// changed is closed and replaced when owned changes.
	changed  chan struct{}
	draining bool
	// ending waits for the goroutines that end shards or start them again.
	ending sync.WaitGroup
}

// shardSpec is what a shard is made of.
type shardSpec struct {
	number, epoch int32
	topicID       uuid.UUID
	image         *metadata.Image
}

// ownedShard is a shard that the metadata gives to this instance.
type ownedShard[C, R, A any] struct {
	number int32
	epoch  int32
	shard  *statemachine.Shard[C, R, A]
	// release is closed when the shard is not wanted any more.
	release chan struct{}
}

func newShardSet[C, R, A any](nodeID int32, kind metadata.ShardKind, topic string, image func() *metadata.Image, build func(shardSpec) *statemachine.Shard[C, R, A]) *shardSet[C, R, A] {
	return &shardSet[C, R, A]{
		nodeID: nodeID, kind: kind, topic: topic, build: build, image: image,
		owned: map[int32]*ownedShard[C, R, A]{}, changed: make(chan struct{}),
	}
}

// follow looks which shards are ours where the image says something new about that.
func (s *shardSet[C, R, A]) follow(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining && s.assignmentChanged(delta, image) {
		s.assign(ctx, image)
	}
}

// assignmentChanged says whether the shards have to be looked at.
func (s *shardSet[C, R, A]) assignmentChanged(delta *metadata.Delta, image *metadata.Image) bool {
	if topic := image.TopicByName(s.topic); topic == nil && !s.topicID.IsZero() || topic != nil && topic.ID != s.topicID {
		return true
	}
	for id := range delta.Shards() {
		if id.Kind == s.kind {
			return true
		}
	}
	return false
}

// assign starts the shards that are ours and ends the others. The topic itself may have been made anew.
func (s *shardSet[C, R, A]) assign(ctx context.Context, image *metadata.Image) {
	wanted := map[int32]int32{} // epoch by shard
	topic := image.TopicByName(s.topic)
	remade := topic == nil || topic.ID != s.topicID
	s.topicID = uuid.Zero
	if topic != nil {
		s.topicID = topic.ID
		for id, a := range image.Shards() {
			if id.Kind == s.kind && a.Owner == s.nodeID && int(id.Shard) < len(topic.Partitions) {
				wanted[id.Shard] = a.Epoch
			}
		}
	}
	for number, o := range s.owned {
		if epoch, ok := wanted[number]; ok && epoch == o.epoch && !remade {
			delete(wanted, number)
			continue
		}
		delete(s.owned, number)
		var next *ownedShard[C, R, A]
		if epoch, ok := wanted[number]; ok {
			next = s.own(number, epoch, image)
			delete(wanted, number)
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopShardTimeout)
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
func (s *shardSet[C, R, A]) own(number, epoch int32, image *metadata.Image) *ownedShard[C, R, A] {
	o := &ownedShard[C, R, A]{
		number: number, epoch: epoch, release: make(chan struct{}),
		shard: s.build(shardSpec{number: number, epoch: epoch, topicID: s.topicID, image: image}),
	}
	s.owned[number] = o
	return o
}

// run starts a shard and watches over it.
func (s *shardSet[C, R, A]) run(o *ownedShard[C, R, A]) {
	o.shard.Start()
	s.ending.Go(func() { s.watch(o) })
}

// watch starts a shard again that has ended though it is ours: it was refused because another instance owns it, which
// this instance is about to learn, or its log could not be read.
func (s *shardSet[C, R, A]) watch(o *ownedShard[C, R, A]) {
	select {
	case <-o.release:
		return
	case <-o.shard.Done():
	}
	select {
	case <-o.release:
		return
	case <-time.After(restartDelay):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned[o.number] == o {
		s.run(s.own(o.number, o.epoch, s.image()))
	}
}

// releaseLocked ends a shard without making the caller wait, and then goes on with after.
func (s *shardSet[C, R, A]) releaseLocked(ctx context.Context, o *ownedShard[C, R, A], after func()) {
	close(o.release)
	s.ending.Go(func() {
		o.shard.Stop(ctx)
		if after != nil {
			after()
		}
	})
}

// awaitEmpty waits until the metadata gives this instance no shard any more.
func (s *shardSet[C, R, A]) awaitEmpty(ctx context.Context) {
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

// drain ends the shards that are still here.
func (s *shardSet[C, R, A]) drain(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	for number, o := range s.owned {
		s.releaseLocked(ctx, o, nil)
		delete(s.owned, number)
	}
	s.mu.Unlock()
	s.ending.Wait()
}

// find gives the shard of a number, nil when it is not ours.
func (s *shardSet[C, R, A]) find(number int32) *statemachine.Shard[C, R, A] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owned[number]; o != nil {
		return o.shard
	}
	return nil
}

// do carries out a command on a shard.
func (s *shardSet[C, R, A]) do(ctx context.Context, number int32, command C) (A, error) {
	sh := s.find(number)
	if sh == nil {
		var none A
		return none, notHere(number)
	}
	return sh.Do(ctx, command)
}

// notHere is the answer to a command for a shard that is not ours.
func notHere(number int32) error {
	return errcode.NotCoordinator.Wrap(fmt.Errorf("shard %d is not here: %w", number, statemachine.ErrNotDecided))
}

// doAll carries out a command on all shards that are ours.
func (s *shardSet[C, R, A]) doAll(ctx context.Context, command C) ([]A, error) {
	all := s.all()
	replies := make([]A, 0, len(all))
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for _, sh := range all {
		wg.Go(func() {
			reply, err := sh.Do(ctx, command)
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

// all are the shards that are ours, by number.
func (s *shardSet[C, R, A]) all() map[int32]*statemachine.Shard[C, R, A] {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[int32]*statemachine.Shard[C, R, A], len(s.owned))
	for number, o := range s.owned {
		out[number] = o.shard
	}
	return out
}

// tell carries out a command on all shards, for whose answer nobody waits.
func (s *shardSet[C, R, A]) tell(command C) {
	for _, sh := range s.all() {
		sh.Tell(command)
	}
}
