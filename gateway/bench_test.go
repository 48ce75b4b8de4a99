package gateway_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway"
	"chancery/gateway/internal/fake"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/transport"
)

// discard is a storage node that takes every append at once and gives the same records to every fetch.
type discard struct {
	storage.Node
	records storage.FileRegion
}

func (discard) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	res := &storage.AppendResult{Partitions: make([]storage.PartitionAppendResult, len(req.Partitions))}
	for i := range req.Partitions {
		req.Partitions[i].Records.Free()
		res.Partitions[i] = storage.PartitionAppendResult{LogAppendTimeMs: -1, Leader: storage.NoLeader}
	}
	done(res)
}

func (d discard) Fetch(_ context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	res := &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, len(req.Partitions))}
	for i := range req.Partitions {
		res.Partitions[i] = storage.FetchPartitionResult{
			PreferredReadReplica: -1, Diverging: storage.NoDivergence, Records: storage.Records{Files: []storage.FileRegion{d.records}},
		}
	}
	return res, nil
}

// benchGateway serves a cluster whose only node is d.
func benchGateway(b *testing.B, c *fake.Cluster, d storage.Node) *gateway.Gateway {
	b.Helper()
	g, err := gateway.New(gateway.Config{NodeID: 1, Properties: map[string]string{"listeners": "PLAINTEXT://127.0.0.1:0"}}, gateway.Deps{
		Image: func() metadata.Reader { return c.Image() }, Await: c.Await, Controller: c, Buffers: transport.NewPool(),
		Storage: func(int32) (storage.Node, error) { return d, nil }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := g.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = g.Stop(b.Context()) })
	return g
}

// pipeline sends the same frame b.N times over one connection with a window of requests in flight.
func pipeline(b *testing.B, g *gateway.Gateway, frame []byte, window int) {
	k := dial(b, g)
	tokens := make(chan struct{}, window)
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	wg.Go(func() {
		buf := make([]byte, 1<<20)
		for range b.N {
			var size [4]byte
			if _, err := io.ReadFull(k.nc, size[:]); err != nil {
				b.Error(err)
				return
			}
			for left := int(binary.BigEndian.Uint32(size[:])); left > 0; {
				n, err := k.nc.Read(buf[:min(left, len(buf))])
				if err != nil {
					b.Error(err)
					return
				}
				left -= n
			}
			<-tokens
		}
	})
	for range b.N {
		tokens <- struct{}{}
		if _, err := k.nc.Write(frame); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
}

func BenchmarkProduce(b *testing.B) {
	for _, x := range []struct{ partitions, size, window int }{{1, 100, 1}, {1, 100, 32}, {4, 64 << 10, 1}, {4, 64 << 10, 5}} {
		b.Run(fmt.Sprintf("%dx%d/window=%d", x.partitions, x.size, x.window), func(b *testing.B) {
			c := fake.NewCluster(1)
			id := c.AddTopic("a", make([]int32, x.partitions)...)
			for p := range x.partitions {
				c.Lead("a", int32(p), 1)
			}
			req := produce(13, "", 0, nil)
			req.Topics[0].TopicID = id
			req.Topics[0].Partitions = nil
			for p := range x.partitions {
				part := kmsg.NewProduceRequestTopicPartition()
				part.Partition, part.Records = int32(p), batchOf(b, 1, x.size, -1)
				req.Topics[0].Partitions = append(req.Topics[0].Partitions, part)
			}
			g := benchGateway(b, c, discard{})
			frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 1)
			b.SetBytes(int64(x.partitions * x.size))
			pipeline(b, g, frame, x.window)
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	f, err := os.CreateTemp(b.TempDir(), "segment")
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Truncate(1 << 20); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := fake.NewCluster(1)
			c.AddTopic("a", 1)
			g := benchGateway(b, c, discard{records: storage.FileRegion{File: f, Length: size}})
			frame := kmsg.NewRequestFormatter().AppendRequest(nil, fetch(12, "a", from(0, 0)), 1)
			b.SetBytes(int64(size))
			pipeline(b, g, frame, 2)
		})
	}
}

// BenchmarkIdleConnections tells how much memory a connection takes that has done something and waits.
func BenchmarkIdleConnections(b *testing.B) {
	const n = 2000
	g := benchGateway(b, fake.NewCluster(1), discard{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	clients := make([]*client, n)
	for i := range clients {
		clients[i] = dial(b, g)
		ask[*kmsg.MetadataResponse](clients[i], metadataOf(12))
	}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/n, "B/conn")
	for range b.N {
		runtime.KeepAlive(clients)
	}
}
