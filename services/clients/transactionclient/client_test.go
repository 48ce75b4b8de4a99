package transactionclient

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// coordinators answers as the test says.
type coordinators struct {
	mu     sync.Mutex
	asked  []*kmsg.AddPartitionsToTxnRequest
	answer func(t *kmsg.AddPartitionsToTxnRequestTransaction) errcode.Code
	err    error
	// gate holds requests up; nil holds none.
	gate chan struct{}
}

func (c *coordinators) Handle(ctx context.Context, _ metadata.ShardKind, _ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = int16(e.GetApiVersion())
	if err := req.ReadFrom(e.GetBody()); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.asked = append(c.asked, req)
	gate, err := c.gate, c.err
	c.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrAddPartitionsToTxnResponse()
	resp.Version = req.Version
	for i := range req.Transactions {
		t := &req.Transactions[i]
		out := kmsg.AddPartitionsToTxnResponseTransaction{TransactionalID: t.TransactionalID}
		for _, topic := range t.Topics {
			o := kmsg.AddPartitionsToTxnResponseTransactionTopic{Topic: topic.Topic}
			for _, p := range topic.Partitions {
				code := errcode.None
				if c.answer != nil {
					code = c.answer(t)
				}
				o.Partitions = append(o.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: int16(code)})
			}
			out.Topics = append(out.Topics, o)
		}
		resp.Transactions = append(resp.Transactions, out)
	}
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

func newClient(t *testing.T, c *coordinators, withTopic bool) *Client {
	image := metadata.Empty("c")
	if withTopic {
		id := uuid.Random()
		d, err := image.Apply(1, 1, &metarecord.TopicRecord{Name: "__transaction_state", TopicID: id},
			&metarecord.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		if err != nil {
			t.Fatal(err)
		}
		image = d.Image()
	}
	client := New(Config{
		Image: func() metadata.Reader { return image }, Coordinators: c, Timeout: time.Minute,
		RetryBackoff: 20 * time.Millisecond, RetryBackoffMax: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(client.Close)
	return client
}

func question(id string, epoch int16, add bool, partition int32) (*Question, chan errcode.Code) {
	answer := make(chan errcode.Code, 2)
	return &Question{TransactionalID: id, ProducerID: 7, ProducerEpoch: epoch, Add: add, Partitions: []Partition{
		{Topic: "t", Partition: partition, Done: func(code errcode.Code) { answer <- code }},
	}}, answer
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			err    error
			answer errcode.Code
			want   errcode.Code
		}{
			{nil, errcode.None, errcode.None},
			{nil, errcode.ProducerFenced, errcode.ProducerFenced},
			{errcode.CoordinatorNotAvailable.Err(), 0, errcode.CoordinatorNotAvailable},
			{context.DeadlineExceeded, 0, errcode.NetworkException},
		} {
			c := newClient(t, &coordinators{err: x.err, answer: func(*kmsg.AddPartitionsToTxnRequestTransaction) errcode.Code { return x.answer }}, true)
			q, answer := question("a", 0, false, 0)
			c.Ask(q)
			if got := <-answer; got != x.want && x.err == nil || x.err != nil && got == errcode.None {
				t.Errorf("%v %s: %s", x.err, x.answer, got)
			}
		}
		c := newClient(t, &coordinators{}, false)
		q, answer := question("a", 0, false, 0)
		c.Ask(q)
		if got := <-answer; got != errcode.CoordinatorNotAvailable {
			t.Error("without the topic:", got)
		}
	})
}

// TestQuestionsGoTogether: what comes while requests are under way goes out in one, but each transactional id only once.
func TestQuestionsGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &coordinators{gate: make(chan struct{})}
		client := newClient(t, c, true)
		var answers []chan errcode.Code
		ask := func(id string, epoch int16, add bool, partition int32) {
			q, answer := question(id, epoch, add, partition)
			client.Ask(q)
			answers = append(answers, answer)
			synctest.Wait()
		}
		for i := range int32(maxInFlight) {
			ask("first", 0, false, i)
		}
		for i := range int32(5) {
			ask("a", 1, true, i)
			ask("b", 1, true, i)
		}
		ask("a", 2, true, 0)
		if len(c.asked) != maxInFlight {
			t.Fatalf("%d requests", len(c.asked))
		}
		close(c.gate)
		for _, answer := range answers {
			if code := <-answer; code != errcode.None {
				t.Fatal(code)
			}
		}
		synctest.Wait()
		if len(c.asked) != maxInFlight+2 {
			t.Fatalf("%d requests", len(c.asked))
		}
		// The two go out beside each other.
		together, alone := c.asked[maxInFlight], c.asked[maxInFlight+1]
		if len(together.Transactions) < len(alone.Transactions) {
			together, alone = alone, together
		}
		if len(together.Transactions) != 2 || len(together.Transactions[0].Topics[0].Partitions) != 5 || len(alone.Transactions) != 1 {
			t.Fatalf("%+v, %+v", together, alone)
		}
		for _, answer := range answers {
			if len(answer) != 0 {
				t.Fatal("a question was answered twice")
			}
		}
	})
}

// TestAddingIsTriedAgain while the transaction before is still being ended, but not for ever, and verifying is not.
func TestAddingIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &coordinators{answer: func(*kmsg.AddPartitionsToTxnRequestTransaction) errcode.Code { return errcode.ConcurrentTransactions }}
		client := newClient(t, c, true)
		for add, want := range map[bool]time.Duration{true: 100 * time.Millisecond, false: 0} {
			q, answer := question("a", 0, add, 0)
			began := time.Now()
			client.Ask(q)
			if code := <-answer; code != errcode.ConcurrentTransactions || time.Since(began) != want {
				t.Fatalf("add %t: %s after %s", add, code, time.Since(began))
			}
		}
	})
}

func TestCloseAnswersEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, &coordinators{gate: make(chan struct{})}, true)
		q, answer := question("a", 0, true, 0)
		client.Ask(q)
		late, lateAnswer := question("b", 0, true, 0)
		synctest.Wait()
		client.Close()
		client.Ask(late)
		if a, b := <-answer, <-lateAnswer; a == errcode.None || b != errcode.CoordinatorNotAvailable {
			t.Fatal(a, b)
		}
	})
}
