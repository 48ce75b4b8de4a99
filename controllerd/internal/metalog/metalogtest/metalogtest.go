// Package metalogtest is what every metadata log must do, as tests that run against each of them.
package metalogtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"chancery/controllerd/internal/metalog"
)

// patience bounds each wait.
const patience = 20 * time.Second

// Run tests a log. Each call of open makes two views of a new and empty log, of controllers 1 and 2.
func Run(t *testing.T, open func(t *testing.T) (one, two metalog.Log)) {
	for name, test := range map[string]func(*testing.T, metalog.Log, metalog.Log){
		"cluster id":  testClusterID,
		"append":      testAppend,
		"fencing":     testFencing,
		"follow":      testFollow,
		"snapshots":   testSnapshots,
		"large":       testLargeSnapshot,
		"empty claim": testEmptyClaim,
	} {
		t.Run(name, func(t *testing.T) {
			one, two := open(t)
			test(t, one, two)
		})
	}
}

func claim(t *testing.T, l metalog.Log) metalog.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	term, err := l.Claim(ctx, "controller:1")
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// Batch makes a batch whose records tell their offsets.
func Batch(term metalog.Term, base int64, n int) metalog.Batch {
	b := metalog.Batch{BaseOffset: base, Epoch: term.Epoch(), TimestampMs: 1}
	for i := range n {
		b.Records = append(b.Records, fmt.Appendf(nil, "record %d", base+int64(i)))
	}
	return b
}

func mustAppend(t *testing.T, term metalog.Term, base int64, n int) int64 {
	t.Helper()
	b := Batch(term, base, n)
	if err := term.Append(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b.EndOffset()
}

func testClusterID(t *testing.T, one, two metalog.Log) {
	for i, c := range []struct {
		log      metalog.Log
		proposed string
	}{{one, "a"}, {two, "b"}, {one, "c"}} {
		if got, err := c.log.ClusterID(t.Context(), c.proposed); err != nil || got != "a" {
			t.Fatalf("proposal %d: got %q, %v; want the first", i, got, err)
		}
	}
}

func testAppend(t *testing.T, one, _ metalog.Log) {
	term := claim(t, one)
	if term.Epoch() != 1 || term.EndOffset() != 0 {
		t.Fatalf("first claim: epoch %d, end %d", term.Epoch(), term.EndOffset())
	}
	next := mustAppend(t, term, 0, 3)
	next = mustAppend(t, term, next, 1)
	again := claim(t, one)
	if again.Epoch() != 2 || again.EndOffset() != next {
		t.Fatalf("second claim: epoch %d, end %d, want 2 and %d", again.Epoch(), again.EndOffset(), next)
	}
	if err := again.Append(t.Context(), Batch(again, next+1, 1)); err == nil {
		t.Fatal("a gap was appended")
	}
}

func testEmptyClaim(t *testing.T, one, two metalog.Log) {
	first := claim(t, one)
	second := claim(t, two)
	if second.Epoch() != first.Epoch()+1 || second.EndOffset() != 0 {
		t.Fatalf("epoch %d, end %d", second.Epoch(), second.EndOffset())
	}
	if err := first.Append(t.Context(), Batch(first, 0, 1)); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("got %v, want fenced", err)
	}
	mustAppend(t, second, 0, 1)
}

func testFencing(t *testing.T, one, two metalog.Log) {
	old := claim(t, one)
	next := mustAppend(t, old, 0, 2)
	current := claim(t, two)
	if current.EndOffset() != next {
		t.Fatalf("end %d, want %d", current.EndOffset(), next)
	}
	if err := old.Append(t.Context(), Batch(old, next, 1)); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("append: got %v, want fenced", err)
	}
	info := metalog.SnapshotInfo{EndOffset: next, Epoch: old.Epoch()}
	if err := old.PutSnapshot(t.Context(), info, slices.Values([][]byte{{1}})); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("snapshot: got %v, want fenced", err)
	}
	if err := old.Append(t.Context(), Batch(old, next, 1)); !errors.Is(err, metalog.ErrFenced) {
		t.Fatalf("append after an error: got %v, want fenced", err)
	}
	mustAppend(t, current, next, 1)
}

// collector follows a log on its own goroutine.
type collector struct {
	events chan metalog.Event
	err    chan error
}

func follow(t *testing.T, l metalog.Log, from int64) *collector {
	c := &collector{events: make(chan metalog.Event, 1000), err: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for e, err := range l.Follow(ctx, from) {
			if err != nil {
				c.err <- err
				return
			}
			c.events <- e
		}
	}()
	return c
}

func (c *collector) next(t *testing.T) metalog.Event {
	t.Helper()
	select {
	case e := <-c.events:
		return e
	case err := <-c.err:
		t.Fatalf("follow ended: %v", err)
	case <-time.After(patience):
		t.Fatal("no event")
	}
	return metalog.Event{}
}

