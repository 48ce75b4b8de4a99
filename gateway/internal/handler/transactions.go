package handler

import (
	"context"
	"fmt"
	"regexp"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/metadata"
)

// Requests of transactional producers that their coordinator answers: AddPartitionsToTxn (24), versions 0 to 5; AddOffsetsToTxn
// (25), 0 to 4; EndTxn (26), 0 to 5; and TxnOffsetCommit (28), 0 to 6, which goes to the group's. Those about one transactional id
// travel byte for byte.

// addPartitionsSeveral is the first version of AddPartitionsToTxn that is about several transactions.
const addPartitionsSeveral = 4

func (h *Handlers) addPartitionsToTxn(ctx context.Context, r *Request) (*wire.Message, error) {
	if r.Version < addPartitionsSeveral {
		return toTransaction(addPartitionsID, addPartitionsFailed)(h, ctx, r)
	}
	return on((*Handlers).addPartitionsToTxns)(h, ctx, r)
}

func addPartitionsID(q *kmsg.AddPartitionsToTxnRequest) string { return q.TransactionalID }

func addPartitionsFailed(q *kmsg.AddPartitionsToTxnRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrAddPartitionsToTxnResponse()
	for _, t := range q.Topics {
		out := kmsg.NewAddPartitionsToTxnResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: p, ErrorCode: int16(code)})
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// addPartitionsToTxns asks for each transaction by itself: clients do not send several.
func (h *Handlers) addPartitionsToTxns(ctx context.Context, r *Request, q *kmsg.AddPartitionsToTxnRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrAddPartitionsToTxnResponse()
	resp.Transactions = make([]kmsg.AddPartitionsToTxnResponseTransaction, len(q.Transactions))
	began := h.Now()
	var wg sync.WaitGroup
	for i := range q.Transactions {
		wg.Go(func() { resp.Transactions[i] = h.addToTransaction(ctx, r, q.Version, &q.Transactions[i]) })
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
	return resp, nil
}

func (h *Handlers) addToTransaction(ctx context.Context, r *Request, version int16, t *kmsg.AddPartitionsToTxnRequestTransaction) kmsg.AddPartitionsToTxnResponseTransaction {
	part := kmsg.NewPtrAddPartitionsToTxnRequest()
	part.Version = version
	part.Transactions = []kmsg.AddPartitionsToTxnRequestTransaction{*t}
	reply, err := h.askShard(ctx, r, metadata.TransactionShard, transactionPlace(t.TransactionalID), part.AppendTo(nil))
	if err == nil {
		answer := kmsg.NewPtrAddPartitionsToTxnResponse()
		answer.Version = version
		if err = answer.ReadFrom(reply); err == nil && len(answer.Transactions) == 1 {
			return answer.Transactions[0]
		}
	}
	out := kmsg.NewAddPartitionsToTxnResponseTransaction()
	out.TransactionalID = t.TransactionalID
	for _, topic := range t.Topics {
		o := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
		o.Topic = topic.Topic
		for _, p := range topic.Partitions {
			o.Partitions = append(o.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: int16(coordinatorCode(err))})
		}
		out.Topics = append(out.Topics, o)
	}
	return out
}

// transactionPlace says which shard has a transactional id.
func transactionPlace(id string) func(n int) int32 {
	return func(n int) int32 { return hash.TransactionPartition(id, n) }
}

// addOffsetsToTxn adds a group to a transaction, by the partition of the offsets topic that it is in: so there must be one.
func (h *Handlers) addOffsetsToTxn(ctx context.Context, r *Request) (*wire.Message, error) {
	if h.shardTopic(ctx, r, metadata.GroupShard) == nil {
		return h.encode(r, addOffsetsFailed(nil, errcode.CoordinatorNotAvailable)), nil
	}
	return toTransaction(addOffsetsID, addOffsetsFailed)(h, ctx, r)
}

func addOffsetsID(q *kmsg.AddOffsetsToTxnRequest) string { return q.TransactionalID }

func addOffsetsFailed(_ *kmsg.AddOffsetsToTxnRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrAddOffsetsToTxnResponse()
	resp.ErrorCode = int16(code)
	return resp
}

