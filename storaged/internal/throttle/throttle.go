// Package throttle measures byte rates against bounds: the quotas of replication between nodes (KIP-73) and of moves between
// log directories (KIP-113).
//
// It owns the measuring only. It must never wait, nor decide what is left undone while a quota is used up: callers ask.
package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Unlimited is the bound of a quota that limits nothing.
const Unlimited int64 = math.MaxInt64

// Quota is a bound on a rate. The rate is that of the last few windows, so that a burst is paid back over time. Its methods
// may be called from any goroutine.
type Quota struct {
	window  time.Duration
	bound   atomic.Int64
	mu      sync.Mutex
	samples []sample
	// newest is the place of the sample that is being filled.
	newest int
	total  atomic.Int64
}

// sample is what was counted from a moment on, for one window.
type sample struct {
	begin time.Time
	bytes int64
}

// New makes a quota without a bound, which looks back over as many windows of a length.
func New(windows int, length time.Duration) *Quota {
	q := &Quota{window: max(length, time.Millisecond), samples: make([]sample, max(windows, 1))}
	q.bound.Store(Unlimited)
	return q
}

// SetBound changes the bound, in bytes per second.
func (q *Quota) SetBound(bytesPerSecond int64) { q.bound.Store(bytesPerSecond) }

// Bound is the bound in bytes per second.
func (q *Quota) Bound() int64 { return q.bound.Load() }

// Total is how many bytes were ever counted.
func (q *Quota) Total() int64 { return q.total.Load() }

// Record counts bytes.
func (q *Quota) Record(now time.Time, bytes int) {
	if bytes <= 0 {
		return
	}
	q.total.Add(int64(bytes))
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.samples[q.newest]
	if s.begin.IsZero() || now.Sub(s.begin) >= q.window {
		if !s.begin.IsZero() {
			q.newest = (q.newest + 1) % len(q.samples)
			s = &q.samples[q.newest]
		}
		*s = sample{begin: now}
	}
	s.bytes += int64(bytes)
}

// Exceeded says whether the rate is above the bound.
func (q *Quota) Exceeded(now time.Time) bool { return q.Wait(now) > 0 }

// Wait is how long nothing may be counted until the rate is within the bound again; 0 when it is. It is never more than one
// window, after which the oldest bytes may count no more.
func (q *Quota) Wait(now time.Time) time.Duration {
	bound := q.bound.Load()
	if bound == Unlimited {
		return 0
	}
	bytes, elapsed := q.measure(now)
	if float64(bytes) <= float64(bound)*elapsed.Seconds() {
		return 0
	}
	if bound <= 0 {
		return q.window
	}
	due := time.Duration((float64(bytes)/float64(bound) - elapsed.Seconds()) * float64(time.Second))
	return min(max(due, time.Millisecond), q.window)
}

// Rate is the present rate in bytes per second.
func (q *Quota) Rate(now time.Time) float64 {
	bytes, elapsed := q.measure(now)
	return float64(bytes) / elapsed.Seconds()
}

// measure gives the bytes of the windows that still count and over what time they were counted.
func (q *Quota) measure(now time.Time) (bytes int64, elapsed time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	elapsed = q.window
	horizon := q.window * time.Duration(len(q.samples))
	for i := range q.samples {
		s := &q.samples[i]
		if age := now.Sub(s.begin); !s.begin.IsZero() && age < horizon {
			bytes += s.bytes
			elapsed = max(elapsed, age)
		}
	}
	return bytes, elapsed
}
