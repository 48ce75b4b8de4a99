package node_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/storaged/internal/node"
)

// ask sends a node a request that is meant for it.
func ask(t *testing.T, n *node.Node, version int16, req kmsg.Request) kmsg.Response {
	t.Helper()
	req.SetVersion(version)
	reply, err := n.Handle(t.Context(), &storagev1.HandleRequest{Envelope: &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: int32(version), Body: req.AppendTo(nil),
	}})
	if err != nil {
		t.Fatal(err)
	}
	resp := req.ResponseKind()
	resp.SetVersion(version)
	if err := resp.ReadFrom(reply.GetReply().GetBody()); err != nil {
		t.Fatal(err)
	}
	return resp
}

// move has a node move a replica to a directory.
func move(t *testing.T, n *node.Node, topic string, to string) errcode.Code {
	t.Helper()
	req := kmsg.NewPtrAlterReplicaLogDirsRequest()
	req.Dirs = []kmsg.AlterReplicaLogDirsRequestDir{{Dir: to, Topics: []kmsg.AlterReplicaLogDirsRequestDirTopic{{Topic: topic, Partitions: []int32{0}}}}}
	resp, _ := ask(t, n, 2, req).(*kmsg.AlterReplicaLogDirsResponse)
	return errcode.Code(resp.Topics[0].Partitions[0].ErrorCode)
}

// described are the replicas of a topic by directory: "present" or "future" with its lag.
func described(t *testing.T, n *node.Node, topic string) map[string]string {
	t.Helper()
	resp, _ := ask(t, n, 5, kmsg.NewPtrDescribeLogDirsRequest()).(*kmsg.DescribeLogDirsResponse)
	out := map[string]string{}
	for _, d := range resp.Dirs {
		for _, p := range d.Topics {
			if p.Topic != topic {
				continue
			}
			what := "present"
			if p.Partitions[0].IsFuture {
				what = "future"
			}
			out[d.Dir] = what
		}
	}
	return out
}

// twoDirs starts a node with two log directories.
func twoDirs(t *testing.T, c *cluster, disk vfs.FS) (n *node.Node, dirs []string) {
	t.Helper()
	dirs = []string{t.TempDir(), t.TempDir()}
	c.dirs[1], c.more[1], c.disks[1] = dirs[0], dirs[1:], disk
	n = c.start(1)
	t.Cleanup(func() { c.stop(1) })
	return n, dirs
}

// where gives the directory of a replica, and the other one.
func where(t *testing.T, n *node.Node, topic string, dirs []string) (here, there string) {
	t.Helper()
	in := described(t, n, topic)
	if in[dirs[0]] == "present" {
		return dirs[0], dirs[1]
	}
	return dirs[1], dirs[0]
}

func TestReplicaMovesToAnotherDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		var want []string
		send := func() {
			t.Helper()
			v := fmt.Sprint(len(want))
			if r := produce(n, appendRequest(topic, storage.AcksAll, batch(v))); r.Error != errcode.None || r.BaseOffset != int64(len(want)) {
				t.Fatalf("%+v", r)
			}
			want = append(want, v)
		}
		for range 20 {
			send()
		}
		from, to := where(t, n, "a", dirs)
		if code := move(t, n, "a", to); code != errcode.None {
			t.Fatal(code)
		}
		for range 20 {
			send()
			pass(20 * time.Millisecond)
		}
		eventually(t, "the replica has moved", func() bool {
			in := described(t, n, "a")
			return in[to] == "present" && in[from] == ""
		})
		send()
		if got := values(t, fetch(t, n, fetchRequest(topic, 0))); !slices.Equal(got, want) {
			t.Fatalf("%v\n%v", got, want)
		}
		if names, _ := filepath.Glob(filepath.Join(to, "*")); !slices.Contains(names, filepath.Join(to, "a-0")) {
			t.Fatal(names)
		}
		if c.placed(topic) == uuid.Zero {
			t.Fatal("the controller was not told")
		}
		// It comes back from a restart where it is, and goes away with its topic.
		c.stop(1)
		n = c.start(1)
		if got := values(t, fetch(t, n, fetchRequest(topic, 0))); !slices.Equal(got, want) {
			t.Fatalf("%v\n%v", got, want)
		}
		c.commit(&metarecord.RemoveTopicRecord{TopicID: topic})
		pass(2 * time.Minute)
		for _, d := range dirs {
			if names, _ := filepath.Glob(filepath.Join(d, "a-*")); len(names) > 0 {
				t.Fatal(names)
			}
		}
	})
}

