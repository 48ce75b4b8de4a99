package objectstore

import "time"

// Backoff is how long a job waits before it tries again: Base doubles with each failure in a row up to Max, and a share of
// Jitter of it is left to chance so that jobs that failed together do not come back together. It is a value without a clock.
type Backoff struct {
	Base   time.Duration
	Max    time.Duration
	Jitter float64
}

// JobBackoff is for jobs that go on for ever, such as copying: 1 s to 60 s.
var JobBackoff = Backoff{Base: time.Second, Max: time.Minute, Jitter: 0.5}

// Delay is the wait after a number of failures in a row, the first of which is 1. random is a number in [0, 1).
func (b Backoff) Delay(failures int, random float64) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := b.Base
	for i := 1; i < failures && d < b.Max; i++ {
		d *= 2
	}
	d = min(d, b.Max)
	return d - time.Duration(b.Jitter*random*float64(d))
}
