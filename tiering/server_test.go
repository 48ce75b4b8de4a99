package tiering

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/objectstore"
	"chancery/services/statemachine"
	"chancery/services/statemachine/shards"
	"chancery/services/storage"
	"chancery/tiering/internal/remotestate"
)

// memoryLog is a shard's log that keeps nothing: what is appended is durable at once.
type memoryLog struct{}

func (memoryLog) Load(context.Context, func(recordbatch.Header, *recordbatch.Record) error) (int64, error) {
	return 0, nil
}

func (memoryLog) Append(_ context.Context, _ [][]byte, end int64, done func(int64, error)) {
	done(end, nil)
}

// fakeNode leads all partitions. Its log has segments of ten records, each a batch of its own.
type fakeNode struct {
	storage.Node
	mu                sync.Mutex
	epoch             int32
	epochs            []*storagev1.EpochStart
	start, local, end int64
	remoteEnd         int64
	err               error
	describes         int
	// held, unless it is nil, is what descriptions wait for; entered is told of each.
	held, entered chan struct{}
}

func (n *fakeNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *fakeNode) data(base int64) []byte {
	var out []byte
	for at := base; at < base+10; at++ {
		o := recordbatch.NewOptions()
		o.BaseOffset = at
		b := recordbatch.NewBuilder(nil, o)
		b.Append(1000+at, nil, fmt.Appendf(nil, "record %d", at))
		batch, _ := b.Build() // only codecs fail, and there is none
		out = append(out, batch...)
	}
	return out
}

func (n *fakeNode) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	n.mu.Lock()
	held, entered := n.held, n.entered
	n.mu.Unlock()
	if entered != nil {
		entered <- struct{}{}
	}
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.describes++
	if n.err != nil {
		return nil, n.err
	}
	q := req.GetPartitions()[0]
	d := &storagev1.TierDescription{
		LeaderEpoch: n.epoch, LogStartOffset: n.start, LocalLogStartOffset: n.local, LastStableOffset: n.end, HighWatermark: n.end, LogEndOffset: n.end,
		RemoteEndOffset: n.remoteEnd, Epochs: n.epochs,
	}
	for base := n.local - n.local%10; base <= n.end; base += 10 {
		if end := min(base+10, n.end); end > q.GetFromOffset() || end == n.end {
			d.Segments = append(d.Segments, &storagev1.LocalSegment{BaseOffset: base, EndOffset: end, SizeBytes: int64(len(n.data(base))), MaxTimestampMs: 1000 + end - 1})
		}
	}
	return &storagev1.DescribeTierResponse{Partitions: []*storagev1.TierDescription{d}}, nil
}

func (n *fakeNode) UpdateTier(_ context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := req.GetPartitions()[0]
	n.remoteEnd, n.start = q.GetRemoteEndOffset(), max(n.start, q.GetLogStartOffset())
	return &storagev1.UpdateTierResponse{Partitions: []*storagev1.UpdateTierPartitionResult{{LogStartOffset: n.start}}}, nil
}

func (n *fakeNode) DescribeSegment(_ context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	base, data := req.GetBaseOffset(), n.data(req.GetBaseOffset())
	return &storagev1.DescribeSegmentResponse{
		EndOffset: base + 10, SizeBytes: int64(len(data)), MaxTimestampMs: 1000 + base + 9, Crc32C: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)),
		Epochs: []*storagev1.EpochStart{{StartOffset: base}},
	}, nil
}

func (n *fakeNode) ReadSegment(_ context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	data := n.data(req.GetBaseOffset())[req.GetPosition() : req.GetPosition()+int64(req.GetLength())]
	return &storagev1.ReadSegmentResponse{Data: data, Crc32C: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))}, nil
}

// world is an instance without its loops, the metadata that it follows, and a node that leads everything.
type world struct {
	t      *testing.T
	s      *Server
	node   *fakeNode
	image  *metadata.Image
	passes sync.WaitGroup
}

func (w *world) Image() *metadata.Image                   { return w.image }
func (w *world) Ready() error                             { return nil }
func (w *world) Await(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }
func (w *world) Subscribe(metadata.Publisher)             {}

var (
	tieredID = uuid.UUID{7}
	tiered   = remotelog.Partition{TopicID: tieredID}
)

