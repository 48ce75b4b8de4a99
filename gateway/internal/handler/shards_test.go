package handler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/pacer"
	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/wire"
	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// lookUpImage is an image with topics, whose partitions' leaders are given, and live nodes.
type lookUpImage struct {
	metadata.Reader
	offset int64
	// leaders are those of each topic's partitions.
	leaders map[string][]int32
	nodes   []int32
}

func topicIDOf(name string) uuid.UUID {
	var id uuid.UUID
	copy(id[:], name)
	return id
}

func (i *lookUpImage) Offset() int64 { return i.offset }

func (i *lookUpImage) TopicByName(name string) *metadata.Topic {
	leaders, ok := i.leaders[name]
	if !ok {
		return nil
	}
	t := &metadata.Topic{ID: topicIDOf(name), Name: name}
	for _, l := range leaders {
		t.Partitions = append(t.Partitions, &metadata.Partition{Leader: l})
	}
	return t
}

func (i *lookUpImage) Broker(id int32) *metadata.Broker {
	for _, b := range i.Brokers() {
		if b.ID == id {
			return b
		}
	}
	return nil
}

func (i *lookUpImage) Brokers() []*metadata.Broker {
	var out []*metadata.Broker
	for _, id := range i.nodes {
		out = append(out, &metadata.Broker{ID: id})
	}
	return out
}

func (i *lookUpImage) Services(metadata.ServiceKind) []*metadata.Service { return nil }

// lookUpNode is a storage node that answers look-ups with its id, or an error.
type lookUpNode struct {
	storage.Node
	id    int32
	mu    sync.Mutex
	calls int
	code  errcode.Code
	err   error
	last  any
	// answer is what Handle answers; nil describes log directories.
	answer func(*storagev1.HandleRequest) (kmsg.Response, error)
}

func (n *lookUpNode) called(req any) (errcode.Code, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	n.last = req
	return n.code, n.err
}

func (n *lookUpNode) ListOffsets(_ context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	code, err := n.called(req)
	resp := &storagev1.ListOffsetsResponse{}
	for _, p := range req.GetPartitions() {
		resp.Partitions = append(resp.Partitions, &storagev1.ListOffsetsPartitionResult{ErrorCode: int32(code),
			Offset: int64(n.id)*100 + int64(p.GetPartition()), Timestamp: p.GetTimestamp(), LeaderEpoch: 3})
	}
	return resp, err
}

func (n *lookUpNode) OffsetForLeaderEpoch(_ context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	code, err := n.called(req)
	resp := &storagev1.OffsetForLeaderEpochResponse{}
	for _, p := range req.GetPartitions() {
		resp.Partitions = append(resp.Partitions, &storagev1.OffsetForLeaderEpochPartitionResult{ErrorCode: int32(code), LeaderEpoch: p.GetLeaderEpoch(), EndOffset: 9})
	}
	return resp, err
}

func (n *lookUpNode) DeleteRecords(_ context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	code, err := n.called(req)
	resp := &storagev1.DeleteRecordsResponse{}
	for _, p := range req.GetPartitions() {
		resp.Partitions = append(resp.Partitions, &storagev1.DeleteRecordsPartitionResult{ErrorCode: int32(code), LowWatermark: p.GetOffset()})
	}
	return resp, err
}

func (n *lookUpNode) Handle(_ context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	if _, err := n.called(req); err != nil {
		return nil, err
	}
	if n.answer != nil {
		resp, err := n.answer(req)
		if err != nil {
			return nil, err
		}
		return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
	}
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	resp.SetVersion(int16(req.GetEnvelope().GetApiVersion()))
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir = fmt.Sprintf("/data/%d", n.id)
	resp.Dirs = append(resp.Dirs, dir)
	return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
}

