package segmentstore

import (
	"sync"
	"time"

	"chancery/services/objectstore"
)

// breakerFailures in a row say that the store is away.
const breakerFailures = 8

// breakerBackoff is how long nobody asks a store that is away, before one request tries.
var breakerBackoff = objectstore.Backoff{Base: 500 * time.Millisecond, Max: 15 * time.Second, Jitter: 0.5}

// breaker keeps requests from a store that is away: they fail at once, and one at a time tries whether it is back. Any
// answer of the store, also a refusal, says that it is there.
type breaker struct {
	mu       sync.Mutex
	failures int
	rounds   int
	until    time.Time
	probing  bool
	// last is why the store was last taken to be away.
	last error
}

// allow says whether a request may go out, and otherwise when to ask again.
func (b *breaker) allow(now time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < breakerFailures {
		return 0, true
	}
	if now.Before(b.until) {
		return b.until.Sub(now), false
	}
	if b.probing {
		return breakerBackoff.Base, false
	}
	b.probing = true
	return 0, true
}

// outcome of a request for the breaker.
type outcome int

const (
	answered outcome = iota
	unreachable
	// unknown says nothing about the store, such as when the caller has given up.
	unknown
)

func (b *breaker) done(now time.Time, o outcome, err error, random float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasProbe := b.probing
	b.probing = false
	switch o {
	case answered:
		b.failures, b.rounds, b.last = 0, 0, nil
	case unreachable:
		b.failures++
		b.last = err
		if b.failures == breakerFailures || b.failures > breakerFailures && wasProbe {
			b.rounds++
			b.until = now.Add(breakerBackoff.Delay(b.rounds, random))
		}
	}
}

// reason is why the store was last taken to be away; nil for no reason.
func (b *breaker) reason() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// isOpen says whether requests are kept back.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures >= breakerFailures
}
