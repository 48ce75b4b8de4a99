package coordinatord

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"chancery/coordinatord/internal/marker"
	"chancery/coordinatord/internal/txn"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
)

// transactionVersion is the feature that says how transactions are written.
const transactionVersion = "transaction.version"

// tellPause is the time between attempts to tell a shard something.
const tellPause = 20 * time.Millisecond

type (
	transactionShard  = statemachine.Shard[txn.Command, *txn.Record, txn.Reply]
	transactionShards = shards.Set[txn.Command, *txn.Record, txn.Reply]
)

// newTransactionShard makes a shard of transactions with its log.
func (s *Server) newTransactionShard(spec shards.Spec) *transactionShard {
	name := fmt.Sprintf("%s-%d", internaltopic.TransactionState, spec.Number)
	logger := s.deps.Logger.With(slog.String("shard", name))
	host := &transactionHost{server: s, epoch: spec.Epoch}
	config := s.settings.transactions
	config.Host, config.Logger = host, logger
	config.Version = func() int16 { return s.image.Load().FeatureLevel(transactionVersion) }
	config.MaxBatchBytes = maxBatchBytes(spec.Image, internaltopic.TransactionState)
	host.shard = statemachine.NewShard(statemachine.Config[txn.Command, *txn.Record, txn.Reply]{
		Name: name,
		New: func() statemachine.Machine[txn.Command, *txn.Record, txn.Reply] {
			// What an earlier machine of this shard has sent is not its business any more: the new one sends it again.
			host.life.Add(1)
			return txn.New(config)
		},
		Codec: txn.Codec{Skipped: func(reason string) {
			logger.Warn("a record is left out; it may be left over from a newer version", slog.String("reason", reason))
		}},
		Log:            s.logOf(internaltopic.TransactionState, spec, s.settings.transactionLoadBytes),
		Codecs:         s.codecs,
		MaxBatchBytes:  config.MaxBatchBytes,
		MaxQueuedBytes: maxQueuedBytes,
		AnswerTimeout:  s.settings.answerTimeout,
		Logger:         s.deps.Logger,
	})
	return host.shard
}

// transactionHost does what the transactions of one shard want done.
type transactionHost struct {
	server *Server
	epoch  int32
	shard  *transactionShard
	// life counts the machines that the shard has had.
	life atomic.Int64
}

// WriteMarkers is part of txn.Host.
func (h *transactionHost) WriteMarkers(t *txn.Transaction, resumed bool) {
	life := h.life.Load()
	wanted := func() bool { return h.life.Load() == life && !ended(h.shard) }
	m := marker.Marker{
		TransactionalID: t.ID, ProducerID: t.ProducerID, ProducerEpoch: t.Epoch, CoordinatorEpoch: h.epoch - 1, // the first one is 0, as in Kafka

		Commit: t.State == txn.PrepareCommit, Version: t.ClientVersion, Resumed: resumed,
		Wanted: wanted,
		Done: func() {
			h.tell(wanted, &txn.MarkersWritten{ID: t.ID, Producer: txn.Producer{ID: t.ProducerID, Epoch: t.Epoch}})
		},
	}
	for p := range t.Partitions {
		m.Partitions = append(m.Partitions, marker.Partition(p))
	}
	h.server.markers.Send(m)
}

// tell carries out a command, as soon as the shard serves: it may be about to.
func (h *transactionHost) tell(wanted func() bool, c txn.Command) {
	if h.shard.Tell(c) || !wanted() {
		return
	}
	h.server.background.Go(func() {
		for {
			select {
			case <-time.After(tellPause):
			case <-h.server.life.Done():
				return
			}
			if h.shard.Tell(c) || !wanted() {
				return
			}
		}
	})
}

func ended(s *transactionShard) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// Abandon is part of txn.Host.
func (h *transactionHost) Abandon(list []txn.Abandon) {
	h.server.background.Go(func() {
		for i := range list {
			h.abandon(&list[i])
		}
	})
}

// abandon aborts one transaction. If that does not succeed now, it is tried again with the next ones.
func (h *transactionHost) abandon(c *txn.Abandon) {
	ctx, cancel := context.WithTimeout(h.server.life, h.server.settings.answerTimeout)
	defer cancel()
	var reply txn.EndReply
	for {
		answer, err := h.shard.Do(ctx, c)
		if err != nil {
			return
		}
		reply, _ = answer.(txn.EndReply)
		if !reply.NeedsID {
			break
		}
		if c.NewProducerID, err = h.server.producerIDs.Next(ctx); err != nil {
			h.server.deps.Logger.Warn("no producer ids from the controller", slog.Any("error", err))
			return
		}
	}
	if reply.Code == 0 {
		h.server.deps.Logger.Info("a transaction has taken too long and is aborted", slog.String("transactional_id", c.ID),
			slog.Int64("producer_id", c.Producer.ID))
	}
}

// newMarkerSender makes what has markers written.
func (s *Server) newMarkerSender() *marker.Sender {
	images := images{s.deps.Metadata}
	return marker.New(marker.Config{
		Image: images.Image,
		Await: images.Await,
		Nodes: s.deps.Nodes,
		Group: func(ctx context.Context, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			return s.deps.Coordinators.Handle(ctx, metadata.GroupShard, shard, e)
		},
		Timeout: s.settings.node.Duration("request.timeout.ms"),
		Logger:  s.deps.Logger,
	})
}
