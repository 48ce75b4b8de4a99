package log

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/services/vfs"
)

func TestNewLogFiles(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.append(3, spec{records: 2})
	want := []string{"00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex", "leader-epoch-checkpoint", "partition.metadata"}
	if got := files(t, f.dir); !reflect.DeepEqual(got, want) {
		t.Fatal(got)
	}
	if got := string(readFile(t, f, "partition.metadata")); got != "version: 0\ntopic_id: "+f.o.TopicID.String() {
		t.Fatal(got)
	}
	if got := string(readFile(t, f, "leader-epoch-checkpoint")); got != "0\n1\n3 0\n" {
		t.Fatal(got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(files(t, f.dir), "00000000000000000002.snapshot") {
		t.Fatal(files(t, f.dir))
	}
}

func TestTopicIDMismatch(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.Abandon()
	f.o.TopicID = uuid.UUID{9}
	if _, err := Open(f.o); !errors.Is(err, ErrTopicID) {
		t.Fatal(err)
	}
	f.o.TopicID = uuid.Zero
	f.open()
	if f.TopicID() != (uuid.UUID{1, 2, 3}) {
		t.Fatal(f.TopicID())
	}
}

func TestDirNames(t *testing.T) {
	for name, want := range map[string]bool{"a-0": true, "a-b-12": true, "a": false, "-1": false, "a-": false, "a-01": false, "a-x": false, "a-0.1f-delete": false} {
		topic, p, ok := ParseDirName(name)
		if ok != want || ok && DirName(topic, p) != name {
			t.Error(name, topic, p, ok)
		}
	}
	long := deletedDirName(string(bytes.Repeat([]byte("x"), 249)), 7, uuid.Random())
	if len(long) > 255 || !IsDeletedDir(long) || IsDeletedDir("a-0") || IsDeletedDir("a-delete") {
		t.Error(long)
	}
}

// TestReadBounds checks every pair of bounds over batches of different sizes, in memory and from the index.
func TestReadBounds(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 6000, 300 })
	for i := range 60 {
		f.append(1, spec{records: 1 + i%3, bytes: 20 * (i % 9), timestamp: int64(i)})
	}
	type batch struct {
		base, next int64
		bytes      []byte
		segment    int
	}
	var batches []batch
	segments := f.Segments()
	run := f.all(0)
	for it := recordbatch.Iterate(run); it.Next(); {
		b := batch{base: it.Header().BaseOffset(), next: it.Header().NextOffset(), bytes: it.Bytes()}
		for i, s := range segments {
			if s.BaseOffset <= b.base {
				b.segment = i
			}
		}
		batches = append(batches, b)
	}
	if len(batches) != 60 || len(segments) < 3 {
		t.Fatal(len(batches), len(segments))
	}
	check := func() {
		for offset := int64(0); offset < f.LogEndOffset(); offset += 3 {
			for limit := offset; limit <= f.LogEndOffset(); limit += 7 {
				for _, most := range []int{0, 1, 100, 250, 1000, 100000} {
					for _, minOne := range []bool{false, true} {
						var want []byte
						first := -1
						for i, b := range batches {
							if b.next <= offset {
								continue
							}
							if first < 0 {
								first = i
							}
							if b.next > limit || b.segment != batches[first].segment || len(want)+len(b.bytes) > most && (!minOne || i != first) {
								break
							}
							want = append(want, b.bytes...)
						}
						r, err := f.Read(offset, most, limit, minOne)
						if err != nil {
							t.Fatal(err)
						}
						if got := readBytes(t, r); !bytes.Equal(got, want) {
							t.Fatalf("read(%d, %d, %d, %v): %d bytes, want %d", offset, most, limit, minOne, len(got), len(want))
						}
					}
				}
			}
		}
	}
	check()
	f.reopen(false)
	check()
	f.reopen(true)
	check()
	for _, offset := range []int64{-1, f.LogEndOffset() + 1} {
		if _, err := f.Read(offset, 1, 1<<60, true); errcode.Of(err) != errcode.OffsetOutOfRange {
			t.Fatal(err)
		}
	}
	if r, err := f.Read(f.LogEndOffset(), 1, 1<<60, true); err != nil || r.Len() != 0 {
		t.Fatal(r, err)
	}
}