// lookUpCluster is what handlers see in these tests: nodes 1 and 2, a controller and coordinators.
type lookUpCluster struct {
	mu       sync.Mutex
	image    *lookUpImage
	moved    chan struct{}
	nodes    map[int32]*lookUpNode
	handlers *Handlers

	// controller and coordinator answer envelopes; a call of HandleAll has shard -1.
	controller  func(*commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	coordinator func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	asked       []int32
}

func (c *lookUpCluster) Handle(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	return c.controller(e)
}

// coordinators is the Coordinator of a cluster.
type coordinators struct{ *lookUpCluster }

func (c coordinators) Handle(_ context.Context, _ metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	c.mu.Lock()
	c.asked = append(c.asked, shard)
	c.mu.Unlock()
	return c.coordinator(shard, e)
}

func (c coordinators) HandleAll(ctx context.Context, kind metadata.ShardKind, e *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error) {
	reply, err := c.Handle(ctx, kind, -1, e)
	return []*commonv1.EnvelopeReply{reply}, err
}

func (c *lookUpCluster) current() metadata.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.image
}

func (c *lookUpCluster) await(ctx context.Context, offset int64) error {
	for {
		c.mu.Lock()
		image, moved := c.image, c.moved
		c.mu.Unlock()
		if image.offset >= offset {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *lookUpCluster) move(change func(*lookUpImage)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	image := *c.image
	image.offset++
	change(&image)
	c.image = &image
	close(c.moved)
	c.moved = make(chan struct{})
}

func newLookUpCluster(leaders map[string][]int32) *lookUpCluster {
	c := &lookUpCluster{
		image: &lookUpImage{offset: 5, leaders: leaders, nodes: []int32{1, 2}},
		moved: make(chan struct{}),
		nodes: map[int32]*lookUpNode{1: {id: 1}, 2: {id: 2}},
	}
	c.handlers = New(Config{RequestTimeout: 30 * time.Second}, Deps{
		Pacer: pacer.New(time.Now),
		Image: c.current,
		Await: c.await,
		Storage: func(id int32) (storage.Node, error) {
			if n := c.nodes[id]; n != nil {
				return n, nil
			}
			return nil, errcode.BrokerNotAvailable.Err()
		},
		Controller:  c,
		Coordinator: coordinators{c},
		Addresses:   routing.NewAddresses(map[string]routing.Address{"PLAINTEXT": {Host: "gw", Port: 9092}}),
		Messages:    &wire.Pool{},
		Now:         time.Now,
		Logger:      slog.New(slog.DiscardHandler),
	})
	return c
}

// ask sends a request and decodes the answer.
func (c *lookUpCluster) ask(t *testing.T, req kmsg.Request, version int16) kmsg.Response {
	t.Helper()
	return c.askAs(t, req, version, UnknownNode)
}

func (c *lookUpCluster) askAs(t *testing.T, req kmsg.Request, version int16, node int32) kmsg.Response {
	t.Helper()
	req.SetVersion(version)
	api := c.handlers.API(req.Key())
	if api == nil || !api.Serves(version) {
		t.Fatalf("API %d v%d is not served", req.Key(), version)
	}
	r := &Request{Key: req.Key(), Version: version, CorrelationID: 7, Arrived: time.Now(), Body: req.AppendTo(nil),
		Conn: &Conn{Listener: "PLAINTEXT", NodeID: node}}
	m, err := api.Handle(c.handlers, t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	// Four bytes of length and four of correlation id, and tagged fields from the first flexible version on.
	at := 8
	if api.Flexible(version) {
		at++
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	if err := resp.ReadFrom(m.B[at:]); err != nil {
		t.Fatal(err)
	}
	return resp
}

func reply(resp kmsg.Response, version int32) (*commonv1.EnvelopeReply, error) {
	resp.SetVersion(int16(version))
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

func listOffsetsOf(timestamp int64, topics map[string][]int32) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range topics {
			if !yield(n) {
				return
			}
		}
	}) {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = name
		for _, p := range topics[name] {
			part := kmsg.NewListOffsetsRequestTopicPartition()
			part.Partition, part.Timestamp = p, timestamp
			topic.Partitions = append(topic.Partitions, part)
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

func TestListOffsets(t *testing.T) {
	for version := int16(1); version <= 11; version++ {
		c := newLookUpCluster(map[string][]int32{"a": {1, 2, 1}, "b": {2}})
		resp := c.ask(t, listOffsetsOf(-1, map[string][]int32{"a": {2, 1, 0}, "b": {0, 0}, "c": nil}), version).(*kmsg.ListOffsetsResponse)
		if len(resp.Topics) != 2 || len(resp.Topics[0].Partitions) != 3 || len(resp.Topics[1].Partitions) != 1 {
			t.Fatalf("v%d: got %+v", version, resp.Topics)
		}
		for i, want := range []int64{102, 201, 100} {
			p := resp.Topics[0].Partitions[i]
			epoch := int32(-1)
			if version >= 4 {
				epoch = 3
			}
			if p.ErrorCode != 0 || p.Offset != want || p.LeaderEpoch != epoch || p.Timestamp != -1 {
				t.Errorf("v%d: got %+v, want offset %d", version, p, want)
			}
		}
		if p := resp.Topics[1].Partitions[0]; p.ErrorCode != int16(errcode.InvalidRequest) || p.Offset != -1 {
			t.Errorf("v%d: named twice: %+v", version, p)
		}
		if q := c.nodes[1].last.(*storagev1.ListOffsetsRequest); q.GetMetadataOffset() != 5 || len(q.GetPartitions()) != 2 {
			t.Errorf("v%d: node 1 was asked %v", version, q)
		}
	}
}

func TestListOffsetsSpecialPositions(t *testing.T) {
	for timestamp, since := range map[int64]int16{-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99, 0: 1, 1234: 1} {
		for version := int16(1); version <= 11; version++ {
			c := newLookUpCluster(map[string][]int32{"a": {1}})
			resp := c.ask(t, listOffsetsOf(timestamp, map[string][]int32{"a": {0}}), version).(*kmsg.ListOffsetsResponse)
			want := errcode.UnsupportedVersion
			if version >= since {
				want = errcode.None
			}
			if got := errcode.Code(resp.Topics[0].Partitions[0].ErrorCode); got != want {
				t.Errorf("%d in v%d: %v, want %v", timestamp, version, got.Name(), want.Name())
			}
		}
	}
}

func TestLookUpsFollowTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLookUpCluster(map[string][]int32{"a": {-1}, "b": {1}, "c": {3}})
		c.nodes[1].code = errcode.NotLeaderOrFollower
		time.AfterFunc(time.Second, func() {
			c.move(func(i *lookUpImage) { i.leaders = map[string][]int32{"a": {2}, "b": {2}, "c": {2}, "d": {2}} })
		})
		start := time.Now()
		resp := c.ask(t, listOffsetsOf(-1, map[string][]int32{"a": {0}, "b": {0}, "c": {0}}), 11).(*kmsg.ListOffsetsResponse)
		for _, topic := range resp.Topics {
			if p := topic.Partitions[0]; p.ErrorCode != 0 || p.Offset != 200 {
				t.Errorf("%s: %+v", topic.Topic, p)
			}
		}
		if time.Since(start) != time.Second || c.nodes[1].calls > 10 {
			t.Errorf("took %v, with %d calls of the old leader", time.Since(start), c.nodes[1].calls)
		}
		// A leader that does not come is what the client is told of in the end.
		c.nodes[2].err = errcode.NetworkException.Err()
		start = time.Now()
		resp = c.ask(t, listOffsetsOf(-1, map[string][]int32{"a": {0}}), 11).(*kmsg.ListOffsetsResponse)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != int16(errcode.NotLeaderOrFollower) || time.Since(start) != leaderWait {
			t.Errorf("%+v after %v", p, time.Since(start))
		}
	})
}

func TestUnknownTopicsAreBelievedAfterAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLookUpCluster(map[string][]int32{"a": {1}})
		start := time.Now()
		resp := c.ask(t, listOffsetsOf(-1, map[string][]int32{"a": {7}, "nope": {0}}), 11).(*kmsg.ListOffsetsResponse)
		for _, topic := range resp.Topics {
			if p := topic.Partitions[0]; p.ErrorCode != int16(errcode.UnknownTopicOrPartition) || p.Offset != -1 || p.LeaderEpoch != -1 {
				t.Errorf("%s: %+v", topic.Topic, p)
			}
		}
		if d := time.Since(start); d > 2*unknownTopicGrace {
			t.Errorf("took %v", d)
		}
		time.AfterFunc(unknownTopicGrace/2, func() { c.move(func(i *lookUpImage) { i.leaders = map[string][]int32{"new": {1}} }) })
		resp = c.ask(t, listOffsetsOf(-1, map[string][]int32{"new": {0}}), 11).(*kmsg.ListOffsetsResponse)
		if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 {
			t.Errorf("a topic that this gateway hears of a little late: %+v", p)
		}
	})
}

