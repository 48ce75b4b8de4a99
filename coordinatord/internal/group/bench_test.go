package group

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

// instantLog is a log whose appends are durable at once, but not before the caller has gone on.
type instantLog struct{ batches chan func() }

func (instantLog) Load(context.Context, func(recordbatch.Header, *recordbatch.Record) error) (int64, error) {
	return 0, nil
}

func (l instantLog) Append(_ context.Context, _ [][]byte, end int64, done func(int64, error)) {
	l.batches <- func() { done(end, nil) }
}

// BenchmarkCommits is one commit of one offset through a shard, by many callers at once.
func BenchmarkCommits(b *testing.B) {
	log := instantLog{batches: make(chan func(), 1)}
	go func() {
		for f := range log.batches {
			f()
		}
	}()
	s := statemachine.NewShard(statemachine.Config[Command, *Record, Reply]{
		Name: "bench",
		New: func() statemachine.Machine[Command, *Record, Reply] {
			return New(Config{OffsetsRetentionCheckInterval: time.Hour, MaxSize: 1 << 30, OffsetMetadataMaxBytes: 4096, MaxBatchBytes: 1 << 20,
				Image: metadata.Empty("c"), Logger: slog.New(slog.DiscardHandler)})
		},
		Codec: Codec{}, Log: log, MaxBatchBytes: 1 << 20, MaxQueuedBytes: 16 << 20, AnswerTimeout: time.Minute,
		Logger: slog.New(slog.DiscardHandler),
	})
	s.Start()
	for !s.Serving() {
		runtime.Gosched()
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	const callers = 256
	for i := range callers {
		wg.Go(func() {
			c := &client{group: fmt.Sprint("group", i), generation: -1}
			for range b.N/callers + 1 {
				if _, err := s.Do(b.Context(), c.commitCommand("topic", 0, 1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(s.Stats().Records.Load())/float64(s.Stats().Batches.Load()), "records/batch")
	s.Stop(b.Context())
	close(log.batches)
}
