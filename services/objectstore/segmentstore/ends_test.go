package segmentstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/segmentstore"
)

// countedBody knows whether it has been closed, and may end, or fail, before its time.
type countedBody struct {
	io.ReadCloser
	open *atomic.Int64
	left int
	err  error
}

func (b *countedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (b *countedBody) Close() error {
	b.open.Add(-1)
	return b.ReadCloser.Close()
}

// TestReadsEnd in every way and leave nothing: no body is open, no place is taken, no error is without its kind.
func TestReadsEnd(t *testing.T) {
	transient := refused(objectstore.ErrTransient, "get", nil)
	for name, tt := range map[string]struct {
		before func(ctx context.Context, op string, n int) error
		left   int
		err    error
		read   int64 // how much is read before the close
		kind   error
		calls  int // attempts of one read; 0 for whatever it takes
	}{
		"all":                       {left: 1 << 30, read: 1 << 30, calls: 1},
		"closed early":              {left: 1 << 30, read: 10, calls: 1},
		"never read":                {left: 1 << 30, calls: 1},
		"cut each time":             {left: 40_000, err: io.EOF, read: 1 << 30, calls: 3},
		"broken each time":          {left: 40_000, err: errors.New("reset"), read: 1 << 30, calls: 3},
		"no byte ever":              {err: io.EOF, read: 1 << 30, kind: objectstore.ErrTransient, calls: 4},
		"refused":                   {before: func(context.Context, string, int) error { return transient }, kind: objectstore.ErrTransient, calls: 4},
		"credentials":               {before: func(context.Context, string, int) error { return refused(objectstore.ErrCredentials, "get", nil) }, kind: objectstore.ErrCredentials, calls: 2},
		"gone":                      {before: func(context.Context, string, int) error { return refused(objectstore.ErrNotFound, "get", nil) }, kind: objectstore.ErrNotFound, calls: 1},
		"an error without any kind": {before: func(context.Context, string, int) error { return errors.New("?") }, kind: objectstore.ErrTransient, calls: 4},
		"no answer":                 {before: func(ctx context.Context, _ string, _ int) error { <-ctx.Done(); return ctx.Err() }, kind: objectstore.ErrTransient, calls: 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFakeStore()
				m := manager(t, store, func(c *segmentstore.Config, _ *segmentstore.Deps) { c.RequestConcurrency = 2 })
				s, d, log := contract.Segment(uuid.Random(), 0, 100_000)
				contract.Copy(t, m, s, d)
				var open atomic.Int64
				store.before = tt.before
				store.body = func(r io.ReadCloser) io.ReadCloser {
					open.Add(1)
					return &countedBody{r, &open, tt.left, tt.err}
				}
				// More often than there are places, and less often than it takes to believe that the store is away.
				for range 3 {
					if tt.before != nil || tt.kind != nil {
						store.before, store.body = nil, nil
						contract.Read(t, m, s, 0, 10) // the store is there
						store.before = tt.before
						store.body = func(r io.ReadCloser) io.ReadCloser {
							open.Add(1)
							return &countedBody{r, &open, tt.left, tt.err}
						}
					}
					calls := store.count("get")
					body, err := m.FetchLogSegment(t.Context(), s, 0, s.SizeBytes)
					if err == nil {
						var got []byte
						got, err = io.ReadAll(io.LimitReader(body, tt.read))
						if !bytes.Equal(got, log[:len(got)]) || err == nil && int64(len(got)) != min(tt.read, s.SizeBytes) {
							t.Errorf("%d bytes came, or others", len(got))
						}
						if closed := body.Close(); closed != nil {
							t.Error(closed)
						}
						if n, after := body.Read(make([]byte, 1)); n != 0 || after == nil {
							t.Errorf("%d bytes after the close, %v", n, after)
						}
					}
					if !errors.Is(err, tt.kind) {
						t.Errorf("%v, want %v", err, tt.kind)
					}
					if n := store.count("get") - calls; n != tt.calls {
						t.Errorf("%d attempts, want %d", n, tt.calls)
					}
					if n := open.Load(); n != 0 {
						t.Errorf("%d bodies are open", n)
					}
				}
				store.before, store.body = nil, nil
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := m.FetchIndexes(ctx, s); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// TestReadsOfAGivenUpCaller end at once, and say nothing about the store.
func TestReadsOfAGivenUpCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
		contract.Copy(t, m, s, d)
		store.before = func(ctx context.Context, _ string, _ int) error { <-ctx.Done(); return ctx.Err() }
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			if _, err := m.FetchLogSegment(ctx, s, 0, 10); err == nil || time.Since(began) != time.Second {
				t.Fatalf("%v after %s", err, time.Since(began))
			}
			cancel()
		}
		store.before = nil
		contract.Read(t, m, s, 0, 10)
	})
}

