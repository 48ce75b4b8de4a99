// Package segmentstore makes a RemoteStorageManager of anything that keeps named objects (blob.Store).
//
// It owns what all stores have in common: the objects' format and keys, uploads in one piece or in parts, attempts,
// deadlines, back-off, how many requests are in flight, the breaker for a store that is away, and the metrics. It must never
// know which store there is, nor remember a segment between two calls.
//
// # Metrics
//
//	chancery_objectstore_requests_total{op,result}     requests that were made; result is ok or the kind of the error
//	chancery_objectstore_retries_total{op}             requests that were made again
//	chancery_objectstore_throttles_total{op}           answers that asked for fewer requests
//	chancery_objectstore_crc_failures_total{where}     checksums that were wrong: local (before a copy) or index
//	chancery_objectstore_bytes_total{op}               bytes of bodies, of all attempts
//	chancery_objectstore_topic_bytes_total{topic,op}   of each topic: bytes of copies that worked (put) and of reads (get)
//	chancery_objectstore_topic_requests_total{topic,op} and the requests for them, which a store may charge for
//	chancery_objectstore_topic_cost_dollars_total{topic,op}  what those cost at the prices of the configuration
//	chancery_objectstore_first_byte_seconds{op}        until the store began to answer
//	chancery_objectstore_request_seconds{op}           until the end of a request
//	chancery_objectstore_request_limit                 how many requests may be in flight now
//	chancery_objectstore_unavailable                   1 while the store is taken to be away, else 0
package segmentstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/segmentobject"
)

// Config says how a store is used. DefaultConfig has what suits S3.
type Config struct {
	// ClusterID and Prefix begin all keys, and Layout makes the rest.
	ClusterID string
	Prefix    string
	Layout    segmentobject.Layout
	// PutMaxBytes is the largest segment that is put in one request; larger ones go in parts.
	PutMaxBytes int64
	// PartBytes is the size of parts, PartConcurrency how many of one object are in flight.
	PartBytes       int64
	PartConcurrency int
	// RequestConcurrency is how many requests of all kinds are in flight at most.
	RequestConcurrency int
	// IfAbsent asks the store to refuse to replace an object.
	IfAbsent bool
	// Attempts is how often a request is made at most.
	Attempts int
	// RequestTimeout is what a request may take, besides a second for each MinBytesPerSecond of its body.
	RequestTimeout    time.Duration
	MinBytesPerSecond int64
	// StallTimeout ends a read that gives no byte for so long.
	StallTimeout time.Duration
	// PutDollars and GetDollars are the prices of a request.
	PutDollars, GetDollars float64
}

// DefaultConfig is what Config should be where nothing says otherwise.
func DefaultConfig() Config {
	return Config{
		PutMaxBytes: 64 << 20, PartBytes: 16 << 20, PartConcurrency: 4, RequestConcurrency: 64, IfAbsent: true,
		Attempts: 4, RequestTimeout: 10 * time.Second, MinBytesPerSecond: 1 << 20, StallTimeout: 5 * time.Second,
	}
}

// maxParts is how many parts S3 lets an object have.
const maxParts = 10000

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	switch {
	case c.ClusterID == "" || c.ClusterID == "." || c.ClusterID == ".." || segmentobject.CheckPrefix(c.ClusterID) != nil:
		return fmt.Errorf("cluster id %q cannot be part of a key", c.ClusterID)
	case c.PutMaxBytes <= 0, c.PartConcurrency <= 0, c.RequestConcurrency <= 0, c.Attempts <= 0, c.MinBytesPerSecond <= 0:
		return errors.New("sizes, numbers and rates must be above 0")
	case c.RequestTimeout <= 0, c.StallTimeout <= 0:
		return errors.New("time-outs must be above 0")
	case c.PartBytes < 5<<20 || c.PartBytes%objectstore.BlockBytes != 0:
		return fmt.Errorf("parts of %d bytes: want at least 5 MiB, in whole MiB", c.PartBytes)
	}
	if err := segmentobject.CheckPrefix(c.Prefix); err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return nil
}

// Deps are what a manager works with.
type Deps struct {
	Meter  metric.Meter
	Logger *slog.Logger
	// Step is called at each named step of a copy or a deletion, for tests that stop there: an error ends the operation
	// at once, and leaves everything as a crash would. Nil outside tests.
	Step func(name string) error
}

// Manager is a RemoteStorageManager with an Inventory.
type Manager struct {
	store   blob.Store
	config  Config
	deps    Deps
	gate    *gate
	breaker breaker
	metrics *metrics
}

var _ objectstore.InventoryManager = (*Manager)(nil)