func TestRegionsOutliveTheLog(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.append(1, spec{records: 5})
	want := f.all(0)
	r, err := f.Read(0, 1<<20, 5, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Delete(); err != nil {
		t.Fatal(err)
	}
	if len(f.removals) != 1 || !IsDeletedDir(files(t, f.o.Dir)[0]) {
		t.Fatal(files(t, f.o.Dir))
	}
	f.removals[0]()
	if left := files(t, f.o.Dir); len(left) != 0 {
		t.Fatal(left)
	}
	if !bytes.Equal(readBytes(t, r), want) {
		t.Fatal("the region changed")
	}
	if err := f.Append(nil); errcode.Of(err) != errcode.KafkaStorageError {
		t.Fatal(err)
	}
	if r, err := f.Read(0, 100, 5, true); err != nil || r.Len() != 0 {
		t.Fatal(err)
	}
}

func TestFollowerCopies(t *testing.T) {
	leader := newFixture(t, t.TempDir(), nil)
	for i := range 40 {
		leader.append(int32(1+i/10), spec{records: 1 + i%4, bytes: 30 * i, pid: int64(1 + i%2), sequence: int32(i), timestamp: int64(i)})
	}
	want := leader.all(0)
	for _, piece := range []int{1, 50, 1000, 1 << 20} {
		f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 8000, 500 })
		cut := bytes.Clone(want[:len(want)-3]) // the last batch is not whole
		if err := f.AppendAsFollower(buffers(cut, piece)); err != nil {
			t.Fatal(err)
		}
		rest, err := leader.Read(f.LogEndOffset(), 1<<20, 1<<60, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.AppendAsFollower(buffers(readBytes(t, rest), piece)); err != nil {
			t.Fatal(err)
		}
		if got := f.all(0); !bytes.Equal(got, want) {
			t.Fatal("copy differs", len(got), len(want))
		}
		if !reflect.DeepEqual(f.ActiveProducers(), leader.ActiveProducers()) || !reflect.DeepEqual(f.epochs, leader.epochs) {
			t.Fatal(f.ActiveProducers(), leader.ActiveProducers(), f.epochs, leader.epochs)
		}
		if err := f.AppendAsFollower(buffers(want[:1000], piece)); errcode.Of(err) != errcode.InvalidRecord {
			t.Fatal("offsets that go back:", err)
		}
		bad := makeBatch(t, f.LogEndOffset(), 4, spec{bytes: 100})
		bad[len(bad)-1] ^= 1
		if err := f.AppendAsFollower(buffers(bad, piece)); errcode.Of(err) != errcode.CorruptMessage {
			t.Fatal("bad checksum:", err)
		}
		// A gap, as the cleaner leaves it, is fine; an epoch above the follower's is not taken.
		end := f.LogEndOffset()
		gap := append(makeBatch(t, end+10, 5, spec{}), makeBatch(t, end+11, 6, spec{})...)
		if err := f.AppendAsFollowerOf(buffers(gap, piece), 5); err != nil || f.LogEndOffset() != end+11 {
			t.Fatal(err, f.LogEndOffset())
		}
		r, err := f.Read(end, 1000, 1<<60, true)
		if b := readBytes(t, r); err != nil || recordbatch.Header(b).BaseOffset() != end+10 {
			t.Fatal("read from the gap", err)
		}
	}
}

