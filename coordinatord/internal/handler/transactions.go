package handler

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/txn"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
)

// TransactionShards carries out commands on the transaction shards of this instance, as Shards does on those of groups.
type TransactionShards interface {
	DoTransaction(ctx context.Context, shard int32, metadataOffset int64, command txn.Command) (txn.Reply, error)
	DoAllTransactions(ctx context.Context, metadataOffset int64, command txn.Command) ([]txn.Reply, error)
}

// TransactionConfig is what is checked before a shard is asked, and what a shard cannot make.
type TransactionConfig struct {
	// MaxTimeout is transaction.max.timeout.ms.
	MaxTimeout time.Duration
	// ProducerID gives a producer id that nobody has.
	ProducerID func(ctx context.Context) (int64, error)
}

// Transactions answers the requests about transactional ids. Its methods may be called from any goroutine.
type Transactions struct {
	config TransactionConfig
	shards TransactionShards
	Handler
}

// The versions of the requests about transactions that matter.
const (
	// fencedInit, fencedAdd and fencedEnd are the first versions whose clients understand PRODUCER_FENCED.
	fencedInit = 4
	fencedAdd  = 2
	fencedEnd  = 2
	// addSeveral is the first version of AddPartitionsToTxn with several transactions, which storage nodes send.
	addSeveral = 4
	// endBumps is the first version of EndTxn that gives the producer another epoch.
	endBumps = 5
	// bumping is the transaction.version of clients whose transactions have an epoch each.
	bumping int16 = 2
)

// NewTransactions makes a handler.
func NewTransactions(config TransactionConfig, shards TransactionShards, images Images) *Transactions {
	h := &Transactions{config: config, shards: shards, Handler: Handler{images: images}}
	h.apis = map[kmsg.Key]api{
		kmsg.InitProducerID:       {0, 5, typed(h.initProducerID)},
		kmsg.AddPartitionsToTxn:   {0, 5, typed(h.addPartitions)},
		kmsg.AddOffsetsToTxn:      {0, 4, typed(h.addOffsets)},
		kmsg.EndTxn:               {0, 5, typed(h.endTxn)},
		kmsg.DescribeTransactions: {0, 0, typed(h.describeTransactions)},
		kmsg.ListTransactions:     {0, 2, typed(h.listTransactions)},
	}
	return h
}

// doTxn carries out a command on the call's shard, as do does on that of a group.
func doTxn[A any](ctx context.Context, h *Transactions, c call, command txn.Command) (A, errcode.Code, error) {
	var none A
	reply, err := h.shards.DoTransaction(ctx, c.shard, c.envelope.GetMetadataOffset(), command)
	if err != nil {
		if elsewhere(ctx, err) {
			return none, errcode.None, err
		}
		return none, errcode.Of(err), nil
	}
	own, ok := reply.(A)
	if !ok {
		return none, errcode.None, fmt.Errorf("a %T where another reply was expected", reply)
	}
	return own, errcode.None, nil
}

// newProducerID gets a producer id for a shard that needs one.
func (h *Transactions) newProducerID(ctx context.Context) (int64, errcode.Code, error) {
	id, refused := h.config.ProducerID(ctx)
	switch {
	case ctx.Err() != nil:
		return 0, errcode.None, ctx.Err()
	case refused != nil:
		// The producer asks again, as it does of a Kafka broker that has run out of ids for the moment.
		return 0, errcode.CoordinatorLoadInProgress, nil //nolint:nilerr // the code is the answer
	}
	return id, errcode.None, nil
}

// olderFenced is PRODUCER_FENCED in the words of clients that do not know it.
func olderFenced(code errcode.Code, version, since int16) errcode.Code {
	if code == errcode.ProducerFenced && version < since {
		return errcode.InvalidProducerEpoch
	}
	return code
}

