package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc/mem"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/node"
)

// cluster is some nodes in one process with a model of the controller.
type cluster struct {
	t     testing.TB
	props map[string]string

	mu    sync.Mutex
	nodes map[int32]*node.Node
	// cut are the nodes that no other node reaches.
	cut    map[int32]bool
	epochs map[int32]int64
	logs   map[string]*log.Log
	dirs   map[int32]string
	// refuse is what AlterPartition fails with; 0 for nothing.
	refuse errcode.Code
	alters int
	// assigned are the replicas whose place was told.
	assigned int
	// places is where replicas were told to be, refuseAssign what telling fails with.
	places       map[uuid.UUID]uuid.UUID
	refuseAssign errcode.Code

	// publishing keeps the images in order.
	publishing sync.Mutex
	image      *metadata.Image
	// more are further log directories of each node, racks the nodes' racks, and disks what their files are on.
	more  map[int32][]string
	racks map[int32]string
	disks map[int32]vfs.FS
	// spy, if set, sees the fetches between nodes.
	spy func(*storage.FetchRequest, *storage.FetchResult)
	// failed counts the directories that nodes reported.
	failed int
	// coordinator is the model of the transaction coordinators; nil when there are none.
	coordinator *fakeCoordinator
}

func newBenchCluster(b *testing.B, nodes int) *cluster {
	return newCluster(b, nodes, map[string]string{"message.timestamp.before.max.ms": "9223372036854775807"})
}

func newCluster(t testing.TB, nodes int, props map[string]string) *cluster {
	c := &cluster{
		t: t, props: map[string]string{}, nodes: map[int32]*node.Node{}, cut: map[int32]bool{}, epochs: map[int32]int64{},
		logs: map[string]*log.Log{}, dirs: map[int32]string{}, image: metadata.Empty("test-cluster"),
		more: map[int32][]string{}, racks: map[int32]string{}, disks: map[int32]vfs.FS{},
		places: map[uuid.UUID]uuid.UUID{},
	}
	for k, v := range props {
		c.props[k] = v
	}
	for id := range int32(nodes) {
		c.dirs[id+1] = t.TempDir()
		c.start(id + 1)
	}
	t.Cleanup(func() {
		for id := range int32(nodes) {
			c.stop(id + 1)
		}
	})
	return c
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// start starts a node and registers it.
func (c *cluster) start(id int32) *node.Node {
	dirs, err := logdir.Open(append([]string{c.dirs[id]}, c.more[id]...), id, "test-cluster", quiet())
	if err != nil {
		c.t.Fatal(err)
	}
	options := node.Options{
		ID: id, Dirs: dirs, Static: configdef.NewNode(c.props),
		Epoch:           func() int64 { return c.epoch(id) },
		Nodes:           func(to int32) (storage.Node, error) { return c.reach(id, to) },
		Controller:      c,
		FS:              c.disks[id],
		OpenLog:         func(o log.Options) (*log.Log, error) { return c.log(id, o) },
		DirectoryFailed: func() { c.set(func() { c.failed++ }) }, Fatal: func(error) {}, Applied: func() {},
		Logger: quiet(),
	}
	if c.coordinator != nil {
		options.Coordinators = c.coordinator
	}
	n := node.New(options)
	n.Start(c.t.Context())
	c.mu.Lock()
	c.nodes[id] = n
	c.mu.Unlock()
	c.t.Cleanup(func() { _ = dirs.Close() })
	c.register(id)
	return n
}

func (c *cluster) stop(id int32) {
	c.mu.Lock()
	n := c.nodes[id]
	delete(c.nodes, id)
	c.mu.Unlock()
	if n == nil {
		return
	}
	n.Stop()
}

func (c *cluster) epoch(id int32) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.epochs[id]; ok {
		return e
	}
	return -1
}

func (c *cluster) reach(from, to int32) (storage.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[to]; n != nil && !c.cut[to] && !c.cut[from] {
		if c.spy != nil {
			return spy{n, c.spy}, nil
		}
		return n, nil
	}
	return nil, errcode.BrokerNotAvailable.Err()
}

// log opens a log on disk and remembers it, so that tests can look into it.
func (c *cluster) log(id int32, o log.Options) (*log.Log, error) {
	c.mu.Lock()
	o.FS = c.disks[id]
	c.mu.Unlock()
	l, err := log.Open(o)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[fmt.Sprintf("%d/%s/%d", id, o.TopicID, o.Partition)] = l
	return l, nil
}

func (c *cluster) node(id int32) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

