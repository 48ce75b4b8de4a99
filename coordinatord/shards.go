package coordinatord

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/handler"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

var _ handler.Shards = (*Server)(nil)

const (
	// defaultMaxBatchBytes is Kafka's default of max.message.bytes.
	defaultMaxBatchBytes = 1048588
	// maxQueuedBytes bounds the records of one shard that wait for its log.
	maxQueuedBytes = 16 << 20
)

// maxBatchBytes is the largest batch that the offsets topic takes.
func maxBatchBytes(image *metadata.Image) int {
	configured := image.Config(metadata.ResourceTopic, internaltopic.ConsumerOffsets)["max.message.bytes"]
	if n, err := strconv.Atoi(configured); err == nil && n > 0 {
		return n
	}
	return defaultMaxBatchBytes
}

// find gives the shard of a number, nil when it is not ours.
func (s *Server) find(number int32) *shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owned[number]; o != nil {
		return o.shard
	}
	return nil
}

// Do carries out a command on a shard. It first catches up with the sender's metadata: the sender may know before us that the
// shard is ours, and also that it was another's meanwhile, whose commits an answer from what we have would miss.
func (s *Server) Do(ctx context.Context, number int32, metadataOffset int64, command group.Command) (group.Reply, error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		return nil, err
	}
	sh := s.find(number)
	if sh == nil {
		return nil, errcode.NotCoordinator.Wrap(fmt.Errorf("shard %d is not here: %w", number, statemachine.ErrNotDecided))
	}
	return sh.Do(ctx, command)
}

func (s *Server) catchUp(ctx context.Context, metadataOffset int64) error {
	if s.deps.Metadata.Image().Offset() >= metadataOffset {
		return nil
	}
	return s.deps.Metadata.Await(ctx, metadataOffset)
}

// DoAll carries out a command on all shards that are ours.
func (s *Server) DoAll(ctx context.Context, metadataOffset int64, command group.Command) ([]group.Reply, error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		return nil, err
	}
	s.mu.Lock()
	shards := make([]*shard, 0, len(s.owned))
	for _, o := range s.owned {
		shards = append(shards, o.shard)
	}
	s.mu.Unlock()
	replies := make([]group.Reply, len(shards))
	errs := make([]error, len(shards))
	var wg sync.WaitGroup
	for i, sh := range shards {
		wg.Go(func() {
			reply, err := sh.Do(ctx, command)
			if errcode.Of(err) == errcode.NotCoordinator {
				return // it has moved, and its new owner answers for it
			}
			replies[i], errs[i] = reply, err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return replies, ctx.Err()
}
