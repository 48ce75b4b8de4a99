// Package contract is what every RemoteStorageManager must do, as tests. Whoever adds a store runs it:
//
//	contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { ... })
//
// It owns made-up segments and the tests; it must never know which store it tests.
package contract

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// maxCustomBytes is remote.log.metadata.custom.metadata.max.bytes.
const maxCustomBytes = 128

// Segment makes a segment of a topic's partition 0 with random bytes for a log.
func Segment(topic uuid.UUID, base int64, logBytes int) (*objectstore.SegmentMetadata, *objectstore.SegmentData, []byte) {
	random := rand.New(rand.NewPCG(uint64(base), uint64(logBytes)))
	log := make([]byte, logBytes)
	for i := 0; i+8 <= logBytes; i += 8 {
		binary.LittleEndian.PutUint64(log[i:], random.Uint64())
	}
	for i := logBytes &^ 7; i < logBytes; i++ {
		log[i] = byte(random.Uint32())
	}
	m := &objectstore.SegmentMetadata{
		TopicID: topic, Topic: "orders", Partition: 0, ID: uuid.Random(), BaseOffset: base, EndOffset: base + 99,
		MaxTimestampMs: 1000, SizeBytes: int64(logBytes),
		LeaderEpochs: []objectstore.EpochStart{{Epoch: 2, StartOffset: 0}, {Epoch: 5, StartOffset: base + 3}},
	}
	d := &objectstore.SegmentData{
		Log: bytes.NewReader(log), CRC32C: segmentobject.Checksum(log), HasCRC: true,
		Indexes: objectstore.Indexes{
			Offset: make([]byte, 8*20), Time: make([]byte, 12*3), ProducerSnapshot: []byte("state of producers"),
			Transaction: make([]byte, 34), LeaderEpochs: m.LeaderEpochs,
		},
	}
	return m, d, log
}

// Copy copies a segment and notes what the manager wants to know of it later.
func Copy(t testing.TB, m objectstore.RemoteStorageManager, s *objectstore.SegmentMetadata, d *objectstore.SegmentData) {
	t.Helper()
	custom, err := m.CopyLogSegmentData(t.Context(), s, d)
	if err != nil {
		t.Fatalf("copy: %v", err)
	}
	if len(custom) > maxCustomBytes {
		t.Fatalf("custom metadata of %d bytes, want %d at most", len(custom), maxCustomBytes)
	}
	s.Custom = custom
}

// Run runs the tests. open makes a manager; all that it makes see the same store.
func Run(t *testing.T, open func(t *testing.T) objectstore.RemoteStorageManager) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, objectstore.RemoteStorageManager)
	}{
		{"reads what was copied", readsWhatWasCopied},
		{"reads ranges", readsRanges},
		{"many at once", manyAtOnce},
		{"refuses a log that has changed", refusesChangedLog},
		{"copies again after a lost answer", copiesAgain},
		{"what is not there", notThere},
		{"deletes", deletes},
		{"lists", lists},
		{"gives up with its caller", givesUp},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
	t.Run("another instance reads", func(t *testing.T) {
		s, d, log := Segment(uuid.Random(), 0, 1000)
		Copy(t, open(t), s, d)
		if got := Read(t, open(t), s, 0, s.SizeBytes); !bytes.Equal(got, log) {
			t.Error("the bytes differ")
		}
	})
}

// Read reads a range of a segment's log.
func Read(t testing.TB, m objectstore.RemoteStorageManager, s *objectstore.SegmentMetadata, start, end int64) []byte {
	t.Helper()
	got, err := tryRead(t.Context(), m, s, start, end)
	if err != nil {
		t.Fatalf("read %d to %d: %v", start, end, err)
	}
	return got
}

func tryRead(ctx context.Context, m objectstore.RemoteStorageManager, s *objectstore.SegmentMetadata, start, end int64) ([]byte, error) {
	r, err := m.FetchLogSegment(ctx, s, start, end)
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(r)
	return got, errors.Join(err, r.Close())
}

