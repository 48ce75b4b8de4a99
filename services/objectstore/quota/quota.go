// Package quota bounds bytes per second as Kafka's quotas of remote storage do: the mean rate over the last windows is
// compared with the limit before something begins, and counted when it has begun. So one large segment is never refused,
// and what comes after it waits until the mean has come down.
//
// It owns the windows and the waiting. It must never know what is counted.
package quota

import (
	"context"
	"math"
	"sync"
	"time"
)

// Unlimited is the limit that lets everything pass, and Kafka's default.
const Unlimited = math.MaxInt64

// Rate is the mean of bytes per second over some windows. It is pure: time comes in.
type Rate struct {
	window  time.Duration
	samples []sample
	next    int
}

type sample struct {
	begin time.Time
	bytes int64
}

// NewRate makes a rate over num windows, the current one among them.
func NewRate(num int, window time.Duration) *Rate {
	return &Rate{window: max(window, time.Millisecond), samples: make([]sample, max(num, 1))}
}

// Record counts bytes.
func (r *Rate) Record(now time.Time, bytes int64) {
	current := &r.samples[r.next]
	if current.begin.IsZero() {
		current.begin = now
	}
	if now.Sub(current.begin) >= r.window {
		r.next = (r.next + 1) % len(r.samples)
		current = &r.samples[r.next]
		*current = sample{begin: now}
	}
	current.bytes += bytes
}

// PerSecond is the mean rate. Less than all but one of the windows count as that many, so that a first burst is not taken
// for a rate.
func (r *Rate) PerSecond(now time.Time) float64 {
	bytes, elapsed := r.total(now)
	return float64(bytes) / elapsed.Seconds()
}

func (r *Rate) total(now time.Time) (int64, time.Duration) {
	var bytes int64
	oldest := now
	for _, s := range r.samples {
		if s.begin.IsZero() || now.Sub(s.begin) >= time.Duration(len(r.samples))*r.window {
			continue
		}
		bytes += s.bytes
		if s.begin.Before(oldest) {
			oldest = s.begin
		}
	}
	least := time.Duration(max(1, len(r.samples)-1)) * r.window
	return bytes, max(now.Sub(oldest), least)
}

// Excess is how long nothing may be counted until the mean is at the limit again; 0 while it is not above it.
func (r *Rate) Excess(now time.Time, limit int64) time.Duration {
	bytes, elapsed := r.total(now)
	rate := float64(bytes) / elapsed.Seconds()
	if limit == Unlimited || rate <= float64(limit) {
		return 0
	}
	return max(time.Millisecond, time.Duration((rate-float64(limit))/float64(limit)*float64(elapsed)))
}

// Limiter makes those who move bytes wait. Its methods may be called from any goroutine.
type Limiter struct {
	mu    sync.Mutex
	limit int64
	rate  *Rate
	// changed is closed when the limit is changed, for those who wait.
	changed chan struct{}
	// waited is how long callers have waited in all.
	waited time.Duration
}

// NewLimiter makes a limiter of bytes per second over num windows.
func NewLimiter(limit int64, num int, window time.Duration) *Limiter {
	return &Limiter{limit: max(1, limit), rate: NewRate(num, window), changed: make(chan struct{})}
}

// SetLimit changes the limit, also for those who wait.
func (l *Limiter) SetLimit(limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit = max(1, limit); limit != l.limit {
		l.limit = limit
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// Wait waits until the rate lets something begin, and counts its bytes.
func (l *Limiter) Wait(ctx context.Context, bytes int64) error {
	for {
		now := time.Now()
		l.mu.Lock()
		wait := l.rate.Excess(now, l.limit)
		if wait == 0 {
			l.rate.Record(now, bytes)
			l.mu.Unlock()
			return nil
		}
		changed := l.changed
		l.mu.Unlock()
		timer := time.NewTimer(wait)
		var err error
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		l.mu.Lock()
		l.waited += time.Since(now)
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// ThrottleTime is how long something would have to wait now.
func (l *Limiter) ThrottleTime() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate.Excess(time.Now(), l.limit)
}

// Waited is how long callers have waited in all.
func (l *Limiter) Waited() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waited
}
