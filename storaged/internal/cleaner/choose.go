package cleaner

import (
	"time"

	"chancery/storaged/internal/log"
)

// candidate is a compacted log that somebody could clean now.
type candidate struct {
	target Target
	log    *log.Log
	bounds log.CleanBounds
}

// due says whether a log must be cleaned: enough of it is dirty, or a record of it has waited for max.compaction.lag.ms.
func (c *candidate) due() bool {
	return c.overdue() || c.bounds.DirtyRatio() > c.bounds.Config.MinCleanableDirtyRatio
}

func (c *candidate) overdue() bool { return c.bounds.Overdue > 0 && c.bounds.CleanableBytes > 0 }

// choose picks the log to clean next: the dirtiest of those whose time has come, else the dirtiest of those that are dirty
// enough. It is nil when no log is due. survey is what is known of all of them.
func choose(candidates []candidate) (next *candidate, s survey) {
	for i := range candidates {
		c := &candidates[i]
		if c.bounds.TotalBytes() == 0 {
			continue
		}
		s.dirtiest = max(s.dirtiest, c.bounds.DirtyRatio())
		s.delay = max(s.delay, c.bounds.Overdue)
		if !c.due() {
			continue
		}
		if next == nil || c.before(next) {
			next = c
		}
	}
	return next, s
}

func (c *candidate) before(other *candidate) bool {
	if c.overdue() != other.overdue() {
		return c.overdue()
	}
	return c.bounds.DirtyRatio() > other.bounds.DirtyRatio()
}

// survey is what a look at all logs has shown.
type survey struct {
	// dirtiest is the largest dirty ratio, delay the longest time by which max.compaction.lag.ms has been missed.
	dirtiest float64
	delay    time.Duration
}
