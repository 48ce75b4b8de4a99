package log

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/vfs"
)

func newDirID() uuid.UUID { return uuid.Random() }

func fileDeleteDelay(c *configdef.Topic) time.Duration {
	return time.Duration(c.FileDeleteDelayMs) * time.Millisecond
}

// TruncateTo removes everything from an offset on; a batch that has the offset inside goes as a whole. Writer only.
func (l *Log) TruncateTo(offset int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	if offset < 0 {
		return fmt.Errorf("truncate %s to %d: negative offset", l.dir, offset)
	}
	if offset >= l.logEnd {
		// A leader that never wrote anything may have left its epoch behind at the log's end.
		l.mu.Lock()
		changed := l.epochs.truncateFromEnd(l.logEnd)
		l.mu.Unlock()
		if changed {
			return l.fail("write leader epochs", l.writeEpochs())
		}
		return nil
	}
	if offset < l.segments[0].base {
		return l.truncateBelowLocal(offset)
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	return l.fail("truncate", l.truncate(offset))
}

// lowerRecoveryPoint makes sure that what changes from an offset on is looked at after a crash.
func (l *Log) lowerRecoveryPoint(offset int64) {
	l.mu.Lock()
	fell := l.recoveryPoint > offset
	l.recoveryPoint = min(l.recoveryPoint, offset)
	l.mu.Unlock()
	if fell && l.recoveryPointFell != nil {
		l.recoveryPointFell()
	}
}

func (l *Log) truncate(offset int64) error {
	i := l.segmentAt(offset)
	s := l.segments[i]
	if err := l.loadIndexes(s); err != nil {
		if !errors.Is(err, errIndex) {
			return err
		}
		if err := l.rebuildIndexes(s); err != nil {
			return err
		}
	}
	v, _ := l.viewOfSegment(s)
	defer v.close()
	b, err := v.find(offset)
	if err != nil {
		return err
	}
	position, end := s.size, offset
	if b.size != 0 {
		position, end = b.position, min(offset, b.base)
	}
	l.lowerRecoveryPoint(end)
	removed := l.segments[i+1:]
	if err := l.cutSegment(s, position, end, removed); err != nil {
		return err
	}
	if err := l.removeFiles(removed, false); err != nil {
		return err
	}
	if err := l.removeSnapshots(func(o int64) bool { return o > end }); err != nil {
		return err
	}
	// Neither segments nor snapshots may come back behind a power loss.
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	if err := l.writeEpochs(); err != nil {
		return err
	}
	return l.rebuildProducers()
}

// cutSegment makes a segment the active one and lets it end at a position, where the log's end offset is then end. The
// segments after it leave the log.
func (l *Log) cutSegment(s *segment, position, end int64, removed []*segment) error {
	f, err := l.open(s)
	if err != nil {
		return err
	}
	aborted, err := l.abortedOf(s)
	if err != nil {
		return err
	}
	kept := slices.IndexFunc(aborted, func(t abortedTxn) bool { return t.last >= end })
	if kept < 0 {
		kept = len(aborted)
	}
	offsets, times, err := l.entriesBefore(s, position, end)
	if err != nil {
		return err
	}
	// Readers must know before the file changes, so that what they find there then is not taken for a broken disk.
	l.mu.Lock()
	l.cuts++
	l.changes++
	l.segments = l.segments[: l.segmentAt(s.base)+1 : l.segmentAt(s.base)+1]
	s.size, l.logEnd = position, end
	l.logStart = min(l.logStart, end)
	l.cleanedTo = min(l.cleanedTo, end)
	l.highWatermark = min(l.highWatermark, end)
	l.recent.cut(position)
	if len(removed) > 0 {
		l.recent.clear()
	}
	l.epochs.truncateFromEnd(end)
	s.aborted = aborted[:kept:kept]
	err = errors.Join(s.offsets.cut(l.fs, offsets), s.times.cut(l.fs, times))
	l.mu.Unlock()
	if err != nil {
		return err
	}
	// What was cut off must not come back behind a power loss, between what stays and what is appended from now on: no check
	// could tell it from the rest of the log.
	if err := errors.Join(f.Truncate(position), f.Sync()); err != nil {
		return err
	}
	if err := cutAbortedTxns(l.fs, s.path(txnIndexSuffix), kept); err != nil {
		return err
	}
	if position == 0 {
		s.created, s.firstTime = l.now(), noFirstTime
	}
	s.sinceEntry = 0
	return l.resetMaxTime(s)
}

// entriesBefore counts the index entries that are about batches before a position and offset.
func (l *Log) entriesBefore(s *segment, position, end int64) (offsets, times int, err error) {
	page := l.pools.page()
	defer l.pools.freePage(page)
	slot, _, err := s.offsets.search(position-1, entryPosition, *page)
	if err != nil {
		return 0, 0, err
	}
	offsets = slot + 1
	slot, _, err = s.times.search(end-1-s.base, entryTimeOffset, *page)
	return offsets, slot + 1, err
}

// resetMaxTime finds the largest timestamp of a segment that was cut: the last entry's, or that of a batch after it.
func (l *Log) resetMaxTime(s *segment) error {
	last, err := s.times.last()
	if err != nil {
		return err
	}
	largest, where := int64(-1), s.base
	if last != nil {
		largest, where = entryTime(last), s.base+entryTimeOffset(last)
	}
	f, err := l.open(s)
	if err != nil {
		return err
	}
	page := l.pools.page()
	defer l.pools.freePage(page)
	slot, entry, err := s.offsets.search(where-s.base, entryOffset, *page)
	if err != nil {
		return err
	}
	position := int64(0)
	if slot >= 0 {
		position = entryPosition(entry[:])
	}
	scan := scanner{file: f, at: position, end: s.size, buf: (*page)[:scanBytes]}
	for {
		h, err := scan.next()
		if err != nil {
			return err
		}
		if h == nil {
			break
		}
		if t := newestIn(h); t > largest {
			largest, where = t, h.LastOffset()
		}
	}
	l.mu.Lock()
	s.maxTime, s.maxTimeOffset = largest, where
	l.mu.Unlock()
	return nil
}

// TruncateFullyAndStartAt empties the log and lets it begin at an offset. Writer only.
func (l *Log) TruncateFullyAndStartAt(offset int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	return l.fail("truncate", l.startAt(offset, nil))
}

// startAt lets the log begin anew at an offset. history are the leader epochs before it, of what is in the remote tier.
func (l *Log) startAt(offset int64, history epochs) error {
	old := l.segments
	l.lowerRecoveryPoint(min(offset, old[0].base))
	l.names.Lock()
	defer l.names.Unlock()
	leave(old)
	// The old files make room first: one of them may have the new segment's name.
	if err := l.removeFiles(old, true); err != nil {
		return err
	}
	if len(history) > 0 {
		// No record tells what was before the first segment, so that must be known whenever the segment is there.
		if err := vfs.WriteFileAtomically(l.fs, filepath.Join(l.dir, epochCheckpointName), history.encode(), true); err != nil {
			return err
		}
	}
	s, err := l.createSegment(offset)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.cuts++
	l.changes++
	l.segments = []*segment{s}
	l.logStart, l.logEnd, l.highWatermark, l.firstUnstable = offset, offset, offset, -1
	l.recoveryPoint = offset
	l.cleanedTo = 0
	l.epochs = history
	l.recent.clear()
	l.dirDirty = true
	l.mu.Unlock()
	for _, o := range old {
		o.release()
	}
	if len(history) == 0 {
		if err := l.writeEpochs(); err != nil {
			return err
		}
	}
	if err := l.cutSnapshots(-1); err != nil {
		return err
	}
	l.producers.mu.Lock()
	l.producers.reset(offset)
	l.producers.mu.Unlock()
	return nil
}

// removeFiles takes the files of segments away: their names at once, and the space after file.delete.delay.ms. With
// keepHold the caller still has to release the segments; otherwise that is done, too.
func (l *Log) removeFiles(segments []*segment, keepHold bool) error {
	var paths []string
	for _, s := range segments {
		for _, suffix := range []string{logSuffix, indexSuffix, timeIndexSuffix, txnIndexSuffix} {
			to := s.path(suffix) + deletedSuffix
			err := l.fs.Rename(s.path(suffix), to)
			if err == nil {
				paths = append(paths, to)
			} else if !isNotExist(err) {
				return err
			}
		}
		if !keepHold {
			s.release()
		}
	}
	if len(paths) == 0 {
		return nil
	}
	l.later(func() error {
		var errs []error
		for _, p := range paths {
			errs = append(errs, removeIfThere(l.fs, p))
		}
		return errors.Join(errs...)
	})
	return nil
}

// SetLogStartOffset hides everything before an offset and deletes segments that are hidden as a whole. An offset that is
// not above the present one changes nothing. Writer only.
func (l *Log) SetLogStartOffset(offset int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	if offset > l.logEnd {
		return errcode.OffsetOutOfRange.Errorf("Cannot increment the log start offset to %d of partition %s-%d since it is larger than its end %d",
			offset, l.topic, l.partition, l.logEnd)
	}
	if err := l.moveStart(offset); err != nil {
		return l.fail("move the log start", err)
	}
	_, err := l.deleteHidden()
	return l.fail("delete segments", err)
}

func (l *Log) moveStart(offset int64) error {
	if offset <= l.logStart {
		return nil
	}
	l.producers.mu.Lock()
	l.producers.committed(offset)
	unstable := l.producers.firstUnstable()
	l.producers.mu.Unlock()
	l.mu.Lock()
	l.logStart, l.firstUnstable = offset, unstable
	changed := l.epochs.truncateFromStart(offset)
	l.mu.Unlock()
	if changed {
		return l.writeEpochs()
	}
	return nil
}

// DeleteRetired deletes segments that are too old, too much, or before the log's start, none of them above the high
// watermark, and says whether the log's start moved. It is also the time to let go of files that nobody has read for
// a while. Writer only.
func (l *Log) DeleteRetired(now time.Time) (bool, error) {
	if err := l.writable(); err != nil {
		return false, err
	}
	before := l.logStart
	_, err := l.deleteHidden()
	if err == nil && l.config.CleanupDelete {
		maxMs, maxBytes := l.localRetention()
		err = l.deleteBySize(maxBytes)
		if err == nil {
			err = l.deleteByTime(now, maxMs)
		}
		if err == nil {
			err = l.rollExpired(now)
		}
	}
	l.unloadIdle()
	return l.logStart > before, l.fail("delete segments", err)
}

func (l *Log) deleteHidden() (int, error) {
	return l.deleteWhile(func(i int) (bool, error) {
		return i+1 < len(l.segments) && l.segments[i+1].base <= l.logStart, nil
	})
}

func (l *Log) deleteBySize(maxBytes int64) error {
	if maxBytes < 0 {
		return nil
	}
	excess := l.Size() - maxBytes
	if excess < 0 {
		return nil
	}
	_, err := l.deleteWhile(func(i int) (bool, error) {
		if excess < l.segments[i].size {
			return false, nil
		}
		excess -= l.segments[i].size
		return true, nil
	})
	return err
}

func (l *Log) deleteByTime(now time.Time, maxMs int64) error {
	if maxMs < 0 {
		return nil
	}
	_, err := l.deleteWhile(func(i int) (bool, error) {
		t, err := l.largestTime(l.segments[i])
		if errors.Is(err, errIndex) {
			if err := l.rebuildIndexes(l.segments[i]); err != nil {
				return false, err
			}
			t, err = l.largestTime(l.segments[i])
		}
		return err == nil && now.UnixMilli()-t > maxMs, err
	})
	return err
}

// deleteWhile deletes segments from the oldest on while a condition holds and they lie below the high watermark. When
// all go, a new one begins first. An empty active segment stays.
func (l *Log) deleteWhile(condition func(i int) (bool, error)) (int, error) {
	n := 0
	for n < len(l.segments) {
		last := n == len(l.segments)-1
		end := l.logEnd
		if !last {
			end = l.segments[n+1].base
		}
		if l.highWatermark < end || last && l.segments[n].size == 0 || !l.deletable(end) {
			break
		}
		ok, err := condition(n)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		n++
	}
	if n == 0 {
		return 0, nil
	}
	if n == len(l.segments) {
		if err := l.rollAt(l.logEnd); err != nil {
			return 0, err
		}
	}
	old, next := l.segments[:n], l.segments[n].base
	// What has been copied stays a part of the log, whose history is then nowhere but in the file of epochs.
	if l.copied() {
		if err := l.syncPath(epochCheckpointName); err != nil {
			return 0, err
		}
	} else {
		if err := l.moveStart(next); err != nil {
			return 0, err
		}
	}
	l.mu.Lock()
	l.segments = slices.Clone(l.segments[n:])
	l.mu.Unlock()
	leave(old)
	l.logger.Info("segments deleted", "first", old[0].base, "up to", next)
	if err := l.removeFiles(old, false); err != nil {
		return n, err
	}
	return n, l.removeSnapshots(func(o int64) bool { return o < next })
}

// unloadIdle closes the files of inactive segments and forgets their indexes, unless somebody has a hold on them. The files of
// the active segment are closed when nothing was written since the last time: a node may have more partitions than files.
func (l *Log) unloadIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.active(); s.refs.Load() == 1 && s.size == s.idleSize {
		s.closeFiles()
		l.yieldFiles()
	} else {
		s.idleSize = s.size
	}
	for _, s := range l.segments[:len(l.segments)-1] {
		if s.refs.Load() > 1 {
			continue
		}
		s.closeFiles()
		_ = s.offsets.close()
		_ = s.times.close()
		s.loaded = false
		s.offsets = index{path: s.offsets.path, entry: offsetEntryBytes}
		s.times = index{path: s.times.path, entry: timeEntryBytes}
	}
}
