package kraftlog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
)

// world is a feed and the copy of it.
type world struct {
	feed *feed.Feed
	copy *Copy
	next int64
}

func newWorld(t testing.TB, dir string) *world {
	w := &world{feed: feed.New()}
	w.feed.Reset(metadata.Empty("the-cluster"), -1)
	w.feed.SetHolder(metalog.Holder{Epoch: 1, ID: 3, Address: "controller-3:1"})
	w.copy = New(Config{
		Dir: dir, SegmentBytes: 1000, SegmentAge: time.Hour, SnapshotBytes: 1500, SnapshotInterval: time.Hour,
		RetentionBytes: 4000, Retention: 24 * time.Hour, UnsafeNoFsync: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, w.feed)
	return w
}

// add appends a batch of configs, of which one in three records is of a type of ours.
func (w *world) add(t testing.TB, epoch int32, n int) {
	t.Helper()
	var records []metarecord.Record
	for i := range n {
		value := fmt.Sprint(w.next + int64(i))
		if i%3 == 2 {
			records = append(records, &metarecord.ShardRecord{Kind: 1, Shard: int32(i), Owner: 1, Epoch: int32(w.next)})
			continue
		}
		records = append(records, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceGroup), ResourceName: "g", Name: "x", Value: &value})
	}
	b := &metalog.Batch{BaseOffset: w.next, Epoch: epoch, TimestampMs: time.Now().UnixMilli(), Records: metarecord.EncodeAll(records)}
	if err := w.feed.Offer(b, nil); err != nil {
		t.Fatal(err)
	}
	w.next += int64(n)
}

// run lets the copy run until it has nothing left to do. It must be called within a bubble of synctest.
func (w *world) run(t testing.TB, during func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.copy.Run(ctx)
	}()
	synctest.Wait()
	if during != nil {
		during()
		synctest.Wait()
	}
	cancel()
	<-done
}

// readLog gives the types of the records in all segments, after checks that offsets follow each other from first on.
func readLog(t testing.TB, dir string) (first, next int64, types []metarecord.Type) {
	t.Helper()
	l, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, next = -1, -1
	for _, s := range l.segments {
		raw, err := os.ReadFile(filepath.Join(dir, segmentName(s.base)))
		if err != nil {
			t.Fatal(err)
		}
		if first < 0 {
			first, next = s.base, s.base
		}
		if s.base != next {
			t.Fatalf("segment %d, want %d", s.base, next)
		}
		for it := recordbatch.Iterate(raw); it.Next(); {
			if h := it.Header(); h.BaseOffset() != next || !it.CheckCRC() {
				t.Fatalf("batch %s, want offset %d", h, next)
			}
			next = it.Header().NextOffset()
			types = append(types, typesOf(t, it.Bytes())...)
		}
	}
	return first, next, types
}

func typesOf(t testing.TB, batch []byte) (types []metarecord.Type) {
	records := recordbatch.RecordsOf(batch)
	for records.Next() {
		r, err := metarecord.Decode(records.Record().Value)
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, r.RecordType())
	}
	if err := records.Err(); err != nil {
		t.Fatal(err)
	}
	return types
}

func TestCopyFollowsAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), DirName)
		w := newWorld(t, dir)
		w.add(t, 1, 3)
		w.run(t, func() { w.add(t, 1, 2) })
		first, next, types := readLog(t, dir)
		want := []metarecord.Type{metarecord.Config, metarecord.Config, metarecord.NoOp, metarecord.Config, metarecord.Config}
		if first != 0 || next != 5 || fmt.Sprint(types) != fmt.Sprint(want) {
			t.Fatalf("%d to %d: %v", first, next, types)
		}
		w.add(t, 2, 1)
		w.run(t, nil)
		if _, next, _ := readLog(t, dir); next != 6 {
			t.Fatalf("the log ends at %d after a restart", next)
		}
		for name, want := range map[string]string{
			"leader-epoch-checkpoint": "0\n2\n1 0\n2 5\n",
			"partition.metadata":      "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n",
			"quorum-state":            `{"leaderId":3,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`,
		} {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	})
}

func TestCopyCutsTornEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), DirName)
		w := newWorld(t, dir)
		w.add(t, 1, 3)
		w.add(t, 1, 3)
		w.run(t, nil)
		path := filepath.Join(dir, segmentName(0))
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, broken := range [][]byte{raw[:len(raw)-1], raw[:len(raw)/2+5], append(bytes.Clone(raw), make([]byte, 100)...), nil} {
			if err := os.WriteFile(path, broken, 0o644); err != nil {
				t.Fatal(err)
			}
			w.run(t, nil)
			if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, raw) {
				t.Fatalf("after a cut at %d: %d bytes, want %d; %v", len(broken), len(again), len(raw), err)
			}
		}
	})
}

