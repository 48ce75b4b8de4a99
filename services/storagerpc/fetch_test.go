package storagerpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

func withoutTime() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}

func fetchOf(partitions int, maxBytes int32) *storage.FetchRequest {
	req := &storage.FetchRequest{ReplicaID: storage.ConsumerReplicaID, ReplicaEpoch: -1, MaxWaitMs: 1000, MinBytes: 1, MaxBytes: maxBytes}
	for p := range partitions {
		req.Partitions = append(req.Partitions, storage.FetchPartition{Partition: int32(p)})
	}
	return req
}

func TestFetchOfEveryKindOfRecords(t *testing.T) {
	const size = 3<<20 + 17
	file := segment(t, size)
	content, err := io.ReadAll(io.NewSectionReader(file, 0, size))
	if err != nil {
		t.Fatal(err)
	}
	topic, released := uuid.Random(), 0
	region := func(offset, length int) storage.FileRegion {
		return storage.FileRegion{File: file, Offset: int64(offset), Length: length, Done: func() { released++ }}
	}
	var want [][]byte
	node := &fakeNode{onFetch: func(_ context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
		records := []storage.Records{
			{Files: []storage.FileRegion{region(0, 100), region(500, 1<<20)}},
			{},
			{Buffers: mem.BufferSlice{mem.SliceBuffer(content[:700_000]), mem.SliceBuffer(content[5:1_500_000])}},
			{Files: []storage.FileRegion{region(0, size)}},
			{Files: []storage.FileRegion{region(7, 1)}},
			{},
		}
		want = nil
		result := &storage.FetchResult{}
		for i := range records {
			all, err := records[i].ReadAll()
			if err != nil {
				return nil, err
			}
			want = append(want, all)
			result.Partitions = append(result.Partitions, storage.FetchPartitionResult{TopicID: topic, Partition: int32(i), HighWatermark: int64(i),
				LastStableOffset: 5, LogStartOffset: -1, PreferredReadReplica: -1, Diverging: storage.NoDivergence, Leader: storage.NoLeader,
				AbortedTransactions: []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: int64(i)}}, Records: records[i]})
		}
		return result, nil
	}}
	f := serveTCP(t, node)
	for _, maxBytes := range []int32{1 << 10, 50 << 20} {
		released = 0
		got, err := f.client.Fetch(t.Context(), fetchOf(6, maxBytes))
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Partitions {
			p := &got.Partitions[i]
			if p.Partition != int32(i) || p.HighWatermark != int64(i) || p.Diverging != storage.NoDivergence || p.Leader != storage.NoLeader ||
				p.PreferredReadReplica != -1 || len(p.AbortedTransactions) != 1 {
				t.Errorf("got %+v", p)
			}
			if !bytes.Equal(p.Records.Buffers.Materialize(), want[i]) {
				t.Errorf("partition %d: %d bytes, want %d, or others", i, p.Records.Len(), len(want[i]))
			}
		}
		got.Release()
	}
	f.expectNoLeaks(t)
	if released != 4 {
		t.Errorf("%d file regions were given back, not 4", released)
	}
}

// waitingNode answers a fetch when it is cancelled, with one partition.
func waitingNode(begun chan<- struct{}) *fakeNode {
	return &fakeNode{onFetch: func(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, len(req.Partitions))}, nil
	}}
}

func TestCancelGetsWhatIsThere(t *testing.T) {
	begun := make(chan struct{}, 1)
	f := serveTCP(t, waitingNode(begun))
	for _, lane := range f.client.fetches {
		lane.cancelGrace = time.Hour // The answer comes, however slow the machine is.
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	got, err := f.client.Fetch(ctx, fetchOf(1, 1<<20))
	if err != nil || len(got.Partitions) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	got.Release()
}

func TestCancelDoesNotWaitForEver(t *testing.T) {
	begun, over := make(chan struct{}, 1), make(chan struct{})
	defer close(over)
	f := serveTCP(t, &fakeNode{onFetch: func(context.Context, *storage.FetchRequest) (*storage.FetchResult, error) {
		begun <- struct{}{}
		<-over
		return &storage.FetchResult{}, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := f.client.Fetch(ctx, fetchOf(1, 1<<20)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFetchErrors(t *testing.T) {
	file := segment(t, 100)
	for name, c := range map[string]struct {
		result *storage.FetchResult
		err    error
		want   errcode.Code
	}{
		"the node's own":       {err: errcode.BrokerNotAvailable.Err(), want: errcode.BrokerNotAvailable},
		"a short file":         {result: &storage.FetchResult{Partitions: []storage.FetchPartitionResult{{Records: storage.Records{Files: []storage.FileRegion{{File: file, Offset: 50, Length: 51}}}}}}, want: errcode.KafkaStorageError},
		"a partition too few":  {result: &storage.FetchResult{}, want: errcode.UnknownServerError},
		"a partition too many": {result: &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, 2)}, want: errcode.UnknownServerError},
	} {
		t.Run(name, func(t *testing.T) {
			f := serveTCP(t, &fakeNode{onFetch: func(context.Context, *storage.FetchRequest) (*storage.FetchResult, error) { return c.result, c.err }})
			if _, err := f.client.Fetch(t.Context(), fetchOf(1, 1<<20)); errcode.Of(err) != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
			f.expectNoLeaks(t)
		})
	}
}

func TestFetchOfALostNode(t *testing.T) {
	begun := make(chan struct{}, 1)
	f := serveTCP(t, waitingNode(begun))
	go func() {
		<-begun
		ctx, cancel := withoutTime()
		defer cancel()
		_ = f.grpcServer.Stop(ctx)
	}()
	if _, err := f.client.Fetch(t.Context(), fetchOf(1, 1<<20)); errcode.Of(err) != errcode.NetworkException {
		t.Errorf("got %v", err)
	}
	if _, err := f.client.Fetch(t.Context(), fetchOf(1, 1<<20)); errcode.Of(err) != errcode.NetworkException {
		t.Errorf("got %v", err)
	}
	_ = f.client.Close()
	if _, err := f.client.Fetch(t.Context(), fetchOf(1, 1<<20)); errcode.Of(err) != errcode.NetworkException {
		t.Errorf("got %v", err)
	}
}

func TestLookUps(t *testing.T) {
	f := serveTCP(t, &fakeNode{onList: func(req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
		if req.GetTimeoutMs() == 0 {
			return nil, errcode.InvalidRequest.Errorf("no time")
		}
		return &storagev1.ListOffsetsResponse{Partitions: []*storagev1.ListOffsetsPartitionResult{{Offset: 3}}}, nil
	}})
	resp, err := f.client.ListOffsets(t.Context(), &storagev1.ListOffsetsRequest{TimeoutMs: 1})
	if err != nil || resp.GetPartitions()[0].GetOffset() != 3 {
		t.Errorf("got %v, %v", resp, err)
	}
	if _, err := f.client.ListOffsets(t.Context(), &storagev1.ListOffsetsRequest{}); errcode.Of(err) != errcode.InvalidRequest || errcode.Text(err) != "no time" {
		t.Errorf("got %v", err)
	}
	if _, err := f.client.OffsetForLeaderEpoch(t.Context(), &storagev1.OffsetForLeaderEpochRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := f.client.DeleteRecords(t.Context(), &storagev1.DeleteRecordsRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := f.client.Handle(t.Context(), &storagev1.HandleRequest{}); err != nil {
		t.Error(err)
	}
}
