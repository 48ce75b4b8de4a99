package storagerpc

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// heldNode keeps appends until a test answers them.
type heldNode struct {
	fakeNode
	taken chan heldAppend
}

type heldAppend struct {
	req  *storage.AppendRequest
	done func(*storage.AppendResult)
}

func (h heldAppend) accept() { accept(h.req, h.done) }

func newHeldNode() *heldNode {
	n := &heldNode{taken: make(chan heldAppend, 1000)}
	n.onAppend = func(req *storage.AppendRequest, done func(*storage.AppendResult)) { n.taken <- heldAppend{req, done} }
	return n
}

// appendTo sends n bytes to partitions of one topic.
func (f *fixture) appendTo(topic uuid.UUID, n int, partitions ...int32) chan *storage.AppendResult {
	req := &storage.AppendRequest{Acks: storage.AcksAll, TimeoutMs: 30_000, WriterEpoch: storage.NoWriterEpoch, APIVersion: 12}
	for _, p := range partitions {
		req.Partitions = append(req.Partitions, storage.PartitionAppend{TopicID: topic, Partition: p, Records: pooled(f.clientPool, n, byte(p))})
	}
	answers := make(chan *storage.AppendResult, 2)
	f.client.Append(req, func(r *storage.AppendResult) { answers <- r })
	return answers
}

func (f *fixture) expectNoLeaks(t *testing.T) {
	t.Helper()
	_ = f.client.Close()
	f.stopServer()
	if c, s := f.clientPool.Outstanding(), f.serverPool.Outstanding(); c != 0 || s != 0 {
		t.Errorf("%d buffers of the client's and %d of the server's were not given back", c, s)
	}
}

func isQuiet[T any](ch chan T) bool {
	select {
	case v := <-ch:
		ch <- v
		return false
	default:
		return true
	}
}

func TestAppendCarriesEverything(t *testing.T) {
	node := newHeldNode()
	f := serveTCP(t, node)
	topic := uuid.Random()
	req := &storage.AppendRequest{Acks: storage.AcksNone, TimeoutMs: 1234, MetadataOffset: 99, WriterEpoch: 5, APIVersion: 11, TransactionalID: "txn",
		Partitions: []storage.PartitionAppend{
			{TopicID: topic, Partition: 0, Records: pooled(f.clientPool, 100_000, 'a')},
			{TopicID: topic, Partition: 1, Records: nil},
			{TopicID: topic, Partition: 2, Records: storage.Buffers{}},
			{TopicID: topic, Partition: 3, Records: pooled(f.clientPool, 3, 'b')},
		}}
	answers := make(chan *storage.AppendResult, 1)
	f.client.Append(req, func(r *storage.AppendResult) { answers <- r })
	got := <-node.taken
	r := got.req
	if r.Acks != storage.AcksNone || r.TimeoutMs != 1234 || r.MetadataOffset != 99 || r.WriterEpoch != 5 || r.APIVersion != 11 || r.TransactionalID != "txn" {
		t.Errorf("got %+v", r)
	}
	p := r.Partitions
	if len(p) != 4 || p[0].Records.Len() != 100_000 || p[1].Records != nil || p[2].Records == nil || string(p[3].Records.Materialize()) != "bbb" {
		t.Fatalf("got %+v", p)
	}
	for _, b := range p[0].Records.Materialize() {
		if b != 'a' {
			t.Fatal("bytes were changed")
		}
	}
	want := storage.PartitionAppendResult{TopicID: topic, Partition: 3, Error: errcode.InvalidRecord, ErrorMessage: "bad",
		RecordErrors: []storage.RecordError{{BatchIndex: 2, Message: "no key"}}, BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: 4,
		Leader: storage.CurrentLeader{ID: 3, Epoch: 8}, OutcomeUnknown: true}
	for i := range p {
		p[i].Records.Free()
	}
	got.done(&storage.AppendResult{Partitions: []storage.PartitionAppendResult{{TopicID: topic}, {}, {}, want}})
	back := (<-answers).Partitions[3]
	if len(back.RecordErrors) != 1 || back.RecordErrors[0] != want.RecordErrors[0] {
		t.Errorf("got %+v", back)
	}
	back.RecordErrors, want.RecordErrors = nil, nil
	if back.ErrorMessage != want.ErrorMessage || back.Leader != want.Leader || back.Error != want.Error || !back.OutcomeUnknown ||
		back.BaseOffset != -1 || back.LogAppendTimeMs != -1 || back.LogStartOffset != 4 || back.Partition != 3 {
		t.Errorf("got %+v", back)
	}
	f.expectNoLeaks(t)
}

