package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/objectstore"
	"chancery/services/storage"
)

// oddLeader answers otherwise than it should.
type oddLeader struct {
	*fakeLeader
	segment func(*storagev1.DescribeSegmentResponse) error
	tier    func(*storagev1.DescribeTierResponse)
	updates []*storagev1.UpdateTierPartition
}

func (l *oddLeader) DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	d, err := l.fakeLeader.DescribeSegment(ctx, req)
	if err == nil && l.segment != nil {
		err = l.segment(d)
	}
	return d, err
}

func (l *oddLeader) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	d, err := l.fakeLeader.DescribeTier(ctx, req)
	if err == nil && l.tier != nil {
		l.tier(d)
	}
	return d, err
}

func (l *oddLeader) UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	l.updates = append(l.updates, req.GetPartitions()...)
	return l.fakeLeader.UpdateTier(ctx, req)
}

func (w *world) runWith(ctx context.Context, node storage.Tier) error {
	p := w.pass()
	p.Node = node
	return p.Run(ctx, new(Lag))
}

// TestOddLeaders: a segment that is not what the leader's log says is not even announced, and the pass looks for the leader anew.
func TestOddLeaders(t *testing.T) {
	for name, segment := range map[string]func(*storagev1.DescribeSegmentResponse) error{
		"another end":     func(d *storagev1.DescribeSegmentResponse) error { d.EndOffset--; return nil },
		"no end":          func(d *storagev1.DescribeSegmentResponse) error { d.EndOffset = 0; return nil },
		"too large":       func(d *storagev1.DescribeSegmentResponse) error { d.SizeBytes = math.MaxInt32 + 1; return nil },
		"another history": func(d *storagev1.DescribeSegmentResponse) error { d.Epochs[0].Epoch = 3; return nil },
		"gone":            func(*storagev1.DescribeSegmentResponse) error { return errcode.OffsetOutOfRange.Err() },
		"fenced":          func(*storagev1.DescribeSegmentResponse) error { return errcode.FencedLeaderEpoch.Err() },
	} {
		w := newWorld(t)
		w.leader.grow(25)
		odd := &oddLeader{fakeLeader: w.leader, segment: segment}
		if err := w.runWith(t.Context(), odd); !errors.Is(err, ErrLeader) || len(w.written) != 0 || len(odd.updates) != 0 {
			t.Errorf("%s: %v, written was %v, told was %v", name, err, w.written, odd.updates)
		}
	}
	for name, tier := range map[string]func(*storagev1.DescribeTierResponse){
		"no partition":   func(d *storagev1.DescribeTierResponse) { d.Partitions = nil },
		"two partitions": func(d *storagev1.DescribeTierResponse) { d.Partitions = append(d.Partitions, d.Partitions[0]) },
	} {
		w := newWorld(t)
		w.leader.grow(25)
		if err := w.runWith(t.Context(), &oddLeader{fakeLeader: w.leader, tier: tier}); !errors.Is(err, ErrLeader) || len(w.written) != 0 {
			t.Errorf("%s: %v, written was %v", name, err, w.written)
		}
	}
}