// TestTieredReplicaMovesToAnotherDirectory keeps what is remote where it was: the log begins there, the local part does not.
func TestTieredReplicaMovesToAnotherDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := tieredTopic(c, 1)
		for i := range 8 {
			if r := produce(n, appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i)))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		pass(5 * time.Second)
		tell := func(remoteEnd, logStart int64) {
			t.Helper()
			r := updateTier(t, n, topic, func(q *storagev1.UpdateTierPartition) { q.RemoteEndOffset, q.LogStartOffset = remoteEnd, logStart })
			if r.GetErrorCode() != 0 {
				t.Fatalf("%+v", r)
			}
		}
		tell(6, 2)
		positions := func() string {
			var out []int64
			for _, at := range []int64{-1, -2, -4, -5, -6} {
				out = append(out, offsetOf(t, n, topic, at))
			}
			return fmt.Sprint(out, describeTier(t, n, topic).GetEpochs())
		}
		before := positions()
		if !strings.HasPrefix(before, "[8 2 6 5 6]") {
			t.Fatal(before)
		}
		moveTo := func() {
			t.Helper()
			from, to := where(t, n, "tiered", dirs)
			if code := move(t, n, "tiered", to); code != errcode.None {
				t.Fatal(code)
			}
			eventually(t, "the replica has moved", func() bool {
				in := described(t, n, "tiered")
				return in[to] == "present" && in[from] == ""
			})
		}
		moveTo()
		if got := positions(); got != before {
			t.Fatalf("%s, but before the move %s", got, before)
		}
		if r := fetch(t, n, fetchRequest(topic, 4)); r.Error != errcode.None || !r.Tiered || r.LocalLogStart != 6 {
			t.Fatalf("%+v", r)
		}
		for at := int64(6); at < 8; at++ { // each in a segment of its own
			if got := values(t, fetch(t, n, fetchRequest(topic, at))); !slices.Equal(got, []string{fmt.Sprint(at)}) {
				t.Fatal(got)
			}
		}
		// It goes on being tiered there, and so after another move.
		tell(7, 3)
		moveTo()
		if got := fmt.Sprint(offsetOf(t, n, topic, -2), offsetOf(t, n, topic, -4), offsetOf(t, n, topic, -5)); got != "3 7 6" {
			t.Fatal(got)
		}
	})
}

func TestMoveEndsWhenTheReplicaIsSentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		c.set(func() { c.refuseAssign = errcode.NotController }) // so that the move cannot end
		produce(n, appendRequest(topic, storage.AcksAll, batch("0")))
		from, to := where(t, n, "a", dirs)
		if code := move(t, n, "a", to); code != errcode.None {
			t.Fatal(code)
		}
		pass(time.Second)
		if in := described(t, n, "a"); in[from] != "present" || in[to] != "future" {
			t.Fatal(in)
		}
		// Once more to the same directory changes nothing.
		if code := move(t, n, "a", to); code != errcode.None {
			t.Fatal(code)
		}
		if code := move(t, n, "a", from); code != errcode.None {
			t.Fatal(code)
		}
		if in := described(t, n, "a"); in[from] != "present" || in[to] != "" {
			t.Fatal(in)
		}
		c.set(func() { c.refuseAssign = errcode.None })
		pass(5 * time.Second)
		if id := dirID(t, from); c.placed(topic) != id {
			t.Fatalf("the controller has the replica in %v, not %v", c.placed(topic), id)
		}
	})
}

func TestMoveGoesOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		c.set(func() { c.refuseAssign = errcode.NotController })
		produce(n, appendRequest(topic, storage.AcksAll, batch("0")))
		from, to := where(t, n, "a", dirs)
		move(t, n, "a", to)
		pass(time.Second)
		c.stop(1)
		c.set(func() { c.refuseAssign = errcode.None })
		n = c.start(1)
		eventually(t, "the replica has moved", func() bool {
			in := described(t, n, "a")
			return in[to] == "present" && in[from] == ""
		})
		if got := values(t, fetch(t, n, fetchRequest(topic, 0))); !slices.Equal(got, []string{"0"}) {
			t.Fatal(got)
		}
	})
}