// commit appends records to the metadata log and gives every node the new image.
func (c *cluster) commit(records ...metarecord.Record) int64 {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	offset := c.image.Offset() + int64(len(records))
	delta, err := c.image.Apply(offset, 1, records...)
	if err != nil {
		c.t.Error(err)
		return -1
	}
	c.image = delta.Image()
	c.mu.Lock()
	nodes := make([]*node.Node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	c.mu.Unlock()
	for _, n := range nodes {
		n.Publish(c.t.Context(), delta, c.image)
	}
	return offset
}

func (c *cluster) register(id int32) {
	c.publishing.Lock()
	epoch := c.image.Offset() + 1
	c.publishing.Unlock()
	c.mu.Lock()
	c.epochs[id] = epoch
	c.mu.Unlock()
	r := &metarecord.RegisterBrokerRecord{BrokerID: id, IncarnationID: uuid.Random(), BrokerEpoch: epoch}
	if rack, ok := c.racks[id]; ok {
		r.Rack = &rack
	}
	c.commit(r)
}

func (c *cluster) fence(id int32, fenced bool) {
	change := int8(-1)
	if fenced {
		change = 1
	}
	c.commit(&metarecord.BrokerRegistrationChangeRecord{BrokerID: id, BrokerEpoch: c.epoch(id), Fenced: change})
}

// topic makes a topic with one partition, or more, on these replicas, the first of which leads.
func (c *cluster) topic(name string, partitions int, replicas ...int32) uuid.UUID {
	id := uuid.Random()
	records := []metarecord.Record{&metarecord.TopicRecord{Name: name, TopicID: id}}
	for p := range int32(partitions) {
		records = append(records, &metarecord.PartitionRecord{
			PartitionID: p, TopicID: id, Replicas: replicas, ISR: replicas, Leader: replicas[0],
		})
	}
	c.commit(records...)
	return id
}

// elect makes another replica the leader.
func (c *cluster) elect(topic uuid.UUID, leader int32, isr ...int32) {
	r := metarecord.NewPartitionChange(topic, 0)
	r.Leader, r.ISR = leader, isr
	c.commit(r)
}

func (c *cluster) partition(topic uuid.UUID) *metadata.Partition {
	c.publishing.Lock()
	defer c.publishing.Unlock()
	return c.image.Partition(topic, 0)
}

// failures counts the directories that nodes reported.
func (c *cluster) failures() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// placed is where the controller was last told that a topic's replica is.
func (c *cluster) placed(topic uuid.UUID) uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.places[topic]
}

func (c *cluster) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// Request answers what nodes ask the controller.
func (c *cluster) Request(_ context.Context, req kmsg.Request, _ controllerclient.Sender) (kmsg.Response, error) {
	switch r := req.(type) {
	case *kmsg.AlterPartitionRequest:
		c.mu.Lock()
		c.alters++
		refuse := c.refuse
		c.mu.Unlock()
		if refuse != errcode.None {
			return nil, refuse.Err()
		}
		return c.alter(r), nil
	case *kmsg.AssignReplicasToDirsRequest:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.refuseAssign != errcode.None {
			return nil, c.refuseAssign.Err()
		}
		for _, d := range r.Directories {
			for _, t := range d.Topics {
				c.assigned += len(t.Partitions)
				c.places[t.TopicID] = d.ID
			}
		}
		return kmsg.NewPtrAssignReplicasToDirsResponse(), nil
	}
	return nil, errors.New("unexpected request")
}

