package storaged

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"chancery/storaged/internal/cleaner"
	"chancery/storaged/internal/node"
	"chancery/storaged/internal/replica"
)

// counter is a metric that only grows.
type counter struct {
	name, description string
	attributes        []attribute.KeyValue
	value             func(*replica.Metrics) int64
}

func counters() []counter {
	from := func(who string) []attribute.KeyValue { return []attribute.KeyValue{attribute.String("from", who)} }
	return []counter{
		{"chancery_storage_bytes_in", "Bytes appended by clients.", nil, func(m *replica.Metrics) int64 { return m.BytesIn.Load() }},
		{"chancery_storage_messages_in", "Records appended by clients.", nil, func(m *replica.Metrics) int64 { return m.MessagesIn.Load() }},
		{"chancery_storage_bytes_out", "Bytes read by consumers.", nil, func(m *replica.Metrics) int64 { return m.BytesOut.Load() }},
		{"chancery_storage_replication_bytes_in", "Bytes copied from leaders.", nil, func(m *replica.Metrics) int64 { return m.ReplicationBytesIn.Load() }},
		{"chancery_storage_replication_bytes_out", "Bytes copied by followers.", nil, func(m *replica.Metrics) int64 { return m.ReplicationBytesOut.Load() }},
		{"chancery_storage_produce_partitions", "Appends, counted for each partition.", nil, func(m *replica.Metrics) int64 { return m.ProducePartitions.Load() }},
		{"chancery_storage_failed_produce_partitions", "Appends that were refused.", nil, func(m *replica.Metrics) int64 { return m.FailedProducePartitions.Load() }},
		{"chancery_storage_fetch_requests", "Fetches.", from("consumer"), func(m *replica.Metrics) int64 { return m.ConsumerFetches.Load() }},
		{"chancery_storage_fetch_requests", "Fetches.", from("follower"), func(m *replica.Metrics) int64 { return m.FollowerFetches.Load() }},
		{"chancery_storage_failed_fetch_partitions", "Partitions of fetches that were refused.", nil, func(m *replica.Metrics) int64 { return m.FailedFetchPartitions.Load() }},
		{"chancery_storage_isr_shrinks", "Replicas that left the ISR of a partition led here.", nil, func(m *replica.Metrics) int64 { return m.ISRShrinks.Load() }},
		{"chancery_storage_isr_expands", "Replicas that joined the ISR of a partition led here.", nil, func(m *replica.Metrics) int64 { return m.ISRExpands.Load() }},
		{"chancery_storage_failed_isr_updates", "ISR changes that the controller refused.", nil, func(m *replica.Metrics) int64 { return m.FailedISRUpdates.Load() }},
		{"chancery_storage_truncations", "Logs cut to what the leader has.", nil, func(m *replica.Metrics) int64 { return m.Truncations.Load() }},
		{"chancery_storage_replica_fetch_errors", "Failures of followers here to copy.", nil, func(m *replica.Metrics) int64 { return m.ReplicaFetchErrors.Load() }},
	}
}

// registerMetrics makes the node's metrics; they are read when someone asks for them.
func registerMetrics(meter metric.Meter, n *node.Node) (metric.Registration, error) {
	b := builder{meter: meter}
	byName := map[string]metric.Int64Observable{}
	list := counters()
	for _, c := range list {
		if byName[c.name] == nil {
			byName[c.name] = b.counter(c.name, c.description)
		}
	}
	waiting := b.gauge("chancery_storage_purgatory_size", "Requests that wait, by what they do.")
	counts := map[string]metric.Int64Observable{}
	for name, description := range countDescriptions() {
		counts[name] = b.gauge(name, description)
	}
	throttled := b.counter("chancery_storage_throttled_bytes", "Bytes copied under a quota, by whose quota it is.")
	throttleRate := b.gauge("chancery_storage_throttled_rate_bytes", "Present rate of copying under a quota, in bytes per second.")
	size := b.gauge("chancery_storage_log_size_bytes", "Size of a replica's segments.")
	end := b.gauge("chancery_storage_log_end_offset", "Offset of a replica's next record.")
	start := b.gauge("chancery_storage_log_start_offset", "Offset of a replica's first record.")
	cleaning := newCleanerGauges(&b)
	if b.err != nil {
		return nil, b.err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		m := n.Metrics()
		for _, c := range list {
			o.ObserveInt64(byName[c.name], c.value(m), metric.WithAttributes(c.attributes...))
		}
		observeWaiting(o, waiting, n)
		cleaning.observe(o, n.CleanerMetrics())
		for name, value := range countReplicas(n) {
			o.ObserveInt64(counts[name], value)
		}
		for _, t := range n.Throttles() {
			by := metric.WithAttributes(attribute.String("quota", t.Name))
			o.ObserveInt64(throttled, t.Bytes, by)
			o.ObserveInt64(throttleRate, t.Rate, by)
		}
		for _, r := range n.Replicas() {
			if r.Log() == nil {
				continue
			}
			at := metric.WithAttributes(attribute.String("topic", r.Topic()), attribute.Int("partition", int(r.Key().Partition)))
			v := r.View()
			o.ObserveInt64(size, r.Log().Size(), at)
			o.ObserveInt64(end, v.LogEnd, at)
			o.ObserveInt64(start, v.LogStart, at)
		}
		return nil
	}, b.made...)
}

