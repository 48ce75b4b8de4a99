package simulation_test

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs/memfs"
	"chancery/storaged/simulation"
)

var (
	topicID = uuid.UUID{1}
	key     = simulation.Key{TopicID: topicID}
)

// twoNodes is a leader, node 1, and a follower, node 2, both in sync.
func twoNodes(t *testing.T) (leader, follower *simulation.Node) {
	t.Helper()
	image := twoReplicas(t, 0)
	return newNode(t, 1, newDisk(t), image), newNode(t, 2, newDisk(t), image)
}

// twoReplicas is a cluster with a partition that node 1 leads in an epoch, and node 2 follows.
func twoReplicas(t *testing.T, leaderEpoch int32) *metadata.Image {
	t.Helper()
	records := []metarecord.Record{&metarecord.TopicRecord{Name: "t", TopicID: topicID}, &metarecord.PartitionRecord{
		TopicID: topicID, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1, LeaderEpoch: leaderEpoch,
	}}
	for id := range int32(2) {
		records = append(records, &metarecord.RegisterBrokerRecord{BrokerID: id + 1, IncarnationID: uuid.UUID{byte(id + 1)}, BrokerEpoch: int64(id)})
	}
	delta, err := metadata.Empty("c").Apply(9, 1, records...)
	if err != nil {
		t.Fatal(err)
	}
	return delta.Image()
}

func now() time.Time { return time.UnixMilli(1_700_000_000_000) }

func newDisk(t *testing.T) *memfs.Disk {
	t.Helper()
	disk := memfs.New(now)
	if err := disk.MkdirAll("/d", 0o755); err != nil {
		t.Fatal(err)
	}
	return disk
}

func newNode(t *testing.T, id int32, disk *memfs.Disk, image *metadata.Image) *simulation.Node {
	t.Helper()
	n := simulation.New(simulation.Options{
		ID: id, ClusterID: "c", Directories: []simulation.Directory{{Path: "/d", ID: uuid.UUID{7, byte(id)}, FS: disk}},
		Static: configdef.NewNode(nil), SegmentBytes: 1 << 20, Now: now, Logger: slog.New(slog.DiscardHandler),
	})
	n.Registered(int64(id - 1))
	n.Publish(image)
	return n
}

