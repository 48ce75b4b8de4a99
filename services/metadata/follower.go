package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	controllerv1 "chancery/proto/controller/v1"
)

// How a follower deals with controllers.
const (
	// silenceLimit is how long a controller may be silent before the follower goes to another; a live one sends a heartbeat
	// every 500 ms.
	silenceLimit = 2 * time.Second
	// ackInterval bounds how often a busy follower acknowledges. An idle one does so at once.
	ackInterval = 20 * time.Millisecond
	// idleAckInterval is how often a follower without news shows that it follows: operators see who does.
	idleAckInterval = time.Second
	// The wait between attempts to reach a controller grows from retryBase to retryMax.
	retryBase = 20 * time.Millisecond
	retryMax  = time.Second
	// eventQueue is how many decoded messages may wait for the applying goroutine. Those that wait become one delta.
	eventQueue = 64
)

// Source opens streams of the metadata log.
type Source interface {
	// Open gives a stream to a live controller, preferably another one than the last time. It lives until the context
	// ends.
	Open(ctx context.Context) (Stream, error)
}

// Stream is the client's side of FollowMetadata. Send and Recv are each called by one goroutine at a time.
type Stream interface {
	Send(*controllerv1.FollowMetadataRequest) error
	Recv() (*controllerv1.FollowMetadataResponse, error)
}

// Publisher is told of each new image.
type Publisher interface {
	// Publish is called for one image after the other, in order, always from the same goroutine. Follower.Image shows the
	// image, and the controller learns that this member has it, only after all publishers have returned. The first call
	// brings a delta from an empty image. The context ends when the follower stops.
	Publish(ctx context.Context, delta *Delta, image *Image)
}

// PublisherFunc is a function as a Publisher.
type PublisherFunc func(ctx context.Context, delta *Delta, image *Image)

// Publish calls the function.
func (f PublisherFunc) Publish(ctx context.Context, delta *Delta, image *Image) { f(ctx, delta, image) }

// Config says who follows.
type Config struct {
	Kind controllerv1.ServiceKind
	ID   int32
	// ClusterID is the cluster that this member belongs to. Empty takes that of the first controller; then, and always
	// afterwards, another cluster's metadata is a failure.
	ClusterID string
	Source    Source
	Logger    *slog.Logger
	// MemberEpoch gives the member's epoch of the moment for acknowledgements; nil for members without one.
	MemberEpoch func() int64
}

// ActiveController is the controller that decides, as far as the follower has heard.
type ActiveController struct {
	// ID is -1 while none is known.
	ID int32
	// Address is its gRPC address.
	Address string
	Epoch   int32
}

