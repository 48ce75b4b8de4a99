package cleaner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/storaged/internal/log"

	"golang.org/x/sys/unix"
)

// benchBatch makes a batch of about 16 KiB with keys out of a space in which each one comes five times.
func benchBatch(b *testing.B, random *rand.Rand, text []byte, offset int64, valueBytes, keys int, codec recordbatch.Compression) []byte {
	o := recordbatch.NewOptions()
	o.BaseOffset, o.LeaderEpoch, o.Codec = offset, 0, codec
	build := recordbatch.NewBuilder(testCodecs, o)
	for range max(1, 16<<10/(valueBytes+30)) {
		at := random.IntN(len(text) - valueBytes)
		build.Append(1, fmt.Appendf(nil, "key-%012d", random.IntN(keys)), text[at:at+valueBytes])
	}
	batch, err := build.Build()
	if err != nil {
		b.Fatal(err)
	}
	return batch
}

// BenchmarkPass is a first cleaning of a log of 64 MiB, where four fifths of the records go. The rate is that of the log's bytes;
// MB/cpu-s is the same by processor time, on a machine that has others to serve:
//
//	TMPDIR=/dev/shm go test -run '^$' -bench Pass -benchtime 3x ./storaged/internal/cleaner
func BenchmarkPass(b *testing.B) {
	const size = 64 << 20
	for _, c := range []struct {
		valueBytes int
		codec      recordbatch.Compression
	}{{80, recordbatch.None}, {1000, recordbatch.None}, {10000, recordbatch.None}, {1000, recordbatch.LZ4}, {1000, recordbatch.Zstd}} {
		b.Run(fmt.Sprintf("%dB/%s", c.valueBytes, c.codec), func(b *testing.B) {
			b.ReportAllocs()
			var read int64
			var spent time.Duration
			for b.Loop() {
				b.StopTimer()
				l := benchLog(b, size, c.valueBytes, c.codec)
				bounds, err := l.CleanBounds(time.Now())
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				before := processorTime(b)
				cleaning, err := l.BeginCleaning(bounds)
				if err != nil {
					b.Fatal(err)
				}
				p := pass{
					ctx: b.Context(), cleaning: cleaning, limits: Limits{DedupeBytes: 128 << 20, LoadFactor: 0.9, IOBufferBytes: 256 << 10},
					filter: &recordbatch.Filter{Codecs: testCodecs}, spend: func(context.Context, int64) error { return nil },
					replace: func(f func() error) error { return f() },
				}
				if _, err := p.run(bounds); err != nil {
					b.Fatal(err)
				}
				cleaning.Close()
				b.StopTimer()
				spent += processorTime(b) - before
				read += p.stats.BytesRead
				if err := l.Delete(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.SetBytes(read / int64(b.N))
			b.ReportMetric(float64(read)/1e6/spent.Seconds(), "MB/cpu-s")
		})
	}
}

// processorTime is what the process has used of processors.
func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchLog(b *testing.B, size int64, valueBytes int, codec recordbatch.Compression) *log.Log {
	l, err := log.Open(log.Options{Dir: b.TempDir(), Topic: "t", Codecs: testCodecs, After: func(_ time.Duration, f func()) { f() },
		Config: &configdef.Topic{
			CleanupCompact: true, SegmentBytes: 32 << 20, SegmentMs: 1 << 40, SegmentIndexBytes: 10 << 20, IndexIntervalBytes: 4096,
			FlushMessages: 1<<63 - 1, RetentionMs: -1, RetentionBytes: -1, MaxCompactionLagMs: 1<<63 - 1,
		}})
	if err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = "abcdefghijklmnop"[random.IntN(16)]
	}
	keys := max(1, int(size/int64(valueBytes+30)/5))
	for l.Size() < size {
		batch := benchBatch(b, random, text, l.LogEndOffset(), valueBytes, keys, codec)
		if err := l.Append([]recordbatch.Batch{recordbatch.BatchOf(batch)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Roll(); err != nil {
		b.Fatal(err)
	}
	l.SetHighWatermark(l.LogEndOffset())
	return l
}

// BenchmarkAppendBesidePass appends to one log at a steady rate, alone and while a thread cleans another one again and again:
// p99-us is how long an append takes.
//
//	TMPDIR=/dev/shm go test -run '^$' -bench AppendBesidePass -benchtime 4000x ./storaged/internal/cleaner
func BenchmarkAppendBesidePass(b *testing.B) {
	for _, cleaning := range []bool{false, true} {
		b.Run(fmt.Sprintf("cleaning=%v", cleaning), func(b *testing.B) {
			dirty := benchLog(b, 64<<20, 1000, recordbatch.None)
			l := benchLog(b, 1, 1000, recordbatch.None)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				lowerPriority()
				for cleaning && ctx.Err() == nil {
					// Without the replacement the log stays dirty.
					_ = benchPass(ctx, dirty, func(func() error) error { return log.ErrCleaningAborted })
				}
			}()
			random, text := rand.New(rand.NewPCG(1, 2)), make([]byte, 1<<20)
			batch := recordbatch.BatchOf(benchBatch(b, random, text, 0, 1000, 100, recordbatch.None))
			var took []time.Duration
			pace := time.NewTicker(time.Millisecond)
			defer pace.Stop()
			for b.Loop() {
				<-pace.C
				batch.Header().SetBaseOffset(l.LogEndOffset())
				began := time.Now()
				if err := l.Append([]recordbatch.Batch{batch}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			cancel()
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

// benchPass runs one pass over a log.
func benchPass(ctx context.Context, l *log.Log, replace func(func() error) error) error {
	bounds, err := l.CleanBounds(time.Now())
	if err != nil {
		return err
	}
	c, err := l.BeginCleaning(bounds)
	if err != nil {
		return err
	}
	defer c.Close()
	p := pass{
		ctx: ctx, cleaning: c, limits: Limits{DedupeBytes: 128 << 20, LoadFactor: 0.9, IOBufferBytes: 256 << 10},
		filter: &recordbatch.Filter{Codecs: testCodecs}, spend: func(context.Context, int64) error { return nil }, replace: replace,
	}
	_, err = p.run(bounds)
	return err
}
