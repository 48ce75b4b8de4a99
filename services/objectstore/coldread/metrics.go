package coldread

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics are the instruments of a reader; the package's documentation lists them.
type metrics struct {
	blocks, bytes, indexes, evictions, crcFailures metric.Int64Counter
	windows                                        metric.Int64Histogram
	gauges                                         metric.Registration
	// The attributes of what is counted for every block.
	hit, miss, store, disk, evictRead, evictUnread metric.MeasurementOption
}

func label(name, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(name, value)))
}

func newMetrics(meter metric.Meter, r *Reader) (*metrics, error) {
	x := &metrics{
		hit: label("result", "hit"), miss: label("result", "miss"), store: label("from", "store"), disk: label("from", "disk"),
		evictRead: label("read", "true"), evictUnread: label("read", "false"),
	}
	var errs []error
	for _, c := range []struct {
		counter    *metric.Int64Counter
		name, text string
	}{
		{&x.blocks, "blocks", "Blocks that readers asked for; a hit was in memory."},
		{&x.bytes, "bytes", "Bytes that came into memory."},
		{&x.indexes, "index_reads", "Indexes that were asked for; a hit was in memory."},
		{&x.evictions, "evictions", "Blocks that left the memory."},
		{&x.crcFailures, "crc_failures", "Blocks whose checksum was wrong."},
	} {
		var err error
		*c.counter, err = meter.Int64Counter("chancery_coldread_"+c.name, metric.WithDescription(c.text))
		errs = append(errs, err)
	}
	var err error
	x.windows, err = meter.Int64Histogram("chancery_coldread_read_ahead_window", metric.WithUnit("By"), metric.WithDescription("Window of read-ahead of a read."),
		metric.WithExplicitBucketBoundaries(0, 1<<20, 2<<20, 4<<20, 8<<20, 16<<20, 32<<20, 64<<20))
	errs = append(errs, err)
	gauge := func(name, text string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge("chancery_coldread_"+name, metric.WithDescription(text))
		errs = append(errs, err)
		return g
	}
	memoryBytes := gauge("memory_bytes", "Memory of blocks, those that are being read among them.")
	indexBytes := gauge("index_bytes", "Memory of indexes.")
	diskBytes := gauge("disk_bytes", "Disk space of blocks.")
	inFlight := gauge("in_flight", "Blocks that are being read.")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	x.gauges, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		r.mu.Lock()
		memory, indexes, flights := r.memory.kept+r.memory.inFlight, r.indexes.kept, len(r.flights)
		r.mu.Unlock()
		o.ObserveInt64(memoryBytes, memory)
		o.ObserveInt64(indexBytes, indexes)
		o.ObserveInt64(inFlight, int64(flights))
		if r.disk != nil {
			o.ObserveInt64(diskBytes, r.disk.bytes())
		}
		return nil
	}, memoryBytes, indexBytes, diskBytes, inFlight)
	return x, err
}

func (x *metrics) close() error { return x.gauges.Unregister() }

func (x *metrics) hitOrMiss(hit bool) metric.MeasurementOption {
	if hit {
		return x.hit
	}
	return x.miss
}

func (x *metrics) blockRead(ctx context.Context, hit bool) { x.blocks.Add(ctx, 1, x.hitOrMiss(hit)) }
func (x *metrics) indexHit(ctx context.Context, hit bool)  { x.indexes.Add(ctx, 1, x.hitOrMiss(hit)) }
func (x *metrics) fromStore(ctx context.Context, n int)    { x.bytes.Add(ctx, int64(n), x.store) }
func (x *metrics) fromDisk(ctx context.Context, n int)     { x.bytes.Add(ctx, int64(n), x.disk) }
func (x *metrics) crcFailed(ctx context.Context)           { x.crcFailures.Add(ctx, 1) }
func (x *metrics) window(bytes int64)                      { x.windows.Record(context.Background(), bytes) }

func (x *metrics) evicted(unread bool) {
	if unread {
		x.evictions.Add(context.Background(), 1, x.evictUnread)
		return
	}
	x.evictions.Add(context.Background(), 1, x.evictRead)
}
