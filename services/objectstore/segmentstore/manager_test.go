package segmentstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/segmentstore"
)

func manager(t testing.TB, store blob.Store, change func(*segmentstore.Config, *segmentstore.Deps)) *segmentstore.Manager {
	t.Helper()
	config := segmentstore.DefaultConfig()
	config.ClusterID, config.PutMaxBytes, config.PartBytes = "cluster", 6<<20, 5<<20
	deps := segmentstore.Deps{Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&config, &deps)
	}
	m, err := segmentstore.New(store, config, deps)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestContract(t *testing.T) {
	store := newFakeStore()
	contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { return manager(t, store, nil) })
}

// Whatever happens to the requests of a copy, the copy is there in the end, with one attempt of its job.
func TestCopyRecovers(t *testing.T) {
	transient := refused(objectstore.ErrTransient, "x", nil)
	for name, c := range map[string]struct {
		before, after func(ctx context.Context, op string, n int) error
		bytes         int
		creates       int
	}{
		"first attempts fail": {bytes: 12 << 20, creates: 2, before: func(_ context.Context, _ string, n int) error {
			if n == 1 {
				return transient
			}
			return nil
		}},
		"throttled": {bytes: 12 << 20, creates: 3, before: func(_ context.Context, _ string, n int) error {
			if n <= 2 {
				return refused(objectstore.ErrThrottled, "x", nil)
			}
			return nil
		}},
		"lost answer of a put": {bytes: 1000, after: func(_ context.Context, op string, n int) error {
			if op == "put" && n == 1 {
				return transient
			}
			return nil
		}},
		"lost answer of a completion": {bytes: 12 << 20, creates: 1, after: func(_ context.Context, op string, n int) error {
			if op == "complete_upload" && n == 1 {
				return transient
			}
			return nil
		}},
		"conflict of a completion": {bytes: 12 << 20, creates: 2, before: func(_ context.Context, op string, n int) error {
			if op == "complete_upload" && n == 1 {
				return refused(objectstore.ErrTransient, op, blob.ErrConflict)
			}
			return nil
		}},
		"hang": {bytes: 1000, before: func(ctx context.Context, op string, n int) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}},
		"credentials renewed": {bytes: 1000, before: func(_ context.Context, _ string, n int) error {
			if n == 1 {
				return refused(objectstore.ErrCredentials, "x", nil)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				store.before, store.after = c.before, c.after
				m := manager(t, store, nil)
				s, d, log := contract.Segment(uuid.Random(), 0, c.bytes)
				contract.Copy(t, m, s, d)
				if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
					t.Error("the bytes differ")
				}
				if n := store.count("create_upload"); n != c.creates {
					t.Errorf("%d uploads begun, want %d", n, c.creates)
				}
				if len(store.uploads) > 0 {
					t.Errorf("%d uploads are left", len(store.uploads))
				}
			})
		})
	}
}

// An object that is not ours under our key is never taken for a copy.
func TestOtherObjectUnderTheKey(t *testing.T) {
	store := newFakeStore()
	m := manager(t, store, nil)
	s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
	contract.Copy(t, m, s, d)
	_, other, _ := contract.Segment(uuid.Random(), 500, 1000)
	if _, err := m.CopyLogSegmentData(t.Context(), s, other); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("got %v, want corrupt", err)
	}
}

// The local copy goes when the store says that it has the object, so that must be true.
func TestStoreLies(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(store *fakeStore, key string)
		kind error
	}{
		"nothing is there": {func(store *fakeStore, key string) { delete(store.objects, key) }, objectstore.ErrTransient},
		"a part is there": {func(store *fakeStore, key string) {
			o := store.objects[key]
			o.data = o.data[:700]
			store.objects[key] = o
		}, objectstore.ErrCorrupt},
		"another is there":    {func(store *fakeStore, key string) { o := store.objects[key]; clear(o.data); store.objects[key] = o }, objectstore.ErrCorrupt},
		"it is there at last": {func(store *fakeStore, key string) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				store.after = func(_ context.Context, op string, _ int) error {
					if op == "put" || op == "complete_upload" {
						store.mu.Lock()
						defer store.mu.Unlock()
						for key := range store.objects {
							c.lie(store, key)
						}
					}
					return nil
				}
				store.before = func(_ context.Context, op string, n int) error {
					if op == "get" && n == 1 && c.kind == nil {
						return refused(objectstore.ErrNotFound, op, nil)
					}
					return nil
				}
				m := manager(t, store, nil)
				for _, bytes := range []int{1000, 12 << 20} {
					s, d, _ := contract.Segment(uuid.Random(), 0, bytes)
					if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, c.kind) {
						t.Errorf("%d bytes: %v, want %v", bytes, err, c.kind)
					}
				}
			})
		})
	}
}