func readsWhatWasCopied(t *testing.T, m objectstore.RemoteStorageManager) {
	for _, n := range []int{1, 777, objectstore.BlockBytes - 1, objectstore.BlockBytes, objectstore.BlockBytes + 1, 11<<20 + 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s, d, log := Segment(uuid.Random(), 100, n)
			Copy(t, m, s, d)
			if got := Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
				t.Error("the log differs")
			}
			x, err := m.FetchIndexes(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			want := d.Indexes
			var sums segmentobject.Summer
			if _, err := sums.Write(log); err != nil {
				t.Fatal(err)
			}
			want.BlockCRCs, want.SegmentCRC = sums.Sums()
			if !reflect.DeepEqual(*x, want) {
				t.Errorf("indexes: got %+v, want %+v", *x, want)
			}
		})
	}
}

func readsRanges(t *testing.T, m objectstore.RemoteStorageManager) {
	const n = 2*objectstore.BlockBytes + 100
	s, d, log := Segment(uuid.Random(), 0, n)
	Copy(t, m, s, d)
	for _, r := range [][2]int64{{0, 1}, {5, 5}, {objectstore.BlockBytes, 2 * objectstore.BlockBytes}, {n - 1, n}, {n, n}, {1, n - 1}} {
		if got := Read(t, m, s, r[0], r[1]); !bytes.Equal(got, log[r[0]:r[1]]) {
			t.Errorf("range %v: %d bytes that differ", r, len(got))
		}
	}
	if got := Read(t, m, s, n-3, n+1000); !bytes.Equal(got, log[n-3:]) {
		t.Errorf("an end behind the log gave %d bytes, want 3", len(got))
	}
	if _, err := tryRead(t.Context(), m, s, n+1, n+2); err == nil {
		t.Error("a range behind the end was read")
	}
}

func manyAtOnce(t *testing.T, m objectstore.RemoteStorageManager) {
	topic := uuid.Random()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s, d, log := Segment(topic, int64(i*100), 100_000+i)
			custom, err := m.CopyLogSegmentData(t.Context(), s, d)
			if err != nil {
				t.Error(err)
				return
			}
			s.Custom = custom
			for range 5 {
				start := rand.Int64N(s.SizeBytes)
				got, err := tryRead(t.Context(), m, s, start, s.SizeBytes)
				if err != nil || !bytes.Equal(got, log[start:]) {
					t.Errorf("segment %d from %d: %d bytes, %v", i, start, len(got), err)
				}
			}
		})
	}
	wg.Wait()
}

func refusesChangedLog(t *testing.T, m objectstore.RemoteStorageManager) {
	s, d, _ := Segment(uuid.Random(), 0, 5000)
	d.CRC32C++
	if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("a log with another checksum: %v, want corrupt", err)
	}
	d.HasCRC = false
	s.SizeBytes++
	if _, err := m.CopyLogSegmentData(t.Context(), s, d); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("a log that is too short: %v, want corrupt", err)
	}
	if got := objects(t, m, objectstore.Scope{TopicID: s.TopicID, Partition: 0}); len(got) > 0 {
		t.Errorf("it left %v", got)
	}
}

func copiesAgain(t *testing.T, m objectstore.RemoteStorageManager) {
	s, d, log := Segment(uuid.Random(), 0, 5000)
	Copy(t, m, s, d)
	first := s.Custom
	Copy(t, m, s, d)
	if !bytes.Equal(first, s.Custom) {
		t.Error("the second copy is another one")
	}
	if got := Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
		t.Error("the bytes differ")
	}
}

func notThere(t *testing.T, m objectstore.RemoteStorageManager) {
	s, d, _ := Segment(uuid.Random(), 0, 5000)
	Copy(t, m, s, d)
	s.ID = uuid.Random()
	if _, err := tryRead(t.Context(), m, s, 0, 10); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("read: %v, want not found", err)
	}
	if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("indexes: %v, want not found", err)
	}
	if errs := m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
		t.Errorf("delete: %v, want none", errs)
	}
}

