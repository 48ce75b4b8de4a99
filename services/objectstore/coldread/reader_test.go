package coldread_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/quota"
	"chancery/services/storage"
)

// made is a history of a few segments with batches of every size, some larger than a block.
func made(t testing.TB, f *fakeManager) *history {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	h := &history{}
	h.write(t, f, random, segmentShape{batches: 700, batchBytes: func() int { return 1 + random.IntN(8000) }})
	h.write(t, f, random, segmentShape{batches: 3, batchBytes: sized(5 << 19)})
	h.write(t, f, random, segmentShape{batches: 1, batchBytes: sized(1)})
	h.write(t, f, random, segmentShape{batches: 40, batchBytes: sized(100_000), codec: recordbatch.LZ4})
	return h
}

func TestConsumeAll(t *testing.T) {
	f := newFake()
	h := made(t, f)
	for _, maxBytes := range []int{1, 10_000, 1 << 20, 50 << 20} {
		r := newReader(t, f, nil)
		if got := consume(t, r, h, 0, maxBytes); !bytes.Equal(got, h.from(0)) {
			t.Errorf("fetches of %d: %d bytes that differ, want %d", maxBytes, len(got), len(h.from(0)))
		}
	}
}

// Any read from any offset gives the batches from the one with the offset on, no more than asked for.
func TestReadAnywhere(t *testing.T) {
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.MemoryBytes = 8 << 20 })
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64Range(0, h.end-1).Draw(t, "offset")
		maxBytes := rapid.IntRange(1, 4<<20).Draw(t, "max bytes")
		one := rapid.Bool().Draw(t, "at least one")
		limit := rapid.Int64Range(0, h.end).Draw(t, "limit")
		if limit <= offset {
			limit = 0
		}
		req := coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: maxBytes, MinOneBatch: one, LimitOffset: limit}
		got, result, err := read(context.Background(), r, req)
		if err != nil {
			t.Fatal(err)
		}
		want := h.from(offset)
		first := recordbatch.Header(want).Size()
		if !bytes.HasPrefix(want, got) || len(got) > maxBytes && len(got) != first || len(got) == 0 && (one || first <= maxBytes) {
			t.Fatalf("%d bytes of at most %d, the first batch has %d", len(got), maxBytes, first)
		}
		it := recordbatch.Iterate(got)
		next := offset
		for it.Next() {
			next = it.Header().NextOffset()
			if limit > 0 && it.Header().BaseOffset() >= limit {
				t.Fatalf("a batch at %d, limit %d", it.Header().BaseOffset(), limit)
			}
		}
		if it.Err() != nil || result.NextOffset != next {
			t.Fatalf("next offset %d, want %d; %v", result.NextOffset, next, it.Err())
		}
	})
}

func TestOutOfRange(t *testing.T) {
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, nil)
	for _, c := range []struct {
		segments []coldread.Segment
		offset   int64
	}{{h.segments, h.end}, {h.segments, -1}, {h.segments[1:], 0}, {nil, 0}} {
		_, err := r.Read(t.Context(), coldread.ReadRequest{Segments: c.segments, Offset: c.offset, MaxBytes: 1000})
		if errcode.Of(err) != errcode.OffsetOutOfRange {
			t.Errorf("offset %d: %v", c.offset, err)
		}
	}
}

// Only what counts of a segment is read: from where the log starts, up to where the next segment takes over.
func TestBoundsWithinSegments(t *testing.T) {
	f := newFake()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	for range 3 {
		h.write(t, f, random, segmentShape{batches: 50, batchBytes: sized(1)})
	}
	// Each batch has one record.
	h.segments[0].FirstOffset, h.segments[0].LastOffset = 10, 39
	h.segments[1].SegmentMetadata = h.segments[0].SegmentMetadata
	h.segments[1].FirstOffset, h.segments[1].LastOffset = 40, 49
	h.segments[2].FirstOffset = 120
	r := newReader(t, f, nil)
	data, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: 15, MaxBytes: 1 << 20, MinOneBatch: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for it := recordbatch.Iterate(data); it.Next(); {
		got = append(got, it.Header().BaseOffset())
	}
	var want []int64
	for i := int64(15); i < 50; i++ {
		want = append(want, i)
	}
	for i := int64(120); i < 150; i++ {
		want = append(want, i)
	}
	// A first read takes what comes with its first block.
	if len(got) == 0 || !slices.Equal(got, want[:len(got)]) {
		t.Fatalf("got batches %v, want %v", got, want)
	}
	for len(got) < len(want) {
		data, result, err = read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: result.NextOffset, MaxBytes: 1 << 20, MinOneBatch: true})
		if err != nil || len(data) == 0 {
			t.Fatal(len(data), err)
		}
		for it := recordbatch.Iterate(data); it.Next(); {
			got = append(got, it.Header().BaseOffset())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got batches %v, want %v", got, want)
	}
}