// What cannot work is not tried again.
func TestHopeless(t *testing.T) {
	for _, kind := range []error{objectstore.ErrRejected, objectstore.ErrCorrupt} {
		store := newFakeStore()
		store.before = func(_ context.Context, op string, _ int) error { return refused(kind, op, nil) }
		m := manager(t, store, nil)
		s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
		if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, kind) || store.count("put") != 1 {
			t.Errorf("%v after %d attempts", err, store.count("put"))
		}
	}
}

// A failed upload in parts is ended; one that a crash has left is found later.
func TestUnfinishedUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = func(_ context.Context, op string, _ int) error {
			if op == "upload_part" {
				return refused(objectstore.ErrTransient, op, nil)
			}
			return nil
		}
		m := manager(t, store, nil)
		s, d, _ := contract.Segment(uuid.Random(), 0, 12<<20)
		if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, objectstore.ErrTransient) {
			t.Fatal(err)
		}
		if len(store.uploads) != 0 {
			t.Error("the failed upload is left")
		}
		store.before = nil
		crash := manager(t, store, func(_ *segmentstore.Config, d *segmentstore.Deps) {
			d.Step = func(name string) error {
				if name == segmentstore.StepPartsUploaded {
					return errors.New("crash")
				}
				return nil
			}
		})
		<-time.After(time.Minute)
		if _, err := crash.CopyLogSegmentData(t.Context(), s, d); err == nil {
			t.Fatal("no crash")
		}
		<-time.After(time.Hour)
		for _, c := range []struct {
			age  time.Duration
			dry  bool
			want int
			left int
		}{{24 * time.Hour, false, 0, 1}, {time.Minute, true, 1, 1}, {time.Minute, false, 1, 0}} {
			n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(-c.age), c.dry)
			if n != c.want || err != nil || len(store.uploads) != c.left {
				t.Errorf("older than %s: %d %v, %d left", c.age, n, err, len(store.uploads))
			}
		}
	})
}

// stuckBody gives some bytes and then none until it is closed or its request ends.
type stuckBody struct {
	io.ReadCloser
	left int
	stop <-chan struct{}
}

func (b *stuckBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.stop
		return 0, context.Canceled
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// A read whose bytes stop is continued with another request from the last good byte on.
func TestReadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		s, d, log := contract.Segment(uuid.Random(), 0, 100_000)
		contract.Copy(t, m, s, d)
		var stop <-chan struct{}
		store.before = func(ctx context.Context, op string, n int) error {
			stop = ctx.Done()
			return nil
		}
		bodies := 0
		store.body = func(r io.ReadCloser) io.ReadCloser {
			bodies++
			if bodies == 4 {
				return io.NopCloser(io.LimitReader(r, 20_000))
			}
			return &stuckBody{r, 10_000 * bodies, stop}
		}
		begun := time.Now()
		if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
			t.Error("the bytes differ")
		}
		if bodies != 5 || time.Since(begun) > time.Minute {
			t.Errorf("%d requests in %s", bodies, time.Since(begun))
		}
	})
}

// A store that throttles gets fewer requests at a time, and more again when it takes them.
func TestAdaptiveConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, func(c *segmentstore.Config, _ *segmentstore.Deps) { c.RequestConcurrency, c.Attempts = 32, 50 })
		s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
		contract.Copy(t, m, s, d)
		var inFlight, peak, limit atomic.Int64
		limit.Store(6)
		store.before = func(_ context.Context, _ string, _ int) error {
			n := inFlight.Add(1)
			defer inFlight.Add(-1)
			for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
			}
			<-time.After(20 * time.Millisecond)
			if n > limit.Load() {
				return refused(objectstore.ErrThrottled, "x", nil)
			}
			return nil
		}
		load := func(d time.Duration) (calls int) {
			before := store.count("get")
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for ctx.Err() == nil {
						m.FetchIndexes(ctx, s)
					}
				})
			}
			wg.Wait()
			return store.count("get") - before
		}
		load(20 * time.Second)
		peak.Store(0)
		load(500 * time.Millisecond)
		if p := peak.Load(); p > 14 {
			t.Errorf("%d requests at a time, for a store that takes 6", p)
		}
		limit.Store(1000)
		load(20 * time.Second)
		peak.Store(0)
		load(time.Second)
		if p := peak.Load(); p < 24 {
			t.Errorf("%d requests at a time, for a store that takes all", p)
		}
	})
}

