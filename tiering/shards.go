package tiering

import (
	"context"
	"fmt"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/remotelog"
	"chancery/services/metadata"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
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

// shardSet is the shards that the metadata gives to this instance.
type shardSet = shards.Set[remotestate.Command, remotelog.Record, remotestate.Reply]

// ownedShard is one of them; passes over its partitions run in its context.
type ownedShard struct {
	*shards.Owned[remotestate.Command, remotelog.Record, remotestate.Reply]
}

// serving are the shards that have been loaded, by number.
func (s *Server) serving() map[int32]ownedShard {
	serving := map[int32]ownedShard{}
	for number, o := range s.shards.All() {
		if o.Shard.Serving() {
			serving[number] = ownedShard{o}
		}
	}
	return serving
}

// images is the metadata as shards see it.
type images struct{ Metadata }

func (i images) Image() metadata.Reader { return i.Metadata.Image() }

// publish follows which shards are ours, and wakes the loop for partitions whose leader or configs have changed.
func (s *Server) publish(ctx context.Context, delta *metadata.Delta, image *metadata.Image) {
	s.image.Store(image)
	for resource := range delta.Configs() {
		if resource.Type == metadata.ResourceBroker {
			s.followLimits(image)
			break
		}
	}
	s.shards.Follow(ctx, delta, image)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteChanges(delta)
}

// missStore complains, once, where tiered storage is off although topics are tiered: an operator has to know why what is remote
// cannot be read.
func (s *Server) missStore(_ context.Context, delta *metadata.Delta, image *metadata.Image) {
	if s.missed.Load() {
		return
	}
	for resource := range delta.Configs() {
		name := resource.Name
		if resource.Type == metadata.ResourceTopic && image.TopicByName(name) != nil && s.topicConfig(image, name).RemoteStorageEnable {
			s.missed.Store(true)
			s.deps.Logger.Error("a topic has remote.storage.enable=true, but remote.log.storage.system.enable is not set: what is remote cannot be read, "+
				"and nothing is copied or deleted; set it, or delete all such topics first", "topic", name)
			return
		}
	}
}

// newShard makes a shard with its log.
func (s *Server) newShard(spec shards.Spec) *shard {
	name := fmt.Sprintf("%s-%d", internaltopic.RemoteLogMetadata, spec.Number)
	return statemachine.NewShard(statemachine.Config[remotestate.Command, remotelog.Record, remotestate.Reply]{
		Name: name,
		New: func() statemachine.Machine[remotestate.Command, remotelog.Record, remotestate.Reply] {
			return remotestate.New()
		},
		Codec: remotestate.Codec{},
		Log: statemachine.NewPartition(statemachine.PartitionConfig{
			Topic:       internaltopic.RemoteLogMetadata,
			TopicID:     spec.TopicID,
			Partition:   spec.Number,
			WriterEpoch: spec.Epoch,
			AssignedAt:  spec.Image.Offset(),
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
func (s *Server) find(p remotelog.Partition) (ownedShard, error) {
	number, ok := shardOf(s.image.Load(), p)
	if o := s.shards.Find(number); ok && o != nil {
		return ownedShard{o}, nil
	}
	return ownedShard{}, errcode.NotCoordinator.Wrap(fmt.Errorf("shard %d of remote log metadata is not here", number))
}

// View is part of keeper.Metadata.
func (o ownedShard) View(ctx context.Context, p remotelog.Partition) (*remotestate.View, error) {
	reply, err := o.Shard.Do(ctx, remotestate.Get{Partition: p})
	if err != nil {
		return nil, err
	}
	view, _ := reply.(*remotestate.View)
	return view, nil
}

// Write is part of keeper.Metadata.
func (o ownedShard) Write(ctx context.Context, r remotelog.Record) error {
	_, err := o.Shard.Do(ctx, remotestate.Write{Record: r})
	return err
}

// list gives all partitions of the shard.
func (o ownedShard) list(ctx context.Context) ([]*remotestate.View, error) {
	reply, err := o.Shard.Do(ctx, remotestate.List{})
	if err != nil {
		return nil, err
	}
	views, _ := reply.([]*remotestate.View)
	return views, nil
}