// Follower keeps an image up with the metadata log of the controllers. It is a lifecycle.Service.
//
// Two goroutines do the work. One keeps a stream to some controller and decodes what comes. The other owns the loader
// and the publishers; what it has finished with is acknowledged to the controller.
type Follower struct {
	config Config
	logger *slog.Logger

	image  atomic.Pointer[Image]
	active atomic.Pointer[ActiveController]
	ready  atomic.Bool

	events chan event
	// wake tells the applying goroutine of new subscribers or of a wish to acknowledge.
	wake    chan struct{}
	ackWish atomic.Bool

	mu sync.Mutex
	// moved is closed and replaced when the image moves or the follower becomes ready.
	moved       chan struct{}
	subscribers []Publisher

	failed chan error
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// NewFollower makes a follower that does nothing until it is started.
func NewFollower(c Config) *Follower {
	f := &Follower{
		config: c,
		logger: c.Logger,
		events: make(chan event, eventQueue),
		wake:   make(chan struct{}, 1),
		moved:  make(chan struct{}),
		failed: make(chan error, 1),
	}
	f.image.Store(Empty(c.ClusterID))
	f.active.Store(&ActiveController{ID: -1, Epoch: -1})
	return f
}

// Subscribe adds a publisher. It is called for all later images, and first with everything that there is already.
func (f *Follower) Subscribe(p Publisher) {
	f.mu.Lock()
	f.subscribers = append(f.subscribers, p)
	f.mu.Unlock()
	f.poke()
}

// Acknowledge tells the controller once more what this member has applied. A storage node wants it when its epoch has
// changed.
func (f *Follower) Acknowledge() {
	f.ackWish.Store(true)
	f.poke()
}

func (f *Follower) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Image is the last image that all publishers have seen; an empty one before the first.
func (f *Follower) Image() *Image { return f.image.Load() }

// ActiveController is the controller that decides, as far as is known here.
func (f *Follower) ActiveController() ActiveController { return *f.active.Load() }

// Await returns when Image is at the offset or beyond, or with the context's error.
func (f *Follower) Await(ctx context.Context, offset int64) error {
	return f.await(ctx, func() bool { return f.Image().Offset() >= offset })
}

// AwaitReady returns when the follower has caught up with the log for the first time, or with the context's error.
func (f *Follower) AwaitReady(ctx context.Context) error { return f.await(ctx, f.ready.Load) }

func (f *Follower) await(ctx context.Context, reached func() bool) error {
	for !reached() {
		f.mu.Lock()
		moved := f.moved
		f.mu.Unlock()
		if reached() {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (f *Follower) broadcast() {
	f.mu.Lock()
	close(f.moved)
	f.moved = make(chan struct{})
	f.mu.Unlock()
}

// Start begins to follow. It does not wait for a controller; AwaitReady does.
func (f *Follower) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.done.Go(func() { f.pull(ctx) })
	f.done.Go(func() { f.apply(ctx) })
	return nil
}

// Stop ends following. Image keeps the last image.
func (f *Follower) Stop(ctx context.Context) error {
	f.stop()
	stopped := make(chan struct{})
	go func() {
		f.done.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop following the metadata: %w", ctx.Err())
	}
}

// Failed tells when the controllers turn out to be those of another cluster.
func (f *Follower) Failed() <-chan error { return f.failed }

// Ready is nil once the follower has caught up with the log for the first time.
func (f *Follower) Ready() error {
	if !f.ready.Load() {
		return errors.New("the cluster's metadata is not loaded yet")
	}
	return nil
}

// session is one stream to a controller.
type session struct {
	cancel context.CancelCauseFunc
	// acks holds the latest offset to acknowledge.
	acks chan int64
	// over is set by the applying goroutine: what else came on this stream is of no use.
	over bool
	// snapshot is the image that a running snapshot makes; owned by the applying goroutine.
	snapshot *snapshotBuilder
}

// fail ends the stream. Only the applying goroutine calls it.
func (s *session) fail(err error) {
	s.over = true
	s.cancel(err)
}

// acknowledge replaces what the stream's acknowledging goroutine is to send next.
func (s *session) acknowledge(offset int64) {
	select {
	case <-s.acks:
	default:
	}
	s.acks <- offset
}

// pull keeps a stream open until the context ends.
func (f *Follower) pull(ctx context.Context) {
	wait := retryBase
	for ctx.Err() == nil {
		from, ok := f.position(ctx)
		if !ok {
			return
		}
		began := time.Now()
		err := f.followOnce(ctx, from)
		if ctx.Err() != nil {
			return
		}
		f.logger.Info("metadata stream ended", "error", err, "next_offset", from.offset)
		if time.Since(began) > retryMax {
			wait = retryBase
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, retryMax)
	}
}

// followOnce follows one controller until its stream ends, and says why it did.
func (f *Follower) followOnce(ctx context.Context, from position) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The same timer bounds the opening and every silence after it.
	silence := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	defer silence.Stop()
	stream, err := f.config.Source.Open(ctx)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	err = stream.Send(&controllerv1.FollowMetadataRequest{
		Kind: f.config.Kind, Id: f.config.ID, ClusterId: f.config.ClusterID,
		FromOffset: from.offset, LastEpoch: from.epoch, MemberEpoch: f.memberEpoch(),
	})
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	s := &session{cancel: cancel, acks: make(chan int64, 1)}
	var acknowledging sync.WaitGroup
	acknowledging.Go(func() { f.sendAcks(ctx, stream, s) })
	defer acknowledging.Wait()
	defer cancel(nil)
	for {
		message, err := stream.Recv()
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		e, err := decode(s, message)
		if err != nil {
			// Most likely the controllers are newer than this process.
			f.logger.Error("metadata cannot be read", "error", err)
			return err
		}
		// The controller is not silent while this side is the slow one.
		silence.Stop()
		select {
		case f.events <- e:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		silence.Reset(silenceLimit)
	}
}

var errSilent = errors.New("the controller is silent")

func (f *Follower) sendAcks(ctx context.Context, stream Stream, s *session) {
	for {
		select {
		case offset := <-s.acks:
			err := stream.Send(&controllerv1.FollowMetadataRequest{
				Kind: f.config.Kind, Id: f.config.ID, AppliedOffset: offset, MemberEpoch: f.memberEpoch(),
			})
			if err != nil {
				s.cancel(fmt.Errorf("acknowledge metadata: %w", err))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (f *Follower) memberEpoch() int64 {
	if f.config.MemberEpoch == nil {
		return -1
	}
	return f.config.MemberEpoch()
}