func TestFencedEpochsAreAnswers(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"a": {1}})
	c.nodes[1].code = errcode.FencedLeaderEpoch
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	topic := kmsg.NewOffsetForLeaderEpochRequestTopic()
	topic.Topic = "a"
	topic.Partitions = []kmsg.OffsetForLeaderEpochRequestTopicPartition{kmsg.NewOffsetForLeaderEpochRequestTopicPartition()}
	topic.Partitions[0].LeaderEpoch = 2
	req.Topics = append(req.Topics, topic)
	for version := int16(2); version <= 4; version++ {
		c.nodes[1].calls = 0
		p := c.ask(t, req, version).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
		if p.ErrorCode != int16(errcode.FencedLeaderEpoch) || p.EndOffset != -1 || p.LeaderEpoch != -1 || c.nodes[1].calls != 1 {
			t.Errorf("v%d: %+v after %d calls", version, p, c.nodes[1].calls)
		}
	}
	c.nodes[1].code = errcode.None
	if p := c.ask(t, req, 4).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]; p.EndOffset != 9 || p.LeaderEpoch != 2 {
		t.Errorf("%+v", p)
	}
}

func TestDeleteRecords(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"a": {1, 2}, "__consumer_offsets": {1}})
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 1000
	for name, offsets := range map[string]map[int32]int64{"a": {0: 5, 1: 6}, "__consumer_offsets": {0: 1}, "nope": {0: 1}} {
		topic := kmsg.NewDeleteRecordsRequestTopic()
		topic.Topic = name
		for partition, offset := range offsets {
			topic.Partitions = append(topic.Partitions, kmsg.DeleteRecordsRequestTopicPartition{Partition: partition, Offset: offset})
		}
		req.Topics = append(req.Topics, topic)
	}
	got := map[string]string{}
	for _, topic := range c.ask(t, req, 2).(*kmsg.DeleteRecordsResponse).Topics {
		for _, p := range topic.Partitions {
			got[fmt.Sprintf("%s-%d", topic.Topic, p.Partition)] = fmt.Sprintf("%s %d", errcode.Code(p.ErrorCode).Name(), p.LowWatermark)
		}
	}
	for partition, want := range map[string]string{"a-0": "NONE 5", "a-1": "NONE 6",
		"__consumer_offsets-0": "INVALID_TOPIC_EXCEPTION -1", "nope-0": "UNKNOWN_TOPIC_OR_PARTITION -1"} {
		if got[partition] != want {
			t.Errorf("%s: %s, want %s", partition, got[partition], want)
		}
	}
}

func TestProducerIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLookUpCluster(nil)
		blocks := int64(0)
		c.controller = func(e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			<-time.After(time.Millisecond)
			c.mu.Lock()
			defer c.mu.Unlock()
			resp := kmsg.NewPtrAllocateProducerIDsResponse()
			resp.ProducerIDStart, resp.ProducerIDLen = 1000+10*blocks, 10
			blocks++
			return reply(resp, e.GetApiVersion())
		}
		var mu sync.Mutex
		seen := map[int64]bool{}
		var wg sync.WaitGroup
		for range 25 {
			wg.Go(func() {
				resp := c.ask(t, kmsg.NewPtrInitProducerIDRequest(), 5).(*kmsg.InitProducerIDResponse)
				mu.Lock()
				defer mu.Unlock()
				if resp.ErrorCode != 0 || resp.ProducerEpoch != 0 || seen[resp.ProducerID] {
					t.Errorf("got %+v", resp)
				}
				seen[resp.ProducerID] = true
			})
		}
		wg.Wait()
		if len(seen) != 25 || blocks != 3 {
			t.Errorf("%d ids of %d blocks", len(seen), blocks)
		}
	})
}

func TestInitProducerIDErrors(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"__transaction_state": {1, 2}})
	c.controller = func(*commonv1.Envelope) (*commonv1.EnvelopeReply, error) { return nil, errcode.RequestTimedOut.Err() }
	c.coordinator = func(_ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		resp := kmsg.NewPtrInitProducerIDResponse()
		resp.ProducerID, resp.ProducerEpoch = 77, 1
		return reply(resp, e.GetApiVersion())
	}
	text := func(s string) *string { return &s }
	for name, q := range map[string]struct {
		txn   *string
		id    int64
		epoch int16
		code  errcode.Code
		got   int64
	}{
		"id without epoch":        {nil, 5, -1, errcode.InvalidRequest, -1},
		"epoch without id":        {nil, -1, 5, errcode.InvalidRequest, -1},
		"empty transactional id":  {text(""), -1, -1, errcode.InvalidRequest, -1},
		"no block to be had":      {nil, -1, -1, errcode.CoordinatorLoadInProgress, -1},
		"of the txn coordinator":  {text("t"), -1, -1, errcode.None, 77},
		"id and epoch, and no id": {nil, 5, 5, errcode.CoordinatorLoadInProgress, -1},
	} {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = q.txn, q.id, q.epoch
		if resp := c.ask(t, req, 4).(*kmsg.InitProducerIDResponse); resp.ErrorCode != int16(q.code) || resp.ProducerID != q.got {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	if want := hash.TransactionPartition("t", 2); !slices.Equal(c.asked, []int32{want}) {
		t.Errorf("asked shards %v, want %d", c.asked, want)
	}
}

func TestFindCoordinator(t *testing.T) {
	share := "g:1:AAAAAAAAAAAAAAAAAAAAAg:0"
	for _, q := range []struct {
		kind  int8
		key   string
		since int16
		code  errcode.Code
	}{
		{groupKey, "g", 0, errcode.None}, {groupKey, "", 0, errcode.None}, {transactionKey, "t", 1, errcode.None},
		{shareKey, share, 6, errcode.None}, {shareKey, "g", 6, errcode.InvalidRequest}, {shareKey, "g:x:0", 6, errcode.InvalidRequest},
		{shareKey, " :AAAAAAAAAAAAAAAAAAAAAg:0", 6, errcode.InvalidRequest}, {shareKey, "g:AAAAAAAAAAAAAAAAAAAAAg:x", 6, errcode.InvalidRequest},
		{3, "g", 1, errcode.InvalidRequest}, {-1, "g", 1, errcode.InvalidRequest},
	} {
		for version := int16(0); version <= 6; version++ {
			if version == 0 && q.kind != groupKey {
				continue
			}
			c := newLookUpCluster(map[string][]int32{"__consumer_offsets": {2, 2}, "__transaction_state": {1}, "__share_group_state": {1}})
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = q.kind, q.key, []string{q.key}
			resp := c.ask(t, req, version).(*kmsg.FindCoordinatorResponse)
			got := kmsg.FindCoordinatorResponseCoordinator{Key: q.key, NodeID: resp.NodeID, Host: resp.Host, Port: resp.Port, ErrorCode: resp.ErrorCode}
			if version >= 4 {
				got = resp.Coordinators[0]
			}
			want := q.code
			if version < q.since {
				want = errcode.InvalidRequest
			}
			ok := errcode.Code(got.ErrorCode) == want && got.Key == q.key
			if want == errcode.None {
				ok = ok && got.Host == "gw" && got.Port == 9092 && got.NodeID == map[int8]int32{groupKey: 2, transactionKey: 1, shareKey: 1}[q.kind]
			} else {
				ok = ok && got.NodeID == -1 && got.Port == -1 && got.Host == ""
			}
			if !ok {
				t.Errorf("type %d, key %q, v%d: %+v, want %s", q.kind, q.key, version, got, want.Name())
			}
		}
	}
}

func TestFindCoordinatorWithoutALeader(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": {-1}})
	req := kmsg.NewPtrFindCoordinatorRequest()
	if resp := c.ask(t, req, 3).(*kmsg.FindCoordinatorResponse); resp.ErrorCode != int16(errcode.CoordinatorNotAvailable) || resp.NodeID != -1 {
		t.Errorf("%+v", resp)
	}
}

func TestOneGroupGoesToItsShard(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": make([]int32, 50)})
	c.coordinator = func(_ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = int16(errcode.RebalanceInProgress)
		return reply(resp, e.GetApiVersion())
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = "payments"
	if resp := c.ask(t, req, 4).(*kmsg.HeartbeatResponse); resp.ErrorCode != int16(errcode.RebalanceInProgress) {
		t.Errorf("%+v", resp)
	}
	if !slices.Equal(c.asked, []int32{hash.GroupPartition("payments", 50)}) {
		t.Errorf("asked %v", c.asked)
	}
}

// TestUnreachableCoordinators has each API of groups answer in all versions when its coordinator does not.
func TestUnreachableCoordinators(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": {1}})
	c.coordinator = func(int32, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return nil, errcode.NetworkException.Err()
	}
	for _, key := range []kmsg.Key{kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.JoinGroup, kmsg.Heartbeat, kmsg.LeaveGroup, kmsg.SyncGroup,
		kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DeleteGroups, kmsg.OffsetDelete} {
		api := c.handlers.API(int16(key))
		for version := api.Min; version <= api.Max; version++ {
			resp := c.ask(t, filled(kmsg.RequestForKey(int16(key))), version)
			if got := firstCode(resp); got != errcode.CoordinatorNotAvailable {
				t.Errorf("%s v%d: %s in %+v", key.Name(), version, got.Name(), resp)
			}
		}
	}
}

// filled names a group, a topic and a partition in a request.
func filled(req kmsg.Request) kmsg.Request {
	switch q := req.(type) {
	case *kmsg.OffsetCommitRequest:
		q.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "a", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: 1}}}}
	case *kmsg.OffsetFetchRequest:
		q.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "a", Partitions: []int32{1}}}
		q.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g"}}
	case *kmsg.DescribeGroupsRequest:
		q.Groups = []string{"g"}
	case *kmsg.DeleteGroupsRequest:
		q.Groups = []string{"g"}
	}
	return req
}

