package coordinatord

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/mem"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/transport"
)

var (
	offsetsID = uuid.UUID{0: 1}
	topicID   = uuid.UUID{0: 2}
)

// fakeNode is a storage node that leads all partitions of the offsets topic.
type fakeNode struct {
	storage.Node
	image func() *metadata.Image
	mu    sync.Mutex
	logs  map[int32]*fakeLog
	// silent keeps appends without an answer.
	silent bool
	// markers are those that were written, unless they are refused.
	markers       []kmsg.WriteTxnMarkersRequestMarker
	refuseMarkers bool
}

type fakeLog struct {
	run []byte
	end int64
}

func (n *fakeNode) log(p int32) *fakeLog {
	l := n.logs[p]
	if l == nil {
		l = &fakeLog{}
		n.logs[p] = l
	}
	return l
}

func (n *fakeNode) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return
	}
	result := &storage.AppendResult{}
	for i := range req.Partitions {
		result.Partitions = append(result.Partitions, n.append(req, &req.Partitions[i]))
	}
	go done(result)
}

func (n *fakeNode) append(req *storage.AppendRequest, p *storage.PartitionAppend) storage.PartitionAppendResult {
	l := n.log(p.Partition)
	r := storage.PartitionAppendResult{TopicID: p.TopicID, Partition: p.Partition, BaseOffset: -1}
	switch {
	case req.WriterEpoch < n.image().Shard(metadata.GroupShard, p.Partition).Epoch:
		r.Error = errcode.NotCoordinator
	case p.EndOffset != l.end:
		r.Error = errcode.OffsetOutOfRange
	default:
		batch := p.Records.Materialize()
		h := recordbatch.Header(batch)
		h.SetBaseOffset(l.end)
		r.BaseOffset = l.end
		l.run, l.end = append(l.run, batch...), h.NextOffset()
	}
	return r
}

func (n *fakeNode) ListOffsets(_ context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := req.GetPartitions()[0]
	r := &storagev1.ListOffsetsPartitionResult{}
	if p.GetLogEnd() {
		r.Offset = n.log(p.GetPartition()).end
	}
	return &storagev1.ListOffsetsResponse{Partitions: []*storagev1.ListOffsetsPartitionResult{r}}, nil
}

func (n *fakeNode) Fetch(_ context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.log(req.Partitions[0].Partition)
	r := storage.FetchPartitionResult{HighWatermark: l.end, Records: storage.Records{Buffers: storage.Buffers{mem.SliceBuffer(l.run)}}}
	return &storage.FetchResult{Partitions: []storage.FetchPartitionResult{r}}, nil
}

// fakeMetadata is a metadata log in memory.
type fakeMetadata struct {
	mu         sync.Mutex
	image      *metadata.Image
	moved      chan struct{}
	publishers []metadata.Publisher
}

func (f *fakeMetadata) Image() *metadata.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.image
}

