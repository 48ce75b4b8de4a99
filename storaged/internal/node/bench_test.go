package node_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// payload is a batch of one record, which may be sent again and again: it is never written to.
func payload(b *testing.B, size int) []byte {
	bld := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	bld.Append(946684800000, nil, []byte(strings.Repeat("x", size)))
	data, err := bld.Build()
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// BenchmarkAppend measures appends with as many under way as a few producers have.
func BenchmarkAppend(b *testing.B) {
	for _, bench := range []struct {
		replicas, idle, size, window int
		acks                         int16
	}{
		{1, 0, 100, 1, storage.AcksLeader},
		{1, 0, 100, 64, storage.AcksLeader},
		{1, 0, 64 << 10, 16, storage.AcksLeader},
		{3, 0, 100, 1, storage.AcksAll},
		{3, 0, 100, 64, storage.AcksAll},
		{3, 0, 64 << 10, 16, storage.AcksAll},
		{3, 2000, 100, 64, storage.AcksAll},
	} {
		name := fmt.Sprintf("replicas=%d/idle=%d/size=%d/window=%d/acks=%d", bench.replicas, bench.idle, bench.size, bench.window, bench.acks)
		b.Run(name, func(b *testing.B) {
			c := newBenchCluster(b, bench.replicas)
			ids := []int32{1, 2, 3}[:bench.replicas]
			if bench.idle > 0 {
				c.topic("idle", bench.idle, ids...)
			}
			topic := c.topic("a", 1, ids...)
			data := payload(b, bench.size)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			b.ResetTimer()
			run(b, c, topic, data, bench.acks, bench.window)
		})
	}
}

func run(b *testing.B, c *cluster, topic uuid.UUID, data []byte, acks int16, window int) {
	slots := make(chan struct{}, window)
	var left sync.WaitGroup
	n := c.node(1)
	for range b.N {
		slots <- struct{}{}
		left.Add(1)
		n.Append(appendRequest(topic, acks, mem.BufferSlice{mem.SliceBuffer(data)}), func(r *storage.AppendResult) {
			if r.Partitions[0].Error != 0 {
				b.Error(r.Partitions[0].Error)
			}
			<-slots
			left.Done()
		})
	}
	left.Wait()
}
