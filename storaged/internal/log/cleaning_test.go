package log

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"chancery/services/kafka/recordbatch"
	"chancery/services/vfs"
)

// dropped runs a cleaning that keeps only some batches, in the place of the first n segments.
func (f *fixture) dropped(n int, keep func(h recordbatch.Header) bool) {
	f.t.Helper()
	b, err := f.CleanBounds(f.clock)
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := f.BeginCleaning(b)
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	out, err := c.NewSegment(c.Sources()[0].Base, 100)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range n {
		r, err := c.Read(i, 0, 100)
		if err != nil {
			f.t.Fatal(err)
		}
		for {
			batch, err := r.Next()
			if err != nil {
				f.t.Fatal(err)
			}
			if batch == nil {
				break
			}
			if keep(batch) {
				if err := out.Append(batch); err != nil {
					f.t.Fatal(err)
				}
			}
		}
	}
	if err := out.Finish(c.Sources()[n-1].Modified); err != nil {
		f.t.Fatal(err)
	}
	if err := c.Replace(0, n); err != nil {
		f.t.Fatal(err)
	}
	c.SetCleanedTo(c.Sources()[n-1].End)
}

// segmented is a log of n closed segments with a batch of two records each.
func segmented(t *testing.T, n int, edit func(*Options)) *fixture {
	f := newFixture(t, t.TempDir(), edit)
	for i := range n {
		f.append(1, spec{records: 2, bytes: 10, timestamp: f.clock.UnixMilli() + int64(i)})
		if err := f.Roll(); err != nil {
			t.Fatal(err)
		}
	}
	f.SetHighWatermark(f.LogEndOffset())
	return f
}

// TestGapsOfTheCleaner opens logs with gaps between their segments after a crash: those that the cleaner has left are no sign
// of a loss.
func TestGapsOfTheCleaner(t *testing.T) {
	for _, c := range []struct {
		name    string
		compact bool
		cleaned int64
		end     int64
	}{
		{"compacted", true, 0, 8},
		{"compacted before, not any more", false, 6, 8},
		{"never compacted", false, 0, 2},
	} {
		f := segmented(t, 4, func(o *Options) { o.Config.CleanupCompact, o.Config.CleanupDelete = true, false })
		f.dropped(3, func(h recordbatch.Header) bool { return h.BaseOffset() == 0 })
		if got := f.Segments(); len(got) != 3 || got[1].BaseOffset != 6 {
			t.Fatalf("%s: segments %+v", c.name, got)
		}
		f.Abandon()
		f.o.CleanShutdown, f.o.RecoveryPoint, f.o.CleanedTo = false, 0, c.cleaned
		f.o.Config.CleanupCompact, f.o.Config.CleanupDelete = c.compact, !c.compact
		f.open()
		if end := f.LogEndOffset(); end != c.end {
			t.Errorf("%s: the log ends at %d, want %d", c.name, end, c.end)
		}
		f.Abandon()
	}
}

// TestCopyOfACompactedLog copies a log that was compacted, as followers and moves between disks do. The topic is not compacted any more, and
// no cleaner has been at the copy: a crash before its first checkpoint must not cut it where records are missing.
func TestCopyOfACompactedLog(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 200 })
	offset := int64(0)
	for range 12 {
		batch := makeBatch(t, offset, 1, spec{records: 2, bytes: 30, timestamp: 5})
		if err := f.AppendAsFollower(buffers(batch, len(batch))); err != nil {
			t.Fatal(err)
		}
		offset += 7
	}
	want := f.all(0)
	if len(f.Segments()) < 3 {
		t.Fatalf("%+v", f.Segments())
	}
	f.Abandon()
	f.o.CleanShutdown, f.o.RecoveryPoint = false, 0
	f.open()
	if got := f.all(0); !bytes.Equal(got, want) || f.LogEndOffset() != 11*7+2 {
		t.Fatalf("%d of %d bytes are left, the log ends at %d", len(got), len(want), f.LogEndOffset())
	}
	// Positions in indexes have 31 bits.
	far := makeBatch(t, f.LogEndOffset()+1<<31, 1, spec{bytes: 10})
	if err := f.AppendAsFollower(buffers(far, len(far))); err != nil {
		t.Fatal(err)
	}
	if s := f.Segments(); s[len(s)-1].BaseOffset != 79+1<<31 {
		t.Fatalf("%+v", s[len(s)-1])
	}
}

// TestReadersOfReplacedSegments holds on to what was read before the cleaner came.
func TestReadersOfReplacedSegments(t *testing.T) {
	f := segmented(t, 3, nil)
	before, err := f.Read(2, 1<<20, 6, true)
	if err != nil {
		t.Fatal(err)
	}
	f.dropped(3, func(h recordbatch.Header) bool { return h.BaseOffset() == 4 })
	if h := recordbatch.Header(readBytes(t, before)); h.BaseOffset() != 2 {
		t.Fatalf("the old region holds %s", h)
	}
	for offset := range int64(6) {
		r, err := f.Read(offset, 1<<20, 6, true)
		if err != nil {
			t.Fatal(err)
		}
		if h := recordbatch.Header(readBytes(t, r)); h.BaseOffset() != 4 {
			t.Fatalf("at %d there is %s", offset, h)
		}
	}
	if ts, ok, err := f.OffsetForTimestamp(0); err != nil || !ok || ts.Offset != 4 {
		t.Fatal(ts, ok, err)
	}
	if len(f.removals) == 0 {
		t.Fatal("the old files are not removed")
	}
	for _, remove := range f.removals {
		remove()
	}
	if names := files(t, f.dir); len(names) != 3+3+1+2 {
		t.Fatalf("files %q", names)
	}
	f.reopen(false)
	if f.LogEndOffset() != 6 {
		t.Fatal(f.LogEndOffset())
	}
}