func (f *fakeMetadata) Await(ctx context.Context, offset int64) error {
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

func (f *fakeMetadata) Subscribe(p metadata.Publisher) {
	f.mu.Lock()
	f.publishers = append(f.publishers, p)
	image := f.image
	f.mu.Unlock()
	p.Publish(context.Background(), metadata.Diff(metadata.Empty("c"), image), image)
}

func (f *fakeMetadata) push(t *testing.T, records ...metarecord.Record) {
	t.Helper()
	image := f.Image()
	d, err := image.Apply(image.Offset()+int64(len(records)), 1, records...)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	publishers := f.publishers
	f.mu.Unlock()
	for _, p := range publishers {
		p.Publish(context.Background(), d, d.Image())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.image = d.Image()
	close(f.moved)
	f.moved = make(chan struct{})
}

// fakeController lets everyone in and out. On leaving, shards go to another instance.
type fakeController struct {
	controllerv1.UnimplementedControllerServer
	leave func(id int32)
}

func (*fakeController) RegisterService(context.Context, *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error) {
	return &controllerv1.RegisterServiceResponse{Epoch: 1}, nil
}

func (c *fakeController) ServiceHeartbeat(_ context.Context, req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
	if req.GetWantShutdown() && c.leave != nil {
		c.leave(req.GetId())
	}
	return &controllerv1.ServiceHeartbeatResponse{ShouldShutdown: req.GetWantShutdown()}, nil
}

// cluster is a metadata log, a storage node and instances.
type cluster struct {
	t          *testing.T
	metadata   *fakeMetadata
	node       *fakeNode
	controller *fakeController
	local      *transport.Local
}

func newCluster(t *testing.T, partitions int32) *cluster {
	c := &cluster{t: t, metadata: &fakeMetadata{image: metadata.Empty("c"), moved: make(chan struct{})},
		controller: &fakeController{}, local: transport.NewLocal(transport.NewPool())}
	c.node = &fakeNode{image: c.metadata.Image, logs: map[int32]*fakeLog{}}
	records := []metarecord.Record{
		&metarecord.TopicRecord{Name: "a", TopicID: topicID},
		&metarecord.PartitionRecord{TopicID: topicID, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
		&metarecord.TopicRecord{Name: "__consumer_offsets", TopicID: offsetsID},
	}
	for p := range partitions {
		records = append(records, &metarecord.PartitionRecord{TopicID: offsetsID, PartitionID: p, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	}
	c.metadata.push(t, records...)
	controllerv1.RegisterControllerServer(c.local.Channel("controller"), c.controller)
	return c
}

func own(shard, owner, epoch int32) metarecord.Record {
	return &metarecord.ShardRecord{Kind: int8(metadata.GroupShard), Shard: shard, Owner: owner, Epoch: epoch}
}

// instance is a server with its client side.
type instance struct {
	c      *cluster
	server *Server
	client coordinatorv1.CoordinatorClient
	reader *metric.ManualReader
	once   sync.Once
}

func (c *cluster) start(id int32) *instance {
	c.t.Helper()
	logger := slog.New(slog.DiscardHandler)
	dialer := transport.NewDialer(transport.Options{}, c.local)
	controller, err := controllerclient.New(controllerclient.Config{Targets: []string{transport.LocalAddress("controller")}, Dialer: dialer, Logger: logger})
	if err != nil {
		c.t.Fatal(err)
	}
	reader := metric.NewManualReader()
	s, err := New(Config{NodeID: id, Properties: map[string]string{"group.initial.rebalance.delay.ms": "0"}}, Deps{
		Metadata:   c.metadata,
		Nodes:      func(int32) (storage.Node, error) { return c.node, nil },
		Controller: controller,
		Meter:      metric.NewMeterProvider(metric.WithReader(reader)).Meter("coordinatord"),
		Logger:     logger,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	name := string('a' + id)
	s.Register(c.local.Channel(name))
	conn, err := dialer.Dial(transport.LocalAddress(name))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := s.Start(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
	i := &instance{c: c, server: s, client: coordinatorv1.NewCoordinatorClient(conn), reader: reader}
	c.t.Cleanup(func() { i.stop() })
	return i
}

// stop ends the instance, once.
func (i *instance) stop() {
	i.c.t.Helper()
	i.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := i.server.Stop(ctx); err != nil {
			i.c.t.Error(err)
		}
	})
}

func (i *instance) handle(shard int32, req kmsg.Request, metadataOffset int64) (kmsg.Response, error) {
	i.c.t.Helper()
	ctx, cancel := context.WithTimeout(i.c.t.Context(), 30*time.Second)
	defer cancel()
	resp, err := i.client.Handle(ctx, &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind_SHARD_KIND_GROUP, Shard: shard, Envelope: &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: int32(req.GetVersion()), Body: req.AppendTo(nil), MetadataOffset: metadataOffset,
	}})
	if err != nil {
		return nil, err
	}
	r := req.ResponseKind()
	if err := r.ReadFrom(resp.GetReply().GetBody()); err != nil {
		i.c.t.Fatal(err)
	}
	return r, nil
}

func commitOf(group string, offset int64) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group = 9, group
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Offset = offset
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "a", Partitions: []kmsg.OffsetCommitRequestTopicPartition{p}}}
	return req
}

func (i *instance) commit(shard int32, group string, offset int64) errcode.Code {
	i.c.t.Helper()
	r, err := i.handle(shard, commitOf(group, offset), 0)
	if err != nil {
		return errcode.Of(err)
	}
	return errcode.Code(r.(*kmsg.OffsetCommitResponse).Topics[0].Partitions[0].ErrorCode)
}

func (i *instance) fetch(shard int32, group string) int64 {
	i.c.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 7, group
	req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "a", Partitions: []int32{0}}}
	r, err := i.handle(shard, req, 0)
	if err != nil {
		i.c.t.Fatal(err)
	}
	return r.(*kmsg.OffsetFetchResponse).Topics[0].Partitions[0].Offset
}