// firstCode is the error that a response about groups has, wherever its version keeps it.
func firstCode(resp kmsg.Response) errcode.Code {
	code := int16(0)
	switch r := resp.(type) {
	case *kmsg.OffsetCommitResponse:
		code = r.Topics[0].Partitions[0].ErrorCode
	case *kmsg.OffsetFetchResponse:
		switch {
		case r.Version >= 8:
			code = r.Groups[0].ErrorCode
		case r.Version >= 2:
			code = r.ErrorCode
		default:
			code = r.Topics[0].Partitions[0].ErrorCode
		}
	case *kmsg.JoinGroupResponse:
		code = r.ErrorCode
	case *kmsg.HeartbeatResponse:
		code = r.ErrorCode
	case *kmsg.LeaveGroupResponse:
		code = r.ErrorCode
	case *kmsg.SyncGroupResponse:
		code = r.ErrorCode
	case *kmsg.DescribeGroupsResponse:
		code = r.Groups[0].ErrorCode
	case *kmsg.ListGroupsResponse:
		code = r.ErrorCode
	case *kmsg.DeleteGroupsResponse:
		code = r.Groups[0].ErrorCode
	case *kmsg.OffsetDeleteResponse:
		code = r.ErrorCode
	}
	return errcode.Code(code)
}

