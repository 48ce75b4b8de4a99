package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// tally is what a load counts. Latencies are kept while counting is on.
type tally struct {
	bytes, requests, failures atomic.Int64
	counting                  atomic.Bool
	failureCode               atomic.Int32

	mu        sync.Mutex
	latencies []time.Duration
}

func (t *tally) request(latency time.Duration) {
	t.requests.Add(1)
	t.latency(latency)
}

func (t *tally) latency(d time.Duration) {
	if !t.counting.Load() {
		return
	}
	t.mu.Lock()
	t.latencies = append(t.latencies, d)
	t.mu.Unlock()
}

// failed notes an error code of a partition.
func (t *tally) failed(code int16) {
	t.failureCode.CompareAndSwap(0, int32(code))
	t.failures.Add(1)
}

func (t *tally) firstFailure() string {
	if err := kerr.ErrorForCode(int16(t.failureCode.Load())); err != nil {
		return err.Error()
	}
	return "none"
}

// quantile sorts in place; it is for the end of a run.
func (t *tally) quantile(q float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.latencies) == 0 {
		return 0
	}
	slices.Sort(t.latencies)
	return t.latencies[int(q*float64(len(t.latencies)-1))]
}
