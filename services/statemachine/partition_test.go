package statemachine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

var topicID = uuid.UUID{0: 9}

// fakeNode is a storage node with one partition.
type fakeNode struct {
	storage.Node
	mu            sync.Mutex
	batches       [][]byte
	start, end    int64
	highWatermark int64
	// writer is the epoch that the node's image knows; older ones are refused.
	writer int32
	// epoch is the leader epoch; -1 when the node does not lead.
	epoch int32
	// fail is the answer to the next appends, instead of carrying them out.
	fail []storage.PartitionAppendResult
	// maxFetch bounds the batches in one fetch.
	maxFetch int
	asked    []int64
	fetches  int
	// onFetch is called before each fetch.
	onFetch func(n int)
}

func (n *fakeNode) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	n.mu.Lock()
	result := &storage.AppendResult{}
	for i := range req.Partitions {
		result.Partitions = append(result.Partitions, n.append(req, &req.Partitions[i]))
		req.Partitions[i].Records.Free()
	}
	n.mu.Unlock()
	go done(result)
}

func (n *fakeNode) append(req *storage.AppendRequest, p *storage.PartitionAppend) storage.PartitionAppendResult {
	r := storage.PartitionAppendResult{TopicID: p.TopicID, Partition: p.Partition, BaseOffset: -1}
	switch {
	case len(n.fail) > 0:
		r, n.fail = n.fail[0], n.fail[1:]
	case n.epoch < 0:
		r.Error = errcode.NotLeaderOrFollower
	case req.WriterEpoch < n.writer:
		r.Error = errcode.NotCoordinator
	case req.CheckEndOffset && p.EndOffset != n.end:
		r.Error = errcode.OffsetOutOfRange
	default:
		r.BaseOffset = n.write(p.Records.Materialize())
	}
	return r
}

// write puts a batch at the end and commits it.
func (n *fakeNode) write(batch []byte) int64 {
	base := n.end
	recordbatch.Header(batch).SetBaseOffset(base)
	n.batches = append(n.batches, batch)
	n.end = recordbatch.Header(batch).NextOffset()
	n.highWatermark = n.end
	return base
}

func (n *fakeNode) ListOffsets(_ context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := req.GetPartitions()[0]
	n.asked = append(n.asked, req.GetMetadataOffset())
	r := &storagev1.ListOffsetsPartitionResult{TopicId: p.GetTopicId(), Partition: p.GetPartition(), Offset: n.end}
	switch {
	case n.epoch < 0:
		r.ErrorCode = int32(errcode.NotLeaderOrFollower)
	case p.GetTimestamp() == earliestTimestamp:
		r.Offset = n.start
	case !p.GetLogEnd():
		r.Offset = n.highWatermark
	}
	return &storagev1.ListOffsetsResponse{Partitions: []*storagev1.ListOffsetsPartitionResult{r}}, nil
}

func (n *fakeNode) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	n.mu.Lock()
	n.fetches++
	if n.onFetch != nil {
		n.onFetch(n.fetches)
	}
	defer n.mu.Unlock()
	p := &req.Partitions[0]
	r := storage.FetchPartitionResult{TopicID: p.TopicID, Partition: p.Partition, HighWatermark: n.highWatermark, LogStartOffset: n.start}
	switch {
	case n.epoch < 0:
		r.Error = errcode.NotLeaderOrFollower
	case p.FetchOffset < n.start:
		r.Error = errcode.OffsetOutOfRange
	}
	var run []byte
	for i, b := range n.batches {
		h := recordbatch.Header(b)
		if r.Error == errcode.None && h.LastOffset() >= p.FetchOffset && h.NextOffset() <= n.highWatermark {
			run = append(run, b...)
			if n.maxFetch > 0 && i%n.maxFetch == n.maxFetch-1 {
				break
			}
		}
	}
	if len(run) == 0 && r.Error == errcode.None {
		n.mu.Unlock()
		select {
		case <-time.After(time.Duration(req.MaxWaitMs) * time.Millisecond):
		case <-ctx.Done():
		}
		n.mu.Lock()
		r.HighWatermark = n.highWatermark
	}
	if run != nil {
		r.Records.Buffers = storage.Buffers{mem.SliceBuffer(run)}
	}
	return &storage.FetchResult{Partitions: []storage.FetchPartitionResult{r}}, nil
}