func (i *instance) list() (ids []string) {
	i.c.t.Helper()
	req := kmsg.NewPtrListGroupsRequest()
	req.Version = 4
	r, err := i.handle(-1, req, 0)
	if err != nil {
		i.c.t.Fatal(err)
	}
	for _, g := range r.(*kmsg.ListGroupsResponse).Groups {
		ids = append(ids, g.Group)
	}
	return ids
}

func TestShardsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		one, two := c.start(1), c.start(2)
		if code := one.commit(0, "g", 1); code != errcode.NotCoordinator {
			t.Fatal(code.Name())
		}
		c.metadata.push(t, own(0, 1, 1), own(1, 1, 1), own(2, 2, 1))
		synctest.Wait()
		for shard, i := range map[int32]*instance{0: one, 1: one, 2: two} {
			if code := i.commit(shard, fmt.Sprint("g", shard), int64(shard)+10); code != errcode.None {
				t.Fatal(code.Name())
			}
		}
		if ids := one.list(); len(ids) != 2 || ids[0] != "g0" || ids[1] != "g1" {
			t.Fatal(ids)
		}
		// A shard moves with everything in it.
		c.metadata.push(t, own(0, 2, 2))
		synctest.Wait()
		if code := one.commit(0, "g0", 1); code != errcode.NotCoordinator {
			t.Fatal(code.Name())
		}
		if n := two.fetch(0, "g0"); n != 10 {
			t.Fatal(n)
		}
		if code := two.commit(0, "g0", 20); code != errcode.None {
			t.Fatal(code.Name())
		}
		// And back.
		c.metadata.push(t, own(0, 1, 3))
		synctest.Wait()
		if n := one.fetch(0, "g0"); n != 20 {
			t.Fatal(n)
		}
	})
}

func TestMembersAreKeptOverAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one, two := c.start(1), c.start(2)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		join := kmsg.NewPtrJoinGroupRequest()
		join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis = 3, "g", "consumer", 10000
		join.RebalanceTimeoutMillis = 30000
		join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
		r, err := one.handle(0, join, 0)
		if err != nil {
			t.Fatal(err)
		}
		j := r.(*kmsg.JoinGroupResponse)
		sync := kmsg.NewPtrSyncGroupRequest()
		sync.Version, sync.Group, sync.MemberID, sync.Generation = 3, "g", j.MemberID, j.Generation
		sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: j.MemberID, MemberAssignment: []byte("x")}}
		if _, err := one.handle(0, sync, 0); err != nil {
			t.Fatal(err)
		}
		// A member that waits is told to look for the new owner.
		other := make(chan int16, 1)
		go func() {
			r, err := one.handle(0, join, 0)
			if err != nil {
				t.Error(err)
				other <- 0
				return
			}
			other <- r.(*kmsg.JoinGroupResponse).ErrorCode
		}()
		synctest.Wait()
		c.metadata.push(t, own(0, 2, 2))
		if code := errcode.Code(<-other); code != errcode.NotCoordinator {
			t.Fatal(code.Name())
		}
		synctest.Wait()
		beat := kmsg.NewPtrHeartbeatRequest()
		beat.Version, beat.Group, beat.MemberID, beat.Generation = 3, "g", j.MemberID, j.Generation
		r, err = two.handle(0, beat, 0)
		if err != nil || r.(*kmsg.HeartbeatResponse).ErrorCode != 0 {
			t.Fatal(r, err)
		}
	})
}

func TestRequestWaitsForTheMetadataOfItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one := c.start(1)
		done := make(chan error, 1)
		go func() {
			_, err := one.handle(0, commitOf("g", 1), c.metadata.Image().Offset()+1)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal("answered too early:", err)
		default:
		}
		c.metadata.push(t, own(0, 1, 1))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// An instance that was away for a while still has the shards that it had. A gateway that knows that one of them was
// another's meanwhile must not be answered from what it has.
func TestInstanceThatWasAwayCatchesUpBeforeItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one, two := c.start(1), c.start(2)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		one.commit(0, "g", 1)
		away := &fakeMetadata{image: c.metadata.Image(), moved: make(chan struct{})}
		one.server.deps.Metadata = away
		c.metadata.mu.Lock()
		c.metadata.publishers = c.metadata.publishers[1:]
		c.metadata.mu.Unlock()
		c.metadata.push(t, own(0, 2, 2))
		synctest.Wait()
		two.commit(0, "g", 2)
		c.metadata.push(t, own(0, 1, 3))
		fetch := kmsg.NewPtrOffsetFetchRequest()
		fetch.Version, fetch.Group = 7, "g"
		fetch.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "a", Partitions: []int32{0}}}
		found := make(chan int64, 1)
		go func() {
			for {
				r, err := one.handle(0, fetch, c.metadata.Image().Offset())
				if err != nil {
					t.Error(err)
					return
				}
				if f := r.(*kmsg.OffsetFetchResponse); f.ErrorCode == 0 {
					found <- f.Topics[0].Partitions[0].Offset
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}()
		synctest.Wait()
		away.publishers = []metadata.Publisher{metadata.PublisherFunc(one.server.publish)}
		away.push(t, own(0, 2, 2))
		away.push(t, own(0, 1, 3))
		if n := <-found; n != 2 {
			t.Fatal(n)
		}
	})
}

func TestFencedShardComesBackWhenItIsOursAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one := c.start(1)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		// The node knows of another owner before we do.
		image := c.metadata.Image()
		ahead, err := image.Apply(image.Offset()+1, 1, own(0, 2, 2))
		if err != nil {
			t.Fatal(err)
		}
		c.node.mu.Lock()
		c.node.image = func() *metadata.Image { return ahead.Image() }
		c.node.mu.Unlock()
		if code := one.commit(0, "g", 1); code != errcode.NotCoordinator {
			t.Fatal(code.Name())
		}
		c.metadata.push(t, own(0, 2, 2))
		c.metadata.push(t, own(0, 1, 3))
		c.node.mu.Lock()
		c.node.image = c.metadata.Image
		c.node.mu.Unlock()
		synctest.Wait()
		if code := one.commit(0, "g", 1); code != errcode.None {
			t.Fatal(code.Name())
		}
	})
}

func TestDeletedTopicsLoseTheirOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		one := c.start(1)
		c.metadata.push(t, own(0, 1, 1), own(1, 1, 1))
		synctest.Wait()
		one.commit(0, "g", 1)
		one.commit(1, "h", 1)
		// One shard is away when the topic goes.
		c.metadata.push(t, own(1, -1, 2))
		c.metadata.push(t, &metarecord.RemoveTopicRecord{TopicID: topicID})
		c.metadata.push(t, own(1, 1, 3))
		synctest.Wait()
		if n := one.fetch(0, "g"); n != -1 {
			t.Fatal(n)
		}
		if n := one.fetch(1, "h"); n != -1 {
			t.Fatal(n)
		}
	})
}