// InitProducerId 0-5, for a transactional id.
func (h *Transactions) initProducerID(ctx context.Context, c call, req *kmsg.InitProducerIDRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrInitProducerIDResponse()
	r.ProducerID, r.ProducerEpoch = recordbatch.NoProducerID, recordbatch.NoProducerEpoch
	timeout := time.Duration(req.TransactionTimeoutMillis) * time.Millisecond
	switch {
	case req.TransactionalID == nil, *req.TransactionalID == "", (req.ProducerID == -1) != (req.ProducerEpoch == -1):
		r.ErrorCode = int16(errcode.InvalidRequest)
		return r, nil
	case timeout <= 0, timeout > h.config.MaxTimeout:
		r.ErrorCode = int16(errcode.InvalidTransactionTimeout)
		return r, nil
	}
	command := &txn.Init{ID: *req.TransactionalID, TimeoutMs: req.TransactionTimeoutMillis, NewProducerID: recordbatch.NoProducerID}
	if req.ProducerID != -1 {
		command.Expected = &txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	}
	reply, code, err := doTxn[txn.InitReply](ctx, h, c, command)
	for err == nil && code == errcode.None && reply.NeedsID {
		if command.NewProducerID, code, err = h.newProducerID(ctx); err == nil && code == errcode.None {
			reply, code, err = doTxn[txn.InitReply](ctx, h, c, command)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case code == errcode.None:
		code = reply.Code
	}
	if r.ErrorCode = int16(olderFenced(code, req.Version, fencedInit)); code == errcode.None {
		r.ProducerID, r.ProducerEpoch = reply.Producer.ID, reply.Producer.Epoch
	}
	return r, nil
}

// AddPartitionsToTxn 0-5.
//
//	v3 flexible   v4 several transactions, some of which are only verified: storage nodes send it   v5 TRANSACTION_ABORTABLE
func (h *Transactions) addPartitions(ctx context.Context, c call, req *kmsg.AddPartitionsToTxnRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrAddPartitionsToTxnResponse()
	list := req.Transactions
	if req.Version < addSeveral {
		one := kmsg.NewAddPartitionsToTxnRequestTransaction()
		one.TransactionalID, one.ProducerID, one.ProducerEpoch = req.TransactionalID, req.ProducerID, req.ProducerEpoch
		for _, t := range req.Topics {
			one.Topics = append(one.Topics, kmsg.AddPartitionsToTxnRequestTransactionTopic{Topic: t.Topic, Partitions: t.Partitions})
		}
		list = []kmsg.AddPartitionsToTxnRequestTransaction{one}
	}
	answers := make([]kmsg.AddPartitionsToTxnResponseTransaction, len(list))
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() { answers[i], errs[i] = h.addToTransaction(ctx, c, req.Version, &list[i]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	if req.Version >= addSeveral {
		r.Transactions = answers
		return r, nil
	}
	for _, t := range answers[0].Topics {
		out := kmsg.NewAddPartitionsToTxnResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: p.Partition, ErrorCode: p.ErrorCode})
		}
		r.Topics = append(r.Topics, out)
	}
	return r, nil
}

// addToTransaction answers for one transaction. When a partition does not exist none is added.
func (h *Transactions) addToTransaction(ctx context.Context, c call, version int16, t *kmsg.AddPartitionsToTxnRequestTransaction) (kmsg.AddPartitionsToTxnResponseTransaction, error) {
	answer := kmsg.NewAddPartitionsToTxnResponseTransaction()
	answer.TransactionalID = t.TransactionalID
	if t.VerifyOnly {
		t.Topics = distinct(t.Topics)
	}
	var partitions []txn.Partition
	for _, topic := range t.Topics {
		for _, p := range topic.Partitions {
			partitions = append(partitions, txn.Partition{Topic: topic.Topic, Partition: p})
		}
	}
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool { return missing(image, partitions) == 0 })
	if err != nil {
		return answer, err
	}
	codes := make([]errcode.Code, len(partitions))
	switch producer := (txn.Producer{ID: t.ProducerID, Epoch: t.ProducerEpoch}); {
	case missing(image, partitions) > 0:
		for i, p := range partitions {
			codes[i] = errcode.OperationNotAttempted
			if !exists(image, p) {
				codes[i] = errcode.UnknownTopicOrPartition
			}
		}
	case t.TransactionalID == "":
		fill(codes, errcode.InvalidRequest)
	case t.VerifyOnly:
		reply, code, err := doTxn[txn.VerifyReply](ctx, h, c, &txn.Verify{ID: t.TransactionalID, Producer: producer, Partitions: partitions})
		switch {
		case err != nil:
			return answer, err
		case code != errcode.None:
			fill(codes, code)
		case reply.Code != errcode.None:
			fill(codes, reply.Code)
		default:
			codes = reply.Codes
		}
	default:
		command := &txn.Add{ID: t.TransactionalID, Producer: producer, Partitions: partitions}
		if version >= addSeveral {
			command.Version = bumping
		}
		code, err := h.add(ctx, c, command)
		if err != nil {
			return answer, err
		}
		fill(codes, olderFenced(code, version, fencedAdd))
	}
	for _, topic := range t.Topics {
		out := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
		out.Topic = topic.Topic
		for _, p := range topic.Partitions {
			out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: int16(codes[0])})
			codes = codes[1:]
		}
		answer.Topics = append(answer.Topics, out)
	}
	return answer, nil
}

