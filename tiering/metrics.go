package tiering

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"chancery/tiering/internal/keeper"
)

// metrics shows what the instance counts when it is asked for.
type metrics struct {
	server       *Server
	registration metric.Registration
	made         []metric.Observable

	registered, offset, shards, idle, queue, readersIdle metric.Int64ObservableGauge
	totals                                               []total
	lags                                                 []lagGauge
}

// total is a counter of a topic.
type total struct {
	instrument metric.Int64ObservableCounter
	value      func(*keeper.Counters) *atomic.Int64
}

// lagGauge is a gauge of a partition.
type lagGauge struct {
	instrument metric.Int64ObservableGauge
	value      func(*keeper.Lag) int64
	// reason says that the gauge has the reason of the lag as an attribute.
	reason bool
}

func newMetrics(meter metric.Meter, s *Server) (*metrics, error) {
	m := &metrics{server: s}
	var errs []error
	gauge := func(name, help string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, metric.WithDescription(help))
		errs, m.made = append(errs, err), append(m.made, g)
		return g
	}
	m.registered = gauge("chancery_tiering_registered", "Whether the controller counts this instance as a member.")
	m.offset = gauge("chancery_tiering_metadata_offset", "Last metadata offset applied.")
	if s.settings.enabled {
		m.shards = gauge("chancery_tiering_shards", "Shards of this instance by state.")
		m.idle = gauge("remote_log_manager_tasks_avg_idle_percent", "Share of the places for passes that are free.")
		m.readersIdle = gauge("remote_log_reader_avg_idle_percent", "Share of the places for reads that are free.")
		m.queue = gauge("remote_log_reader_task_queue_size", "Reads that wait for a place.")
		counter := func(name, help string, value func(*keeper.Counters) *atomic.Int64) {
			c, err := meter.Int64ObservableCounter(name, metric.WithDescription(help))
			errs, m.made = append(errs, err), append(m.made, c)
			m.totals = append(m.totals, total{c, value})
		}
		type topic = keeper.Counters
		counter("remote_copy_bytes", "Bytes of segments copied to the store.", func(t *topic) *atomic.Int64 { return &t.CopyBytes })
		counter("remote_copy_requests", "Segments copied to the store.", func(t *topic) *atomic.Int64 { return &t.Copies })
		counter("remote_copy_errors", "Copies that failed.", func(t *topic) *atomic.Int64 { return &t.CopyErrors })
		counter("remote_fetch_bytes", "Bytes read from the remote tier.", func(t *topic) *atomic.Int64 { return &t.FetchBytes })
		counter("remote_fetch_requests", "Reads from the remote tier.", func(t *topic) *atomic.Int64 { return &t.Fetches })
		counter("remote_fetch_errors", "Reads from the remote tier that failed.", func(t *topic) *atomic.Int64 { return &t.FetchErrors })
		counter("remote_delete_requests", "Segments whose deletion was asked of the store.", func(t *topic) *atomic.Int64 { return &t.Deletes })
		counter("remote_delete_errors", "Deletions that failed.", func(t *topic) *atomic.Int64 { return &t.DeleteErrors })
		counter("chancery_tiering_expired_segments", "Remote segments that retention has ended.", func(t *topic) *atomic.Int64 { return &t.Expired })
		lag := func(name, help string, reason bool, value func(*keeper.Lag) int64) {
			m.lags = append(m.lags, lagGauge{gauge(name, help), value, reason})
		}
		lag("remote_copy_lag_bytes", "Bytes of closed segments that are not remote yet.", true, func(l *keeper.Lag) int64 { return l.CopyBytes })
		lag("remote_copy_lag_segments", "Closed segments that are not remote yet.", true, func(l *keeper.Lag) int64 { return l.CopySegments })
		lag("remote_delete_lag_bytes", "Bytes of segments whose deletion has begun.", false, func(l *keeper.Lag) int64 { return l.DeleteBytes })
		lag("remote_delete_lag_segments", "Segments whose deletion has begun.", false, func(l *keeper.Lag) int64 { return l.DeleteSegments })
		lag("remote_log_size_bytes", "Bytes in the remote tier.", false, func(l *keeper.Lag) int64 { return l.SizeBytes })
		lag("remote_log_metadata_count", "Segments that the metadata knows.", false, func(l *keeper.Lag) int64 { return l.KnownSegments })
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	m.registration, err = meter.RegisterCallback(m.observe, m.made...)
	return m, err
}

func (m *metrics) close() error { return m.registration.Unregister() }

func (m *metrics) observe(_ context.Context, to metric.Observer) error {
	s := m.server
	isMember := int64(0)
	if s.member.Ready() == nil {
		isMember = 1
	}
	to.ObserveInt64(m.registered, isMember)
	to.ObserveInt64(m.offset, s.deps.Metadata.Image().Offset())
	if !s.settings.enabled {
		return nil
	}
	to.ObserveInt64(m.readersIdle, s.settings.limits.readers.idlePercent())
	to.ObserveInt64(m.queue, s.reads.waiting.Load())
	serving := int64(len(s.serving()))
	to.ObserveInt64(m.shards, serving, metric.WithAttributes(attribute.String("state", "serving")))
	to.ObserveInt64(m.shards, max(0, int64(len(s.shards.All()))-serving), metric.WithAttributes(attribute.String("state", "loading")))
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, counters := range s.env.Metrics.Keep(s.wantedTopics()) {
		for _, t := range m.totals {
			to.ObserveInt64(t.instrument, t.value(counters).Load(), metric.WithAttributes(attribute.String("topic", topic)))
		}
	}
	passes := s.settings.limits.passes.Load()
	to.ObserveInt64(m.idle, max(0, 100*(passes-int64(s.running))/passes))
	for p, t := range s.tasks {
		if t.running && t.lag == (keeper.Lag{}) {
			continue // the first pass has not told yet
		}
		at := []attribute.KeyValue{attribute.String("topic", t.topic), attribute.Int("partition", int(p.Partition))}
		for _, g := range m.lags {
			with := at
			if g.reason {
				with = append(at[:2:2], attribute.String("reason", t.lag.Reason))
			}
			to.ObserveInt64(g.instrument, g.value(&t.lag), metric.WithAttributes(with...))
		}
	}
	return nil
}

// topicKeeper is a store that counts by topic, and has to be told which topics there are no more.
type topicKeeper interface {
	KeepTopics(wanted func(topic string) bool)
}

// wantedTopics tells topics that exist, or that something remote is left of, from those whose metrics are worth nothing any more. The
// mutex is held.
func (s *Server) wantedTopics() func(topic string) bool {
	left := map[string]bool{}
	for _, t := range s.tasks {
		left[t.topic] = true
	}
	image := s.image.Load()
	wanted := func(topic string) bool { return left[topic] || image.TopicByName(topic) != nil }
	if k, ok := s.store.(topicKeeper); ok {
		k.KeepTopics(wanted)
	}
	return wanted
}