// run plays a test with an instance that has both shards, and the topic "tiered" of three partitions. Properties are pairs.
func run(t *testing.T, play func(w *world), properties ...string) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, image: metadata.Empty("c"), node: &fakeNode{epochs: []*storagev1.EpochStart{{}}}}
		config := Config{NodeID: 1, ClusterID: "c", Properties: map[string]string{
			"remote.log.storage.system.enable": "true", "remote.log.storage.manager.class.name": "dir", "log.segment.delete.delay.ms": "0", "log.retention.ms": "-1",
			"rsm.config.dir.path": filepath.Join(t.TempDir(), "store"),
		}}
		for i := 0; i < len(properties); i += 2 {
			config.Properties[properties[i]] = properties[i+1]
		}
		var err error
		w.s, err = New(config, Deps{
			Metadata: w, Nodes: func(int32) (storage.Node, error) { return w.node, nil }, Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if w.s.store, w.s.reader, err = open(t.Context(), w.s.config, w.s.settings, w.s.deps); err != nil {
			t.Fatal(err)
		}
		w.s.env.Store, w.s.env.Forget = w.s.store, w.s.reader.Forget
		w.s.shards = shards.New(shards.Config[remotestate.Command, remotelog.Record, remotestate.Reply]{
			NodeID: 1, Kind: metadata.RemoteLogShard, Topic: internaltopic.RemoteLogMetadata, Image: w.s.image.Load, Build: memoryShard,
		})
		w.topic(internaltopic.RemoteLogMetadata, uuid.UUID{1}, 2)
		w.push(&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 0, Owner: 1, Epoch: 5},
			&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 1, Owner: 1, Epoch: 5})
		w.topic("tiered", tieredID, 3)
		w.configure("remote.storage.enable", "true")
		play(w)
		w.s.shards.Drain(t.Context())
		w.passes.Wait()
		if err := w.s.closeStore(); err != nil {
			t.Error(err)
		}
	})
}

func memoryShard(spec shards.Spec) *shard {
	return statemachine.NewShard(statemachine.Config[remotestate.Command, remotelog.Record, remotestate.Reply]{
		Name: fmt.Sprint(spec.Number), New: func() statemachine.Machine[remotestate.Command, remotelog.Record, remotestate.Reply] {
			return remotestate.New()
		},
		Codec: remotestate.Codec{}, Log: memoryLog{}, Codecs: recordbatch.NewCodecs(), MaxBatchBytes: maxBatchBytes, MaxQueuedBytes: maxQueuedBytes,
		AnswerTimeout: answerTimeout, OnServing: func() {}, Logger: slog.New(slog.DiscardHandler),
	})
}

func (w *world) push(records ...metarecord.Record) {
	w.t.Helper()
	d, err := w.image.Apply(w.image.Offset()+int64(len(records)), 1, records...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.image = d.Image()
	w.s.publish(w.t.Context(), d, w.image)
	synctest.Wait()
}

func (w *world) topic(name string, id uuid.UUID, partitions int32) {
	w.t.Helper()
	records := []metarecord.Record{&metarecord.TopicRecord{Name: name, TopicID: id}}
	for p := range partitions {
		records = append(records, &metarecord.PartitionRecord{TopicID: id, PartitionID: p, Replicas: []int32{9}, ISR: []int32{9}, Leader: 9})
	}
	w.push(records...)
}

func (w *world) configure(name, value string) {
	w.t.Helper()
	w.push(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: "tiered", Name: name, Value: &value})
}

// look starts what is due and waits until it is done, or held.
func (w *world) look() {
	w.s.startDue(w.t.Context(), &w.passes)
	synctest.Wait()
}

// round lets all passes become due, and looks after each once.
func (w *world) round() {
	<-time.After(w.s.settings.interval)
	for range 3 {
		w.look()
	}
}

