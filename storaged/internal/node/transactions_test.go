package node_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// fakeCoordinator answers AddPartitionsToTxn as the test says.
type fakeCoordinator struct {
	mu sync.Mutex
	// asked are the requests, each with its transactions.
	asked [][]kmsg.AddPartitionsToTxnRequestTransaction
	// answer decides about a partition. It may block.
	answer func(t *kmsg.AddPartitionsToTxnRequestTransaction, topic string, partition int32) errcode.Code
	err    error
}

func (f *fakeCoordinator) Handle(_ context.Context, kind metadata.ShardKind, _ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = int16(e.GetApiVersion())
	if err := req.ReadFrom(e.GetBody()); err != nil || kind != metadata.TransactionShard {
		return nil, errcode.InvalidRequest.Wrap(err)
	}
	f.mu.Lock()
	f.asked = append(f.asked, req.Transactions)
	answer, err := f.answer, f.err
	f.mu.Unlock()
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
				o.Partitions = append(o.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p, ErrorCode: int16(answer(t, topic.Topic, p))})
			}
			out.Topics = append(out.Topics, o)
		}
		resp.Transactions = append(resp.Transactions, out)
	}
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

func (f *fakeCoordinator) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked)
}

func allInTransaction(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
	return errcode.None
}

// txnCluster is one node with topic "a" and a coordinator.
func txnCluster(t *testing.T, partitions int) (*cluster, uuid.UUID, *fakeCoordinator) {
	return txnClusterOf(t, partitions, 1)
}

// txnClusterOf has several nodes, of which the first leads.
func txnClusterOf(t *testing.T, partitions int, nodes ...int32) (*cluster, uuid.UUID, *fakeCoordinator) {
	f := &fakeCoordinator{answer: allInTransaction}
	c := newCluster(t, 0, nil)
	c.coordinator = f
	for _, id := range nodes {
		c.dirs[id] = t.TempDir()
		c.start(id)
		t.Cleanup(func() { c.stop(id) })
	}
	c.commit(&metarecord.TopicRecord{Name: "__transaction_state", TopicID: uuid.Random()})
	state := c.image.TopicByName("__transaction_state").ID
	c.commit(&metarecord.PartitionRecord{TopicID: state, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	return c, c.topic("a", partitions, nodes...), f
}

// txnBatch is a batch of producer 7.
func txnBatch(epoch int16, sequence int32, value string) storage.Buffers {
	return txnBatchOf(7, epoch, sequence, value)
}

func txnBatchOf(producer int64, epoch int16, sequence int32, value string) storage.Buffers {
	o := recordbatch.NewOptions()
	o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = producer, epoch, sequence, true
	return build(o, []byte(value))
}

func txnAppend(topic uuid.UUID, version int16, records storage.Buffers) *storage.AppendRequest {
	req := appendRequest(topic, storage.AcksAll, records)
	req.APIVersion, req.TransactionalID = version, "tx"
	return req
}

// endTxn writes markers and gives their codes.
func endTxn(t *testing.T, c *cluster, m kmsg.WriteTxnMarkersRequestMarker, partitions ...int32) []errcode.Code {
	t.Helper()
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = 2
	if m.ProducerID == 0 {
		m.ProducerID = 7
	}
	m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "a", Partitions: partitions}}
	req.Markers = []kmsg.WriteTxnMarkersRequestMarker{m}
	reply, err := c.node(1).Handle(t.Context(), &storagev1.HandleRequest{Envelope: &commonv1.Envelope{ApiKey: 27, ApiVersion: 2, Body: req.AppendTo(nil)}})
	if err != nil {
		t.Error(err)
		return nil
	}
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Version = 2
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		t.Error(err)
		return nil
	}
	var codes []errcode.Code
	for _, p := range resp.Markers[0].Topics[0].Partitions {
		codes = append(codes, errcode.Code(p.ErrorCode))
	}
	return codes
}

func none(codes []errcode.Code) bool {
	return len(codes) > 0 && !slices.ContainsFunc(codes, func(c errcode.Code) bool { return c != errcode.None })
}

