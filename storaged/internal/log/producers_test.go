package log

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/services/vfs/memfs"
)

// produce checks and appends one batch, as a leader does for a client.
func (f *fixture) produce(s spec) (Duplicate, error) {
	f.t.Helper()
	b := recordbatch.BatchOf(makeBatch(f.t, f.LogEndOffset(), 1, s))
	d, err := f.CheckProducer(b.Header(), recordbatch.FromClient)
	if err != nil || d.Found {
		return d, err
	}
	if err := f.Append([]recordbatch.Batch{b}); err != nil {
		f.t.Fatal(err)
	}
	return d, nil
}

func TestSequences(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = 1 << 62 })
	steps := []struct {
		name string
		s    spec
		want errcode.Code
		dup  int64 // base offset of the batch that is repeated, -1 for none
	}{
		{"first, not at 0", spec{pid: 9, sequence: 17}, errcode.None, -1},
		{"first", spec{pid: 1, records: 2, sequence: 0}, errcode.None, -1},
		{"again", spec{pid: 1, records: 2, sequence: 0}, errcode.None, 1},
		{"next", spec{pid: 1, records: 3, sequence: 2}, errcode.None, -1},
		{"gap", spec{pid: 1, sequence: 6}, errcode.OutOfOrderSequenceNumber, -1},
		{"the older one again", spec{pid: 1, records: 2, sequence: 0}, errcode.None, 1},
		{"same start, other length", spec{pid: 1, sequence: 2}, errcode.OutOfOrderSequenceNumber, -1},
		{"new epoch, not at 0", spec{pid: 1, epoch: 1, sequence: 5}, errcode.OutOfOrderSequenceNumber, -1},
		{"new epoch", spec{pid: 1, epoch: 1, sequence: 0}, errcode.None, -1},
		{"old epoch", spec{pid: 1, epoch: 0, sequence: 5}, errcode.InvalidProducerEpoch, -1},
		{"3 more", spec{pid: 1, epoch: 1, sequence: 1}, errcode.None, -1},
		{"", spec{pid: 1, epoch: 1, sequence: 2}, errcode.None, -1},
		{"", spec{pid: 1, epoch: 1, sequence: 3}, errcode.None, -1},
		{"", spec{pid: 1, epoch: 1, sequence: 4}, errcode.None, -1},
		{"five are remembered", spec{pid: 1, epoch: 1, sequence: 0}, errcode.None, 6},
		{"", spec{pid: 1, epoch: 1, sequence: 5}, errcode.None, -1},
		{"not six", spec{pid: 1, epoch: 1, sequence: 0}, errcode.OutOfOrderSequenceNumber, -1},
		{"near the end", spec{pid: 2, sequence: math.MaxInt32 - 1, records: 3}, errcode.None, -1},
		{"after the wrap", spec{pid: 2, sequence: 1}, errcode.None, -1},
		{"the wrapped one again", spec{pid: 2, sequence: math.MaxInt32 - 1, records: 3}, errcode.None, 12},
	}
	for _, step := range steps {
		d, err := f.produce(step.s)
		if errcode.Of(err) != step.want || d.Found != (step.dup >= 0) || d.Found && d.BaseOffset != step.dup {
			t.Errorf("%s: %+v %v", step.name, d, err)
		}
	}
	want := f.ActiveProducers()
	f.reopen(false)
	if got := f.ActiveProducers(); !reflect.DeepEqual(got, want) {
		t.Fatal("after a close:", got, want)
	}
	f.reopen(true)
	if got := f.ActiveProducers(); !reflect.DeepEqual(got, want) {
		t.Fatal("after a crash:", got, want)
	}
}

