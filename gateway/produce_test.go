package gateway_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/fake"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/storage"
)

func partOf(r *kmsg.ProduceResponse) kmsg.ProduceResponseTopicPartition {
	return r.Topics[0].Partitions[0]
}

func TestProduceInAllVersions(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	for v := int16(3); v <= 13; v++ {
		req := produce(v, "a", 0, batchOf(t, 2, 100, -1))
		req.Topics[0].TopicID = id
		got := ask[*kmsg.ProduceResponse](k, req)
		if p := partOf(got); p.ErrorCode != 0 || p.BaseOffset != int64(v-3)*2 || p.LogAppendTime != -1 || v >= 5 && p.LogStartOffset != 0 {
			t.Errorf("version %d: %+v", v, p)
		}
		if v >= 13 && got.Topics[0].TopicID != id || v < 13 && got.Topics[0].Topic != "a" {
			t.Errorf("version %d answers about %+v", v, got.Topics[0])
		}
	}
}

func TestProduceErrorsOfPartitions(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1, 1)
	c.AddTopic("__consumer_offsets", 1)
	k := dial(t, serve(t, c, nil))
	good := batchOf(t, 1, 100, -1)
	transactional := append([]byte{}, good...)
	binary.BigEndian.PutUint16(transactional[21:], 1<<4)
	for _, x := range []struct {
		name    string
		version int16
		topic   string
		part    int32
		records []byte
		acks    int16
		want    errcode.Code
	}{
		{"unknown topic", 9, "nope", 0, good, -1, errcode.UnknownTopicOrPartition},
		{"unknown partition", 9, "a", 2, good, -1, errcode.UnknownTopicOrPartition},
		{"negative partition", 9, "a", -1, good, -1, errcode.UnknownTopicOrPartition},
		{"unknown id", 13, "", 0, good, -1, errcode.UnknownTopicId},
		{"null records", 9, "a", 0, nil, -1, errcode.InvalidRequest},
		{"null records before version 9", 3, "a", 0, nil, -1, errcode.InvalidRequest},
		{"no records", 9, "a", 0, []byte{}, -1, errcode.InvalidRecord},
		{"acks 2", 9, "a", 0, good, 2, errcode.InvalidRequiredAcks},
		{"acks -2", 9, "a", 0, good, -2, errcode.InvalidRequiredAcks},
		{"internal topic", 9, "__consumer_offsets", 0, good, -1, errcode.InvalidTopicException},
		{"transactional without an id", 9, "a", 0, transactional, -1, errcode.TransactionalIdAuthorizationFailed},
	} {
		req := produce(x.version, x.topic, x.part, x.records)
		req.Acks = x.acks
		if p := partOf(ask[*kmsg.ProduceResponse](k, req)); p.ErrorCode != int16(x.want) || p.BaseOffset != -1 || p.Partition != x.part {
			t.Errorf("%s: %s, %+v", x.name, errcode.Code(p.ErrorCode).Name(), p)
		}
	}
	if end := c.Node(1).End(id, 0); end != 0 {
		t.Errorf("%d records were written", end)
	}
	nameless := produce(9, "a", 0, transactional)
	nameless.TransactionID = kmsg.StringPtr("")
	if p := partOf(ask[*kmsg.ProduceResponse](k, nameless)); p.ErrorCode != 0 {
		t.Errorf("a batch of the empty transactional id does not get to its node: %+v", p)
	}
	empty := produce(9, "a", 0, good)
	empty.Topics[0].Partitions = nil
	if got := ask[*kmsg.ProduceResponse](k, empty); len(got.Topics) != 0 {
		t.Errorf("a topic without partitions is answered: %+v", got.Topics)
	}
}

