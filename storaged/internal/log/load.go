package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"chancery/services/kafka/errcode"
	"chancery/services/vfs"
)

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// load opens the files, or makes them, and recovers what has to be.
func (l *Log) load(clean bool) error {
	if err := l.fs.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	if err := l.loadMetadata(); err != nil {
		return err
	}
	if err := l.cleanUp(); err != nil {
		return err
	}
	if err := l.findSegments(); err != nil {
		return err
	}
	epochsKnown, err := l.loadEpochs()
	if err != nil {
		return err
	}
	if len(l.segments) == 0 {
		if err := l.firstSegment(); err != nil {
			return err
		}
	}
	upTo := l.recoveryPoint
	if clean {
		upTo = l.active().base
	} else {
		// What a process that crashed has written may not be durable yet, the names of its files among it.
		l.dirDirty, l.epochsDirty, l.metadataDirty = true, true, true
	}
	from, err := l.soundUpTo(upTo)
	if err != nil {
		return err
	}
	if !clean || from < upTo {
		if err := l.recoverFrom(from); err != nil {
			return err
		}
	}
	if err := l.openActive(); err != nil {
		return err
	}
	if l.logEnd < l.logStart {
		l.logger.Warn("the log ends before its start, which was checkpointed: it begins anew there", "end", l.logEnd, "start", l.logStart)
		if err := l.startAt(l.logStart, nil); err != nil {
			return err
		}
	}
	l.logStart = l.loadedStart(epochsKnown)
	l.recoveryPoint = min(l.recoveryPoint, l.logEnd)
	if l.cleanedTo > l.logEnd {
		l.logger.Warn("the log was cleaned further than it goes: it counts as not cleaned", "cleaned", l.cleanedTo, "end", l.logEnd)
		l.cleanedTo = 0
	}
	if clean {
		l.recoveryPoint = l.logEnd
	}
	if !epochsKnown {
		if err := l.rebuildEpochs(); err != nil {
			return err
		}
	}
	if fromEnd, fromStart := l.epochs.truncateFromEnd(l.logEnd), l.epochs.truncateFromStart(l.logStart); fromEnd || fromStart || !epochsKnown {
		if err := l.writeEpochs(); err != nil {
			return err
		}
	}
	return l.loadProducers(clean)
}

// firstSegment makes the segment of an empty log.
func (l *Log) firstSegment() error {
	s, err := l.createSegment(l.logStart)
	if err != nil {
		return err
	}
	l.segments, l.dirDirty = []*segment{s}, true
	l.logEnd = s.base
	return nil
}

// cleanUp removes what a crash has left, and finishes what the cleaner had begun: once new segments have the suffix
// .swap, they replace those that they were made from.
func (l *Log) cleanUp() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var swaps []string
	leastCleaned := int64(1<<63 - 1)
	for _, e := range entries {
		name := e.Name()
		base, _, _ := parseSegmentName(name)
		switch {
		case strings.HasSuffix(name, swapSuffix):
			swaps = append(swaps, name)
		case strings.HasSuffix(name, cleanedSuffix):
			leastCleaned = min(leastCleaned, base)
			err = errors.Join(err, removeIfThere(l.fs, filepath.Join(l.dir, name)))
		case strings.HasSuffix(name, deletedSuffix), strings.HasSuffix(name, ".tmp"):
			err = errors.Join(err, removeIfThere(l.fs, filepath.Join(l.dir, name)))
		}
	}
	if err != nil || len(swaps) == 0 {
		return err
	}
	return l.finishSwap(swaps, leastCleaned, entries)
}

