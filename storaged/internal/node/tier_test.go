package node_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/storaged/internal/node"
)

// tieredTopic makes a topic whose segments have one record each and may leave the node as soon as they are remote.
func tieredTopic(c *cluster, replicas ...int32) uuid.UUID {
	set := func(name, value string) metarecord.Record {
		return &metarecord.ConfigRecord{ResourceType: 2, ResourceName: "tiered", Name: name, Value: &value}
	}
	c.commit(set("remote.storage.enable", "true"), set("local.retention.ms", "1000"), set("internal.segment.bytes", "80"),
		set("file.delete.delay.ms", "0"))
	topic := c.topic("tiered", 1, replicas...)
	c.commit(&metarecord.ShardRecord{Kind: 4, Shard: 3, Owner: 1, Epoch: 2})
	return topic
}

func updateTier(t *testing.T, n *node.Node, topic uuid.UUID, edit func(*storagev1.UpdateTierPartition)) *storagev1.UpdateTierPartitionResult {
	t.Helper()
	q := &storagev1.UpdateTierPartition{TopicId: topic[:], Shard: 3, ShardEpoch: 2, LogStartOffset: -1}
	edit(q)
	resp, err := n.UpdateTier(t.Context(), &storagev1.UpdateTierRequest{Partitions: []*storagev1.UpdateTierPartition{q}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetPartitions()[0]
}

func describeTier(t *testing.T, n *node.Node, topic uuid.UUID) *storagev1.TierDescription {
	t.Helper()
	resp, err := n.DescribeTier(t.Context(), &storagev1.DescribeTierRequest{Partitions: []*storagev1.DescribeTierPartition{{TopicId: topic[:], CurrentLeaderEpoch: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetPartitions()[0]
}

func offsetOf(t *testing.T, n *node.Node, topic uuid.UUID, position int64) int64 {
	t.Helper()
	r := latest(t, n, topic, func(q *storagev1.ListOffsetsPartition) { q.Timestamp = position })
	if r.GetErrorCode() != 0 {
		t.Fatalf("position %d: %+v", position, r)
	}
	return r.GetOffset()
}

func TestTieredPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		topic := tieredTopic(c, 1, 2)
		leader := c.node(1)
		for i := range 8 {
			if r := produce(leader, appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i)))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		pass(5 * time.Second)
		d := describeTier(t, leader, topic)
		if len(d.GetSegments()) != 8 || d.GetLastStableOffset() != 8 || len(d.GetEpochs()) != 1 {
			t.Fatalf("%+v", d)
		}
		positions := func(n *node.Node) string {
			return fmt.Sprint(offsetOf(t, n, topic, -2), offsetOf(t, n, topic, -4), offsetOf(t, n, topic, -5), offsetOf(t, n, topic, -6))
		}
		if got := positions(leader); got != "0 0 -1 0" {
			t.Fatal(got)
		}
		checkSegment(t, leader, topic, d.GetSegments()[2])

		// Only the owner of the shard, and only about this leader's log, is believed.
		for code, edit := range map[errcode.Code]func(*storagev1.UpdateTierPartition){
			errcode.NotCoordinator:      func(q *storagev1.UpdateTierPartition) { q.ShardEpoch = 1 },
			errcode.NotLeaderOrFollower: func(q *storagev1.UpdateTierPartition) { q.ShardEpoch = 3 },
			errcode.UnknownLeaderEpoch:  func(q *storagev1.UpdateTierPartition) { q.LeaderEpoch = 1 },
		} {
			if r := updateTier(t, leader, topic, edit); errcode.Code(r.GetErrorCode()) != code {
				t.Fatalf("%s: %+v", code.Name(), r)
			}
		}
		if r := updateTier(t, leader, topic, func(q *storagev1.UpdateTierPartition) { q.RemoteEndOffset = 6 }); r.GetErrorCode() != 0 {
			t.Fatalf("%+v", r)
		}
		if got := positions(leader); got != "0 6 5 6" {
			t.Fatal(got)
		}
		r := fetch(t, leader, fetchRequest(topic, 2))
		if r.Error != errcode.None || !r.Tiered || r.TieredEpoch != 0 || r.LocalLogStart != 6 || r.Records.Len() != 0 {
			t.Fatalf("%+v", r)
		}
		if r := latest(t, leader, topic, func(q *storagev1.ListOffsetsPartition) { q.Timestamp = 5 }); !r.GetSearchTier() || r.GetLocalLogStartOffset() != 6 {
			t.Fatalf("%+v", r)
		}
		// The follower deletes by what the leader tells it.
		eventually(t, "the follower's local log begins later", func() bool {
			r := fetchFollower(t, c.node(2), topic, 2)
			return r.Tiered && r.LocalLogStart == 6
		})

		// A new replica begins behind the remote tier, and knows the log's start and epochs all the same.
		change := metarecord.NewPartitionChange(topic, 0)
		change.Replicas = []int32{1, 2, 3}
		c.commit(change)
		eventually(t, "the new replica is in sync", func() bool { return sameSet(c.partition(topic).ISR, 1, 2, 3) })
		c.elect(topic, 3, 1, 2, 3)
		if got := positions(c.node(3)); got != "0 6 -1 -1" {
			t.Fatal(got) // it has not been told yet what is remote
		}
		if r := updateTier(t, c.node(3), topic, func(q *storagev1.UpdateTierPartition) { q.LeaderEpoch, q.RemoteEndOffset = 1, 6 }); r.GetErrorCode() != 0 {
			t.Fatalf("%+v", r)
		}
		if got := positions(c.node(3)); got != "0 6 5 6" {
			t.Fatal(got)
		}
		ends, err := c.node(3).OffsetForLeaderEpoch(t.Context(), &storagev1.OffsetForLeaderEpochRequest{Partitions: []*storagev1.OffsetForLeaderEpochPartition{
			{TopicId: topic[:], CurrentLeaderEpoch: -1, LeaderEpoch: 0},
		}})
		if err != nil || ends.GetPartitions()[0].GetEndOffset() != 8 {
			t.Fatal(ends, err)
		}

		// The owner moves the log's start, in the remote part and beyond it.
		for _, start := range []int64{3, 7} {
			r := updateTier(t, c.node(3), topic, func(q *storagev1.UpdateTierPartition) {
				q.LeaderEpoch, q.RemoteEndOffset, q.LogStartOffset = 1, 6, start
			})
			if r.GetErrorCode() != 0 || r.GetLogStartOffset() != start {
				t.Fatalf("%+v", r)
			}
		}
		eventually(t, "followers begin there too", func() bool { return fetchFollower(t, c.node(1), topic, 7).LogStartOffset == 7 })
		if r := fetch(t, c.node(3), fetchRequest(topic, 5)); r.Error != errcode.OffsetOutOfRange {
			t.Fatalf("%+v", r)
		}
	})
}

// TestTieredAnew: with remote.storage.enable=false what is remote may be deleted, so when the topic is tiered again, nothing local
// may be deleted for what was remote before, also not when a pass of then ends late.
func TestTieredAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := tieredTopic(c, 1, 2)
		set := func(name, value string) {
			c.commit(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "tiered", Name: name, Value: &value})
		}
		set("local.retention.ms", "-1")
		for i := range 8 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		remote := func() {
			t.Helper()
			if r := updateTier(t, c.node(1), topic, func(q *storagev1.UpdateTierPartition) { q.RemoteEndOffset = 6 }); r.GetErrorCode() != 0 {
				t.Fatalf("%+v", r)
			}
		}
		remote()
		if got := offsetOf(t, c.node(1), topic, -5); got != 5 {
			t.Fatal(got)
		}
		pass(5 * time.Second)
		set("remote.storage.enable", "false")
		remote()
		set("local.retention.ms", "1000")
		set("remote.storage.enable", "true")
		pass(time.Hour)
		if start, tiered := offsetOf(t, c.node(1), topic, -4), offsetOf(t, c.node(1), topic, -5); start != 0 || tiered != -1 {
			t.Fatalf("the local log begins at %d, %d is taken to be remote", start, tiered)
		}
		if r := fetchFollower(t, c.node(2), topic, 0); r.Tiered {
			t.Fatalf("the follower's local log begins at %d", r.LocalLogStart)
		}
		remote()
		if start := offsetOf(t, c.node(1), topic, -4); start != 6 {
			t.Fatalf("the local log begins at %d", start)
		}
	})
}

