package cleaner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/storaged/internal/log"
)

// Target is a replica whose log may be cleaned. It must be comparable, and the same for the same replica.
type Target interface {
	fmt.Stringer
	// Log is the log; nil when it is out of reach.
	Log() *log.Log
	// LogDir is the log directory that the log is in.
	LogDir() string
	// Write runs a function in the log's writer, and gives its error. An error that has the code KafkaStorageError takes
	// the replica offline.
	Write(f func() error) error
}

// Config is the cleaner's settings.
type Config struct {
	// Threads is log.cleaner.threads.
	Threads int
	// DedupeBufferBytes is log.cleaner.dedupe.buffer.size, and LoadFactor log.cleaner.io.buffer.load.factor.
	DedupeBufferBytes int64
	LoadFactor        float64
	// IOBufferBytes is log.cleaner.io.buffer.size.
	IOBufferBytes int
	// MaxBytesPerSecond is log.cleaner.io.max.bytes.per.second.
	MaxBytesPerSecond float64
	// Backoff is log.cleaner.backoff.ms.
	Backoff time.Duration
}

// limits are each thread's share.
func (c *Config) limits() Limits {
	threads := max(1, c.Threads)
	return Limits{
		DedupeBytes:   c.DedupeBufferBytes / int64(threads),
		LoadFactor:    c.LoadFactor,
		IOBufferBytes: max(minIOBufferBytes, c.IOBufferBytes/threads/2),
	}
}

// minIOBufferBytes keeps a tiny log.cleaner.io.buffer.size from making a system call of each record.
const minIOBufferBytes = 4 << 10

// Options is what a cleaner works with.
type Options struct {
	// Targets are all replicas of the node.
	Targets func() []Target
	// Cleaned is told after each pass that the offset up to which a log is clean has moved.
	Cleaned func(Target)
	// Failed is told that the disk under a log does not work.
	Failed func(Target, error)
	Codecs *recordbatch.Codecs
	Logger *slog.Logger
}

// Cleaner cleans the compacted logs of a node.
type Cleaner struct {
	o        Options
	throttle throttle

	// running ends the threads of the present settings.
	stopMu  sync.Mutex
	cancel  context.CancelFunc
	threads sync.WaitGroup

	mu sync.Mutex
	// busy are the logs that are being cleaned, uncleanable those that could not be, with the reason.
	busy        map[Target]bool
	uncleanable map[Target]error
	// dirtiest and lastRun are of the last look at all logs, delay of the last one that found a log to clean.
	dirtiest float64
	lastRun  time.Time
	delay    time.Duration
	// last is what each thread's last pass did.
	last []Stats
}

// New makes a cleaner that does nothing until it is started.
func New(o Options) *Cleaner {
	return &Cleaner{o: o, busy: map[Target]bool{}, uncleanable: map[Target]error{}, lastRun: time.Now()}
}

// Start begins to clean.
func (c *Cleaner) Start(config Config) {
	c.stopMu.Lock()
	defer c.stopMu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.throttle.set(config.MaxBytesPerSecond)
	c.mu.Lock()
	c.last = make([]Stats, config.Threads)
	c.mu.Unlock()
	for i := range config.Threads {
		c.threads.Go(func() { c.run(ctx, i, config) })
	}
}

// Stop ends the passes that are under way, without their results, and waits until no log is used any more.
func (c *Cleaner) Stop() {
	c.stopMu.Lock()
	defer c.stopMu.Unlock()
	if c.cancel != nil {
		c.cancel()
		c.threads.Wait()
		c.cancel = nil
	}
}

// Reconfigure goes on with other settings.
func (c *Cleaner) Reconfigure(config Config) {
	c.Stop()
	c.Start(config)
}

