package handler

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
)

// txnShards is the number of shards of transactions in these tests.
const txnShards = 10

func newTxnCluster() *lookUpCluster {
	leaders := make([]int32, txnShards)
	for i := range leaders {
		leaders[i] = int32(i%2) + 1
	}
	return newLookUpCluster(map[string][]int32{"__transaction_state": leaders, "__consumer_offsets": {1, 2, 1}, "a": {1, 2}})
}

// decoded reads what a coordinator or node was asked.
func decoded[R kmsg.Request](t *testing.T, e *commonv1.Envelope, into R) R {
	into.SetVersion(int16(e.GetApiVersion()))
	if err := into.ReadFrom(e.GetBody()); err != nil {
		t.Error(err)
	}
	return into
}

// TestTransactionalRequestsGoToTheirShard, byte for byte, and what no coordinator answers has the code that clients repeat.
func TestTransactionalRequestsGoToTheirShard(t *testing.T) {
	requests := []kmsg.Request{
		&kmsg.AddPartitionsToTxnRequest{TransactionalID: "tx", Topics: []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "a", Partitions: []int32{0}}}},
		&kmsg.AddOffsetsToTxnRequest{TransactionalID: "tx", Group: "g"},
		&kmsg.EndTxnRequest{TransactionalID: "tx", Commit: true},
	}
	code := func(resp kmsg.Response) errcode.Code {
		switch r := resp.(type) {
		case *kmsg.AddPartitionsToTxnResponse:
			return errcode.Code(r.Topics[0].Partitions[0].ErrorCode)
		case *kmsg.AddOffsetsToTxnResponse:
			return errcode.Code(r.ErrorCode)
		case *kmsg.EndTxnResponse:
			return errcode.Code(r.ErrorCode)
		}
		return errcode.UnknownServerError
	}
	for _, req := range requests {
		for version := range int16(4) {
			c := newTxnCluster()
			c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
				if shard != hash.TransactionPartition("tx", txnShards) || kmsg.Key(e.GetApiKey()) != kmsg.Key(req.Key()) {
					t.Errorf("shard %d was asked %d", shard, e.GetApiKey())
				}
				return nil, errcode.CoordinatorNotAvailable.Err()
			}
			if got := code(c.ask(t, req, version)); got != errcode.CoordinatorNotAvailable || len(c.asked) != 1 {
				t.Errorf("%T v%d: %s, asked %v", req, version, got, c.asked)
			}
		}
	}
}

func TestTxnOffsetCommitGoesToTheGroup(t *testing.T) {
	for version := range int16(7) {
		c := newTxnCluster()
		c.coordinator = func(shard int32, _ *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			if shard != hash.GroupPartition("g", 3) {
				t.Errorf("shard %d", shard)
			}
			return nil, errcode.CoordinatorLoadInProgress.Err()
		}
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group = "tx", "g"
		req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "a", TopicID: topicIDOf("a"), Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 1}}}}
		r := c.ask(t, req, version).(*kmsg.TxnOffsetCommitResponse)
		if p := r.Topics[0].Partitions[0]; p.Partition != 1 || errcode.Code(p.ErrorCode) != errcode.CoordinatorLoadInProgress {
			t.Fatalf("v%d: %+v", version, r)
		}
	}
}

// TestSeveralTransactionsAreTakenApart: each goes to its own coordinator, and the answers come in the order of the request.
func TestSeveralTransactionsAreTakenApart(t *testing.T) {
	c := newTxnCluster()
	c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		q := decoded(t, e, kmsg.NewPtrAddPartitionsToTxnRequest())
		if len(q.Transactions) != 1 || shard != hash.TransactionPartition(q.Transactions[0].TransactionalID, txnShards) {
			t.Errorf("shard %d: %+v", shard, q)
		}
		if q.Transactions[0].TransactionalID == "lost" {
			return nil, errcode.NetworkException.Err()
		}
		x := kmsg.AddPartitionsToTxnResponseTransaction{TransactionalID: q.Transactions[0].TransactionalID}
		x.Topics = []kmsg.AddPartitionsToTxnResponseTransactionTopic{{Topic: "a", Partitions: []kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{{}}}}
		return reply(&kmsg.AddPartitionsToTxnResponse{Transactions: []kmsg.AddPartitionsToTxnResponseTransaction{x}}, e.GetApiVersion())
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	for _, id := range []string{"x", "lost", "y"} {
		req.Transactions = append(req.Transactions, kmsg.AddPartitionsToTxnRequestTransaction{
			TransactionalID: id, Topics: []kmsg.AddPartitionsToTxnRequestTransactionTopic{{Topic: "a", Partitions: []int32{0}}},
		})
	}
	r := c.ask(t, req, 5).(*kmsg.AddPartitionsToTxnResponse)
	for i, want := range []errcode.Code{errcode.None, errcode.CoordinatorNotAvailable, errcode.None} {
		x := r.Transactions[i]
		if x.TransactionalID != req.Transactions[i].TransactionalID || errcode.Code(x.Topics[0].Partitions[0].ErrorCode) != want {
			t.Errorf("%d: %+v", i, x)
		}
	}
}

