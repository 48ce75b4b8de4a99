package segmentstore

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"chancery/services/objectstore"
)

// metrics are the instruments of a manager; the package's documentation lists them.
type metrics struct {
	requests, retries, throttles, crcFailures metric.Int64Counter
	bytes                                     metric.Int64Counter
	topics                                    topics
	first, total                              metric.Float64Histogram
	gauges                                    metric.Registration
}

// latencyBounds are the bounds of the histograms, in seconds.
var latencyBounds = []float64{.001, .0025, .005, .01, .02, .035, .05, .075, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60}

func newMetrics(meter metric.Meter, m *Manager) (*metrics, error) {
	x := &metrics{}
	var errs []error
	for _, c := range []struct {
		counter    *metric.Int64Counter
		name, text string
	}{
		{&x.requests, "requests", "Requests to the object store."},
		{&x.retries, "retries", "Requests that were made again."},
		{&x.throttles, "throttles", "Answers that asked for fewer requests."},
		{&x.crcFailures, "crc_failures", "Checksums that were wrong."},
		{&x.bytes, "bytes", "Bytes of the bodies of requests and answers."},
	} {
		var err error
		*c.counter, err = meter.Int64Counter("chancery_objectstore_"+c.name, metric.WithDescription(c.text))
		errs = append(errs, err)
	}
	for _, h := range []struct {
		histogram  *metric.Float64Histogram
		name, text string
	}{
		{&x.first, "first_byte", "Time until the object store began to answer."},
		{&x.total, "request", "Time until the end of a request."},
	} {
		var err error
		*h.histogram, err = meter.Float64Histogram("chancery_objectstore_"+h.name, metric.WithUnit("s"), metric.WithDescription(h.text),
			metric.WithExplicitBucketBoundaries(latencyBounds...))
		errs = append(errs, err)
	}
	limit, err := meter.Int64ObservableGauge("chancery_objectstore_request_limit", metric.WithDescription("How many requests may be in flight."))
	errs = append(errs, err)
	away, err := meter.Int64ObservableGauge("chancery_objectstore_unavailable", metric.WithDescription("Whether the object store is taken to be away."))
	errs = append(errs, err)
	topicBytes, err := meter.Int64ObservableCounter("chancery_objectstore_topic_bytes", metric.WithDescription("Bytes copied and read, by topic."))
	errs = append(errs, err)
	topicRequests, err := meter.Int64ObservableCounter("chancery_objectstore_topic_requests", metric.WithDescription("Requests that copied and read, by topic."))
	errs = append(errs, err)
	topicCost, err := meter.Float64ObservableCounter("chancery_objectstore_topic_cost_dollars", metric.WithDescription("What requests that copied and read cost, by topic."))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	prices := map[string]float64{"put": m.config.PutDollars, "get": m.config.GetDollars}
	x.gauges, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(limit, m.gate.bound())
		open := int64(0)
		if m.breaker.isOpen() {
			open = 1
		}
		o.ObserveInt64(away, open)
		x.topics.observe(o, topicBytes, topicRequests, topicCost, prices)
		return nil
	}, limit, away, topicBytes, topicRequests, topicCost)
	return x, err
}

func (x *metrics) close() error { return x.gauges.Unregister() }

func opOf(op string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("op", op)))
}

func (x *metrics) requested(ctx context.Context, op string, err error, took time.Duration) {
	result := "ok"
	if err != nil {
		result = objectstore.KindName(err)
	}
	x.requests.Add(ctx, 1, metric.WithAttributes(attribute.String("op", op), attribute.String("result", result)))
	x.total.Record(ctx, took.Seconds(), opOf(op))
	if errors.Is(err, objectstore.ErrThrottled) {
		x.throttles.Add(ctx, 1, opOf(op))
	}
}

func (x *metrics) retried(ctx context.Context, op string) { x.retries.Add(ctx, 1, opOf(op)) }

func (x *metrics) firstByte(ctx context.Context, op string, took time.Duration) {
	x.first.Record(ctx, took.Seconds(), opOf(op))
}

func (x *metrics) crcFailed(ctx context.Context, where string) {
	x.crcFailures.Add(ctx, 1, metric.WithAttributes(attribute.String("where", where)))
}

func (x *metrics) moved(ctx context.Context, op string, bytes int64) {
	x.bytes.Add(ctx, bytes, opOf(op))
}

// topics counts by topic and operation.
type topics struct {
	mu     sync.Mutex
	counts map[topicOp]*topicCount
}

type topicOp struct{ topic, op string }

type topicCount struct{ bytes, requests int64 }

func (t *topics) add(topic, op string, bytes, requests int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts[topicOp{topic, op}]
	if c == nil {
		if t.counts == nil {
			t.counts = map[topicOp]*topicCount{}
		}
		c = &topicCount{}
		t.counts[topicOp{topic, op}] = c
	}
	c.bytes += bytes
	c.requests += requests
}

// observe tells the counts, and what the requests cost at prices by operation, if they cost anything.
func (t *topics) observe(to metric.Observer, bytes, requests metric.Int64Observable, cost metric.Float64Observable, prices map[string]float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for of, c := range t.counts {
		set := metric.WithAttributeSet(attribute.NewSet(attribute.String("op", of.op), attribute.String("topic", of.topic)))
		to.ObserveInt64(bytes, c.bytes, set)
		to.ObserveInt64(requests, c.requests, set)
		if price := prices[of.op]; price > 0 {
			to.ObserveFloat64(cost, price*float64(c.requests), set)
		}
	}
}

// KeepTopics drops what was counted for topics that are not wanted any more.
func (m *Manager) KeepTopics(wanted func(topic string) bool) {
	t := &m.metrics.topics
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.counts, func(of topicOp, _ *topicCount) bool { return !wanted(of.topic) })
}
