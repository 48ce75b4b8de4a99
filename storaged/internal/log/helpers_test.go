package log

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/services/vfs"

	"google.golang.org/grpc/mem"
)

// tester is what *testing.T and *rapid.T have in common here.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func testConfig() *configdef.Topic {
	return &configdef.Topic{
		CleanupDelete: true, SegmentBytes: 1 << 20, SegmentMs: 7 * 24 * 3600 * 1000, SegmentIndexBytes: 10 << 20, IndexIntervalBytes: 4096,
		FlushMessages: 1<<63 - 1, RetentionMs: -1, RetentionBytes: -1, FileDeleteDelayMs: 60000,
	}
}

// unsynced is a file system that leaves out syncs, which take most of a test's time and change nothing that it sees.
type unsynced struct{ vfs.FS }

type unsyncedFile struct{ vfs.File }

func (u unsynced) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := u.FS.OpenFile(name, flag, perm)
	return unsyncedFile{f}, err
}

func (unsynced) SyncDir(string) error { return nil }

func (unsyncedFile) Sync() error { return nil }

// fixture is a log in a directory of its own, with a clock that stands still.
type fixture struct {
	*Log
	t     tester
	o     Options
	clock time.Time
	// removals are those that wait for file.delete.delay.ms.
	removals []func()
}

func newFixture(t tester, dir string, edit func(o *Options)) *fixture {
	f := &fixture{t: t, clock: time.UnixMilli(1_700_000_000_000)}
	f.o = Options{
		Dir: dir, Topic: "t", Partition: 4, TopicID: uuid.UUID{1, 2, 3}, Config: testConfig(),
		Now:    func() time.Time { return f.clock },
		After:  func(_ time.Duration, g func()) { f.removals = append(f.removals, g) },
		Jitter: func(int64) int64 { return 0 },
		FS:     unsynced{vfs.OS{}},
	}
	if edit != nil {
		edit(&f.o)
	}
	f.open()
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	l, err := Open(f.o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Log = l
}

// reopen closes the log or, with crash, just drops it, and opens it again.
func (f *fixture) reopen(crash bool) {
	f.t.Helper()
	if crash {
		f.Abandon()
	} else if err := f.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.o.CleanShutdown = !crash
	f.o.RecoveryPoint, f.o.LogStartOffset = f.RecoveryPoint(), f.LogStartOffset()
	f.open()
}

type spec struct {
	records   int
	bytes     int
	timestamp int64
	codec     recordbatch.Compression
	pid       int64
	epoch     int16
	sequence  int32
	txn       bool
}

var testCodecs = recordbatch.NewCodecs()

func makeBatch(t tester, offset int64, epoch int32, s spec) []byte {
	t.Helper()
	o := recordbatch.NewOptions()
	o.BaseOffset, o.LeaderEpoch, o.Codec = offset, epoch, s.codec
	if s.pid > 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = s.pid, s.epoch, s.sequence, s.txn
	}
	b := recordbatch.NewBuilder(testCodecs, o)
	for i := range max(1, s.records) {
		b.Append(s.timestamp+int64(i), fmt.Appendf(nil, "key %d", offset+int64(i)), bytes.Repeat([]byte{byte(offset)}, s.bytes))
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// append writes batches as a leader.
func (f *fixture) append(epoch int32, specs ...spec) {
	f.t.Helper()
	var batches []recordbatch.Batch
	at := f.LogEndOffset()
	for _, s := range specs {
		b := recordbatch.BatchOf(makeBatch(f.t, at, epoch, s))
		batches = append(batches, b)
		at = b.Header().NextOffset()
	}
	if err := f.Append(batches); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) marker(epoch int32, pid int64, producerEpoch int16, kind recordbatch.ControlType) {
	f.t.Helper()
	b := recordbatch.BatchOf(recordbatch.MarkerBatch(pid, producerEpoch, recordbatch.EndTxnMarker{Type: kind, CoordinatorEpoch: 1}, f.clock.UnixMilli()))
	b.Header().SetBaseOffset(f.LogEndOffset())
	b.Header().SetLeaderEpoch(epoch)
	if err := f.Append([]recordbatch.Batch{b}); err != nil {
		f.t.Fatal(err)
	}
}

func readBytes(t tester, r storage.Records) []byte {
	t.Helper()
	defer r.Release()
	b, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// all reads the whole log, fetch by fetch.
func (f *fixture) all(from int64) []byte {
	f.t.Helper()
	var out []byte
	for at := from; at < f.LogEndOffset(); {
		r, err := f.Read(at, 1<<20, f.LogEndOffset(), true)
		if err != nil {
			f.t.Fatal(err)
		}
		b := readBytes(f.t, r)
		if len(b) == 0 {
			break
		}
		out = append(out, b...)
		it := recordbatch.Iterate(b)
		for it.Next() {
			at = it.Header().NextOffset()
		}
	}
	return out
}

func buffers(b []byte, piece int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := min(piece, len(b))
		out = append(out, mem.SliceBuffer(b[:n:n]))
		b = b[n:]
	}
	return out
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func readFile(t *testing.T, f *fixture, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
