package log

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
)

// tieredLog has ten segments of one record each, of which the newest is active.
func tieredLog(t *testing.T) *fixture {
	f := newFixture(t, t.TempDir(), func(o *Options) {
		o.Config.SegmentBytes = 200
		o.Config.RemoteStorageEnable, o.Config.LocalRetentionMs, o.Config.LocalRetentionBytes = true, 10_000, -2
	})
	if err := f.AssignEpochStart(1, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		f.append(int32(1+i/4), spec{bytes: 100, timestamp: int64(1000 * (i + 1))})
	}
	f.SetHighWatermark(10)
	return f
}

func TestLocalRetention(t *testing.T) {
	for _, tt := range []struct {
		name              string
		edit              func(f *fixture)
		start, localStart int64
	}{
		{"nothing is remote", func(*fixture) {}, 0, 0},
		{"some is remote", func(f *fixture) { f.SetRemoteEndOffset(4) }, 0, 4},
		{"a part of a segment is not enough", func(f *fixture) { f.append(4, spec{records: 3}); f.SetRemoteEndOffset(9) }, 0, 9},
		{"all is remote", func(f *fixture) { f.SetRemoteEndOffset(10) }, 0, 10},
		{"local time", func(f *fixture) { f.SetRemoteEndOffset(9); f.clock = time.UnixMilli(13_001) }, 0, 3},
		{"local size", func(f *fixture) {
			f.SetRemoteEndOffset(9)
			f.config.LocalRetentionMs, f.config.LocalRetentionBytes = -1, f.Size()-f.Segments()[0].SizeBytes
		}, 0, 1},
		{"whole retention", func(f *fixture) {
			f.SetRemoteEndOffset(9)
			f.config.LocalRetentionMs, f.config.RetentionMs, f.clock = -2, 10_000, time.UnixMilli(12_001)
		}, 0, 2},
		{"copying is off", func(f *fixture) {
			f.config.RemoteLogCopyDisable, f.config.RetentionMs, f.clock = true, 10_000, time.UnixMilli(12_001)
		}, 2, 2},
		{"deleted records", func(f *fixture) {
			if err := f.SetLogStartOffset(3); err != nil {
				t.Fatal(err)
			}
		}, 3, 3},
		{"the log begins in the remote tier", func(f *fixture) {
			f.SetRemoteEndOffset(9)
			if _, err := f.DeleteRetired(f.clock); err != nil {
				t.Fatal(err)
			}
			if err := f.SetLogStartOffset(5); err != nil {
				t.Fatal(err)
			}
		}, 5, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := tieredLog(t)
			tt.edit(f)
			if _, err := f.DeleteRetired(f.clock); err != nil {
				t.Fatal(err)
			}
			check := func() {
				t.Helper()
				if s, l := f.LogStartOffset(), f.LocalLogStartOffset(); s != tt.start || l != tt.localStart {
					t.Fatalf("the log begins at %d, locally at %d", s, l)
				}
				if e := f.EpochForOffset(tt.start); e != int32(1+tt.start/4) {
					t.Fatalf("epoch %d at the start", e)
				}
			}
			check()
			if tt.localStart > tt.start {
				if _, err := f.Read(tt.start, 100, 10, true); errcode.Of(err) != errcode.OffsetMovedToTieredStorage {
					t.Fatal(err)
				}
			}
			f.reopen(false)
			check()
			// A crash before the start was checkpointed.
			f.Abandon()
			f.o.CleanShutdown, f.o.LogStartOffset = false, 0
			f.open()
			check()
		})
	}
}

func TestActiveSegmentRollsForTheTier(t *testing.T) {
	f := tieredLog(t)
	for range 3 { // while segments before it wait to be copied, it grows
		if _, err := f.DeleteRetired(f.clock); err != nil || len(f.Segments()) != 10 {
			t.Fatal(err, f.Segments())
		}
	}
	f.SetRemoteEndOffset(9)
	if _, err := f.DeleteRetired(f.clock); err != nil {
		t.Fatal(err)
	}
	if s := f.Segments(); len(s) != 2 || s[0].BaseOffset != 9 || s[1].BaseOffset != 10 {
		t.Fatal(s)
	}
}

// TestActiveSegmentRollsWhereNothingIsToStay keeps nothing here: the active segment rolls although it is young.
func TestActiveSegmentRollsWhereNothingIsToStay(t *testing.T) {
	f := tieredLog(t)
	f.config.LocalRetentionMs, f.config.RetentionMs = -1, -1
	f.SetRemoteEndOffset(9)
	for _, tt := range []struct {
		bytes    int64
		segments int
	}{{1, 1}, {0, 2}} {
		f.config.LocalRetentionBytes = tt.bytes
		if _, err := f.DeleteRetired(f.clock); err != nil || len(f.Segments()) != tt.segments {
			t.Fatal(tt, err, f.Segments())
		}
	}
}

