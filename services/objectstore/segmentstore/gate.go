package segmentstore

import (
	"context"
	"sync"
	"time"
)

// gate bounds how many requests are in flight. A store that throttles halves the bound, and each success raises it a
// little, so that the rate settles at what the store takes.
type gate struct {
	mu       sync.Mutex
	max      float64
	limit    float64
	inFlight int
	waiting  []chan struct{}
	// lowered is when the bound was last halved: requests that were in flight then will be refused too, and must not halve
	// it again.
	lowered time.Time
}

const (
	gateMin = 2
	// gateSettle is how long after a halving further refusals say nothing new.
	gateSettle = 200 * time.Millisecond
	// gateGrowth is how many rounds of good requests it takes to raise the bound by one. A store needs seconds to minutes to
	// take more than before.
	gateGrowth = 8
)

func newGate(limit int) *gate {
	limit = max(limit, gateMin)
	return &gate{max: float64(limit), limit: float64(limit)}
}

// enter waits for a place, in the order of the calls.
func (g *gate) enter(ctx context.Context) error {
	g.mu.Lock()
	if len(g.waiting) == 0 && float64(g.inFlight) < g.limit {
		g.inFlight++
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	g.waiting = append(g.waiting, turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, w := range g.waiting {
		if w == turn {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return context.Cause(ctx)
		}
	}
	// The place came in the same moment: it goes to the next.
	g.inFlight--
	g.admit()
	return context.Cause(ctx)
}

// leave gives the place back, and says how the request ended.
func (g *gate) leave(now time.Time, throttled, succeeded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	switch {
	case throttled && now.Sub(g.lowered) >= gateSettle:
		g.limit = max(gateMin, g.limit/2)
		g.lowered = now
	case succeeded:
		g.limit = min(g.max, g.limit+1/(gateGrowth*g.limit))
	}
	g.admit()
}

func (g *gate) admit() {
	for len(g.waiting) > 0 && float64(g.inFlight) < g.limit {
		close(g.waiting[0])
		g.waiting = g.waiting[1:]
		g.inFlight++
	}
}

// bound is how many requests may be in flight now.
func (g *gate) bound() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(g.limit)
}