// TestVerificationAnswers: what a producer is told when the coordinator does not vouch for its transaction.
func TestVerificationAnswers(t *testing.T) {
	for _, x := range []struct {
		version int16
		answer  errcode.Code
		want    errcode.Code
	}{
		{10, errcode.None, errcode.None},
		{11, errcode.None, errcode.None},
		{12, errcode.None, errcode.None},
		{10, errcode.TransactionAbortable, errcode.InvalidTxnState},
		{11, errcode.TransactionAbortable, errcode.TransactionAbortable},
		{12, errcode.ProducerFenced, errcode.InvalidProducerEpoch},
		{12, errcode.InvalidProducerIdMapping, errcode.InvalidProducerIdMapping},
		{11, errcode.ConcurrentTransactions, errcode.NotEnoughReplicas},
		{12, errcode.ConcurrentTransactions, errcode.ConcurrentTransactions},
		{12, errcode.CoordinatorLoadInProgress, errcode.NotEnoughReplicas},
		{12, errcode.NotCoordinator, errcode.NotEnoughReplicas},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, topic, f := txnCluster(t, 1)
			f.answer = func(q *kmsg.AddPartitionsToTxnRequestTransaction, _ string, _ int32) errcode.Code {
				if q.VerifyOnly != (x.version < 12) {
					t.Errorf("version %d: verify only %t", x.version, q.VerifyOnly)
				}
				return x.answer
			}
			r := produce(c.node(1), txnAppend(topic, x.version, txnBatch(0, 0, "0")))
			if r.Error != x.want || r.OutcomeUnknown {
				t.Errorf("version %d, %s: %+v", x.version, x.answer, r)
			}
			if got := c.everything(1, topic); len(got) != 0 == (x.want != errcode.None) {
				t.Errorf("%v is in the log", got)
			}
		})
	}
}

// TestVerificationOncePerTransaction: the coordinator is asked once for all partitions of a request, and again only after a
// marker.
func TestVerificationOncePerTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 3)
		req := txnAppend(topic, 12, txnBatch(0, 0, "0"))
		for p := range int32(2) {
			req.Partitions = append(req.Partitions, storage.PartitionAppend{TopicID: topic, Partition: p + 1, Records: txnBatch(0, 0, "0")})
		}
		if r := produce(c.node(1), req); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		if n := f.requests(); n != 1 || len(f.asked[0]) != 1 || len(f.asked[0][0].Topics[0].Partitions) != 3 {
			t.Fatalf("%d requests: %+v", n, f.asked)
		}
		for sequence := range int32(3) {
			if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, sequence+1, "1"))); r.Error != errcode.None || f.requests() != 1 {
				t.Fatalf("%+v", r)
			}
		}
		if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{ProducerEpoch: 1, Committed: true, TransactionVersion: 2}, 0, 1, 2); !none(codes) {
			t.Fatal(codes)
		}
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 4, "1"))); r.Error != errcode.InvalidProducerEpoch || f.requests() != 1 {
			t.Fatalf("after the marker: %+v", r)
		}
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(1, 0, "1"))); r.Error != errcode.None || f.requests() != 2 {
			t.Fatalf("%+v", r)
		}
	})
}

// TestProducerOrderWhileVerifying: batches that come while the coordinator is asked are written in their order, other producers'
// go on meanwhile.
func TestProducerOrderWhileVerifying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		gate := make(chan struct{})
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			<-gate
			return errcode.None
		}
		done := make(chan storage.PartitionAppendResult, 5)
		for sequence := range int32(5) {
			c.node(1).Append(txnAppend(topic, 12, txnBatch(0, sequence, "x")), func(r *storage.AppendResult) { done <- r.Partitions[0] })
		}
		synctest.Wait()
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("other"))); r.Error != errcode.None || r.BaseOffset != 0 {
			t.Fatalf("%+v", r)
		}
		close(gate)
		for i := range int64(5) {
			if r := <-done; r.Error != errcode.None || r.BaseOffset != i+1 {
				t.Fatalf("%+v", r)
			}
		}
		if f.requests() != 1 {
			t.Fatal(f.requests())
		}
	})
}

// TestMarkerVoidsVerification: an answer that may be about the transaction before the marker does not count.
func TestMarkerVoidsVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		gate := make(chan struct{})
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			if f.requests() == 1 {
				<-gate
				return errcode.None // it was true when it was said
			}
			return errcode.TransactionAbortable
		}
		done := make(chan storage.PartitionAppendResult, 1)
		c.node(1).Append(txnAppend(topic, 11, txnBatch(0, 0, "late")), func(r *storage.AppendResult) { done <- r.Partitions[0] })
		synctest.Wait()
		if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{}, 0); !none(codes) {
			t.Fatal(codes)
		}
		close(gate)
		if r := <-done; r.Error != errcode.TransactionAbortable {
			t.Fatalf("%+v", r)
		}
		if !slices.ContainsFunc(c.node(1).Replicas(), func(r *replica.Replica) bool { return r.View().LastStable == 1 }) {
			t.Fatal("a transaction hangs")
		}
	})
}

