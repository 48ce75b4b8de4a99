package log

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"chancery/services/kafka/recordbatch"
)

func benchmarkLog(b *testing.B) *fixture {
	f := newFixture(b, b.TempDir(), func(o *Options) { o.Config.SegmentBytes = 64 << 20; o.Config.RetentionBytes = 64 << 20 })
	return f
}

func benchmarkBatches(b *testing.B, n, bytes int) []recordbatch.Batch {
	out := make([]recordbatch.Batch, n)
	for i := range out {
		out[i] = recordbatch.BatchOf(makeBatch(b, 0, 1, spec{bytes: max(0, bytes-75)}))
	}
	return out
}

// restamp gives batches the next offsets, as the leader does.
func restamp(batches []recordbatch.Batch, offset int64) {
	for i := range batches {
		batches[i].Header().SetBaseOffset(offset + int64(i))
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, bytes := range []int{100, 1 << 10, 64 << 10} {
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%dB/%d", bytes, n), func(b *testing.B) {
				f := benchmarkLog(b)
				batches := benchmarkBatches(b, n, bytes)
				offset := int64(0)
				b.SetBytes(int64(n * bytes))
				b.ReportAllocs()
				for b.Loop() {
					restamp(batches, offset)
					if err := f.Append(batches); err != nil {
						b.Fatal(err)
					}
					offset += int64(n)
					if f.Size() > 48<<20 {
						b.StopTimer()
						if err := f.TruncateTo(0); err != nil {
							b.Fatal(err)
						}
						offset = 0
						b.StartTimer()
					}
				}
			})
		}
	}
}

func BenchmarkAppendAsFollower(b *testing.B) {
	f := benchmarkLog(b)
	var run []byte
	var offset int64
	for len(run) < 1<<20 {
		x := makeBatch(b, offset, 1, spec{bytes: 10000})
		run, offset = append(run, x...), offset+1
	}
	pieces := buffers(run, 16<<10)
	b.SetBytes(int64(len(run)))
	b.ReportAllocs()
	for b.Loop() {
		if err := f.AppendAsFollower(pieces); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := f.TruncateTo(0); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRead(b *testing.B) {
	f := benchmarkLog(b)
	for f.Size() < 32<<20 {
		f.append(1, spec{bytes: 1000}, spec{bytes: 1000}, spec{bytes: 1000}, spec{bytes: 1000})
	}
	end := f.LogEndOffset()
	for name, offset := range map[string]func(i int64) int64{
		"tail": func(i int64) int64 { return end - 1 - i%8 },
		"old":  func(i int64) int64 { return i * 7919 % (end - 2000) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := int64(0)
			for b.Loop() {
				i++
				r, err := f.Read(offset(i), 1<<20, end, true)
				if err != nil || r.Len() == 0 {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}

// BenchmarkOpen opens and closes a log as a node with many does at its start.
func BenchmarkOpen(b *testing.B) {
	f := benchmarkLog(b)
	f.append(1, spec{bytes: 1000})
	b.ReportAllocs()
	for b.Loop() {
		f.reopen(false)
	}
}

// BenchmarkRecover opens a log after a crash, of which nothing is known to be durable: each batch is read and checked, and the
// indexes are made anew.
func BenchmarkRecover(b *testing.B) {
	for _, bytes := range []int{1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("batches of %dB", bytes), func(b *testing.B) {
			const size = 256 << 20
			f := newFixture(b, b.TempDir(), func(o *Options) { o.Config.SegmentBytes = 1 << 30 })
			batches := benchmarkBatches(b, 64, bytes)
			for f.Size() < size {
				restamp(batches, f.LogEndOffset())
				if err := f.Append(batches); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(f.Size())
			for b.Loop() {
				f.Abandon()
				f.o.RecoveryPoint = 0
				f.open()
			}
		})
	}
}

// BenchmarkOpenMany opens logs of one record each, as a node does at its start: after a clean stop, and after a crash. Beside the
// time of one log it tells what an open log costs: bytes of memory, and files.
//
//	TMPDIR=/dev/shm go test -run '^$' -bench OpenMany -benchtime 20000x ./storaged/internal/log
func BenchmarkOpenMany(b *testing.B) {
	for _, clean := range []bool{true, false} {
		b.Run(fmt.Sprintf("clean=%v", clean), func(b *testing.B) {
			pools, dir := &Pools{}, b.TempDir()
			options := make([]Options, b.N)
			for i := range options {
				f := newFixture(b, dir, func(o *Options) { o.Partition, o.Pools = int32(i), pools })
				f.append(1, spec{bytes: 100})
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
				f.o.CleanShutdown, f.o.RecoveryPoint = clean, 0
				options[i] = f.o
			}
			logs := make([]*Log, b.N)
			before, files := heapBytes(), openFiles(b)
			b.ResetTimer()
			for i := range options {
				l, err := Open(options[i])
				if err != nil {
					b.Fatal(err)
				}
				logs[i] = l
			}
			b.StopTimer()
			b.ReportMetric(float64(heapBytes()-before)/float64(b.N), "B/log")
			b.ReportMetric(float64(openFiles(b)-files)/float64(b.N), "files/log")
			for _, l := range logs {
				l.Abandon()
			}
		})
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func openFiles(b *testing.B) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		b.Skip("there is no /proc")
	}
	return len(entries)
}