func TestRollBySizeTimeAndIndex(t *testing.T) {
	tests := []struct {
		name string
		edit func(o *Options)
		run  func(f *fixture)
		want int
	}{
		{"size", func(o *Options) { o.Config.SegmentBytes = 1000 }, func(f *fixture) {
			f.append(1, spec{bytes: 600}, spec{bytes: 600}, spec{bytes: 10}, spec{bytes: 600})
		}, 3},
		{"records' time", func(o *Options) { o.Config.SegmentMs = 1000 }, func(f *fixture) {
			f.append(1, spec{timestamp: 5000}, spec{timestamp: 6000}, spec{timestamp: 6001}, spec{timestamp: 100})
		}, 2},
		{"max.compaction.lag.ms", func(o *Options) { o.Config.CleanupCompact, o.Config.MaxCompactionLagMs = true, 1000 }, func(f *fixture) {
			f.append(1, spec{timestamp: 5000}, spec{timestamp: 6000}, spec{timestamp: 6001})
		}, 2},
		{"the machine's time", func(o *Options) { o.Config.SegmentMs = 1000 }, func(f *fixture) {
			f.append(1, spec{timestamp: -1})
			f.clock = f.clock.Add(2 * time.Second)
			f.append(1, spec{timestamp: -1})
		}, 2},
		{"jitter", func(o *Options) {
			o.Config.SegmentMs, o.Config.SegmentJitterMs = 1000, 500
			o.Jitter = func(n int64) int64 { return n - 1 }
		}, func(f *fixture) { f.append(1, spec{timestamp: 5000}, spec{timestamp: 5502}) }, 2},
		{"index", func(o *Options) { o.Config.SegmentIndexBytes, o.Config.IndexIntervalBytes = 24, 0 }, func(f *fixture) {
			for range 8 {
				f.append(1, spec{timestamp: 1}) // the time index is full after two
			}
		}, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rolled := 0
			f := newFixture(t, t.TempDir(), func(o *Options) { tt.edit(o); o.Rolled = func() { rolled++ } })
			tt.run(f)
			if got := len(f.Segments()); got != tt.want || rolled != tt.want-1 {
				t.Fatal(f.Segments())
			}
			before := f.all(0)
			f.reopen(false)
			if len(f.Segments()) != tt.want || !bytes.Equal(f.all(0), before) {
				t.Fatal("reopened", f.Segments())
			}
		})
	}
}

func TestRetention(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(f *fixture)
		start int64
	}{
		{"nothing", func(*fixture) {}, 0},
		{"size", func(f *fixture) { f.config.RetentionBytes = f.Size() - f.Segments()[0].SizeBytes - 1 }, 1},
		{"size above the high watermark", func(f *fixture) { f.config.RetentionBytes = 0; f.SetHighWatermark(2) }, 2},
		{"time", func(f *fixture) { f.config.RetentionMs = 10_000; f.clock = time.UnixMilli(13_001) }, 3},
		{"all by time", func(f *fixture) { f.config.RetentionMs = 10_000 }, 10},
		{"compact only", func(f *fixture) { f.config.RetentionMs = 10_000; f.config.CleanupDelete = false }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 200 })
			for i := range 10 {
				f.append(1, spec{bytes: 100, timestamp: int64(1000 * (i + 1))})
			}
			f.SetHighWatermark(f.LogEndOffset())
			tt.edit(f)
			moved, err := f.DeleteRetired(f.clock)
			if err != nil || moved != (tt.start > 0) || f.LogStartOffset() != tt.start {
				t.Fatal(moved, err, f.LogStartOffset())
			}
			if f.Segments()[0].BaseOffset != tt.start {
				t.Fatal(f.Segments())
			}
			for _, g := range f.removals {
				g()
			}
			f.reopen(false)
			if f.LogStartOffset() != tt.start || f.LogEndOffset() != 10 {
				t.Fatal(f.LogStartOffset(), f.LogEndOffset())
			}
			f.append(1, spec{})
		})
	}
}

func TestSetLogStartOffset(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 200 })
	for i := range 10 {
		f.append(int32(1+i/2), spec{bytes: 100})
	}
	f.SetHighWatermark(10)
	if err := f.SetLogStartOffset(5); err != nil {
		t.Fatal(err)
	}
	if f.Segments()[0].BaseOffset != 5 || f.EndOffsetForEpoch(1) != (storage.EpochEndOffset{Epoch: 1, EndOffset: 5}) {
		t.Fatal(f.Segments(), f.EndOffsetForEpoch(1))
	}
	if _, err := f.Read(4, 100, 10, true); errcode.Of(err) != errcode.OffsetOutOfRange {
		t.Fatal(err)
	}
	if err := f.SetLogStartOffset(11); err == nil {
		t.Fatal("beyond the end")
	}
	if err := f.SetLogStartOffset(10); err != nil || f.LogStartOffset() != 10 {
		t.Fatal(err)
	}
	f.reopen(true)
	if f.LogStartOffset() != 10 || f.LogEndOffset() != 10 {
		t.Fatal(f.LogStartOffset(), f.LogEndOffset())
	}
}