func deletes(t *testing.T, m objectstore.RemoteStorageManager) {
	topic := uuid.Random()
	var all []*objectstore.SegmentMetadata
	for i := range 5 {
		s, d, _ := Segment(topic, int64(i*100), 100+i)
		Copy(t, m, s, d)
		all = append(all, s)
	}
	// A copy whose end is not known has no custom metadata.
	all[0].Custom = nil
	if errs := m.DeleteLogSegmentData(t.Context(), all[:4]); errs != nil {
		t.Fatal(errs)
	}
	for i, s := range all[1:] {
		if _, err := tryRead(t.Context(), m, s, 0, 10); errors.Is(err, objectstore.ErrNotFound) != (i < 3) {
			t.Errorf("segment %d: %v", i+1, err)
		}
	}
	if got := objects(t, m, objectstore.Scope{TopicID: topic, Partition: 0}); len(got) > 1 {
		t.Errorf("%v are left, want one", got)
	}
	if errs := m.DeleteLogSegmentData(t.Context(), all); errs != nil {
		t.Fatal("again:", errs)
	}
}

// objects are the keys in a scope; none for a manager that cannot list.
func objects(t *testing.T, m objectstore.RemoteStorageManager, scope objectstore.Scope) []string {
	t.Helper()
	inventory, ok := m.(objectstore.Inventory)
	if !ok {
		return nil
	}
	var keys []string
	err := inventory.ListObjects(t.Context(), scope, func(o objectstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

func lists(t *testing.T, m objectstore.RemoteStorageManager) {
	inventory, ok := m.(objectstore.Inventory)
	if !ok {
		t.Skip("the manager does not list")
	}
	topic := uuid.Random()
	var keys []string
	for p := range int32(3) {
		s, d, _ := Segment(topic, int64(p), 50)
		s.Partition = p
		Copy(t, m, s, d)
		key, err := inventory.ObjectKey(s)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		err = inventory.ListObjects(t.Context(), objectstore.Scope{TopicID: topic, Partition: p}, func(o objectstore.Object) error {
			if o.Key != key || o.Segment == nil || o.Segment.ID != s.ID || o.Segment.Partition != p || o.SizeBytes <= s.SizeBytes || time.Since(o.LastModified) > time.Hour {
				t.Errorf("partition %d: got %+v of %+v, want %s", p, o, o.Segment, key)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(keys)
	if got := objects(t, m, objectstore.Scope{TopicID: topic, Partition: objectstore.AllPartitions}); !slices.Equal(got, keys) {
		t.Errorf("the topic has %v, want %v", got, keys)
	}
	for _, key := range keys {
		if all := strings.Join(objects(t, m, objectstore.Scope{}), " "); !strings.Contains(all, key) {
			t.Errorf("%s is missing in the list of all", key)
		}
	}
	if errs := inventory.DeleteObjects(t.Context(), keys[:2]); errs != nil {
		t.Fatal(errs)
	}
	if got := objects(t, m, objectstore.Scope{TopicID: topic, Partition: objectstore.AllPartitions}); !slices.Equal(got, keys[2:]) {
		t.Errorf("after a deletion the topic has %v, want %v", got, keys[2:])
	}
	stop := errors.New("stop")
	if err := inventory.ListObjects(t.Context(), objectstore.Scope{}, func(objectstore.Object) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("visit's error came back as %v", err)
	}
}

func givesUp(t *testing.T, m objectstore.RemoteStorageManager) {
	s, d, _ := Segment(uuid.Random(), 0, 50)
	Copy(t, m, s, d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tryRead(ctx, m, s, 0, 10); err == nil {
		t.Error("a read without a caller succeeded")
	}
	again, d, _ := Segment(uuid.Random(), 0, 50)
	if _, err := m.CopyLogSegmentData(ctx, again, d); err == nil {
		t.Error("a copy without a caller succeeded")
	}
}