// TestVerificationRetriesConcurrentTransactions: while the transaction before is being ended the node itself asks again.
func TestVerificationRetriesConcurrentTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			if f.requests() < 4 {
				return errcode.ConcurrentTransactions
			}
			return errcode.None
		}
		began := time.Now()
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 0, "0"))); r.Error != errcode.None || time.Since(began) != 60*time.Millisecond {
			t.Fatalf("%+v after %s", r, time.Since(began))
		}
	})
}

// TestTimeOutWhileVerifying: an append whose time is over before the coordinator has answered is not written afterwards.
func TestTimeOutWhileVerifying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		gate := make(chan struct{})
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			<-gate
			return errcode.None
		}
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 0, "0"))); r.Error != errcode.RequestTimedOut || r.OutcomeUnknown {
			t.Fatalf("%+v", r)
		}
		close(gate)
		synctest.Wait()
		if got := c.everything(1, topic); len(got) != 0 {
			t.Fatal(got)
		}
	})
}

// TestLowestSequenceFirst: a batch behind one that was refused for the moment does not begin the transaction.
func TestLowestSequenceFirst(t *testing.T) {
	for _, version := range []int16{11, 12} {
		synctest.Test(t, func(t *testing.T) {
			c, topic, f := txnCluster(t, 1)
			f.err = errcode.CoordinatorNotAvailable.Err()
			if r := produce(c.node(1), txnAppend(topic, version, txnBatch(0, 0, "0"))); r.Error != errcode.NotEnoughReplicas {
				t.Fatalf("%+v", r)
			}
			f.err = nil
			if r := produce(c.node(1), txnAppend(topic, version, txnBatch(0, 1, "1"))); r.Error != errcode.OutOfOrderSequenceNumber {
				t.Fatalf("version %d: %+v", version, r)
			}
			for sequence := range int32(2) {
				if r := produce(c.node(1), txnAppend(topic, version, txnBatch(0, sequence, "x"))); r.Error != errcode.None {
					t.Fatalf("%+v", r)
				}
			}
		})
	}
}

// TestEmptyTransactionalID: there is no transaction that the coordinator could vouch for.
func TestEmptyTransactionalID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		req := txnAppend(topic, 12, txnBatch(0, 0, "0"))
		req.TransactionalID = ""
		if r := produce(c.node(1), req); r.Error != errcode.InvalidRequest || f.requests() != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestUnknownEpochFencesNobody: a higher epoch that the coordinator knows nothing of keeps no producer out, and a lower one does not make
// the partition forget what it waits for.
func TestUnknownEpochFencesNobody(t *testing.T) {
	for _, version := range []int16{11, 12} {
		synctest.Test(t, func(t *testing.T) {
			c, topic, f := txnCluster(t, 1)
			f.answer = func(q *kmsg.AddPartitionsToTxnRequestTransaction, _ string, _ int32) errcode.Code {
				if q.ProducerEpoch != 1 {
					return errcode.ProducerFenced
				}
				return errcode.None
			}
			send := func(epoch int16, sequence int32, want errcode.Code) {
				t.Helper()
				if r := produce(c.node(1), txnAppend(topic, version, txnBatch(epoch, sequence, "x"))); r.Error != want {
					t.Fatalf("version %d, epoch %d, sequence %d: %+v, want %s", version, epoch, sequence, r, want)
				}
			}
			f.err = errcode.CoordinatorNotAvailable.Err()
			send(1, 0, errcode.NotEnoughReplicas)
			f.err = nil
			send(0, 0, errcode.InvalidProducerEpoch)
			send(1, 1, errcode.OutOfOrderSequenceNumber)
			send(9, 0, errcode.InvalidProducerEpoch)
			send(8, 0, errcode.InvalidProducerEpoch)
			send(1, 0, errcode.None)
			send(1, 1, errcode.None)
		})
	}
}

// TestCoordinatorIsHeardBeforeTheLogRefuses: what is wrong with the transaction counts more than what is wrong with the batch, and a
// partition is added also for a batch that the log then refuses, as with Apache Kafka.
func TestCoordinatorIsHeardBeforeTheLogRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnCluster(t, 1)
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			return errcode.TransactionAbortable
		}
		if r := produce(c.node(1), txnAppend(topic, 11, txnBatch(0, -1, "x"))); r.Error != errcode.TransactionAbortable {
			t.Fatalf("%+v", r)
		}
		f.answer = allInTransaction
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, -1, "x"))); r.Error != errcode.InvalidRecord || f.requests() != 2 {
			t.Fatalf("%+v after %d requests", r, f.requests())
		}
		bad := txnAppend(topic, 12, txnBatch(0, -1, "x"))
		bad.TransactionalID = ""
		if r := produce(c.node(1), bad); r.Error != errcode.InvalidRequest {
			t.Fatalf("%+v", r)
		}
	})
}

