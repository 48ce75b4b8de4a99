package pacer

import (
	"context"
	"sync"
	"time"
)

// Pacer makes cold reads wait. Its methods may be called from any goroutine.
type Pacer struct {
	now func() time.Time

	mu       sync.Mutex
	governor Governor
	stats    Stats
}

// Stats are what a pacer has done.
type Stats struct {
	// Limit is the present rate in bytes per second; 0 while there is none.
	Limit float64
	// Passed counts bytes, Waited the time of reads, Refused the reads whose time was over before their turn.
	Passed  int64
	Waited  time.Duration
	Refused int64
}

// New makes a pacer.
func New(now func() time.Time) *Pacer { return &Pacer{now: now} }

// Produced notes a produce request that arrived at a time and ends now.
func (p *Pacer) Produced(arrived time.Time) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.governor.Produced(now, now.Sub(arrived))
}

// Wait waits until cold bytes may pass, and says how many, up to those asked for. It gives 0 after the longest wait, and when
// the context ends. What has passed then is told with Settle.
func (p *Pacer) Wait(ctx context.Context, bytes int, most time.Duration) (granted int) {
	p.mu.Lock()
	granted, wait := p.governor.Reserve(p.now(), bytes, most)
	p.stats.Waited += wait
	if granted == 0 && bytes > 0 {
		p.stats.Refused++
	}
	p.mu.Unlock()
	if wait <= 0 {
		return granted
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return granted
	case <-ctx.Done():
		p.Settle(granted, 0)
		return 0
	}
}

// Settle tells how many of the granted bytes have passed, or how many more.
func (p *Pacer) Settle(granted, passed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.governor.Settle(p.now(), granted, passed)
	p.stats.Passed += int64(passed)
}

// Stats are the numbers of now.
func (p *Pacer) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Limit = p.governor.Limit(p.now())
	return s
}