func (c *collector) wantHolder(t *testing.T, epoch int32, id int32) {
	t.Helper()
	if e := c.next(t); e.Holder == nil || e.Holder.Epoch != epoch || e.Holder.ID != id || e.Holder.Address != "controller:1" {
		t.Fatalf("got %+v, want the holder %d of epoch %d", e, id, epoch)
	}
}

func (c *collector) wantBatch(t *testing.T, base int64, n int, epoch int32) {
	t.Helper()
	e := c.next(t)
	if e.Batch == nil || e.Batch.BaseOffset != base || len(e.Batch.Records) != n || e.Batch.Epoch != epoch {
		t.Fatalf("got %+v, want the batch of %d records at offset %d", e.Batch, n, base)
	}
	for i, r := range e.Batch.Records {
		if string(r) != fmt.Sprintf("record %d", base+int64(i)) {
			t.Fatalf("record %q at offset %d", r, base+int64(i))
		}
	}
}

func testFollow(t *testing.T, one, two metalog.Log) {
	term := claim(t, one)
	mustAppend(t, term, 0, 2)
	fromStart := follow(t, two, 0)
	fromStart.wantHolder(t, 1, 1)
	fromStart.wantBatch(t, 0, 2, 1)
	mustAppend(t, term, 2, 3)
	fromStart.wantBatch(t, 2, 3, 1)
	fromEnd := follow(t, one, 5)
	fromEnd.wantHolder(t, 1, 1)
	other := claim(t, two)
	fromStart.wantHolder(t, 2, 2)
	fromEnd.wantHolder(t, 2, 2)
	mustAppend(t, other, 5, 1)
	fromStart.wantBatch(t, 5, 1, 2)
	fromEnd.wantBatch(t, 5, 1, 2)
	beyond := follow(t, one, 100)
	select {
	case err := <-beyond.err:
		t.Log(err)
	case <-time.After(patience):
		t.Fatal("followed from beyond the end")
	}
}

func testSnapshots(t *testing.T, one, two metalog.Log) {
	term := claim(t, one)
	if _, err := one.Snapshot(t.Context()); !errors.Is(err, metalog.ErrNoSnapshot) {
		t.Fatalf("got %v, want no snapshot", err)
	}
	var next int64
	put := func(want ...string) {
		t.Helper()
		for range 3 {
			next = mustAppend(t, term, next, 2)
		}
		var records [][]byte
		for _, r := range want {
			records = append(records, []byte(r))
		}
		info := metalog.SnapshotInfo{EndOffset: next, Epoch: term.Epoch()}
		if err := term.PutSnapshot(t.Context(), info, slices.Values(records)); err != nil {
			t.Fatal(err)
		}
		wantSnapshot(t, two, info, want...)
	}
	put("a")
	follow(t, two, 0).wantHolder(t, 1, 1)
	put("b", "c")
	put("d")
	// The log still reaches back to the snapshot before the last, and no further.
	reader := follow(t, two, 12)
	reader.wantHolder(t, 1, 1)
	reader.wantBatch(t, 12, 2, 1)
	gone := follow(t, two, 0)
	var truncated *metalog.TruncatedError
	select {
	case err := <-gone.err:
		if !errors.As(err, &truncated) {
			t.Fatalf("got %v, want truncated", err)
		}
	case <-time.After(patience):
		t.Fatal("no error")
	}
	// The end is known even when snapshots cover everything.
	put()
	if term := claim(t, two); term.EndOffset() != next {
		t.Fatalf("end %d, want %d", term.EndOffset(), next)
	}
}

// wantSnapshot waits until a view has a snapshot, since a standby's may be a little old.
func wantSnapshot(t *testing.T, l metalog.Log, info metalog.SnapshotInfo, want ...string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := l.Snapshot(t.Context())
		if err == nil && s.SnapshotInfo == info {
			var got []string
			for r, err := range s.Records {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(r))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("got %q, want %q", got, want)
			}
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("got %+v, %v; want %+v", s.SnapshotInfo, err, info)
		}
	}
}

func testLargeSnapshot(t *testing.T, one, _ metalog.Log) {
	term := claim(t, one)
	next := mustAppend(t, term, 0, 1)
	var records [][]byte
	for i := range 3000 {
		records = append(records, fmt.Appendf(nil, "%d %01000d", i, i))
	}
	info := metalog.SnapshotInfo{EndOffset: next, Epoch: 1}
	if err := term.PutSnapshot(t.Context(), info, slices.Values(records)); err != nil {
		t.Fatal(err)
	}
	s, err := one.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := 0
	for r, err := range s.Records {
		if err != nil {
			t.Fatal(err)
		}
		if string(r) != string(records[i]) {
			t.Fatalf("record %d differs", i)
		}
		i++
	}
	if i != len(records) {
		t.Fatalf("%d records, want %d", i, len(records))
	}
}