func TestCleanBounds(t *testing.T) {
	base := time.UnixMilli(1_700_000_000_000)
	for _, c := range []struct {
		name             string
		edit             func(*Options)
		change           func(*fixture)
		after            time.Duration
		dirty, end, size int64
		overdue          time.Duration
	}{
		{"all closed segments", nil, nil, 0, 0, 8, 4, 0},
		{"the log start", nil, func(f *fixture) { _ = f.SetLogStartOffset(3) }, 0, 3, 8, 3, 0},
		{"the high watermark", nil, func(f *fixture) { f.SetHighWatermark(5) }, 0, 0, 4, 2, 0},
		{"an open transaction", nil, func(f *fixture) {
			f.append(1, spec{pid: 1, txn: true})
			_ = f.Roll()
			f.append(1, spec{})
			_ = f.Roll()
			f.SetHighWatermark(f.LogEndOffset())
		}, 0, 0, 8, 4, 0},
		{"young records", func(o *Options) { o.Config.MinCompactionLagMs = 1000 }, nil, 1001 * time.Millisecond, 0, 2, 1, 0},
		{"all old enough", func(o *Options) { o.Config.MinCompactionLagMs = 1000 }, nil, 1004 * time.Millisecond, 0, 8, 4, 0},
		{"overdue", func(o *Options) { o.Config.MaxCompactionLagMs = 1000 }, nil, 1501 * time.Millisecond, 0, 8, 4, 500 * time.Millisecond},
		{"clean", nil, func(f *fixture) {
			f.dropped(2, func(recordbatch.Header) bool { return true })
		}, 0, 4, 8, 2, 0},
		{"cut below what was clean", nil, func(f *fixture) {
			f.dropped(2, func(recordbatch.Header) bool { return true })
			_ = f.TruncateTo(2)
		}, 0, 2, 0, 0, 0},
	} {
		f := segmented(t, 4, func(o *Options) {
			o.Config.MaxCompactionLagMs = 1<<63 - 1
			if c.edit != nil {
				c.edit(o)
			}
		})
		if c.change != nil {
			c.change(f)
		}
		b, err := f.CleanBounds(base.Add(c.after))
		if err != nil {
			t.Fatal(err)
		}
		one := f.Segments()[0].SizeBytes
		if c.name == "clean" {
			one /= 2
		}
		if b.FirstDirty != c.dirty || b.FirstUncleanable != c.end || b.CleanableBytes != c.size*one || b.Overdue != c.overdue {
			t.Errorf("%s: %+v, segments of %d bytes", c.name, b, one)
		}
		f.Abandon()
	}
}

// TestReplaceAfterRetention lets segments go that are being cleaned.
func TestReplaceAfterRetention(t *testing.T) {
	f := segmented(t, 4, nil)
	b, err := f.CleanBounds(f.clock)
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.BeginCleaning(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.NewSegment(0, 100)
	if err == nil {
		err = s.Finish(f.clock)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetLogStartOffset(4); err != nil {
		t.Fatal(err)
	}
	if err := c.Replace(0, 2); err != ErrCleaningAborted { //nolint:errorlint // it is not wrapped
		t.Fatal(err)
	}
	c.Close()
	if names := files(t, f.dir); slices.ContainsFunc(names, func(n string) bool { return len(n) > 8 && n[len(n)-8:] == cleanedSuffix }) {
		t.Fatalf("files %q", names)
	}
}

// TestUnfinishedSwap: while one segment of a cleaner's set is still called .cleaned, the set does not count, whatever its others are called.
func TestUnfinishedSwap(t *testing.T) {
	f := segmented(t, 4, nil)
	want := f.all(0)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, segmentPath(f.dir, 0, logSuffix+cleanedSuffix), nil)
	write(t, segmentPath(f.dir, 4, logSuffix+swapSuffix), nil)
	write(t, segmentPath(f.dir, 4, indexSuffix+swapSuffix), nil)
	f.o.CleanShutdown = true
	f.open()
	if got := f.all(0); !bytes.Equal(got, want) {
		t.Fatalf("%d of %d bytes are left", len(got), len(want))
	}
	for _, name := range files(t, f.dir) {
		if strings.HasSuffix(name, swapSuffix) || strings.HasSuffix(name, cleanedSuffix) {
			t.Error("left over:", name)
		}
	}
}

// TestSwapIsDurableBeforeTheOldFilesGo: a power loss must find either the old segments or all of the new ones.
func TestSwapIsDurableBeforeTheOldFilesGo(t *testing.T) {
	var ops []string
	f := segmented(t, 3, func(o *Options) {
		o.FS = vfs.Faulty{FS: o.FS, Inject: func(op vfs.Op, path string) error {
			ops = append(ops, string(op)+" "+filepath.Base(path))
			return nil
		}}
	})
	ops = nil
	f.dropped(2, func(h recordbatch.Header) bool { return h.BaseOffset() == 2 })
	base := filepath.Base(segmentPath("", 0, logSuffix))
	swapped, durable, gone := slices.Index(ops, "rename "+base+cleanedSuffix), -1, slices.Index(ops, "rename "+base)
	for i, op := range ops[:max(0, gone)] {
		if op == "sync "+filepath.Base(f.dir) {
			durable = i
		}
	}
	if swapped < 0 || durable < swapped || gone < durable {
		t.Fatalf("the new segment was named at %d, for good at %d, and the old one went at %d: %q", swapped, durable, gone, ops)
	}
}
