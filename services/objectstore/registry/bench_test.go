package registry_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/registry"
	"chancery/services/testkit/s3"
)

// storeEnv makes the test binary a simulated store, so that its work is not counted as ours.
const storeEnv = "CHANCERY_SIMULATED_STORE"

func TestMain(m *testing.M) {
	if os.Getenv(storeEnv) == "" {
		os.Exit(m.Run())
	}
	s, stop := s3.OpenSimulated(s3.FarStore)
	fmt.Println(s.Endpoint)
	bufio.NewReader(os.Stdin).ReadString('\n')
	stop()
}

// farStore starts a simulated store with the speed of S3 in a process of its own.
func farStore(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), storeEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

const (
	benchSegments     = 4
	benchSegmentBytes = 64 << 20
	gib               = 1 << 30
)

// List prices of S3 Standard, in dollars per request.
const (
	putPrice = 0.005 / 1000
	getPrice = 0.0004 / 1000
)

func benchManager(b *testing.B, endpoint string) objectstore.RemoteStorageManager {
	b.Helper()
	values := make(map[string]string)
	for key, value := range map[string]string{
		"bucket": "bucket", "endpoint": endpoint, "region": s3.Region, "access.key": "a", "secret.key": "b",
	} {
		values[prefix+key] = value
	}
	config, err := registry.Parse(values, prefix, "cluster")
	if err != nil {
		b.Fatal(err)
	}
	m, err := registry.Stores().Open(b.Context(), "s3", config, deps())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

// cpuSeconds is what this process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// heapPeak watches the heap until stop is called, which gives the largest size that was in use.
func heapPeak() (stop func() uint64) {
	var peak atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapAlloc))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(done)
		<-ended
		return peak.Load()
	}
}

// benchSegment is a segment of 1 MiB batches in a file, as a log has it.
func benchSegment(b *testing.B, base int64) (*objectstore.SegmentMetadata, *objectstore.SegmentData) {
	b.Helper()
	const batchBytes = 256 << 10
	s, d, log := contract.Batches(b, uuid.UUID{1}, base, benchSegmentBytes/batchBytes, batchBytes-100)
	name := filepath.Join(b.TempDir(), "segment.log")
	if err := os.WriteFile(name, log, 0o644); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	d.Log = f
	return s, d
}