// TestDamagedIndexes are read once more: what was damaged on its way is not damaged again. An object that is another one than the
// metadata's is refused.
func TestDamagedIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		s, d, _ := contract.Segment(uuid.Random(), 0, 1000)
		contract.Copy(t, m, s, d)
		for _, bad := range []int{0, 1, 2} {
			left, calls := bad, store.count("get")
			store.body = func(r io.ReadCloser) io.ReadCloser {
				if left--; left >= 0 {
					data, _ := io.ReadAll(r)
					data[3]++
					return io.NopCloser(bytes.NewReader(data))
				}
				return r
			}
			_, err := m.FetchIndexes(t.Context(), s)
			if n := store.count("get") - calls; n != min(bad+1, 2) || (err != nil) != (bad == 2) || err != nil && !errors.Is(err, objectstore.ErrCorrupt) {
				t.Errorf("damaged %d times: %v after %d requests", bad, err, n)
			}
		}
		store.body = nil
		other := *s
		other.Custom = bytes.Clone(s.Custom)
		other.Custom[5]++ // the checksum of the log
		if _, err := m.FetchIndexes(t.Context(), &other); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("another log's indexes: %v", err)
		}
		other.Custom = nil
		if _, err := m.FetchIndexes(t.Context(), &other); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("without custom metadata: %v", err)
		}
		if _, err := m.FetchLogSegment(t.Context(), &other, 0, 10); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("the log without custom metadata: %v", err)
		}
		for _, r := range [][2]int64{{-1, 5}, {6, 5}, {s.SizeBytes + 1, s.SizeBytes + 2}} {
			if _, err := m.FetchLogSegment(t.Context(), s, r[0], r[1]); !errors.Is(err, objectstore.ErrRejected) {
				t.Errorf("the range %v: %v", r, err)
			}
		}
		calls := store.count("get")
		if got := contract.Read(t, m, s, 7, 7); len(got) != 0 || store.count("get") != calls {
			t.Error("an empty range took a request")
		}
	})
}

// TestSomeKeysFail: those that may work later are asked for again alone, and the others are not.
func TestSomeKeysFail(t *testing.T) {
	for name, tt := range map[string]struct {
		kinds map[string]error // of a key, while times lasts
		times int
		want  []string // what has failed in the end
		asked [][]string
	}{
		"none":       {nil, 0, nil, [][]string{{"a", "b", "c"}}},
		"one, once":  {map[string]error{"b": objectstore.ErrTransient}, 1, nil, [][]string{{"a", "b", "c"}, {"b"}}},
		"two, twice": {map[string]error{"a": objectstore.ErrThrottled, "c": objectstore.ErrTransient}, 2, nil, [][]string{{"a", "b", "c"}, {"a", "c"}, {"a", "c"}}},
		"for ever": {map[string]error{"b": objectstore.ErrTransient}, 1 << 30, []string{"b"},
			[][]string{{"a", "b", "c"}, {"b"}, {"b"}, {"b"}, {"b"}}},
		"for good":           {map[string]error{"b": objectstore.ErrRejected}, 1 << 30, []string{"b"}, [][]string{{"a", "b", "c"}}},
		"one each, for good": {map[string]error{"a": objectstore.ErrRejected, "b": objectstore.ErrTransient}, 1, nil, [][]string{{"a", "b", "c"}, {"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &someFail{fakeStore: newFakeStore(), kinds: tt.kinds, times: tt.times}
				m := manager(t, store, nil)
				errs := m.DeleteObjects(t.Context(), []string{"a", "b", "c"})
				var failed []string
				for i, err := range errs {
					if err != nil {
						failed = append(failed, []string{"a", "b", "c"}[i])
					}
				}
				want := tt.want
				if name == "one each, for good" {
					want = []string{"a"}
				}
				if !slices.Equal(failed, want) || (errs == nil) != (want == nil) {
					t.Errorf("failed have %v, want %v", failed, want)
				}
				if !slices.EqualFunc(store.asked[:min(len(store.asked), len(tt.asked))], tt.asked, slices.Equal) {
					t.Errorf("asked for were %v, want %v", store.asked, tt.asked)
				}
			})
		})
	}
}

// someFail fails for some keys of a request alone.
type someFail struct {
	*fakeStore
	kinds map[string]error
	times int
	asked [][]string
}

func (s *someFail) Delete(_ context.Context, keys []string) []error {
	s.asked = append(s.asked, slices.Clone(keys))
	if s.times--; s.times < 0 || s.kinds == nil {
		return nil
	}
	errs := make([]error, len(keys))
	for i, k := range keys {
		if kind := s.kinds[k]; kind != nil {
			errs[i] = refused(kind, "delete", nil)
		}
	}
	return errs
}

// TestScopes: an object is listed for its own partition and topic, and one that is no segment for the whole store alone.
func TestScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		m := manager(t, store, nil)
		s, d, _ := contract.Segment(uuid.Random(), 0, 100)
		contract.Copy(t, m, s, d)
		o, d, _ := contract.Segment(uuid.Random(), 0, 100)
		contract.Copy(t, m, o, d)
		store.objects["v1/cluster/readme"] = fakeObject{}
		for name, tt := range map[string]struct {
			scope objectstore.Scope
			want  int
		}{
			"all":               {objectstore.Scope{Partition: objectstore.AllPartitions}, 3},
			"a topic":           {objectstore.Scope{TopicID: s.TopicID, Partition: objectstore.AllPartitions}, 1},
			"a partition":       {objectstore.Scope{TopicID: s.TopicID, Partition: s.Partition}, 1},
			"another partition": {objectstore.Scope{TopicID: s.TopicID, Partition: s.Partition + 1}, 0},
			"another topic":     {objectstore.Scope{TopicID: uuid.UUID{9}, Partition: objectstore.AllPartitions}, 0},
		} {
			n := 0
			if err := m.ListObjects(t.Context(), tt.scope, func(objectstore.Object) error { n++; return nil }); err != nil || n != tt.want {
				t.Errorf("%s: %d objects, %v, want %d", name, n, err, tt.want)
			}
		}
		stop := errors.New("stop")
		if err := m.ListObjects(t.Context(), objectstore.Scope{}, func(objectstore.Object) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("who wants no more got %v", err)
		}
	})
}