// Compaction leaves gaps, also at the end of a segment. A reader gets past them.
func TestGaps(t *testing.T) {
	f := newFake()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	h.write(t, f, random, segmentShape{batches: 5, batchBytes: sized(1)})
	h.end += 5
	h.write(t, f, random, segmentShape{batches: 5, batchBytes: sized(1)})
	h.segments[0].EndOffset, h.segments[0].LastOffset = 7, 7
	h.segments[1].EndOffset, h.segments[1].LastOffset = 20, 20
	r := newReader(t, f, nil)
	for _, c := range []struct{ offset, first, next int64 }{{6, 10, 15}, {9, 10, 15}, {15, -1, 21}, {20, -1, 21}} {
		data, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: c.offset, MaxBytes: 1000, MinOneBatch: true})
		if err != nil {
			t.Fatal(c.offset, err)
		}
		first := int64(-1)
		if len(data) > 0 {
			first = recordbatch.Header(data).BaseOffset()
		}
		if first != c.first || result.NextOffset < c.first+1 || c.first < 0 && result.NextOffset != c.next {
			t.Errorf("offset %d: first batch %d, next %d; want %d, %d", c.offset, first, result.NextOffset, c.first, c.next)
		}
	}
}

// Whatever a store does to the bytes, a read gives the right ones or an error, and works again when the store does.
func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(random *rand.Rand) func(p []byte, at int64) (int, error){
		"flipped bits": func(random *rand.Rand) func([]byte, int64) (int, error) {
			return func(p []byte, _ int64) (int, error) {
				if random.IntN(8) == 0 {
					p[random.IntN(len(p))] ^= 1 << random.IntN(8)
				}
				return len(p), nil
			}
		},
		"cut": func(random *rand.Rand) func([]byte, int64) (int, error) {
			return func(p []byte, _ int64) (int, error) {
				if random.IntN(20) == 0 {
					return 0, io.EOF
				}
				return len(p), nil
			}
		},
		"broken": func(random *rand.Rand) func([]byte, int64) (int, error) {
			return func(p []byte, _ int64) (int, error) {
				if random.IntN(20) == 0 {
					return 0, objectstore.ErrTransient
				}
				return len(p), nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			h := made(t, f)
			var mu sync.Mutex
			hurt := damage(rand.New(rand.NewPCG(5, 6)))
			f.onStream = func(p []byte, at int64) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return hurt(p, at)
			}
			r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.MemoryBytes = 8 << 20 })
			want, failures, offset := h.from(0), 0, int64(0)
			for offset < h.end && failures < 2000 {
				data, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
				if err != nil {
					if !errors.Is(err, objectstore.ErrCorrupt) && !errors.Is(err, objectstore.ErrTransient) {
						t.Fatal(err)
					}
					failures++
					continue
				}
				if !bytes.HasPrefix(want, data) {
					t.Fatalf("wrong bytes at offset %d", offset)
				}
				want, offset = want[len(data):], result.NextOffset
			}
			if len(want) > 0 {
				t.Errorf("%d bytes are missing after %d failures", len(want), failures)
			}
			if failures == 0 {
				t.Log("every failure was mended by the second request")
			}
		})
	}
}

