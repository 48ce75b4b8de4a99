package node_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// spy is a node whose fetches are counted on the way.
type spy struct {
	storage.Node
	see func(req *storage.FetchRequest, res *storage.FetchResult)
}

func (s spy) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	res, err := s.Node.Fetch(ctx, req)
	s.see(req, res)
	return res, err
}

// traffic is what followers' fetches carried.
type traffic struct {
	mu                       sync.Mutex
	fetches, asked, answered int
}

func (x *traffic) see(req *storage.FetchRequest, res *storage.FetchResult) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fetches++
	x.asked += len(req.Partitions)
	if res != nil {
		x.answered += len(res.Partitions)
	}
}

func (x *traffic) reset() (fetches, asked, answered int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	fetches, asked, answered = x.fetches, x.asked, x.answered
	x.fetches, x.asked, x.answered = 0, 0, 0
	return fetches, asked, answered
}

// Fetches of followers carry only what has changed, however many partitions there are.
func TestIdlePartitionsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		var x traffic
		c.set(func() { c.spy = x.see })
		for id := range int32(2) {
			c.dirs[id+1] = t.TempDir()
			c.start(id + 1)
			t.Cleanup(func() { c.stop(id + 1) })
		}
		topic := c.topic("a", 300, 1, 2)
		pass(5 * time.Second)
		if _, asked, _ := x.reset(); asked < 300 {
			t.Fatalf("only %d positions were told", asked)
		}
		pass(time.Minute)
		if fetches, asked, answered := x.reset(); fetches < 100 || fetches > 150 || asked > 0 || answered > 0 {
			t.Fatalf("an idle minute: %d fetches, %d partitions asked for, %d answered", fetches, asked, answered)
		}
		for i := range 10 {
			if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0"))); r.Error != errcode.None || r.BaseOffset != int64(i) {
				t.Fatalf("%+v", r)
			}
		}
		if _, asked, answered := x.reset(); asked > 20 || answered > 20 {
			t.Fatalf("10 appends to one partition: %d partitions asked for, %d answered", asked, answered)
		}
	})
}

// A follower without news for long is still caught up, and an append does not find it late.
func TestAnIdleFollowerStaysInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		for range 20 {
			pass(10 * time.Minute)
			if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1"))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		pass(time.Minute)
		if c.set(func() {}); c.alters > 0 || !sameSet(c.partition(topic).ISR, 1, 2) {
			t.Fatalf("%d changes of the ISR, which is %v", c.alters, c.partition(topic).ISR)
		}
	})
}

// A follower's session that the leader does not know begins anew.
func TestFollowerSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		c.fence(2, false)
		topic := c.topic("a", 2, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("0")))
		at := func(partition int32, offset int64) storage.FetchPartition {
			return storage.FetchPartition{TopicID: topic, Partition: partition, CurrentLeaderEpoch: 0, FetchOffset: offset, LastFetchedEpoch: -1, MaxBytes: 1 << 20}
		}
		ask := func(epoch int32, forgotten []int32, partitions ...storage.FetchPartition) (*storage.FetchResult, errcode.Code) {
			s := &storage.FetchSession{ID: 1, Epoch: epoch}
			for _, p := range forgotten {
				s.Forgotten = append(s.Forgotten, storage.PartitionKey{TopicID: topic, Partition: p})
			}
			res, err := c.node(1).Fetch(t.Context(), &storage.FetchRequest{
				ReplicaID: 2, ReplicaEpoch: c.epoch(2), MaxWaitMs: 100, MinBytes: 1, MaxBytes: 1 << 20, Session: s, Partitions: partitions,
			})
			return res, errcode.Of(err)
		}
		if _, code := ask(1, nil); code != errcode.FetchSessionIdNotFound {
			t.Fatal(code)
		}
		res, code := ask(0, nil, at(0, 0), at(1, 0))
		if code != errcode.None || len(res.Partitions) != 2 || res.Partitions[0].Records.Len() == 0 || res.Partitions[1].Records.Len() != 0 {
			t.Fatalf("%v %+v", code, res)
		}
		// Nothing more comes of a partition until its next position is known.
		if res, code = ask(1, nil); code != errcode.None || len(res.Partitions) != 0 {
			t.Fatalf("%v %+v", code, res)
		}
		if res, code = ask(2, nil, at(0, 0)); code != errcode.None || len(res.Partitions) != 1 {
			t.Fatalf("%v %+v", code, res)
		}
		if _, code = ask(2, nil); code != errcode.FetchSessionIdNotFound {
			t.Fatal(code)
		}
		if res, code = ask(3, []int32{0}); code != errcode.None || len(res.Partitions) != 0 {
			t.Fatalf("%v %+v", code, res)
		}
		// Beginning anew replaces the session.
		if res, code = ask(0, nil, at(0, 0)); code != errcode.None || len(res.Partitions) != 1 {
			t.Fatalf("%v %+v", code, res)
		}
		// One that is not used is forgotten.
		pass(3 * time.Minute)
		if _, code = ask(1, nil); code != errcode.FetchSessionIdNotFound {
			t.Fatal(code)
		}
	})
}

// The number of fetchers changes while they copy, and nothing is lost.
func TestFetchersAreReconfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		var mu sync.Mutex
		sessions := map[uint64]bool{}
		c.set(func() {
			c.spy = func(req *storage.FetchRequest, _ *storage.FetchResult) {
				mu.Lock()
				defer mu.Unlock()
				sessions[req.Session.ID] = true
			}
		})
		for id := range int32(2) {
			c.dirs[id+1] = t.TempDir()
			c.start(id + 1)
			t.Cleanup(func() { c.stop(id + 1) })
		}
		topic := c.topic("a", 50, 1, 2)
		for _, fetchers := range []int{1, 4, 2} {
			text := fmt.Sprint(fetchers)
			c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: "num.replica.fetchers", Value: &text})
			pass(time.Second)
			mu.Lock()
			clear(sessions)
			mu.Unlock()
			for p := range int32(50) {
				req := appendRequest(topic, storage.AcksAll, batch("0"))
				req.Partitions[0].Partition = p
				if r := produce(c.node(1), req); r.Error != errcode.None {
					t.Fatalf("%+v", r)
				}
			}
			pass(time.Second)
			mu.Lock()
			if len(sessions) != fetchers {
				t.Errorf("%d sessions, want %d", len(sessions), fetchers)
			}
			mu.Unlock()
		}
	})
}

// TestRefusedOffsetsAreAskedForWithPauses: a leader that refuses an offset which it has is not asked again at once.
func TestRefusedOffsetsAreAskedForWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		var refused atomic.Int32
		c.set(func() {
			c.spy = func(req *storage.FetchRequest, res *storage.FetchResult) {
				if res == nil || refused.Load() > 1000 {
					return
				}
				res.Release()
				res.Partitions = nil
				for _, p := range req.Partitions {
					refused.Add(1)
					res.Partitions = append(res.Partitions, storage.FetchPartitionResult{TopicID: p.TopicID, Error: errcode.OffsetOutOfRange})
				}
			}
		})
		for id := range int32(2) {
			c.dirs[id+1] = t.TempDir()
			c.start(id + 1)
			t.Cleanup(func() { c.stop(id + 1) })
		}
		topic := c.topic("a", 1, 1, 2)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("what the leader has at once"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		pass(20 * time.Second)
		if n := refused.Load(); n < 5 || n > 200 {
			t.Errorf("asked %d times in 20 s", n)
		}
	})
}
