package telemetry

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// Durations fall into buckets whose bounds are powers of two of a microsecond: 1 us to 2^26 us, which is 67 s.
	histogramBuckets = 27
	// cacheLine keeps counters that different processors write apart.
	cacheLine = 64
)

// Histogram counts durations in fixed buckets. Observe takes about as long as two atomic additions and never allocates, so
// it may stand on the way of every request. It is a Prometheus collector of seconds.
type Histogram struct {
	desc *prometheus.Desc
	// shards spread the writers; each sum of them is exact.
	shards []histogramShard
}

type histogramShard struct {
	counts   [histogramBuckets + 1]atomic.Uint64
	sumNanos atomic.Int64
	_        [cacheLine]byte
}

var _ prometheus.Collector = (*Histogram)(nil)

// NewHistogram makes a histogram; labels are constant, one Histogram for each combination of them.
func NewHistogram(name, help string, labels map[string]string) *Histogram {
	return &Histogram{
		desc:   prometheus.NewDesc(name, help, nil, labels),
		shards: make([]histogramShard, max(1, min(8, runtime.GOMAXPROCS(0)))),
	}
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	d = max(0, d)
	// The low bits of a duration are as good as random, which is all that choosing a shard needs.
	s := &h.shards[uint64(d)%uint64(len(h.shards))]
	s.counts[bucketOf(d)].Add(1)
	s.sumNanos.Add(int64(d))
}

// bucketOf is the index of the smallest bucket that a duration fits in.
func bucketOf(d time.Duration) int {
	micros := uint64((d + time.Microsecond - 1) / time.Microsecond)
	if micros <= 1 {
		return 0
	}
	return min(bits.Len64(micros-1), histogramBuckets)
}

// bound is the upper bound of a bucket in seconds.
func bound(bucket int) float64 { return float64(uint64(1)<<bucket) / 1e6 }

// Describe is part of prometheus.Collector.
func (h *Histogram) Describe(descs chan<- *prometheus.Desc) { descs <- h.desc }

// Collect is part of prometheus.Collector.
func (h *Histogram) Collect(metrics chan<- prometheus.Metric) {
	count, sum, buckets := h.snapshot()
	metrics <- prometheus.MustNewConstHistogram(h.desc, count, sum, buckets)
}

// snapshot sums the shards up; buckets are cumulative. Counts are read bucket by bucket while others write, so count is
// what the buckets add up to, which a reader of Prometheus's format relies on.
func (h *Histogram) snapshot() (count uint64, sumSeconds float64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, histogramBuckets)
	for b := range histogramBuckets + 1 {
		for i := range h.shards {
			count += h.shards[i].counts[b].Load()
		}
		if b < histogramBuckets {
			buckets[bound(b)] = count
		}
	}
	for i := range h.shards {
		sumSeconds += float64(h.shards[i].sumNanos.Load()) / 1e9
	}
	return count, sumSeconds, buckets
}
