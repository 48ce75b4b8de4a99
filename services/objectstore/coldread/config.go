package coldread

import (
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"chancery/services/objectstore/quota"
)

// Config bounds what a reader uses. DefaultConfig has what suits most.
type Config struct {
	// MemoryBytes is the most that blocks take in memory: those that are kept, and those that are being read. What Read has
	// returned is the caller's.
	MemoryBytes int64
	// IndexBytes is the most that indexes take in memory.
	IndexBytes int64
	// DiskPath is the directory for blocks that leave the memory, which is nobody else's; empty means none. DiskBytes is how
	// much of it is used.
	DiskPath  string
	DiskBytes int64
	// ReadAheadMaxBytes is how far ahead of a sequential reader segments are read.
	ReadAheadMaxBytes int64
	// Concurrency is how many ranges are read at the same time.
	Concurrency int
	// FillTimeout ends the read of a range, whoever waits for it.
	FillTimeout time.Duration
}

// DefaultConfig is what Config should be where nothing says otherwise.
func DefaultConfig() Config {
	return Config{
		MemoryBytes: 256 << 20, IndexBytes: 64 << 20, DiskBytes: 10 << 30, ReadAheadMaxBytes: 64 << 20, Concurrency: 32,
		FillTimeout: 30 * time.Second,
	}
}

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	if c.MemoryBytes < 8<<20 || c.IndexBytes <= 0 || c.Concurrency <= 0 || c.FillTimeout <= 0 || c.ReadAheadMaxBytes < 0 ||
		c.DiskPath != "" && c.DiskBytes <= 0 {
		return errors.New("a reader needs at least 8 MiB of memory, and sizes, numbers and time-outs above 0")
	}
	return nil
}

// Deps are what a reader works with.
type Deps struct {
	Meter  metric.Meter
	Logger *slog.Logger
	// FetchLimiter, unless it is nil, bounds the bytes that are read from the store.
	FetchLimiter *quota.Limiter
}