func TestSeveralGroupsAreTakenApart(t *testing.T) {
	const shards = 4
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": make([]int32, shards)})
	names := []string{"a", "b", "c", "d", "e", "a", "f"}
	broken := hash.GroupPartition("b", shards)
	c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if shard == broken {
			return nil, errcode.CoordinatorLoadInProgress.Err()
		}
		req := kmsg.RequestForKey(int16(e.GetApiKey()))
		req.SetVersion(int16(e.GetApiVersion()))
		if err := req.ReadFrom(e.GetBody()); err != nil {
			return nil, err
		}
		mine := func(g string) {
			if hash.GroupPartition(g, shards) != shard {
				t.Errorf("group %s was sent to shard %d", g, shard)
			}
		}
		switch q := req.(type) {
		case *kmsg.OffsetFetchRequest:
			resp := kmsg.NewPtrOffsetFetchResponse()
			for _, g := range q.Groups {
				mine(g.Group)
				resp.Groups = append(resp.Groups, kmsg.OffsetFetchResponseGroup{Group: g.Group, ErrorCode: 1000 + int16(shard)})
			}
			return reply(resp, e.GetApiVersion())
		case *kmsg.DescribeGroupsRequest:
			resp := kmsg.NewPtrDescribeGroupsResponse()
			for _, g := range q.Groups {
				mine(g)
				resp.Groups = append(resp.Groups, kmsg.DescribeGroupsResponseGroup{Group: g, ErrorCode: 1000 + int16(shard)})
			}
			return reply(resp, e.GetApiVersion())
		case *kmsg.DeleteGroupsRequest:
			resp := kmsg.NewPtrDeleteGroupsResponse()
			for _, g := range q.Groups {
				mine(g)
				resp.Groups = append(resp.Groups, kmsg.DeleteGroupsResponseGroup{Group: g, ErrorCode: 1000 + int16(shard)})
			}
			return reply(resp, e.GetApiVersion())
		}
		return nil, errors.New("unexpected request")
	}
	check := func(what string, groups []string, code func(i int) (string, int16)) {
		t.Helper()
		for i, g := range groups {
			want := 1000 + int16(hash.GroupPartition(g, shards))
			if hash.GroupPartition(g, shards) == broken {
				want = int16(errcode.CoordinatorLoadInProgress)
			}
			if name, got := code(i); name != g || got != want {
				t.Errorf("%s: group %d is %s with %d, want %s with %d", what, i, name, got, g, want)
			}
		}
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	for _, n := range names {
		fetch.Groups = append(fetch.Groups, kmsg.OffsetFetchRequestGroup{Group: n})
	}
	fetched := c.ask(t, fetch, 9).(*kmsg.OffsetFetchResponse)
	check("OffsetFetch", names, func(i int) (string, int16) { return fetched.Groups[i].Group, fetched.Groups[i].ErrorCode })
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = names
	described := c.ask(t, describe, 6).(*kmsg.DescribeGroupsResponse)
	check("DescribeGroups", names, func(i int) (string, int16) { return described.Groups[i].Group, described.Groups[i].ErrorCode })
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = names
	deleted := c.ask(t, del, 3).(*kmsg.DeleteGroupsResponse)
	check("DeleteGroups", unique(names), func(i int) (string, int16) { return deleted.Groups[i].Group, deleted.Groups[i].ErrorCode })

	for _, empty := range []kmsg.Request{kmsg.NewPtrOffsetFetchRequest(), kmsg.NewPtrDescribeGroupsRequest(), kmsg.NewPtrDeleteGroupsRequest()} {
		c.asked = nil
		c.ask(t, empty, min(9, c.handlers.API(empty.Key()).Max))
		if len(c.asked) != 0 {
			t.Errorf("%T without groups asked %v", empty, c.asked)
		}
	}
}