func TestProduceToSeveralNodesIsAnsweredInTheOrderOfTheRequest(t *testing.T) {
	c := fake.NewCluster(1, 2, 3)
	c.AddTopic("a", 1, 2, 3, 1)
	c.AddTopic("b", 3)
	k := dial(t, serve(t, c, nil))
	req := produce(9, "a", 0, nil)
	req.Topics[0].Partitions = nil
	for _, p := range []int32{2, 0, 3, 1} {
		x := kmsg.NewProduceRequestTopicPartition()
		x.Partition, x.Records = p, batchOf(t, int(p)+1, 50, -1)
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, x)
	}
	req.Topics = append(req.Topics, produce(9, "b", 0, batchOf(t, 1, 50, -1)).Topics[0])
	got := ask[*kmsg.ProduceResponse](k, req)
	for i, want := range []int32{2, 0, 3, 1} {
		if p := got.Topics[0].Partitions[i]; p.Partition != want || p.ErrorCode != 0 {
			t.Errorf("place %d: %+v, want partition %d", i, p, want)
		}
	}
	if p := got.Topics[1].Partitions[0]; got.Topics[1].Topic != "b" || p.ErrorCode != 0 {
		t.Errorf("b: %+v", p)
	}
	for id, want := range map[int32]int{1: 2, 2: 1, 3: 2} {
		if n := c.Node(id); len(n.Appends) != 1 || len(n.Appends[0].Partitions) != want {
			t.Errorf("node %d got %d appends", id, len(n.Appends))
		}
	}
}

// refuse lets a node refuse the first n appends.
func refuse(n *fake.Node, times int32, code errcode.Code, unknown bool) *atomic.Int32 {
	var count atomic.Int32
	n.Refuse = func(*storage.AppendRequest, *storage.PartitionAppend) storage.PartitionAppendResult {
		if count.Add(1) > times {
			return storage.PartitionAppendResult{}
		}
		return storage.PartitionAppendResult{Error: code, OutcomeUnknown: unknown}
	}
	return &count
}

func TestAChangeOfLeadersIsHiddenFromTheProducer(t *testing.T) {
	for _, x := range []struct {
		name     string
		code     errcode.Code
		unknown  bool
		producer int64
		want     errcode.Code
	}{
		{"nothing written", errcode.NotLeaderOrFollower, false, -1, errcode.None},
		{"the connection to the node broke, idempotent", errcode.NetworkException, true, 7, errcode.None},
		{"perhaps written, idempotent", errcode.NotLeaderOrFollower, true, 7, errcode.None},
		{"perhaps written", errcode.NotLeaderOrFollower, true, -1, errcode.NotLeaderOrFollower},
		{"the connection to the node broke", errcode.NetworkException, true, -1, errcode.NotLeaderOrFollower},
		{"something else", errcode.NotEnoughReplicas, false, 7, errcode.NotEnoughReplicas},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := fake.NewCluster(1)
			c.AddTopic("a", 1)
			k := dial(t, serve(t, c, nil))
			refuse(c.Node(1), 2, x.code, x.unknown)
			got := partOf(ask[*kmsg.ProduceResponse](k, produce(13-4, "a", 0, batchOf(t, 1, 10, x.producer))))
			if got.ErrorCode != int16(x.want) {
				t.Errorf("%s", errcode.Code(got.ErrorCode).Name())
			}
		})
	}
}

func TestProduceWaitsForALeader(t *testing.T) {
	c := fake.NewCluster(1, 2)
	id := c.AddTopic("a", 1)
	c.Lead("a", 0, -1)
	k := dial(t, serve(t, c, nil))
	k.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	k.silent()
	c.Lead("a", 0, 2)
	if got := partOf(k.recv().(*kmsg.ProduceResponse)); got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
	if c.Node(2).End(id, 0) != 1 {
		t.Error("not written")
	}
	c.Lead("a", 0, -1)
	c.AddGateway(1, "", metarecord.Endpoint{Name: "PLAINTEXT", Host: "gw", Port: 7})
	short := produce(12, "a", 0, batchOf(t, 1, 10, -1))
	short.TimeoutMillis = 60
	if got := partOf(ask[*kmsg.ProduceResponse](k, short)); got.ErrorCode != int16(errcode.NotLeaderOrFollower) || got.CurrentLeader.LeaderID != -1 || got.CurrentLeader.LeaderEpoch != 3 {
		t.Errorf("%+v", got)
	}
}