// TestTierPositionsAtTheEnd asks for the ends of the remote part where they meet the end of what a client may read: what is not
// below that does not exist for it.
func TestTierPositionsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := tieredTopic(c, 1)
		leader := c.node(1)
		positions := func(replica int32) string {
			var out []int64
			for _, at := range []int64{-5, -6} {
				q := &storagev1.ListOffsetsPartition{TopicId: topic[:], CurrentLeaderEpoch: -1, Timestamp: at}
				resp, err := leader.ListOffsets(t.Context(), &storagev1.ListOffsetsRequest{ReplicaId: replica, Partitions: []*storagev1.ListOffsetsPartition{q}})
				if err != nil || resp.GetPartitions()[0].GetErrorCode() != 0 {
					t.Fatal(resp, err)
				}
				out = append(out, resp.GetPartitions()[0].GetOffset(), int64(resp.GetPartitions()[0].GetLeaderEpoch()))
			}
			return fmt.Sprint(out)
		}
		tell := func(remoteEnd, logStart int64) {
			t.Helper()
			r := updateTier(t, leader, topic, func(q *storagev1.UpdateTierPartition) {
				q.RemoteEndOffset, q.LogStartOffset = remoteEnd, logStart
			})
			if r.GetErrorCode() != 0 {
				t.Fatalf("%+v", r)
			}
		}
		want := func(what, want string) {
			t.Helper()
			if got := positions(-1); got != want {
				t.Errorf("%s: got %s, want %s", what, got, want)
			}
		}
		want("an empty log", "[-1 -1 -1 -1]")
		for i := range 4 {
			produce(leader, appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		want("nothing is remote", "[-1 -1 0 0]")
		tell(3, -1)
		want("the active segment is local", "[2 0 3 0]")
		tell(4, -1)
		want("all is remote", "[3 0 -1 -1]")
		tell(4, 4)
		want("all has expired", "[3 -1 -1 -1]")
	})
}

