package feed

import (
	"context"
	"maps"
	"sync"
	"time"

	controllerv1 "chancery/proto/controller/v1"
)

const (
	// Beyond manyFollowers, those that were last heard forgottenAfter ago are dropped.
	manyFollowers  = 1000
	forgottenAfter = 10 * time.Minute
)

// Follower names who follows the log.
type Follower struct {
	Kind controllerv1.ServiceKind
	ID   int32
}

// Ack is what a follower has told last.
type Ack struct {
	// Epoch is that of the member's registration when it told.
	Epoch int64
	// Offset is the last one applied.
	Offset int64
	// At is when it was heard last, CaughtUp when it last had everything.
	At, CaughtUp time.Time
	// version grows with each ack of anybody.
	version uint64
}

// Acks is what all followers have applied, whether they follow this controller or told through another.
type Acks struct {
	mu      sync.Mutex
	acks    map[Follower]Ack
	version uint64
	changed chan struct{}
}

// NewAcks makes an empty one.
func NewAcks() *Acks {
	return &Acks{acks: map[Follower]Ack{}, changed: make(chan struct{})}
}

// Note takes note of an acknowledgement; end is the last durable offset of the moment.
func (a *Acks) Note(who Follower, epoch, offset, end int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.acks[who]
	if epoch < before.Epoch {
		return
	}
	// A follower that has lost its state begins anew, with a lower offset.
	next := Ack{Epoch: epoch, Offset: offset, At: now, CaughtUp: before.CaughtUp}
	if offset >= end {
		next.CaughtUp = now
	}
	a.version++
	next.version = a.version
	a.acks[who] = next
	if len(a.acks) > manyFollowers {
		maps.DeleteFunc(a.acks, func(_ Follower, ack Ack) bool { return now.Sub(ack.At) > forgottenAfter })
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// Get gives what a follower has told last, and what is closed when anybody tells more.
func (a *Acks) Get(who Follower) (Ack, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acks[who], a.changed
}

// All gives what everybody has told last.
func (a *Acks) All() map[Follower]Ack {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.acks)
}

// Since gives the acknowledgements after a version, the version that includes them, and what is closed when there are more.
func (a *Acks) Since(version uint64) ([]*controllerv1.FollowerAck, uint64, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var news []*controllerv1.FollowerAck
	for who, ack := range a.acks {
		if ack.version > version {
			news = append(news, &controllerv1.FollowerAck{Kind: who.Kind, Id: who.ID, MemberEpoch: ack.Epoch, AppliedOffset: ack.Offset})
		}
	}
	return news, a.version, a.changed
}

// Await waits until a condition holds that depends on acknowledgements and on what is closed by more.
func (a *Acks) Await(ctx context.Context, more func() <-chan struct{}, holds func() bool) error {
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		also := more()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-also:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