func TestListGroupsOfANode(t *testing.T) {
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": {1, 2}})
	names := []string{"a", "b", "c", "d", "e"}
	c.coordinator = func(_ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		resp := kmsg.NewPtrListGroupsResponse()
		for _, n := range names {
			resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: n})
		}
		return reply(resp, e.GetApiVersion())
	}
	of := func(node int32) []string {
		var out []string
		for _, g := range c.askAs(t, kmsg.NewPtrListGroupsRequest(), 5, node).(*kmsg.ListGroupsResponse).Groups {
			out = append(out, g.Group)
		}
		return out
	}
	if got := of(UnknownNode); !slices.Equal(got, names) {
		t.Errorf("the cluster has %v", got)
	}
	both := append(of(1), of(2)...)
	slices.Sort(both)
	if !slices.Equal(both, names) || len(of(1)) == 0 || len(of(2)) == 0 {
		t.Errorf("node 1 has %v, node 2 %v", of(1), of(2))
	}
	if c := newLookUpCluster(nil); len(c.ask(t, kmsg.NewPtrListGroupsRequest(), 5).(*kmsg.ListGroupsResponse).Groups) != 0 {
		t.Error("groups without the topic that keeps them")
	}
}

func TestDescribeLogDirs(t *testing.T) {
	for version := int16(1); version <= 5; version++ {
		c := newLookUpCluster(nil)
		all := c.ask(t, kmsg.NewPtrDescribeLogDirsRequest(), version).(*kmsg.DescribeLogDirsResponse)
		one := c.askAs(t, kmsg.NewPtrDescribeLogDirsRequest(), version, 2).(*kmsg.DescribeLogDirsResponse)
		if len(all.Dirs) != 2 || all.Dirs[0].Dir != "/data/1" || len(one.Dirs) != 1 || one.Dirs[0].Dir != "/data/2" {
			t.Errorf("v%d: %+v, %+v", version, all.Dirs, one.Dirs)
		}
		c.nodes[1].err = errcode.NetworkException.Err()
		partly := c.ask(t, kmsg.NewPtrDescribeLogDirsRequest(), version).(*kmsg.DescribeLogDirsResponse)
		if len(partly.Dirs) != 1 || version >= 3 && partly.ErrorCode != int16(errcode.RequestTimedOut) {
			t.Errorf("v%d: %+v", version, partly)
		}
	}
}

