// Package transactionclient asks transaction coordinators whether partitions are in the transactions that are written to them, or has
// them added (KIP-890).
//
// It owns the questions on their way: which go together in one request, and when one is put again. It must never decide what
// an answer means for a batch.
package transactionclient

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
)

const (
	// requestVersion is the version of AddPartitionsToTxn that takes several transactions and says which are only verified.
	requestVersion = 5
	// maxInFlight bounds the requests to one shard. What comes meanwhile goes out together. It is not small, since a request
	// ends with its slowest transaction, which may have to wait for the end of the one before.
	maxInFlight = 16
	// maxTransactions bounds one request.
	maxTransactions = 500
)

// Question asks about partitions of one transaction.
type Question struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	// Add has the partitions added to the transaction, instead of asking whether they are in it.
	Add        bool
	Partitions []Partition

	// giveUp is until when a transaction that is still being ended is asked about again.
	giveUp time.Time
}

// Partition is one partition of a Question.
type Partition struct {
	Topic     string
	Partition int32
	// Done is called once, from any goroutine, with the coordinator's answer. It must not block.
	Done func(code errcode.Code)
}

// Coordinators takes requests to the owners of shards; *coordinatorclient.Client is one.
type Coordinators interface {
	Handle(ctx context.Context, kind metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
}

// Config is what a Client needs.
type Config struct {
	Image        func() metadata.Reader
	Coordinators Coordinators
	// Timeout bounds one request.
	Timeout time.Duration
	// RetryBackoff is the pause before a partition is added again to a transaction whose predecessor is still being ended,
	// and RetryBackoffMax how long that goes on.
	RetryBackoff, RetryBackoffMax time.Duration
	Logger                        *slog.Logger
}

// Client asks questions. Its methods may be called from any goroutine.
type Client struct {
	config Config
	ctx    context.Context // ends all requests; it is not a request's
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	shards map[int32]*queue
	// running are the requests on their way, and waiting the questions that are put again later.
	running sync.WaitGroup
}

// queue is the questions of one shard that wait.
type queue struct {
	waiting  []*Question
	inFlight int
}

// New makes a client.
func New(config Config) *Client {
	c := &Client{config: config, shards: map[int32]*queue{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends all requests; their questions are answered.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// Ask puts a question. It returns at once.
func (c *Client) Ask(q *Question) {
	q.giveUp = time.Now().Add(c.config.RetryBackoffMax)
	c.put(q)
}

func (c *Client) put(q *Question) {
	topic := c.config.Image().TopicByName(internaltopic.TransactionState)
	if topic == nil {
		q.answerAll(errcode.CoordinatorNotAvailable)
		return
	}
	shard := hash.TransactionPartition(q.TransactionalID, len(topic.Partitions))
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		q.answerAll(errcode.CoordinatorNotAvailable)
		return
	}
	s := c.shards[shard]
	if s == nil {
		s = &queue{}
		c.shards[shard] = s
	}
	s.waiting = append(s.waiting, q)
	if s.inFlight < maxInFlight {
		s.inFlight++
		c.running.Go(func() { c.work(shard, s) })
	}
	c.mu.Unlock()
}

// work sends what waits for a shard until nothing does.
func (c *Client) work(shard int32, s *queue) {
	for {
		c.mu.Lock()
		batch := s.take()
		if len(batch) == 0 {
			if s.inFlight--; s.inFlight == 0 {
				delete(c.shards, shard)
			}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.send(shard, batch)
	}
}

// take takes what may go into one request: answers name transactions by their ids, so each id can be there once.
func (s *queue) take() []*Question {
	byID := map[string]*Question{}
	var batch, rest []*Question
	for _, q := range s.waiting {
		first := byID[q.TransactionalID]
		switch {
		case first == nil && len(byID) < maxTransactions:
			byID[q.TransactionalID] = q
			batch = append(batch, q)
		case first != nil && first.Same(q):
			first.Partitions = append(first.Partitions, q.Partitions...)
		default:
			rest = append(rest, q)
		}
	}
	s.waiting = rest
	return batch
}

// Same says whether two questions are about the same transaction in the same way.
func (q *Question) Same(o *Question) bool {
	return q.TransactionalID == o.TransactionalID && q.ProducerID == o.ProducerID && q.ProducerEpoch == o.ProducerEpoch && q.Add == o.Add
}

// send asks the coordinator and gives out its answers.
func (c *Client) send(shard int32, batch []*Question) {
	answers, err := c.request(shard, batch)
	if err != nil {
		c.config.Logger.Debug("transactions cannot be verified", "shard", shard, "error", err)
		code := errcode.Of(err)
		if code == errcode.UnknownServerError || code == errcode.None {
			code = errcode.NetworkException
		}
		for _, q := range batch {
			q.answerAll(code)
		}
		return
	}
	for _, q := range batch {
		c.settle(q, answers[q.TransactionalID])
	}
}

// place is a partition in an answer.
type place struct {
	topic     string
	partition int32
}

// settle gives out the answers to one question, but puts it again where the transaction before is still being ended.
func (c *Client) settle(q *Question, answers map[place]errcode.Code) {
	var again []Partition
	retry := q.Add && time.Now().Before(q.giveUp)
	for _, p := range q.Partitions {
		code, ok := answers[place{p.Topic, p.Partition}]
		switch {
		case !ok:
			p.Done(errcode.UnknownServerError)
		case code == errcode.ConcurrentTransactions && retry:
			again = append(again, p)
		default:
			p.Done(code)
		}
	}
	if len(again) == 0 {
		return
	}
	q.Partitions = again
	c.running.Go(func() {
		select {
		case <-time.After(c.config.RetryBackoff):
		case <-c.ctx.Done():
		}
		c.put(q)
	})
}

// answerAll answers all partitions alike.
func (q *Question) answerAll(code errcode.Code) {
	for _, p := range q.Partitions {
		p.Done(code)
	}
}

// request asks the owner of a shard, and gives the answers by transactional id.
func (c *Client) request(shard int32, batch []*Question) (map[string]map[place]errcode.Code, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = requestVersion
	for _, q := range batch {
		req.Transactions = append(req.Transactions, q.transaction())
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.config.Timeout)
	defer cancel()
	reply, err := c.config.Coordinators.Handle(ctx, metadata.TransactionShard, shard, &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: requestVersion, Body: req.AppendTo(nil), Trusted: true,
	})
	if err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrAddPartitionsToTxnResponse()
	resp.Version = requestVersion
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		return nil, fmt.Errorf("answer to AddPartitionsToTxn: %w", err)
	}
	if resp.ErrorCode != 0 {
		return nil, errcode.Code(resp.ErrorCode).Err()
	}
	answers := make(map[string]map[place]errcode.Code, len(resp.Transactions))
	for _, t := range resp.Transactions {
		codes := map[place]errcode.Code{}
		for _, topic := range t.Topics {
			for _, p := range topic.Partitions {
				codes[place{topic.Topic, p.Partition}] = errcode.Code(p.ErrorCode)
			}
		}
		answers[t.TransactionalID] = codes
	}
	return answers, nil
}

// transaction is a question as it stands in a request.
func (q *Question) transaction() kmsg.AddPartitionsToTxnRequestTransaction {
	t := kmsg.NewAddPartitionsToTxnRequestTransaction()
	t.TransactionalID, t.ProducerID, t.ProducerEpoch, t.VerifyOnly = q.TransactionalID, q.ProducerID, q.ProducerEpoch, !q.Add
	at := map[string]int{}
	for _, p := range q.Partitions {
		i, known := at[p.Topic]
		if !known {
			i = len(t.Topics)
			at[p.Topic] = i
			topic := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
			topic.Topic = p.Topic
			t.Topics = append(t.Topics, topic)
		}
		t.Topics[i].Partitions = append(t.Topics[i].Partitions, p.Partition)
	}
	return t
}
