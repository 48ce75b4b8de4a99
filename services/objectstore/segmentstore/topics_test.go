package segmentstore

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// TestKeepTopics: what was counted for a topic goes with it, and counts again from nothing.
func TestKeepTopics(t *testing.T) {
	m := &Manager{metrics: &metrics{}}
	m.metrics.topics.add("a", "put", 10, 1)
	m.metrics.topics.add("a", "put", 10, 3)
	m.metrics.topics.add("b", "get", 5, 1)
	if got := *m.metrics.topics.counts[topicOp{"a", "put"}]; got != (topicCount{20, 4}) {
		t.Fatal(got)
	}
	m.KeepTopics(func(topic string) bool { return topic == "b" })
	if n := len(m.metrics.topics.counts); n != 1 {
		t.Fatal(n)
	}
}

// TestTopicCost: requests are told with what they cost, unless they cost nothing.
func TestTopicCost(t *testing.T) {
	for _, price := range []float64{0.25, 0} {
		reader := metric.NewManualReader()
		m := &Manager{config: Config{PutDollars: price, RequestConcurrency: 1}, gate: newGate(1)}
		var err error
		if m.metrics, err = newMetrics(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"), m); err != nil {
			t.Fatal(err)
		}
		m.metrics.topics.add("a", "put", 10, 3)
		m.metrics.topics.add("a", "get", 10, 5)
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		costs := 0.0
		for _, one := range all.ScopeMetrics[0].Metrics {
			if sum, ok := one.Data.(metricdata.Sum[float64]); ok && one.Name == "chancery_objectstore_topic_cost_dollars" {
				for _, p := range sum.DataPoints {
					costs += p.Value
				}
			}
		}
		if costs != 3*price {
			t.Errorf("three requests at %v cost %v", price, costs)
		}
	}
}