// BenchmarkCopy copies segments of 64 MiB to a store with the speed of S3: b.N times 256 MiB, four segments at a time.
func BenchmarkCopy(b *testing.B) {
	endpoint := farStore(b)
	m := benchManager(b, endpoint)
	s, d := benchSegment(b, 0)
	before, err := s3.RemoteStats(endpoint)
	if err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	stopHeap, cpu := heapPeak(), cpuSeconds()
	b.SetBytes(benchSegments * s.SizeBytes)
	b.ResetTimer()
	for range b.N {
		errs := make(chan error, benchSegments)
		copies := make([]*objectstore.SegmentMetadata, benchSegments)
		for i := range copies {
			one := *s
			one.ID = uuid.Random()
			copies[i] = &one
			go func() {
				custom, err := m.CopyLogSegmentData(b.Context(), &one, d)
				one.Custom = custom
				errs <- err
			}()
		}
		for range copies {
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		m.DeleteLogSegmentData(b.Context(), copies)
		b.StartTimer()
	}
	b.StopTimer()
	cpu, peak := cpuSeconds()-cpu, stopHeap()
	after, err := s3.RemoteStats(endpoint)
	if err != nil {
		b.Fatal(err)
	}
	var requests int64
	for _, op := range []string{"put", "create_upload", "upload_part", "complete_upload"} {
		requests += after.Requests[op] - before.Requests[op]
	}
	moved := float64(int64(b.N)*benchSegments*s.SizeBytes) / gib
	b.ReportMetric(cpu/moved, "cpu-s/GiB")
	b.ReportMetric(float64(peak)/(1<<20), "heap-MiB")
	b.ReportMetric(float64(requests)/moved, "requests/GiB")
	b.ReportMetric(float64(after.BytesIn-before.BytesIn)/gib/moved, "sent/byte")
	b.ReportMetric(float64(requests)/moved*putPrice*1000, "m$/GiB")
}

// BenchmarkColdRead reads 256 MiB in order, 1 MiB at a time, as one consumer that was never there before.
func BenchmarkColdRead(b *testing.B) {
	endpoint := farStore(b)
	m := benchManager(b, endpoint)
	var segments []coldread.Segment
	var total int64
	for i := range benchSegments {
		s, d := benchSegment(b, int64(i)*benchSegmentBytes/(256<<10))
		contract.Copy(b, m, s, d)
		segments = append(segments, coldread.Segment{SegmentMetadata: s, FirstOffset: s.BaseOffset, LastOffset: s.EndOffset})
		total += s.SizeBytes
	}
	before, err := s3.RemoteStats(endpoint)
	if err != nil {
		b.Fatal(err)
	}
	var firsts, all []time.Duration
	runtime.GC()
	stopHeap, cpu := heapPeak(), cpuSeconds()
	b.SetBytes(total)
	b.ResetTimer()
	for range b.N {
		r, err := coldread.New(m, coldread.DefaultConfig(), coldread.Deps{Meter: noop.Meter{}, Logger: deps().Logger})
		if err != nil {
			b.Fatal(err)
		}
		end := segments[len(segments)-1].LastOffset
		var got int64
		for offset := int64(0); offset <= end; {
			begun := time.Now()
			result, err := r.Read(b.Context(), coldread.ReadRequest{Segments: segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
			if err != nil {
				b.Fatal(err)
			}
			took := time.Since(begun)
			if offset == 0 {
				firsts = append(firsts, took)
			}
			all = append(all, took)
			got += int64(result.Records.Len())
			offset = result.NextOffset
			result.Records.Release()
		}
		if got != total {
			b.Fatalf("%d bytes of %d", got, total)
		}
		b.StopTimer()
		r.Close()
		// Twice, since pools keep what is free for one collection.
		runtime.GC()
		runtime.GC()
		b.StartTimer()
	}
	b.StopTimer()
	cpu, peak := cpuSeconds()-cpu, stopHeap()
	after, err := s3.RemoteStats(endpoint)
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(all)
	slices.Sort(firsts)
	gets, moved := float64(after.Requests["get"]-before.Requests["get"]), float64(int64(b.N)*total)/gib
	b.ReportMetric(float64(firsts[len(firsts)/2].Milliseconds()), "first-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Milliseconds()), "p99-ms")
	b.ReportMetric(gets/moved, "GETs/GiB")
	b.ReportMetric(float64(after.BytesOut-before.BytesOut)/gib/moved, "read/byte")
	b.ReportMetric(cpu/moved, "cpu-s/GiB")
	b.ReportMetric(float64(peak)/(1<<20), "heap-MiB")
	b.ReportMetric(gets/moved*getPrice*1000, "m$/GiB")
}

// BenchmarkFirstRecord begins to read in the middle of a segment that nobody has read: index, then records.
func BenchmarkFirstRecord(b *testing.B) {
	endpoint := farStore(b)
	m := benchManager(b, endpoint)
	s, d := benchSegment(b, 0)
	contract.Copy(b, m, s, d)
	segments := []coldread.Segment{{SegmentMetadata: s, FirstOffset: 0, LastOffset: s.EndOffset}}
	var times []time.Duration
	for i := range b.N {
		r, err := coldread.New(m, coldread.DefaultConfig(), coldread.Deps{Meter: noop.Meter{}, Logger: deps().Logger})
		if err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		result, err := r.Read(b.Context(), coldread.ReadRequest{Segments: segments, Offset: 1 + int64(i)%s.EndOffset, MaxBytes: 1 << 20, MinOneBatch: true})
		if err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begun))
		result.Records.Release()
		r.Close()
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}