func batchOf(t *testing.T, records int) []byte {
	t.Helper()
	b := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	for i := range records {
		b.Append(int64(i), nil, []byte("value"))
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func appendTo(t *testing.T, n *simulation.Node, records int) {
	t.Helper()
	code := errcode.UnknownServerError
	n.Append(key, storage.AcksLeader, batchOf(t, records), func(res storage.PartitionAppendResult) { code = res.Error })
	if code != errcode.None {
		t.Fatal(code.Name())
	}
}

// copyOnce is one fetch of the follower.
func copyOnce(leader, follower *simulation.Node, spoil func([]byte)) errcode.Code {
	return copyIn(0, leader, follower, spoil)
}

// copyIn is one fetch of the follower in a leader epoch.
func copyIn(leaderEpoch int32, leader, follower *simulation.Node, spoil func([]byte)) errcode.Code {
	req := follower.Position(key, leaderEpoch, 1<<20)
	res := leader.Fetch(req)
	if res.Error == errcode.None {
		if spoil != nil {
			data := res.Records.Buffers.Materialize()
			spoil(data)
			res.Records.Buffers = mem.BufferSlice{mem.SliceBuffer(data)}
		}
		follower.Take(key, leaderEpoch, req.Partitions[0].FetchOffset, &res)
	}
	return res.Error
}

func state(n *simulation.Node) simulation.State {
	s, _ := n.State(key)
	return s
}

// TestFollowerBeginsInsideABatch: the leader's log may start inside a batch, after records were deleted. The batch comes whole.
func TestFollowerBeginsInsideABatch(t *testing.T) {
	leader, follower := twoNodes(t)
	appendTo(t, leader, 5)
	for range 2 {
		copyOnce(leader, follower, nil)
	}
	if code := leader.DeleteRecords(key, 3); code != errcode.None {
		t.Fatal(code.Name())
	}
	appendTo(t, leader, 2)
	// The follower has lost everything, as a new one has nothing.
	follower.Rejoin(key, 0, 9, 9)
	follower.Rejoin(key, 0, 3, 7)
	if s := state(follower); s.LogStart != 3 || s.LogEnd != 3 {
		t.Fatalf("%+v", s)
	}
	copyOnce(leader, follower, nil)
	if s := state(follower); s.Failed || s.LogStart != 3 || s.LogEnd != 7 {
		t.Fatalf("%+v", s)
	}
	copyOnce(leader, follower, nil)
	if l, f := state(leader), state(follower); l.HighWatermark != 7 || f.HighWatermark < 5 {
		t.Fatalf("%+v %+v", l, f)
	}
	got, err := follower.Records(key, 3)
	want, wantErr := leader.Records(key, 3)
	if err != nil || wantErr != nil || !slices.Equal(got, want) {
		t.Fatal("the logs are not equal", err, wantErr)
	}
}

// TestFollowerEndsInsideABatch: a follower that was cut to where the leader's log begins, inside a batch, has only records that the leader
// has deleted. It takes the whole batch all the same.
func TestFollowerEndsInsideABatch(t *testing.T) {
	leader, follower := twoNodes(t)
	appendTo(t, leader, 5)
	follower.Take(key, 0, 0, &storage.FetchPartitionResult{
		Records: storage.Records{Buffers: mem.BufferSlice{mem.SliceBuffer(batchOf(t, 3))}}, Diverging: storage.NoDivergence,
	})
	copyOnce(leader, follower, nil)
	if code := leader.DeleteRecords(key, 3); code != errcode.None {
		t.Fatal(code.Name())
	}
	copyOnce(leader, follower, nil)
	if s := state(follower); s.Failed || s.LogStart != 3 || s.LogEnd != 5 {
		t.Fatalf("%+v", s)
	}
	got, err := follower.Records(key, 3)
	want, wantErr := leader.Records(key, 3)
	if err != nil || wantErr != nil || !slices.Equal(got, want) {
		t.Fatal("the logs are not equal", err, wantErr)
	}
}

// TestDeletedRecordsThatAreBack: a crash takes the mark of what was deleted, so that the log begins earlier again than its epochs tell
// of. When all that they tell of is cut off, the rest cannot be compared with what the leader has, and goes too.
func TestDeletedRecordsThatAreBack(t *testing.T) {
	const epoch = 3
	image, disk := twoReplicas(t, epoch), newDisk(t)
	leader, follower := newNode(t, 1, newDisk(t), image), newNode(t, 2, disk, image)
	for _, records := range []int{2, 3} {
		appendTo(t, leader, records)
		copyIn(epoch, leader, follower, nil)
	}
	copyIn(epoch, leader, follower, nil)
	if code := leader.DeleteRecords(key, 3); code != errcode.None {
		t.Fatal(code.Name())
	}
	copyIn(epoch, leader, follower, nil)
	if s := state(follower); s.LogStart != 3 || s.LogEnd != 5 {
		t.Fatalf("%+v", s)
	}
	follower.Kill()
	follower = newNode(t, 2, disk, image)
	if s := state(follower); s.LogStart != 0 || s.LogEnd != 5 {
		t.Fatalf("%+v", s)
	}
	follower.Take(key, epoch, 5, &storage.FetchPartitionResult{Diverging: storage.EpochEndOffset{Epoch: 1, EndOffset: 9}})
	if s := state(follower); s.Failed || s.LogStart != 0 || s.LogEnd != 0 {
		t.Fatalf("%+v", s)
	}
}

// TestSpoiledRecordsAreNotTaken: what a leader sends may be broken, which says nothing about the follower's own disk.
func TestSpoiledRecordsAreNotTaken(t *testing.T) {
	leader, follower := twoNodes(t)
	appendTo(t, leader, 3)
	for name, spoil := range map[string]func([]byte){
		"a byte is wrong":       func(b []byte) { b[len(b)-1]++ },
		"it comes from earlier": func(b []byte) { b[0] = 0xff }, /* a negative offset */
	} {
		copyOnce(leader, follower, spoil)
		if s := state(follower); s.Failed || s.LogEnd != 0 || len(follower.FailedDirectories()) > 0 {
			t.Fatalf("%s: %+v", name, s)
		}
	}
	copyOnce(leader, follower, nil)
	if s := state(follower); s.LogEnd != 3 {
		t.Fatalf("%+v", s)
	}
}