// finishSwap lets swapped segments take the place of those that they were made from. Ones from leastCleaned on belong to
// a set that was not finished.
func (l *Log) finishSwap(swaps []string, leastCleaned int64, entries []os.DirEntry) error {
	first, end := int64(1<<63-1), int64(-1)
	valid := swaps[:0]
	for _, name := range swaps {
		base, _, ok := parseSegmentName(name)
		if !ok || base >= leastCleaned {
			if err := removeIfThere(l.fs, filepath.Join(l.dir, name)); err != nil {
				return err
			}
			continue
		}
		valid = append(valid, name)
		if strings.HasSuffix(name, logSuffix+swapSuffix) {
			next, err := endOfFile(l.fs, filepath.Join(l.dir, name), base)
			if err != nil {
				return err
			}
			first, end = min(first, base), max(end, next)
		}
	}
	for _, e := range entries {
		base, suffix, ok := parseSegmentName(e.Name())
		if ok && !strings.HasSuffix(suffix, swapSuffix) && base >= first && base < end {
			if err := removeIfThere(l.fs, filepath.Join(l.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, name := range valid {
		path := filepath.Join(l.dir, name)
		if err := l.fs.Rename(path, strings.TrimSuffix(path, swapSuffix)); err != nil {
			return err
		}
	}
	return nil
}

// endOfFile gives the offset after the last batch of a file.
func endOfFile(fsys vfs.FS, path string, base int64) (int64, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read from
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	scan := scanner{file: f, end: size, buf: make([]byte, scanBytes)}
	end := base
	for {
		h, err := scan.next()
		if err != nil || h == nil {
			return end, err
		}
		end = h.NextOffset()
	}
}

// findSegments lists the segments and snapshots. Index files without records go.
func (l *Log) findSegments() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	bases := map[int64]bool{}
	for _, e := range entries {
		base, suffix, ok := parseSegmentName(e.Name())
		if !ok || suffix != logSuffix {
			continue
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if st.Size() > maxSegmentBytes {
			return fmt.Errorf("segment %s has %d bytes, which no index can point into", e.Name(), st.Size())
		}
		bases[base] = true
		s := newSegment(l.fs, l.dir, base, st.ModTime())
		s.size = st.Size()
		s.jitter = segmentJitter(l.config, l.jitter)
		l.segments = append(l.segments, s)
	}
	slices.SortFunc(l.segments, func(a, b *segment) int { return int(min(1, max(-1, a.base-b.base))) })
	for _, e := range entries {
		base, suffix, ok := parseSegmentName(e.Name())
		switch {
		case ok && suffix == snapshotSuffix:
			l.snapshots = append(l.snapshots, base)
		case ok && !bases[base] && (suffix == indexSuffix || suffix == timeIndexSuffix || suffix == txnIndexSuffix):
			l.logger.Warn("index without its segment is removed", "file", e.Name())
			if err := removeIfThere(l.fs, filepath.Join(l.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	slices.Sort(l.snapshots)
	return nil
}

// loadEpochs reads the leader epochs. False says that they are not known and must be read from the records.
func (l *Log) loadEpochs() (bool, error) {
	data, err := l.fs.ReadFile(filepath.Join(l.dir, epochCheckpointName))
	if isNotExist(err) {
		// A new log has none, and no records either.
		return len(l.segments) == 0, nil
	}
	if err != nil {
		return false, err
	}
	if len(data) == 0 {
		// Kafka leaves an empty file in a new partition, and a power loss may leave one anywhere.
		return !slices.ContainsFunc(l.segments, func(s *segment) bool { return s.size > 0 || s.base > 0 }), nil
	}
	l.epochs, err = parseEpochs(data)
	if err != nil {
		l.logger.Warn("the leader epochs are broken, they are read from the records", "error", err)
		l.epochs = nil
		return false, nil
	}
	return true, nil
}

// rebuildEpochs reads the leader epochs from all batches. The first one is taken for that of records in the remote tier, too: the
// log must not seem to begin where its local part does.
func (l *Log) rebuildEpochs() error {
	l.epochs = nil
	for _, s := range l.segments {
		err := l.eachHeader(s, 0, func(h header, _ int64) error {
			if h.LeaderEpoch() > l.epochs.latest() {
				l.epochs.assign(h.LeaderEpoch(), h.BaseOffset())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if l.tiered() && len(l.epochs) > 0 {
		l.epochs[0].start = min(l.epochs[0].start, l.logStart)
	}
	return nil
}

// soundUpTo is where recovery has to begin: at the recovery point, or at the first segment before it whose transaction index is broken,
// since it can be built only from the records. Kafka checks it at each start, too.
func (l *Log) soundUpTo(recoveryPoint int64) (int64, error) {
	for _, s := range l.segments[:max(0, l.segmentAt(recoveryPoint))] {
		_, err := loadAbortedTxns(l.fs, s.path(txnIndexSuffix), s.base)
		if errors.Is(err, errIndex) {
			l.logger.Warn("the log is recovered from a broken transaction index on", "segment", s.base, "error", err)
			return s.base, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return recoveryPoint, nil
}

// openActive loads the last segment's indexes and finds the log's end.
func (l *Log) openActive() error {
	s := l.active()
	if !s.loaded {
		err := l.loadIndexes(s)
		if errors.Is(err, errIndex) {
			l.logger.Warn("the indexes of the active segment are rebuilt", "error", err)
			err = l.recoverFrom(s.base)
			s = l.active()
		}
		if err != nil {
			return err
		}
	}
	aborted, err := loadAbortedTxns(l.fs, s.path(txnIndexSuffix), s.base)
	if errors.Is(err, errIndex) {
		l.logger.Warn("the transaction index of the active segment is rebuilt", "error", err)
		if err := l.recoverFrom(s.base); err != nil {
			return err
		}
		s = l.active()
		aborted, err = loadAbortedTxns(l.fs, s.path(txnIndexSuffix), s.base)
	}
	if err != nil {
		return err
	}
	s.aborted, s.abortedLoaded = aborted, true
	err = l.findEnd(s)
	if errcode.Of(err) == errcode.CorruptMessage || errors.Is(err, io.ErrUnexpectedEOF) {
		l.logger.Warn("the log was closed but does not end with a whole batch", "error", err)
		if err := l.recoverFrom(s.base); err != nil {
			return err
		}
		err = l.findEnd(s)
	}
	return err
}

// findEnd finds the log's end from the last index entry on. A closed log ends with a whole batch.
func (l *Log) findEnd(s *segment) error {
	position := int64(0)
	last, err := s.offsets.last()
	if err != nil {
		return err
	}
	if last != nil {
		position = entryPosition(last)
	}
	l.logEnd = s.base
	return l.eachHeader(s, position, func(h header, _ int64) error {
		l.logEnd = h.NextOffset()
		if t := newestIn(h); t > s.maxTime {
			s.maxTime, s.maxTimeOffset = t, h.LastOffset()
		}
		return nil
	})
}

// loadProducers brings the producers to the log's end, and drops snapshots that nothing needs.
func (l *Log) loadProducers(clean bool) error {
	newest := int64(-1)
	if n := len(l.snapshots); n > 0 {
		newest = l.snapshots[n-1]
	}
	if err := l.cutSnapshots(l.logEnd); err != nil {
		return err
	}
	err := l.removeSnapshots(func(o int64) bool {
		return o != newest && !slices.ContainsFunc(l.segments, func(s *segment) bool { return s.base == o })
	})
	if err != nil {
		return err
	}
	if clean && len(l.snapshots) == 0 {
		// A log that was closed without a snapshot had no producers.
		l.producers.reset(l.logEnd)
		return nil
	}
	if !clean && l.producers.end == l.logEnd {
		l.firstUnstable = l.producers.firstUnstable()
		return nil // the recovery has brought them there
	}
	return l.rebuildProducers()
}

// rebuildProducers brings the producers from the newest snapshot to the log's end.
func (l *Log) rebuildProducers() error {
	if err := l.restoreProducers(l.logEnd); err != nil {
		return err
	}
	if err := l.replayProducers(l.logEnd); err != nil {
		return err
	}
	l.producers.mu.Lock()
	unstable := l.producers.firstUnstable()
	l.producers.mu.Unlock()
	l.mu.Lock()
	l.firstUnstable = unstable
	l.mu.Unlock()
	return nil
}

// replayProducers goes on from where the state is to an offset.
func (l *Log) replayProducers(to int64) error {
	from := l.producers.end
	if from >= to {
		return nil // the snapshot says it all
	}
	for i := max(0, l.segmentAt(from)); i < len(l.segments) && l.segments[i].base < to; i++ {
		s := l.segments[i]
		err := l.eachHeader(s, 0, func(h header, position int64) error {
			if h.LastOffset() < from || h.BaseOffset() >= to || !h.HasProducerID() {
				return nil
			}
			return l.replayBatch(s, h, position)
		})
		if err != nil {
			return err
		}
	}
	l.producers.end = max(l.producers.end, to)
	return nil
}