func (c *cluster) alter(req *kmsg.AlterPartitionRequest) *kmsg.AlterPartitionResponse {
	resp := kmsg.NewPtrAlterPartitionResponse()
	for _, t := range req.Topics {
		out := kmsg.NewAlterPartitionResponseTopic()
		out.TopidID = t.TopicID
		for _, p := range t.Partitions {
			res := kmsg.NewAlterPartitionResponseTopicPartition()
			res.Partition = p.Partition
			var isr []int32
			for _, m := range p.NewEpochISR {
				isr = append(isr, m.BrokerID)
				if m.BrokerEpoch != -1 && m.BrokerEpoch != c.epoch(m.BrokerID) {
					res.ErrorCode = int16(errcode.IneligibleReplica)
				}
			}
			c.publishing.Lock()
			now := c.image.Partition(t.TopicID, p.Partition)
			c.publishing.Unlock()
			if now.PartitionEpoch != p.PartitionEpoch {
				res.ErrorCode = int16(errcode.InvalidUpdateVersion)
			}
			if res.ErrorCode == 0 {
				change := metarecord.NewPartitionChange(t.TopicID, p.Partition)
				change.ISR = isr
				c.commit(change)
				res.ISR, res.LeaderEpoch, res.PartitionEpoch, res.LeaderID = isr, now.LeaderEpoch, now.PartitionEpoch+1, now.Leader
			}
			out.Partitions = append(out.Partitions, res)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func buffersOf(b []byte) storage.Buffers { return mem.BufferSlice{mem.SliceBuffer(b)} }

// batch makes a batch of records with these values.
func batch(values ...string) storage.Buffers {
	return producerBatch(recordbatch.NoProducerID, 0, values...)
}

func producerBatch(producer int64, sequence int32, values ...string) storage.Buffers {
	o := recordbatch.NewOptions()
	if producer >= 0 {
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = producer, 0, sequence
	}
	b := recordbatch.NewBuilder(nil, o)
	for _, v := range values {
		b.Append(time.Now().UnixMilli(), []byte("k"), []byte(v))
	}
	data, _ := b.Build() // only codecs fail, and there is none
	return mem.BufferSlice{mem.SliceBuffer(data)}
}

func build(o recordbatch.BatchOptions, key []byte) storage.Buffers {
	b := recordbatch.NewBuilder(nil, o)
	b.Append(time.Now().UnixMilli(), key, []byte("v"))
	data, _ := b.Build() // only codecs fail, and there is none
	return mem.BufferSlice{mem.SliceBuffer(data)}
}

func keylessBatch() storage.Buffers { return build(recordbatch.NewOptions(), nil) }

func appendRequest(topic uuid.UUID, acks int16, records storage.Buffers) *storage.AppendRequest {
	return &storage.AppendRequest{
		Acks: acks, TimeoutMs: 10_000, WriterEpoch: storage.NoWriterEpoch, APIVersion: 12,
		Partitions: []storage.PartitionAppend{{TopicID: topic, Records: records}},
	}
}

// produce appends and waits for the answer.
func produce(n *node.Node, req *storage.AppendRequest) storage.PartitionAppendResult {
	done := make(chan *storage.AppendResult, 1)
	n.Append(req, func(r *storage.AppendResult) { done <- r })
	return (<-done).Partitions[0]
}

func fetchRequest(topic uuid.UUID, offset int64) *storage.FetchRequest {
	return &storage.FetchRequest{
		ReplicaID: storage.ConsumerReplicaID, ReplicaEpoch: -1, MinBytes: 1, MaxBytes: 1 << 20,
		Partitions: []storage.FetchPartition{{
			TopicID: topic, CurrentLeaderEpoch: -1, FetchOffset: offset, LastFetchedEpoch: -1, LogStartOffset: -1, MaxBytes: 1 << 20,
		}},
	}
}

func fetch(t *testing.T, n *node.Node, req *storage.FetchRequest) storage.FetchPartitionResult {
	t.Helper()
	res, err := n.Fetch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res.Partitions[0]
}

// values reads the records of a result.
func values(t testing.TB, r storage.FetchPartitionResult) []string {
	t.Helper()
	data, err := r.Records.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	it := recordbatch.Iterate(data)
	for it.Next() {
		records := recordbatch.RecordsOf(it.Bytes())
		for records.Next() {
			out = append(out, string(records.Record().Value))
		}
	}
	return out
}

// everything reads a node's whole log, committed or not, as a debugging follower would see it.
func (c *cluster) everything(id int32, topic uuid.UUID) []string {
	c.mu.Lock()
	l := c.logs[fmt.Sprintf("%d/%s/0", id, topic)]
	c.mu.Unlock()
	records, err := l.Read(l.LogStartOffset(), 1<<30, l.LogEndOffset(), true)
	if err != nil {
		c.t.Fatal(err)
	}
	return values(c.t, storage.FetchPartitionResult{Records: records})
}

// pass lets fake time pass.
func pass(d time.Duration) { <-time.After(d) }

// eventually waits, in fake time, until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for range 600 {
		synctest.Wait()
		if condition() {
			return
		}
		pass(100 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

func latest(t *testing.T, n *node.Node, topic uuid.UUID, edit func(*storagev1.ListOffsetsPartition)) *storagev1.ListOffsetsPartitionResult {
	t.Helper()
	q := &storagev1.ListOffsetsPartition{TopicId: topic[:], CurrentLeaderEpoch: -1, Timestamp: -1}
	if edit != nil {
		edit(q)
	}
	resp, err := n.ListOffsets(t.Context(), &storagev1.ListOffsetsRequest{ReplicaId: -1, Partitions: []*storagev1.ListOffsetsPartition{q}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetPartitions()[0]
}

func sameSet(a []int32, b ...int32) bool {
	a = slices.Clone(a)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
