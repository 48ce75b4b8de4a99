package tiering

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "chancery/proto/storage/v1"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/tiering/internal/keeper"
	"chancery/tiering/internal/remotestate"
)

// read reads from the remote tier of the first partition, and gives the offset of the first batch.
func (w *world) read(ctx context.Context, edit func(*tieringv1.ReadRequest)) (int64, errcode.Code) {
	q := &tieringv1.ReadRequest{TopicId: tieredID[:], Epoch: -1, MaxBytes: 1 << 20, MinOne: true}
	edit(q)
	got, err := service{w.s}.Read(ctx, q)
	if err != nil {
		return -1, errcode.Of(err)
	}
	defer got.Records.Release()
	data := got.Records.Buffers.Materialize()
	if got.EndOffset <= q.GetFetchOffset() || len(data) < recordbatch.HeaderSize {
		w.t.Fatalf("%d bytes up to %d", len(data), got.EndOffset)
	}
	return recordbatch.Header(data).BaseOffset(), errcode.None
}

func (w *world) expectRead(what string, want int64, code errcode.Code, edit func(*tieringv1.ReadRequest)) {
	w.t.Helper()
	if got, c := w.read(w.t.Context(), edit); got != want || c != code {
		w.t.Errorf("%s: offset %d, %s, want %d, %s", what, got, c.Name(), want, code.Name())
	}
}

// copied plays a test after two segments have become remote and local records below 20 have gone.
func copied(t *testing.T, play func(w *world), properties ...string) {
	run(t, func(w *world) {
		w.node.end = 25
		w.round()
		w.node.set(func() { w.node.local = 20 })
		play(w)
	}, properties...)
}

// deleteObject takes the object of the segment that begins at an offset away, and what was kept of it.
func (w *world) deleteObject(base int64) {
	w.t.Helper()
	inventory := w.s.store.(objectstore.Inventory)
	for _, e := range w.view(tiered).Segments {
		if e.StartOffset == base {
			m := keeper.SegmentMetadata(&e)
			key, err := inventory.ObjectKey(m)
			if err != nil {
				w.t.Fatal(err)
			}
			if errs := inventory.DeleteObjects(w.t.Context(), []string{key}); errs != nil {
				w.t.Fatal(errs)
			}
			w.s.reader.Forget(m)
		}
	}
}

func at(offset int64) func(*tieringv1.ReadRequest) {
	return func(q *tieringv1.ReadRequest) { q.FetchOffset = offset }
}

func TestReads(t *testing.T) {
	copied(t, func(w *world) {
		w.expectRead("the first", 0, errcode.None, at(0))
		w.expectRead("the last", 19, errcode.None, at(19))
		asked := w.node.describes
		w.expectRead("within", 7, errcode.None, at(7))
		if w.node.describes != asked {
			t.Error("the leader was asked again")
		}
		w.expectRead("in its epoch", 7, errcode.None, func(q *tieringv1.ReadRequest) { q.FetchOffset, q.Epoch = 7, 0 })
		w.expectRead("in another epoch", -1, errcode.OffsetOutOfRange, func(q *tieringv1.ReadRequest) { q.FetchOffset, q.Epoch = 7, 1 })
		w.expectRead("behind the remote part", -1, errcode.OffsetOutOfRange, at(20))
		w.expectRead("no topic id", -1, errcode.InvalidRequest, func(q *tieringv1.ReadRequest) { q.TopicId = []byte{1} })
		if n := w.s.countersOf(tiered).FetchErrors.Load(); n != 0 {
			t.Errorf("%d reads count as failed", n)
		}
		if n := w.s.countersOf(tiered).Fetches.Load(); n != 6 {
			t.Errorf("%d reads count, want 6", n)
		}
		// Another leader has cut the log in the second segment.
		w.node.set(func() { w.node.epoch, w.node.epochs = 1, []*storagev1.EpochStart{{}, {Epoch: 1, StartOffset: 15}} })
		w.expectRead("what both leaders have", 12, errcode.None, func(q *tieringv1.ReadRequest) { q.FetchOffset, q.LeaderEpoch = 12, 1 })
		w.expectRead("what only the old one had", -1, errcode.OffsetOutOfRange, func(q *tieringv1.ReadRequest) { q.FetchOffset, q.LeaderEpoch = 16, 1 })
		// No leader can be asked.
		w.node.set(func() { w.node.err = errors.New("away") })
		w.expectRead("without a leader", -1, errcode.LeaderNotAvailable, func(q *tieringv1.ReadRequest) { q.FetchOffset, q.LeaderEpoch = 12, 2 })
		if n := w.s.countersOf(tiered).FetchErrors.Load(); n != 1 {
			t.Errorf("%d reads count as failed, want 1", n)
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if _, code := w.read(ctx, func(q *tieringv1.ReadRequest) { q.MetadataOffset = 1 << 40 }); code == errcode.None || ctx.Err() == nil {
			t.Errorf("metadata that has not come yet: %s", code.Name())
		}
		w.push(&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 0, Owner: 2, Epoch: 6},
			&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 1, Owner: 2, Epoch: 6})
		w.expectRead("another's shard", -1, errcode.NotCoordinator, at(0))
	})
}