// TestOrderHoldsForEverySizeMix has producers that keep several appends of random sizes and partitions under way, while
// the node answers in random order; what the node takes for a partition must be in the order it was sent.
func TestOrderHoldsForEverySizeMix(t *testing.T) {
	const producers, rounds, partitions, inFlight = 4, 400, 3, 6
	var mu sync.Mutex
	seen := map[int32]uint32{}
	answers := make(chan heldAppend, producers*inFlight)
	node := &fakeNode{onAppend: func(req *storage.AppendRequest, done func(*storage.AppendResult)) {
		mu.Lock()
		for i := range req.Partitions {
			p := &req.Partitions[i]
			var number [4]byte
			p.Records.CopyTo(number[:])
			if n := binary.BigEndian.Uint32(number[:]); n != seen[p.Partition]+1 {
				t.Errorf("partition %d: %d came after %d", p.Partition, n, seen[p.Partition])
			} else {
				seen[p.Partition] = n
			}
		}
		mu.Unlock()
		answers <- heldAppend{req, done}
	}}
	f := serveTCP(t, node)
	var answering sync.WaitGroup
	for range 3 {
		answering.Go(func() {
			for a := range answers {
				a.accept()
			}
		})
	}
	topic := uuid.Random()
	var answered atomic.Int64
	var producing sync.WaitGroup
	for producer := range producers {
		producing.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(producer)))
			var sent [partitions]uint32
			slots := make(chan struct{}, inFlight)
			for range rounds {
				slots <- struct{}{}
				req := &storage.AppendRequest{Acks: storage.AcksAll, TimeoutMs: 30_000}
				size := []int{10, 500, 5_000, 20_000, 120_000}[random.IntN(5)]
				for _, p := range random.Perm(partitions)[:1+random.IntN(partitions)] {
					sent[p]++
					records := pooled(f.clientPool, size, 0)
					binary.BigEndian.PutUint32(records[0].ReadOnlyData(), sent[p])
					req.Partitions = append(req.Partitions, storage.PartitionAppend{TopicID: topic, Partition: int32(producer*partitions + p), Records: records})
				}
				f.client.Append(req, func(r *storage.AppendResult) {
					answered.Add(1)
					for i, p := range r.Partitions {
						if p.Error != errcode.None || p.BaseOffset != 7 || p.Partition != req.Partitions[i].Partition {
							t.Errorf("got %+v for partition %d", p, req.Partitions[i].Partition)
						}
					}
					<-slots
				})
			}
			for range inFlight {
				slots <- struct{}{}
			}
		})
	}
	producing.Wait()
	if answered.Load() != producers*rounds {
		t.Errorf("%d answers to %d appends", answered.Load(), producers*rounds)
	}
	if len(f.client.appends.pins) != 0 {
		t.Errorf("%d partitions are still pinned", len(f.client.appends.pins))
	}
	f.expectNoLeaks(t)
	close(answers)
	answering.Wait()
}

func TestBulkLeavesTheSmallLane(t *testing.T) {
	node := newHeldNode()
	f := serveTCP(t, node)
	topic := uuid.Random()
	var answers []chan *storage.AppendResult
	answers = append(answers, f.appendTo(topic, 10, 0))
	first := <-node.taken
	// The bulk append waits for the small one, and what comes after it waits behind it, on both partitions it names.
	answers = append(answers, f.appendTo(topic, 200_000, 0, 1), f.appendTo(topic, 20, 0), f.appendTo(topic, 30, 1))
	free := <-node.taken // the part of partition 1 goes at once
	if len(free.req.Partitions) != 1 || free.req.Partitions[0].Partition != 1 || free.req.Partitions[0].Records.Len() != 200_000 {
		t.Fatalf("got %+v", free.req.Partitions)
	}
	behind := <-node.taken
	if behind.req.Partitions[0].Partition != 1 || behind.req.Partitions[0].Records.Len() != 30 {
		t.Fatalf("got %+v", behind.req.Partitions)
	}
	if !isQuiet(node.taken) {
		t.Fatal("the bulk append did not wait")
	}
	first.accept()
	for _, want := range []int{200_000, 20} {
		got := <-node.taken
		if p := got.req.Partitions; len(p) != 1 || p[0].Partition != 0 || p[0].Records.Len() != want {
			t.Fatalf("want %d bytes, got %+v", want, p)
		}
		defer got.accept()
	}
	f.client.appends.mu.Lock()
	if lane := f.client.appends.pins[partitionKey{topic, 0}].lane; lane == f.client.appends.lanes[0] {
		t.Error("the partition is still on the small lane")
	}
	f.client.appends.mu.Unlock()
	free.accept()
	behind.accept()
	<-answers[0]
}

