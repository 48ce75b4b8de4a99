package coldread_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
)

// far makes a manager as slow as S3 in the same region, in fake time: so the test shows what the strategy of reading gives, and
// the machine it runs on does not matter.
func far(f *fakeManager) {
	const bytesPerSecond = 90 << 20
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	wait := func() {
		mu.Lock()
		d := 20*time.Millisecond + time.Duration(random.ExpFloat64()*float64(10*time.Millisecond))
		if random.IntN(100) == 0 {
			d += 200 * time.Millisecond
		}
		mu.Unlock()
		<-time.After(d)
	}
	f.onFetch = func(context.Context, *objectstore.SegmentMetadata, int64, int64) error {
		wait()
		return nil
	}
	f.onIndex = func(*objectstore.SegmentMetadata) error {
		wait()
		return nil
	}
	f.onStream = func(p []byte, _ int64) (int, error) {
		<-time.After(time.Duration(float64(len(p)) / bytesPerSecond * float64(time.Second)))
		return len(p), nil
	}
}

// long is a history of segments of 16 MiB whose batches have the same records.
func long(t *testing.T, f *fakeManager, segments int) *history {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	h.write(t, f, random, segmentShape{batches: 64, batchBytes: sized(256 << 10)})
	first := h.segments[0]
	log, x, records := f.logs[first.ID], *f.indexes[first.ID], first.EndOffset+1
	for range segments - 1 {
		next := bytes.Clone(log)
		for at := 0; at < len(next); {
			b := recordbatch.Header(next[at:])
			b.SetBaseOffset(b.BaseOffset() + h.end)
			at += b.Size()
		}
		m := *first.SegmentMetadata
		m.ID, m.BaseOffset, m.EndOffset = uuid.Random(), h.end, h.end+records-1
		if _, err := f.CopyLogSegmentData(t.Context(), &m, &objectstore.SegmentData{Log: bytes.NewReader(next), Indexes: x}); err != nil {
			t.Fatal(err)
		}
		h.segments = append(h.segments, coldread.Segment{SegmentMetadata: &m, FirstOffset: m.BaseOffset, LastOffset: m.EndOffset})
		h.end += records
	}
	return h
}

// One consumer that was never there before gets its first record in less than 100 ms, and about 300 MB in a second, with few
// requests; one that reads two fetches and goes has little read for nothing.
func TestSpeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := long(t, f, 16)
		far(f)
		standard := func(c *coldread.Config, _ *coldread.Deps) {
			d := coldread.DefaultConfig()
			c.MemoryBytes, c.ReadAheadMaxBytes = d.MemoryBytes, d.ReadAheadMaxBytes
		}
		fetch := func(r *coldread.Reader, offset int64) (int, int64, time.Duration) {
			begun := time.Now()
			result, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
			if err != nil {
				t.Fatal(err)
			}
			defer result.Records.Release()
			return result.Records.Len(), result.NextOffset, time.Since(begun)
		}
		r := newReader(t, f, standard)
		var times []time.Duration
		var total int
		begun := time.Now()
		for offset := int64(0); offset < h.end; {
			n, next, took := fetch(r, offset)
			total, offset, times = total+n, next, append(times, took)
		}
		rate := float64(total) / 1e6 / time.Since(begun).Seconds()
		first := times[0]
		slices.Sort(times)
		p99 := times[len(times)*99/100]
		t.Logf("%d MB at %.0f MB/s, first %s, p99 %s, %d requests", total/1_000_000, rate, first, p99, len(f.requests()))
		if rate < 270 || first > 100*time.Millisecond || p99 > 150*time.Millisecond || len(f.requests()) > 200 {
			t.Error("slower, or more requests, than it should be")
		}
		r.Close()

		before := len(f.requests())
		r = newReader(t, f, standard)
		_, next, first := fetch(r, 1000)
		fetch(r, next)
		synctest.Wait()
		var asked int64
		for _, g := range f.requests()[before:] {
			asked += g[1] - g[0]
		}
		t.Logf("two fetches from the middle: first %s, %d MiB asked for", first, asked>>20)
		if first > 100*time.Millisecond || asked > 4<<20 {
			t.Error("a short read is slow, or asks for too much")
		}
		r.Close()
	})
}