func observeWaiting(o metric.Observer, gauge metric.Int64Observable, n *node.Node) {
	m := n.Metrics()
	fetches, images := n.Waiting()
	for operation, count := range map[string]int64{
		"produce": m.WaitingProduces.Load(), "fetch": fetches, "delete_records": m.WaitingDeletes.Load(), "metadata": images,
	} {
		o.ObserveInt64(gauge, count, metric.WithAttributes(attribute.String("operation", operation)))
	}
}

// The names of the metrics that count replicas.
const (
	partitionsMetric      = "chancery_storage_partitions"
	leadersMetric         = "chancery_storage_leaders"
	offlineMetric         = "chancery_storage_offline_replicas"
	underReplicatedMetric = "chancery_storage_under_replicated_partitions"
	underMinISRMetric     = "chancery_storage_under_min_isr_partitions"
	atMinISRMetric        = "chancery_storage_at_min_isr_partitions"
)

func countDescriptions() map[string]string {
	return map[string]string{
		partitionsMetric:      "Replicas held.",
		leadersMetric:         "Replicas that lead their partition.",
		offlineMetric:         "Replicas whose log directory does not work.",
		underReplicatedMetric: "Partitions led here with replicas out of the ISR.",
		underMinISRMetric:     "Partitions led here with fewer replicas in sync than min.insync.replicas.",
		atMinISRMetric:        "Partitions led here with as many replicas in sync as min.insync.replicas.",
	}
}

func countReplicas(n *node.Node) map[string]int64 {
	out := map[string]int64{}
	for name := range countDescriptions() {
		out[name] = 0
	}
	count := func(name string, yes bool) {
		if yes {
			out[name]++
		}
	}
	for _, r := range n.Replicas() {
		v := r.View()
		count(partitionsMetric, true)
		count(leadersMetric, v.Leads())
		count(offlineMetric, v.Failed)
		count(underReplicatedMetric, v.UnderReplicated)
		count(underMinISRMetric, v.UnderMinISR)
		count(atMinISRMetric, v.AtMinISR)
	}
	return out
}

// builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	made  []metric.Observable
	err   error
}

func (b *builder) counter(name, description string) metric.Int64Observable {
	c, err := b.meter.Int64ObservableCounter(name, metric.WithDescription(description))
	return b.keep(c, err)
}

func (b *builder) gauge(name, description string) metric.Int64Observable {
	g, err := b.meter.Int64ObservableGauge(name, metric.WithDescription(description))
	return b.keep(g, err)
}

func (b *builder) keep(o metric.Int64Observable, err error) metric.Int64Observable {
	if err != nil && b.err == nil {
		b.err = err
	}
	b.made = append(b.made, o)
	return o
}

// cleanerGauges are the metrics of the log cleaner, with Kafka's names.
type cleanerGauges struct {
	bufferUtilization, recopy, cleanTime, delay, dirty, lastRun, partitions, bytes metric.Int64Observable
}

func newCleanerGauges(b *builder) *cleanerGauges {
	gauge := func(name, description string) metric.Int64Observable {
		return b.gauge("chancery_storage_log_cleaner_"+name, description)
	}
	return &cleanerGauges{
		bufferUtilization: gauge("max_buffer_utilization_percent", "Largest use of a thread's dedupe buffer in its last pass."),
		recopy:            gauge("recopy_percent", "Share of the bytes that stayed in the last passes."),
		cleanTime:         gauge("max_clean_time_secs", "Longest last pass of a thread."),
		delay:             gauge("max_compaction_delay_secs", "Longest time by which max.compaction.lag.ms was missed."),
		dirty:             gauge("max_dirty_percent", "Dirty ratio of the dirtiest log."),
		lastRun:           gauge("time_since_last_run_ms", "Time since the cleaner last looked for a log to clean."),
		partitions:        gauge("uncleanable_partitions_count", "Logs that could not be cleaned and are left alone."),
		bytes:             gauge("uncleanable_bytes", "Dirty bytes of the logs that could not be cleaned."),
	}
}

func (g *cleanerGauges) observe(o metric.Observer, m cleaner.Metrics) {
	o.ObserveInt64(g.bufferUtilization, m.MaxBufferUtilizationPercent)
	o.ObserveInt64(g.recopy, m.CleanerRecopyPercent)
	o.ObserveInt64(g.cleanTime, int64(m.MaxCleanTime.Seconds()))
	o.ObserveInt64(g.delay, int64(m.MaxCompactionDelay.Seconds()))
	o.ObserveInt64(g.dirty, m.MaxDirtyPercent)
	o.ObserveInt64(g.lastRun, m.TimeSinceLastRun.Milliseconds())
	for dir, count := range m.UncleanablePartitions {
		at := metric.WithAttributes(attribute.String("log_directory", dir))
		o.ObserveInt64(g.partitions, count, at)
		o.ObserveInt64(g.bytes, m.UncleanableBytes[dir], at)
	}
}
