package log

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"chancery/services/kafka/errcode"
	"chancery/services/vfs"
)

// Flush makes everything that is in the log durable and moves the recovery point to the log's end. Any goroutine may call
// it: appends go on meanwhile, and are not part of it.
func (l *Log) Flush() error {
	if err := l.writable(); err != nil {
		return err
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	return l.flushLocked()
}

func (l *Log) flushLocked() error {
	l.mu.RLock()
	end, point, cuts := l.logEnd, l.recoveryPoint, l.cuts
	epochsDirty, metadataDirty, dirDirty := l.epochsDirty, l.metadataDirty, l.dirDirty
	var segments []*segment
	if end > point {
		for _, s := range l.segments[max(0, l.segmentAt(point)):] {
			s.retain()
			segments = append(segments, s)
		}
	}
	l.mu.RUnlock()
	defer func() {
		for _, s := range segments {
			s.release()
		}
	}()
	for _, s := range segments {
		err := l.syncSegment(s)
		if s.leaving.Load() && errors.Is(err, os.ErrNotExist) {
			continue // what retention has deleted meanwhile need not last
		}
		if err != nil {
			return l.fail("flush", err)
		}
	}
	if epochsDirty {
		if err := l.syncPath(epochCheckpointName); err != nil {
			return l.fail("flush", err)
		}
	}
	if metadataDirty {
		if err := l.syncPath(partitionMetadataName); err != nil {
			return l.fail("flush", err)
		}
	}
	if epochsDirty || metadataDirty || dirDirty {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return l.fail("flush", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cuts == cuts {
		l.recoveryPoint = max(l.recoveryPoint, end)
		if epochsDirty {
			l.epochsDirty = false
		}
		if dirDirty {
			l.dirDirty = false
		}
	}
	l.metadataDirty = l.metadataDirty && !metadataDirty
	l.lastFlush = l.now()
	return nil
}

// syncSegment makes a segment's files durable.
func (l *Log) syncSegment(s *segment) error {
	f, err := l.open(s)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	for _, suffix := range []string{indexSuffix, timeIndexSuffix, txnIndexSuffix} {
		if err := syncFile(l.fs, s.path(suffix)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) syncPath(name string) error { return syncFile(l.fs, filepath.Join(l.dir, name)) }

// syncFile makes a file durable that may not exist, or not any more.
func syncFile(fsys vfs.FS, path string) error {
	f, err := fsys.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Close makes everything durable and ends the use of the log. Reads that are under way, and regions that were given out,
// stay good. Writer only.
func (l *Log) Close() error {
	if l.closed.Load() {
		return nil
	}
	err := l.closeCleanly()
	l.shut()
	return err
}

func (l *Log) closeCleanly() error {
	if err := l.writable(); err != nil {
		return err
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	if err := l.finishSegment(l.active()); err != nil {
		return l.fail("close", err)
	}
	if err := l.takeSnapshot(); err != nil {
		return l.fail("write a producer snapshot", err)
	}
	return l.flushLocked()
}

// Abandon ends the use of the log without writing anything, as a crash would: for a log whose disk has failed.
func (l *Log) Abandon() { l.shut() }

// shut gives back the files, and lets reads find nothing.
func (l *Log) shut() {
	if l.closed.Swap(true) {
		return
	}
	l.mu.Lock()
	l.yieldFiles()
	segments := l.segments
	l.mu.Unlock()
	for _, s := range segments {
		s.release()
	}
}

// Delete ends the use of the log and removes it: its directory is renamed at once, as Kafka does it, and goes away after
// file.delete.delay.ms. Writer only.
func (l *Log) Delete() error {
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	l.shut()
	to := filepath.Join(filepath.Dir(l.dir), deletedDirName(l.topic, l.partition, newDirID()))
	if err := l.fs.Rename(l.dir, to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errcode.KafkaStorageError.Wrap(fmt.Errorf("delete log: %w", err))
	}
	l.later(func() error { return l.fs.RemoveAll(to) })
	return nil
}

// later runs the removal of files after file.delete.delay.ms. A removal that fails is made up for at the next start.
func (l *Log) later(remove func() error) {
	l.after(fileDeleteDelay(l.config), func() {
		if err := remove(); err != nil {
			l.logger.Warn("files could not be removed", "error", err)
		}
	})
}