// TestNewReplicaBehindTheTier lets a replica begin behind what is remote, although the leader still has more (KIP-1023).
func TestNewReplicaBehindTheTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"follower.fetch.last.tiered.offset.enable": "true"})
		topic := tieredTopic(c, 1)
		local := "3600000"
		c.commit(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "tiered", Name: "local.retention.ms", Value: &local})
		for i := range 4 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		pass(2 * time.Hour)
		updateTier(t, c.node(1), topic, func(q *storagev1.UpdateTierPartition) { q.RemoteEndOffset = 2 })
		for i := range 4 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		updateTier(t, c.node(1), topic, func(q *storagev1.UpdateTierPartition) { q.RemoteEndOffset = 6 })
		change := metarecord.NewPartitionChange(topic, 0)
		change.Replicas = []int32{1, 2}
		c.commit(change)
		eventually(t, "the new replica is in sync", func() bool { return sameSet(c.partition(topic).ISR, 1, 2) })
		if leader, follower := offsetOf(t, c.node(1), topic, -4), fetchFollower(t, c.node(2), topic, 0); leader >= 6 || !follower.Tiered || follower.LocalLogStart != 6 {
			t.Fatalf("the leader's local log begins at %d, the follower's at %d", leader, follower.LocalLogStart)
		}
	})
}

// fetchFollower reads from a node that does not lead, as a consumer in its rack.
func fetchFollower(t *testing.T, n *node.Node, topic uuid.UUID, offset int64) storage.FetchPartitionResult {
	t.Helper()
	req := fetchRequest(topic, offset)
	req.RackID = "somewhere"
	r := fetch(t, n, req)
	r.Records.Release()
	return r
}

