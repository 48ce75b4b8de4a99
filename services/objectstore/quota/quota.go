// Package quota bounds bytes per second as Kafka's quotas of remote storage are meant to: something may begin while not more
// has passed than the limit allows, and its bytes are counted when it has begun. So one large segment is never refused, and
// what comes after it waits until the limit has caught up with it.
//
// It owns the count and the waiting. It must never know what is counted.
//
// Apache Kafka compares the mean of the last windows, eleven seconds as a rule, and forgets what began before: copies of large
// segments that take longer than that are not held back at all. Here nothing is forgotten that the limit has not let pass, and
// the windows are how large a burst may be.
package quota

import (
	"context"
	"math"
	"sync"
	"time"
)

// Unlimited is the limit that lets everything pass, and Kafka's default.
const Unlimited = math.MaxInt64

// maxWait bounds how long somebody waits before looking again.
const maxWait = time.Hour

// Limiter makes those who move bytes wait. Its methods may be called from any goroutine.
type Limiter struct {
	burst time.Duration

	mu    sync.Mutex
	limit int64
	// ahead is how many bytes had passed at a time beyond what the limit allowed until then.
	ahead float64
	at    time.Time
	// changed is closed when the limit is changed, for those who wait.
	changed chan struct{}
	// waited is how long callers have waited in all.
	waited time.Duration
}

// NewLimiter makes a limiter of bytes per second. All windows but the current one are how much may pass at once.
func NewLimiter(limit int64, num int, window time.Duration) *Limiter {
	return &Limiter{limit: max(1, limit), burst: time.Duration(max(1, num-1)) * window, changed: make(chan struct{})}
}

// SetLimit changes the limit, also for those who wait.
func (l *Limiter) SetLimit(limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit = max(1, limit); limit != l.limit {
		l.drain(time.Now())
		l.limit = limit
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// drain takes away what the limit has let pass: everything without one. The caller holds the lock.
func (l *Limiter) drain(now time.Time) {
	l.ahead = max(0, l.ahead-float64(l.limit)*now.Sub(l.at).Seconds())
	if l.limit == Unlimited {
		l.ahead = 0
	}
	l.at = now
}

// excess is how long nothing may begin; 0 when it may now. The caller holds the lock.
func (l *Limiter) excess(now time.Time) time.Duration {
	l.drain(now)
	seconds := l.ahead/float64(l.limit) - l.burst.Seconds()
	if seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds*float64(time.Second), float64(maxWait)))
}

// Wait waits until something may begin, and counts its bytes.
func (l *Limiter) Wait(ctx context.Context, bytes int64) error {
	for {
		now := time.Now()
		l.mu.Lock()
		wait := l.excess(now)
		if wait == 0 {
			l.ahead += float64(bytes)
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
	return l.excess(time.Now())
}

// Waited is how long callers have waited in all.
func (l *Limiter) Waited() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waited
}