// TestSeveralCommitsAreTakenApart: pipelined commits of several shards go to the owner of each together, and fail by themselves.
func TestSeveralCommitsAreTakenApart(t *testing.T) {
	const shards = 4
	c := newLookUpCluster(map[string][]int32{"__consumer_offsets": make([]int32, shards)})
	names := []string{"a", "b", "c", "d", "e", "a", "f"}
	broken := hash.GroupPartition("b", shards)
	c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if shard == broken {
			return nil, errcode.NetworkException.Err()
		}
		answer := func(body []byte) []byte {
			q := kmsg.NewPtrOffsetCommitRequest()
			q.SetVersion(7)
			if err := q.ReadFrom(body); err != nil {
				t.Error(err)
			}
			resp := offsetCommitFailed(q, errcode.None)
			resp.SetVersion(7)
			return resp.AppendTo(nil)
		}
		resp := &commonv1.EnvelopeReply{Body: answer(e.GetBody())}
		for _, body := range e.GetMore() {
			resp.More = append(resp.More, answer(body))
		}
		return resp, nil
	}
	var rs []*Request
	want := map[int32]int{}
	for _, name := range names {
		req := filled(kmsg.NewPtrOffsetCommitRequest()).(*kmsg.OffsetCommitRequest)
		req.Version, req.Group = 7, name
		rs = append(rs, &Request{Key: req.Key(), Version: 7, Body: req.AppendTo(nil), Conn: &Conn{}})
		want[hash.GroupPartition(name, shards)] = 1
	}
	messages, err := c.handlers.API(8).Several(c.handlers, t.Context(), rs)
	if err != nil || len(messages) != len(names) || len(c.asked) != len(want) {
		t.Fatalf("%d answers by %d calls, want %d: %v", len(messages), len(c.asked), len(want), err)
	}
	for i, name := range names {
		resp := kmsg.NewPtrOffsetCommitResponse()
		resp.SetVersion(7)
		if err := resp.ReadFrom(messages[i].B[8:]); err != nil {
			t.Fatal(err)
		}
		code := errcode.None
		if hash.GroupPartition(name, shards) == broken {
			code = errcode.CoordinatorNotAvailable
		}
		if got := firstCode(resp); got != code {
			t.Errorf("group %s: %s, want %s", name, got.Name(), code.Name())
		}
	}
	// A coordinator of an older release answers the first request of an envelope only.
	whole := c.coordinator
	c.coordinator = func(shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		reply, err := whole(shard, e)
		if reply != nil {
			reply.More = nil
		}
		return reply, err
	}
	again, err := c.handlers.API(8).Several(c.handlers, t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		if !slices.Equal(again[i].B, messages[i].B) {
			t.Errorf("group %s: an older coordinator's answer is %x, want %x", names[i], again[i].B, messages[i].B)
		}
	}
	rs[2].Body = rs[2].Body[:1]
	if messages, err := c.handlers.API(8).Several(c.handlers, t.Context(), rs); err == nil || len(messages) != 2 {
		t.Errorf("with a malformed third one: %d answers, %v", len(messages), err)
	}
	if messages, err := c.handlers.API(8).Several(c.handlers, t.Context(), rs[2:]); err == nil || len(messages) != 0 {
		t.Errorf("with a malformed first one: %d answers, %v", len(messages), err)
	}
}
