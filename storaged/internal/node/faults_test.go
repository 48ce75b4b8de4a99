package node_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs"
)

func TestBrokenDirectoryLeavesTheOthersServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		good, bad := t.TempDir(), t.TempDir()
		var broken atomic.Bool
		c.dirs[1], c.more[1] = good, []string{bad}
		c.disks[1] = vfs.Faulty{FS: vfs.OS{}, Inject: func(op vfs.Op, name string) error {
			if broken.Load() && op == vfs.OpWrite && strings.HasPrefix(name, bad) {
				return errors.New("the disk is broken")
			}
			return nil
		}}
		n := c.start(1)
		t.Cleanup(func() { c.stop(1) })
		topic := c.topic("a", 4, 1)
		send := func(partition int32) storage.PartitionAppendResult {
			req := appendRequest(topic, storage.AcksAll, batch("0"))
			req.Partitions[0].Partition = partition
			return produce(n, req)
		}
		for p := range int32(4) {
			if r := send(p); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		broken.Store(true)
		codes := map[errcode.Code]int{}
		for range 2 {
			for p := range int32(4) {
				codes[send(p).Error]++
			}
		}
		if codes[errcode.None] != 4 || codes[errcode.KafkaStorageError] != 4 || c.failed != 1 {
			t.Fatal(codes, c.failed)
		}
		// A new replica goes where it can be kept.
		if r := produce(n, appendRequest(c.topic("b", 1, 1), storage.AcksAll, batch("0"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		for p := range int32(4) {
			req := fetchRequest(topic, 0)
			req.Partitions[0].Partition = p
			codes[fetch(t, n, req).Error]++
		}
		if codes[errcode.None] != 6 || codes[errcode.KafkaStorageError] != 6 {
			t.Fatal(codes)
		}
	})
}

// Whatever the disk refuses, only what is on it goes offline.
func TestEveryKindOfDiskErrorTakesTheDirectoryOffline(t *testing.T) {
	kinds := map[string]struct {
		op  vfs.Op
		err error
		// use is what meets the error.
		use func(t *testing.T, c *cluster, topic uuid.UUID)
	}{
		"no space for an append": {vfs.OpWrite, syscall.ENOSPC, func(_ *testing.T, c *cluster, topic uuid.UUID) {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1")))
		}},
		"no space for a new segment": {vfs.OpOpen, syscall.ENOSPC, func(_ *testing.T, c *cluster, topic uuid.UUID) {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 1000))))
		}},
		"a search that cannot read": {vfs.OpRead, syscall.EIO, func(t *testing.T, c *cluster, topic uuid.UUID) {
			latest(t, c.node(1), topic, func(q *storagev1.ListOffsetsPartition) { q.Timestamp = 1 })
		}},
		"a flush": {vfs.OpSync, syscall.EIO, func(_ *testing.T, c *cluster, topic uuid.UUID) {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1"))) // something that is not durable yet
			pass(time.Minute)
		}},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 0, map[string]string{"log.segment.bytes": "1048576", "log.flush.interval.ms": "1000", "log.flush.scheduler.interval.ms": "1000"})
				var bad atomic.Pointer[string]
				n, dirs := twoDirs(t, c, vfs.Faulty{FS: vfs.OS{}, Inject: func(o vfs.Op, name string) error {
					if b := bad.Load(); b != nil && o == kind.op && strings.HasPrefix(name, *b) {
						return &fs.PathError{Op: string(o), Path: name, Err: kind.err}
					}
					return nil
				}})
				bytes := "1048576"
				c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: "a", Name: "segment.bytes", Value: &bytes})
				a, b := c.topic("a", 1, 1), c.topic("b", 1, 1)
				for _, topic := range []uuid.UUID{a, b} {
					for range 12 {
						produce(n, appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 100_000))))
					}
				}
				here, other := where(t, n, "a", dirs)
				if in := described(t, n, "b"); in[other] != "present" {
					t.Fatal(in)
				}
				bad.Store(&here)
				for range 12 {
					kind.use(t, c, a)
				}
				eventually(t, "the directory is offline", func() bool { return c.failures() == 1 })
				if r := fetch(t, n, fetchRequest(a, 0)); r.Error != errcode.KafkaStorageError {
					t.Fatalf("%+v", r)
				}
				if r := produce(n, appendRequest(b, storage.AcksAll, batch("1"))); r.Error != errcode.None {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}