// TestMarkers: what markers do to the last stable offset and to readers, and which are refused.
func TestMarkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, _ := txnCluster(t, 1)
		marker := func(epoch int16, coordinator int32, version int8, committed bool) errcode.Code {
			t.Helper()
			return endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{ProducerEpoch: epoch, CoordinatorEpoch: coordinator, TransactionVersion: version, Committed: committed}, 0)[0]
		}
		write := func(epoch int16, sequence int32) {
			t.Helper()
			if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(epoch, sequence, "x"))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		stable := func(want int64) {
			t.Helper()
			req := fetchRequest(topic, 0)
			req.Isolation = storage.ReadCommitted
			if r := fetch(t, c.node(1), req); r.LastStableOffset != want {
				t.Fatalf("last stable offset is %d, not %d", r.LastStableOffset, want)
			}
		}
		write(3, 0) // 0
		write(3, 1) // 1
		stable(0)
		for _, x := range []struct {
			name        string
			epoch       int16
			coordinator int32
			version     int8
			want        errcode.Code
		}{
			{"an older epoch", 2, 5, 1, errcode.InvalidProducerEpoch},
			{"the epoch of the data, with transaction version 2", 3, 5, 2, errcode.InvalidProducerEpoch},
		} {
			if code := marker(x.epoch, x.coordinator, x.version, false); code != x.want {
				t.Fatalf("%s: %s", x.name, code)
			}
		}
		stable(0)
		if code := marker(4, 5, 2, false); code != errcode.None { // 2
			t.Fatal(code)
		}
		stable(3)
		if code := marker(4, 5, 2, false); code != errcode.None { // 3: the answer was lost, and it comes again
			t.Fatal(code)
		}
		if code := marker(4, 4, 1, false); code != errcode.TransactionCoordinatorFenced {
			t.Fatal(code)
		}
		write(4, 0) // 4
		if code := marker(4, 5, 1, true); code != errcode.None {
			t.Fatal(code)
		}
		stable(6)
		req := fetchRequest(topic, 0)
		req.Isolation = storage.ReadCommitted
		if r := fetch(t, c.node(1), req); !slices.Equal(r.AbortedTransactions, []storage.AbortedTransaction{{ProducerID: 7, FirstOffset: 0}}) {
			t.Fatalf("%+v", r.AbortedTransactions)
		}
		if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{}, 9); codes[0] != errcode.UnknownTopicOrPartition {
			t.Fatal(codes)
		}
		for _, m := range []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: -1, ProducerEpoch: 4}, {ProducerID: 99, ProducerEpoch: -1}, {ProducerID: -1, ProducerEpoch: -1}} {
			if codes := endTxn(t, c, m, 0); codes[0] != errcode.UnknownServerError {
				t.Fatalf("producer %d at epoch %d: %v", m.ProducerID, m.ProducerEpoch, codes)
			}
		}
		for _, id := range []int64{99, 12345} {
			if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{ProducerID: id, ProducerEpoch: -5}, 0); codes[0] != errcode.InvalidProducerEpoch {
				t.Fatalf("producer %d at an epoch of long ago: %v", id, codes)
			}
		}
		stable(6)
	})
}

// TestAbortedTransactionsAreSorted by where they begin, in whatever order they end: some clients go through them with the records.
func TestAbortedTransactionsAreSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, _ := txnCluster(t, 1)
		producers := []int64{11, 12, 13}
		for _, p := range producers {
			req := txnAppend(topic, 12, txnBatchOf(p, 0, 0, "x"))
			req.TransactionalID = fmt.Sprint(p)
			if r := produce(c.node(1), req); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		for _, p := range []int64{13, 11, 12} {
			if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{ProducerID: p, ProducerEpoch: 1, TransactionVersion: 2}, 0); !none(codes) {
				t.Fatal(codes)
			}
		}
		req := fetchRequest(topic, 0)
		req.Isolation = storage.ReadCommitted
		want := []storage.AbortedTransaction{{ProducerID: 11, FirstOffset: 0}, {ProducerID: 12, FirstOffset: 1}, {ProducerID: 13, FirstOffset: 2}}
		if r := fetch(t, c.node(1), req); r.LastStableOffset != 6 || !slices.Equal(r.AbortedTransactions, want) {
			t.Fatalf("%d %+v", r.LastStableOffset, r.AbortedTransactions)
		}
	})
}