// checkSegment reads a segment as tiering does.
func checkSegment(t *testing.T, n *node.Node, topic uuid.UUID, s *storagev1.LocalSegment) {
	t.Helper()
	d, err := n.DescribeSegment(t.Context(), &storagev1.DescribeSegmentRequest{TopicId: topic[:], BaseOffset: s.GetBaseOffset()})
	if err != nil || d.GetEndOffset() != s.GetEndOffset() || d.GetSizeBytes() != s.GetSizeBytes() || len(d.GetEpochs()) != 1 {
		t.Fatal(d, err)
	}
	data, err := n.ReadSegment(t.Context(), &storagev1.ReadSegmentRequest{TopicId: topic[:], BaseOffset: s.GetBaseOffset(), Length: int32(s.GetSizeBytes())})
	if err != nil || data.GetCrc32C() != d.GetCrc32C() {
		t.Fatal(err)
	}
	if got := values(t, storage.FetchPartitionResult{Records: storage.Records{Buffers: buffersOf(data.GetData())}}); !slices.Equal(got, []string{fmt.Sprint(s.GetBaseOffset())}) {
		t.Fatal(got)
	}
	for _, base := range []int64{1 << 40, 7} { // none, and the active one
		_, err := n.DescribeSegment(t.Context(), &storagev1.DescribeSegmentRequest{TopicId: topic[:], BaseOffset: base})
		if errcode.Of(err) != errcode.OffsetOutOfRange {
			t.Fatal(base, err)
		}
	}
	_, err = n.ReadSegment(t.Context(), &storagev1.ReadSegmentRequest{TopicId: topic[:], BaseOffset: s.GetBaseOffset(), Length: 1 << 30})
	if err == nil || !strings.Contains(err.Error(), "want 1 to") {
		t.Fatal(err)
	}
}

// TestTierRefusals: only the leader, in the epoch that the caller knows it by, answers for a partition's segments. Bytes of another
// leader's segment would be copied as those of this one.
func TestTierRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := tieredTopic(c, 1, 2)
		for i := range 3 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		c.elect(topic, 2, 1, 2)
		c.elect(topic, 1, 1, 2)
		size := describeTier(t, c.node(1), topic).GetSegments()[0].GetSizeBytes()
		for name, tt := range map[string]struct {
			node  int32
			topic uuid.UUID
			epoch int32
			want  errcode.Code
		}{
			"the leader":         {1, topic, 2, errcode.None},
			"a former leader":    {2, topic, 2, errcode.NotLeaderOrFollower},
			"an earlier epoch":   {1, topic, 1, errcode.FencedLeaderEpoch},
			"a later epoch":      {1, topic, 3, errcode.UnknownLeaderEpoch},
			"a topic of nowhere": {1, uuid.UUID{9}, 2, errcode.UnknownTopicId},
		} {
			n := c.node(tt.node)
			d, err := n.DescribeTier(t.Context(), &storagev1.DescribeTierRequest{Partitions: []*storagev1.DescribeTierPartition{
				{TopicId: tt.topic[:], CurrentLeaderEpoch: tt.epoch},
			}})
			if got := errcode.Code(d.GetPartitions()[0].GetErrorCode()); err != nil || got != tt.want || (got == errcode.None) != (len(d.GetPartitions()[0].GetSegments()) > 0) {
				t.Errorf("%s: DescribeTier: %s, %v", name, got.Name(), err)
			}
			r := updateTier(t, n, tt.topic, func(q *storagev1.UpdateTierPartition) { q.LeaderEpoch = tt.epoch })
			if got := errcode.Code(r.GetErrorCode()); got != tt.want || (got == errcode.None) != (r.GetLogStartOffset() == 0) {
				t.Errorf("%s: UpdateTier: %s, log start %d", name, got.Name(), r.GetLogStartOffset())
			}
			if _, err := n.DescribeSegment(t.Context(), &storagev1.DescribeSegmentRequest{TopicId: tt.topic[:], LeaderEpoch: tt.epoch}); errcode.Of(err) != tt.want {
				t.Errorf("%s: DescribeSegment: %v", name, err)
			}
			read := &storagev1.ReadSegmentRequest{TopicId: tt.topic[:], LeaderEpoch: tt.epoch, Length: int32(size)}
			if _, err := n.ReadSegment(t.Context(), read); errcode.Of(err) != tt.want {
				t.Errorf("%s: ReadSegment: %v", name, err)
			}
		}
		for length, want := range map[int32]errcode.Code{
			-1: errcode.InvalidRequest, 0: errcode.InvalidRequest, 4<<20 + 1: errcode.InvalidRequest, 1: errcode.None, int32(size): errcode.None,
		} {
			_, err := c.node(1).ReadSegment(t.Context(), &storagev1.ReadSegmentRequest{TopicId: topic[:], LeaderEpoch: 2, Length: length})
			if errcode.Of(err) != want {
				t.Errorf("%d bytes: %v", length, err)
			}
		}
		// More than the segment has is an answer without bytes, whatever the bound of a request is.
		if _, err := c.node(1).ReadSegment(t.Context(), &storagev1.ReadSegmentRequest{TopicId: topic[:], LeaderEpoch: 2, Length: 4 << 20}); err == nil ||
			errcode.Of(err) == errcode.InvalidRequest {
			t.Errorf("more than there is: %v", err)
		}
		// What the owner says is believed as far as the log goes.
		for _, start := range []int64{1, 0, 4, 100} {
			r := updateTier(t, c.node(1), topic, func(q *storagev1.UpdateTierPartition) {
				q.LeaderEpoch, q.RemoteEndOffset, q.LogStartOffset = 2, 100, start
			})
			if r.GetErrorCode() != 0 || r.GetLogStartOffset() != 1 {
				t.Errorf("log start %d: %+v", start, r)
			}
		}
		if d := describeTier(t, c.node(1), topic); d.GetRemoteEndOffset() != 3 || d.GetLogStartOffset() != 1 {
			t.Errorf("%+v", d)
		}
	})
}

