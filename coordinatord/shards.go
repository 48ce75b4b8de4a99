package coordinatord

import (
	"context"
	"strconv"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/handler"
	"chancery/coordinatord/internal/txn"
	"chancery/services/metadata"
)

var (
	_ handler.Shards            = (*Server)(nil)
	_ handler.TransactionShards = (*Server)(nil)
)

const (
	// defaultMaxBatchBytes is Kafka's default of max.message.bytes.
	defaultMaxBatchBytes = 1048588
	// maxQueuedBytes bounds the records of one shard that wait for its log.
	maxQueuedBytes = 16 << 20
)

// maxBatchBytes is the largest batch that an internal topic takes.
func maxBatchBytes(image *metadata.Image, topic string) int {
	configured := image.Config(metadata.ResourceTopic, topic)["max.message.bytes"]
	if n, err := strconv.Atoi(configured); err == nil && n > 0 {
		return n
	}
	return defaultMaxBatchBytes
}

// Do carries out a command on a shard. It first catches up with the sender's metadata: the sender may know before us that the
// shard is ours, and also that it was another's meanwhile, whose commits an answer from what we have would miss.
func (s *Server) Do(ctx context.Context, number int32, metadataOffset int64, command group.Command) (group.Reply, error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		return nil, err
	}
	return s.groups.Do(ctx, number, command)
}

// DoEach is Do for commands that follow one another.
func (s *Server) DoEach(ctx context.Context, number int32, metadataOffset int64, commands []group.Command) ([]group.Reply, []error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		errs := make([]error, len(commands))
		for i := range errs {
			errs[i] = err
		}
		return make([]group.Reply, len(commands)), errs
	}
	return s.groups.DoEach(ctx, number, commands)
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
	return s.groups.DoAll(ctx, command)
}

// DoTransaction is Do for a shard of transactions.
func (s *Server) DoTransaction(ctx context.Context, number int32, metadataOffset int64, command txn.Command) (txn.Reply, error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		return nil, err
	}
	return s.transactions.Do(ctx, number, command)
}

// DoAllTransactions is DoAll for the shards of transactions.
func (s *Server) DoAllTransactions(ctx context.Context, metadataOffset int64, command txn.Command) ([]txn.Reply, error) {
	if err := s.catchUp(ctx, metadataOffset); err != nil {
		return nil, err
	}
	return s.transactions.DoAll(ctx, command)
}