// A log directory that is removed under the node is noticed, also by a node without work.
func TestRemovedDirectoryIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		a, b := c.topic("a", 1, 1), c.topic("b", 1, 1)
		produce(n, appendRequest(a, storage.AcksAll, batch("0")))
		pass(time.Minute)
		here, _ := where(t, n, "a", dirs)
		// The whole directory goes at once, as with a disk that is pulled.
		if err := os.Rename(here, here+"-gone"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the directory is offline", func() bool { return c.failures() == 1 })
		if r := produce(n, appendRequest(b, storage.AcksAll, batch("1"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
	})
}

func TestConsumersAreSentToTheirRack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, map[string]string{"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"})
		for id := range int32(3) {
			c.dirs[id+1], c.racks[id+1] = t.TempDir(), fmt.Sprintf("r%d", id+1)
			c.start(id + 1)
			t.Cleanup(func() { c.stop(id + 1) })
		}
		topic := c.topic("a", 1, 1, 2, 3)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		pass(time.Second)
		for rack, want := range map[string]int32{"": -1, "r1": -1, "r2": 2, "r3": 3, "elsewhere": -1} {
			req := fetchRequest(topic, 0)
			req.RackID = rack
			r := fetch(t, c.node(1), req)
			if r.PreferredReadReplica != want || r.Error != errcode.None || (r.Records.Len() == 0) != (want >= 0) {
				t.Errorf("rack %q: %+v", rack, r)
			}
		}
		// Replicas out of sync are not read from.
		c.set(func() { c.cut[2] = true })
		r := metarecord.NewPartitionChange(topic, 0)
		r.ISR = []int32{1, 3}
		c.commit(r)
		req := fetchRequest(topic, 0)
		req.RackID = "r2"
		if r := fetch(t, c.node(1), req); r.PreferredReadReplica != -1 {
			t.Errorf("%+v", r)
		}
		// A follower asked directly does as it is told.
		req.RackID = "r3"
		if r := fetch(t, c.node(3), req); r.PreferredReadReplica != -1 || r.Records.Len() == 0 {
			t.Errorf("%+v", r)
		}
	})
}

func TestQuietPartitionsHaveNewsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 100, 1, 2)
		send := func(partition int32) time.Duration {
			req := appendRequest(topic, storage.AcksAll, batch("0"))
			req.Partitions[0].Partition = partition
			begin := time.Now()
			if r := produce(c.node(1), req); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
			return time.Since(begin)
		}
		// Long after all but one have become quiet, and while they change lanes, no append has to wait for a fetch to end.
		for i := range 200 {
			if took := send(7); took > 50*time.Millisecond {
				t.Fatalf("append %d took %v", i, took)
			}
			pass(100 * time.Millisecond)
		}
		for p := range int32(100) {
			if took := send(p); took > 50*time.Millisecond {
				t.Fatalf("partition %d took %v", p, took)
			}
		}
	})
}

func TestConfigsReachReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		set := func(name string, value string) {
			c.commit(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "a", Name: name, Value: &value})
		}
		set("max.message.bytes", "100")
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 200)))); r.Error != errcode.MessageTooLarge {
			t.Fatalf("%+v", r)
		}
		set("max.message.bytes", "1000")
		set("message.timestamp.type", "LogAppendTime")
		r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 200))))
		if r.Error != errcode.None || r.LogAppendTimeMs != time.Now().UnixMilli() {
			t.Fatalf("%+v", r)
		}
		set("cleanup.policy", "compact")
		keyless := appendRequest(topic, storage.AcksAll, keylessBatch())
		if r := produce(c.node(1), keyless); r.Error != errcode.InvalidRecord || len(r.RecordErrors) != 1 || r.LogStartOffset != 0 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestReplicaThatIsMovedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		waiting := make(chan storage.FetchPartitionResult, 1)
		req := fetchRequest(topic, 1)
		req.MaxWaitMs = 60_000
		go func() { waiting <- fetch(t, c.node(1), req) }()
		pass(time.Second)
		r := metarecord.NewPartitionChange(topic, 0)
		r.Leader, r.ISR, r.Replicas = 2, []int32{2}, []int32{2}
		c.commit(r)
		if got := <-waiting; got.Error != errcode.NotLeaderOrFollower {
			t.Fatalf("%+v", got)
		}
		if n := len(c.node(1).Replicas()); n != 0 {
			t.Fatalf("%d replicas are left", n)
		}
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1"))); r.Error != errcode.NotLeaderOrFollower || r.Leader.ID != 2 {
			t.Fatalf("%+v", r)
		}
		if r := produce(c.node(2), appendRequest(topic, storage.AcksAll, batch("1"))); r.Error != errcode.None || r.BaseOffset != 1 {
			t.Fatalf("%+v", r)
		}
		if got := c.everything(2, topic); !slices.Equal(got, []string{"0", "1"}) {
			t.Fatal(got)
		}
	})
}