// TestReadsOfWhatIsGone: a segment that has expired is out of range, one that should be there is an error, and the others are read.
func TestReadsOfWhatIsGone(t *testing.T) {
	copied(t, func(w *world) {
		w.deleteObject(0)
		w.expectRead("lost", -1, errcode.KafkaStorageError, at(3))
		w.expectRead("another segment", 13, errcode.None, at(13))
		if n := w.s.countersOf(tiered).FetchErrors.Load(); n != 1 {
			t.Errorf("%d reads count as failed, want 1", n)
		}
		// What this read had found has expired before it came to the store.
		h := w.s.reads.known(tiered)
		w.write(&remotelog.SegmentUpdate{Topic: "tiered", Partition: tiered, ID: h.segments[0].ID, State: remotelog.DeleteStarted})
		o, err := w.s.find(tiered)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.s.readFailed(w.t.Context(), o, tiered, 3, objectstore.ErrNotFound); errcode.Of(err) != errcode.OffsetOutOfRange {
			t.Errorf("expired meanwhile: %v", err)
		}
		if err := w.s.readFailed(w.t.Context(), o, tiered, 13, objectstore.ErrNotFound); errcode.Of(err) != errcode.KafkaStorageError {
			t.Errorf("lost meanwhile: %v", err)
		}
		if err := w.s.readFailed(w.t.Context(), o, tiered, 3, objectstore.ErrTransient); errcode.Of(err) != errcode.KafkaStorageError {
			t.Errorf("the store is away: %v", err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		cancel()
		if err := w.s.readFailed(ctx, o, tiered, 13, context.Canceled); !errors.Is(err, context.Canceled) || errcode.Of(err) == errcode.KafkaStorageError {
			t.Errorf("given up: %v", err)
		}
	})
}

// TestReadsWait for a place, in bounded numbers, and give it back.
func TestReadsWait(t *testing.T) {
	copied(t, func(w *world) {
		if err := w.s.settings.limits.readers.enter(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		codes := make(chan errcode.Code, 2)
		for _, c := range []context.Context{ctx, w.t.Context()} {
			go func() {
				_, code := w.read(c, at(0))
				codes <- code
			}()
		}
		synctest.Wait()
		w.expectRead("one too many", -1, errcode.ThrottlingQuotaExceeded, at(0))
		cancel()
		if code := <-codes; code == errcode.None {
			t.Error("a read that was given up has been made")
		}
		w.s.settings.limits.readers.leave()
		if code := <-codes; code != errcode.None {
			t.Error(code.Name())
		}
		for range 5 {
			w.expectRead("afterwards", 0, errcode.None, at(0))
			w.expectRead("afterwards, out of range", -1, errcode.OffsetOutOfRange, at(50))
		}
		if n := w.s.reads.waiting.Load(); n != 0 {
			t.Errorf("%d reads are said to wait", n)
		}
	}, "remote.log.reader.threads", "1", "remote.log.reader.max.pending.tasks", "2")
}

// TestOffsetsByTime are those of the remote part alone, from the log's start on.
func TestOffsetsByTime(t *testing.T) {
	copied(t, func(w *world) {
		for name, tt := range map[string]struct {
			time, start, local int64
			want               string
		}{
			"the first":                   {0, 0, 20, "0 at 1000"},
			"within":                      {1013, 0, 20, "13 at 1013"},
			"behind all":                  {1020, 0, 20, "none"},
			"deleted records":             {1003, 15, 20, "15 at 1015"},
			"what is local, too":          {1013, 0, 10, "none"},
			"before what is local, too":   {1009, 0, 10, "9 at 1009"},
			"a local log within":          {1013, 0, 13, "none"},
			"just before it":              {1012, 0, 13, "12 at 1012"},
			"less is remote than is gone": {1012, 0, 22, "12 at 1012"},
		} {
			q := &tieringv1.FindOffsetRequest{TopicId: tieredID[:], TimestampMs: tt.time, LogStartOffset: tt.start, LocalLogStartOffset: tt.local}
			got, err := service{w.s}.FindOffset(w.t.Context(), q)
			text := "none"
			if got.GetFound() {
				text = fmt.Sprintf("%d at %d", got.GetOffset(), got.GetTimestampMs())
			}
			if err != nil || text != tt.want {
				t.Errorf("%s: %s, %v, want %s", name, text, err, tt.want)
			}
		}
		w.node.set(func() { w.node.err = errors.New("away") })
		q := &tieringv1.FindOffsetRequest{TopicId: tieredID[:], LeaderEpoch: 7, LocalLogStartOffset: 20}
		if _, err := (service{w.s}).FindOffset(w.t.Context(), q); errcode.Of(err) != errcode.LeaderNotAvailable {
			t.Errorf("without a leader: %v", err)
		}
		w.node.set(func() { w.node.err = nil })
		w.deleteObject(0)
		if _, err := (service{w.s}).FindOffset(w.t.Context(), &tieringv1.FindOffsetRequest{TopicId: tieredID[:], LocalLogStartOffset: 20}); errcode.Of(err) != errcode.KafkaStorageError {
			t.Errorf("a segment is lost: %v", err)
		}
		if _, err := (service{w.s}).FindOffset(w.t.Context(), &tieringv1.FindOffsetRequest{}); errcode.Of(err) != errcode.InvalidRequest {
			t.Errorf("no topic id: %v", err)
		}
	})
}

// TestLateReadsLeaveNothing: what a read has learned of a partition that is another's by then is forgotten like the rest.
func TestLateReadsLeaveNothing(t *testing.T) {
	copied(t, func(w *world) {
		w.push(&metarecord.RemoveTopicRecord{TopicID: tieredID})
		w.round()
		w.look()
		w.s.reads.learn(tiered, remotestate.Log{}, 0)
		w.look()
		if w.s.reads.known(tiered) != nil {
			t.Error("a partition that is gone is known")
		}
	})
}

// differences are what Check finds, by kind, and how many of them it has repaired.
func (w *world) differences(o CheckOptions) string {
	w.t.Helper()
	report, err := w.s.Check(w.t.Context(), o)
	if err != nil || len(report.Errors) > 0 || report.Shards != 2 {
		w.t.Fatal(report, err)
	}
	kinds, repaired := map[string]int{}, 0
	for _, d := range report.Differences {
		kinds[d.Kind]++
		if d.Repaired {
			repaired++
		}
	}
	return fmt.Sprintf("%d objects, %d segments, %v, %d repaired", report.Objects, report.Segments, kinds, repaired)
}

// ever is an age that each file has, whatever the test's clock says.
const ever = -100 * 365 * 24 * time.Hour

// TestCheck finds what the store and the metadata do not have in common, and repairs it only when told, and when it is old.
func TestCheck(t *testing.T) {
	copied(t, func(w *world) {
		expect := func(when, want string, o CheckOptions) {
			t.Helper()
			if got := w.differences(o); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		<-time.After(2 * time.Minute)
		expect("all is well", "6 objects, 6 segments, map[], 0 repaired", CheckOptions{Repair: true, ForgetMissing: true, OlderThan: ever})

		lost := keeper.SegmentMetadata(&w.view(tiered).Segments[0])
		lost.ID, lost.Custom = uuid.UUID{5}, nil
		w.copy(lost)
		expect("an orphan", "7 objects, 6 segments, map[orphan:1], 0 repaired", CheckOptions{OlderThan: ever})
		expect("a young orphan", "7 objects, 6 segments, map[orphan:1], 0 repaired", CheckOptions{Repair: true, OlderThan: time.Hour})
		expect("an old one", "7 objects, 6 segments, map[orphan:1], 1 repaired", CheckOptions{Repair: true, OlderThan: ever})
		expect("it is gone", "6 objects, 6 segments, map[], 0 repaired", CheckOptions{Repair: true, OlderThan: ever})

		begun := &remotelog.Segment{
			Topic: "tiered", Partition: tiered, ID: uuid.UUID{6}, StartOffset: 20, EndOffset: 24, State: remotelog.CopyStarted, SizeBytes: 10,
			LeaderEpochs: []remotelog.EpochStart{{}},
		}
		w.write(begun)
		expect("a copy of nobody", "6 objects, 7 segments, map[unfinished:1], 0 repaired", CheckOptions{Repair: true, OlderThan: ever})
		w.s.tasks[tiered].running = true
		expect("a copy under way", "6 objects, 7 segments, map[], 0 repaired", CheckOptions{Repair: true, OlderThan: ever})
		w.s.tasks[tiered].running = false
		w.round() // it is deleted

		w.deleteObject(10)
		expect("a lost object", "5 objects, 6 segments, map[missing:1], 0 repaired", CheckOptions{Repair: true, OlderThan: ever})
		expect("it is to be forgotten", "5 objects, 6 segments, map[missing:1], 1 repaired", CheckOptions{ForgetMissing: true})
		if got := w.remote(tiered); got != "[0 COPY_SEGMENT_FINISHED]" {
			t.Error(got)
		}
		expect("all is well again", "5 objects, 5 segments, map[], 0 repaired", CheckOptions{Repair: true, OlderThan: ever})
	})
}

// copy puts a segment into the store that nobody has announced.
func (w *world) copy(s *objectstore.SegmentMetadata) {
	w.t.Helper()
	data := w.node.data(s.BaseOffset)
	if _, err := w.s.store.CopyLogSegmentData(w.t.Context(), s, &objectstore.SegmentData{Log: readerAt(data)}); err != nil {
		w.t.Fatal(err)
	}
}

type readerAt []byte

func (r readerAt) ReadAt(p []byte, at int64) (int, error) { return copy(p, r[at:]), nil }

// editedStore lists other objects than the store has.
type editedStore struct {
	objectstore.InventoryManager
	edit  func(o *objectstore.Object)
	extra []objectstore.Object
	stale int
}

func (s *editedStore) ListObjects(ctx context.Context, scope objectstore.Scope, visit func(objectstore.Object) error) error {
	for _, o := range s.extra {
		if err := visit(o); err != nil {
			return err
		}
	}
	return s.InventoryManager.ListObjects(ctx, scope, func(o objectstore.Object) error {
		s.edit(&o)
		return visit(o)
	})
}

func (s *editedStore) AbortStaleUploads(context.Context, time.Time, bool) (int, error) {
	return s.stale, nil
}

// TestCheckOfOddObjects: what is no segment is shown and never deleted, what is shorter than its segment is shown, and the objects of
// shards of others are nobody's business here.
func TestCheckOfOddObjects(t *testing.T) {
	copied(t, func(w *world) {
		<-time.After(2 * time.Minute)
		store := &editedStore{InventoryManager: w.s.store.(objectstore.InventoryManager), stale: 3, edit: func(*objectstore.Object) {}}
		w.s.store = store
		report, err := w.s.Check(w.t.Context(), CheckOptions{})
		if err != nil || report.StaleUploads != 3 {
			t.Errorf("%+v, %v", report, err)
		}
		store.extra = []objectstore.Object{{Key: "readme", SizeBytes: 5}}
		if got, want := w.differences(CheckOptions{Repair: true, OlderThan: ever}), "6 objects, 6 segments, map[foreign:1], 0 repaired"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		store.extra = nil
		for more, want := range map[int]string{1: "6 objects, 6 segments, map[], 0 repaired", 0: "6 objects, 6 segments, map[short:6], 0 repaired"} {
			store.edit = func(o *objectstore.Object) { o.SizeBytes = int64(len(w.node.data(o.Segment.BaseOffset)) + more) }
			if got := w.differences(CheckOptions{Repair: true, OlderThan: ever}); got != want {
				t.Errorf("objects of %d bytes more than their logs: %s, want %s", more, got, want)
			}
		}
		w.push(&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 0, Owner: 2, Epoch: 6})
		report, err = w.s.Check(w.t.Context(), CheckOptions{Repair: true, ForgetMissing: true, OlderThan: ever})
		if err != nil || report.Shards != 1 || report.Objects != report.Segments || report.Objects == 0 || report.Objects == 6 || w.objects() != 6 {
			t.Errorf("with one shard: %+v, %v", report, err)
		}
		for _, d := range report.Differences {
			if d.Kind != "short" {
				t.Errorf("with one shard: %+v", d)
			}
		}
	})
}

// TestOrphansAreLookedAtTwice: an object is deleted only when the metadata of now does not know it, and the store of now has it.
func TestOrphansAreLookedAtTwice(t *testing.T) {
	copied(t, func(w *world) {
		inventory := w.s.store.(objectstore.Inventory)
		known := &w.view(tiered).Segments[0]
		key, err := inventory.ObjectKey(keeper.SegmentMetadata(known))
		if err != nil {
			t.Fatal(err)
		}
		gone := keeper.SegmentMetadata(known)
		gone.ID = uuid.UUID{9}
		for name, o := range map[string]objectstore.Object{
			"a copy that was announced since": {Key: key, Segment: keeper.SegmentMetadata(known)},
			"an object that is gone by now":   {Key: "no such key", Segment: gone},
		} {
			c := &check{server: w.s, inventory: inventory, options: CheckOptions{Repair: true, OlderThan: ever}, began: time.Now(), shards: w.s.serving()}
			c.orphan(w.t.Context(), o.Key, found{Object: o})
			if len(c.report.Differences) != 0 || len(c.report.Errors) != 0 || w.objects() != 6 {
				t.Errorf("%s: %+v", name, c.report)
			}
		}
	})
}

// TestCheckWithoutAStore says so.
func TestCheckWithoutAStore(t *testing.T) {
	for _, s := range []*Server{{}, {settings: settings{enabled: true}}} {
		if _, err := s.Check(t.Context(), CheckOptions{}); err == nil {
			t.Error("a store that is not there was compared")
		}
	}
}

// TestWakes: a topic that comes or goes, or whose configs change, is looked at without waiting for the next tick.
func TestWakes(t *testing.T) {
	run(t, func(w *world) {
		woken := func() bool {
			select {
			case <-w.s.kick:
				return true
			default:
				return false
			}
		}
		led := &metarecord.PartitionRecord{TopicID: tieredID, Replicas: []int32{9}, ISR: []int32{9}, Leader: 9}
		woken()
		for _, x := range []struct {
			what string
			do   func()
			want bool
		}{
			{"nothing new", func() { w.push(led) }, false},
			{"a config", func() { w.configure("retention.ms", "5") }, true},
			{"a new topic", func() { w.topic("other", uuid.UUID{8}, 1) }, true},
			{"a topic that goes", func() { w.push(&metarecord.RemoveTopicRecord{TopicID: uuid.UUID{8}}) }, true},
		} {
			if x.do(); woken() != x.want {
				t.Errorf("%s: woken %v, want %v", x.what, !x.want, x.want)
			}
		}
	})
}
