package coordinatord

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/txn"
	"chancery/services/kafka/internaltopic"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
)

// metrics shows the shards' counters when they are asked for.
type metrics struct {
	server       *Server
	registration metric.Registration

	shards metric.Int64ObservableGauge
	// totals and lasts are read from a shard's counters, counts from its machine.
	totals       []observed[*statemachine.Stats]
	lasts        []observed[*statemachine.Stats]
	counts       []observed[group.Counts]
	transactions []observed[txn.Counts]
}

// observed is an instrument and how its value is read.
type observed[T any] struct {
	instrument metric.Int64Observable
	read       func(T) int64
}

func newMetrics(meter metric.Meter, s *Server) (*metrics, error) {
	m := &metrics{server: s}
	var errs []error
	counter := func(name, help string, read func(*statemachine.Stats) int64) {
		i, err := meter.Int64ObservableCounter("chancery_coordinator_"+name, metric.WithDescription(help))
		errs = append(errs, err)
		m.totals = append(m.totals, observed[*statemachine.Stats]{i, read})
	}
	gauge := func(name, help string) metric.Int64ObservableGauge {
		i, err := meter.Int64ObservableGauge("chancery_coordinator_"+name, metric.WithDescription(help))
		errs = append(errs, err)
		return i
	}
	counter("commands", "Commands that a shard has taken.", func(s *statemachine.Stats) int64 { return s.Commands.Load() })
	counter("records", "Records that a shard has decided to write.", func(s *statemachine.Stats) int64 { return s.Records.Load() })
	counter("batches", "Batches that a shard has appended.", func(s *statemachine.Stats) int64 { return s.Batches.Load() })
	counter("rollbacks", "Failed appends that were taken back.", func(s *statemachine.Stats) int64 { return s.Rollbacks.Load() })
	counter("loads", "Times that a shard was loaded.", func(s *statemachine.Stats) int64 { return s.Loads.Load() })
	m.lasts = []observed[*statemachine.Stats]{
		{gauge("load_duration_ms", "How long the last load took."), func(s *statemachine.Stats) int64 { return s.LoadMs.Load() }},
		{gauge("loaded_records", "Records of the last load."), func(s *statemachine.Stats) int64 { return s.LoadedRecords.Load() }},
	}
	m.counts = []observed[group.Counts]{
		{gauge("groups", "Groups of a shard."), func(c group.Counts) int64 { return int64(c.Groups) }},
		{gauge("members", "Members of a shard's groups."), func(c group.Counts) int64 { return int64(c.Members) }},
		{gauge("offsets", "Committed offsets of a shard."), func(c group.Counts) int64 { return int64(c.Offsets) }},
	}
	m.transactions = []observed[txn.Counts]{
		{gauge("transactional_ids", "Transactional ids of a shard."), func(c txn.Counts) int64 { return int64(c.IDs) }},
		{gauge("transactions_ongoing", "Transactions of a shard that are open."), func(c txn.Counts) int64 { return int64(c.Ongoing) }},
		{gauge("transactions_ending", "Transactions of a shard whose markers are being written."), func(c txn.Counts) int64 { return int64(c.Ending) }},
	}
	m.shards = gauge("shards", "Shards of this instance by state.")
	instruments := []metric.Observable{m.shards}
	for _, list := range [][]observed[*statemachine.Stats]{m.totals, m.lasts} {
		for _, o := range list {
			instruments = append(instruments, o.instrument)
		}
	}
	for _, o := range m.counts {
		instruments = append(instruments, o.instrument)
	}
	for _, o := range m.transactions {
		instruments = append(instruments, o.instrument)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	m.registration, err = meter.RegisterCallback(m.observe, instruments...)
	return m, err
}

func (m *metrics) close() { _ = m.registration.Unregister() }

func (m *metrics) observe(ctx context.Context, to metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	observeShards(ctx, m, to, internaltopic.ConsumerOffsets, m.server.groups.All(), group.Command(&group.Count{}), m.counts)
	observeShards(ctx, m, to, internaltopic.TransactionState, m.server.transactions.All(), txn.Command(&txn.Count{}), m.transactions)
	return nil
}

// observeShards shows the shards of one topic. What a machine holds is asked by a command.
func observeShards[C, R, A, N any](ctx context.Context, m *metrics, to metric.Observer, topic string, owned map[int32]*shards.Owned[C, R, A], count C, counts []observed[N]) {
	of := attribute.String("topic", topic)
	serving := int64(0)
	for number, o := range owned {
		sh := o.Shard
		at := metric.WithAttributes(of, attribute.String("shard", strconv.Itoa(int(number))))
		for _, o := range append(m.totals[:len(m.totals):len(m.totals)], m.lasts...) {
			to.ObserveInt64(o.instrument, o.read(sh.Stats()), at)
		}
		reply, err := sh.Do(ctx, count)
		if err != nil {
			continue
		}
		serving++
		if c, ok := any(reply).(N); ok {
			for _, o := range counts {
				to.ObserveInt64(o.instrument, o.read(c), at)
			}
		}
	}
	to.ObserveInt64(m.shards, serving, metric.WithAttributes(of, attribute.String("state", "serving")))
	to.ObserveInt64(m.shards, int64(len(owned))-serving, metric.WithAttributes(of, attribute.String("state", "loading")))
}
