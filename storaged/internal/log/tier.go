package log

import (
	"fmt"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// A tiered log (remote.storage.enable) begins in the remote tier: its local segments may begin later than the log does.
// The leader epochs reach back to the log's start all the same, so that every offset's epoch is known here. Which
// segments are remote is told to the log; only those may be deleted by local retention.

// tiered says whether the log's older part may be in the remote tier only. Writer only.
func (l *Log) tiered() bool { return l.config.RemoteStorageEnable }

// copied says whether segments come to the remote tier, so that local retention waits for that. Writer only.
func (l *Log) copied() bool { return l.tiered() && !l.config.RemoteLogCopyDisable }

// loadedStart is where a log begins that was found on disk. The first leader epoch of a tiered log begins there and is
// written each time, which the checkpoint of log starts is not.
func (l *Log) loadedStart(epochsKnown bool) int64 {
	if !l.tiered() {
		return max(l.logStart, l.segments[0].base)
	}
	if epochsKnown {
		if len(l.epochs) == 0 {
			return max(l.logStart, l.segments[0].base)
		}
		return min(max(l.logStart, l.epochs[0].start), l.logEnd)
	}
	return l.logStart
}

// LocalLogStartOffset is the first offset that is here.
func (l *Log) LocalLogStartOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.localStart()
}

// localStart is LocalLogStartOffset for those who hold the lock.
func (l *Log) localStart() int64 { return max(l.logStart, l.segments[0].base) }

// RemoteEndOffset is the offset after the last record that is in the remote tier, as far as was told; 0 for none.
func (l *Log) RemoteEndOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.remoteEnd
}

// SetRemoteEndOffset tells up to where the remote tier has the log's records. It may be lowered, when the log was cut or another
// leader's history counts. Writer only.
func (l *Log) SetRemoteEndOffset(offset int64) {
	l.mu.Lock()
	l.remoteEnd = offset
	l.mu.Unlock()
}

// DropRemote lets a log that is not tiered any more begin where its local segments do, and says whether that moved its start.
// Writer only.
func (l *Log) DropRemote() (bool, error) {
	if l.tiered() || l.logStart >= l.segments[0].base {
		return false, nil
	}
	if err := l.writable(); err != nil {
		return false, err
	}
	return true, l.fail("move the log start", l.moveStart(l.segments[0].base))
}

// localRetention is how long and how much of the log is kept here; -1 for no limit.
func (l *Log) localRetention() (maxMs, maxBytes int64) {
	if !l.copied() {
		return l.config.RetentionMs, l.config.RetentionBytes
	}
	return l.config.LocalRetention()
}

// deletable says whether retention may delete a segment that ends at an offset: one that is to be copied waits for that,
// unless the log begins behind it.
func (l *Log) deletable(end int64) bool {
	return !l.copied() || end <= l.remoteEnd || end <= l.logStart
}

// rollExpired begins a new segment when the active one of a tiered log is due to go, by its age or because nothing at all is to
// stay here, since only closed segments are copied. It waits until all before it have been, so that a store that is away does not leave many small segments.
func (l *Log) rollExpired(now time.Time) error {
	active := l.active()
	maxMs, maxBytes := l.localRetention()
	if !l.copied() || active.size == 0 || l.highWatermark < l.logEnd || len(l.segments) > 1 && active.base > l.remoteEnd {
		return nil
	}
	due := maxBytes == 0
	if !due && maxMs >= 0 {
		t, err := l.largestTime(active)
		if err != nil {
			return err
		}
		due = now.UnixMilli()-t > maxMs
	}
	if !due {
		return nil
	}
	return l.rollAt(l.logEnd)
}

// truncateBelowLocal removes everything that is here, because the log is cut at an offset before it. What is remote below the
// offset still belongs to a tiered log.
func (l *Log) truncateBelowLocal(offset int64) error {
	start, history := l.logStart, l.epochs
	if !l.tiered() || offset < start {
		return l.TruncateFullyAndStartAt(offset)
	}
	history.truncateFromEnd(offset)
	return l.StartLocallyAt(LocalStart{LogStart: start, LocalStart: offset, epochs: history})
}

// LocalStart is what a tiered log is when its older part is in the remote tier.
type LocalStart struct {
	// LogStart is where the log begins, LocalStart where its local part does.
	LogStart, LocalStart int64
	// Epochs are the leader epochs from the log's start up to the local one.
	Epochs []storage.EpochStart
	// Producers is a producer snapshot of the local start; empty for none.
	Producers []byte

	epochs epochs
}

// StartLocallyAt empties the log and lets its local part begin at an offset, behind what is in the remote tier. Writer only.
func (l *Log) StartLocallyAt(at LocalStart) error {
	if err := l.writable(); err != nil {
		return err
	}
	var list []producer
	if len(at.Producers) > 0 {
		var err error
		if list, err = parseSnapshot(at.Producers); err != nil {
			return errcode.CorruptMessage.Wrap(fmt.Errorf("producers of %s at %d: %w", l.dir, at.LocalStart, err))
		}
	}
	for _, e := range at.Epochs {
		if e.StartOffset < at.LocalStart {
			at.epochs.assign(e.Epoch, e.StartOffset)
		}
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	return l.fail("start behind the remote tier", l.startLocally(at, list))
}

func (l *Log) startLocally(at LocalStart, list []producer) error {
	start := min(at.LogStart, at.LocalStart)
	at.epochs.truncateFromStart(start)
	if err := l.startAt(at.LocalStart, at.epochs); err != nil {
		return err
	}
	l.producers.mu.Lock()
	if len(list) > 0 {
		l.producers.restore(list, at.LocalStart, l.now())
		l.producers.snapshotEnd = 0
	}
	unstable := l.producers.firstUnstable()
	l.producers.mu.Unlock()
	l.mu.Lock()
	l.logStart, l.firstUnstable = start, unstable
	l.mu.Unlock()
	return l.takeSnapshot()
}

// Epochs are the leader epochs from the log's start on.
func (l *Log) Epochs() []storage.EpochStart {
	l.mu.RLock()
	history := l.epochs
	l.mu.RUnlock()
	out := make([]storage.EpochStart, len(history))
	for i, e := range history {
		out[i] = storage.EpochStart{Epoch: e.epoch, StartOffset: e.start}
	}
	return out
}
