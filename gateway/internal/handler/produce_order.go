package handler

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// The pause between attempts to find the leader of a partition, when the metadata does not change meanwhile.
const (
	minProduceRetry = 20 * time.Millisecond
	maxProduceRetry = 500 * time.Millisecond
)

// produceOrder keeps the produce requests of one connection in order.
//
// They run beside each other as long as all goes well: the storage nodes keep the order of the appends. When one of them must be
// sent again, those behind it must not overtake it, or an idempotent producer would be refused for a gap in its sequence. So
// from then on new requests wait; when all that are out have come back, one goroutine sends what is left, in the order in
// which the requests came, round after round, until nothing is left; then all is as before.
type produceOrder struct {
	mu       sync.Mutex
	sequence uint64
	// running is the number of requests that have been sent and have not come back.
	running int
	// waiting are the requests to be sent by the goroutine, which runs while retrying is set.
	waiting  []*produce
	retrying bool
}

// start sends a request, or queues it behind those that must be sent again.
func (o *produceOrder) start(p *produce) {
	o.mu.Lock()
	o.sequence++
	p.sequence = o.sequence
	if o.retrying || len(o.waiting) > 0 {
		o.waiting = append(o.waiting, p)
		o.mu.Unlock()
		return
	}
	o.running++
	o.mu.Unlock()
	p.settled = o.firstSettled
	p.attempt()
}

// firstSettled is called when the first attempt of a request has come back.
func (o *produceOrder) firstSettled(p *produce) {
	again := p.again(p.h.Now())
	o.mu.Lock()
	o.running--
	if again {
		o.waiting = append(o.waiting, p)
	}
	begin := o.running == 0 && len(o.waiting) > 0
	if begin {
		o.retrying = true
	}
	o.mu.Unlock()
	if !again {
		p.finish()
	}
	if begin {
		go o.retry()
	}
}

// take gives the requests that wait, in order, behind those that are left; when there are none, the goroutine ends.
func (o *produceOrder) take(left []*produce) []*produce {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := append(left, o.waiting...)
	o.waiting = nil
	if len(out) == 0 {
		o.retrying = false
	}
	slices.SortFunc(out, func(a, b *produce) int { return cmp.Compare(a.sequence, b.sequence) })
	return out
}

// retry is the goroutine.
func (o *produceOrder) retry() {
	pause := minProduceRetry
	var left []*produce
	for {
		queue := o.take(left)
		if len(queue) == 0 {
			return
		}
		if len(left) > 0 || queue[0].attempts > 0 {
			waitForChange(queue[0], pause)
			pause = min(2*pause, maxProduceRetry)
		}
		left = attemptAll(queue)
		if len(left) == 0 {
			pause = minProduceRetry
		}
	}
}

// waitForChange waits until the image is newer than at the last attempt of p, or for a while.
func waitForChange(p *produce, pause time.Duration) {
	ctx, cancel := context.WithTimeout(p.ctx, pause)
	defer cancel()
	// An error means that nothing has changed; then the node may have.
	_ = p.h.Await(ctx, p.imageOffset+1)
}

// attemptAll sends the requests in order, waits for all of them, answers those that are done and gives the rest.
func attemptAll(queue []*produce) []*produce {
	var wg sync.WaitGroup
	wg.Add(len(queue))
	for _, p := range queue {
		p.settled = func(*produce) { wg.Done() }
		p.attempt()
	}
	wg.Wait()
	var left []*produce
	for _, p := range queue {
		if p.again(p.h.Now()) {
			left = append(left, p)
		} else {
			p.finish()
		}
	}
	return left
}