// view is what is known of a partition; nil for nothing.
func (w *world) view(p remotelog.Partition) *remotestate.View {
	w.t.Helper()
	o, err := w.s.find(p)
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := o.View(w.t.Context(), p)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// remote are the segments of a partition, by where they begin and how far their life has come.
func (w *world) remote(p remotelog.Partition) string {
	w.t.Helper()
	var out []string
	if v := w.view(p); v != nil {
		for _, e := range v.Segments {
			out = append(out, fmt.Sprintf("%d %s", e.StartOffset, e.State))
		}
	}
	return fmt.Sprint(out)
}

// objects is how many objects the store has.
func (w *world) objects() (n int) {
	w.t.Helper()
	inventory := w.s.store.(objectstore.Inventory)
	if err := inventory.ListObjects(w.t.Context(), objectstore.Scope{Partition: objectstore.AllPartitions}, func(objectstore.Object) error { n++; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) write(r remotelog.Record) {
	w.t.Helper()
	o, err := w.s.find(r.Of())
	if err == nil {
		err = o.Write(w.t.Context(), r)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) task(p remotelog.Partition) task {
	w.t.Helper()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.tasks[p] == nil {
		w.t.Fatalf("there is no task for %v", p)
	}
	return *w.s.tasks[p]
}

const twoSegments = "[0 COPY_SEGMENT_FINISHED 10 COPY_SEGMENT_FINISHED]"

// TestWhatAPassDoes depends on the topic and its configs, and on a deletion that has begun.
func TestWhatAPassDoes(t *testing.T) {
	for name, tt := range map[string]struct {
		do      func(w *world)
		want    string
		objects int
	}{
		"nothing new":       {func(w *world) {}, twoSegments, 6},
		"the topic is gone": {func(w *world) { w.push(&metarecord.RemoveTopicRecord{TopicID: tieredID}) }, "[]", 0},
		"made anew": {func(w *world) {
			w.push(&metarecord.RemoveTopicRecord{TopicID: tieredID})
			w.topic("tiered", uuid.UUID{8}, 1)
		}, "[]", 0},
		"not tiered any more": {func(w *world) { w.configure("remote.storage.enable", "false") }, twoSegments, 6},
		"not tiered any more, and deleted": {func(w *world) {
			w.configure("remote.log.delete.on.disable", "true")
			w.configure("remote.storage.enable", "false")
		}, "[]", 0},
		"to be deleted if it were not tiered": {func(w *world) { w.configure("remote.log.delete.on.disable", "true") }, twoSegments, 6},
		"a deletion that was broken off": {func(w *world) {
			w.write(&remotelog.PartitionDelete{Topic: "tiered", Partition: tiered, State: remotelog.PartitionMarked})
		}, "[]", 4},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.node.end = 25
				w.round()
				if got := w.remote(tiered); got != twoSegments {
					t.Fatal(got)
				}
				tt.do(w)
				w.round()
				if got := w.remote(tiered); got != tt.want || w.objects() != tt.objects {
					t.Errorf("%s and %d objects, want %s and %d", got, w.objects(), tt.want, tt.objects)
				}
			})
		})
	}
}

// TestPartitionsOfOthers are not looked after, and what was known of them is forgotten.
func TestPartitionsOfOthers(t *testing.T) {
	run(t, func(w *world) {
		w.node.end = 25
		w.round()
		mine := map[bool]int32{}
		for p := range int32(3) {
			number, _ := shardOf(w.image, remotelog.Partition{TopicID: tieredID, Partition: p})
			mine[number == 1] = p
		}
		w.push(&metarecord.ShardRecord{Kind: int8(metadata.RemoteLogShard), Shard: 0, Owner: 2, Epoch: 6})
		w.look()
		for here, p := range mine {
			at := remotelog.Partition{TopicID: tieredID, Partition: p}
			if _, err := w.s.find(at); (err == nil) != here {
				t.Errorf("partition %d is found: %v", p, err)
			}
			if w.s.tasks[at] != nil != here || w.s.reads.known(at) != nil != here {
				t.Errorf("partition %d has a task: %v, is known: %v", p, w.s.tasks[at] != nil, w.s.reads.known(at) != nil)
			}
		}
	})
}