// A damaged block is an error for that block only, also when it stays damaged.
func TestDamagedObject(t *testing.T) {
	f := newFake()
	h := &history{}
	random := rand.New(rand.NewPCG(1, 1))
	h.write(t, f, random, segmentShape{batches: 50, batchBytes: sized(90_000)})
	f.logs[h.segments[0].ID][2*objectstore.BlockBytes+5] ^= 1
	r := newReader(t, f, nil)
	good, bad := 0, 0
	for i, start := range h.starts {
		data, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: start, MaxBytes: 1, MinOneBatch: true})
		switch {
		case err == nil && bytes.Equal(data, h.batches[i]):
			good++
		case errors.Is(err, objectstore.ErrCorrupt):
			bad++
		default:
			t.Errorf("batch %d: %d bytes, %v", i, len(data), err)
		}
	}
	if good == 0 || bad == 0 || bad > 15 {
		t.Errorf("%d batches read, %d refused", good, bad)
	}
	// Cut for good, as by an operator's hand.
	f.logs[h.segments[0].ID] = f.logs[h.segments[0].ID][:objectstore.BlockBytes+10]
	r = newReader(t, f, nil)
	_, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: h.starts[30], MaxBytes: 1, MinOneBatch: true})
	if !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("a cut object: %v", err)
	}
}

// An offset index whose entries are wrong costs time, never a wrong answer.
func TestBrokenIndex(t *testing.T) {
	f := newFake()
	h := made(t, f)
	for _, s := range h.segments {
		x := f.indexes[s.ID]
		for i := range x.Offset {
			x.Offset[i] ^= 0x55
		}
	}
	r := newReader(t, f, nil)
	for _, offset := range []int64{0, 1, 99, 500, h.end - 1} {
		data, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1, MinOneBatch: true})
		if err != nil || !bytes.HasPrefix(h.from(offset), data) || len(data) == 0 {
			t.Errorf("offset %d: %d bytes, %v", offset, len(data), err)
		}
	}
}

// Readers that come at the same time share the requests.
func TestSingleFlight(t *testing.T) {
	f := newFake()
	h := made(t, f)
	release := make(chan struct{})
	var waiting atomic.Int32
	f.onFetch = func(context.Context, *objectstore.SegmentMetadata, int64, int64) error {
		waiting.Add(1)
		<-release
		return nil
	}
	r := newReader(t, f, nil)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			data, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: 0, MaxBytes: 1000, MinOneBatch: true})
			if err != nil || !bytes.HasPrefix(h.from(0), data) {
				t.Error(len(data), err)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := len(f.requests()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// A caller that gives up does not stop the read: the next finds the block.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		h := made(t, f)
		f.onFetch = func(context.Context, *objectstore.SegmentMetadata, int64, int64) error {
			<-time.After(time.Second)
			return nil
		}
		r := newReader(t, f, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		req := coldread.ReadRequest{Segments: h.segments, Offset: 0, MaxBytes: 1000, MinOneBatch: true}
		if _, _, err := read(ctx, r, req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		begun := time.Now()
		if data, _, err := read(t.Context(), r, req); err != nil || len(data) == 0 {
			t.Error(err)
		}
		if d := time.Since(begun); d != 500*time.Millisecond {
			t.Errorf("the second read took %s", d)
		}
		if n := len(f.requests()); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
		r.Close()
	})
}

// A first read asks for one block; a reader that goes on has ever more read ahead, across segments; a jump begins anew.
func TestReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		random := rand.New(rand.NewPCG(1, 1))
		h := &history{}
		for range 6 {
			h.write(t, f, random, segmentShape{batches: 80, batchBytes: sized(100_000)})
		}
		r := newReader(t, f, nil)
		offset := int64(0)
		for i := range 6 {
			_, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
			if err != nil {
				t.Fatal(err)
			}
			offset = result.NextOffset
			synctest.Wait()
			var asked int64
			for _, g := range f.requests() {
				asked += g[1] - g[0]
			}
			if i == 0 && asked != objectstore.BlockBytes {
				t.Errorf("the first read asked for %d bytes", asked)
			}
			if i == 5 && (asked < 10<<20 || asked > 16<<20) {
				t.Errorf("six reads of 1 MiB asked for %d bytes, want the window of 8 MiB ahead", asked)
			}
		}
		before := len(f.requests())
		if _, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: 4 * 80, MaxBytes: 1 << 20, MinOneBatch: true}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(f.requests()) - before; n != 1 {
			t.Errorf("a jump made %d requests, want 1", n)
		}
		r.Close()
	})
}