// New makes a manager. It closes the store when it is closed.
func New(store blob.Store, config Config, deps Deps) (*Manager, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	m := &Manager{store: store, config: config, deps: deps, gate: newGate(config.RequestConcurrency)}
	var err error
	if m.metrics, err = newMetrics(deps.Meter, m); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// Close ends the manager and its store.
func (m *Manager) Close() error { return errors.Join(m.metrics.close(), m.store.Close()) }

// errStopped marks the error of a Step.
var errStopped = errors.New("stopped at a step")

func (m *Manager) step(name string) error {
	if m.deps.Step == nil {
		return nil
	}
	if err := m.deps.Step(name); err != nil {
		return fmt.Errorf("%w %s: %w", errStopped, name, err)
	}
	return nil
}

// The waits before a request is made again. They are short, since somebody waits for the answer; jobs that can wait have
// objectstore.JobBackoff.
var (
	retryBackoff    = objectstore.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second, Jitter: 0.5}
	throttleBackoff = objectstore.Backoff{Base: 300 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}
)

// opComplete ends an upload in parts; after a conflict it cannot be made again, only the whole upload can.
const opComplete = "complete_upload"

// credentialAttempts is how often a request is made with credentials that are refused: they may just have been renewed.
const credentialAttempts = 2

// do makes a request until it succeeds, is refused for good, or has been made often enough. bytes is the length of its
// body.
func (m *Manager) do(ctx context.Context, op, key string, bytes int64, request func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := m.once(ctx, op, key, bytes, request)
		if err == nil || !m.again(ctx, attempt, err) || op == opComplete && errors.Is(err, blob.ErrConflict) {
			return err
		}
		m.metrics.retried(ctx, op)
		m.deps.Logger.Debug("request to the object store is made again", "op", op, "key", key, "attempt", attempt, "error", err)
		if wait(ctx, attempt, err) != nil {
			return err
		}
	}
}

// again says whether a request is worth another attempt.
func (m *Manager) again(ctx context.Context, attempt int, err error) bool {
	limit := m.config.Attempts
	if errors.Is(err, objectstore.ErrCredentials) {
		limit = min(limit, credentialAttempts)
	}
	return objectstore.MayRetry(err) && !errors.Is(err, errAway) && attempt < limit && ctx.Err() == nil
}

// wait waits before the next attempt.
func wait(ctx context.Context, failures int, err error) error {
	backoff := retryBackoff
	if errors.Is(err, objectstore.ErrThrottled) {
		backoff = throttleBackoff
	}
	timer := time.NewTimer(backoff.Delay(failures, rand.Float64()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errAway is the cause when a request was not made because the store is away.
var errAway = errors.New("it failed again and again")

// away says why no request is made, and for how long.
func (m *Manager) away(wait time.Duration) error {
	var last *objectstore.Error
	if errors.As(m.breaker.reason(), &last) && last.Err != nil {
		return fmt.Errorf("%w: %w; the next attempt is made in %s", errAway, last.Err, wait.Round(time.Millisecond))
	}
	return fmt.Errorf("%w; the next attempt is made in %s", errAway, wait.Round(time.Millisecond))
}

// enter takes a place for a request, unless the store is away.
func (m *Manager) enter(ctx context.Context, op, key string) error {
	if err := m.gate.enter(ctx); err != nil {
		return &objectstore.Error{Kind: objectstore.ErrTransient, Op: op, Key: key, Err: err}
	}
	if d, ok := m.breaker.allow(time.Now()); !ok {
		m.gate.leave(time.Now(), false, false)
		return &objectstore.Error{Kind: objectstore.ErrTransient, Op: op, Key: key, Err: m.away(d)}
	}
	return nil
}

// leave gives the place of a request back.
func (m *Manager) leave(ctx context.Context, err error) {
	o := answered
	switch {
	case err != nil && ctx.Err() != nil:
		o = unknown
	case errors.Is(err, objectstore.ErrTransient):
		o = unreachable
	}
	m.breaker.done(time.Now(), o, err, rand.Float64())
	m.gate.leave(time.Now(), errors.Is(err, objectstore.ErrThrottled), err == nil)
}

func (m *Manager) once(ctx context.Context, op, key string, bytes int64, request func(context.Context) error) error {
	if err := m.enter(ctx, op, key); err != nil {
		return err
	}
	attempt, cancel := context.WithTimeout(ctx, m.timeout(bytes))
	defer cancel()
	begun := time.Now()
	err := kinded(op, key, request(attempt))
	m.metrics.requested(ctx, op, err, time.Since(begun))
	m.leave(ctx, err)
	return err
}

// timeout is what a request with a body may take.
func (m *Manager) timeout(bytes int64) time.Duration {
	return m.config.RequestTimeout + time.Duration(bytes/m.config.MinBytesPerSecond)*time.Second
}

// kinded makes sure that an error is of a kind.
func kinded(op, key string, err error) error {
	if err == nil || objectstore.KindName(err) != "other" {
		return err
	}
	return &objectstore.Error{Kind: objectstore.ErrTransient, Op: op, Key: key, Err: err}
}