// TestPlacesOfPasses lets no more passes run than there are places, and gives a free one to who has waited longest.
func TestPlacesOfPasses(t *testing.T) {
	run(t, func(w *world) {
		w.node.held, w.node.entered = make(chan struct{}), make(chan struct{}, 100)
		now := time.Now()
		w.s.tasks[remotelog.Partition{TopicID: tieredID, Partition: 1}] = &task{due: now.Add(-time.Second)}
		w.s.tasks[remotelog.Partition{TopicID: tieredID, Partition: 0}] = &task{due: now}
		w.s.tasks[remotelog.Partition{TopicID: tieredID, Partition: 2}] = &task{due: now.Add(time.Second)}
		running := func() (list []int32) {
			for p, t := range w.s.tasks {
				if t.running {
					list = append(list, p.Partition)
				}
			}
			return list
		}
		var order []int32
		for range 2 {
			w.look()
			w.look()
			got := running()
			if len(got) != 1 || w.s.running != 1 || !w.s.passRuns(remotelog.Partition{TopicID: tieredID, Partition: got[0]}) {
				t.Fatalf("the passes over %v run", got)
			}
			order = append(order, got...)
			select {
			case <-w.s.kick:
			default:
			}
			w.node.held <- struct{}{}
			w.node.held <- struct{}{} // a pass describes twice
			synctest.Wait()
			select {
			case <-w.s.kick:
			default:
				t.Error("a place became free, and nobody was told")
			}
		}
		w.look()
		if !slices.Equal(order, []int32{1, 0}) || len(running()) != 0 {
			t.Errorf("the passes over %v ran, and those over %v do", order, running())
		}
		if w.s.passRuns(tiered) || w.s.passRuns(remotelog.Partition{Partition: 55}) {
			t.Error("a pass is said to run that does not")
		}
	}, "remote.log.manager.copier.thread.pool.size", "1")
}

// TestFailures are tried again, later each time, and forgotten with the first success.
func TestFailures(t *testing.T) {
	run(t, func(w *world) {
		w.node.err = errors.New("away")
		last := time.Duration(0)
		for i := range 4 {
			w.look()
			got := w.task(tiered)
			pause := time.Until(got.due)
			if got.failures != i+1 || got.running || pause < last || pause <= 0 {
				t.Fatalf("after %d failures: %+v, the next attempt is in %s", i+1, got, pause)
			}
			w.look()
			if again := w.task(tiered); again.failures != i+1 {
				t.Fatal("the next attempt did not wait")
			}
			last = pause
			<-time.After(pause)
		}
		w.node.set(func() { w.node.err = nil })
		w.look()
		if got := w.task(tiered); got.failures != 0 || time.Until(got.due) < w.s.settings.interval*9/10 || time.Until(got.due) > w.s.settings.interval {
			t.Fatalf("%+v, due in %s", got, time.Until(got.due))
		}
	}, "remote.log.manager.task.retry.jitter", "0", "remote.log.manager.task.retry.backoff.ms", "100")
}

// TestChanges make a pass due at once: another leader's or the topic's configs. What comes while a pass runs counts for the next.
func TestChanges(t *testing.T) {
	led := func(epoch int32) *metarecord.PartitionRecord {
		return &metarecord.PartitionRecord{TopicID: tieredID, Replicas: []int32{9}, ISR: []int32{9}, Leader: 9, LeaderEpoch: epoch}
	}
	for name, tt := range map[string]struct {
		do         func(w *world)
		this, next bool
	}{
		"a config":          {func(w *world) { w.configure("retention.ms", "1") }, true, true},
		"another leader":    {func(w *world) { w.push(led(1)) }, true, false},
		"the same leader":   {func(w *world) { w.push(led(0)) }, false, false},
		"another's configs": {func(w *world) { w.otherConfig() }, false, false},
	} {
		for _, during := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, during a pass %v", name, during), func(t *testing.T) {
				run(t, func(w *world) {
					w.topic("other", uuid.UUID{8}, 1)
					w.round()
					if during {
						w.node.set(func() { w.node.held = make(chan struct{}) })
						<-time.After(w.s.settings.interval)
						w.look()
						tt.do(w)
						close(w.node.held)
						synctest.Wait()
					} else {
						tt.do(w)
					}
					due := func(p int32) bool {
						return !w.task(remotelog.Partition{TopicID: tieredID, Partition: p}).due.After(time.Now())
					}
					if due(0) != tt.this || due(1) != tt.next {
						t.Errorf("due: %v, another partition: %v", due(0), due(1))
					}
				})
			})
		}
	}
}

func (w *world) otherConfig() {
	value := "1"
	w.push(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: "other", Name: "retention.ms", Value: &value})
}