// TestCopyBeginsAnew has copies that the controller's log does not go on from: of a longer log, of another one, and one
// that is far behind.
func TestCopyBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), DirName)
		w := newWorld(t, dir)
		w.add(t, 5, 3)
		w.run(t, nil)
		other := newWorld(t, dir)
		other.add(t, 1, 1)
		other.add(t, 7, 4)
		other.run(t, nil)
		checkSnapshot(t, filepath.Join(dir, snapshotName(5, 7)), 3)
		image := other.feed.Image()
		behind := newWorld(t, dir)
		delta, err := image.Apply(99, 8, &metarecord.NoOpRecord{})
		if err != nil {
			t.Fatal(err)
		}
		behind.feed.Reset(delta.Image(), 8)
		behind.next = 100
		behind.add(t, 8, 2)
		behind.run(t, nil)
		checkSnapshot(t, filepath.Join(dir, snapshotName(102, 8)), 3)
		whole, err := os.ReadFile(filepath.Join(dir, snapshotName(102, 8)))
		if err != nil {
			t.Fatal(err)
		}
		var parts []byte
		for {
			part, size, ok, err := ReadSnapshot(dir, 102, 8, int64(len(parts)), 50)
			if err != nil || !ok || size != int64(len(whole)) {
				t.Fatal(size, ok, err)
			}
			if len(part) == 0 {
				break
			}
			parts = append(parts, part...)
		}
		if !bytes.Equal(parts, whole) {
			t.Fatalf("%d bytes in parts, want %d", len(parts), len(whole))
		}
		if _, _, ok, err := ReadSnapshot(dir, 103, 8, 0, 50); ok || err != nil {
			t.Fatal("there is a snapshot that was never made", err)
		}
		behind.add(t, 9, 2)
		behind.run(t, nil)
		if first, next, _ := readLog(t, dir); first != 102 || next != 104 {
			t.Fatalf("%d to %d", first, next)
		}
	})
}

// checkSnapshot wants a header, at least so many records, none of them ours, and a footer.
func checkSnapshot(t testing.TB, path string, atLeast int) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var controls []recordbatch.ControlType
	records, next := 0, int64(0)
	for it := recordbatch.Iterate(raw); it.Next(); {
		h := it.Header()
		if h.BaseOffset() != next || !it.CheckCRC() {
			t.Fatalf("%s, want offset %d", h, next)
		}
		next = h.NextOffset()
		if !h.IsControl() {
			for _, kind := range typesOf(t, it.Bytes()) {
				if kind.Own() {
					t.Errorf("a %s in %s", kind, path)
				}
				records++
			}
			continue
		}
		for rs := recordbatch.RecordsOf(it.Bytes()); rs.Next(); {
			kind, err := recordbatch.ControlTypeOf(rs.Record().Key)
			if err != nil {
				t.Fatal(err)
			}
			controls = append(controls, kind)
		}
	}
	if fmt.Sprint(controls) != fmt.Sprint([]recordbatch.ControlType{recordbatch.SnapshotHeader, recordbatch.SnapshotFooter}) || records < min(atLeast, 1) {
		t.Errorf("%s: control records %v and %d others", path, controls, records)
	}
}

func TestCopySnapshotsAndTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), DirName)
		w := newWorld(t, dir)
		w.run(t, func() {
			for range 300 {
				w.add(t, 1, 3)
				synctest.Wait()
			}
		})
		l, err := list(dir)
		if err != nil {
			t.Fatal(err)
		}
		var total int64
		for _, s := range l.segments {
			total += s.bytes
		}
		for _, s := range l.snapshots {
			total += s.bytes
			checkSnapshot(t, filepath.Join(dir, snapshotName(s.end, s.epoch)), 1)
		}
		if len(l.snapshots) == 0 || total > 4000+1000+1500 {
			t.Fatalf("%d bytes in %d segments and %d snapshots", total, len(l.segments), len(l.snapshots))
		}
		if first := l.segments[0].base; first == 0 || first > l.snapshots[0].end {
			t.Fatalf("the log begins at %d, its first snapshot ends at %d", first, l.snapshots[0].end)
		}
		w.run(t, func() { w.add(t, 1, 1) })
		if _, next, _ := readLog(t, dir); next != 901 {
			t.Fatalf("the log ends at %d", next)
		}
	})
}

// TestCopyOfAnyHistory adds batches, restarts and loses files at random: what is there afterwards is always the log.
func TestCopyOfAnyHistory(t *testing.T) {
	type step struct {
		claims  bool
		batches []int
		// lost is which segment is lost afterwards, if there are so many.
		lost int
	}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			claims:  rapid.Bool().Draw(rt, "claims"),
			batches: rapid.SliceOfN(rapid.IntRange(1, 5), 0, 8).Draw(rt, "batches"),
			lost:    rapid.IntRange(0, 9).Draw(rt, "lost"),
		}
	}), 1, 3)
	// Failures within a bubble cannot be shrunk, and files are slow, so a few histories by their seeds do.
	for seed := range 25 {
		history := steps.Example(seed)
		synctest.Test(t, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), DirName)
			w := newWorld(t, dir)
			epoch := int32(1)
			for _, s := range history {
				if s.claims {
					epoch++
				}
				w.run(t, func() {
					for _, n := range s.batches {
						w.add(t, epoch, n)
					}
				})
				if _, next, _ := readLog(t, dir); next != w.next && next >= 0 {
					t.Fatalf("seed %d: the log ends at %d, want %d", seed, next, w.next)
				}
				l, err := list(dir)
				if err != nil {
					t.Fatal(err)
				}
				if s.lost < len(l.segments) {
					if err := os.Remove(filepath.Join(dir, segmentName(l.segments[s.lost].base))); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// FuzzScan reads files of any bytes.
func FuzzScan(f *testing.F) {
	good, err := kafkaBatch(&metalog.Batch{Epoch: 1, Records: [][]byte{noOp, noOp}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		found, err := scan(path, 0)
		if err != nil || found.bytes > int64(len(raw)) || found.next < 0 {
			t.Fatalf("%+v, %v", found, err)
		}
	})
}
