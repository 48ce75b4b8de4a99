package storagerpc

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// benchmarkAppend keeps a number of appends under way, each for a partition of its own.
func benchmarkAppend(b *testing.B, address string, size, clients int) {
	f := serve(b, address, &fakeNode{onAppend: accept})
	topic := uuid.Random()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			done := make(chan *storage.AppendResult, 1)
			for left.Add(-1) >= 0 {
				buffer, _ := f.clientPool.Buffer(size)
				f.client.Append(&storage.AppendRequest{Acks: storage.AcksAll, TimeoutMs: 30000, WriterEpoch: storage.NoWriterEpoch,
					Partitions: []storage.PartitionAppend{{TopicID: topic, Partition: int32(c), Records: storage.Buffers{buffer}}}},
					func(r *storage.AppendResult) { done <- r })
				if r := <-done; r.Partitions[0].Error != 0 {
					b.Error(r.Partitions[0].Error)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkAppend100B1ClientTCP(b *testing.B)    { benchmarkAppend(b, "127.0.0.1:0", 100, 1) }
func BenchmarkAppend100B128ClientsTCP(b *testing.B) { benchmarkAppend(b, "127.0.0.1:0", 100, 128) }
func BenchmarkAppend64KiB1ClientTCP(b *testing.B)   { benchmarkAppend(b, "127.0.0.1:0", 64<<10, 1) }
func BenchmarkAppend64KiB16ClientsTCP(b *testing.B) { benchmarkAppend(b, "127.0.0.1:0", 64<<10, 16) }
func BenchmarkAppend1MiB16ClientsTCP(b *testing.B)  { benchmarkAppend(b, "127.0.0.1:0", 1<<20, 16) }
func BenchmarkAppend64KiB16ClientsUnix(b *testing.B) {
	benchmarkAppend(b, "unix://"+filepath.Join(b.TempDir(), "s"), 64<<10, 16)
}

// benchmarkFetch reads file regions of one segment.
func benchmarkFetch(b *testing.B, address string, size, clients int) {
	file := segment(b, size)
	topic := uuid.Random()
	f := serve(b, address, &fakeNode{onFetch: func(context.Context, *storage.FetchRequest) (*storage.FetchResult, error) {
		return &storage.FetchResult{Partitions: []storage.FetchPartitionResult{{TopicID: topic, HighWatermark: 9,
			Diverging: storage.NoDivergence, Leader: storage.NoLeader, PreferredReadReplica: -1,
			Records: storage.Records{Files: []storage.FileRegion{{File: file, Length: size}}}}}}, nil
	}})
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				r, err := f.client.Fetch(b.Context(), &storage.FetchRequest{ReplicaID: storage.ConsumerReplicaID, ReplicaEpoch: -1,
					MaxWaitMs: 500, MinBytes: 1, MaxBytes: int32(size), Partitions: []storage.FetchPartition{{TopicID: topic, CurrentLeaderEpoch: -1,
						LastFetchedEpoch: -1, LogStartOffset: -1, MaxBytes: int32(size)}}})
				if err != nil || r.Partitions[0].Records.Len() != size {
					b.Error("fetch failed", err)
					return
				}
				r.Release()
			}
		})
	}
	wg.Wait()
}

func BenchmarkFetch1KiB1ClientTCP(b *testing.B)    { benchmarkFetch(b, "127.0.0.1:0", 1<<10, 1) }
func BenchmarkFetch64KiB16ClientsTCP(b *testing.B) { benchmarkFetch(b, "127.0.0.1:0", 64<<10, 16) }
func BenchmarkFetch1MiB1ClientTCP(b *testing.B)    { benchmarkFetch(b, "127.0.0.1:0", 1<<20, 1) }
func BenchmarkFetch1MiB16ClientsTCP(b *testing.B)  { benchmarkFetch(b, "127.0.0.1:0", 1<<20, 16) }
func BenchmarkFetch1MiB16ClientsUnix(b *testing.B) {
	benchmarkFetch(b, "unix://"+filepath.Join(b.TempDir(), "s"), 1<<20, 16)
}