// distinct names every topic and partition once, and no topic without partitions, as Apache Kafka answers to verifications.
func distinct(topics []kmsg.AddPartitionsToTxnRequestTransactionTopic) []kmsg.AddPartitionsToTxnRequestTransactionTopic {
	var once []kmsg.AddPartitionsToTxnRequestTransactionTopic
	place := make(map[string]int, len(topics))
	named := map[txn.Partition]bool{}
	for _, topic := range topics {
		for _, p := range topic.Partitions {
			if named[txn.Partition{Topic: topic.Topic, Partition: p}] {
				continue
			}
			named[txn.Partition{Topic: topic.Topic, Partition: p}] = true
			i, ok := place[topic.Topic]
			if !ok {
				i = len(once)
				place[topic.Topic] = i
				once = append(once, kmsg.AddPartitionsToTxnRequestTransactionTopic{Topic: topic.Topic})
			}
			once[i].Partitions = append(once[i].Partitions, p)
		}
	}
	return once
}

func (h *Transactions) add(ctx context.Context, c call, command *txn.Add) (errcode.Code, error) {
	reply, code, err := doTxn[errcode.Code](ctx, h, c, command)
	if code == errcode.None {
		code = reply
	}
	return code, err
}

func fill(codes []errcode.Code, code errcode.Code) {
	for i := range codes {
		codes[i] = code
	}
}

func exists(image metadata.Reader, p txn.Partition) bool {
	t := image.TopicByName(p.Topic)
	return t != nil && p.Partition >= 0 && int(p.Partition) < len(t.Partitions)
}

// missing counts the partitions that do not exist.
func missing(image metadata.Reader, partitions []txn.Partition) int {
	n := 0
	for _, p := range partitions {
		if !exists(image, p) {
			n++
		}
	}
	return n
}

// AddOffsetsToTxn 0-4: adds the partition of the offsets topic that a group's offsets are in.
func (h *Transactions) addOffsets(ctx context.Context, c call, req *kmsg.AddOffsetsToTxnRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrAddOffsetsToTxnResponse()
	if req.TransactionalID == "" {
		r.ErrorCode = int16(errcode.InvalidRequest)
		return r, nil
	}
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool { return image.TopicByName(internaltopic.ConsumerOffsets) != nil })
	if err != nil {
		return nil, err
	}
	topic := image.TopicByName(internaltopic.ConsumerOffsets)
	if topic == nil {
		r.ErrorCode = int16(errcode.CoordinatorNotAvailable)
		return r, nil
	}
	partition := txn.Partition{Topic: internaltopic.ConsumerOffsets, Partition: hash.GroupPartition(req.Group, len(topic.Partitions))}
	code, err := h.add(ctx, c, &txn.Add{
		ID: req.TransactionalID, Producer: txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, Partitions: []txn.Partition{partition},
	})
	if err != nil {
		return nil, err
	}
	r.ErrorCode = int16(olderFenced(code, req.Version, fencedAdd))
	return r, nil
}

