package tiering

import (
	"context"
	"fmt"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
	"chancery/tiering/internal/remotestate"
)

// shard is a shard of remote log metadata.
type shard = statemachine.Shard[remotestate.Command, remotelog.Record, remotestate.Reply]

const (
	// maxBatchBytes bounds a batch of records, each of which takes some hundred bytes.
	maxBatchBytes = 256 << 10
	// maxQueuedBytes bounds the records of one shard that wait for its log.
	maxQueuedBytes = 4 << 20
	// fetchBytes is how much of a shard's log is read at a time.
	fetchBytes = 1 << 20
	// answerTimeout is how long a record may take to become durable before the pass gives up and looks again.
	answerTimeout = 30 * time.Second
)

// ownedShard is a shard that the metadata gives to this instance.
type ownedShard struct {
	number int32
	epoch  int32
	shard  *shard
	// release is closed when the shard is not wanted any more.
	release chan struct{}
	// ctx ends with it; passes over the shard's partitions run in it.
	ctx    context.Context
	cancel context.CancelFunc
}

// images is the metadata as shards see it.
type images struct{ Metadata }

func (i images) Image() metadata.Reader { return i.Metadata.Image() }

// publish follows which shards are ours, and wakes the loop for partitions whose leader or configs have changed.
func (s *Server) publish(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.image.Store(image)
	for resource := range delta.Configs() {
		if resource.Type == metadata.ResourceBroker && resource.Name == "" {
			s.settings.setLimits(image)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return
	}
	if s.assignmentChanged(delta, image) {
		s.assign(ctx, image)
	}
	s.noteChanges(delta)
}

func (s *Server) assignmentChanged(delta *metadata.Delta, image *metadata.Image) bool {
	topic := image.TopicByName(internaltopic.RemoteLogMetadata)
	if topic == nil && !s.topicID.IsZero() || topic != nil && topic.ID != s.topicID {
		return true
	}
	for id := range delta.Shards() {
		if id.Kind == metadata.RemoteLogShard {
			return true
		}
	}
	return false
}

// assign starts the shards that are ours and ends the others. The topic itself may have been made anew.
func (s *Server) assign(ctx context.Context, image *metadata.Image) {
	wanted := map[int32]int32{} // epoch by shard
	topic := image.TopicByName(internaltopic.RemoteLogMetadata)
	remade := topic == nil || topic.ID != s.topicID
	s.topicID = uuid.Zero
	if topic != nil {
		s.topicID = topic.ID
		for id, a := range image.Shards() {
			if id.Kind == metadata.RemoteLogShard && a.Owner == s.config.NodeID && int(id.Shard) < len(topic.Partitions) {
				wanted[id.Shard] = a.Epoch
			}
		}
	}
	for number, o := range s.owned {
		epoch, ok := wanted[number]
		if ok && epoch == o.epoch && !remade {
			delete(wanted, number)
			continue
		}
		delete(s.owned, number)
		delete(wanted, number)
		var next *ownedShard
		if ok {
			next = s.own(ctx, number, epoch, image)
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
		s.run(s.own(ctx, number, epoch, image))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// own makes a shard that is ours. It answers that it loads until it is run.
func (s *Server) own(ctx context.Context, number, epoch int32, image *metadata.Image) *ownedShard {
	o := &ownedShard{number: number, epoch: epoch, shard: s.newShard(number, epoch, image), release: make(chan struct{})}
	o.ctx, o.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.owned[number] = o
	return o
}

// run starts a shard and watches over it.
func (s *Server) run(o *ownedShard) {
	o.shard.Start()
	s.ending.Go(func() { s.watch(o) })
}

// watch starts a shard again that has ended though it is ours: it was refused because another instance owns it, which
// this instance is about to learn, or its log could not be read.
func (s *Server) watch(o *ownedShard) {
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
		o.cancel()
		s.run(s.own(o.ctx, o.number, o.epoch, s.image.Load()))
	}
}

// releaseLocked ends a shard without making the caller wait, and then goes on with after.
func (s *Server) releaseLocked(ctx context.Context, o *ownedShard, after func()) {
	close(o.release)
	o.cancel()
	s.ending.Go(func() {
		o.shard.Stop(ctx)
		if after != nil {
			after()
		}
	})
}

// awaitHandOver waits until the metadata gives this instance no shard any more.
func (s *Server) awaitHandOver(ctx context.Context) {
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
func (s *Server) drain(ctx context.Context) {
	s.mu.Lock()
	s.draining = true
	for number, o := range s.owned {
		s.releaseLocked(ctx, o, nil)
		delete(s.owned, number)
	}
	s.mu.Unlock()
	s.ending.Wait()
}

// newShard makes a shard with its log. The caller holds the lock.
func (s *Server) newShard(number, epoch int32, image *metadata.Image) *shard {
	name := fmt.Sprintf("%s-%d", internaltopic.RemoteLogMetadata, number)
	return statemachine.NewShard(statemachine.Config[remotestate.Command, remotelog.Record, remotestate.Reply]{
		Name: name,
		New: func() statemachine.Machine[remotestate.Command, remotelog.Record, remotestate.Reply] {
			return remotestate.New()
		},
		Codec: remotestate.Codec{},
		Log: statemachine.NewPartition(statemachine.PartitionConfig{
			Topic:       internaltopic.RemoteLogMetadata,
			TopicID:     s.topicID,
			Partition:   number,
			WriterEpoch: epoch,
			AssignedAt:  image.Offset(),
			Images:      images{s.deps.Metadata},
			Nodes:       s.deps.Nodes,
			Codecs:      s.codecs,
			LoadSlots:   s.slots,
			FetchBytes:  fetchBytes,
			Logger:      s.deps.Logger,
		}),
		Codecs:         s.codecs,
		MaxBatchBytes:  maxBatchBytes,
		MaxQueuedBytes: maxQueuedBytes,
		AnswerTimeout:  answerTimeout,
		OnServing:      s.wake,
		Logger:         s.deps.Logger,
	})
}

// shardOf is the number of the shard that keeps a partition's records; false while the topic does not exist.
func shardOf(image *metadata.Image, p remotelog.Partition) (int32, bool) {
	topic := image.TopicByName(internaltopic.RemoteLogMetadata)
	if topic == nil || len(topic.Partitions) == 0 {
		return -1, false
	}
	return hash.RemoteLogMetadataPartition(p.TopicID, p.Partition, len(topic.Partitions)), true
}

// find gives the owned shard of a partition.
func (s *Server) find(p remotelog.Partition) (*ownedShard, error) {
	number, ok := shardOf(s.image.Load(), p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owned[number]; ok && o != nil {
		return o, nil
	}
	return nil, errcode.NotCoordinator.Wrap(fmt.Errorf("shard %d of remote log metadata is not here", number))
}

// View is part of keeper.Metadata.
func (o *ownedShard) View(ctx context.Context, p remotelog.Partition) (*remotestate.View, error) {
	reply, err := o.shard.Do(ctx, remotestate.Get{Partition: p})
	if err != nil {
		return nil, err
	}
	view, _ := reply.(*remotestate.View)
	return view, nil
}

// Write is part of keeper.Metadata.
func (o *ownedShard) Write(ctx context.Context, r remotelog.Record) error {
	_, err := o.shard.Do(ctx, remotestate.Write{Record: r})
	return err
}

// list gives all partitions of the shard.
func (o *ownedShard) list(ctx context.Context) ([]*remotestate.View, error) {
	reply, err := o.shard.Do(ctx, remotestate.List{})
	if err != nil {
		return nil, err
	}
	views, _ := reply.([]*remotestate.View)
	return views, nil
}