func TestEpochEnds(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.append(2, spec{records: 5})
	f.append(5, spec{records: 3})
	if err := f.AssignEpochStart(7, 8); err != nil {
		t.Fatal(err)
	}
	for epoch, want := range map[int32]storage.EpochEndOffset{
		-1: storage.NoDivergence, 0: {Epoch: 0, EndOffset: 0}, 1: {Epoch: 1, EndOffset: 0}, 2: {Epoch: 2, EndOffset: 5}, 3: {Epoch: 2, EndOffset: 5},
		5: {Epoch: 5, EndOffset: 8}, 6: {Epoch: 5, EndOffset: 8}, 7: {Epoch: 7, EndOffset: 8}, 8: storage.NoDivergence,
	} {
		if got := f.EndOffsetForEpoch(epoch); got != want {
			t.Errorf("epoch %d: %v, want %v", epoch, got, want)
		}
	}
	if f.EpochForOffset(4) != 2 || f.EpochForOffset(5) != 5 || f.EpochForOffset(100) != 7 {
		t.Error(f.EpochForOffset(4), f.EpochForOffset(5), f.EpochForOffset(100))
	}
	// An epoch that began at the end and wrote nothing goes when the log is cut there.
	if err := f.TruncateTo(8); err != nil || f.LatestEpoch() != 5 {
		t.Fatal(err, f.LatestEpoch())
	}
	f.reopen(false)
	if f.LatestEpoch() != 5 {
		t.Fatal(f.LatestEpoch())
	}
	f.Abandon()
	for _, broken := range []string{"", "x", "0\n2\n1 1\n", "1\n0\n"} {
		if err := os.WriteFile(filepath.Join(f.dir, epochCheckpointName), []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		f.open()
		if broken != "" && f.EndOffsetForEpoch(2).EndOffset != 5 {
			t.Errorf("%q: %v", broken, f.epochs)
		}
		f.Abandon()
	}
}

// TestTimestampsBeforeTheStart: a late record that was deleted, in the segment in which the log begins now, does not hide the
// records of later segments.
func TestTimestampsBeforeTheStart(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.append(1, spec{timestamp: 9000}, spec{timestamp: 1000})
	if err := f.Roll(); err != nil {
		t.Fatal(err)
	}
	f.append(1, spec{timestamp: 2000})
	f.SetHighWatermark(3)
	if err := f.SetLogStartOffset(1); err != nil {
		t.Fatal(err)
	}
	for ts, want := range map[int64]int64{500: 1, 1001: 2, 2000: 2, 2001: -1} {
		got, ok, err := f.OffsetForTimestamp(ts)
		if err != nil || ok != (want >= 0) || ok && got.Offset != want {
			t.Errorf("for %d: %+v %v %v, want offset %d", ts, got, ok, err, want)
		}
	}
}

func TestTimestamps(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 3000, 200 })
	if _, ok, err := f.OffsetOfMaxTimestamp(); ok || err != nil {
		t.Fatal(ok, err)
	}
	times := []int64{1000, 1005, 1003, 2000, 1500, 3000, 2500, 9000, 4000, 8000}
	for round := range 5 {
		for _, at := range times {
			f.append(int32(round+1), spec{records: 3, bytes: 50, timestamp: at + int64(round)*100, codec: recordbatch.Compression(round)})
		}
	}
	var flat []TimestampOffset
	for it := recordbatch.Iterate(f.all(0)); it.Next(); {
		rs := testCodecs.Records(it.Bytes(), 1<<20)
		for rs.Next() {
			flat = append(flat, TimestampOffset{rs.Record().Timestamp, rs.Record().Offset, it.Header().LeaderEpoch()})
		}
	}
	check := func() {
		t.Helper()
		for ts := int64(900); ts < 9600; ts += 49 {
			i := slices.IndexFunc(flat, func(x TimestampOffset) bool { return x.Timestamp >= ts && x.Offset >= f.LogStartOffset() })
			got, ok, err := f.OffsetForTimestamp(ts)
			if err != nil || ok != (i >= 0) || ok && got != flat[i] {
				t.Fatal(ts, got, ok, err, i)
			}
		}
		best := slices.MaxFunc(flat, func(a, b TimestampOffset) int { return int(a.Timestamp - b.Timestamp) })
		got, ok, err := f.OffsetOfMaxTimestamp()
		if err != nil || !ok || got != best {
			t.Fatal(got, best, ok, err)
		}
	}
	check()
	f.unloadIdle()
	check()
	f.reopen(false)
	check()
	f.reopen(true)
	check()
	f.SetHighWatermark(f.LogEndOffset())
	if err := f.SetLogStartOffset(4); err != nil {
		t.Fatal(err)
	}
	check()
}

