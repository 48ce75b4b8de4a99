package segmentstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestBreaker opens after failures in a row, lets one request at a time try, waits longer each time, and closes with any answer.
func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	allowed := func(want bool) (wait time.Duration) {
		t.Helper()
		wait, ok := b.allow(now)
		if ok != want || (wait > 0) == ok {
			t.Fatalf("a request may go out: %v, wait %s", ok, wait)
		}
		return wait
	}
	fail := func(n int) {
		for range n {
			b.done(now, unreachable, errStalled, 0.5)
		}
	}
	fail(breakerFailures - 1)
	b.done(now, unknown, nil, 0.5) // says nothing
	allowed(true)
	b.done(now, answered, nil, 0.5)
	fail(breakerFailures - 1)
	if allowed(true); b.isOpen() {
		t.Fatal("an answer did not count")
	}
	fail(1)
	if !b.isOpen() {
		t.Fatal("it is not open")
	}
	last := time.Duration(0)
	for range 4 {
		fail(3) // what was still under way does not put the next attempt off
		wait := allowed(false)
		if wait <= last {
			t.Fatalf("the next attempt is in %s, the one before was in %s", wait, last)
		}
		last = wait
		now = now.Add(wait - 1)
		allowed(false)
		now = now.Add(1)
		allowed(true)
		if again := allowed(false); again != breakerBackoff.Base {
			t.Fatalf("beside the attempt others look again in %s", again)
		}
		fail(1)
	}
	now = now.Add(time.Hour)
	allowed(true)
	b.done(now, unknown, nil, 0.5) // the one that tried was given up: another one tries
	allowed(true)
	b.done(now, answered, nil, 0.5)
	if b.isOpen() {
		t.Fatal("it is open after an answer")
	}
	allowed(true)
	fail(breakerFailures)
	if wait := allowed(false); wait > breakerBackoff.Base*3/2 {
		t.Fatalf("the first attempt of another outage is in %s", wait)
	}
}

// TestGateOrder lets requests in as they came, and loses no place when one gives up, also in the moment of its turn.
func TestGateOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2)
		ctx, cancel := context.WithCancelCause(t.Context())
		entered := make(chan int, 10)
		enter := func(ctx context.Context, n int) {
			if err := g.enter(ctx); err != nil {
				n = -n
				if !errors.Is(err, errStalled) {
					t.Errorf("it gave up with %v", err)
				}
			}
			entered <- n
		}
		next := func(want int) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-entered:
				if got != want {
					t.Fatalf("%d came, want %d", got, want)
				}
			default:
				if want != 0 {
					t.Fatalf("nobody came, want %d", want)
				}
			}
		}
		for n := 1; n <= 6; n++ {
			at := t.Context()
			if n == 4 || n == 5 {
				at = ctx
			}
			go enter(at, n)
			synctest.Wait()
		}
		next(1)
		next(2)
		next(0)
		g.leave(time.Now(), false, true)
		next(3)
		g.leave(time.Now(), false, false)
		next(4)
		cancel(errStalled)
		next(-5)
		next(0)
		g.leave(time.Now(), false, true)
		next(6)
		g.leave(time.Now(), false, true)
		g.leave(time.Now(), false, true)
		if g.inFlight != 0 || len(g.waiting) != 0 || g.bound() != 2 {
			t.Fatalf("%d in flight, %d wait, %d may be", g.inFlight, len(g.waiting), g.bound())
		}
		// The turn comes in the moment of giving up, which is then seen first or not: the place is there for another either way.
		for range 50 {
			ctx, cancel := context.WithCancelCause(t.Context())
			go enter(t.Context(), 1)
			go enter(t.Context(), 1)
			next(1)
			next(1)
			done := make(chan error)
			go func() { done <- g.enter(ctx) }()
			synctest.Wait()
			cancel(errStalled)
			g.leave(time.Now(), false, false)
			if err := <-done; err == nil {
				g.leave(time.Now(), false, false)
			}
			g.leave(time.Now(), false, false)
			if g.inFlight != 0 {
				t.Fatalf("%d places are lost", g.inFlight)
			}
		}
	})
}

// TestGateBound halves with refusals, once for those of a moment, never below two, and grows again up to what was configured.
func TestGateBound(t *testing.T) {
	g := newGate(16)
	now := time.Unix(1000, 0)
	refuse := func(after time.Duration, want int64) {
		t.Helper()
		now = now.Add(after)
		g.inFlight = 1
		if g.leave(now, true, false); g.bound() != want {
			t.Fatalf("%d requests may be in flight, want %d", g.bound(), want)
		}
	}
	refuse(0, 8)
	refuse(gateSettle-1, 8)
	refuse(1, 4)
	refuse(gateSettle, 2)
	refuse(gateSettle, 2)
	for n := range 10_000 {
		g.inFlight = 1
		if g.leave(now, false, true); n == 8 && g.bound() != 2 {
			t.Fatal("it grows too fast")
		}
	}
	if g.bound() != 16 {
		t.Fatalf("%d requests may be in flight after many good ones, want 16", g.bound())
	}
	if newGate(1).bound() != gateMin {
		t.Error("a bound of 1 would let a throttled store get none")
	}
}

// TestJoined reads two runs of bytes as one, at any place and in any pieces, as HTTP clients do.
func TestJoined(t *testing.T) {
	first, second := []byte("0123456789"), []byte("abcde")
	whole := string(first) + string(second)
	j := &joined{first: readerAt(first), firstBytes: 10, second: second}
	for at := range len(whole) + 2 {
		for n := range len(whole) + 3 {
			p := make([]byte, n)
			got, err := j.ReadAt(p, int64(at))
			want := whole[min(at, len(whole)):min(at+n, len(whole))]
			if string(p[:got]) != want || got < n && err == nil || got == n && err != nil {
				t.Errorf("%d bytes at %d: %q, %v, want %q", n, at, p[:got], err, want)
			}
		}
	}
	// A log that is shorter than it should be is an error, and what follows does not take its place.
	j.firstBytes = 12
	for _, n := range []int{1, 2, 5} {
		if got, err := j.ReadAt(make([]byte, n), 10); got != 0 || err == nil {
			t.Errorf("%d bytes behind the log's end: %d, %v", n, got, err)
		}
	}
	if got, err := j.ReadAt(make([]byte, 5), 8); got != 2 || err == nil {
		t.Errorf("bytes over the log's end: %d, %v", got, err)
	}
}

// readerAt gives what there is, and no error at the end, which an io.ReaderAt may.
type readerAt []byte

func (r readerAt) ReadAt(p []byte, at int64) (int, error) {
	n := copy(p, r[min(at, int64(len(r))):])
	if n < len(p) {
		return n, errors.New("the log ends")
	}
	return n, nil
}

// TestPartBytes are whole blocks, as many as configured, or as many as it takes to have few enough.
func TestPartBytes(t *testing.T) {
	m := &Manager{config: DefaultConfig()}
	for object, want := range map[int64]int64{
		1: 16 << 20, maxParts * (16 << 20): 16 << 20, maxParts*(16<<20) + 1: 17 << 20, maxParts * (17 << 20): 17 << 20,
	} {
		if got := m.partBytes(object); got != want {
			t.Errorf("an object of %d bytes has parts of %d, want %d", object, got, want)
		}
	}
}
