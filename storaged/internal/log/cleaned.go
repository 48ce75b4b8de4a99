package log

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/vfs"
)

// CleanedSegment is a segment that is being made by the cleaner, in files with the suffix .cleaned.
//
// A crash at any time leaves one of these, which load makes good again:
//
//  1. .cleaned files: they are removed, nothing has happened.
//  2. some .swap and some .cleaned files of one set: the .swap files from the least .cleaned offset on are removed. The files
//     are renamed from the highest offset down, so no part of a set is ever taken for the whole.
//  3. only .swap files: the set is complete. It replaces what lies in its range of offsets.
type CleanedSegment struct {
	cleaning *Cleaning
	base     int64
	file     vfs.File
	buf      []byte

	size      int64 // in the file and in buf
	written   int64 // in the file
	end       int64
	lastEntry int64
	offsets   []byte
	times     []byte
	aborted   []abortedTxn
	maxTime   int64
	maxOffset int64
}

// NewSegment begins a segment. bufferBytes is how much is written at once.
func (c *Cleaning) NewSegment(base int64, bufferBytes int) (*CleanedSegment, error) {
	s := &CleanedSegment{cleaning: c, base: base, end: base, maxTime: -1, maxOffset: base, buf: make([]byte, 0, bufferBytes)}
	if err := s.remove(); err != nil {
		return nil, s.wrap("begin", err)
	}
	f, err := c.log.fs.OpenFile(s.path(logSuffix), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
	if err != nil {
		return nil, s.wrap("begin", err)
	}
	s.file = f
	c.written = append(c.written, s)
	return s, nil
}

func (s *CleanedSegment) path(suffix string) string {
	return segmentPath(s.cleaning.log.dir, s.base, suffix) + cleanedSuffix
}

func (s *CleanedSegment) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return errcode.KafkaStorageError.Wrap(fmt.Errorf("%s cleaned segment %d of %s: %w", doing, s.base, s.cleaning.log.dir, err))
}

// SizeBytes is how large the segment is so far.
func (s *CleanedSegment) SizeBytes() int64 { return s.size }

// BaseOffset is the offset that the segment is named by.
func (s *CleanedSegment) BaseOffset() int64 { return s.base }

// Takes says whether a batch of so many bytes that ends at an offset fits: positions and offsets have 31 bits in the indexes.
func (s *CleanedSegment) Takes(size int, lastOffset int64) bool {
	return s.size == 0 || s.size+int64(size) <= maxSegmentBytes && lastOffset-s.base <= maxSegmentBytes
}

// Append writes a batch with the offsets that it has. The bytes are not kept.
func (s *CleanedSegment) Append(batch []byte) error {
	h := header(batch)
	if h.BaseOffset() < s.end {
		return fmt.Errorf("cleaned segment %d ends at %d, and gets %s", s.base, s.end, h)
	}
	if t := newestIn(h); t > s.maxTime {
		s.maxTime, s.maxOffset = t, h.LastOffset()
	}
	if s.size-s.lastEntry > int64(s.cleaning.config.IndexIntervalBytes) {
		s.offsets = appendOffsetEntry(s.offsets, h.LastOffset()-s.base, s.size)
		s.addTime()
		s.lastEntry = s.size
	}
	if len(s.buf)+len(batch) > cap(s.buf) {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if len(batch) > cap(s.buf) {
		if _, err := s.file.WriteAt(batch, s.written); err != nil {
			return s.wrap("write", err)
		}
		s.written += int64(len(batch))
	} else {
		s.buf = append(s.buf, batch...)
	}
	s.size += int64(len(batch))
	s.end = h.NextOffset()
	return nil
}

func (s *CleanedSegment) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	_, err := s.file.WriteAt(s.buf, s.written)
	s.written += int64(len(s.buf))
	s.buf = s.buf[:0]
	return s.wrap("write", err)
}

func (s *CleanedSegment) addTime() {
	if n := len(s.times); s.maxTime >= 0 && (n == 0 || entryTime(s.times[n-timeEntryBytes:]) < s.maxTime) {
		s.times = appendTimeEntry(s.times, s.maxTime, s.maxOffset-s.base)
	}
}

// AppendAborted notes a transaction whose marker has been appended, and of which records remain.
func (s *CleanedSegment) AppendAborted(t AbortedTxn) {
	s.aborted = append(s.aborted, abortedTxn{producerID: t.ProducerID, first: t.FirstOffset, last: t.LastOffset, lastStable: t.LastStableOffset})
}