// TestGapsInWhatALeaderHas: only clients are asked for sequences without gaps; a follower takes what its leader has.
func TestGapsInWhatALeaderHas(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	if _, err := f.produce(spec{pid: 1, sequence: 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.produce(spec{pid: 1, sequence: 3}); errcode.Of(err) != errcode.OutOfOrderSequenceNumber {
		t.Fatal(err)
	}
	if p := f.ActiveProducers(); p[0].LastSequence != 0 {
		t.Fatal(p)
	}
	f.append(1, spec{pid: 1, sequence: 3})
	if p := f.ActiveProducers(); p[0].LastSequence != 3 {
		t.Fatal(p)
	}
}

// TestEmptyTransactions: a marker that ends nothing holds nobody up and aborts nothing; one with a later epoch leaves the producer
// without batches.
func TestEmptyTransactions(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = 1 << 62 })
	f.append(1, spec{pid: 1, txn: true, records: 5}) // 0 to 4
	f.SetHighWatermark(5)
	f.marker(1, 1, 0, recordbatch.Commit)                         // 5
	f.marker(1, 1, 0, recordbatch.Commit)                         // 6
	f.marker(1, 1, 0, recordbatch.Abort)                          // 7
	f.append(1, spec{pid: 1, txn: true, sequence: 5, records: 4}) // 8 to 11
	f.marker(1, 1, 0, recordbatch.Abort)                          // 12
	f.marker(1, 1, 0, recordbatch.Abort)                          // 13
	f.append(1, spec{pid: 1, txn: true, sequence: 9})             // 14
	if f.LastStableOffset() != 0 {
		t.Fatal("the first marker is not committed:", f.LastStableOffset())
	}
	f.SetHighWatermark(15)
	got, err := f.AbortedTransactions(0, 15)
	if want := []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: 8}}; err != nil || f.LastStableOffset() != 14 || !slices.Equal(got, want) {
		t.Fatal(f.LastStableOffset(), got, err)
	}
	f.marker(1, 1, 1, recordbatch.Abort) // 15
	if p := f.ActiveProducers(); len(p) != 1 || p[0].Epoch != 1 || p[0].LastSequence != -1 || p[0].TxnStart != -1 {
		t.Fatal(p)
	}
}

// TestChecksBeforeOneAppend: batches that go out together are checked one after the other.
func TestChecksBeforeOneAppend(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	var batches []recordbatch.Batch
	for i, step := range []struct {
		sequence int32
		want     errcode.Code
		dup      bool
	}{{0, errcode.None, false}, {1, errcode.None, false}, {1, errcode.None, true}, {3, errcode.OutOfOrderSequenceNumber, false}, {2, errcode.None, false}} {
		b := recordbatch.BatchOf(makeBatch(t, int64(len(batches)), 1, spec{pid: 1, sequence: step.sequence}))
		d, err := f.CheckProducer(b.Header(), recordbatch.FromClient)
		if errcode.Of(err) != step.want || d.Found != step.dup {
			t.Fatal(i, d, err)
		}
		if err == nil && !d.Found {
			batches = append(batches, b)
		}
	}
	if err := f.Append(batches); err != nil {
		t.Fatal(err)
	}
	if p := f.ActiveProducers(); len(p) != 1 || p[0].LastSequence != 2 {
		t.Fatal(p)
	}
	// Batches that were checked and then did not come do not count.
	for range 2 {
		b := recordbatch.BatchOf(makeBatch(t, f.LogEndOffset(), 1, spec{pid: 1, sequence: 3}))
		if _, err := f.CheckProducer(b.Header(), recordbatch.FromClient); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTransactions(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes, o.ProducerIDExpiration = 700, 1<<62 })
	f.append(1, spec{records: 2})                                // 0, 1
	f.append(1, spec{pid: 1, txn: true})                         // 2
	f.append(1, spec{pid: 2, txn: true, records: 2, bytes: 300}) // 3, 4
	f.append(1, spec{})                                          // 5
	f.SetHighWatermark(6)
	if f.LastStableOffset() != 2 || !f.InTransaction(1) || f.InTransaction(3) {
		t.Fatal(f.LastStableOffset())
	}
	if _, err := f.produce(spec{pid: 1, sequence: 1}); errcode.Of(err) != errcode.InvalidTxnState {
		t.Fatal("a plain batch inside a transaction:", err)
	}
	f.marker(1, 1, 0, recordbatch.Abort) // 6
	if f.LastStableOffset() != 2 {
		t.Fatal("the marker is not committed", f.LastStableOffset())
	}
	f.SetHighWatermark(7)
	if f.LastStableOffset() != 3 {
		t.Fatal(f.LastStableOffset())
	}
	f.append(1, spec{pid: 1, sequence: 1, txn: true, bytes: 400}) // 7
	f.marker(1, 2, 0, recordbatch.Commit)                         // 8
	f.marker(1, 1, 0, recordbatch.Abort)                          // 9
	f.append(1, spec{records: 3})                                 // 10 to 12
	f.SetHighWatermark(13)
	if f.LastStableOffset() != 13 || len(f.Segments()) < 2 {
		t.Fatal(f.LastStableOffset(), f.Segments())
	}
	aborted := func(from, to int64) []storage.AbortedTransaction {
		t.Helper()
		got, err := f.AbortedTransactions(from, to)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	check := func() {
		t.Helper()
		first, second := storage.AbortedTransaction{ProducerID: 1, FirstOffset: 2}, storage.AbortedTransaction{ProducerID: 1, FirstOffset: 7}
		for _, tt := range []struct {
			from, to int64
			want     []storage.AbortedTransaction
		}{
			{0, 13, []storage.AbortedTransaction{first, second}}, {0, 3, []storage.AbortedTransaction{first}}, {0, 2, nil},
			{7, 8, []storage.AbortedTransaction{second}}, {10, 13, nil}, {3, 5, []storage.AbortedTransaction{first}},
		} {
			if got := aborted(tt.from, tt.to); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("[%d, %d): %v, want %v", tt.from, tt.to, got, tt.want)
			}
		}
	}
	check()
	f.reopen(false)
	check()
	f.o.RecoveryPoint = 0
	f.reopen(true)
	check()
	// Cutting the second marker off opens the transaction again.
	if err := f.TruncateTo(9); err != nil {
		t.Fatal(err)
	}
	f.SetHighWatermark(9)
	if f.LastStableOffset() != 7 || !f.InTransaction(1) {
		t.Fatal(f.LastStableOffset(), f.ActiveProducers())
	}
	if got := aborted(0, 9); len(got) != 1 {
		t.Fatal(got)
	}
}