// TestReadersWaitForTheMarker: a read_committed fetch waits while a transaction is open, and comes back with its end, from the leader
// and from a follower.
func TestReadersWaitForTheMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, _ := txnClusterOf(t, 1, 1, 2)
		type read struct {
			node int32
			at   time.Time
			storage.FetchPartitionResult
		}
		results := make(chan read, 2)
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 0, "x"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		for _, id := range []int32{1, 2} {
			go func() {
				req := fetchRequest(topic, 0)
				req.Isolation, req.MaxWaitMs, req.RackID = storage.ReadCommitted, 60_000, "anywhere"
				results <- read{id, time.Now(), fetch(t, c.node(id), req)}
			}()
		}
		pass(10 * time.Second)
		began := time.Now()
		if len(results) != 0 {
			t.Fatal("what is open was read")
		}
		if codes := endTxn(t, c, kmsg.WriteTxnMarkersRequestMarker{ProducerEpoch: 1, TransactionVersion: 2}, 0); !none(codes) {
			t.Fatal(codes)
		}
		for range 2 {
			r := <-results
			if time.Since(began) > 5*time.Second || r.LastStableOffset != 2 || r.Records.Len() == 0 ||
				!slices.Equal(r.AbortedTransactions, []storage.AbortedTransaction{{ProducerID: 7, FirstOffset: 0}}) {
				t.Fatalf("node %d, %s after the marker: %+v", r.node, time.Since(began), r)
			}
			r.Records.Release()
		}
	})
}

// TestRetryAfterAnotherLeader: the new leader knows the producer's batches and its open transaction from the log.
func TestRetryAfterAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnClusterOf(t, 1, 1, 2)
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 0, "x"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		c.elect(topic, 2, 2)
		if r := produce(c.node(2), txnAppend(topic, 12, txnBatch(0, 0, "x"))); r.Error != errcode.None || r.BaseOffset != 0 {
			t.Fatalf("the repeated batch: %+v", r)
		}
		if r := produce(c.node(2), txnAppend(topic, 12, txnBatch(0, 1, "y"))); r.Error != errcode.None || r.BaseOffset != 1 || f.requests() != 1 {
			t.Fatalf("%+v after %d questions", r, f.requests())
		}
		if r := produce(c.node(1), txnAppend(topic, 12, txnBatch(0, 2, "z"))); r.Error != errcode.NotLeaderOrFollower {
			t.Fatalf("%+v", r)
		}
	})
}

// TestLosingTheLeadershipWhileVerifying: what waits aside was not written, and the producer is told who leads.
func TestLosingTheLeadershipWhileVerifying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, topic, f := txnClusterOf(t, 1, 1, 2)
		gate := make(chan struct{})
		f.answer = func(*kmsg.AddPartitionsToTxnRequestTransaction, string, int32) errcode.Code {
			<-gate
			return errcode.None
		}
		done := make(chan storage.PartitionAppendResult, 2)
		for sequence := range int32(2) {
			c.node(1).Append(txnAppend(topic, 12, txnBatch(0, sequence, "x")), func(r *storage.AppendResult) { done <- r.Partitions[0] })
		}
		synctest.Wait()
		c.elect(topic, 2, 2, 1)
		for range 2 {
			if r := <-done; r.Error != errcode.NotLeaderOrFollower || r.OutcomeUnknown {
				t.Fatalf("%+v", r)
			}
		}
		close(gate)
		pass(time.Second)
		if got := c.everything(1, topic); len(got) != 0 {
			t.Fatal(got)
		}
	})
}

// TestMarkersOfShards: nobody but the owner of a shard writes into its log.
func TestMarkersOfShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := txnCluster(t, 1)
		c.topic("__consumer_offsets", 1, 1)
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		req.Version = 1
		req.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: 7, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "__consumer_offsets", Partitions: []int32{0}}}}}
		reply, err := c.node(1).Handle(t.Context(), &storagev1.HandleRequest{Envelope: &commonv1.Envelope{ApiKey: 27, ApiVersion: 1, Body: req.AppendTo(nil)}})
		if err != nil {
			t.Fatal(err)
		}
		resp := kmsg.NewPtrWriteTxnMarkersResponse()
		resp.Version = 1
		if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil || errcode.Code(resp.Markers[0].Topics[0].Partitions[0].ErrorCode) != errcode.InvalidRequest {
			t.Fatalf("%v %+v", err, resp)
		}
	})
}
