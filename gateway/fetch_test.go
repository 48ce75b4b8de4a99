package gateway_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/fake"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
)

func TestFetchInAllVersions(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	b := batchOf(t, 2, 100, -1)
	ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, b))
	for v := int16(4); v <= 18; v++ {
		for _, isolation := range []int8{0, 1} {
			req := fetch(v, "a", from(0, 0), from(0, 2), from(9, 0))
			req.IsolationLevel = isolation
			req.Topics[0].TopicID = id
			got := ask[*kmsg.FetchResponse](k, req)
			if len(got.Topics) != 1 || len(got.Topics[0].Partitions) != 2 {
				t.Fatalf("version %d: %+v", v, got)
			}
			// The partition that stands there twice is read once, at the later offset.
			p, unknown := got.Topics[0].Partitions[0], got.Topics[0].Partitions[1]
			if p.ErrorCode != 0 || p.HighWatermark != 2 || p.LastStableOffset != 2 || len(p.RecordBatches) != 0 || p.PreferredReadReplica != -1 {
				t.Errorf("version %d: %+v", v, p)
			}
			if (p.AbortedTransactions == nil) != (isolation == 0) {
				t.Errorf("version %d, isolation %d: aborted transactions %v", v, isolation, p.AbortedTransactions)
			}
			if unknown.ErrorCode != int16(errcode.UnknownTopicOrPartition) || unknown.HighWatermark != -1 || unknown.AbortedTransactions == nil {
				t.Errorf("version %d: %+v", v, unknown)
			}
		}
		req := fetch(v, "a", from(0, 1))
		req.Topics[0].TopicID = id
		if p := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[0]; len(p.RecordBatches) != len(b) {
			t.Errorf("version %d: %d bytes", v, len(p.RecordBatches))
		}
	}
	none := fetch(13, "", from(0, 0))
	if p := ask[*kmsg.FetchResponse](k, none).Topics[0].Partitions[0]; p.ErrorCode != int16(errcode.UnknownTopicId) {
		t.Errorf("zero id: %+v", p)
	}
}

func TestFetchWaits(t *testing.T) {
	c := fake.NewCluster(1, 2, 3)
	c.AddTopic("a", 1, 2, 3)
	g := serve(t, c, nil)
	k, producer := dial(t, g), dial(t, g)
	req := fetch(12, "a", from(0, 0), from(1, 0), from(2, 0), from(3, 0))
	req.MaxWaitMillis = 60000
	k.send(req)
	k.silent() // the unknown partition does not end the wait
	ask[*kmsg.ProduceResponse](producer, produce(9, "a", 1, batchOf(t, 1, 10, -1)))
	got := k.recv().(*kmsg.FetchResponse)
	for i, p := range got.Topics[0].Partitions {
		if p.Partition != int32(i) || (len(p.RecordBatches) > 0) != (i == 1) {
			t.Errorf("place %d: partition %d with %d bytes", i, p.Partition, len(p.RecordBatches))
		}
	}
	// Now partition 1 has a little; the minimum counts over all nodes.
	req.MinBytes = 200
	k.send(req)
	k.silent()
	ask[*kmsg.ProduceResponse](producer, produce(9, "a", 0, batchOf(t, 1, 100, -1)))
	if got := k.recv().(*kmsg.FetchResponse); len(got.Topics[0].Partitions[0].RecordBatches) == 0 || len(got.Topics[0].Partitions[1].RecordBatches) == 0 {
		t.Error("what made up the minimum is not in the answer")
	}
	req.MinBytes = 1 << 20
	req.Topics[0].Partitions[2].FetchOffset = 9
	if p := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[2]; p.ErrorCode != int16(errcode.OffsetOutOfRange) {
		t.Errorf("out of range: %+v", p)
	}
	c.Lead("a", 2, -1)
	req.MaxWaitMillis = 100
	if p := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[2]; p.ErrorCode != int16(errcode.NotLeaderOrFollower) {
		t.Errorf("no leader: %+v", p)
	}
}

func TestFetchFollowsTheLeader(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1)
	g := serve(t, c, nil)
	k := dial(t, g)
	c.Lead("a", 0, -1)
	req := fetch(12, "a", from(0, 0))
	req.MaxWaitMillis = 5000
	k.send(req)
	k.silent()
	c.Lead("a", 0, 2)
	ask[*kmsg.ProduceResponse](dial(t, g), produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	if p := k.recv().(*kmsg.FetchResponse).Topics[0].Partitions[0]; p.ErrorCode != 0 || len(p.RecordBatches) == 0 {
		t.Errorf("%+v", p)
	}
}

