package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

func TestProduceAndFetch(t *testing.T) {
	for _, replicas := range [][]int32{{1}, {1, 2, 3}} {
		for _, acks := range []int16{storage.AcksLeader, storage.AcksAll} {
			t.Run(fmt.Sprintf("%d replicas, acks %d", len(replicas), acks), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, 3, nil)
					topic := c.topic("a", 1, replicas...)
					for i := range 5 {
						begin := time.Now()
						r := produce(c.node(1), appendRequest(topic, acks, batch(fmt.Sprint(i), "x")))
						if r.Error != errcode.None || r.BaseOffset != int64(2*i) || r.LogStartOffset != 0 {
							t.Fatalf("%+v", r)
						}
						if took := time.Since(begin); took > 10*time.Millisecond {
							t.Fatalf("took %v", took)
						}
					}
					var r storage.FetchPartitionResult
					eventually(t, "all is committed", func() bool {
						r = fetch(t, c.node(1), fetchRequest(topic, 4))
						return r.HighWatermark == 10
					})
					if got := values(t, r); !slices.Equal(got, []string{"2", "x", "3", "x", "4", "x"}) || r.Error != errcode.None {
						t.Fatalf("%v %+v", got, r)
					}
				})
			})
		}
	}
}

func TestNothingIsReadBeforeItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"replica.lag.time.max.ms": "30000"})
		topic := c.topic("a", 1, 1, 2)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		c.set(func() { c.cut[2] = true })
		pass(time.Second)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("1"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		if r := fetch(t, c.node(1), fetchRequest(topic, 0)); !slices.Equal(values(t, r), []string{"0"}) || r.HighWatermark != 1 {
			t.Fatalf("%+v", r)
		}
		begin := time.Now()
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("2"))); r.Error != errcode.RequestTimedOut || !r.OutcomeUnknown {
			t.Fatalf("%+v", r)
		} else if time.Since(begin) != 10*time.Second {
			t.Fatalf("took %v", time.Since(begin))
		}
		// The follower that is away leaves the ISR, and comes back.
		eventually(t, "the ISR shrinks", func() bool { return sameSet(c.partition(topic).ISR, 1) })
		if r := fetch(t, c.node(1), fetchRequest(topic, 0)); r.HighWatermark != 3 {
			t.Fatalf("%+v", r)
		}
		c.set(func() { c.cut[2] = false })
		eventually(t, "the ISR grows", func() bool { return sameSet(c.partition(topic).ISR, 1, 2) })
		if got := c.everything(2, topic); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Fatal(got)
		}
		if m := c.node(1).Metrics(); m.ISRShrinks.Load() != 1 || m.ISRExpands.Load() != 1 {
			t.Errorf("%d shrinks, %d expands", m.ISRShrinks.Load(), m.ISRExpands.Load())
		}
	})
}

func TestMinInsyncReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"min.insync.replicas": "2", "replica.lag.time.max.ms": "5000"})
		topic := c.topic("a", 1, 1, 2)
		single := c.topic("b", 1, 1)
		if r := produce(c.node(1), appendRequest(single, storage.AcksAll, batch("0"))); r.Error != errcode.None {
			t.Fatalf("a minimum above the replication factor blocks: %+v", r)
		}
		c.set(func() { c.cut[2] = true })
		pass(time.Second)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("0"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		eventually(t, "the ISR shrinks", func() bool { return sameSet(c.partition(topic).ISR, 1) })
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("no"))); r.Error != errcode.NotEnoughReplicas || r.OutcomeUnknown {
			t.Fatalf("%+v", r)
		}
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("1"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		if r := fetch(t, c.node(1), fetchRequest(topic, 0)); r.HighWatermark != 0 {
			t.Fatalf("the high watermark moved without enough replicas: %+v", r)
		}
		c.set(func() { c.cut[2] = false })
		eventually(t, "it is committed", func() bool { return fetch(t, c.node(1), fetchRequest(topic, 0)).HighWatermark == 2 })
	})
}

func TestFailoverCutsWhatWasNotCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		topic := c.topic("a", 1, 1, 2, 3)
		for i := range 3 {
			if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i)))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
		}
		c.set(func() { c.cut[1] = true })
		pass(time.Second)
		waiting := make(chan storage.PartitionAppendResult, 1)
		c.node(1).Append(appendRequest(topic, storage.AcksAll, batch("lost")), func(r *storage.AppendResult) { waiting <- r.Partitions[0] })
		pass(time.Second)
		c.elect(topic, 2, 2, 3)
		if r := <-waiting; r.Error != errcode.NotLeaderOrFollower || !r.OutcomeUnknown {
			t.Fatalf("%+v", r)
		}
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("no"))); r.Error != errcode.NotLeaderOrFollower ||
			r.OutcomeUnknown || r.Leader != (storage.CurrentLeader{ID: 2, Epoch: 1}) {
			t.Fatalf("%+v", r)
		}
		if r := produce(c.node(2), appendRequest(topic, storage.AcksAll, batch("3"))); r.Error != errcode.None || r.BaseOffset != 3 {
			t.Fatalf("%+v", r)
		}
		c.set(func() { c.cut[1] = false })
		eventually(t, "the old leader is back in the ISR", func() bool { return sameSet(c.partition(topic).ISR, 1, 2, 3) })
		for id := range int32(3) {
			if got := c.everything(id+1, topic); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
				t.Fatalf("node %d has %v", id+1, got)
			}
		}
	})
}

func TestRestartedNodeCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"replica.lag.time.max.ms": "5000"})
		topic := c.topic("a", 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		c.stop(2)
		c.fence(2, true)
		r := metarecord.NewPartitionChange(topic, 0)
		r.ISR = []int32{1}
		c.commit(r)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		c.start(2)
		eventually(t, "the ISR grows", func() bool { return sameSet(c.partition(topic).ISR, 1, 2) })
		if got := c.everything(2, topic); !slices.Equal(got, []string{"0", "1"}) {
			t.Fatal(got)
		}
	})
}

func TestLongPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		req := fetchRequest(topic, 0)
		req.MaxWaitMs = 5000
		begin := time.Now()
		if r := fetch(t, c.node(1), req); r.Error != errcode.None || time.Since(begin) != 5*time.Second {
			t.Fatalf("%+v after %v", r, time.Since(begin))
		}

		var got storage.FetchPartitionResult
		done := make(chan struct{})
		go func() {
			defer close(done)
			got = fetch(t, c.node(1), req)
		}()
		pass(time.Second)
		produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("0")))
		begin = time.Now()
		<-done
		if time.Since(begin) != 0 || !slices.Equal(values(t, got), []string{"0"}) {
			t.Fatalf("%+v after %v", got, time.Since(begin))
		}

		// Several batches come together to the wanted size.
		req.MinBytes = 200
		var readAfter time.Duration
		begin = time.Now()
		done = make(chan struct{})
		go func() {
			defer close(done)
			got = fetch(t, c.node(1), req)
			readAfter = time.Since(begin)
		}()
		for i := range 4 {
			pass(time.Second)
			produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch(fmt.Sprint(i+1))))
		}
		<-done
		if n := got.Records.Len(); n < 200 || readAfter != 2*time.Second {
			t.Fatalf("%d bytes after %v", n, readAfter)
		}

		// Who stops waiting gets what there is.
		req.MinBytes = 1 << 20
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		res, err := c.node(1).Fetch(ctx, req)
		if err != nil || time.Since(begin) != time.Second || len(values(t, res.Partitions[0])) != 5 {
			t.Fatalf("%+v %v after %v", res, err, time.Since(begin))
		}
	})
}

func TestErrorsEndTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		other := c.topic("b", 1, 1)
		req := fetchRequest(topic, 0)
		req.MaxWaitMs = 5000
		ask := func(p storage.FetchPartition) (storage.FetchPartitionResult, time.Duration) {
			p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.MaxBytes = -1, -1, 100
			req.Partitions = append(req.Partitions[:1], p)
			begin := time.Now()
			res, err := c.node(1).Fetch(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			return res.Partitions[1], time.Since(begin)
		}
		if r, took := ask(storage.FetchPartition{TopicID: uuid.Random()}); r.Error != errcode.UnknownTopicId || took != 5*time.Second {
			t.Fatalf("%+v after %v", r, took)
		}
		if r, took := ask(storage.FetchPartition{TopicID: other, Partition: 9}); r.Error != errcode.UnknownTopicOrPartition || took != 5*time.Second {
			t.Fatalf("%+v after %v", r, took)
		}
		if r, took := ask(storage.FetchPartition{TopicID: other, FetchOffset: 1}); r.Error != errcode.OffsetOutOfRange || took != 0 {
			t.Fatalf("%+v after %v", r, took)
		}
		req.Partitions = req.Partitions[1:]
		req.Partitions[0].TopicID = uuid.Random()
		begin := time.Now()
		if r := fetch(t, c.node(1), req); r.Error != errcode.UnknownTopicId || time.Since(begin) != 0 {
			t.Fatalf("%+v after %v", r, time.Since(begin))
		}
	})
}

func TestLeaderEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 2, 1)
		c.elect(topic, 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		for epoch, want := range map[int32]errcode.Code{-1: errcode.None, 0: errcode.FencedLeaderEpoch, 1: errcode.None, 2: errcode.UnknownLeaderEpoch} {
			req := fetchRequest(topic, 0)
			req.Partitions[0].CurrentLeaderEpoch = epoch
			if r := fetch(t, c.node(1), req); r.Error != want {
				t.Errorf("epoch %d: %+v", epoch, r)
			}
			r := latest(t, c.node(1), topic, func(q *storagev1.ListOffsetsPartition) { q.CurrentLeaderEpoch = epoch })
			if errcode.Code(r.GetErrorCode()) != want {
				t.Errorf("epoch %d: %+v", epoch, r)
			}
		}
		if r := fetch(t, c.node(2), fetchRequest(topic, 0)); r.Error != errcode.NotLeaderOrFollower || r.Leader.ID != 1 {
			t.Errorf("%+v", r)
		}
		// A consumer that names its rack may read from a follower, and sees what is committed.
		req := fetchRequest(topic, 0)
		req.RackID = "r"
		eventually(t, "the follower knows that it is committed", func() bool { return len(values(t, fetch(t, c.node(2), req))) == 1 })
	})
}

func TestDivergence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 2, 1)
		produce(c.node(2), appendRequest(topic, storage.AcksAll, batch("0")))
		produce(c.node(2), appendRequest(topic, storage.AcksAll, batch("1")))
		c.elect(topic, 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("2")))
		ask := func(offset int64, epoch int32) storage.FetchPartitionResult {
			req := fetchRequest(topic, offset)
			req.Partitions[0].LastFetchedEpoch = epoch
			return fetch(t, c.node(1), req)
		}
		if r := ask(2, 0); r.Error != errcode.None || r.Diverging != storage.NoDivergence || len(values(t, r)) != 1 {
			t.Errorf("%+v", r)
		}
		if r := ask(3, 0); r.Error != errcode.None || r.Diverging != (storage.EpochEndOffset{Epoch: 0, EndOffset: 2}) {
			t.Errorf("%+v", r)
		}
		if r := ask(3, 5); r.Error != errcode.OffsetOutOfRange {
			t.Errorf("%+v", r)
		}
	})
}

func TestAppendsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		const n = 1000
		offsets := make([]int64, n)
		var left sync.WaitGroup
		for i := range n {
			left.Add(1)
			c.node(1).Append(appendRequest(topic, storage.AcksLeader, batch(fmt.Sprint(i))), func(r *storage.AppendResult) {
				offsets[i] = r.Partitions[0].BaseOffset
				left.Done()
			})
		}
		left.Wait()
		for i, o := range offsets {
			if o != int64(i) {
				t.Fatalf("append %d is at %d", i, o)
			}
		}
	})
}

func TestProducersAreIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		var results []storage.PartitionAppendResult
		var left sync.WaitGroup
		var mu sync.Mutex
		for i := range int32(5) {
			for range 2 {
				left.Add(1)
				c.node(1).Append(appendRequest(topic, storage.AcksAll, producerBatch(7, i, fmt.Sprint(i))), func(r *storage.AppendResult) {
					mu.Lock()
					defer mu.Unlock()
					results = append(results, r.Partitions[0])
					left.Done()
				})
			}
		}
		left.Wait()
		for i, r := range results {
			if r.Error != errcode.None || r.BaseOffset != int64(i/2) {
				t.Fatalf("%d: %+v", i, r)
			}
		}
		if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, producerBatch(7, 9, "x"))); r.Error != errcode.OutOfOrderSequenceNumber {
			t.Fatalf("%+v", r)
		}
		if got := c.everything(1, topic); len(got) != 5 {
			t.Fatal(got)
		}
	})
}

func TestAcksNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		// Whoever has the answer to acks=0 sees what was appended.
		if r := produce(c.node(1), appendRequest(topic, storage.AcksNone, batch("0"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		if got := c.everything(1, topic); len(got) != 1 {
			t.Fatal(got)
		}
		if r := produce(c.node(1), appendRequest(topic, 2, batch("0"))); r.Error != errcode.InvalidRequiredAcks {
			t.Fatalf("%+v", r)
		}
	})
}

// TestConditionalAppend: an append that comes late does not land behind what its writer has appended since.
func TestConditionalAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		at := func(end int64) storage.PartitionAppendResult {
			req := appendRequest(topic, storage.AcksAll, batch("0"))
			req.CheckEndOffset, req.Partitions[0].EndOffset = true, end
			return produce(c.node(1), req)
		}
		if r := at(0); r.Error != errcode.None || r.BaseOffset != 0 {
			t.Fatalf("%+v", r)
		}
		if r := at(0); r.Error != errcode.OffsetOutOfRange || r.OutcomeUnknown {
			t.Fatalf("%+v", r)
		}
		if got := c.everything(1, topic); len(got) != 1 {
			t.Fatal(got)
		}
	})
}

func TestSenderThatKnowsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		id := uuid.Random()
		next := c.image.Offset() + 2
		var order []string
		var mu sync.Mutex
		results := map[string]storage.PartitionAppendResult{}
		send := func(name string, topic uuid.UUID) {
			req := appendRequest(topic, storage.AcksLeader, batch(name))
			req.MetadataOffset = next
			c.node(1).Append(req, func(r *storage.AppendResult) {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
				results[name] = r.Partitions[0]
			})
		}
		for i := range 5 {
			send(fmt.Sprint(i), id)
		}
		send("never", uuid.Random())
		req := fetchRequest(id, 0)
		req.MetadataOffset, req.MaxWaitMs = next, 8000
		var got storage.FetchPartitionResult
		fetched := make(chan struct{})
		go func() {
			defer close(fetched)
			got = fetch(t, c.node(1), req)
		}()
		pass(time.Second)
		if len(order) != 0 {
			t.Fatal("an answer came before the image", order)
		}
		c.commit(&metarecord.TopicRecord{Name: "a", TopicID: id},
			&metarecord.PartitionRecord{TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
		synctest.Wait()
		<-fetched
		if len(values(t, got)) != 5 {
			t.Fatalf("%+v", got)
		}
		if results["never"].Error != errcode.UnknownTopicId || results["never"].OutcomeUnknown {
			t.Fatalf("%+v", results["never"])
		}
		for i := range 5 {
			if r := results[fmt.Sprint(i)]; r.Error != errcode.None || r.BaseOffset != int64(i) {
				t.Fatalf("%d: %+v", i, r)
			}
		}
		// The image never comes: the refusal does, in time.
		next += 1000
		begin := time.Now()
		late := appendRequest(uuid.Random(), storage.AcksLeader, batch("late"))
		late.MetadataOffset = next
		if r := produce(c.node(1), late); r.Error != errcode.NotLeaderOrFollower || r.OutcomeUnknown || time.Since(begin) != 10*time.Second {
			t.Fatalf("%+v after %v", r, time.Since(begin))
		}
	})
}

func TestCoordinatorsAreFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("__consumer_offsets", 1, 1)
		write := func(epoch int32) storage.PartitionAppendResult {
			req := appendRequest(topic, storage.AcksAll, batch("0"))
			req.WriterEpoch = epoch
			return produce(c.node(1), req)
		}
		if r := write(storage.NoWriterEpoch); r.Error != errcode.InvalidTopicException {
			t.Fatalf("a client wrote to an internal topic: %+v", r)
		}
		c.commit(&metarecord.ShardRecord{Kind: 1, Shard: 0, Owner: 1, Epoch: 4})
		if r := write(4); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		if r := write(3); r.Error != errcode.NotCoordinator {
			t.Fatalf("%+v", r)
		}
		// The next owner's read comes with the offset of its assignment; when it is answered, the old owner is out.
		next := c.image.Offset() + 1
		end := make(chan *storagev1.ListOffsetsPartitionResult, 1)
		go func() {
			resp, err := c.node(1).ListOffsets(t.Context(), &storagev1.ListOffsetsRequest{
				ReplicaId: -1, MetadataOffset: next,
				Partitions: []*storagev1.ListOffsetsPartition{{TopicId: topic[:], CurrentLeaderEpoch: -1, LogEnd: true}},
			})
			if err != nil {
				t.Error(err)
			}
			end <- resp.GetPartitions()[0]
		}()
		pass(time.Second)
		if r := write(4); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
		c.commit(&metarecord.ShardRecord{Kind: 1, Shard: 0, Owner: 2, Epoch: 5})
		if r := <-end; r.GetErrorCode() != 0 || r.GetOffset() != 2 {
			t.Fatalf("%+v", r)
		}
		if r := write(4); r.Error != errcode.NotCoordinator {
			t.Fatalf("%+v", r)
		}
		if r := write(5); r.Error != errcode.None || r.BaseOffset != 2 {
			t.Fatalf("%+v", r)
		}
	})
}

func TestStaleFollowersAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 1, 2)
		ask := func(replica int32, epoch int64) errcode.Code {
			req := fetchRequest(topic, 0)
			req.ReplicaID, req.ReplicaEpoch = replica, epoch
			req.Partitions[0].CurrentLeaderEpoch = 0
			return fetch(t, c.node(1), req).Error
		}
		if got := ask(2, c.epoch(2)-1); got != errcode.NotLeaderOrFollower {
			t.Error(got.Name())
		}
		if got := ask(9, -1); got != errcode.UnknownLeaderEpoch {
			t.Error(got.Name())
		}
		if got := ask(2, c.epoch(2)); got != errcode.None {
			t.Error(got.Name())
		}
	})
}

func TestDeleteRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 1, 2)
		for i := range 4 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
		}
		remove := func(offset int64) (errcode.Code, int64) {
			resp, err := c.node(1).DeleteRecords(t.Context(), &storagev1.DeleteRecordsRequest{
				TimeoutMs: 3000, Partitions: []*storagev1.DeleteRecordsPartition{{TopicId: topic[:], Offset: offset}},
			})
			if err != nil {
				t.Fatal(err)
			}
			p := resp.GetPartitions()[0]
			return errcode.Code(p.GetErrorCode()), p.GetLowWatermark()
		}
		begin := time.Now()
		if code, low := remove(2); code != errcode.None || low != 2 || time.Since(begin) > 50*time.Millisecond {
			t.Fatal(code.Name(), low, time.Since(begin))
		}
		if code, low := remove(1); code != errcode.None || low != 2 {
			t.Fatal(code.Name(), low)
		}
		if code, low := remove(9); code != errcode.OffsetOutOfRange || low != -1 {
			t.Fatal(code.Name(), low)
		}
		if r := fetch(t, c.node(1), fetchRequest(topic, 1)); r.Error != errcode.OffsetOutOfRange {
			t.Fatalf("%+v", r)
		}
		c.set(func() { c.cut[2] = true })
		pass(time.Second)
		begin = time.Now()
		if code, _ := remove(3); code != errcode.RequestTimedOut || time.Since(begin) != 3*time.Second {
			t.Fatal(code.Name(), time.Since(begin))
		}
		// A fenced node is not waited for.
		c.fence(2, true)
		if code, low := remove(-1); code != errcode.None || low != 4 {
			t.Fatal(code.Name(), low)
		}
	})
}

func TestFollowerFarBehindStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"replica.lag.time.max.ms": "5000"})
		topic := c.topic("a", 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		c.stop(2)
		c.fence(2, true)
		r := metarecord.NewPartitionChange(topic, 0)
		r.ISR = []int32{1}
		c.commit(r)
		for i := range 3 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i+1))))
		}
		if _, err := c.node(1).DeleteRecords(t.Context(), &storagev1.DeleteRecordsRequest{
			Partitions: []*storagev1.DeleteRecordsPartition{{TopicId: topic[:], Offset: 3}},
		}); err != nil {
			t.Fatal(err)
		}
		c.start(2)
		eventually(t, "the ISR grows", func() bool { return sameSet(c.partition(topic).ISR, 1, 2) })
		if got := c.everything(2, topic); !slices.Equal(got, []string{"3"}) {
			t.Fatal(got)
		}
	})
}

func TestListOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 1, 2)
		var times []int64
		for i := range 3 {
			times = append(times, time.Now().UnixMilli())
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
			pass(time.Second)
		}
		for _, x := range []struct{ at, offset, timestamp int64 }{
			{-1, 3, -1}, {-2, 0, -1}, {-3, 2, times[2]}, {-4, 0, -1}, {-5, -1, -1}, {-6, -1, -1},
			{times[1], 1, times[1]}, {times[1] + 1, 2, times[2]}, {times[2] + 1, -1, -1}, {0, 0, times[0]},
		} {
			r := latest(t, c.node(1), topic, func(q *storagev1.ListOffsetsPartition) { q.Timestamp = x.at })
			if r.GetErrorCode() != 0 || r.GetOffset() != x.offset || r.GetTimestamp() != x.timestamp {
				t.Errorf("%d: %+v", x.at, r)
			}
		}
		// A new leader that does not know yet what is committed says so.
		c.set(func() { c.cut[1] = true })
		pass(time.Second)
		produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("x")))
		c.elect(topic, 2, 2, 1)
		c.elect(topic, 1, 1, 2)
		r := latest(t, c.node(1), topic, nil)
		if errcode.Code(r.GetErrorCode()) != errcode.OffsetNotAvailable {
			t.Errorf("%+v", r)
		}
	})
}

func TestManyPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		const partitions = 50
		topic := c.topic("a", partitions, 1, 2, 3)
		var failed atomic.Int64
		var left sync.WaitGroup
		for i := range partitions * 5 {
			req := appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i)))
			req.Partitions[0].Partition = int32(i % partitions)
			left.Add(1)
			c.node(1).Append(req, func(r *storage.AppendResult) {
				if r.Partitions[0].Error != errcode.None {
					failed.Add(1)
				}
				left.Done()
			})
		}
		left.Wait()
		if failed.Load() != 0 {
			t.Fatal(failed.Load())
		}
		c.mu.Lock()
		assigned := c.assigned
		c.mu.Unlock()
		if assigned != 3*partitions {
			t.Errorf("%d of %d places told", assigned, 3*partitions)
		}
		c.commit(&metarecord.RemoveTopicRecord{TopicID: topic})
		if n := len(c.node(1).Replicas()); n != 0 {
			t.Fatalf("%d replicas are left of a deleted topic", n)
		}
	})
}

func TestNothingIsAppliedBeforeTheRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		c.stop(1)
		c.set(func() { c.epochs[1] = 1 << 40 })
		n := c.node(1)
		if n != nil {
			t.Fatal("still there")
		}
		c.start(1)
		if r := produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("0"))); r.Error != errcode.None {
			t.Fatalf("%+v", r)
		}
	})
}

func TestISRChangeIsRepeatedUntilTheControllerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"replica.lag.time.max.ms": "5000"})
		topic := c.topic("a", 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		c.set(func() { c.cut[2], c.refuse = true, errcode.NetworkException })
		pass(time.Second)
		produce(c.node(1), appendRequest(topic, storage.AcksLeader, batch("1")))
		pass(20 * time.Second)
		var tries int
		c.set(func() { tries, c.refuse = c.alters, errcode.None })
		if tries < 5 || tries > 40 {
			t.Errorf("%d tries in 20 s", tries)
		}
		eventually(t, "the ISR shrinks", func() bool { return sameSet(c.partition(topic).ISR, 1) })
	})
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		topic := c.topic("a", 1, 2, 1)
		produce(c.node(2), appendRequest(topic, storage.AcksAll, batch("0")))
		c.elect(topic, 1, 1, 2)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("1")))
		ask := func(n int32, current, epoch int32) *storagev1.OffsetForLeaderEpochPartitionResult {
			resp, err := c.node(n).OffsetForLeaderEpoch(t.Context(), &storagev1.OffsetForLeaderEpochRequest{
				ReplicaId: -1, Partitions: []*storagev1.OffsetForLeaderEpochPartition{
					{TopicId: topic[:], CurrentLeaderEpoch: current, LeaderEpoch: epoch}},
			})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetPartitions()[0]
		}
		for _, x := range []struct {
			node, current, epoch int32
			code                 errcode.Code
			wantEpoch            int32
			wantEnd              int64
		}{
			{1, -1, 0, errcode.None, 0, 1},
			{1, 1, 1, errcode.None, 1, 2},
			{1, 1, 2, errcode.None, -1, -1},
			{1, 0, 0, errcode.FencedLeaderEpoch, -1, -1},
			{1, 2, 0, errcode.UnknownLeaderEpoch, -1, -1},
			{2, 1, 0, errcode.NotLeaderOrFollower, -1, -1},
		} {
			r := ask(x.node, x.current, x.epoch)
			if errcode.Code(r.GetErrorCode()) != x.code || r.GetLeaderEpoch() != x.wantEpoch || r.GetEndOffset() != x.wantEnd {
				t.Errorf("%+v: %+v", x, r)
			}
		}
	})
}

