package remotestate

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
)

// BenchmarkLoad replays the log of a shard with as many finished segments as an operation counts, in batches of 100 records as a
// busy owner writes them, and twice as many that have expired: what a start costs that reads everything.
//
//	go test ./tiering/internal/remotestate -run '^$' -bench Load -benchtime 1000000x
func BenchmarkLoad(b *testing.B) {
	var log [][]byte
	var logBytes int64
	builder, held := recordbatch.NewBuilder(nil, recordbatch.NewOptions()), 0
	flush := func() {
		batch, err := builder.Build()
		if err != nil {
			b.Fatal(err)
		}
		log = append(log, batch)
		logBytes += int64(len(batch))
		builder, held = recordbatch.NewBuilder(nil, recordbatch.NewOptions()), 0
	}
	write := func(r remotelog.Record) {
		builder.Append(1000, nil, remotelog.Append(nil, r))
		if held++; held == 100 {
			flush()
		}
	}
	for i := range 3 * b.N {
		id := uuid.UUID{1}
		binary.BigEndian.PutUint64(id[8:], uint64(i))
		p := remotelog.Partition{TopicID: uuid.UUID{2}, Partition: int32(i % 100)}
		at := int64(i) * 1000
		write(&remotelog.Segment{
			Topic: "orders", Partition: p, ID: id, StartOffset: at, EndOffset: at + 999, SizeBytes: 1 << 30, MaxTimestampMs: 1000, EventTimestampMs: 1000,
			LeaderEpochs: []remotelog.EpochStart{{Epoch: 3, StartOffset: at}},
		})
		states := []remotelog.SegmentState{remotelog.CopyFinished}
		if i%3 > 0 {
			states = append(states, remotelog.DeleteStarted, remotelog.DeleteFinished)
		}
		for _, s := range states {
			u := &remotelog.SegmentUpdate{Topic: "orders", Partition: p, ID: id, State: s, EventTimestampMs: 2000}
			if s == remotelog.CopyFinished {
				u.CustomMetadata = make([]byte, 20)
			}
			write(u)
		}
	}
	flush()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	m := New()
	codecs := recordbatch.NewCodecs()
	for _, batch := range log {
		records := codecs.Records(batch, 1<<20)
		for records.Next() {
			r, ok, err := Codec{}.Decode(recordbatch.Header(batch), records.Record())
			if err != nil || !ok {
				b.Fatal(err)
			}
			m.Apply(r)
			m.Commit(time.Time{}, 0, r, nil)
		}
		if err := records.Err(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(logBytes)/float64(b.N), "log-B/op")
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/float64(b.N), "heap-B/op")
	runtime.KeepAlive(m)
	runtime.KeepAlive(log)
}
