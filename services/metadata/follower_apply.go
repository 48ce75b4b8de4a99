package metadata

import (
	"context"
	"fmt"
	"time"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/metarecord"
)

// position is from where a stream must go on.
type position struct {
	offset int64
	epoch  int32
}

// event is a decoded message of a stream, or a question of the pulling goroutine.
type event struct {
	session *session
	message *controllerv1.FollowMetadataResponse
	// records are those of a batch or of a part of a snapshot.
	records []metarecord.Record
	// position, when it is not nil, is answered with where to go on. The question stands behind all events of the stream
	// before, so the answer counts them in.
	position chan<- position
}

// decode does the work that needs no state, beside the goroutine that applies.
func decode(s *session, m *controllerv1.FollowMetadataResponse) (event, error) {
	e := event{session: s, message: m}
	var err error
	switch {
	case m.GetBatch() != nil:
		e.records, err = metarecord.DecodeAll(m.GetBatch().GetRecords())
	case m.GetSnapshotChunk() != nil:
		e.records, err = metarecord.DecodeAll(m.GetSnapshotChunk().GetRecords())
	}
	if err != nil {
		return e, fmt.Errorf("decode metadata: %w", err)
	}
	return e, nil
}

// position asks the applying goroutine where the next stream must go on.
func (f *Follower) position(ctx context.Context) (position, bool) {
	answer := make(chan position, 1)
	select {
	case f.events <- event{position: answer}:
	case <-ctx.Done():
		return position{}, false
	}
	select {
	case p := <-answer:
		return p, true
	case <-ctx.Done():
		return position{}, false
	}
}

// applier is what the applying goroutine owns.
type applier struct {
	*Follower
	loader *Loader
	// loaded says that there was a first image. unusable says that the image does not fit the log, so that only a
	// snapshot can help.
	loaded, unusable bool
	publishers       []Publisher
	session          *session
	// acked is the last offset acknowledged on the session, lastAck when.
	acked   int64
	lastAck time.Time
}

// apply turns events into images and publishes them until the context ends.
func (f *Follower) apply(ctx context.Context) {
	a := &applier{Follower: f, loader: NewLoader(f.Image())}
	a.addSubscribers(ctx)
	for {
		select {
		case e := <-f.events:
			a.handle(ctx, e)
			for range len(f.events) {
				a.handle(ctx, <-f.events)
			}
			a.publish(ctx, a.loader.Take())
		case <-f.wake:
		case <-ctx.Done():
			return
		}
		a.addSubscribers(ctx)
		a.acknowledge()
	}
}

func (a *applier) handle(ctx context.Context, e event) {
	if e.position != nil {
		p := position{a.loader.NextOffset(), a.loader.Epoch()}
		if a.unusable || !a.loaded {
			// From the beginning always means with a snapshot.
			p = position{0, -1}
		}
		e.position <- p
		return
	}
	if e.session.over {
		return
	}
	if a.session != e.session {
		a.session, a.acked = e.session, -1
	}
	var err error
	switch m := e.message.GetEvent().(type) {
	case *controllerv1.FollowMetadataResponse_SnapshotBegin:
		err = a.beginSnapshot(m.SnapshotBegin)
	case *controllerv1.FollowMetadataResponse_SnapshotChunk:
		err = a.session.snapshot.add(e.records)
	case *controllerv1.FollowMetadataResponse_SnapshotEnd:
		err = a.endSnapshot(ctx)
	case *controllerv1.FollowMetadataResponse_Batch:
		err = a.addBatch(m.Batch, e.records)
	case *controllerv1.FollowMetadataResponse_Heartbeat:
		a.heartbeat(ctx, m.Heartbeat)
	}
	if err != nil {
		a.logger.Error("metadata of the controller cannot be used", "error", err)
		a.session.fail(err)
	}
}

func (a *applier) addBatch(b *controllerv1.Batch, records []metarecord.Record) error {
	if a.session.snapshot != nil {
		return fmt.Errorf("batch at offset %d within a snapshot", b.GetBaseOffset())
	}
	if err := a.loader.Add(b.GetBaseOffset(), b.GetEpoch(), records); err != nil {
		// What the batch changed before the error must not be seen, so the loader starts again.
		a.loader, a.unusable = NewLoader(a.loader.Image()), true
		return err
	}
	return nil
}