// TestHistoryOfANewReplica: one that begins behind the remote part knows all leader epochs and producers of what it never read.
func TestHistoryOfANewReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		topic := tieredTopic(c, 1, 2)
		at := int64(0)
		write := func(n int32, records storage.Buffers) {
			t.Helper()
			if r := produce(c.node(n), appendRequest(topic, storage.AcksAll, records)); r.Error != errcode.None || r.BaseOffset != at {
				t.Fatalf("%+v", r)
			}
			at++
		}
		write(1, producerBatch(7, 0, "0"))
		write(1, producerBatch(7, 1, "1"))
		c.elect(topic, 2, 1, 2)
		write(2, producerBatch(7, 2, "2"))
		write(2, batch("3"))
		c.elect(topic, 1, 1, 2)
		for at < 8 {
			write(1, batch(fmt.Sprint(at)))
		}
		pass(5 * time.Second)
		if r := updateTier(t, c.node(1), topic, func(q *storagev1.UpdateTierPartition) { q.LeaderEpoch, q.RemoteEndOffset = 2, 6 }); r.GetErrorCode() != 0 {
			t.Fatalf("%+v", r)
		}
		if r := fetch(t, c.node(1), fetchRequest(topic, 3)); !r.Tiered || r.TieredEpoch != 1 || r.TieredLeaderEpoch != 2 || r.LocalLogStart != 6 {
			t.Fatalf("%+v", r)
		}
		change := metarecord.NewPartitionChange(topic, 0)
		change.Replicas = []int32{1, 2, 3}
		c.commit(change)
		eventually(t, "the new replica is in sync", func() bool { return sameSet(c.partition(topic).ISR, 1, 2, 3) })
		c.elect(topic, 3, 1, 2, 3)
		for epoch, end := range map[int32]int64{0: 2, 1: 4, 2: 8} {
			resp, err := c.node(3).OffsetForLeaderEpoch(t.Context(), &storagev1.OffsetForLeaderEpochRequest{Partitions: []*storagev1.OffsetForLeaderEpochPartition{
				{TopicId: topic[:], CurrentLeaderEpoch: -1, LeaderEpoch: epoch},
			}})
			if got := resp.GetPartitions()[0].GetEndOffset(); err != nil || got != end {
				t.Errorf("epoch %d ends at %d, %v, want %d", epoch, got, err, end)
			}
		}
		if start := offsetOf(t, c.node(3), topic, -4); start != 6 {
			t.Errorf("the local log begins at %d", start)
		}
		if r := produce(c.node(3), appendRequest(topic, storage.AcksAll, producerBatch(7, 2, "2"))); r.Error != errcode.None || r.BaseOffset != 2 {
			t.Errorf("what was written before is written again: %+v", r)
		}
		if r := produce(c.node(3), appendRequest(topic, storage.AcksAll, producerBatch(7, 9, "x"))); r.Error != errcode.OutOfOrderSequenceNumber {
			t.Errorf("a gap: %+v", r)
		}
	})
}