func batchOf(t *testing.T, values ...string) []byte {
	t.Helper()
	b := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	for _, v := range values {
		b.Append(1, []byte("k"), []byte(v))
	}
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// fakeImages is metadata with the one partition.
type fakeImages struct {
	mu    sync.Mutex
	image *metadata.Image
	moved chan struct{}
}

func newFakeImages(t *testing.T) *fakeImages {
	d := metadata.NewDelta(metadata.Empty("c"))
	err := d.Apply(1, 1, &metarecord.TopicRecord{Name: "t", TopicID: topicID},
		&metarecord.PartitionRecord{TopicID: topicID, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	return &fakeImages{image: d.Image(), moved: make(chan struct{})}
}

func (f *fakeImages) Image() metadata.Reader {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.image
}

func (f *fakeImages) Await(ctx context.Context, offset int64) error {
	for {
		f.mu.Lock()
		at, moved := f.image.Offset(), f.moved
		f.mu.Unlock()
		if at >= offset {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lead gives the partition another leader.
func (f *fakeImages) lead(t *testing.T, leader int32) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	r := metarecord.NewPartitionChange(topicID, 0)
	r.Leader = leader
	d, err := f.image.Apply(f.image.Offset()+1, 1, r)
	if err != nil {
		t.Error(err)
		return
	}
	f.image = d.Image()
	close(f.moved)
	f.moved = make(chan struct{})
}

func newTestPartition(t *testing.T, nodes ...*fakeNode) (*Partition, *fakeImages) {
	images := newFakeImages(t)
	return NewPartition(PartitionConfig{
		Topic: "t", TopicID: topicID, WriterEpoch: 7, AssignedAt: 40, Images: images, Codecs: recordbatch.NewCodecs(), FetchBytes: 1 << 20,
		Logger: slog.New(slog.DiscardHandler),
		Nodes: func(id int32) (storage.Node, error) {
			if int(id) > len(nodes) {
				return nil, errcode.BrokerNotAvailable.Err()
			}
			return nodes[id-1], nil
		},
	}), images
}

// loadAll loads a partition and gives the values of its records with their offsets.
func loadAll(ctx context.Context, p *Partition) (values []string, offsets []int64, end int64, err error) {
	end, err = p.Load(ctx, func(_ recordbatch.Header, r *recordbatch.Record) error {
		values, offsets = append(values, string(r.Value)), append(offsets, r.Offset)
		return nil
	})
	return values, offsets, end, err
}

func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{epoch: 3, maxFetch: 2}
		for _, v := range []string{"a", "b", "c", "d", "e"} {
			n.write(batchOf(t, v, v+v))
		}
		p, _ := newTestPartition(t, n)
		values, offsets, end, err := loadAll(t.Context(), p)
		if err != nil || end != 10 || len(values) != 10 || offsets[9] != 9 || values[3] != "bb" {
			t.Fatal(values, offsets, end, err)
		}
		if n.asked[0] != 40 {
			t.Fatalf("the question for the end must carry the offset of the assignment: %v", n.asked)
		}
	})
}

func TestLoadWaitsForTheHighWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{epoch: 3}
		n.write(batchOf(t, "a"))
		n.write(batchOf(t, "b"))
		n.highWatermark = 1
		n.onFetch = func(fetch int) {
			if fetch == 5 {
				n.highWatermark = 2
			}
		}
		p, _ := newTestPartition(t, n)
		values, _, end, err := loadAll(t.Context(), p)
		if err != nil || end != 2 || !slices.Equal(values, []string{"a", "b"}) {
			t.Fatal(values, end, err)
		}
	})
}

func TestLoadFollowsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &fakeNode{epoch: 3, maxFetch: 1}, &fakeNode{epoch: -1}
		for _, n := range []*fakeNode{first, second} {
			n.write(batchOf(t, "a"))
			n.write(batchOf(t, "b"))
		}
		second.write(batchOf(t, "c"))
		p, images := newTestPartition(t, first, second)
		first.onFetch = func(fetch int) {
			if fetch == 2 {
				first.epoch, second.epoch = -1, 4
				go images.lead(t, 2)
			}
		}
		values, offsets, end, err := loadAll(t.Context(), p)
		if err != nil || end != 3 || !slices.Equal(values, []string{"a", "b", "c"}) || !slices.Equal(offsets, []int64{0, 1, 2}) {
			t.Fatal(values, offsets, end, err)
		}
	})
}

func TestLoadOfALogThatBeginsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{epoch: 3, start: 1, end: 1}
		n.write(batchOf(t, "b", "c"))
		p, _ := newTestPartition(t, n)
		values, offsets, end, err := loadAll(t.Context(), p)
		if err != nil || end != 3 || !slices.Equal(values, []string{"b", "c"}) || offsets[0] != 1 {
			t.Fatal(values, offsets, end, err)
		}
		// A batch that compaction has taken from the end.
		n.end, n.highWatermark = 5, 5
		if _, _, end, err = loadAll(t.Context(), p); err != nil || end != 5 {
			t.Fatal(end, err)
		}
	})
}

func TestLoadRefusesWhatTheMachineRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{epoch: 3}
		n.write(batchOf(t, "a"))
		p, _ := newTestPartition(t, n)
		broken := errors.New("broken")
		_, err := p.Load(t.Context(), func(recordbatch.Header, *recordbatch.Record) error { return broken })
		if !errors.Is(err, broken) {
			t.Fatal(err)
		}
	})
}

func TestLoadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPartition(t, &fakeNode{epoch: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, _, _, err := loadAll(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

func TestLoadsAreBoundedButDoNotHoldEachOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := make(chan struct{}, 1)
		most, reading := 0, 0
		var mu sync.Mutex
		results := make(chan error, 10)
		load := func(n *fakeNode) {
			p, _ := newTestPartition(t, n)
			p.config.LoadSlots = slots
			go func() {
				_, err := p.Load(t.Context(), func(recordbatch.Header, *recordbatch.Record) error {
					mu.Lock()
					reading++
					most = max(most, reading)
					mu.Unlock()
					<-time.After(time.Second)
					mu.Lock()
					reading--
					mu.Unlock()
					return nil
				})
				results <- err
			}()
		}
		stuck := &fakeNode{epoch: 3}
		stuck.write(batchOf(t, "a"))
		stuck.highWatermark = 0
		away := &fakeNode{epoch: -1}
		load(stuck)
		load(away)
		synctest.Wait()
		for range 3 {
			n := &fakeNode{epoch: 3}
			n.write(batchOf(t, "a"))
			load(n)
		}
		for range 3 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if most != 1 {
			t.Fatalf("%d were read at once", most)
		}
		for _, n := range []*fakeNode{stuck, away} {
			n.mu.Lock()
			n.epoch, n.highWatermark = 3, n.end
			n.mu.Unlock()
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
	})
}

func appendTo(t *testing.T, p *Partition, end int64) (int64, error) {
	t.Helper()
	type result struct {
		base int64
		err  error
	}
	results := make(chan result, 1)
	p.Append(t.Context(), [][]byte{batchOf(t, "x")}, end, func(base int64, err error) { results <- result{base, err} })
	r := <-results
	return r.base, r.err
}

func TestAppendOutcomes(t *testing.T) {
	failure := func(code errcode.Code, unknown bool) []storage.PartitionAppendResult {
		return []storage.PartitionAppendResult{{Error: code, BaseOffset: -1, OutcomeUnknown: unknown}}
	}
	for _, tt := range []struct {
		name string
		node *fakeNode
		end  int64
		want error
	}{
		{"written", &fakeNode{epoch: 3}, 0, nil},
		{"written, the node knows the epoch", &fakeNode{epoch: 3, writer: 7}, 0, nil},
		{"another owner", &fakeNode{epoch: 3, writer: 8}, 0, ErrFenced},
		{"another end", &fakeNode{epoch: 3}, 5, ErrOutcomeUnknown},
		{"connection lost", &fakeNode{epoch: 3, fail: failure(errcode.NetworkException, true)}, 0, ErrOutcomeUnknown},
		{"time out", &fakeNode{epoch: 3, fail: failure(errcode.RequestTimedOut, true)}, 0, ErrOutcomeUnknown},
		{"too few replicas after", &fakeNode{epoch: 3, fail: failure(errcode.NotEnoughReplicasAfterAppend, false)}, 0, ErrOutcomeUnknown},
		{"too few replicas", &fakeNode{epoch: 3, fail: failure(errcode.NotEnoughReplicas, false)}, 0, errcode.NotEnoughReplicas.Err()},
		{"too large", &fakeNode{epoch: 3, fail: failure(errcode.MessageTooLarge, false)}, 0, errcode.MessageTooLarge.Err()},
		{"no leader yet", &fakeNode{epoch: 3, fail: append(failure(errcode.NotLeaderOrFollower, false), failure(errcode.NetworkException, false)...)}, 0, nil},
		{"no leader", &fakeNode{epoch: -1}, 0, errcode.NotLeaderOrFollower.Err()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := newTestPartition(t, tt.node)
				base, err := appendTo(t, p, tt.end)
				if !errors.Is(err, tt.want) || err == nil && base != tt.end {
					t.Fatal(base, err)
				}
			})
		})
	}
}

func TestAppendFollowsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &fakeNode{epoch: -1}, &fakeNode{epoch: 4}
		p, images := newTestPartition(t, first, second)
		time.AfterFunc(time.Second, func() { images.lead(t, 2) })
		if _, err := appendTo(t, p, 0); err != nil || len(second.batches) != 1 {
			t.Fatal(err)
		}
	})
}

func TestShardOnAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{epoch: 3}
		p, _ := newTestPartition(t, n)
		s := newTestShard(nil)
		s.config.Log = p
		s.Start()
		synctest.Wait()
		for want := 1; want <= 3; want++ {
			if got, err := s.Do(t.Context(), add{by: 1}); got != want || err != nil {
				t.Fatal(got, err)
			}
		}
		// An append whose outcome is not known, and that is in the log.
		n.mu.Lock()
		n.write(batchOf(t, "10"))
		n.mu.Unlock()
		if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.CoordinatorNotAvailable {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, err := s.Do(t.Context(), add{by: 1}); got != 14 || err != nil {
			t.Fatal(got, err)
		}
		// Another owner.
		n.writer = 8
		if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.NotCoordinator {
			t.Fatal(err)
		}
		<-s.Done()
		if len(n.batches) != 5 {
			t.Fatalf("%d batches", len(n.batches))
		}
	})
}

// TestRunOfBatches: what becomes of several batches that are appended together.
func TestRunOfBatches(t *testing.T) {
	none := storage.PartitionAppendResult{}
	refused := func(code errcode.Code) storage.PartitionAppendResult {
		return storage.PartitionAppendResult{Error: code}
	}
	for _, x := range []struct {
		name    string
		results []storage.PartitionAppendResult
		want    error
		code    errcode.Code
	}{
		{"all written", nil, nil, errcode.None},
		{"all refused", []storage.PartitionAppendResult{refused(errcode.NotEnoughReplicas), refused(errcode.OffsetOutOfRange), refused(errcode.NotEnoughReplicas)}, nil, errcode.NotEnoughReplicas},
		{"the rest refused", []storage.PartitionAppendResult{none, refused(errcode.MessageTooLarge), refused(errcode.OffsetOutOfRange)}, ErrOutcomeUnknown, 0},
		{"the last unknown", []storage.PartitionAppendResult{none, none, {Error: errcode.RequestTimedOut, OutcomeUnknown: true}}, ErrOutcomeUnknown, 0},
		{"fenced between", []storage.PartitionAppendResult{none, refused(errcode.NotCoordinator), refused(errcode.NotCoordinator)}, ErrFenced, 0},
		{"the first somewhere else", []storage.PartitionAppendResult{refused(errcode.OffsetOutOfRange), refused(errcode.OffsetOutOfRange), refused(errcode.OffsetOutOfRange)}, ErrOutcomeUnknown, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{fail: x.results}
				p, _ := newTestPartition(t, n)
				type result struct {
					base int64
					err  error
				}
				done := make(chan result, 1)
				p.Append(t.Context(), [][]byte{batchOf(t, "a", "b"), batchOf(t, "c"), batchOf(t, "d")}, 0, func(base int64, err error) { done <- result{base, err} })
				r := <-done
				switch {
				case x.want != nil && !errors.Is(r.err, x.want), x.want == nil && errcode.Of(r.err) != x.code:
					t.Fatal(r.err)
				case r.err == nil && n.end != 4:
					t.Fatalf("the log ends at %d", n.end)
				}
			})
		})
	}
}