// snapshotBuilder makes an image out of the parts of a snapshot.
type snapshotBuilder struct {
	offset int64
	epoch  int32
	delta  *Delta
}

func (b *snapshotBuilder) add(records []metarecord.Record) error {
	if b == nil {
		return fmt.Errorf("part of a snapshot that has not begun")
	}
	return b.delta.Apply(b.offset, b.epoch, records...)
}

func (a *applier) beginSnapshot(m *controllerv1.SnapshotBegin) error {
	if want := a.loader.Image().ClusterID(); want != "" && want != m.GetClusterId() {
		err := fmt.Errorf("the controllers are those of cluster %s, this member belongs to cluster %s", m.GetClusterId(), want)
		select {
		case a.failed <- err:
		default:
		}
		return err
	}
	image := a.loader.Image()
	if m.GetOffset() < image.Offset() && m.GetEpoch() <= image.Epoch() {
		return fmt.Errorf("snapshot at offset %d of controller epoch %d is older than the image at offset %d of epoch %d",
			m.GetOffset(), m.GetEpoch(), image.Offset(), image.Epoch())
	}
	a.session.snapshot = &snapshotBuilder{m.GetOffset(), m.GetEpoch(), NewDelta(Empty(m.GetClusterId()))}
	return nil
}

func (a *applier) endSnapshot(ctx context.Context) error {
	b := a.session.snapshot
	// A snapshot without records has an offset all the same.
	if err := b.add(nil); err != nil {
		return err
	}
	a.session.snapshot = nil
	a.logger.Info("metadata snapshot loaded", "offset", b.offset, "controller_epoch", b.epoch)
	a.unusable = false
	// What was added before the snapshot is in it.
	a.loader.Take()
	a.publishSnapshot(ctx, b.delta.Image())
	return nil
}

// publishSnapshot replaces the image by a snapshot's. The difference is to the image that publishers know.
func (a *applier) publishSnapshot(ctx context.Context, snapshot *Image) {
	a.loader = NewLoader(a.Image())
	a.publish(ctx, a.loader.Reset(snapshot))
}

// publish tells all publishers of a new image, then everybody else.
func (a *applier) publish(ctx context.Context, delta *Delta) {
	if delta == nil {
		return
	}
	a.loaded = true
	image := delta.Image()
	for _, p := range a.publishers {
		p.Publish(ctx, delta, image)
	}
	if ctx.Err() != nil {
		return
	}
	a.image.Store(image)
	a.broadcast()
}

// addSubscribers takes in publishers that are new, and tells them of everything that there is.
func (a *applier) addSubscribers(ctx context.Context) {
	a.mu.Lock()
	added := a.subscribers
	a.subscribers = nil
	a.mu.Unlock()
	for _, p := range added {
		if a.loaded {
			image := a.loader.Image()
			p.Publish(ctx, Diff(Empty(image.ClusterID()), image), image)
		}
		a.publishers = append(a.publishers, p)
	}
}

func (a *applier) heartbeat(ctx context.Context, h *controllerv1.Heartbeat) {
	active := ActiveController{ID: h.GetActiveControllerId(), Address: h.GetActiveControllerAddress(), Epoch: h.GetEpoch()}
	if active != a.ActiveController() {
		a.active.Store(&active)
	}
	if a.ready.Load() {
		return
	}
	// Ready means that publishers have it all, so what waits is published first.
	a.publish(ctx, a.loader.Take())
	if a.loaded && a.loader.NextOffset() > h.GetHighWatermark() {
		a.ready.Store(true)
		a.broadcast()
	}
}

// acknowledge tells the controller what has been applied: at once when nothing else waits, else now and then.
func (a *applier) acknowledge() {
	s := a.session
	if s == nil || s.over || !a.loaded {
		return
	}
	applied := a.Image().Offset()
	wish := a.ackWish.Swap(false)
	busy := len(a.events) > 0 && time.Since(a.lastAck) < ackInterval
	// A follower that has nothing new to tell still shows now and then that it follows.
	silent := time.Since(a.lastAck) >= idleAckInterval
	if !wish && (applied == a.acked && !silent || busy) {
		return
	}
	s.acknowledge(applied)
	a.acked, a.lastAck = applied, time.Now()
}
