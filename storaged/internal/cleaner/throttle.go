package cleaner

import (
	"context"
	"sync"
	"time"
)

// throttle bounds the bytes per second that all threads together read and write. An unlimited one costs nothing.
type throttle struct {
	mu sync.Mutex
	// bytesPerSecond is log.cleaner.io.max.bytes.per.second.
	bytesPerSecond float64
	// free is when what has been spent is paid for.
	free time.Time
}

// saved is how much time without work may be made up for at once.
const saved = 300 * time.Millisecond

func (t *throttle) set(bytesPerSecond float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytesPerSecond = bytesPerSecond
}

// spend takes bytes from the budget and waits until they are paid for.
func (t *throttle) spend(ctx context.Context, bytes int64) error {
	wait := t.take(bytes, time.Now())
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *throttle) take(bytes int64, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	seconds := float64(bytes) / max(1, t.bytesPerSecond)
	if seconds < 1e-9 {
		return 0
	}
	if earliest := now.Add(-saved); t.free.Before(earliest) {
		t.free = earliest
	}
	t.free = t.free.Add(time.Duration(min(seconds, 3600) * float64(time.Second)))
	return t.free.Sub(now)
}