func TestAProducerIsToldTheNewLeader(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1)
	c.AddGateway(1, "", metarecord.Endpoint{Name: "PLAINTEXT", Host: "gw", Port: 7})
	k := dial(t, serve(t, c, nil))
	refuse(c.Node(1), 1, errcode.NotLeaderOrFollower, true)
	got := ask[*kmsg.ProduceResponse](k, produce(12, "a", 0, batchOf(t, 1, 10, -1)))
	if p := partOf(got); p.CurrentLeader.LeaderID != 1 || len(got.Brokers) != 1 || got.Brokers[0].Host != "gw" || got.Brokers[0].Port != 7 {
		t.Errorf("%+v, %+v", p.CurrentLeader, got.Brokers)
	}
}

func TestProducesKeepTheirOrderOverAChangeOfLeaders(t *testing.T) {
	c := fake.NewCluster(1, 2)
	id := c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	h := holdAppends(c.Node(1))
	refuse(c.Node(1), 1000, errcode.NotLeaderOrFollower, false)
	var reqs []kmsg.Request
	for i := range 6 {
		reqs = append(reqs, produce(9, "a", 0, batchOf(t, i+1, 10, 7)))
	}
	k.send(reqs[:3]...)
	h.await(t, 3)
	// The second comes back first, the others later; those that come meanwhile must not overtake them.
	h.finish(1)
	k.send(reqs[3:]...)
	k.silent()
	c.Lead("a", 0, 2)
	h.finish(2)
	h.finish(0)
	base := int64(0)
	for i := range 6 {
		if got := partOf(k.recv().(*kmsg.ProduceResponse)); got.ErrorCode != 0 || got.BaseOffset != base {
			t.Errorf("request %d: %+v, want base offset %d", i, got, base)
		}
		base += int64(i + 1)
	}
	if c.Node(2).End(id, 0) != base {
		t.Error("records are missing")
	}
}

func TestProduceWaitsAMomentForATopicThatOthersKnow(t *testing.T) {
	c := fake.NewCluster(1)
	// The moment is not over before the topic is there, however slow the machine is.
	k := dial(t, serveAt(t, newClock().now, c, nil))
	k.send(produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	timer := time.AfterFunc(10*time.Millisecond, func() { c.AddTopic("a", 1) })
	defer timer.Stop()
	if got := partOf(k.recv().(*kmsg.ProduceResponse)); got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
}

// Kafka takes the last of several batches for one partition in a request.
func TestTheLastOfARepeatedPartitionCounts(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1, 1)
	k := dial(t, serve(t, c, nil))
	req := produce(9, "a", 0, batchOf(t, 1, 50, -1))
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, produce(9, "a", 1, batchOf(t, 2, 50, -1)).Topics[0].Partitions...)
	req.Topics = append(req.Topics, produce(9, "a", 0, batchOf(t, 3, 50, -1)).Topics[0])
	got := ask[*kmsg.ProduceResponse](k, req)
	answered := map[int32]int{}
	for _, x := range got.Topics {
		for _, p := range x.Partitions {
			answered[p.Partition]++
			if p.ErrorCode != 0 {
				t.Errorf("%+v", p)
			}
		}
	}
	if len(answered) != 2 || answered[0] != 1 || answered[1] != 1 {
		t.Errorf("answered %v", answered)
	}
	if got := partOf(ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, batchOf(t, 1, 50, -1)))); got.BaseOffset != 3 {
		t.Errorf("the partition has %d records, want those of the last batch", got.BaseOffset)
	}
}

// A bug on the way of one request costs its connection, nothing else.
func TestAPanicCostsOneConnection(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	var bug atomic.Bool
	bug.Store(true)
	c.Node(1).Hold = func(finish func()) {
		if bug.Load() {
			panic("a bug")
		}
		finish()
	}
	g := serve(t, c, nil)
	k := dial(t, g)
	k.send(produce(9, "a", 0, batchOf(t, 1, 50, -1)))
	k.closed()
	bug.Store(false)
	if p := partOf(ask[*kmsg.ProduceResponse](dial(t, g), produce(9, "a", 0, batchOf(t, 1, 50, -1)))); p.ErrorCode != 0 {
		t.Errorf("%+v", p)
	}
}