// quiet is a store whose answers about deletions name no key.
type quiet struct {
	*fakeStore
	keeps bool
}

func (s quiet) Delete(ctx context.Context, keys []string) []error {
	if !s.keeps {
		s.fakeStore.Delete(ctx, keys)
	}
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = refused(objectstore.ErrTransient, "delete", blob.ErrUnanswered)
	}
	return errs
}

// A deletion whose answer does not name the object counts when the object is gone.
func TestUnansweredDeletion(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := manager(t, quiet{newFakeStore(), keeps}, nil)
			s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
			contract.Copy(t, m, s, d)
			if errs := m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); (errs != nil) != keeps {
				t.Errorf("%v, and the object stays: %t", errs, keeps)
			}
		})
	}
}

// samePage is a store that says of each page that there is another, which is the same.
type samePage struct{ *fakeStore }

func (s samePage) List(ctx context.Context, prefix, _ string) (blob.Page, error) {
	page, err := s.fakeStore.List(ctx, prefix, "")
	page.Next = "more"
	return page, err
}

// A listing that never ends is an error.
func TestListOfOnePage(t *testing.T) {
	m := manager(t, samePage{newFakeStore()}, nil)
	err := m.ListObjects(t.Context(), objectstore.Scope{}, func(objectstore.Object) error { return nil })
	if !errors.Is(err, objectstore.ErrTransient) {
		t.Fatal(err)
	}
}

// A deletion of many segments takes few requests, and says which failed.
func TestDeleteMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		var all []*objectstore.SegmentMetadata
		for i := range 2500 {
			s := &objectstore.SegmentMetadata{TopicID: uuid.UUID{1}, ID: uuid.Random(), BaseOffset: int64(i)}
			all = append(all, s)
		}
		if errs := m.DeleteLogSegmentData(t.Context(), all); errs != nil {
			t.Fatal(errs[0])
		}
		if n := store.count("delete"); n != 3 {
			t.Errorf("%d requests for 2500 segments", n)
		}
		store.before = func(_ context.Context, op string, n int) error {
			if n == 5 { // the second thousand
				return refused(objectstore.ErrRejected, op, nil)
			}
			return nil
		}
		errs := m.DeleteLogSegmentData(t.Context(), all)
		failed := 0
		for i, err := range errs {
			if err != nil {
				failed++
				if i < 1000 || i >= 2000 {
					t.Fatalf("segment %d: %v", i, err)
				}
			}
		}
		if failed != 1000 {
			t.Errorf("%d failed, want 1000", failed)
		}
	})
}

// Listings come in pages, each tried again by itself.
func TestListPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		topic := uuid.Random()
		for i := range 10 {
			s, d, _ := contract.Segment(topic, int64(i*100), 100)
			contract.Copy(t, m, s, d)
		}
		store.objects["cluster-of-others"] = fakeObject{}
		store.before = func(_ context.Context, op string, n int) error {
			if n%2 == 0 {
				return refused(objectstore.ErrTransient, op, nil)
			}
			return nil
		}
		seen := make(map[string]bool)
		err := m.ListObjects(t.Context(), objectstore.Scope{}, func(o objectstore.Object) error {
			if seen[o.Key] {
				return fmt.Errorf("%s comes twice", o.Key)
			}
			seen[o.Key] = true
			return nil
		})
		if err != nil || len(seen) != 10 {
			t.Errorf("%d objects, %v", len(seen), err)
		}
	})
}

func TestBadConfig(t *testing.T) {
	for name, change := range map[string]func(*segmentstore.Config){
		"cluster": func(c *segmentstore.Config) { c.ClusterID = "" },
		"slash":   func(c *segmentstore.Config) { c.ClusterID = "a b" },
		"part":    func(c *segmentstore.Config) { c.PartBytes = 5<<20 + 1 },
		"prefix":  func(c *segmentstore.Config) { c.Prefix = "a//b" },
		"timeout": func(c *segmentstore.Config) { c.StallTimeout = 0 },
	} {
		config := segmentstore.DefaultConfig()
		config.ClusterID = "c"
		change(&config)
		if err := config.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
