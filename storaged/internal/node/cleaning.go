package node

import (
	"chancery/services/kafka/configdef"
	"chancery/storaged/internal/cleaner"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
)

// newCleaner makes the cleaner of the node's logs. It is started with the other tasks.
func newCleaner(n *Node) *cleaner.Cleaner {
	return cleaner.New(cleaner.Options{
		Targets: func() []cleaner.Target {
			var out []cleaner.Target
			for _, r := range n.all() {
				if r.Log() != nil && !r.View().Failed {
					out = append(out, r)
				}
			}
			return out
		},
		Cleaned: func(cleaner.Target) { n.checkpoints.cleanerOffsets() },
		Failed:  func(t cleaner.Target, err error) { n.LogFailed(t.(*replica.Replica).Dir(), err) },
		Codecs:  n.env.Codecs,
		Logger:  n.o.Logger,
	})
}

// cleanerConfig is the cleaner's settings as they are now.
func cleanerConfig(c *configdef.Node) cleaner.Config {
	return cleaner.Config{
		Threads:           c.Int("log.cleaner.threads"),
		DedupeBufferBytes: c.Long("log.cleaner.dedupe.buffer.size"),
		LoadFactor:        c.Double("log.cleaner.io.buffer.load.factor"),
		IOBufferBytes:     c.Int("log.cleaner.io.buffer.size"),
		MaxBytesPerSecond: c.Double("log.cleaner.io.max.bytes.per.second"),
		Backoff:           c.Duration("log.cleaner.backoff.ms"),
	}
}

// reconfigureCleaner lets the cleaner go on with new settings, if they are different.
func (n *Node) reconfigureCleaner(before, now *configdef.Node) {
	if next := cleanerConfig(now); n.cleaning.Load() && next != cleanerConfig(before) {
		n.cleaner.Reconfigure(next)
	}
}

// CleanerMetrics is what the cleaner of compacted logs measures.
func (n *Node) CleanerMetrics() cleaner.Metrics {
	m := n.cleaner.Metrics()
	for _, d := range n.o.Dirs.All() {
		m.UncleanablePartitions[d.Path()] += 0 // each directory has its count, also when it is 0
	}
	return m
}

// cleanerOffsets writes up to where logs are clean. Logs that never were are left out.
func (w *checkpointWriter) cleanerOffsets() {
	w.write(logdir.CleanerFile, func(r *replica.Replica) (int64, bool) {
		offset := r.Log().CleanedTo()
		return offset, offset > 0
	})
}
