package kraftlog

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
)

// snapshotBatchBytes is how large the batches of a snapshot become.
const snapshotBatchBytes = 64 << 10

// upkeep makes a snapshot when one is due, and drops what is too much.
func (c *Copy) upkeep(image *metadata.Image, now time.Time) error {
	due := c.grown >= c.SnapshotBytes || c.grown > 0 && c.SnapshotInterval > 0 && now.Sub(c.snapshotted) >= c.SnapshotInterval
	// The image may be ahead of the copy, which has its turn again when it is there, or behind it within a transaction.
	if due && image.Offset()+1 <= c.next && image.Offset() >= 0 {
		if err := c.snapshot(image, now); err != nil {
			return err
		}
	}
	return c.clean(now)
}

// snapshot stores an image; its name appears when all of it is on disk.
func (c *Copy) snapshot(image *metadata.Image, now time.Time) error {
	s := snapshot{end: image.Offset() + 1, epoch: image.Epoch(), made: now}
	if s.end == 0 {
		// An empty log has nothing to tell, and its first batch begins a segment.
		c.next, c.epochs, c.grown, c.snapshotted = 0, nil, 0, now
		return nil
	}
	if n := len(c.snapshots); n > 0 && c.snapshots[n-1].end >= s.end {
		c.grown, c.snapshotted = 0, now
		return nil
	}
	path := filepath.Join(c.Dir, snapshotName(s.end, s.epoch))
	bytes, err := c.writeSnapshot(path+partialSuffix, image, c.lastTimestampMs, now)
	if err != nil {
		return errors.Join(err, os.Remove(path+partialSuffix))
	}
	if err := os.Rename(path+partialSuffix, path); err != nil {
		return err
	}
	s.bytes = bytes
	c.snapshots = append(c.snapshots, s)
	c.grown, c.snapshotted = 0, now
	if len(c.segments) == 0 {
		c.next, c.epochs = s.end, []epochStart{{s.epoch, s.end}}
		return c.storeEpochs()
	}
	return nil
}

// writeSnapshot writes the file of a snapshot and gives its size.
func (c *Copy) writeSnapshot(path string, image *metadata.Image, lastTimestampMs int64, now time.Time) (int64, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	w := &snapshotWriter{w: bufio.NewWriterSize(f, 1<<20), epoch: image.Epoch(), nowMs: now.UnixMilli()}
	w.control(recordbatch.SnapshotHeader, snapshotHeader(lastTimestampMs))
	for r := range image.Records() {
		if hasPlace(r) {
			w.record(metarecord.Encode(r))
		}
	}
	w.flush()
	w.control(recordbatch.SnapshotFooter, snapshotFooter())
	return w.bytes, errors.Join(w.err, w.w.Flush(), c.sync(f), f.Close())
}

// snapshotWriter makes batches of records; after the first error it does nothing.
type snapshotWriter struct {
	w       *bufio.Writer
	builder *recordbatch.Builder
	epoch   int32
	nowMs   int64
	offset  int64
	bytes   int64
	err     error
}

func (w *snapshotWriter) control(kind recordbatch.ControlType, value []byte) {
	raw, err := controlBatch(w.offset, w.epoch, w.nowMs, kind, value)
	w.write(raw, err, 1)
}

func (w *snapshotWriter) record(frame []byte) {
	if w.builder == nil {
		o := recordbatch.NewOptions()
		o.BaseOffset, o.LeaderEpoch = w.offset, w.epoch
		w.builder = recordbatch.NewBuilder(nil, o)
	}
	w.builder.Append(w.nowMs, nil, frame)
	if w.builder.Size() >= snapshotBatchBytes {
		w.flush()
	}
}

func (w *snapshotWriter) flush() {
	if w.builder == nil {
		return
	}
	raw, err := w.builder.Build()
	w.write(raw, err, w.builder.Count())
	w.builder = nil
}

func (w *snapshotWriter) write(raw []byte, err error, records int) {
	if w.err == nil && err == nil {
		_, err = w.w.Write(raw)
	}
	w.err = errors.Join(w.err, err)
	w.offset += int64(records)
	w.bytes += int64(len(raw))
}

// clean drops the oldest snapshots while there is too much or they are too old, and then the segments that the oldest
// snapshot left covers. One snapshot always stays.
func (c *Copy) clean(now time.Time) error {
	total := int64(0)
	for _, s := range c.segments {
		total += s.bytes
	}
	for _, s := range c.snapshots {
		total += s.bytes
	}
	for len(c.snapshots) > 1 {
		oldest := c.snapshots[0]
		tooMuch := c.RetentionBytes >= 0 && total > c.RetentionBytes
		tooOld := c.Retention >= 0 && now.Sub(oldest.made) > c.Retention
		if !tooMuch && !tooOld {
			return nil
		}
		if err := os.Remove(filepath.Join(c.Dir, snapshotName(oldest.end, oldest.epoch))); err != nil {
			return err
		}
		c.snapshots, total = c.snapshots[1:], total-oldest.bytes
		freed, err := c.dropSegments(c.snapshots[0].end)
		if err != nil {
			return err
		}
		total -= freed
	}
	return nil
}

// dropSegments removes the closed segments that end at or before an offset.
func (c *Copy) dropSegments(below int64) (freed int64, err error) {
	for len(c.segments) > 1 && c.segments[1].base <= below {
		if err := os.Remove(filepath.Join(c.Dir, segmentName(c.segments[0].base))); err != nil {
			return freed, err
		}
		freed += c.segments[0].bytes
		c.segments = c.segments[1:]
	}
	if freed == 0 {
		return 0, nil
	}
	first := c.segments[0].base
	for len(c.epochs) > 1 && c.epochs[1].start <= first {
		c.epochs = c.epochs[1:]
	}
	c.epochs[0].start = max(c.epochs[0].start, first)
	return freed, c.storeEpochs()
}

// ReadSnapshot gives a part of a snapshot's file and the size of the whole; ok says that there is such a snapshot. A position
// outside the file gives no bytes.
func ReadSnapshot(dir string, end int64, epoch int32, position int64, maxBytes int) (part []byte, size int64, ok bool, err error) {
	f, err := os.Open(filepath.Join(dir, snapshotName(end, epoch)))
	if errors.Is(err, fs.ErrNotExist) || end < 0 || epoch < 0 {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, false, err
	}
	if position < 0 || position >= info.Size() {
		return nil, info.Size(), true, nil
	}
	part = make([]byte, min(int64(max(maxBytes, 0)), info.Size()-position))
	_, err = f.ReadAt(part, position)
	return part, info.Size(), true, err
}
