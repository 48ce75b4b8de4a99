package main

import (
	"maps"
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
	// steps are the latencies of parts of a request that are of interest by themselves, by their names.
	steps map[string][]time.Duration
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

// step notes the latency of a part of a request.
func (t *tally) step(name string, d time.Duration) {
	if !t.counting.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = map[string][]time.Duration{}
	}
	t.steps[name] = append(t.steps[name], d)
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

// quantile of the requests' latencies. It sorts in place; it is for the end of a run.
func (t *tally) quantile(q float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return quantile(t.latencies, q)
}

// stepNames are the names of the parts, in order.
func (t *tally) stepNames() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.steps))
}

// stepQuantile is quantile for a part.
func (t *tally) stepQuantile(name string, q float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return quantile(t.steps[name], q)
}

func quantile(latencies []time.Duration, q float64) time.Duration {
	if len(latencies) == 0 {
		return 0
	}
	slices.Sort(latencies)
	return latencies[int(q*float64(len(latencies)-1))]
}
