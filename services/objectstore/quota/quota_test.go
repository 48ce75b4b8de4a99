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
		done := make(chan error)
		go func() { done <- l.Wait(t.Context(), 1) }()
		synctest.Wait()
		l.SetLimit(quota.Unlimited)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if l.Waited() < time.Second {
			t.Errorf("waited %s, want a second", l.Waited())
		}
	})
}