// After a crash between the two renames of the last step there is only the copy.
func TestCopyTakesTheReplicasPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		produce(n, appendRequest(topic, storage.AcksAll, batch("0")))
		from, to := where(t, n, "a", dirs)
		c.stop(1)
		id := uuid.Random()
		if err := os.Rename(filepath.Join(from, "a-0"), filepath.Join(to, fmt.Sprintf("a-0.%x-future", id[:]))); err != nil {
			t.Fatal(err)
		}
		place := metarecord.NewPartitionChange(topic, 0)
		place.Directories = []uuid.UUID{dirID(t, to)}
		c.commit(place)
		n = c.start(1)
		if in := described(t, n, "a"); in[to] != "present" || in[from] != "" {
			t.Fatal(in)
		}
		if got := values(t, fetch(t, n, fetchRequest(topic, 0))); !slices.Equal(got, []string{"0"}) {
			t.Fatal(got)
		}
	})
}

func TestMoveIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		c.topic("a", 1, 1)
		_, to := where(t, n, "a", dirs)
		for _, x := range []struct {
			topic, to string
			want      errcode.Code
		}{
			{"a", "/nowhere", errcode.LogDirNotFound},
			{"b", to, errcode.UnknownTopicOrPartition},
			{strings.Repeat("t", 249), to, errcode.InvalidTopicException},
		} {
			if got := move(t, n, x.topic, x.to); got != x.want {
				t.Errorf("%.10s to %s: %v, want %v", x.topic, x.to, got, x.want)
			}
		}
		// What was said about b before it existed counts when it comes.
		c.topic("b", 1, 1)
		if in := described(t, n, "b"); in[to] != "present" {
			t.Errorf("%v, want %s", in, to)
		}
		c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), ResourceName: "1", Name: "cordoned.log.dirs", Value: &to})
		if got := move(t, n, "a", to); got != errcode.InvalidReplicaAssignment {
			t.Errorf("a cordoned directory: %v", got)
		}
	})
}

func TestMovesAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		rate := "100000"
		c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: "replica.alter.log.dirs.io.max.bytes.per.second", Value: &rate})
		for range 40 {
			produce(n, appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 100_000))))
		}
		_, to := where(t, n, "a", dirs)
		begin := time.Now()
		move(t, n, "a", to)
		eventually(t, "the replica has moved", func() bool { return described(t, n, "a")[to] == "present" })
		// The rate counts over eleven windows, so that a chunk of 1 MiB is paid back over ten seconds.
		if took := time.Since(begin); took < 20*time.Second || took > 60*time.Second {
			t.Fatalf("4 MB at 100 kB/s took %v", took)
		}
	})
}

// A disk that breaks under the copy ends the move; the replica goes on where it is.
func TestBrokenDiskEndsAMove(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpSync, vfs.OpRename, vfs.OpOpen} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 0, nil)
				var bad atomic.Pointer[string]
				n, dirs := twoDirs(t, c, vfs.Faulty{FS: vfs.OS{}, Inject: func(o vfs.Op, name string) error {
					if b := bad.Load(); b != nil && o == op && strings.HasPrefix(name, *b) {
						return errors.New("the disk is broken")
					}
					return nil
				}})
				topic := c.topic("a", 1, 1)
				produce(n, appendRequest(topic, storage.AcksAll, batch("0")))
				from, to := where(t, n, "a", dirs)
				bad.Store(&to)
				_ = move(t, n, "a", to)
				eventually(t, "the directory is given up", func() bool { return c.failures() == 1 })
				if in := described(t, n, "a"); in[from] != "present" || len(in) != 1 {
					t.Fatal(in)
				}
				if r := produce(n, appendRequest(topic, storage.AcksAll, batch("1"))); r.Error != errcode.None {
					t.Fatalf("%+v", r)
				}
				if got := move(t, n, "a", to); got != errcode.KafkaStorageError {
					t.Fatal(got)
				}
			})
		})
	}
}

// TestMoveIsNeverInBothDirectories: two disks have no common order of what survives a power loss, so the present log's new name must be
// durable before the copy gets its own.
func TestMoveIsNeverInBothDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		var mu sync.Mutex
		var ops []string
		n, dirs := twoDirs(t, c, vfs.Faulty{FS: vfs.OS{}, Inject: func(o vfs.Op, name string) error {
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, string(o)+" "+name)
			return nil
		}})
		topic := c.topic("a", 1, 1)
		produce(n, appendRequest(topic, storage.AcksAll, batch("0")))
		from, to := where(t, n, "a", dirs)
		_ = move(t, n, "a", to)
		eventually(t, "the replica has moved", func() bool { return described(t, n, "a")[to] == "present" })
		mu.Lock()
		defer mu.Unlock()
		gone := slices.Index(ops, "rename "+filepath.Join(from, "a-0"))
		durable := slices.Index(ops[gone+1:], "sync "+from)
		named := slices.IndexFunc(ops, func(op string) bool {
			return strings.HasPrefix(op, "rename "+filepath.Join(to, "a-0.")) && strings.HasSuffix(op, "-future")
		})
		if gone < 0 || durable < 0 || named < gone+1+durable {
			t.Fatalf("the present log went at %d, for good at %d, and the copy took its name at %d", gone, gone+1+durable, named)
		}
	})
}