func endTxnID(q *kmsg.EndTxnRequest) string { return q.TransactionalID }

func endTxnFailed(_ *kmsg.EndTxnRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrEndTxnResponse()
	resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = int16(code), -1, -1
	return resp
}

func txnOffsetCommitGroup(q *kmsg.TxnOffsetCommitRequest) string { return q.Group }

func txnOffsetCommitFailed(q *kmsg.TxnOffsetCommitRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrTxnOffsetCommitResponse()
	for _, t := range q.Topics {
		out := kmsg.NewTxnOffsetCommitResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, kmsg.TxnOffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: int16(code)})
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// DescribeTransactions (65), version 0: each id is described by the coordinator that has it.
func (h *Handlers) describeTransactions(ctx context.Context, r *Request, q *kmsg.DescribeTransactionsRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrDescribeTransactionsResponse()
	resp.TransactionStates = make([]kmsg.DescribeTransactionsResponseTransactionState, len(q.TransactionalIDs))
	began := h.Now()
	var wg sync.WaitGroup
	for i, id := range q.TransactionalIDs {
		wg.Go(func() { resp.TransactionStates[i] = h.describeTransaction(ctx, r, id) })
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
	return resp, nil
}

func (h *Handlers) describeTransaction(ctx context.Context, r *Request, id string) kmsg.DescribeTransactionsResponseTransactionState {
	out := kmsg.NewDescribeTransactionsResponseTransactionState()
	out.TransactionalID = id
	part := kmsg.NewPtrDescribeTransactionsRequest()
	part.TransactionalIDs = []string{id}
	reply, err := h.askShard(ctx, r, metadata.TransactionShard, transactionPlace(id), part.AppendTo(nil))
	if err == nil {
		answer := kmsg.NewPtrDescribeTransactionsResponse()
		if err = answer.ReadFrom(reply); err == nil && len(answer.TransactionStates) == 1 {
			return answer.TransactionStates[0]
		}
	}
	out.ErrorCode = int16(coordinatorCode(err))
	return out
}

// ListTransactions (66), versions 0 to 2: the transactions of a node, or of the cluster where the client has not said which node
// it means. Version 1 filters by duration, 2 by a pattern of the id; the coordinators do that.
//
// As with ListGroups, a node's transactions are those whose partition of the internal topic it leads.
func (h *Handlers) listTransactions(ctx context.Context, r *Request, q *kmsg.ListTransactionsRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrListTransactionsResponse()
	if p := q.TransactionalIDPattern; p != nil && *p != "" {
		if _, err := regexp.Compile(*p); err != nil {
			resp.ErrorCode = int16(errcode.InvalidRegularExpression)
			return resp, nil
		}
	}
	topic := h.Image().TopicByName(shardTopicName(metadata.TransactionShard))
	if topic == nil {
		return resp, nil // nobody has begun a transaction yet
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	began := h.Now()
	replies, err := h.Coordinator.HandleAll(ctx, metadata.TransactionShard, h.envelope(r, r.Body))
	r.Waited += h.Now().Sub(began)
	if err != nil {
		h.Logger.Warn("transactions cannot be listed", "error", err)
		resp.ErrorCode = int16(coordinatorCode(err))
		return resp, nil
	}
	for _, reply := range replies {
		part := kmsg.NewPtrListTransactionsResponse()
		part.Version = q.Version
		if err := part.ReadFrom(reply.GetBody()); err != nil {
			return nil, fmt.Errorf("a coordinator's answer to ListTransactions: %w", err)
		}
		resp.UnknownStateFilters = part.UnknownStateFilters
		if part.ErrorCode != 0 {
			resp.ErrorCode, resp.TransactionStates = part.ErrorCode, nil
			return resp, nil
		}
		for _, t := range part.TransactionStates {
			shard := hash.TransactionPartition(t.TransactionalID, len(topic.Partitions))
			if r.Conn.NodeID == UnknownNode || topic.Partitions[shard].Leader == r.Conn.NodeID {
				resp.TransactionStates = append(resp.TransactionStates, t)
			}
		}
	}
	return resp, nil
}
