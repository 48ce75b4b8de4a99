package kraftlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"chancery/services/kafka/recordbatch"
)

const (
	segmentSuffix  = ".log"
	snapshotSuffix = ".checkpoint"
	partialSuffix  = ".part"
	// maxBatchBytes is more than any batch of the log has; a longer one is no batch.
	maxBatchBytes = 64 << 20
)

// segment is one file of the log.
type segment struct {
	base  int64
	bytes int64
	// began is when the segment's first batch was made.
	began time.Time
}

// snapshot is one snapshot's file.
type snapshot struct {
	end   int64
	epoch int32
	bytes int64
	made  time.Time
}

func segmentName(base int64) string { return fmt.Sprintf("%020d%s", base, segmentSuffix) }

func snapshotName(end int64, epoch int32) string {
	return fmt.Sprintf("%020d-%010d%s", end, epoch, snapshotSuffix)
}

// epochStart is where an epoch began.
type epochStart struct {
	epoch int32
	start int64
}

// listing is what a directory has, in the order of the offsets.
type listing struct {
	segments  []segment
	snapshots []snapshot
}

// list reads a directory, and removes what a crash has left half made.
func list(dir string) (listing, error) {
	var l listing
	entries, err := os.ReadDir(dir)
	if err != nil {
		return l, err
	}
	for _, e := range entries {
		name := e.Name()
		info, err := e.Info()
		switch {
		case err != nil:
			return l, err
		case strings.HasSuffix(name, partialSuffix):
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return l, err
			}
		case strings.HasSuffix(name, segmentSuffix):
			base, err := strconv.ParseInt(strings.TrimSuffix(name, segmentSuffix), 10, 64)
			if err == nil && segmentName(base) == name {
				l.segments = append(l.segments, segment{base: base, bytes: info.Size(), began: info.ModTime()})
			}
		case strings.HasSuffix(name, snapshotSuffix):
			var s snapshot
			_, err := fmt.Sscanf(strings.TrimSuffix(name, snapshotSuffix), "%d-%d", &s.end, &s.epoch)
			if err == nil && snapshotName(s.end, s.epoch) == name {
				s.bytes, s.made = info.Size(), info.ModTime()
				l.snapshots = append(l.snapshots, s)
			}
		}
	}
	slices.SortFunc(l.segments, func(a, b segment) int { return int(min(max(a.base-b.base, -1), 1)) })
	slices.SortFunc(l.snapshots, func(a, b snapshot) int { return int(min(max(a.end-b.end, -1), 1)) })
	return l, nil
}

// clearAll removes all segments and snapshots.
func clearAll(dir string) error {
	l, err := list(dir)
	if err != nil {
		return err
	}
	for _, s := range l.segments {
		err = errors.Join(err, os.Remove(filepath.Join(dir, segmentName(s.base))))
	}
	for _, s := range l.snapshots {
		err = errors.Join(err, os.Remove(filepath.Join(dir, snapshotName(s.end, s.epoch))))
	}
	return err
}

// scanned is what a segment's file has up to the first byte that is no whole batch.
type scanned struct {
	next   int64
	bytes  int64
	epochs []epochStart
	began  time.Time
}

// scan reads a segment and checks every batch in it.
func scan(path string, base int64) (scanned, error) {
	out := scanned{next: base}
	f, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer func() { _ = f.Close() }()
	r := bufio.NewReaderSize(f, 1<<20)
	batch := make([]byte, recordbatch.HeaderSize)
	for {
		batch = batch[:recordbatch.HeaderSize]
		if _, err := io.ReadFull(r, batch); err != nil {
			return out, tornOr(err)
		}
		h := recordbatch.Header(batch)
		size := h.Size()
		if size < recordbatch.HeaderSize || size > maxBatchBytes || h.BaseOffset() != out.next || h.LastOffsetDelta() < 0 {
			return out, nil
		}
		batch = append(batch, make([]byte, size-recordbatch.HeaderSize)...)
		if _, err := io.ReadFull(r, batch[recordbatch.HeaderSize:]); err != nil {
			return out, tornOr(err)
		}
		h = recordbatch.Header(batch)
		if !recordbatch.CheckCRC(batch) {
			return out, nil
		}
		if out.bytes == 0 {
			out.began = time.UnixMilli(h.BaseTimestamp())
		}
		if n := len(out.epochs); n == 0 || out.epochs[n-1].epoch != h.LeaderEpoch() {
			out.epochs = append(out.epochs, epochStart{h.LeaderEpoch(), h.BaseOffset()})
		}
		out.next, out.bytes = h.NextOffset(), out.bytes+int64(size)
	}
}

// tornOr takes the end of a file, be it in the middle of a batch, for no error.
func tornOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// replaceFile writes a small file in one step.
func replaceFile(path, text string) error {
	temporary := path + partialSuffix
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