func TestCheckMarker(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.append(1, spec{pid: 1, epoch: 5, txn: true})
	m := recordbatch.EndTxnMarker{Type: recordbatch.Commit, CoordinatorEpoch: 1}
	for _, tt := range []struct {
		epoch, version int16
		want           errcode.Code
	}{{4, 0, errcode.InvalidProducerEpoch}, {5, 0, errcode.None}, {5, 2, errcode.InvalidProducerEpoch}, {6, 2, errcode.None}} {
		if err := f.CheckMarker(1, tt.epoch, m, tt.version); errcode.Of(err) != tt.want {
			t.Error(tt, err)
		}
	}
	f.marker(1, 1, 6, recordbatch.Commit)
	if err := f.CheckMarker(1, 6, m, 2); err != nil {
		t.Fatal("a marker that comes again:", err)
	}
	m.CoordinatorEpoch = 0
	if err := f.CheckMarker(1, 6, m, 2); errcode.Of(err) != errcode.TransactionCoordinatorFenced {
		t.Fatal(err)
	}
}

func TestExpiry(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = time.Minute })
	f.append(1, spec{pid: 1, timestamp: f.clock.UnixMilli()}, spec{pid: 2, timestamp: f.clock.UnixMilli(), txn: true})
	f.ExpireProducers(f.clock.Add(59*time.Second), time.Minute)
	if len(f.ActiveProducers()) != 2 {
		t.Fatal(f.ActiveProducers())
	}
	f.ExpireProducers(f.clock.Add(time.Minute), time.Minute)
	if p := f.ActiveProducers(); len(p) != 1 || p[0].ID != 2 {
		t.Fatal("an open transaction keeps its producer:", p)
	}
}

// TestRetryAfterExpiry: who comes back after its id was forgotten goes on at any sequence, and what it repeats from before is not
// known as a repetition any more; from then on its sequences are checked again.
func TestRetryAfterExpiry(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = time.Minute })
	f.append(1, spec{pid: 1, sequence: 0, timestamp: f.clock.UnixMilli()}, spec{pid: 1, sequence: 1, timestamp: f.clock.UnixMilli()})
	f.ExpireProducers(f.clock.Add(time.Hour), time.Minute)
	if d, err := f.produce(spec{pid: 1, sequence: 1}); err != nil || d != (Duplicate{}) {
		t.Fatal(d, err)
	}
	if _, err := f.produce(spec{pid: 1, sequence: 3}); errcode.Of(err) != errcode.OutOfOrderSequenceNumber {
		t.Fatal(err)
	}
	if d, err := f.produce(spec{pid: 1, sequence: 1}); err != nil || d.LastOffset != 2 {
		t.Fatal(d, err)
	}
	if _, err := f.produce(spec{pid: 1, sequence: 2}); err != nil {
		t.Fatal(err)
	}
}