// Finish makes the segment durable. The log's file gets the given time of modification: that of the youngest source.
func (s *CleanedSegment) Finish(modified time.Time) error {
	if err := s.flush(); err != nil {
		return err
	}
	s.addTime()
	s.buf = nil
	fsys := s.cleaning.log.fs
	err := errors.Join(s.file.Sync(), s.file.Close())
	s.file = nil
	if err == nil {
		err = fsys.Chtimes(s.path(logSuffix), modified)
	}
	for _, x := range []struct {
		suffix string
		data   []byte
	}{{indexSuffix, s.offsets}, {timeIndexSuffix, s.times}, {txnIndexSuffix, encodeAborted(s.aborted)}} {
		if err == nil && (x.suffix != txnIndexSuffix || len(x.data) > 0) {
			err = writeSynced(fsys, s.path(x.suffix), x.data)
		}
	}
	return s.wrap("finish", err)
}

func encodeAborted(list []abortedTxn) []byte {
	var data []byte
	for _, t := range list {
		data = appendAbortedTxn(data, t)
	}
	return data
}

func writeSynced(fsys vfs.FS, path string, data []byte) error {
	f, err := fsys.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove removes the files.
func (s *CleanedSegment) remove() error {
	var errs []error
	if s.file != nil {
		errs = append(errs, s.file.Close())
		s.file = nil
	}
	for _, suffix := range segmentSuffixes {
		errs = append(errs, removeIfThere(s.cleaning.log.fs, s.path(suffix)))
	}
	return errors.Join(errs...)
}

// segmentSuffixes are those of a segment's files.
var segmentSuffixes = []string{logSuffix, indexSuffix, timeIndexSuffix, txnIndexSuffix}

// Replace puts the finished segments into the place of a run of sources, which lose their names at once and their space after
// file.delete.delay.ms. When the log does not have those sources any more it is ErrCleaningAborted, and nothing has changed.
// Writer only.
func (c *Cleaning) Replace(first, count int) error {
	l := c.log
	if err := c.Alive(); err != nil {
		return err
	}
	old := make([]*segment, count)
	for i := range old {
		old[i] = c.sources[first+i].segment
	}
	at := slices.Index(l.segments, old[0])
	if at < 0 || at+count >= len(l.segments) || !slices.Equal(l.segments[at:at+count], old) {
		return ErrCleaningAborted
	}
	fresh := make([]*segment, len(c.written))
	for i, w := range c.written {
		fresh[i] = w.segment(old[count-1])
	}
	l.names.Lock()
	defer l.names.Unlock()
	if err := c.swap(old); err != nil {
		return l.fail("replace segments by cleaned ones", err)
	}
	c.written = nil
	l.mu.Lock()
	l.changes++
	l.dirDirty = true
	l.segments = slices.Concat(l.segments[:at], fresh, l.segments[at+count:])
	l.mu.Unlock()
	for _, s := range old {
		s.release()
	}
	return l.fail("remove producer snapshots", l.removeSnapshots(func(o int64) bool {
		return slices.ContainsFunc(old, func(s *segment) bool { return s.base == o }) &&
			!slices.ContainsFunc(fresh, func(s *segment) bool { return s.base == o })
	}))
}

// swap renames the files. Between its two halves the new names are made durable: the old files must not be gone before.
func (c *Cleaning) swap(old []*segment) error {
	l := c.log
	for _, w := range slices.Backward(c.written) {
		for _, suffix := range segmentSuffixes {
			from := w.path(suffix)
			if err := renameIfThere(l.fs, from, strings.TrimSuffix(from, cleanedSuffix)+swapSuffix); err != nil {
				return err
			}
		}
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	leave(old)
	if err := l.removeFiles(old, true); err != nil {
		return err
	}
	for _, w := range c.written {
		for _, suffix := range segmentSuffixes {
			to := segmentPath(l.dir, w.base, suffix)
			if err := renameIfThere(l.fs, to+swapSuffix, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func renameIfThere(fsys vfs.FS, from, to string) error {
	if err := fsys.Rename(from, to); err != nil && !isNotExist(err) {
		return fmt.Errorf("rename %s: %w", filepath.Base(from), err)
	}
	return nil
}

// segment is the finished segment as the log has it. Its files are opened when somebody needs them.
func (s *CleanedSegment) segment(last *segment) *segment {
	l := s.cleaning.log
	out := newSegment(l.fs, l.dir, s.base, last.created)
	out.size = s.size
	out.jitter = last.jitter
	out.aborted, out.abortedLoaded = s.aborted, true
	return out
}