func TestWriteErrorsStick(t *testing.T) {
	errDisk := errors.New("disk")
	var failing vfs.Op
	f := newFixture(t, t.TempDir(), func(o *Options) {
		o.FS = vfs.Faulty{FS: vfs.OS{}, Inject: func(op vfs.Op, _ string) error {
			if op == failing {
				return errDisk
			}
			return nil
		}}
	})
	f.append(1, spec{bytes: 10})
	failing = vfs.OpWrite
	b := recordbatch.BatchOf(makeBatch(t, 1, 1, spec{bytes: 5000}))
	for range 2 {
		if err := f.Append([]recordbatch.Batch{b}); errcode.Of(err) != errcode.KafkaStorageError || !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
		failing = ""
	}
	if f.LogEndOffset() != 1 {
		t.Fatal(f.LogEndOffset())
	}
	if err := f.Close(); errcode.Of(err) != errcode.KafkaStorageError {
		t.Fatal(err)
	}
	f.o.CleanShutdown = false
	f.open()
	if f.LogEndOffset() != 1 {
		t.Fatal("half a batch was kept")
	}
	failing = vfs.OpSync
	if err := f.Flush(); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
}

func TestFlushMovesTheRecoveryPoint(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.FlushMessages = 10 })
	f.append(1, spec{records: 9})
	if f.RecoveryPoint() != 0 {
		t.Fatal(f.RecoveryPoint())
	}
	f.append(1, spec{records: 1})
	if f.RecoveryPoint() != 10 {
		t.Fatal(f.RecoveryPoint())
	}
	if err := f.TruncateTo(4); err != nil || f.RecoveryPoint() != 0 {
		t.Fatal(err, f.RecoveryPoint())
	}
}

// TestOpenKafkas opens a partition that Apache Kafka 4.4 has written and closed, as after a clean shutdown and as after a
// crash.
func TestOpenKafkas(t *testing.T) {
	for _, clean := range []bool{true, false} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/kafka")); err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, dir, func(o *Options) {
			o.Topic, o.Partition, o.TopicID, o.CleanShutdown = "__transaction_state", 20, uuid.Zero, clean
		})
		records := 0
		for it := recordbatch.Iterate(f.all(0)); it.Next(); {
			rs := testCodecs.Records(it.Bytes(), 1<<20)
			for rs.Next() {
				records++
			}
			if !it.CheckCRC() || rs.Err() != nil {
				t.Fatal(rs.Err())
			}
		}
		if end := f.LogEndOffset(); end == 0 || int64(records) != end || f.LatestEpoch() != 0 || f.TopicID().IsZero() {
			t.Fatal(records, end, f.LatestEpoch(), f.TopicID())
		}
	}
}

// TestTimesWithoutATimeIndex breaks the time index of an old segment: the records themselves tell.
func TestTimesWithoutATimeIndex(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 200 })
	for i := range 6 {
		f.append(1, spec{bytes: 100, timestamp: int64(100 - 10*i)})
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, segmentPath(f.dir, 0, timeIndexSuffix), make([]byte, 5))
	f.o.CleanShutdown = true
	f.open()
	if got, ok, err := f.OffsetOfMaxTimestamp(); err != nil || !ok || got.Offset != 0 || got.Timestamp != 100 {
		t.Fatal(got, ok, err)
	}
	if got, ok, err := f.OffsetForTimestamp(100); err != nil || !ok || got.Offset != 0 {
		t.Fatal(got, ok, err)
	}
}