func TestBrokenSnapshot(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = 1 << 62 })
	f.append(1, spec{pid: 1, sequence: 3})
	want := f.ActiveProducers()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	path := segmentPath(f.dir, 1, snapshotSuffix)
	data, err := f.fs.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	file, err := f.fs.OpenFile(path, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	f.o.CleanShutdown = false
	f.open()
	if got := f.ActiveProducers(); !reflect.DeepEqual(got, want) {
		t.Fatal(got)
	}
}

func FuzzParseSnapshot(f *testing.F) {
	p := newProducer(7)
	p.n = 1
	f.Add(encodeSnapshot([]producer{p, newProducer(8)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseSnapshot(data)
		if err != nil {
			return
		}
		again, err := parseSnapshot(encodeSnapshot(list))
		if err != nil || len(again) != len(list) {
			t.Fatal(err)
		}
	})
}

func FuzzParseEpochs(f *testing.F) {
	f.Add([]byte("0\n2\n0 0\n3 17\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEpochs(data)
		if err != nil {
			return
		}
		again, err := parseEpochs(e.encode())
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatal(e, again, err)
		}
	})
}

func FuzzParseAbortedTxns(f *testing.F) {
	f.Add(appendAbortedTxn(nil, abortedTxn{producerID: 1, first: 2, last: 3, lastStable: 4}))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseAbortedTxns(data, 0)
		if err != nil {
			return
		}
		var out []byte
		for _, x := range list {
			out = appendAbortedTxn(out, x)
		}
		if string(out) != string(data) {
			t.Fatal("round trip")
		}
	})
}

// TestTruncationTakesSnapshots: a snapshot of what was cut off must not be taken for one of what came in its place.
func TestTruncationTakesSnapshots(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.ProducerIDExpiration = 1 << 62 })
	add := func(pid int64) {
		f.append(1, spec{pid: pid})
		if err := f.Roll(); err != nil {
			t.Fatal(err)
		}
	}
	add(1)
	add(2)
	if err := f.TruncateTo(1); err != nil {
		t.Fatal(err)
	}
	add(3)
	f.append(1, spec{})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	want := f.ActiveProducers()
	f.reopen(true)
	if got := f.ActiveProducers(); len(want) != 2 || !slices.Equal(got, want) {
		t.Fatalf("%+v, before the crash %+v", got, want)
	}
}

// TestSnapshotsDoNotComeBack: what is behind a cut is gone for good, whenever the power fails after it.
func TestSnapshotsDoNotComeBack(t *testing.T) {
	for name, cut := range map[string]func(f *fixture) error{
		"cut":        func(f *fixture) error { return f.TruncateTo(1) },
		"begun anew": func(f *fixture) error { return f.TruncateFullyAndStartAt(0) },
	} {
		t.Run(name, func(t *testing.T) {
			disk := memfs.New(func() time.Time { return time.UnixMilli(1) })
			if err := disk.MkdirAll("/d", 0o755); err != nil {
				t.Fatal(err)
			}
			f := newFixture(t, "/d", func(o *Options) { o.FS = disk })
			for pid := range int64(3) {
				f.append(1, spec{pid: pid + 1})
				if err := errors.Join(f.Roll(), f.Flush()); err != nil {
					t.Fatal(err)
				}
			}
			if err := cut(f); err != nil {
				t.Fatal(err)
			}
			f.Abandon()
			disk.LosePower(func(int) int { return 0 })
			for _, offset := range []int64{2, 3} {
				if _, err := disk.ReadFile(segmentPath(f.dir, offset, snapshotSuffix)); err == nil {
					t.Errorf("the snapshot at offset %d is back", offset)
				}
			}
		})
	}
}

func TestEpochsThatContradict(t *testing.T) {
	e := epochs{{1, 0}, {2, 10}}
	if !e.assign(3, 5) || !slices.Equal(e, epochs{{1, 0}, {3, 5}}) {
		t.Errorf("an epoch that begins before its predecessor: %v", e)
	}
	if !e.assign(2, 8) || !slices.Equal(e, epochs{{1, 0}, {2, 8}}) {
		t.Errorf("an epoch after a later one: %v", e)
	}
	if e.assign(2, 9) || !slices.Equal(e, epochs{{1, 0}, {2, 8}}) {
		t.Errorf("the same epoch again: %v", e)
	}
}