func TestDescribeTransactions(t *testing.T) {
	c := newTxnCluster()
	c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		q := decoded(t, e, kmsg.NewPtrDescribeTransactionsRequest())
		if shard != hash.TransactionPartition(q.TransactionalIDs[0], txnShards) {
			t.Errorf("shard %d: %+v", shard, q)
		}
		if q.TransactionalIDs[0] == "lost" {
			return nil, errcode.NetworkException.Err()
		}
		return reply(&kmsg.DescribeTransactionsResponse{TransactionStates: []kmsg.DescribeTransactionsResponseTransactionState{
			{TransactionalID: q.TransactionalIDs[0], State: "Ongoing"},
		}}, 0)
	}
	r := c.ask(t, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"x", "lost"}}, 0).(*kmsg.DescribeTransactionsResponse)
	if r.TransactionStates[0].State != "Ongoing" || errcode.Code(r.TransactionStates[1].ErrorCode) != errcode.CoordinatorNotAvailable || r.TransactionStates[1].TransactionalID != "lost" {
		t.Fatalf("%+v", r)
	}
}

// TestListTransactionsOfANode: a client that asks every node, as Kafka's tools do, gets each transaction once.
func TestListTransactionsOfANode(t *testing.T) {
	c := newTxnCluster()
	c.coordinator = func(_ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		r := kmsg.NewPtrListTransactionsResponse()
		r.UnknownStateFilters = []string{"Nonsense"}
		for i := range 20 {
			r.TransactionStates = append(r.TransactionStates, kmsg.ListTransactionsResponseTransactionState{TransactionalID: fmt.Sprint("t", i)})
		}
		return reply(r, e.GetApiVersion())
	}
	for version := range int16(3) {
		var ids []string
		for _, node := range []int32{1, 2} {
			r := c.askAs(t, kmsg.NewPtrListTransactionsRequest(), version, node).(*kmsg.ListTransactionsResponse)
			for _, x := range r.TransactionStates {
				ids = append(ids, x.TransactionalID)
			}
			if len(r.UnknownStateFilters) != 1 {
				t.Fatalf("%+v", r)
			}
		}
		slices.Sort(ids)
		if len(ids) != 20 || len(slices.Compact(ids)) != 20 {
			t.Fatalf("%d: %v", len(ids), ids)
		}
		if r := c.ask(t, kmsg.NewPtrListTransactionsRequest(), version).(*kmsg.ListTransactionsResponse); len(r.TransactionStates) != 20 {
			t.Fatalf("%+v", r)
		}
	}
	pattern := "("
	if r := c.ask(t, &kmsg.ListTransactionsRequest{TransactionalIDPattern: &pattern}, 2).(*kmsg.ListTransactionsResponse); errcode.Code(r.ErrorCode) != errcode.InvalidRegularExpression {
		t.Fatalf("%+v", r)
	}
	empty := newLookUpCluster(map[string][]int32{})
	if r := empty.ask(t, kmsg.NewPtrListTransactionsRequest(), 2).(*kmsg.ListTransactionsResponse); r.ErrorCode != 0 || len(r.TransactionStates) != 0 {
		t.Fatalf("%+v", r)
	}
}

// TestWriteTxnMarkersGoWhereTheyBelong: to the leaders, and for the offsets topic to the owners of its shards.
func TestWriteTxnMarkersGoWhereTheyBelong(t *testing.T) {
	for version := int16(1); version <= 2; version++ {
		c := newTxnCluster()
		c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			q := decoded(t, e, kmsg.NewPtrWriteTxnMarkersRequest())
			if shard != 2 || q.Markers[0].Topics[0].Partitions[0] != 2 {
				t.Errorf("shard %d: %+v", shard, q)
			}
			return reply(answerMarkers(q, errcode.InvalidProducerEpoch), e.GetApiVersion())
		}
		c.nodes[1].answer = func(req *storagev1.HandleRequest) (kmsg.Response, error) {
			return answerMarkers(decoded(t, req.GetEnvelope(), kmsg.NewPtrWriteTxnMarkersRequest()), errcode.None), nil
		}
		c.nodes[2].err = errcode.BrokerNotAvailable.Err()
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		req.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: 7, ProducerEpoch: 1, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{
			{Topic: "a", Partitions: []int32{0, 1, 9}}, {Topic: "none", Partitions: []int32{0}}, {Topic: "__consumer_offsets", Partitions: []int32{2, 5}},
		}}, {ProducerID: 8, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "a", Partitions: []int32{0}}, {Topic: "a"}}},
			{ProducerID: 9, Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "a"}}}}
		r := c.ask(t, req, version).(*kmsg.WriteTxnMarkersResponse)
		var got []errcode.Code
		for _, m := range r.Markers {
			for _, topic := range m.Topics {
				for _, p := range topic.Partitions {
					got = append(got, errcode.Code(p.ErrorCode))
				}
			}
		}
		want := []errcode.Code{
			errcode.None, errcode.NotLeaderOrFollower, errcode.UnknownTopicOrPartition, errcode.UnknownTopicOrPartition,
			errcode.InvalidProducerEpoch, errcode.UnknownTopicOrPartition, errcode.None,
		}
		if len(r.Markers) != 2 || len(r.Markers[1].Topics) != 1 || !slices.Equal(got, want) || c.nodes[1].calls != 1 {
			t.Fatalf("v%d: %v, want %v", version, got, want)
		}
	}
}

// answerMarkers answers each partition of a request with a code.
func answerMarkers(q *kmsg.WriteTxnMarkersRequest, code errcode.Code) *kmsg.WriteTxnMarkersResponse {
	r := &kmsg.WriteTxnMarkersResponse{Version: q.Version}
	for _, m := range q.Markers {
		out := kmsg.WriteTxnMarkersResponseMarker{ProducerID: m.ProducerID}
		for _, topic := range m.Topics {
			o := kmsg.WriteTxnMarkersResponseMarkerTopic{Topic: topic.Topic}
			for _, p := range topic.Partitions {
				o.Partitions = append(o.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: int16(code)})
			}
			out.Topics = append(out.Topics, o)
		}
		r.Markers = append(r.Markers, out)
	}
	return r
}
