package coldread_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
)

// TestNoReferenceIsLost reads in every way, and wants each block's memory back when all results have been released and the segments
// forgotten. A reference too many keeps a megabyte for ever; one too few gives memory to the next block that somebody still reads.
func TestNoReferenceIsLost(t *testing.T) {
	failing := errors.New("it fails")
	for name, play := range map[string]func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history){
		"in order": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			for _, maxBytes := range []int{1000, 700_000, 3 << 20, 50 << 20} {
				consume(t, r, h, 0, maxBytes)
			}
		},
		"too little is asked for": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			for _, s := range h.segments {
				if data, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: s.BaseOffset, MaxBytes: 1}); err != nil || len(data) != 0 {
					t.Errorf("%d bytes, %v", len(data), err)
				}
			}
		},
		"by time": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			for offset := int64(0); offset < h.end; offset += 37 {
				if found, ok, err := r.OffsetForTimestamp(t.Context(), h.segments, 1000+10*offset, 0); err != nil || !ok || found.Offset != offset {
					t.Fatalf("offset %d: %+v, %v, %v", offset, found, ok, err)
				}
			}
		},
		"damaged and broken": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			random := rand.New(rand.NewPCG(1, 2))
			var mu sync.Mutex
			f.onStream = func(p []byte, _ int64) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				switch random.IntN(30) {
				case 0:
					return 0, failing
				case 1, 2:
					p[0]++
				}
				return len(p), nil
			}
			failed := 0
			for range 200 {
				offset := random.Int64N(h.end)
				if _, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 3 << 20, MinOneBatch: true}); err != nil {
					failed++
				}
				if failed%7 == 0 {
					r.Forget(h.segments[random.IntN(len(h.segments))].SegmentMetadata)
				}
			}
			if failed == 0 {
				t.Error("nothing failed")
			}
		},
		"no indexes": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			f.onIndex = func(*objectstore.SegmentMetadata) error { return failing }
			for _, offset := range []int64{0, 5, h.end - 1} {
				if _, _, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 1000, MinOneBatch: true}); err == nil {
					t.Error("it was read without checksums")
				}
			}
		},
		"given up": func(t *testing.T, f *fakeManager, r *coldread.Reader, h *history) {
			var calls atomic.Int64
			f.onFetch = func(context.Context, *objectstore.SegmentMetadata, int64, int64) error {
				<-time.After(time.Duration(calls.Add(1)%5) * time.Millisecond)
				return nil
			}
			random := rand.New(rand.NewPCG(1, 2))
			var wg sync.WaitGroup
			for range 300 {
				offset, patience := random.Int64N(h.end), time.Duration(random.IntN(5_000))*time.Microsecond
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					_, _, err := read(ctx, r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: 3 << 20, MinOneBatch: true})
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				h := made(t, f)
				r := newReader(t, f, func(c *coldread.Config, _ *coldread.Deps) { c.MemoryBytes = 8 << 20 })
				play(t, f, r, h)
				synctest.Wait()
				<-time.After(time.Minute) // what was read ahead has come
				if all, kept := r.Out(); all != kept {
					t.Errorf("%d blocks are out, and %d are kept", all, kept)
				}
				for _, s := range h.segments {
					r.Forget(s.SegmentMetadata)
				}
				if all, kept := r.Out(); all != 0 || kept != 0 || r.MemoryBytes() != 0 {
					t.Errorf("after all is forgotten %d blocks are out, %d are kept, %d bytes", all, kept, r.MemoryBytes())
				}
				r.Close()
			})
		})
	}
}
