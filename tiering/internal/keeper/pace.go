package keeper

import (
	"context"
	"sync"
	"time"
)

const (
	// leastPace is the rate of copies beside producers, in bytes per second. A store gives a request a second for each MiB, so
	// it is enough for thirty at the same time.
	leastPace = 32 << 20
	// keepUp is how many times as much as is produced is copied at least, so that what waits becomes less.
	keepUp = 2
	// heardOf is for how long a node's word about its producers counts.
	heardOf = 2 * time.Second
)

// Pace makes the copies of an instance yield to the producers of the nodes that they are made from: beside them all copies
// together go at leastPace, or as fast as is needed to keep up. The zero value has heard of no producers. Its methods may be called from
// any goroutine.
type Pace struct {
	mu sync.Mutex
	// heardAt is when a node last told of producers, perSecond how much they produced.
	heardAt   time.Time
	perSecond int64
	// next is when the next bytes may be read.
	next time.Time
}

// heard notes how much is produced to a node; 0 says nothing of other nodes.
func (p *Pace) heard(now time.Time, perSecond int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if perSecond > 0 {
		p.heardAt, p.perSecond = now, perSecond
	}
}

// reserve gives how long bytes have to wait.
func (p *Pace) reserve(now time.Time, bytes int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heardAt.IsZero() || now.Sub(p.heardAt) > heardOf {
		p.next = now
		return 0
	}
	at := now
	if p.next.After(at) {
		at = p.next
	}
	rate := float64(max(leastPace, keepUp*p.perSecond))
	p.next = at.Add(time.Duration(float64(bytes) / rate * float64(time.Second)))
	return at.Sub(now)
}

// wait waits until bytes may be read.
func (p *Pace) wait(ctx context.Context, bytes int64) error {
	d := p.reserve(time.Now(), bytes)
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
