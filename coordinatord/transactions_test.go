package coordinatord

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// nextBlock is where the controllers' next block of producer ids begins.
var nextBlock atomic.Int64

// Handle gives blocks of producer ids.
func (c *fakeController) Handle(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	if kmsg.Key(e.GetApiKey()) != kmsg.AllocateProducerIDs {
		return nil, errcode.UnsupportedVersion.Err()
	}
	resp := kmsg.NewPtrAllocateProducerIDsResponse()
	resp.ProducerIDStart, resp.ProducerIDLen = nextBlock.Add(10)-10, 10
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

var _ controllerv1.ControllerServer = (*fakeController)(nil)

// Handle takes markers, unless the node refuses them.
func (n *fakeNode) Handle(_ context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := kmsg.NewPtrWriteTxnMarkersRequest()
	q.Version = int16(req.GetEnvelope().GetApiVersion())
	if err := q.ReadFrom(req.GetEnvelope().GetBody()); err != nil {
		return nil, err
	}
	if n.refuseMarkers {
		return nil, errcode.NotLeaderOrFollower.Err()
	}
	n.markers = append(n.markers, q.Markers...)
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Version = q.Version
	for _, m := range q.Markers {
		out := kmsg.WriteTxnMarkersResponseMarker{ProducerID: m.ProducerID}
		for _, t := range m.Topics {
			o := kmsg.WriteTxnMarkersResponseMarkerTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				o.Partitions = append(o.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p})
			}
			out.Topics = append(out.Topics, o)
		}
		resp.Markers = append(resp.Markers, out)
	}
	return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
}

func ownTransactions(shard, owner, epoch int32) metarecord.Record {
	return &metarecord.ShardRecord{Kind: int8(metadata.TransactionShard), Shard: shard, Owner: owner, Epoch: epoch}
}

// withTransactions adds the topic whose partitions are the shards of transactions.
func (c *cluster) withTransactions() {
	id := uuid.UUID{0: 3}
	c.metadata.push(c.t, &metarecord.TopicRecord{Name: "__transaction_state", TopicID: id},
		&metarecord.PartitionRecord{TopicID: id, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
}

func askTransactions[R kmsg.Response](i *instance, req kmsg.Request) (R, error) {
	i.c.t.Helper()
	var none R
	ctx, cancel := context.WithTimeout(i.c.t.Context(), 30*time.Second)
	defer cancel()
	resp, err := i.client.Handle(ctx, &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind_SHARD_KIND_TRANSACTION, Envelope: &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: int32(req.GetVersion()), Body: req.AppendTo(nil),
	}})
	if err != nil {
		return none, err
	}
	r := req.ResponseKind()
	if err := r.ReadFrom(resp.GetReply().GetBody()); err != nil {
		i.c.t.Fatal(err)
	}
	return r.(R), nil
}

func (i *instance) initProducer(timeoutMs int32) *kmsg.InitProducerIDResponse {
	i.c.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionTimeoutMillis = 4, timeoutMs
	id := "tx"
	req.TransactionalID = &id
	r, err := askTransactions[*kmsg.InitProducerIDResponse](i, req)
	if err != nil || r.ErrorCode != 0 {
		i.c.t.Fatal(err, r)
	}
	return r
}

func (i *instance) addPartition(p *kmsg.InitProducerIDResponse) {
	i.c.t.Helper()
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, "tx", p.ProducerID, p.ProducerEpoch
	req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "a", Partitions: []int32{0}}}
	r, err := askTransactions[*kmsg.AddPartitionsToTxnResponse](i, req)
	if err != nil || r.Topics[0].Partitions[0].ErrorCode != 0 {
		i.c.t.Fatal(err, r)
	}
}

func (i *instance) endTransaction(p *kmsg.InitProducerIDResponse) {
	i.c.t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = 3, "tx", p.ProducerID, p.ProducerEpoch, true
	r, err := askTransactions[*kmsg.EndTxnResponse](i, req)
	if err != nil || r.ErrorCode != 0 {
		i.c.t.Fatal(err, r)
	}
}

func (i *instance) transactionState() string {
	i.c.t.Helper()
	r, err := askTransactions[*kmsg.DescribeTransactionsResponse](i, &kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"tx"}})
	if err != nil {
		i.c.t.Fatal(err)
	}
	return r.TransactionStates[0].State
}

func TestTransactionFromBeginToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.withTransactions()
		one := c.start(1)
		c.metadata.push(t, ownTransactions(0, 1, 1))
		synctest.Wait()
		p := one.initProducer(60_000)
		one.addPartition(p)
		one.endTransaction(p)
		synctest.Wait()
		if s := one.transactionState(); s != "CompleteCommit" {
			t.Fatal(s)
		}
		if m := c.node.markers; len(m) != 1 || m[0].ProducerID != p.ProducerID || !m[0].Committed || m[0].CoordinatorEpoch != 0 || m[0].Topics[0].Topic != "a" {
			t.Fatalf("%+v", m)
		}
		if again := one.initProducer(60_000); again.ProducerID != p.ProducerID || again.ProducerEpoch != p.ProducerEpoch+1 {
			t.Fatalf("%+v", again)
		}
	})
}

// TestTransactionMovesWhileItEnds: the next owner of the shard has the markers written that the one before could not.
func TestTransactionMovesWhileItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.withTransactions()
		one, two := c.start(1), c.start(2)
		c.metadata.push(t, ownTransactions(0, 1, 1))
		synctest.Wait()
		p := one.initProducer(60_000)
		one.addPartition(p)
		c.node.refuseMarkers = true
		one.endTransaction(p)
		if s := one.transactionState(); s != "PrepareCommit" {
			t.Fatal(s)
		}
		c.metadata.push(t, ownTransactions(0, 2, 2))
		synctest.Wait()
		late := kmsg.NewPtrEndTxnRequest()
		late.TransactionalID = "tx"
		if _, err := askTransactions[*kmsg.EndTxnResponse](one, late); errcode.Of(err) == errcode.None {
			t.Fatal("the owner before still answers")
		}
		c.node.mu.Lock()
		c.node.refuseMarkers = false
		c.node.mu.Unlock()
		<-time.After(2 * time.Second)
		if s := two.transactionState(); s != "CompleteCommit" {
			t.Fatal(s)
		}
		if m := c.node.markers; len(m) != 1 || m[0].CoordinatorEpoch != 1 {
			t.Fatalf("%+v", m)
		}
	})
}

// TestTransactionThatTakesTooLong is aborted without anybody's asking.
func TestTransactionThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.withTransactions()
		one := c.start(1)
		c.metadata.push(t, ownTransactions(0, 1, 1))
		synctest.Wait()
		p := one.initProducer(5_000)
		one.addPartition(p)
		<-time.After(21 * time.Second)
		synctest.Wait()
		if s := one.transactionState(); s != "CompleteAbort" {
			t.Fatal(s)
		}
		if m := c.node.markers; len(m) != 1 || m[0].Committed || m[0].ProducerEpoch != p.ProducerEpoch+1 {
			t.Fatalf("%+v", m)
		}
	})
}
