package keeper

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/quota"
	"chancery/services/objectstore/registry"
	"chancery/services/objectstore/segmentstore"
	"chancery/services/statemachine"
	"chancery/tiering/internal/remotestate"
)

// errCrash is how everything ends that a test stops.
var errCrash = errors.New("the instance has crashed")

// fuse counts steps down and breaks everything off at one of them.
type fuse struct{ left atomic.Int64 }

func (f *fuse) step(string) error {
	if f.left.Add(-1) < 0 {
		return errCrash
	}
	return nil
}

// world is a leader's log, a shard and a store.
type world struct {
	t       *testing.T
	machine *remotestate.Machine
	fuse    fuse
	store   objectstore.InventoryManager
	leader  *fakeLeader
	config  configdef.Topic
	env     *Env
	now     time.Time
	written []string
}

var partition = remotelog.Partition{TopicID: uuid.UUID{7}, Partition: 3}

func newWorld(t *testing.T) *world {
	w := &world{t: t, machine: remotestate.New(), now: time.UnixMilli(1_000_000)}
	w.fuse.left.Store(1 << 40)
	config, err := registry.Parse(map[string]string{"dir.path": filepath.Join(t.TempDir(), "store")}, "", "cluster")
	if err != nil {
		t.Fatal(err)
	}
	store, err := registry.Stores().Open(t.Context(), "dir", config, segmentstore.Deps{
		Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler), Step: w.fuse.step,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w.store = store.(objectstore.InventoryManager)
	w.leader = &fakeLeader{world: w, epoch: 4, epochs: []*storagev1.EpochStart{{Epoch: 2}, {Epoch: 4, StartOffset: 25}}}
	w.config = configdef.Topic{RemoteStorageEnable: true, RetentionMs: -1, RetentionBytes: -1}
	w.env = &Env{
		Store: store, BrokerID: 1, Copying: quota.NewLimiter(quota.Unlimited, 11, time.Second), Forget: func(...*objectstore.SegmentMetadata) {}, MaxCustom: 128,
		Metrics: &Metrics{}, Now: func() time.Time { return w.now }, NewID: uuid.Random, Logger: slog.New(slog.DiscardHandler),
	}
	return w
}

// View is part of Metadata.
func (w *world) View(_ context.Context, p remotelog.Partition) (*remotestate.View, error) {
	var view *remotestate.View
	var e statemachine.Effects[remotelog.Record, remotestate.Reply]
	w.machine.Decide(w.now, 1, remotestate.Get{Partition: p}, &e)
	e.Answers(func(_ statemachine.Ticket, r remotestate.Reply, _ errcode.Code, _ bool) {
		view, _ = r.(*remotestate.View)
	})
	return view, nil
}

// Write is part of Metadata. A crash comes before the record is written, or after, when nobody hears of it any more.
func (w *world) Write(_ context.Context, r remotelog.Record) error {
	if err := w.fuse.step("before a record"); err != nil {
		return err
	}
	var code errcode.Code
	var e statemachine.Effects[remotelog.Record, remotestate.Reply]
	w.machine.Decide(w.now, 1, remotestate.Write{Record: r}, &e)
	e.Answers(func(_ statemachine.Ticket, _ remotestate.Reply, c errcode.Code, _ bool) { code = c })
	for _, r := range e.Records() {
		w.machine.Apply(r)
		w.machine.Commit(w.now, 0, r, nil)
		w.written = append(w.written, nameOf(r))
	}
	return errors.Join(code.Err(), w.fuse.step("after a record"))
}

func nameOf(r remotelog.Record) string {
	switch r := r.(type) {
	case *remotelog.Segment:
		return fmt.Sprintf("%s %d-%d", r.State, r.StartOffset, r.EndOffset)
	case *remotelog.SegmentUpdate:
		return r.State.String()
	case *remotelog.PartitionDelete:
		return r.State.String()
	}
	return ""
}

func (w *world) pass() *Pass {
	config := w.config
	return &Pass{Env: w.env, Metadata: w, Partition: partition, Topic: "topic", Config: &config, Shard: 5, ShardEpoch: 6, Node: w.leader}
}

func (w *world) run() error {
	var lag Lag
	return w.pass().Run(w.t.Context(), &lag)
}

// mustRun runs passes until there is nothing left to do.
func (w *world) mustRun() {
	w.t.Helper()
	for range 3 {
		if err := w.run(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// checkBucket wants the store to have exactly the segments that the metadata says are finished.
func (w *world) checkBucket() []string {
	w.t.Helper()
	var want, offsets []string
	if view, _ := w.View(w.t.Context(), partition); view != nil {
		for i := range view.Segments {
			e := &view.Segments[i]
			if e.State != remotelog.CopyFinished {
				w.t.Fatalf("segment %d-%d is %s", e.StartOffset, e.EndOffset, e.State)
			}
			key, err := w.store.ObjectKey(SegmentMetadata(e))
			if err != nil {
				w.t.Fatal(err)
			}
			want = append(want, key)
			offsets = append(offsets, fmt.Sprintf("%d-%d", e.StartOffset, e.EndOffset))
		}
	}
	var got []string
	err := w.store.ListObjects(w.t.Context(), objectstore.Scope{Partition: objectstore.AllPartitions}, func(o objectstore.Object) error {
		got = append(got, o.Key)
		return nil
	})
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		w.t.Fatalf("the store has %v, the metadata %v (%v)", got, want, err)
	}
	return offsets
}

// fakeLeader has segments of ten records each.
type fakeLeader struct {
	world               *world
	epoch               int32
	epochs              []*storagev1.EpochStart
	start, local, end   int64
	stable              int64
	remoteEnd           int64
	refuse, damage      bool
	describes, segments int
}

func (l *fakeLeader) grow(to int64) { l.end, l.stable = to, to }

// bytesOf is the segment that begins at an offset.
func (l *fakeLeader) bytesOf(base int64) []byte {
	var out []byte
	for at := base; at < min(base+10, l.end); at++ {
		o := recordbatch.NewOptions()
		o.BaseOffset, o.LeaderEpoch = at, 2
		if at >= 25 {
			o.LeaderEpoch = 4
		}
		b := recordbatch.NewBuilder(nil, o)
		b.Append(1000+at, nil, fmt.Appendf(nil, "record %d", at))
		data, _ := b.Build() // only codecs fail, and there is none
		out = append(out, data...)
	}
	return out
}

func (l *fakeLeader) DescribeTier(_ context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	l.describes++
	d := &storagev1.TierDescription{
		LeaderEpoch: l.epoch, LogStartOffset: l.start, LocalLogStartOffset: l.local, LastStableOffset: l.stable, HighWatermark: l.end, LogEndOffset: l.end,
		RemoteEndOffset: l.remoteEnd, Epochs: l.epochs,
	}
	if l.refuse {
		d.ErrorCode = int32(errcode.NotLeaderOrFollower)
	}
	for base := l.local - l.local%10; base < l.end; base += 10 {
		if end := min(base+10, l.end); end > req.GetPartitions()[0].GetFromOffset() || end == l.end {
			d.Segments = append(d.Segments, &storagev1.LocalSegment{BaseOffset: base, EndOffset: end, SizeBytes: int64(len(l.bytesOf(base))), MaxTimestampMs: 1000 + end - 1})
		}
	}
	return &storagev1.DescribeTierResponse{Partitions: []*storagev1.TierDescription{d}}, nil
}

func (l *fakeLeader) UpdateTier(_ context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	q := req.GetPartitions()[0]
	r := &storagev1.UpdateTierPartitionResult{}
	if q.GetLeaderEpoch() != l.epoch || q.GetShard() != 5 || q.GetShardEpoch() != 6 {
		r.ErrorCode = int32(errcode.FencedLeaderEpoch)
	} else {
		l.remoteEnd, l.start = q.GetRemoteEndOffset(), max(l.start, q.GetLogStartOffset())
		l.local = max(l.local, l.start)
		if len(l.epochs) > 0 {
			l.epochs[0].StartOffset = max(l.epochs[0].GetStartOffset(), l.start)
		}
	}
	r.LogStartOffset = l.start
	if err := l.world.fuse.step("the leader was told"); err != nil {
		return nil, err
	}
	return &storagev1.UpdateTierResponse{Partitions: []*storagev1.UpdateTierPartitionResult{r}}, nil
}

func (l *fakeLeader) DescribeSegment(_ context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	l.segments++
	base := req.GetBaseOffset()
	data := l.bytesOf(base)
	d := &storagev1.DescribeSegmentResponse{
		EndOffset: base + 10, SizeBytes: int64(len(data)), MaxTimestampMs: 1000 + base + 9, Crc32C: crc32.Checksum(data, castagnoli),
		OffsetIndex: make([]byte, 8), TimeIndex: make([]byte, 12), ProducerSnapshot: []byte("producers"),
		Epochs: []*storagev1.EpochStart{{Epoch: 2, StartOffset: base}},
	}
	switch {
	case base >= 25:
		d.Epochs[0].Epoch = 4
	case base+10 > 25:
		d.Epochs = append(d.Epochs, &storagev1.EpochStart{Epoch: 4, StartOffset: 25})
	}
	return d, nil
}

func (l *fakeLeader) ReadSegment(_ context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	if req.GetLeaderEpoch() != l.epoch {
		return nil, errcode.FencedLeaderEpoch.Err()
	}
	data := l.bytesOf(req.GetBaseOffset())[req.GetPosition() : req.GetPosition()+int64(req.GetLength())]
	crc := crc32.Checksum(data, castagnoli)
	if l.damage {
		data[len(data)/2]++
	}
	return &storagev1.ReadSegmentResponse{Data: data, Crc32C: crc}, nil
}

func TestPass(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(47)
	w.leader.stable = 38
	w.mustRun()
	if got := fmt.Sprint(w.checkBucket()); got != "[0-9 10-19 20-29]" || w.leader.remoteEnd != 30 {
		t.Fatal(got, w.leader.remoteEnd)
	}
	want := []string{
		"COPY_SEGMENT_STARTED 0-9", "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED 10-19", "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED 20-29",
		"COPY_SEGMENT_FINISHED",
	}
	if !slices.Equal(w.written, want) {
		t.Fatal(w.written)
	}
	// Time has run out for the first two, which another 60 s of reading are granted.
	w.config.RetentionMs, w.config.FileDeleteDelayMs = w.now.UnixMilli()-1000-20, 60_000
	w.written = nil
	w.mustRun()
	if w.leader.start != 20 || len(w.written) != 2 {
		t.Fatal(w.leader.start, w.written)
	}
	w.now = w.now.Add(time.Minute)
	w.config.RetentionMs = -1
	w.mustRun()
	if got := fmt.Sprint(w.checkBucket()); got != "[20-29]" {
		t.Fatal(got)
	}
	// After everything remote has expired, copying goes on.
	w.leader.grow(70)
	w.config.FileDeleteDelayMs, w.config.RetentionMs = 0, w.now.UnixMilli()-1000-60
	w.mustRun()
	if w.leader.start != 60 || w.leader.remoteEnd != 60 {
		t.Fatal(w.leader.start, w.leader.remoteEnd) // what was tiered last is still known
	}
	w.leader.grow(100)
	w.mustRun()
	if got := fmt.Sprint(w.checkBucket()); got != "[60-69 70-79 80-89]" || w.leader.remoteEnd != 90 {
		t.Fatal(got, w.leader.remoteEnd)
	}
}

// TestCrashes breaks passes off at every step, and lets the next owner go on: in the end the store has exactly what the
// metadata says, and that is what an undisturbed owner has.
func TestCrashes(t *testing.T) {
	steps := int64(0)
	for at := int64(0); at <= steps; at++ {
		w := newWorld(t)
		w.leader.grow(47)
		w.fuse.left.Store(at)
		if at == 0 {
			w.fuse.left.Store(1 << 40)
		}
		life := func() error {
			if err := w.run(); err != nil {
				return err
			}
			w.config.RetentionMs = w.now.UnixMilli() - 1000 - 15
			if err := w.run(); err != nil {
				return err
			}
			if err := w.run(); err != nil {
				return err
			}
			w.config.RetentionMs = -1
			return nil
		}
		if err := life(); err != nil && !errors.Is(err, errCrash) && !errors.Is(err, ErrLeader) {
			t.Fatalf("step %d: %v", at, err)
		}
		if at == 0 {
			steps = 1<<40 - w.fuse.left.Load() // as many as there are to break off at
		}
		w.fuse.left.Store(1 << 40)
		if err := life(); err != nil {
			t.Fatalf("after a crash at step %d: %v", at, err)
		}
		w.mustRun()
		if got := fmt.Sprint(w.checkBucket()); got != "[10-19 20-29 30-39]" || w.leader.remoteEnd != 40 || w.leader.start != 10 {
			t.Fatalf("after a crash at step %d: %s, remote end %d, start %d", at, got, w.leader.remoteEnd, w.leader.start)
		}
	}
	if steps < 15 {
		t.Fatalf("only %d steps", steps)
	}
}

// TestCopyOfADeadOwner takes over a partition whose owner died while it copied: the segment is copied anew at once, and what the
// dead one has left goes after file.delete.delay.ms, since it may still have been on its way.
func TestCopyOfADeadOwner(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(15)
	w.config.FileDeleteDelayMs = 60_000
	left := w.env.NewID()
	w.env.NewID = func() uuid.UUID { return left }
	w.fuse.left.Store(3) // the announcement is there, and so is the object
	if err := w.run(); err == nil {
		t.Fatal("it was not killed")
	}
	w.fuse.left.Store(1 << 40)
	w.env.NewID = uuid.Random
	state := func() string {
		view, _ := w.View(t.Context(), partition)
		var out []string
		for _, e := range view.Segments {
			out = append(out, fmt.Sprintf("%d-%d %s %t", e.StartOffset, e.EndOffset, e.State, e.ID == left))
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	if got := state(); got != "0-9 COPY_SEGMENT_STARTED true" {
		t.Fatal(got)
	}
	w.mustRun()
	if got := state(); got != "0-9 COPY_SEGMENT_FINISHED false, 0-9 DELETE_SEGMENT_STARTED true" || w.leader.remoteEnd != 10 {
		t.Fatal(got, w.leader.remoteEnd)
	}
	w.now = w.now.Add(time.Minute)
	w.mustRun()
	if got := fmt.Sprint(w.checkBucket()); got != "[0-9]" {
		t.Fatal(got)
	}
}

// TestRemoval deletes a partition, broken off at every step.
func TestRemoval(t *testing.T) {
	steps := int64(1)
	for at := int64(0); at <= steps; at++ {
		w := newWorld(t)
		w.leader.grow(47)
		w.mustRun()
		if at > 0 {
			w.fuse.left.Store(at - 1)
		}
		before := w.fuse.left.Load()
		err := w.pass().Remove(t.Context(), &Lag{})
		if at == 0 {
			steps = before - w.fuse.left.Load()
		}
		if err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		w.fuse.left.Store(1 << 40)
		if err := w.pass().Remove(t.Context(), &Lag{}); err != nil {
			t.Fatalf("after a crash at step %d: %v", at, err)
		}
		if left := w.checkBucket(); len(left) > 0 {
			t.Fatalf("after a crash at step %d: %v is left", at, left)
		}
		if view, _ := w.View(t.Context(), partition); view != nil {
			t.Fatalf("after a crash at step %d: %+v", at, view)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(47)
	w.leader.refuse = true
	if err := w.run(); !errors.Is(err, ErrLeader) {
		t.Fatal(err)
	}
	// What is damaged on the way is not kept.
	w.leader.refuse, w.leader.damage = false, true
	if err := w.run(); err == nil {
		t.Fatal("damaged bytes were copied")
	}
	w.leader.damage = false
	w.mustRun()
	if got := w.checkBucket(); len(got) != 4 {
		t.Fatal(got)
	}
	// A new leader counts from the next pass on.
	w.leader.epoch = 5
	w.leader.epochs = append(w.leader.epochs, &storagev1.EpochStart{Epoch: 5, StartOffset: 47})
	w.mustRun()
	// One whose history is another one's from within a segment on shares what comes before.
	w.leader.epochs = []*storagev1.EpochStart{{Epoch: 2}, {Epoch: 6, StartOffset: 33}}
	w.leader.epoch = 6
	view, _ := w.View(t.Context(), partition)
	line := remotestate.LineageOf(view.Segments, &remotestate.Log{Epochs: epochs(w.leader.epochs), End: 47})
	if line.End != 25 {
		t.Fatal(line.End)
	}
	// Custom metadata that is too large is refused, and nothing stays behind.
	w = newWorld(t)
	w.leader.grow(15)
	w.env.MaxCustom = 3
	if err := w.run(); err == nil {
		t.Fatal("too large metadata was taken")
	}
	if got := w.checkBucket(); len(got) != 0 {
		t.Fatal(got)
	}
	// Copying may be switched off, while retention goes on.
	w = newWorld(t)
	w.leader.grow(47)
	w.config.RemoteLogCopyDisable = true
	w.mustRun()
	if len(w.written) > 0 {
		t.Fatal(w.written)
	}
}

// TestPassEndsWhenItIsOutdated: however many segments wait, copying ends with the one under way when it is switched off.
func TestPassEndsWhenItIsOutdated(t *testing.T) {
	w := newWorld(t)
	w.leader.grow(100)
	p := w.pass()
	p.Outdated = func() bool { return len(w.written) >= 4 }
	var lag Lag
	if err := p.Run(t.Context(), &lag); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(w.checkBucket()); got != "[0-9 10-19]" || w.leader.remoteEnd != 20 {
		t.Fatal(got, w.leader.remoteEnd)
	}
}

func TestCandidates(t *testing.T) {
	var segments []Local
	for i := range int64(5) {
		segments = append(segments, Local{BaseOffset: 10 * i, EndOffset: 10*i + 10, SizeBytes: 100, MaxTimestampMs: 1000 * i})
	}
	for name, tt := range map[string]struct {
		from, stable    int64
		lagMs, lagBytes int64
		first, n        int
	}{
		"all closed ones":                  {0, 100, 0, -1, 0, 4},
		"below the last stable":            {0, 39, 0, -1, 0, 3},
		"not those that are remote":        {20, 100, 0, -1, 2, 2},
		"one that is partly remote":        {15, 100, 0, -1, 1, 3},
		"young ones wait":                  {0, 100, 3000, -1, 0, 2},
		"a little behind waits":            {0, 100, -1, 250, 0, 2},
		"either is enough":                 {0, 100, 3000, 150, 0, 3},
		"zero bytes waits for none":        {0, 100, 1 << 40, 0, 0, 4},
		"neither reached":                  {0, 100, 1 << 40, 1 << 40, 0, 0},
		"up to the last stable":            {0, 40, 0, -1, 0, 4},
		"just far enough behind":           {0, 100, -1, 200, 0, 3},
		"what is remote is behind nothing": {10, 100, -1, 300, 1, 1},
		"no time lets none go":             {0, 100, 0, 1 << 40, 0, 4},
	} {
		config := &configdef.Topic{RetentionMs: -1, RetentionBytes: -1, LocalRetentionMs: -2, LocalRetentionBytes: -2, RemoteCopyLagMs: tt.lagMs, RemoteCopyLagBytes: tt.lagBytes}
		got := Candidates(segments, tt.from, tt.stable, config, 4000)
		if len(got) != tt.n || tt.n > 0 && got[0] != segments[tt.first] {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRecordsFromTheFuture do not hold their segment back for as long as it takes until then.
func TestRecordsFromTheFuture(t *testing.T) {
	segments := []Local{{EndOffset: 10, SizeBytes: 100, MaxTimestampMs: 9000}, {BaseOffset: 10, EndOffset: 20, MaxTimestampMs: 9000}}
	for now, n := range map[int64]int{8999: 1, 9000: 0, 9001: 0, 9999: 0, 10_000: 1} {
		if got := Candidates(segments, 0, 100, &configdef.Topic{RemoteCopyLagMs: 1000, RemoteCopyLagBytes: 1 << 40}, now); len(got) != n {
			t.Errorf("at %d: %v", now, got)
		}
	}
}

// TestCopyLagOfTheLocalRetention has segments wait as long as they may stay on the storage nodes, where remote.copy.lag.* is -1.
func TestCopyLagOfTheLocalRetention(t *testing.T) {
	var segments []Local
	for i := range int64(5) {
		segments = append(segments, Local{BaseOffset: 10 * i, EndOffset: 10*i + 10, SizeBytes: 100, MaxTimestampMs: 1000 * i})
	}
	for name, tt := range map[string]struct {
		config configdef.Topic
		n      int
	}{
		"the local time":         {configdef.Topic{LocalRetentionMs: 3000, RetentionMs: 9000, LocalRetentionBytes: -2, RetentionBytes: -1}, 2},
		"the time of the log":    {configdef.Topic{LocalRetentionMs: -2, RetentionMs: 2000, LocalRetentionBytes: -2, RetentionBytes: -1}, 3},
		"the local size":         {configdef.Topic{LocalRetentionMs: -2, RetentionMs: -1, LocalRetentionBytes: 250, RetentionBytes: 999}, 2},
		"the size of the log":    {configdef.Topic{LocalRetentionMs: -2, RetentionMs: -1, LocalRetentionBytes: -2, RetentionBytes: 150}, 3},
		"the sooner of both":     {configdef.Topic{LocalRetentionMs: 3000, RetentionMs: 9000, LocalRetentionBytes: 150, RetentionBytes: 999}, 3},
		"no local stay":          {configdef.Topic{LocalRetentionMs: 0, RetentionMs: 9000, LocalRetentionBytes: -2, RetentionBytes: -1}, 4},
		"no limit is never over": {configdef.Topic{LocalRetentionMs: -2, RetentionMs: -1, LocalRetentionBytes: -2, RetentionBytes: -1}, 0},
	} {
		tt.config.RemoteCopyLagMs, tt.config.RemoteCopyLagBytes = -1, -1
		if got := Candidates(segments, 0, 100, &tt.config, 4000); len(got) != tt.n {
			t.Errorf("%s: %v", name, got)
		}
	}
}