// A reader that is slow, or that is kept slow, has no more read ahead than it will read within a moment.
func TestReadAheadOfASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		random := rand.New(rand.NewPCG(1, 1))
		h := &history{}
		for range 10 {
			h.write(t, f, random, segmentShape{batches: 80, batchBytes: sized(100_000)})
		}
		r := newReader(t, f, nil)
		for offset, got := int64(0), int64(0); got < 40<<20; {
			data, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1 << 20, MinOneBatch: true})
			if err != nil {
				t.Fatal(err)
			}
			offset, got = result.NextOffset, got+int64(len(data))
			synctest.Wait()
			var asked int64
			for _, g := range f.requests() {
				asked += g[1] - g[0]
			}
			if ahead := asked - got; ahead > 7<<20 {
				t.Fatalf("%d bytes were read ahead for a reader of 4 MB/s", ahead)
			}
			<-time.After(250 * time.Millisecond)
		}
		r.Close()
	})
}

// However many read, the memory of blocks stays within its bound and everybody gets the right bytes.
func TestMemoryBound(t *testing.T) {
	f := newFake()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	for range 8 {
		h.write(t, f, random, segmentShape{batches: 40, batchBytes: sized(100_000)})
	}
	const bound = 8 << 20
	r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.MemoryBytes = bound })
	done := make(chan struct{})
	var over atomic.Int64
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if n := r.MemoryBytes(); n > bound {
					over.Store(n)
				}
			}
		}
	})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			start := int64(i * 50)
			if got := consume(t, r, h, start, 700_000); !bytes.Equal(got, h.from(start)) {
				t.Errorf("reader %d got other bytes", i)
			}
		})
	}
	wg.Wait()
	close(done)
	watch.Wait()
	if n := over.Load(); n > 0 {
		t.Errorf("blocks took %d bytes, want %d at most", n, bound)
	}
}

func TestForget(t *testing.T) {
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.DiskPath = t.TempDir() })
	consume(t, r, h, 0, 1<<20)
	s := h.segments[1].SegmentMetadata
	f.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s})
	r.Forget(s)
	_, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: s.BaseOffset, MaxBytes: 1, MinOneBatch: true})
	if !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("a deleted segment: %v, want not found", err)
	}
}

// Blocks that are on their way when their segment is deleted reach those who wait, and are not kept.
func TestForgetInFlight(t *testing.T) {
	f := newFake()
	h := &history{}
	h.write(t, f, rand.New(rand.NewPCG(1, 1)), segmentShape{batches: 4, batchBytes: sized(1000)})
	r := newReader(t, f, func(*coldread.Config, *coldread.Deps) {})
	s := h.segments[0]
	asked, goOn := make(chan struct{}, 100), make(chan struct{})
	f.onFetch = func(context.Context, *objectstore.SegmentMetadata, int64, int64) error {
		asked <- struct{}{}
		<-goOn
		return nil
	}
	type answer struct {
		result *coldread.ReadResult
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		result, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: s.BaseOffset, MaxBytes: 1, MinOneBatch: true})
		answers <- answer{result, err}
	}()
	<-asked
	r.Forget(s.SegmentMetadata)
	close(goOn)
	a := <-answers
	if a.err != nil || a.result.Records.Len() == 0 {
		t.Fatalf("who waited got %v", a.err)
	}
	a.result.Records.Release()
	if n := r.MemoryBytes(); n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
}