// TestSegmentWithoutRecords, as transactions and retention can leave one, has the epoch of its offsets.
func TestSegmentWithoutRecords(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(47)
	odd := &oddLeader{fakeLeader: w.leader, segment: func(d *storagev1.DescribeSegmentResponse) error {
		if d.GetEndOffset() != 30 {
			d.Epochs = nil // the segment in which the epoch changes has records
		}
		return nil
	}}
	if err := w.runWith(t.Context(), odd); err != nil {
		t.Fatal(err)
	}
	view, _ := w.View(t.Context(), partition)
	var got []string
	for _, e := range view.Segments {
		got = append(got, fmt.Sprint(e.StartOffset, e.LeaderEpochs))
	}
	if want := []string{"0 [{2 0}]", "10 [{2 0}]", "20 [{2 20} {4 25}]", "30 [{4 25}]"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSizesCountOnce: what is in both tiers does not count twice towards retention.bytes.
func TestSizesCountOnce(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(47)
	all := int64(0)
	for base := int64(0); base < 47; base += 10 {
		all += int64(len(w.leader.bytesOf(base)))
	}
	first := int64(len(w.leader.bytesOf(0)))
	w.config.RetentionBytes = all // also in the pass that copies them
	if w.mustRun(); w.leader.start != 0 || w.leader.remoteEnd != 40 {
		t.Fatalf("the log begins at %d, %d is remote", w.leader.start, w.leader.remoteEnd)
	}
	for _, x := range []struct{ keep, start int64 }{{all, 0}, {all - first + 1, 0}, {all - first, 10}} {
		w.config.RetentionBytes = x.keep
		if w.mustRun(); w.leader.start != x.start {
			t.Errorf("of %d bytes %d stay: the log begins at %d, want %d", all, x.keep, w.leader.start, x.start)
		}
	}
}

// TestTheLeaderIsToldOnce of each thing, and a leader that does not move its start keeps its segments.
func TestTheLeaderIsToldOnce(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(25)
	odd := &oddLeader{fakeLeader: w.leader}
	for range 3 {
		if err := w.runWith(t.Context(), odd); err != nil {
			t.Fatal(err)
		}
	}
	var told []int64
	for _, u := range odd.updates {
		told = append(told, u.GetRemoteEndOffset(), u.GetLogStartOffset())
	}
	if !slices.Equal(told, []int64{10, -1, 20, -1}) {
		t.Errorf("told was %v", told)
	}
	w.config.RetentionMs = 0
	stubborn := &stubbornLeader{odd}
	if err := w.runWith(t.Context(), stubborn); !errors.Is(err, ErrLeader) {
		t.Errorf("the leader does not move its start: %v", err)
	}
	if got := fmt.Sprint(w.checkBucket()); got != "[0-9 10-19]" {
		t.Errorf("%s are left", got)
	}
}

// stubbornLeader does not move its log's start.
type stubbornLeader struct{ *oddLeader }

func (l *stubbornLeader) UpdateTier(context.Context, *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	return &storagev1.UpdateTierResponse{Partitions: []*storagev1.UpdateTierPartitionResult{{LogStartOffset: l.start}}}, nil
}

// oddStore fails as it is told.
type oddStore struct {
	objectstore.RemoteStorageManager
	copied  func() error
	deleted func(i int) error
}

func (s *oddStore) CopyLogSegmentData(ctx context.Context, m *objectstore.SegmentMetadata, d *objectstore.SegmentData) ([]byte, error) {
	if s.copied != nil {
		if err := s.copied(); err != nil {
			return nil, err
		}
	}
	return s.RemoteStorageManager.CopyLogSegmentData(ctx, m, d)
}

func (s *oddStore) DeleteLogSegmentData(ctx context.Context, list []*objectstore.SegmentMetadata) []error {
	errs := make([]error, len(list))
	for i := range list {
		if errs[i] = s.deleted(i); errs[i] == nil {
			s.RemoteStorageManager.DeleteLogSegmentData(ctx, list[i:i+1])
		}
	}
	return errs
}

// TestSomeDeletionsFail: those are tried again by the next pass, and the others are over.
func TestSomeDeletionsFail(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(47)
	w.mustRun()
	broken := errors.New("broken")
	store := &oddStore{RemoteStorageManager: w.env.Store, deleted: func(i int) error {
		if i == 1 {
			return broken
		}
		return nil
	}}
	w.env.Store, w.config.RetentionMs, w.written = store, 0, nil
	if err := w.run(); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	view, _ := w.View(t.Context(), partition)
	if len(view.Segments) != 1 || view.Segments[0].StartOffset != 10 || view.Segments[0].State != remotelog.DeleteStarted {
		t.Fatalf("%+v", view)
	}
	store.deleted = func(int) error { return nil }
	w.mustRun()
	if got := w.checkBucket(); len(got) != 0 {
		t.Fatal(got)
	}
}

// TestFailedCopies are taken back, and the store's error is the pass's; one that ends with its owner is left to the next owner.
func TestFailedCopies(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(25)
	broken := errors.New("broken")
	w.env.Store = &oddStore{RemoteStorageManager: w.env.Store, copied: func() error { return broken }, deleted: func(int) error { return nil }}
	if err := w.run(); !errors.Is(err, broken) || errors.Is(err, ErrLeader) {
		t.Error(err)
	}
	if want := []string{"COPY_SEGMENT_STARTED 0-9", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"}; !slices.Equal(w.written, want) {
		t.Errorf("written was %v, want %v", w.written, want)
	}
	w = newWorld(t)
	w.leader.grow(25)
	ctx, cancel := context.WithCancel(t.Context())
	w.env.Store = &oddStore{RemoteStorageManager: w.env.Store, copied: func() error { cancel(); return broken }}
	if err := w.runWith(ctx, w.leader); err == nil || !slices.Equal(w.written, []string{"COPY_SEGMENT_STARTED 0-9"}) {
		t.Errorf("%v, written was %v", err, w.written)
	}
}

// fencing refuses the bytes of segments.
type fencing struct{ *oddLeader }

func (fencing) ReadSegment(context.Context, *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	return nil, errcode.FencedLeaderEpoch.Err()
}

// TestLeaderChangesWhileItIsCopied: the announcement is taken back, and the pass looks for the new leader.
func TestLeaderChangesWhileItIsCopied(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(25)
	odd := &oddLeader{fakeLeader: w.leader}
	if err := w.runWith(t.Context(), fencing{odd}); !errors.Is(err, ErrLeader) || len(odd.updates) != 0 {
		t.Errorf("%v, told was %v", err, odd.updates)
	}
	if want := []string{"COPY_SEGMENT_STARTED 0-9", "DELETE_SEGMENT_STARTED"}; !slices.Equal(w.written[:min(2, len(w.written))], want) {
		t.Errorf("written was %v", w.written)
	}
	w.mustRun()
	if got := fmt.Sprint(w.checkBucket()); got != "[0-9 10-19]" {
		t.Error(got)
	}
}

// TestCustomMetadataUpToItsBound is kept.
func TestCustomMetadataUpToItsBound(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(15)
	w.mustRun()
	view, _ := w.View(t.Context(), partition)
	bound := len(view.Segments[0].CustomMetadata)
	for most, want := range map[int]int{bound: 1, bound - 1: 0} {
		w := newWorld(t)
		w.leader.grow(15)
		w.env.MaxCustom = most
		if err := w.run(); (err == nil) != (want == 1) || len(w.checkBucket()) != want {
			t.Errorf("of %d bytes %d are allowed: %v", bound, most, err)
		}
	}
}

// wideLeader has one segment of some MiB.
type wideLeader struct {
	storage.Tier
	data   []byte
	asked  map[int64]int
	damage int
	err    error
}

func (l *wideLeader) ReadSegment(_ context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	l.asked[req.GetPosition()]++
	if l.err != nil {
		return nil, l.err
	}
	data := bytes.Clone(l.data[req.GetPosition() : req.GetPosition()+int64(req.GetLength())])
	crc := crc32.Checksum(data, castagnoli)
	if l.damage--; l.damage >= 0 {
		data[0]++
	}
	return &storagev1.ReadSegmentResponse{Data: data, Crc32C: crc}, nil
}

// TestSource reads a segment in pieces of any size, asks for each chunk once while it is near, and keeps no more of them than it may.
func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &wideLeader{data: make([]byte, 20*sourceChunk+77), asked: map[int64]int{}}
		for i := range l.data {
			l.data[i] = byte(i * 7 >> 5)
		}
		s := newSource(t.Context(), &Pass{Env: &Env{}, Node: l}, 0, int64(len(l.data)))
		for _, piece := range []int{sourceChunk - 1, sourceChunk + 1, 3 * sourceChunk} {
			clear(l.asked)
			for at := 0; at < len(l.data); at += piece {
				b := make([]byte, min(piece, len(l.data)-at))
				if n, err := s.ReadAt(b, int64(at)); n != len(b) || err != nil || !bytes.Equal(b, l.data[at:at+n]) {
					t.Fatalf("%d bytes at %d: %d, %v", len(b), at, n, err)
				}
				if len(s.chunks) > sourceChunks || len(s.order) > sourceChunks {
					t.Fatalf("%d chunks are kept", len(s.chunks))
				}
			}
			for at, n := range l.asked {
				if n != 1 {
					t.Errorf("the chunk at %d was asked for %d times", at, n)
				}
			}
		}
		for _, at := range []int64{s.size - 5, s.size, s.size + 5} {
			if n, err := s.ReadAt(make([]byte, 10), at); n != int(max(0, s.size-at)) || !errors.Is(err, io.EOF) {
				t.Errorf("over the end at %d: %d, %v", at, n, err)
			}
		}
		if s.refused() != nil {
			t.Error("the leader is said to have refused")
		}
		// A chunk that was damaged on its way, or refused, is asked for anew, and the copy knows of it.
		for range 3 {
			s = newSource(t.Context(), &Pass{Env: &Env{}, Node: l}, 0, int64(len(l.data)))
			l.damage = 1
			if _, err := s.ReadAt(make([]byte, 1), 0); err == nil || s.refused() == nil {
				t.Error("damaged bytes were taken")
			}
			if _, err := s.ReadAt(make([]byte, 1), 0); err != nil {
				t.Error(err)
			}
			l.err = errcode.FencedLeaderEpoch.Err()
			if _, err := s.ReadAt(make([]byte, 1), 5*sourceChunk); errcode.Of(err) != errcode.FencedLeaderEpoch || !errors.Is(asLeaders(s.refused()), ErrLeader) {
				t.Error(err)
			}
			l.err = nil
		}
	})
}
