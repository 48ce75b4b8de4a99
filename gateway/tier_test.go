package gateway_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/fake"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/storagerpc"
)

// coldCluster has three partitions of two nodes, of which everything before offset 10 is remote.
func coldCluster(t *testing.T) *fake.Cluster {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1, 2, 1)
	k := dial(t, serve(t, c, nil))
	for p := range int32(3) {
		for range 10 {
			ask[*kmsg.ProduceResponse](k, produce(9, "a", p, batchOf(t, 2, 100, -1)))
		}
	}
	for _, id := range []int32{1, 2} {
		c.Node(id).TieredBelow = 10
	}
	return c
}

func TestFetchFromTheTier(t *testing.T) {
	c := coldCluster(t)
	c.Node(1).LocalAborted = []storage.AbortedTransaction{{ProducerID: 5, FirstOffset: 3}, {ProducerID: 6, FirstOffset: 4}, {ProducerID: 7, FirstOffset: 0}}
	var together atomic.Int32
	both := make(chan struct{})
	c.ReadTier = func(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
		// Cold partitions are read beside each other: each waits for the other.
		if together.Add(1) == 2 {
			close(both)
		}
		select {
		case <-both:
		case <-ctx.Done():
		}
		records := mem.BufferSlice{mem.SliceBuffer{byte(req.GetPartition())}, mem.SliceBuffer{byte(req.GetFetchOffset())}}
		return &storagerpc.TierRead{
			Records: storage.Records{Buffers: records}, EndOffset: 4, AbortedTransactions: []storage.AbortedTransaction{{ProducerID: 5, FirstOffset: 3}},
		}, nil
	}
	k := dial(t, serve(t, c, nil))
	req := fetch(12, "a", from(0, 2), from(1, 3), from(2, 15))
	req.MaxWaitMillis, req.MinBytes, req.IsolationLevel = 60_000, 1, 1
	got := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions
	for i, want := range [][]byte{{0, 2}, {1, 3}} {
		if p := got[i]; p.ErrorCode != 0 || !slices.Equal(p.RecordBatches, want) || p.HighWatermark != 20 {
			t.Errorf("partition %d: %+v", i, p)
		}
	}
	if len(got[2].RecordBatches) == 0 {
		t.Error("the local partition was not read")
	}
	// Those of both tiers that the records touch, each once.
	var aborted []int64
	for _, a := range got[0].AbortedTransactions {
		aborted = append(aborted, a.ProducerID)
	}
	slices.Sort(aborted)
	if !slices.Equal(aborted, []int64{5, 7}) {
		t.Errorf("aborted %v", aborted)
	}
}

// TestColdReadsGetTheirTurn: a partition whose first batch is larger than what is left is read all the same, when it is the first,
// however much the local ones behind it have.
func TestColdReadsGetTheirTurn(t *testing.T) {
	c := coldCluster(t)
	c.ReadTier = func(_ context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
		if req.GetLeaderEpoch() != fake.TieredLeaderEpoch {
			t.Errorf("read in the history of leader epoch %d", req.GetLeaderEpoch())
		}
		const batch = 1000
		if !req.GetMinOne() && req.GetMaxBytes() < batch {
			return &storagerpc.TierRead{}, nil
		}
		return &storagerpc.TierRead{Records: storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(make([]byte, batch))}}, EndOffset: 4}, nil
	}
	k := dial(t, serve(t, c, nil))
	for name, tt := range map[string]struct {
		order []kmsg.FetchRequestTopicPartition
		cold  int
	}{"the cold one first": {[]kmsg.FetchRequestTopicPartition{from(0, 2), from(2, 15)}, 1000}, "the cold one last": {[]kmsg.FetchRequestTopicPartition{from(2, 15), from(0, 2)}, 0}} {
		req := fetch(12, "a", tt.order...)
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 60_000, 1, 150
		for _, p := range ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions {
			switch n := len(p.RecordBatches); {
			case p.Partition == 0 && n != tt.cold:
				t.Errorf("%s: %d cold bytes", name, n)
			case p.Partition == 2 && n == 0:
				t.Errorf("%s: no local records", name)
			}
		}
	}
}

func TestFetchFromATierThatIsAway(t *testing.T) {
	for name, tt := range map[string]struct {
		read func(ctx context.Context) error
		code errcode.Code
	}{
		"takes too long":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, errcode.None},
		"has no owner":     {func(context.Context) error { return errcode.RequestTimedOut.Err() }, errcode.None},
		"has expired":      {func(context.Context) error { return errcode.OffsetOutOfRange.Err() }, errcode.OffsetOutOfRange},
		"has a bad object": {func(context.Context) error { return errcode.KafkaStorageError.Err() }, errcode.KafkaStorageError},
	} {
		t.Run(name, func(t *testing.T) {
			c := coldCluster(t)
			c.ReadTier = func(ctx context.Context, _ *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
				return nil, tt.read(ctx)
			}
			k := dial(t, serve(t, c, map[string]string{"remote.fetch.max.wait.ms": "30"}))
			req := fetch(12, "a", from(0, 2), from(2, 15))
			req.MaxWaitMillis, req.MinBytes = 60_000, 1
			got := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions
			if got[0].ErrorCode != int16(tt.code) || len(got[0].RecordBatches) != 0 {
				t.Errorf("%+v", got[0])
			}
			if got[1].ErrorCode != 0 || len(got[1].RecordBatches) == 0 {
				t.Errorf("the local partition: %+v", got[1])
			}
		})
	}
}