// A result that is small beside the blocks it is in is a copy; a large one is parts of the blocks.
func TestSmallResultsHoldNoBlocks(t *testing.T) {
	f := newFake()
	h := &history{}
	h.write(t, f, rand.New(rand.NewPCG(1, 1)), segmentShape{batches: 40, batchBytes: sized(20_000)})
	r := newReader(t, f, func(*coldread.Config, *coldread.Deps) {})
	read := func(maxBytes int) []byte {
		result, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: 0, MaxBytes: maxBytes, MinOneBatch: true})
		if err != nil {
			t.Fatal(err)
		}
		defer result.Records.Release()
		return result.Records.Buffers[0].ReadOnlyData()
	}
	for maxBytes, shared := range map[int]bool{1: false, 100_000: false, 700_000: true} {
		if first, again := read(maxBytes), read(maxBytes); (&first[0] == &again[0]) != shared {
			t.Errorf("up to %d bytes: shared %t, want %t", maxBytes, !shared, shared)
		}
	}
}

// What leaves the memory is on disk, also for the next process; files that were changed are not believed.
func TestDiskTier(t *testing.T) {
	dir := t.TempDir()
	f := newFake()
	h := &history{}
	random := rand.New(rand.NewPCG(1, 1))
	for range 4 {
		h.write(t, f, random, segmentShape{batches: 60, batchBytes: sized(100_000)})
	}
	small := func(c *coldread.Config, _ *coldread.Deps) {
		c.MemoryBytes, c.DiskPath, c.ReadAheadMaxBytes = 8<<20, dir, 0
	}
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*.block"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	r := newReader(t, f, small)
	consume(t, r, h, 0, 1<<20)
	r.Close()
	kept := files()
	if len(kept) < 5 {
		t.Fatalf("%d blocks on disk", len(kept))
	}
	// What is on disk is not asked for again, except for a damaged file.
	for i, name := range kept {
		switch i {
		case 0:
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := os.WriteFile(name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := os.Truncate(name, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x.block.tmp"), []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := len(f.requests())
	r = newReader(t, f, small)
	if got := consume(t, r, h, 0, 1<<20); !bytes.Equal(got, h.from(0)) {
		t.Error("other bytes after a restart")
	}
	var blocks int64
	for _, s := range h.segments {
		blocks += (s.SizeBytes + objectstore.BlockBytes - 1) / objectstore.BlockBytes
	}
	if n := int64(len(f.requests()) - before); n > blocks-int64(len(kept))+2 {
		t.Errorf("%d requests for %d blocks of which %d were on disk", n, blocks, len(kept))
	}
	if slices.ContainsFunc(files(), func(n string) bool { return strings.HasSuffix(n, ".tmp") }) {
		t.Error("a half written file is still there")
	}
}

// A disk tier that cannot write is no tier, and no failure.
func TestDiskFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.MemoryBytes, c.DiskPath = 8<<20, dir })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got := consume(t, r, h, 0, 1<<20); !bytes.Equal(got, h.from(0)) {
		t.Error("other bytes")
	}
}

// TestIndexBytes bounds the indexes that are kept: with room for one only, two segments in turn are read anew each time.
func TestIndexBytes(t *testing.T) {
	f := newFake()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	h.write(t, f, random, segmentShape{batches: 100, batchBytes: sized(1)})
	h.write(t, f, random, segmentShape{batches: 100, batchBytes: sized(1)})
	r := newReader(t, f, nil)
	rounds := func(want int) {
		t.Helper()
		f.indexed = 0
		for range 3 {
			for _, s := range h.segments {
				if _, err := r.Indexes(t.Context(), s.SegmentMetadata); err != nil {
					t.Fatal(err)
				}
			}
		}
		if f.indexed != want {
			t.Errorf("%d indexes were read, want %d", f.indexed, want)
		}
	}
	rounds(2)
	r.SetIndexBytes(1) // the one that was wanted last stays
	rounds(6)
	r.SetIndexBytes(1 << 50)
	rounds(1)
}

func TestAbortedTransactions(t *testing.T) {
	f := newFake()
	random := rand.New(rand.NewPCG(1, 1))
	h := &history{}
	h.write(t, f, random, segmentShape{batches: 100, batchBytes: sized(1), aborted: []abortedEntry{{1, 5, 20, 6}, {2, 30, 60, 50}}})
	h.write(t, f, random, segmentShape{batches: 100, batchBytes: sized(1)})
	h.write(t, f, random, segmentShape{batches: 100, batchBytes: sized(1), aborted: []abortedEntry{{3, 90, 250, 240}}})
	r := newReader(t, f, nil)
	for _, c := range []struct {
		from, to int64
		want     []storage.AbortedTransaction
		complete bool
	}{
		{0, 5, nil, true},
		{0, 10, []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: 5}}, true},
		{15, 40, []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: 5}, {ProducerID: 2, FirstOffset: 30}}, true},
		{21, 31, []storage.AbortedTransaction{{ProducerID: 2, FirstOffset: 30}}, true},
		// The marker of the third is two segments later.
		{80, 150, []storage.AbortedTransaction{{ProducerID: 3, FirstOffset: 90}}, true},
		{251, 260, nil, false},
	} {
		got, complete, err := r.AbortedTransactions(t.Context(), h.segments, c.from, c.to)
		if err != nil || !slices.Equal(got, c.want) || complete != c.complete {
			t.Errorf("%d to %d: got %v %v %v, want %v %v", c.from, c.to, got, complete, err, c.want, c.complete)
		}
	}
	// Where a segment goes over to another history before a transaction has ended, its end says nothing.
	cut := slices.Clone(h.segments)
	cut[0].LastOffset, cut[1].FirstOffset = 55, 56
	got, _, err := r.AbortedTransactions(t.Context(), cut, 0, 40)
	if want := []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: 5}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("of a segment that is cut: got %v %v, want %v", got, err, want)
	}
	// The segment without aborted transactions costs no request.
	if f.indexed != 2 {
		t.Errorf("%d indexes were read, want 2", f.indexed)
	}
	_, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: 30, MaxBytes: 1, MinOneBatch: true, ReadCommitted: true})
	if err != nil || len(result.AbortedTransactions) != 1 || !result.AbortedComplete {
		t.Errorf("got %+v %v", result, err)
	}
}

