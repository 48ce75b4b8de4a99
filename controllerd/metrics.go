package controllerd

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/metadata"

	"chancery/controllerd/internal/controller"
	"chancery/controllerd/internal/feed"
)

// metrics are shown when they are asked for, with Kafka's names of them.
type metrics struct {
	server *Server
	counts *controller.Metrics
	made   []metric.Observable
	errs   []error
	meter  metric.Meter
	// observers write down the values of one moment.
	observers []func(metric.Observer, moment)
}

// moment is what the values of one moment are read from.
type moment struct {
	state  feed.State
	active bool
	now    time.Time
	counts partitionCounts
}

// partitionCounts are the metrics that look at every partition.
type partitionCounts struct {
	topics, partitions, offline, imbalanced int64
}

func countPartitions(image *metadata.Image) partitionCounts {
	c := partitionCounts{topics: int64(image.TopicCount())}
	for t := range image.Topics() {
		c.partitions += int64(len(t.Partitions))
		for _, p := range t.Partitions {
			if p.Leader == metadata.NoLeader {
				c.offline++
			}
			if len(p.Replicas) > 0 && p.Leader != p.Replicas[0] {
				c.imbalanced++
			}
		}
	}
	return c
}

// registerMetrics makes a controller's metrics.
func registerMetrics(meter metric.Meter, registry prometheus.Registerer, s *Server) (metric.Registration, error) {
	m := &metrics{server: s, counts: s.service.Controller.Metrics, meter: meter}
	for _, h := range []prometheus.Collector{m.counts.QueueTime, m.counts.ProcessingTime} {
		m.errs = append(m.errs, registry.Register(h))
	}
	m.addCounters()
	m.addClusterGauges()
	m.addLogGauges()
	if err := errors.Join(m.errs...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		at := moment{state: s.feed.State(), active: s.Active(), now: time.Now()}
		at.counts = countPartitions(at.state.Image)
		for _, observe := range m.observers {
			observe(o, at)
		}
		return nil
	}, m.made...)
}

func (m *metrics) gauge(name, description string, value func(moment) int64) {
	g, err := m.meter.Int64ObservableGauge("chancery_controller_"+name, metric.WithDescription(description))
	m.errs = append(m.errs, err)
	m.made = append(m.made, g)
	m.observers = append(m.observers, func(o metric.Observer, at moment) { o.ObserveInt64(g, value(at)) })
}

func (m *metrics) addCounters() {
	for name, c := range map[string]struct {
		description string
		value       func() int64
	}{
		"unclean_leader_elections":                {"Leaders elected out of the ISR.", m.counts.UncleanElections.Load},
		"elections_from_eligible_leader_replicas": {"Leaders elected from the eligible leader replicas.", m.counts.ELRElections.Load},
		"timed_out_broker_heartbeats":             {"Members fenced or forgotten for their silence.", m.counts.TimedOutMembers.Load},
		"new_active_controllers":                  {"Times that this controller became the active one.", m.counts.Terms.Load},
		"event_queue_operations_started":          {"Requests that were decided.", m.counts.Operations.Load},
		"metadata_errors":                         {"Decisions that broke off.", m.counts.FailedOperations.Load},
	} {
		counter, err := m.meter.Int64ObservableCounter("chancery_controller_"+name, metric.WithDescription(c.description))
		m.errs = append(m.errs, err)
		m.made = append(m.made, counter)
		m.observers = append(m.observers, func(o metric.Observer, _ moment) { o.ObserveInt64(counter, c.value()) })
	}
}

func (m *metrics) addClusterGauges() {
	m.gauge("active_controller_count", "1 in the active controller, 0 in the others.", func(at moment) int64 {
		if at.active {
			return 1
		}
		return 0
	})
	brokers := func(counts func(*metadata.Broker) bool) func(moment) int64 {
		return func(at moment) (n int64) {
			for _, b := range at.state.Image.Brokers() {
				if counts(b) {
					n++
				}
			}
			return n
		}
	}
	m.gauge("fenced_broker_count", "Storage nodes that are fenced.", brokers(func(b *metadata.Broker) bool { return b.Fenced }))
	m.gauge("active_broker_count", "Storage nodes that are not fenced.", brokers(func(b *metadata.Broker) bool { return !b.Fenced }))
	m.gauge("controlled_shutdown_broker_count", "Storage nodes that are about to stop.",
		brokers(func(b *metadata.Broker) bool { return b.InControlledShutdown && !b.Fenced }))
	m.gauge("global_topic_count", "Topics.", func(at moment) int64 { return at.counts.topics })
	m.gauge("global_partition_count", "Partitions.", func(at moment) int64 { return at.counts.partitions })
	m.gauge("offline_partitions_count", "Partitions without a leader.", func(at moment) int64 { return at.counts.offline })
	m.gauge("preferred_replica_imbalance_count", "Partitions whose leader is not the preferred replica.",
		func(at moment) int64 { return at.counts.imbalanced })
	levels, err := m.meter.Int64ObservableGauge("chancery_controller_finalized_level", metric.WithDescription("Level of a feature."))
	m.errs, m.made = append(m.errs, err), append(m.made, levels)
	m.observers = append(m.observers, func(o metric.Observer, at moment) {
		for name, level := range at.state.Image.Features() {
			o.ObserveInt64(levels, int64(level), metric.WithAttributes(attribute.String("feature", name)))
		}
	})
}

func (m *metrics) addLogGauges() {
	m.gauge("last_applied_record_offset", "Offset of the last record in the image.", func(at moment) int64 { return at.state.Image.Offset() })
	m.gauge("last_committed_record_offset", "Offset of the last durable record.", func(at moment) int64 { return at.state.Next - 1 })
	m.gauge("last_applied_record_timestamp", "Time of the last record, in milliseconds since 1970.", func(at moment) int64 { return at.state.TimestampMs })
	m.gauge("last_applied_record_lag_ms", "Age of the last record in a controller that is not active.", func(at moment) int64 {
		if at.active || at.state.TimestampMs == 0 {
			return 0
		}
		return max(at.now.UnixMilli()-at.state.TimestampMs, 0)
	})
	m.gauge("current_leader", "Id of the active controller, -1 for none.", func(at moment) int64 {
		if at.state.Holder.Epoch == 0 {
			return -1
		}
		return int64(at.state.Holder.ID)
	})
	m.gauge("current_epoch", "Epoch of the active controller.", func(at moment) int64 { return int64(at.state.Holder.Epoch) })
	m.gauge("metadata_observer_count", "Storage nodes that follow the metadata log.", func(moment) (n int64) {
		for who := range m.server.service.Acks.All() {
			if who.Kind == controllerv1.ServiceKind_SERVICE_KIND_STORAGE {
				n++
			}
		}
		return n
	})
}