// Beside producers cold reads bring little at a time, and what they must wait too long for is an empty answer; without them they
// bring what was asked for.
func TestColdReadsYieldToProducers(t *testing.T) {
	c := coldCluster(t)
	reads := make(chan *tieringv1.ReadRequest, 1)
	c.ReadTier = func(_ context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
		reads <- req
		n := 100
		if req.GetMaxBytes() <= 1<<20 {
			n = 8 << 20 // a first batch that is larger
		}
		return &storagerpc.TierRead{Records: storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(make([]byte, n))}}, EndOffset: 4}, nil
	}
	clock := newClock()
	k := dial(t, serveAt(t, clock.now, c, map[string]string{"remote.fetch.max.wait.ms": "200"}))
	// cold fetches, and gives how many bytes came and what the tier was asked for; nil for nothing.
	cold := func() (got int, asked *tieringv1.ReadRequest) {
		t.Helper()
		const bytes = 16 << 20
		req := fetch(12, "a", from(0, 2))
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 60_000, 1, bytes
		req.Topics[0].Partitions[0].PartitionMaxBytes = bytes
		p := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[0]
		if p.ErrorCode != 0 {
			t.Errorf("error %d", p.ErrorCode)
		}
		select {
		case asked = <-reads:
		default:
		}
		return len(p.RecordBatches), asked
	}
	if n, asked := cold(); n != 100 || asked.GetMaxBytes() != 16<<20 {
		t.Errorf("without producers %d bytes, %v", n, asked)
	}
	ask[*kmsg.ProduceResponse](k, produce(9, "a", 0, batchOf(t, 2, 100, -1)))
	if n, asked := cold(); n != 8<<20 || asked == nil || asked.GetMaxBytes() > 1<<20 || !asked.GetMinOne() {
		t.Errorf("beside producers %d bytes, %v", n, asked)
	}
	// A second of the rate is gone now: the next turn is too far away.
	if n, asked := cold(); n != 0 || asked != nil {
		t.Errorf("%d bytes out of turn, %v", n, asked)
	}
	clock.advance(3 * time.Second)
	if n, asked := cold(); n != 100 || asked.GetMaxBytes() != 16<<20 {
		t.Errorf("after the producers %d bytes, %v", n, asked)
	}
}

// offsetsAt asks for a time, or a special position, in the first partition of topic a.
func offsetsAt(version int16, timestamp int64) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = version, -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = "a"
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.CurrentLeaderEpoch, rp.Timestamp = -1, timestamp
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func TestOffsetsByTimeInTheTier(t *testing.T) {
	c := coldCluster(t)
	c.FindInTier = func(_ context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
		switch {
		case req.GetLocalLogStartOffset() != 10:
			return nil, errcode.InvalidRequest.Err()
		case req.GetTimestampMs() == 1:
			return &tieringv1.FindOffsetResponse{Found: true, Offset: 4, TimestampMs: 2, LeaderEpoch: 0}, nil
		case req.GetTimestampMs() == 2:
			return &tieringv1.FindOffsetResponse{}, nil
		}
		return nil, errcode.RequestTimedOut.Err()
	}
	k := dial(t, serve(t, c, nil))
	for timestamp, want := range map[int64]struct {
		offset int64
		code   errcode.Code
	}{1: {4, 0}, 2: {20, 0}, 3: {-1, errcode.RequestTimedOut}, -1: {20, 0}} {
		got := ask[*kmsg.ListOffsetsResponse](k, offsetsAt(7, timestamp)).Topics[0].Partitions[0]
		if got.Offset != want.offset || got.ErrorCode != int16(want.code) {
			t.Errorf("at %d: %+v", timestamp, got)
		}
	}
}

// TestTierTimeoutsFollowTheCluster alters how long the remote tier is waited for while the gateway runs: with what it was
// started with, these requests would take an hour.
func TestTierTimeoutsFollowTheCluster(t *testing.T) {
	c := coldCluster(t)
	c.ReadTier = func(ctx context.Context, _ *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c.FindInTier = func(ctx context.Context, _ *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	k := dial(t, serve(t, c, map[string]string{"remote.fetch.max.wait.ms": "3600000", "remote.list.offsets.request.timeout.ms": "3600000"}))
	short := "30"
	for _, name := range []string{"remote.fetch.max.wait.ms", "remote.list.offsets.request.timeout.ms"} {
		c.Apply(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: name, Value: &short})
	}
	req := fetch(12, "a", from(0, 2))
	req.MaxWaitMillis, req.MinBytes = 20, 1
	if got := ask[*kmsg.FetchResponse](k, req).Topics[0].Partitions[0]; got.ErrorCode != 0 || len(got.RecordBatches) != 0 {
		t.Errorf("%+v", got)
	}
	if got := ask[*kmsg.ListOffsetsResponse](k, offsetsAt(9, 1)).Topics[0].Partitions[0]; got.ErrorCode != int16(errcode.RequestTimedOut) {
		t.Errorf("%+v", got)
	}
}