// run is a thread.
func (c *Cleaner) run(ctx context.Context, thread int, config Config) {
	lowerPriority()
	filter := &recordbatch.Filter{Codecs: c.o.Codecs}
	for ctx.Err() == nil {
		if c.cleanNext(ctx, thread, config.limits(), filter) {
			continue
		}
		timer := time.NewTimer(config.Backoff)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// cleanNext cleans the log that needs it most, and says whether there was one.
func (c *Cleaner) cleanNext(ctx context.Context, thread int, limits Limits, filter *recordbatch.Filter) bool {
	next := c.grab(time.Now())
	if next == nil {
		return false
	}
	defer c.release(next.target)
	began := time.Now()
	var stats Stats
	var end int64
	var err error
	besideOthers(func() { stats, end, err = c.clean(ctx, next, limits, filter, began) })
	switch {
	case err == nil:
		stats.Time = time.Since(began)
		c.cleaned(thread, next, end, stats)
	case ctx.Err() != nil:
	case errors.Is(err, log.ErrCleaningAborted), errors.Is(err, log.ErrClosed):
		c.o.Logger.Info("cleaning is aborted", "partition", next.target, "reason", err)
		return false
	case errcode.Of(err) == errcode.KafkaStorageError:
		c.o.Failed(next.target, fmt.Errorf("clean %s: %w", next.target, err))
		return false
	default:
		c.o.Logger.Error("a log cannot be cleaned, and is left alone from now on", "partition", next.target, "error", err)
		c.mu.Lock()
		c.uncleanable[next.target] = err
		c.mu.Unlock()
		return false
	}
	return true
}

// grab chooses the next log and marks it busy.
func (c *Cleaner) grab(now time.Time) *candidate {
	targets := c.o.Targets()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastRun = now
	c.forgetRemoved(targets)
	var candidates []candidate
	for _, t := range targets {
		l := t.Log()
		if l == nil || !l.Compacted() || c.busy[t] || c.uncleanable[t] != nil {
			continue
		}
		bounds, err := l.CleanBounds(now)
		if err != nil {
			// A log whose directory has failed is somebody else's to tell; it is not asked again.
			c.uncleanable[t] = err
			c.o.Logger.Error("it is not known what of a log can be cleaned: it is left alone", "partition", t, "error", err)
			continue
		}
		candidates = append(candidates, candidate{t, l, bounds})
	}
	next, s := choose(candidates)
	c.dirtiest = s.dirtiest
	if next == nil {
		return nil
	}
	c.delay = s.delay
	c.busy[next.target] = true
	found := *next
	return &found
}

// forgetRemoved drops what is known of replicas that are gone.
func (c *Cleaner) forgetRemoved(targets []Target) {
	if len(c.uncleanable) == 0 {
		return
	}
	here := make(map[Target]bool, len(targets))
	for _, t := range targets {
		here[t] = true
	}
	for t := range c.uncleanable {
		if !here[t] {
			delete(c.uncleanable, t)
		}
	}
}

func (c *Cleaner) release(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, t)
}

// clean runs a pass.
func (c *Cleaner) clean(ctx context.Context, next *candidate, limits Limits, filter *recordbatch.Filter, now time.Time) (Stats, int64, error) {
	cleaning, err := next.log.BeginCleaning(next.bounds)
	if err != nil {
		return Stats{}, 0, err
	}
	defer cleaning.Close()
	p := pass{
		ctx: ctx, cleaning: cleaning, limits: limits, filter: filter, nowMs: now.UnixMilli(),
		spend: c.throttle.spend, replace: next.target.Write,
	}
	end, err := p.run(next.bounds)
	if err == nil {
		cleaning.SetCleanedTo(end)
	}
	return p.stats, end, err
}

// cleaned notes and tells what a pass has done.
func (c *Cleaner) cleaned(thread int, done *candidate, end int64, stats Stats) {
	c.mu.Lock()
	c.last[thread] = stats
	c.mu.Unlock()
	c.o.Cleaned(done.target)
	c.o.Logger.Info("log cleaned", "partition", done.target, "from", done.bounds.FirstDirty, "to", end,
		"bytes_before", stats.BytesRead, "bytes_after", stats.BytesWritten, "messages_before", stats.MessagesRead,
		"messages_after", stats.MessagesWritten, "duration", stats.Time, "buffer_utilization", stats.BufferUtilization)
	if stats.InvalidMessages > 0 {
		c.o.Logger.Warn("records without a key in a compacted log were dropped", "partition", done.target, "count", stats.InvalidMessages)
	}
}

// Metrics is what the cleaner measures, with the meaning that Kafka gives to the names.
type Metrics struct {
	// MaxBufferUtilizationPercent, CleanerRecopyPercent and MaxCleanTime are about the last pass of each thread.
	MaxBufferUtilizationPercent int64
	CleanerRecopyPercent        int64
	MaxCleanTime                time.Duration
	// MaxCompactionDelay is by how much max.compaction.lag.ms was missed, MaxDirtyPercent the dirtiest log's ratio, and
	// TimeSinceLastRun the age of both.
	MaxCompactionDelay time.Duration
	MaxDirtyPercent    int64
	TimeSinceLastRun   time.Duration
	// UncleanablePartitions and UncleanableBytes are those that had to be given up, by log directory.
	UncleanablePartitions map[string]int64
	UncleanableBytes      map[string]int64
}

// Metrics measures now.
func (c *Cleaner) Metrics() Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := Metrics{
		MaxCompactionDelay: c.delay, MaxDirtyPercent: int64(100 * c.dirtiest), TimeSinceLastRun: time.Since(c.lastRun),
		UncleanablePartitions: map[string]int64{}, UncleanableBytes: map[string]int64{},
	}
	var read, written int64
	for _, s := range c.last {
		m.MaxBufferUtilizationPercent = max(m.MaxBufferUtilizationPercent, int64(100*s.BufferUtilization))
		m.MaxCleanTime = max(m.MaxCleanTime, s.Time)
		read, written = read+s.BytesRead, written+s.BytesWritten
	}
	m.CleanerRecopyPercent = 100 * written / max(1, read)
	now := time.Now()
	for t := range c.uncleanable {
		m.UncleanablePartitions[t.LogDir()]++
		if l := t.Log(); l != nil {
			if b, err := l.CleanBounds(now); err == nil {
				m.UncleanableBytes[t.LogDir()] += b.CleanableBytes
			}
		}
	}
	return m
}