func TestLeaveTheTier(t *testing.T) {
	f := tieredLog(t)
	f.SetRemoteEndOffset(5)
	if _, err := f.DeleteRetired(f.clock); err != nil {
		t.Fatal(err)
	}
	f.config.RemoteStorageEnable = false
	if moved, err := f.DropRemote(); !moved || err != nil || f.LogStartOffset() != 5 {
		t.Fatal(moved, err, f.LogStartOffset())
	}
	if moved, err := f.DropRemote(); moved || err != nil {
		t.Fatal(moved, err)
	}
}

func TestStartLocallyAt(t *testing.T) {
	leader := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 200; o.Config.RemoteStorageEnable = true })
	for i := range 6 {
		leader.append(int32(1+i/2), spec{bytes: 100, timestamp: 1_700_000_000_000, pid: 7, sequence: int32(i)})
	}
	producers, err := leader.ProducersAt(4)
	if err != nil || len(producers) == 0 {
		t.Fatal(err)
	}
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.RemoteStorageEnable = true })
	f.append(9, spec{})
	if err := f.StartLocallyAt(LocalStart{LogStart: 1, LocalStart: 4, Epochs: leader.Epochs(), Producers: producers}); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if f.LogStartOffset() != 1 || f.LocalLogStartOffset() != 4 || f.LogEndOffset() != 4 || f.LatestEpoch() != 2 {
			t.Fatal(f.LogStartOffset(), f.LocalLogStartOffset(), f.LogEndOffset(), f.LatestEpoch())
		}
		if got := f.Epochs(); !slices.Equal(got, []storage.EpochStart{{Epoch: 1, StartOffset: 1}, {Epoch: 2, StartOffset: 2}}) {
			t.Fatal(got)
		}
		if p := f.ActiveProducers(); len(p) != 1 || p[0].LastSequence != 3 {
			t.Fatal(p)
		}
	}
	check()
	f.reopen(false)
	check()
	f.reopen(true)
	check()
	if err := f.StartLocallyAt(LocalStart{LogStart: 1, LocalStart: 4, Producers: []byte("no snapshot")}); errcode.Of(err) != errcode.CorruptMessage {
		t.Fatal(err)
	}
	// Cut below what is here, the log still begins in the remote tier.
	if err := f.TruncateTo(2); err != nil {
		t.Fatal(err)
	}
	if f.LogStartOffset() != 1 || f.LogEndOffset() != 2 || f.LatestEpoch() != 1 {
		t.Fatal(f.LogStartOffset(), f.LogEndOffset(), f.LatestEpoch())
	}
}

func TestDescribeClosed(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes, o.Config.IndexIntervalBytes = 2000, 100 })
	for i := range 20 {
		f.append(int32(1+i/7), spec{records: 2, bytes: 100, timestamp: int64(1000 * (i + 1)), pid: 5, sequence: int32(2 * i), txn: true})
	}
	f.marker(3, 5, 0, recordbatch.Abort)
	segments, err := f.TierSegments(0)
	if err != nil || len(segments) < 3 {
		t.Fatal(segments, err)
	}
	if later, err := f.TierSegments(segments[1].BaseOffset); err != nil || len(later) != len(segments)-1 {
		t.Fatal(later, err)
	}
	first := segments[0]
	got, err := f.DescribeClosed(first.BaseOffset)
	if err != nil || got.TierSegment != first || len(got.OffsetIndex) == 0 || len(got.TimeIndex) == 0 || len(got.ProducerSnapshot) == 0 {
		t.Fatal(got, err)
	}
	log := readFile(t, f, "00000000000000000000.log")
	if got.CRC32C != crc32.Checksum(log, castagnoli) {
		t.Fatal("checksum")
	}
	part := make([]byte, 50)
	if err := f.ReadClosed(first.BaseOffset, 30, part); err != nil || !bytes.Equal(part, log[30:80]) {
		t.Fatal(err)
	}
	for _, base := range []int64{1, segments[len(segments)-1].BaseOffset, 99} {
		if _, err := f.DescribeClosed(base); !errors.Is(err, ErrNoSegment) {
			t.Fatal(base, err)
		}
	}
	if err := f.ReadClosed(first.BaseOffset, first.SizeBytes-10, part); !errors.Is(err, ErrNoSegment) {
		t.Fatal(err)
	}

	// Indexes that do not fit are found, and made anew.
	want := got.OffsetIndex
	f.unloadIdle()
	index := filepath.Join(f.dir, "00000000000000000000.index")
	broken := bytes.Clone(want)
	broken[7]++
	if err := os.WriteFile(index, broken, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.DescribeClosed(first.BaseOffset); !errors.Is(err, ErrIndex) {
		t.Fatal(err)
	}
	if err := f.RepairIndexes(first.BaseOffset); err != nil {
		t.Fatal(err)
	}
	if got, err = f.DescribeClosed(first.BaseOffset); err != nil || !bytes.Equal(got.OffsetIndex, want) {
		t.Fatal(err, got.OffsetIndex, want)
	}

	// A flipped bit in a record is not handed out as good.
	log[first.SizeBytes-5] ^= 1
	if err := os.WriteFile(filepath.Join(f.dir, "00000000000000000000.log"), log, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.DescribeClosed(first.BaseOffset); errcode.Of(err) != errcode.CorruptMessage {
		t.Fatal(err)
	}
}