// EndTxn 0-5. Version 5 gives the producer what it goes on with.
func (h *Transactions) endTxn(ctx context.Context, c call, req *kmsg.EndTxnRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrEndTxnResponse()
	r.ProducerID, r.ProducerEpoch = recordbatch.NoProducerID, recordbatch.NoProducerEpoch
	if req.TransactionalID == "" {
		r.ErrorCode = int16(errcode.InvalidRequest)
		return r, nil
	}
	command := &txn.End{
		ID: req.TransactionalID, Producer: txn.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}, Commit: req.Commit,
		NewProducerID: recordbatch.NoProducerID,
	}
	if req.Version >= endBumps {
		command.Version = bumping
	}
	reply, code, err := doTxn[txn.EndReply](ctx, h, c, command)
	for err == nil && code == errcode.None && reply.NeedsID {
		if command.NewProducerID, code, err = h.newProducerID(ctx); err == nil && code == errcode.None {
			reply, code, err = doTxn[txn.EndReply](ctx, h, c, command)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case code == errcode.None:
		code = reply.Code
	}
	if r.ErrorCode = int16(olderFenced(code, req.Version, fencedEnd)); code == errcode.None {
		r.ProducerID, r.ProducerEpoch = reply.Producer.ID, reply.Producer.Epoch
	}
	return r, nil
}

// DescribeTransactions 0. The ids of one request are all of this shard.
func (h *Transactions) describeTransactions(ctx context.Context, c call, req *kmsg.DescribeTransactionsRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrDescribeTransactionsResponse()
	for _, id := range req.TransactionalIDs {
		out := kmsg.NewDescribeTransactionsResponseTransactionState()
		out.TransactionalID = id
		if id == "" {
			out.ErrorCode = int16(errcode.InvalidRequest)
			r.TransactionStates = append(r.TransactionStates, out)
			continue
		}
		t, code, err := doTxn[*txn.Transaction](ctx, h, c, &txn.Describe{ID: id})
		switch {
		case err != nil:
			return nil, err
		case code == errcode.None && t == nil:
			code = errcode.TransactionalIdNotFound
		}
		if out.ErrorCode = int16(code); code == errcode.None {
			describeTransaction(t, &out)
		}
		r.TransactionStates = append(r.TransactionStates, out)
	}
	return r, nil
}

func describeTransaction(t *txn.Transaction, out *kmsg.DescribeTransactionsResponseTransactionState) {
	out.State, out.TimeoutMillis, out.StartTimestamp = t.State.String(), t.TimeoutMs, t.StartMs
	out.ProducerID, out.ProducerEpoch = t.ProducerID, t.Epoch
	for _, p := range t.SortedPartitions() {
		n := len(out.Topics)
		if n == 0 || out.Topics[n-1].Topic != p.Topic {
			out.Topics = append(out.Topics, kmsg.DescribeTransactionsResponseTransactionStateTopic{Topic: p.Topic})
			n++
		}
		out.Topics[n-1].Partitions = append(out.Topics[n-1].Partitions, p.Partition)
	}
}

// ListTransactions 0-2. Version 1 filters by duration, 2 by a pattern of the id.
func (h *Transactions) listTransactions(ctx context.Context, c call, req *kmsg.ListTransactionsRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrListTransactionsResponse()
	command := &txn.List{ProducerIDs: req.ProducerIDFilters, LongerThanMs: -1, ByState: len(req.StateFilters) > 0}
	for _, s := range req.StateFilters {
		if txn.KnownState(s) {
			command.States = append(command.States, s)
		} else {
			r.UnknownStateFilters = append(r.UnknownStateFilters, s)
		}
	}
	if req.Version >= 1 {
		command.LongerThanMs = req.DurationFilterMillis
	}
	if p := req.TransactionalIDPattern; req.Version >= 2 && p != nil && *p != "" {
		pattern, bad := regexp.Compile("^(?:" + *p + ")$")
		if bad != nil {
			r.ErrorCode = int16(errcode.InvalidRegularExpression)
			r.UnknownStateFilters = nil
			return r, nil //nolint:nilerr // the response says it
		}
		command.Pattern = pattern
	}
	replies, err := h.shards.DoAllTransactions(ctx, c.envelope.GetMetadataOffset(), command)
	if err != nil {
		if elsewhere(ctx, err) {
			return nil, err
		}
		r.ErrorCode = int16(errcode.Of(err))
		return r, nil
	}
	for _, reply := range replies {
		list, _ := reply.([]txn.Listed)
		for _, t := range list {
			r.TransactionStates = append(r.TransactionStates, kmsg.ListTransactionsResponseTransactionState{
				TransactionalID: t.ID, ProducerID: t.ProducerID, TransactionState: t.State,
			})
		}
	}
	return r, nil
}
