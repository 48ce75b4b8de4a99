package quota_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/objectstore/quota"
)

// Over a minute, what passes is within a window's worth of the limit, whatever the sizes are.
func TestLimiterKeepsTheRate(t *testing.T) {
	for _, size := range []int64{100, 5_000, 70_000} {
		synctest.Test(t, func(t *testing.T) {
			const limit = 10_000
			l := quota.NewLimiter(limit, 11, time.Second)
			var mu sync.Mutex
			var moved int64
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for l.Wait(ctx, size) == nil {
						mu.Lock()
						moved += size
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if want := int64(limit * 60); moved < want*8/10 || moved > want+11*limit+3*size {
				t.Errorf("pieces of %d: %d bytes in a minute, want about %d", size, moved, want)
			}
		})
	}
}

// What takes longer than all windows counts as well: a large segment's copy may take minutes.
func TestLargePiecesKeepTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, size = 1000, 100_000
		l := quota.NewLimiter(limit, 11, time.Second)
		began, moved := time.Now(), int64(0)
		for time.Since(began) < 20*time.Minute {
			if err := l.Wait(t.Context(), size); err != nil {
				t.Fatal(err)
			}
			moved += size
			<-time.After(20 * time.Second)
		}
		want := int64(limit * time.Since(began).Seconds())
		if moved < want*8/10 || moved > want+11*limit+size {
			t.Errorf("%d bytes in %s, want about %d", moved, time.Since(began), want)
		}
	})
}

// A burst of all windows but one passes at once; what is beyond it waits until the limit has caught up, and a pause makes room
// for one burst, not for more.
func TestBurst(t *testing.T) {
	for name, tt := range map[string]struct {
		windows int
		burst   int64
	}{"eleven windows": {11, 10_000}, "one window": {1, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			l := quota.NewLimiter(1000, tt.windows, time.Second)
			pass := func(bytes int64, want time.Duration) {
				t.Helper()
				if got := l.ThrottleTime(); (got - want).Abs() > time.Millisecond {
					t.Errorf("%s: throttled for %s, want %s", name, got, want)
				}
				began := time.Now()
				if err := l.Wait(t.Context(), bytes); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began); (got - want).Abs() > 2*time.Millisecond {
					t.Errorf("%s: waited %s, want %s", name, got, want)
				}
			}
			for range 2 {
				pass(tt.burst, 0)
				pass(1000, 0) // what is just at the limit may begin
				pass(2000, time.Second)
				pass(500, 2*time.Second)
				<-time.After(time.Hour)
			}
			pass(tt.burst+1_000_000_000, 0)
			if got := l.ThrottleTime(); got != time.Hour {
				t.Errorf("%s: after an absurd piece it is looked again in %s, want an hour", name, got)
			}
		})
	}
}

// A limit of nothing is a byte in a second, which does not stop all for ever, and none is none.
func TestExtremeLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := quota.NewLimiter(quota.Unlimited, 11, time.Second)
		for range 3 {
			if err := free.Wait(t.Context(), 1<<62); err != nil || free.Waited() > 0 {
				t.Fatal(err, free.Waited())
			}
		}
		free.SetLimit(0)
		for name, l := range map[string]*quota.Limiter{"made": quota.NewLimiter(0, 11, time.Second), "set": free} {
			for range 2 {
				if err := l.Wait(t.Context(), 12); err != nil {
					t.Fatal(err)
				}
			}
			if l.Waited() != 2*time.Second {
				t.Errorf("%s: waited %s, want 2 s", name, l.Waited())
			}
		}
	})
}

// A new limit counts for those who wait as soon as it is there, and again for the next one; the same limit is none.
func TestLimiterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quota.NewLimiter(1, 11, time.Second)
		if err := l.Wait(t.Context(), 1_000_000); err != nil {
			t.Fatal(err)
		}
		if l.ThrottleTime() == 0 {
			t.Error("nothing is throttled after a large piece")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second piece: %v", err)
		}
		done := make(chan error, 1)
		go func() { done <- l.Wait(t.Context(), 1) }()
		synctest.Wait()
		l.SetLimit(1)
		l.SetLimit(10) // a hundred thousand seconds
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("a piece has passed at once: %v", err)
		default:
		}
		l.SetLimit(quota.Unlimited)
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Fatal("a piece waits without a limit")
		}
		if l.Waited() != time.Second {
			t.Errorf("waited %s, want a second", l.Waited())
		}
	})
}