func TestFetchTellsTheNewLeader(t *testing.T) {
	c := fake.NewCluster(1, 2)
	id := c.AddTopic("a", 1)
	c.Lead("a", 0, -1)
	c.AddGateway(1, "", metarecord.Endpoint{Name: "PLAINTEXT", Host: "gw", Port: 7})
	req := fetch(16, "", from(0, 0))
	req.Topics[0].TopicID = id
	got := ask[*kmsg.FetchResponse](dial(t, serve(t, c, nil)), req)
	if p := got.Topics[0].Partitions[0]; p.ErrorCode != int16(errcode.NotLeaderOrFollower) || p.CurrentLeader.LeaderEpoch != 1 || p.CurrentLeader.LeaderID != -1 || len(got.Brokers) != 0 {
		t.Errorf("%+v %+v", p, got.Brokers)
	}
}

func TestFetchSessions(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1, 2)
	g := serve(t, c, nil)
	k := dial(t, g)
	ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, batchOf(t, 2, 10, -1)))
	full := fetch(12, "a", from(0, 0), from(1, 0))
	full.SessionEpoch = 0
	opened := ask[*kmsg.FetchResponse](k, full)
	if opened.SessionID == 0 || len(opened.Topics[0].Partitions) != 2 {
		t.Fatalf("%+v", opened)
	}
	next := func(epoch int32, ps ...kmsg.FetchRequestTopicPartition) *kmsg.FetchRequest {
		r := fetch(12, "a", ps...)
		if len(ps) == 0 {
			r.Topics = nil
		}
		r.SessionID, r.SessionEpoch = opened.SessionID, epoch
		return r
	}
	told := func(what string, req *kmsg.FetchRequest, code errcode.Code, want ...int32) {
		t.Helper()
		got := ask[*kmsg.FetchResponse](k, req)
		var parts []int32
		for _, x := range got.Topics {
			for _, p := range x.Partitions {
				parts = append(parts, p.Partition)
			}
		}
		if got.ErrorCode != int16(code) || len(parts) != len(want) || len(want) == 1 && parts[0] != want[0] {
			t.Errorf("%s: %s, partitions %v, want %v", what, errcode.Code(got.ErrorCode).Name(), parts, want)
		}
	}
	told("advance", next(1, from(0, 2)), errcode.None)
	told("nothing new", next(2), errcode.None)
	ask[*kmsg.ProduceResponse](dial(t, g), produce(9, "a", 1, batchOf(t, 1, 10, -1)))
	told("what is new", next(3), errcode.None, 1)
	told("a repeated epoch", next(3), errcode.InvalidFetchSessionEpoch)
	told("the epoch that is due", next(4), errcode.None, 1)
	forget := next(5)
	forget.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{{Topic: "a", Partitions: []int32{1}}}
	told("forget", forget, errcode.None)
	ids := next(6)
	ids.Version = 13
	told("another version", ids, errcode.FetchSessionTopicIdError)
	told("close", next(-1), errcode.None)
	told("closed", next(7), errcode.FetchSessionIdNotFound)
}

func TestAnEmptyIncrementalFetchWaits(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	g := serve(t, c, nil)
	k := dial(t, g)
	full := fetch(12, "a", from(0, 0))
	full.SessionEpoch = 0
	opened := ask[*kmsg.FetchResponse](k, full)
	next := fetch(12, "a")
	next.Topics, next.SessionID, next.SessionEpoch, next.MaxWaitMillis = nil, opened.SessionID, 1, 60000
	k.send(next)
	k.silent()
	ask[*kmsg.ProduceResponse](dial(t, g), produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	if got := k.recv().(*kmsg.FetchResponse); len(got.Topics) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestPreferredReadReplicas(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1)
	c.Lead("a", 0, 2)
	c.Lead("a", 0, 1)
	g := serve(t, c, nil)
	k := dial(t, g)
	ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, batchOf(t, 1, 10, -1)))
	c.Node(1).Preferred = 2
	c.Node(2).Copy(c.Node(1))
	req := fetch(12, "a", from(0, 0))
	req.Rack = "r2"
	// A client of whom nobody knows which node it means gets the data from the replica that the leader names.
	if p := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[0]; p.PreferredReadReplica != -1 || len(p.RecordBatches) == 0 {
		t.Errorf("without a node: %+v", p)
	}
	node := func(id int32) *client {
		k := dial(t, g)
		v := kmsg.NewPtrApiVersionsRequest()
		v.Version, v.ClientSoftwareName, v.ClientSoftwareVersion = 5, "test", "1"
		v.ClusterID, v.NodeID = kmsg.StringPtr(fake.ClusterID), id
		if got := ask[*kmsg.ApiVersionsResponse](k, v); got.ErrorCode != 0 {
			t.Fatalf("%+v", got)
		}
		return k
	}
	if p := ask[*kmsg.FetchResponse](node(1), req).Topics[0].Partitions[0]; p.PreferredReadReplica != 2 || len(p.RecordBatches) != 0 {
		t.Errorf("at the leader: %+v", p)
	}
	if p := ask[*kmsg.FetchResponse](node(2), req).Topics[0].Partitions[0]; p.PreferredReadReplica != -1 || len(p.RecordBatches) == 0 {
		t.Errorf("at the follower: %+v", p)
	}
}