// dirID reads the id of a log directory.
func dirID(t *testing.T, dir string) uuid.UUID {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "directory.id="); ok {
			id, err := uuid.Parse(v)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
	}
	t.Fatalf("no directory.id in %s", dir)
	return uuid.Zero
}

// A follower that has to catch up is slowed down by either side's quota; one in sync is not.
func TestReplicationIsThrottled(t *testing.T) {
	for _, side := range []string{"leader", "follower"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2, map[string]string{"replica.fetch.max.bytes": "100000", "replica.fetch.response.max.bytes": "100000"})
				topic := c.topic("a", 1, 1, 2)
				rate, list := "100000", "*"
				c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: side + ".replication.throttled.rate", Value: &rate},
					&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: "a", Name: side + ".replication.throttled.replicas", Value: &list})
				send := func(acks int16) {
					t.Helper()
					r := produce(c.node(1), appendRequest(topic, acks, batch(strings.Repeat("x", 50_000))))
					if r.Error != errcode.None {
						t.Fatalf("%+v", r)
					}
				}
				begin := time.Now()
				for range 60 { // 3 MB at 100 kB per second
					send(storage.AcksAll)
				}
				if took := time.Since(begin); took > 5*time.Second {
					t.Fatalf("a follower in sync was throttled: %v", took)
				}
				c.set(func() { c.cut[2] = true })
				for range 60 {
					send(storage.AcksLeader)
				}
				eventually(t, "the ISR shrinks", func() bool { return sameSet(c.partition(topic).ISR, 1) })
				c.set(func() { c.cut[2] = false })
				begin = time.Now()
				eventually(t, "the ISR grows", func() bool { return sameSet(c.partition(topic).ISR, 1, 2) })
				if took := time.Since(begin); took < 15*time.Second {
					t.Fatalf("3 MB at 100 kB per second took %v", took)
				}
			})
		})
	}
}