func TestLostConnectionLeavesTheOutcomeOpen(t *testing.T) {
	node := newHeldNode()
	f := serveTCP(t, node)
	topic := uuid.Random()
	small, bulk := f.appendTo(topic, 2_000, 0), f.appendTo(topic, 200_000, 1)
	held := f.appendTo(topic, 200_000, 0)
	a, b := <-node.taken, <-node.taken
	f.rpcServer.Close()
	ctx, cancel := withoutTime()
	defer cancel()
	_ = f.grpcServer.Stop(ctx)
	for name, answers := range map[string]chan *storage.AppendResult{"small": small, "bulk": bulk} {
		p := (<-answers).Partitions[0]
		if p.Error != errcode.NotLeaderOrFollower || !p.OutcomeUnknown || p.BaseOffset != -1 || p.Leader != storage.NoLeader {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// What never left, and what comes while nobody listens, is known not to be there.
	for name, answers := range map[string]chan *storage.AppendResult{"held": held, "later": f.appendTo(topic, 5_000, 2)} {
		p := (<-answers).Partitions[0]
		if p.Error != errcode.NotLeaderOrFollower || p.OutcomeUnknown {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// The node's late answers go nowhere.
	a.accept()
	b.accept()
	f.expectNoLeaks(t)
}

func TestReconnects(t *testing.T) {
	f := serveTCP(t, &fakeNode{onAppend: accept})
	topic := uuid.Random()
	if p := (<-f.appendTo(topic, 100, 0)).Partitions[0]; p.Error != errcode.None {
		t.Fatal(p.Error)
	}
	f.stopServer()
	if p := (<-f.appendTo(topic, 100, 0)).Partitions[0]; p.Error != errcode.NotLeaderOrFollower {
		t.Fatal(p.Error)
	}
	again := serve(t, f.address, &fakeNode{onAppend: accept})
	defer again.stopServer()
	deadline := time.Now().Add(10 * time.Second)
	for {
		p := (<-f.appendTo(topic, 100, 0)).Partitions[0]
		if p.Error == errcode.None {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection to the node that came back")
		}
	}
}

func TestCloseAnswersEverything(t *testing.T) {
	node := newHeldNode()
	f := serveTCP(t, node)
	topic := uuid.Random()
	answers := []chan *storage.AppendResult{f.appendTo(topic, 10, 0), f.appendTo(topic, 200_000, 1)}
	sent := []heldAppend{<-node.taken, <-node.taken}
	answers = append(answers, f.appendTo(topic, 200_000, 0), f.appendTo(topic, 20, 0, 1))
	if err := f.client.Close(); err != nil {
		t.Error(err)
	}
	answers = append(answers, f.appendTo(topic, 3_000, 0))
	for i, a := range answers {
		for _, p := range (<-a).Partitions {
			if p.Error != errcode.NotLeaderOrFollower {
				t.Errorf("append %d, partition %d: %v", i, p.Partition, p.Error)
			}
		}
		if !isQuiet(a) {
			t.Errorf("append %d was answered twice", i)
		}
	}
	for _, s := range sent {
		s.accept()
	}
	for !isQuiet(node.taken) {
		(<-node.taken).accept()
	}
	f.stopServer()
	for !isQuiet(node.taken) {
		(<-node.taken).accept()
	}
	f.expectNoLeaks(t)
}

func TestOverdueAnswersBreakTheStream(t *testing.T) {
	node := newHeldNode()
	f := serveTCP(t, node)
	topic := uuid.Random()
	answers := f.appendTo(topic, 10, 0)
	late := <-node.taken
	f.client.appends.expire(time.Now().Add(39 * time.Second))
	if !isQuiet(answers) {
		t.Fatal("given up too early")
	}
	f.client.appends.expire(time.Now().Add(41 * time.Second))
	if p := (<-answers).Partitions[0]; !p.OutcomeUnknown {
		t.Errorf("got %+v", p)
	}
	late.accept()
	next := f.appendTo(topic, 10, 0)
	(<-node.taken).accept()
	if p := (<-next).Partitions[0]; p.Error != errcode.None {
		t.Errorf("a new stream does not work: %v", p.Error)
	}
}

func TestStockClientsAreUnderstood(t *testing.T) {
	f := serveTCP(t, &fakeNode{onAppend: accept})
	conn, err := grpc.NewClient(f.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := storagev1.NewStorageClient(conn).Append(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.Random()
	if err := stream.Send(&storagev1.AppendFrame{Payload: make([]byte, 50_000), Appends: []*storagev1.Append{
		{Id: 1, Partitions: []*storagev1.AppendPartition{{TopicId: id[:], Partition: 4, Size: 50_000}}}}}); err != nil {
		t.Fatal(err)
	}
	result, err := stream.Recv()
	if err != nil || result.GetResults()[0].GetPartitions()[0].GetBaseOffset() != 7 {
		t.Fatalf("%v, %v", result, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}