func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"log.retention.check.interval.ms": "1000", "log.flush.scheduler.interval.ms": "1000"})
		topic := c.topic("a", 1, 1, 2)
		for name, value := range map[string]string{"segment.ms": "1000", "retention.ms": "10000", "flush.ms": "500"} {
			c.commit(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "a", Name: name, Value: &value})
		}
		for i := range 5 {
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i))))
			pass(2 * time.Second)
		}
		eventually(t, "old segments go", func() bool {
			return fetch(t, c.node(1), fetchRequest(topic, 0)).Error == errcode.OffsetOutOfRange
		})
		pass(time.Second)
		v1, v2 := c.node(1).Replicas()[0].View(), c.node(2).Replicas()[0].View()
		if v1.LogStart == 0 || v1.LogStart != v2.LogStart || v1.LogEnd != 5 {
			t.Fatalf("%+v %+v", v1, v2)
		}
		if p := c.node(1).Replicas()[0].Log().RecoveryPoint(); p != 5 {
			t.Fatalf("not flushed beyond %d", p)
		}
	})
}

func TestBusyPartitionsDoNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, map[string]string{"replica.fetch.response.max.bytes": "3000", "replica.fetch.max.bytes": "1000"})
		const partitions = 20
		topic := c.topic("a", partitions, 1, 2)
		c.set(func() { c.cut[2] = true })
		pass(time.Second)
		var left sync.WaitGroup
		for i := range partitions * 20 {
			req := appendRequest(topic, storage.AcksLeader, batch(strings.Repeat("x", 900)))
			req.Partitions[0].Partition = int32(i % partitions)
			left.Add(1)
			c.node(1).Append(req, func(*storage.AppendResult) { left.Done() })
		}
		left.Wait()
		c.set(func() { c.cut[2] = false })
		eventually(t, "the follower has everything", func() bool {
			for _, r := range c.node(2).Replicas() {
				if r.View().LogEnd != 20 {
					return false
				}
			}
			return true
		})
	})
}

func TestCompressionType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		for name, want := range map[string]recordbatch.Compression{
			"producer": recordbatch.None, "uncompressed": recordbatch.None, "gzip": recordbatch.Gzip, "snappy": recordbatch.Snappy,
			"lz4": recordbatch.LZ4, "zstd": recordbatch.Zstd,
		} {
			topic := c.topic(name, 1, 1)
			c.commit(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: name, Name: "compression.type", Value: &name})
			produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(strings.Repeat("x", 1000))))
			r := fetch(t, c.node(1), fetchRequest(topic, 0))
			data, err := r.Records.ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			it := recordbatch.Iterate(data)
			if !it.Next() || it.Header().Compression() != want || !it.CheckCRC() {
				t.Errorf("%s: %+v", name, r)
			}
		}
	})
}

func TestReadCommittedWithoutTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		topic := c.topic("a", 1, 1)
		produce(c.node(1), appendRequest(topic, storage.AcksAll, batch("0")))
		req := fetchRequest(topic, 0)
		req.Isolation = storage.ReadCommitted
		if r := fetch(t, c.node(1), req); r.LastStableOffset != 1 || len(values(t, r)) != 1 || len(r.AbortedTransactions) != 0 {
			t.Fatalf("%+v", r)
		}
	})
}