func TestOffsetForTimestamp(t *testing.T) {
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, nil)
	rapid.Check(t, func(t *rapid.T) {
		record := rapid.Int64Range(0, h.end-1).Draw(t, "record")
		early := rapid.Int64Range(0, 9).Draw(t, "early")
		minOffset := rapid.Int64Range(0, h.end-1).Draw(t, "min offset")
		// All records of a batch that were made at one offset have distinct times, 10 ms apart.
		got, ok, err := r.OffsetForTimestamp(context.Background(), h.segments, 1000+10*record-early, minOffset)
		want := max(record, minOffset)
		if err != nil || !ok || got.Offset != want || got.TimestampMs != 1000+10*want || got.LeaderEpoch != 3 {
			t.Fatalf("got %+v %v %v, want offset %d", got, ok, err, want)
		}
	})
	if got, ok, err := r.OffsetForTimestamp(t.Context(), h.segments, 1000+10*h.end, 0); ok || err != nil {
		t.Errorf("a time after the end: %+v %v", got, err)
	}
}

// A rate limit slows reads and read-ahead down; a caller with a deadline gets its answer in time.
func TestFetchLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		random := rand.New(rand.NewPCG(1, 1))
		h := &history{}
		for range 4 {
			h.write(t, f, random, segmentShape{batches: 80, batchBytes: sized(100_000)})
		}
		r := newReader(t, f, func(c *coldread.Config, d *coldread.Deps) {
			c.FillTimeout = time.Hour
			d.FetchLimiter = quota.NewLimiter(1<<20, 11, time.Second)
		})
		begun := time.Now()
		if got := consume(t, r, h, 0, 1<<20); !bytes.Equal(got, h.from(0)) {
			t.Error("other bytes")
		}
		if d := time.Since(begun); d < 10*time.Second || d > time.Minute {
			t.Errorf("30 MiB at 1 MiB/s took %s", d)
		}
		r.Close()
	})
}

func TestClosed(t *testing.T) {
	f := newFake()
	h := made(t, f)
	r := newReader(t, f, nil)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := r.Read(t.Context(), coldread.ReadRequest{Segments: h.segments, Offset: 0, MaxBytes: 1, MinOneBatch: true}); !errors.Is(err, objectstore.ErrTransient) {
		t.Errorf("a closed reader: %v", err)
	}
}