// TestTopicsOfAnotherIDKeepTheirOffsets has a shard come back to a topic that has another id. Where the instance has not seen the old
// one go, the log was taken over from another cluster, or nobody can tell: the offsets stay, as in Kafka.
func TestTopicsOfAnotherIDKeepTheirOffsets(t *testing.T) {
	for _, seen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 1)
			one := c.start(1)
			c.metadata.push(t, own(0, 1, 1))
			synctest.Wait()
			one.commit(0, "g", 1)
			c.metadata.push(t, own(0, -1, 2))
			synctest.Wait()
			if !seen {
				one.stop()
			}
			again := uuid.UUID{0: 7}
			c.metadata.push(t, &metarecord.RemoveTopicRecord{TopicID: topicID})
			c.metadata.push(t, &metarecord.TopicRecord{Name: "a", TopicID: again},
				&metarecord.PartitionRecord{TopicID: again, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
			synctest.Wait()
			want := int64(-1)
			if !seen {
				one, want = c.start(1), 1
			}
			c.metadata.push(t, own(0, 1, 3))
			synctest.Wait()
			if n := one.fetch(0, "g"); n != want {
				t.Fatalf("seen %v: %d", seen, n)
			}
		})
	}
}

func TestOffsetsTopicMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one := c.start(1)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		one.commit(0, "g", 1)
		c.metadata.push(t, &metarecord.RemoveTopicRecord{TopicID: offsetsID})
		synctest.Wait()
		if code := one.commit(0, "g", 1); code != errcode.NotCoordinator {
			t.Fatal(code.Name())
		}
		c.node.mu.Lock()
		clear(c.node.logs)
		c.node.mu.Unlock()
		again := uuid.UUID{0: 9}
		c.metadata.push(t, &metarecord.TopicRecord{Name: "__consumer_offsets", TopicID: again},
			&metarecord.PartitionRecord{TopicID: again, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		synctest.Wait()
		if n := one.fetch(0, "g"); n != -1 {
			t.Fatal(n)
		}
	})
}

func TestStopHandsShardsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one, two := c.start(1), c.start(2)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		one.commit(0, "g", 7)
		var once sync.Once
		c.controller.leave = func(id int32) {
			if id == 1 {
				once.Do(func() { c.metadata.push(t, own(0, 2, 2)) })
			}
		}
		began := time.Now()
		one.stop()
		if d := time.Since(began); d > time.Second {
			t.Fatal("leaving took", d)
		}
		synctest.Wait()
		if n := two.fetch(0, "g"); n != 7 {
			t.Fatal(n)
		}
		if one.server.Ready() == nil {
			t.Fatal("ready after Stop")
		}
	})
}

func TestStopOfTheLastInstanceWithASilentLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one := c.start(1)
		c.metadata.push(t, own(0, 1, 1))
		synctest.Wait()
		c.node.silent = true
		go one.commit(0, "g", 7)
		synctest.Wait()
		one.stop()
	})
}

func TestManyShardsLoadFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 50)
		one := c.start(1)
		var records []metarecord.Record
		for p := range int32(50) {
			records = append(records, own(p, 1, 1))
		}
		c.metadata.push(t, records...)
		synctest.Wait()
		for p := range int32(50) {
			if code := one.commit(p, "g", 1); code != errcode.None {
				t.Fatal(p, code.Name())
			}
		}
		var out metricdata.ResourceMetrics
		if err := one.reader.Collect(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		found := map[string]int64{}
		for _, m := range out.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					found[m.Name] += p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					found[m.Name] += p.Value
				}
			}
		}
		if found["chancery_coordinator_shards"] != 50 || found["chancery_coordinator_groups"] != 50 || found["chancery_coordinator_offsets"] != 50 ||
			found["chancery_coordinator_records"] != 50 || found["chancery_coordinator_loads"] != 50 {
			t.Fatal(found)
		}
	})
}

func TestOtherKindsOfShardsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		one := c.start(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := one.client.Handle(ctx, &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind_SHARD_KIND_TRANSACTION, Envelope: &commonv1.Envelope{}})
		if errcode.Of(err) != errcode.UnsupportedVersion {
			t.Fatal(err)
		}
		_, err = one.client.Handle(ctx, &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind_SHARD_KIND_GROUP})
		if errcode.Of(err) != errcode.InvalidRequest {
			t.Fatal(err)
		}
	})
}

func TestBadSettings(t *testing.T) {
	_, err := New(Config{Properties: map[string]string{"offsets.topic.compression.codec": "9"}}, Deps{
		Metadata: &fakeMetadata{image: metadata.Empty("c")}, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		t.Fatal("there is no codec 9")
	}
}
