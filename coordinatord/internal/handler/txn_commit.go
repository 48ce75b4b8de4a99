package handler

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
)

// The versions of TxnOffsetCommit that matter.
const (
	// txnCommitLoading is the first one whose clients understand COORDINATOR_LOAD_IN_PROGRESS.
	txnCommitLoading = 2
	// txnCommitAbortable is the first one whose clients understand TRANSACTION_ABORTABLE.
	txnCommitAbortable = 4
	// txnCommitAdds is the first one that adds the group to the transaction (KIP-890, transaction version 2).
	txnCommitAdds = 5
	// txnCommitTopicIDs is the first one that names topics by id.
	txnCommitTopicIDs = 6
)

// verifyAttempts bounds how often a transaction is asked about again, because a marker came meanwhile.
const verifyAttempts = 3

// TxnOffsetCommit 0-6.
//
//	v2 leader epoch   v3 flexible, members   v4 TRANSACTION_ABORTABLE   v5 adds the group to the transaction   v6 topic ids
//
// As with OffsetCommit, topics and partitions that do not exist are refused one by one.
func (h *Handler) txnOffsetCommit(ctx context.Context, c call, req *kmsg.TxnOffsetCommitRequest) (kmsg.Response, error) {
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool {
		for i := range req.Topics {
			if txnCommitTopic(image, req.Version, &req.Topics[i]) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	command := &group.CommitInTransaction{ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch}
	command.Group, command.MemberID, command.InstanceID, command.Generation = req.Group, req.MemberID, req.InstanceID, req.Generation
	command.APIVersion, command.RetentionMs = req.Version, -1
	var all answers
	for i := range req.Topics {
		addTxnCommits(image, req.Version, &req.Topics[i], command, &all)
	}
	if all.none() {
		return txnCommitResponse(all.finish(group.CommitReply{}, errcode.None)), nil
	}
	reply, code, err := h.commitInTransaction(ctx, c, req, image, command)
	if err != nil {
		return nil, err
	}
	if code == errcode.None {
		code = reply.Code
	}
	if code == errcode.CoordinatorLoadInProgress && req.Version < txnCommitLoading {
		code = errcode.CoordinatorNotAvailable
	}
	return txnCommitResponse(all.finish(reply.CommitReply, code)), nil
}

func txnCommitResponse(topics []topicCodes) *kmsg.TxnOffsetCommitResponse {
	r := kmsg.NewPtrTxnOffsetCommitResponse()
	for _, t := range topics {
		to := kmsg.TxnOffsetCommitResponseTopic{Topic: t.topic, TopicID: t.id}
		for _, p := range t.partitions {
			to.Partitions = append(to.Partitions, kmsg.TxnOffsetCommitResponseTopicPartition{Partition: p.partition, ErrorCode: int16(p.code)})
		}
		r.Topics = append(r.Topics, to)
	}
	return r
}

// commitInTransaction has the shard commit, once the transaction's coordinator has vouched where that is needed.
func (h *Handler) commitInTransaction(ctx context.Context, c call, req *kmsg.TxnOffsetCommitRequest, image metadata.Reader, command *group.CommitInTransaction) (group.TxnCommitReply, errcode.Code, error) {
	var none group.TxnCommitReply
	if req.Group == "" {
		return none, errcode.InvalidGroupId, nil
	}
	if req.ProducerID < 0 {
		if req.TransactionalID == "" {
			return none, errcode.InvalidRequest, nil
		}
		return none, errcode.InvalidProducerIdMapping, nil
	}
	if req.ProducerEpoch < 0 {
		// Nobody has such an epoch. The transaction's coordinator says whether it is the producer's id that is wrong.
		code, err := h.vouchedFor(ctx, c, req)
		if code == errcode.None {
			code = errcode.InvalidProducerEpoch
		}
		return none, code, err
	}
	command.Trusted = req.Version < txnCommitAdds && !h.config.VerifyTransactions(image)
	for range verifyAttempts {
		reply, code, err := do[group.TxnCommitReply](ctx, h, c, command)
		if err != nil || code != errcode.None || reply.Guard == 0 {
			return reply, code, err
		}
		code, err = h.vouchedFor(ctx, c, req)
		if err != nil || code != errcode.None {
			return none, code, err
		}
		command.Verified = reply.Guard
	}
	return none, errcode.InvalidTxnState, nil
}

// vouchedFor asks the transaction's coordinator about the shard's partition.
func (h *Handler) vouchedFor(ctx context.Context, c call, req *kmsg.TxnOffsetCommitRequest) (errcode.Code, error) {
	answer := make(chan errcode.Code, 1)
	h.config.AskTransaction(&transactionclient.Question{
		TransactionalID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Add: req.Version >= txnCommitAdds,
		Partitions: []transactionclient.Partition{{Topic: internaltopic.ConsumerOffsets, Partition: c.shard, Done: func(code errcode.Code) { answer <- code }}},
	})
	select {
	case code := <-answer:
		return unverified(code, req.Version), nil
	case <-ctx.Done():
		return errcode.None, ctx.Err()
	}
}

// unverified is what a client is told when the coordinator does not vouch for its transaction, as Kafka translates it.
func unverified(code errcode.Code, version int16) errcode.Code {
	switch code {
	case errcode.ProducerFenced:
		return errcode.InvalidProducerEpoch
	case errcode.TransactionAbortable:
		if version < txnCommitAbortable {
			return errcode.InvalidTxnState
		}
	case errcode.NetworkException:
		return errcode.CoordinatorLoadInProgress
	case errcode.UnknownTopicOrPartition, errcode.NotEnoughReplicas, errcode.RequestTimedOut:
		return errcode.CoordinatorNotAvailable
	}
	return code
}

// txnCommitTopic finds the topic that a TxnOffsetCommit names; nil when there is none.
func txnCommitTopic(image metadata.Reader, version int16, t *kmsg.TxnOffsetCommitRequestTopic) *metadata.Topic {
	if version >= txnCommitTopicIDs {
		return image.Topic(t.TopicID)
	}
	return image.TopicByName(t.Topic)
}

// addTxnCommits adds the offsets of one topic to the command, and refuses those that cannot be committed by anyone.
func addTxnCommits(image metadata.Reader, version int16, t *kmsg.TxnOffsetCommitRequestTopic, command *group.CommitInTransaction, all *answers) {
	topic := txnCommitTopic(image, version, t)
	if topic == nil {
		all.of(t.Topic, t.TopicID) // also without any partition
	}
	var asked []partitionCode
	for j := range t.Partitions {
		p := &t.Partitions[j]
		o, code := offsetToCommit(topic, version >= txnCommitTopicIDs, p.Partition)
		if code != errcode.None {
			all.refuse(t.Topic, t.TopicID, p.Partition, code)
			continue
		}
		o.Offset, o.LeaderEpoch = p.Offset, p.LeaderEpoch
		if p.Metadata != nil {
			o.Metadata = *p.Metadata
		}
		command.Offsets = append(command.Offsets, o)
		asked = append(asked, partitionCode{partition: p.Partition})
	}
	all.ask(t.Topic, t.TopicID, asked)
}

// WriteTxnMarkers 1-2, for the partition of the offsets topic that is this shard.
func (h *Handler) writeTxnMarkers(ctx context.Context, c call, req *kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrWriteTxnMarkersResponse()
	r.Markers = make([]kmsg.WriteTxnMarkersResponseMarker, len(req.Markers))
	errs := make([]error, len(req.Markers))
	var written sync.WaitGroup
	for i := range req.Markers {
		m, out := &req.Markers[i], &r.Markers[i]
		out.Default()
		out.ProducerID = m.ProducerID
		written.Go(func() {
			code, err := h.endTransaction(ctx, c, m)
			errs[i] = err
			for _, t := range m.Topics {
				topic := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
				topic.Topic = t.Topic
				for _, p := range t.Partitions {
					place := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
					place.Partition, place.ErrorCode = p, int16(code)
					if t.Topic != internaltopic.ConsumerOffsets || p != c.shard {
						place.ErrorCode = int16(errcode.UnknownTopicOrPartition)
					}
					topic.Partitions = append(topic.Partitions, place)
				}
				out.Topics = append(out.Topics, topic)
			}
		})
	}
	written.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// endTransaction writes one marker. A coordinator of transactions expects codes of partitions, not those of groups.
func (h *Handler) endTransaction(ctx context.Context, c call, m *kmsg.WriteTxnMarkersRequestMarker) (errcode.Code, error) {
	switch {
	case m.ProducerID < 0 || m.ProducerEpoch == recordbatch.NoProducerEpoch:
		return errcode.UnknownServerError, nil // as for any other partition
	case m.ProducerEpoch < 0:
		return errcode.InvalidProducerEpoch, nil
	}
	reply, code, err := do[errcode.Code](ctx, h, c, &group.EndTransaction{
		ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, CoordinatorEpoch: m.CoordinatorEpoch,
		Commit: m.Committed, Version: int16(m.TransactionVersion),
	})
	switch code {
	case errcode.None:
		return reply, err
	case errcode.CoordinatorNotAvailable, errcode.CoordinatorLoadInProgress, errcode.NotCoordinator:
		return errcode.NotLeaderOrFollower, err
	}
	return code, err
}