// While a replica goes from disk to disk, leaders change, logs are cut and written to again, and the node restarts. What was
// acknowledged is there at the end, in order.
func TestMovesAmongElections(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { moveAmongElections(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func moveAmongElections(t *testing.T, random *rand.Rand) {
	c := newCluster(t, 0, nil)
	dirs := map[int32][]string{}
	for id := int32(1); id <= 3; id++ {
		dirs[id] = []string{t.TempDir(), t.TempDir()}
		c.dirs[id], c.more[id] = dirs[id][0], dirs[id][1:]
		c.start(id)
		t.Cleanup(func() { c.stop(id) })
	}
	topic := c.topic("a", 1, 1, 2, 3)
	var acknowledged []string
	for step := range 60 {
		p := c.partition(topic)
		switch random.IntN(8) {
		case 0:
			c.elect(topic, p.ISR[random.IntN(len(p.ISR))], p.ISR...)
		case 1, 2:
			id := int32(1 + random.IntN(3))
			if code := move(t, c.node(id), "a", dirs[id][random.IntN(2)]); code != errcode.None {
				t.Fatal(code)
			}
		case 3:
			pass(time.Duration(random.IntN(300)) * time.Millisecond)
		case 4:
			if random.IntN(4) == 0 {
				c.stop(2)
				c.start(2)
			}
		default:
			// Some appends reach the leader only, and may be cut off again.
			acks := []int16{storage.AcksAll, storage.AcksLeader}[random.IntN(2)]
			v := fmt.Sprint(step)
			r := produce(c.node(p.Leader), appendRequest(topic, acks, batch(v)))
			if r.Error == errcode.None && acks == storage.AcksAll {
				acknowledged = append(acknowledged, v)
			}
		}
	}
	eventually(t, "all replicas are in sync", func() bool { return sameSet(c.partition(topic).ISR, 1, 2, 3) })
	pass(5 * time.Second)
	var first []string
	for id := int32(1); id <= 3; id++ {
		c.elect(topic, id, 1, 2, 3)
		pass(2 * time.Second)
		got := values(t, fetch(t, c.node(id), fetchRequest(topic, 0)))
		if id == 1 {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Fatalf("node %d has %v, node 1 has %v", id, got, first)
		}
		in := described(t, c.node(id), "a")
		if len(in) != 1 {
			t.Errorf("node %d: %v", id, in)
		}
	}
	at := 0
	for _, v := range acknowledged {
		i := slices.Index(first[at:], v)
		if i < 0 {
			t.Fatalf("%s was acknowledged and is not in %v, behind what was acknowledged before it", v, first)
		}
		at += i + 1
	}
}

// TestMovedLeaderKnowsItsEpoch: a leader that has written nothing in its epoch moves. A follower with records of the epoch before,
// which are on no other node, must still learn from it where the two logs part.
func TestMovedLeaderKnowsItsEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		var fetches atomic.Int32
		c.set(func() {
			c.spy = func(*storage.FetchRequest, *storage.FetchResult) {
				if fetches.Add(1) > 1000 {
					c.set(func() { c.cut[2] = true }) // It asks without a pause, so that no time would pass.
				}
			}
		})
		n, dirs := twoDirs(t, c, nil)
		c.dirs[2] = t.TempDir()
		c.start(2)
		t.Cleanup(func() { c.stop(2) })
		topic := c.topic("a", 1, 1, 2)
		write := func(leader int32, acks int16, value string) {
			t.Helper()
			if r := produce(c.node(leader), appendRequest(topic, acks, batch(value))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		write(1, storage.AcksAll, "both")
		c.set(func() { c.cut[2] = true })
		pass(2 * time.Second)
		write(1, storage.AcksLeader, "first")
		c.elect(topic, 2, 1, 2)
		write(2, storage.AcksLeader, "second")
		c.elect(topic, 1, 1, 2)
		_, to := where(t, n, "a", dirs)
		if code := move(t, n, "a", to); code != errcode.None {
			t.Fatal(code)
		}
		eventually(t, "the replica has moved", func() bool {
			in := described(t, n, "a")
			return in[to] == "present" && len(in) == 1
		})
		fetches.Store(0)
		c.set(func() { c.cut[2] = false })
		pass(5 * time.Second)
		c.elect(topic, 2, 1, 2)
		if got, want := values(t, fetch(t, c.node(2), fetchRequest(topic, 0))), []string{"both", "first"}; !slices.Equal(got, want) {
			t.Errorf("the follower has %v, want %v; it fetched %d times", got, want, fetches.Load())
		}
	})
}

// A log whose start lies inside a batch moves with the whole batch, and shows as little of it as before.
func TestMoveOfALogThatBeginsInsideABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		n, dirs := twoDirs(t, c, nil)
		topic := c.topic("a", 1, 1)
		produce(n, appendRequest(topic, storage.AcksAll, batch("0", "1", "2")))
		resp, err := n.DeleteRecords(t.Context(), &storagev1.DeleteRecordsRequest{TimeoutMs: 1000, Partitions: []*storagev1.DeleteRecordsPartition{
			{TopicId: topic[:], Offset: 2},
		}})
		if err != nil || resp.GetPartitions()[0].GetErrorCode() != 0 {
			t.Fatal(resp, err)
		}
		from, to := where(t, n, "a", dirs)
		for _, dir := range []string{to, from} {
			if code := move(t, n, "a", dir); code != errcode.None {
				t.Fatal(code)
			}
			eventually(t, "the replica has moved", func() bool {
				in := described(t, n, "a")
				return in[dir] == "present" && len(in) == 1
			})
			r := fetch(t, n, fetchRequest(topic, 2))
			if got := values(t, r); !slices.Equal(got, []string{"0", "1", "2"}) || r.LogStartOffset != 2 {
				t.Fatalf("%v, %+v", got, r)
			}
			if r := fetch(t, n, fetchRequest(topic, 1)); r.Error != errcode.OffsetOutOfRange {
				t.Fatalf("%+v", r)
			}
		}
		c.stop(1)
		n = c.start(1)
		if r := produce(n, appendRequest(topic, storage.AcksAll, batch("3"))); r.Error != errcode.None || r.BaseOffset != 3 || r.LogStartOffset != 2 {
			t.Fatalf("%+v", r)
		}
	})
}
