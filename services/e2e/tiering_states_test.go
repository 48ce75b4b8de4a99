package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

// readValues reads a partition from an offset on until it has as many records as wanted, whatever errors come in between, and
// compares the values.
func readValues(t *testing.T, bootstrap []string, topic string, from int64, want [][]byte, opts ...kgo.Opt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	opts = append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}}), kgo.KeepRetryableFetchErrors())
	cl := newClient(t, bootstrap, opts...)
	defer cl.Close()
	for i := 0; i < len(want); {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("record %d of %d has not come: %v", i, len(want), fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if i >= len(want) || !bytes.Equal(r.Value, want[i]) {
				t.Fatalf("record %d: offset %d has %.20q", i, r.Offset, r.Value)
			}
			i++
		})
	}
}

// TestTieredStates brings tiered topics of one process into states that are rare.
func TestTieredStates(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{Properties: tieringOn})
	b := []string{a.Bootstrap}
	t.Run("one large batch in each segment", func(t *testing.T) { largeBatches(t, b) })
	t.Run("transactions over the border", func(t *testing.T) { transactionsOverTheBorder(t, b) })
	t.Run("a damaged object is put right", func(t *testing.T) { damagedObject(t, a) })
	t.Run("tiered anew", func(t *testing.T) { tieredAnew(t, a) })
}

func largeBatches(t *testing.T, b []string) {
	const topic, size = "large-batches", 6 << 20
	tieredTopic(t, b, topic, 1, 1, map[string]*string{"segment.bytes": set("7340032"), "max.message.bytes": set("7000000"), "message.timestamp.type": set("CreateTime")})
	random := rand.NewChaCha8([32]byte{1})
	cl := newClient(t, b, kgo.ProducerBatchMaxBytes(7_000_000), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var want [][]byte
	for i := range 6 {
		value := make([]byte, size)
		_, _ = random.Read(value)
		want = append(want, value)
		// Times are out of order, and some of the past and the future.
		at := time.Now().Add(time.Duration(i%3-1) * 30 * time.Minute)
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: value, Timestamp: at}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	awaitOffset(t, b, topic, 0, latestTiered, 4)
	readValues(t, b, topic, 0, want)
	readValues(t, b, topic, 3, want[3:], kgo.FetchMaxBytes(1000), kgo.FetchMaxPartitionBytes(100))
}

func transactionsOverTheBorder(t *testing.T, b []string) {
	const topic = "transactions-over-the-border"
	tieredTopic(t, b, topic, 1, 1, nil)
	manual := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression())}
	plain := newClient(t, b, manual...)
	var committed [][]byte
	seq := int64(0)
	// write writes a segment's worth beside the transactions.
	write := func(n int) {
		t.Helper()
		for range n {
			var records []*kgo.Record
			for range 50 {
				records = append(records, &kgo.Record{Topic: topic, Value: tieredValue(seq)})
				committed = append(committed, tieredValue(seq))
				seq++
			}
			if err := plain.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for round := range 4 {
		txn := newClient(t, b, append(manual, kgo.TransactionalID(fmt.Sprint("over-", round)))...)
		if err := txn.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		commit := round%2 == 1
		value := fmt.Appendf(nil, "transaction %d", round)
		for range 3 {
			if err := txn.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: value}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if commit {
				committed = append(committed, value)
			}
			write(15) // the transaction is longer than a segment
		}
		if err := txn.EndTransaction(t.Context(), kgo.TransactionEndTry(commit)); err != nil {
			t.Fatal(err)
		}
		write(2)
		if round < 3 {
			awaitOffset(t, b, topic, 0, earliestLocal, int64(len(committed))-1500)
		}
		readValues(t, b, topic, 0, committed, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	write(25)
	awaitOffset(t, b, topic, 0, earliestLocal, int64(len(committed))-1200)
	readValues(t, b, topic, 0, committed, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}

// damagedObject spoils a segment in the store, and puts it right again. What is wrong is never given, other partitions go on, and
// reading goes on where it was.
func damagedObject(t *testing.T, a *testkit.All) {
	b := []string{a.Bootstrap}
	const topic = "damaged"
	before := remoteObjects(t, remoteDir(a))
	tieredTopic(t, b, topic, 1, 1, nil)
	fill(t, b, topic, 0, 0, 5000)
	awaitOffset(t, b, topic, 0, earliestLocal, 4000)
	objects := slices.DeleteFunc(remoteObjects(t, remoteDir(a)), func(o string) bool { return slices.Contains(before, o) })
	slices.Sort(objects)
	if len(objects) < 4 {
		t.Fatal(objects)
	}
	good := map[string][]byte{}
	for _, o := range objects {
		data, err := os.ReadFile(o)
		if err != nil {
			t.Fatal(err)
		}
		good[o] = data
	}
	write := func(o string, data []byte) {
		t.Helper()
		if err := os.WriteFile(o, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	flipped := slices.Clone(good[objects[1]])
	flipped[len(flipped)/2] ^= 4
	write(objects[1], flipped)
	write(objects[2], good[objects[2]][:300_000])
	if err := os.Rename(objects[3], objects[3]+".away"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cl := newClient(t, b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}), kgo.KeepRetryableFetchErrors())
	next, healed := int64(0), 0
	for next < 5000 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("nothing came at offset %d: %v", next, fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next || !bytes.Equal(r.Value, tieredValue(next)) {
				t.Fatalf("offset %d: %d with %.20q", next, r.Offset, r.Value)
			}
			next++
		})
		if fetches.Err() != nil && healed < 3 {
			healed++
			if o := objects[healed]; healed == 3 {
				if err := os.Rename(o+".away", o); err != nil {
					t.Fatal(err)
				}
			} else {
				write(o, good[o])
			}
		}
	}
	if healed != 3 {
		t.Errorf("%d of three damages were noticed", healed)
	}
}

// tieredAnew takes a topic out of the remote tier, with what was there, and tiers it again.
func tieredAnew(t *testing.T, a *testkit.All) {
	b := []string{a.Bootstrap}
	const topic = "tiered-anew"
	tieredTopic(t, b, topic, 1, 1, map[string]*string{"local.retention.ms": set("-2")})
	fill(t, b, topic, 0, 0, 5000)
	awaitOffset(t, b, topic, 0, latestTiered, 3900)
	adm := admin(t, b)
	id := tieredTopicID(t, adm, topic)
	alter := func(configs ...kadm.AlterConfig) {
		t.Helper()
		if got, err := adm.AlterTopicConfigs(t.Context(), configs, topic); err != nil || got[0].Err != nil {
			t.Fatal(err, got)
		}
	}
	for range 3 {
		alter(kadm.AlterConfig{Name: "remote.storage.enable", Value: set("false")}, kadm.AlterConfig{Name: "remote.log.delete.on.disable", Value: set("true")})
		alter(kadm.AlterConfig{Name: "remote.storage.enable", Value: set("true")}, kadm.AlterConfig{Name: "local.retention.ms", Value: set("1000")})
	}
	awaitOffset(t, b, topic, 0, earliestLocal, 4000)
	readFrom(t, b, topic, 0, 0, 5000)
	if at := offsetAt(t, b, topic, 0, earliest); at != 0 {
		t.Fatalf("the log begins at %d", at)
	}
	alter(kadm.AlterConfig{Name: "remote.storage.enable", Value: set("false")}, kadm.AlterConfig{Name: "remote.log.delete.on.disable", Value: set("true")})
	awaitNoObjects(t, remoteDir(a), id)
}

func tieredTopicID(t *testing.T, adm *kadm.Client, topic string) string {
	t.Helper()
	topics, err := adm.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return topics[topic].ID.String()
}

// TestTierOfALostHistory elects a leader that has missed what others have written and made remote. What is read is the leader's
// history alone, from the first record on; what was remote of the lost one is not read, and what both have in common is.
func TestTierOfALostHistory(t *testing.T) {
	properties := map[string]string{}
	for _, layer := range []map[string]string{tieringOn, quickFencing, {"remote.log.storage.manager.class.name": "dir", "rsm.config.dir.path": filepath.Join(t.TempDir(), "store")}} {
		maps.Copy(properties, layer)
	}
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Gateways: 1, Storage: 3, Controllers: 1, Coordinators: 1, Tiering: 1, Properties: properties})
	b := p.Bootstrap
	const topic = "lost-history"
	adm := admin(t, b)
	configs := map[string]*string{
		"remote.storage.enable": set("true"), "local.retention.ms": set("1000"), "segment.bytes": set("1048576"), "file.delete.delay.ms": set("1000"),
		"unclean.leader.election.enable": set("true"), "min.insync.replicas": set("1"),
	}
	createTopics(t.Context(), t, adm, 1, 2, configs, topic)
	leader, replicas := leaderOf(t, adm, topic)
	follower := replicas[0]
	if follower == leader {
		follower = replicas[1]
	}
	name := func(id int32) string { return fmt.Sprintf("storage-%d", id) }
	fill(t, b, topic, 0, 0, 2500)
	awaitOffset(t, b, topic, 0, earliestLocal, 1000)
	p.Kill(name(follower))
	fill(t, b, topic, 0, 2500, 6000)
	awaitOffset(t, b, topic, 0, latestTiered, 5000)
	p.Kill(name(leader))
	p.Restart(name(follower))
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	await(ctx, t, "the other replica to lead", func() (bool, error) {
		now, _ := leaderOf(t, adm, topic)
		return now == follower, nil
	})
	end := offsetAt(t, b, topic, 0, latest)
	var want [][]byte
	for at := range end {
		want = append(want, tieredValue(at))
	}
	if end < 2500 || end >= 6000 {
		t.Fatalf("the log of the new leader ends at %d", end)
	}
	readValues(t, b, topic, 0, want)
	cl := newClient(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for at := end; at < end+4000; {
		var records []*kgo.Record
		for range 50 {
			value := bytes.Repeat(fmt.Appendf(nil, "new%012d|", at), 64)
			want = append(want, value)
			records = append(records, &kgo.Record{Topic: topic, Value: value})
			at++
		}
		if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	readValues(t, b, topic, 0, want)
	awaitOffset(t, b, topic, 0, earliestLocal, end+2500)
	readValues(t, b, topic, 0, want)
	p.Restart(name(leader))
	readValues(t, b, topic, 0, want)
	checkStore(t, p)
}

func leaderOf(t *testing.T, adm *kadm.Client, topic string) (leader int32, replicas []int32) {
	t.Helper()
	topics, err := adm.ListTopics(t.Context(), topic)
	if err != nil || len(topics[topic].Partitions) != 1 {
		t.Fatal(err, topics)
	}
	one := topics[topic].Partitions[0]
	return one.Leader, one.Replicas
}

// TestTierBehindWipedDisks has each storage node in turn lose its disk while most of the log is remote alone, has the node lead
// then, and stops an instance of tiering for longer than its session. Nothing is lost, nor deleted by who owns nothing any more.
func TestTierBehindWipedDisks(t *testing.T) {
	properties := map[string]string{}
	for _, layer := range []map[string]string{tieringOn, quickFencing, {"remote.log.storage.manager.class.name": "dir", "rsm.config.dir.path": filepath.Join(t.TempDir(), "store")}} {
		maps.Copy(properties, layer)
	}
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Gateways: 1, Storage: 3, Controllers: 1, Coordinators: 1, Tiering: 2, Properties: properties})
	b := p.Bootstrap
	const topic = "behind-wiped-disks"
	adm := admin(t, b)
	tieredTopic(t, b, topic, 1, 3, map[string]*string{"min.insync.replicas": set("1"), "file.delete.delay.ms": set("1000")})
	end := int64(0)
	for round := range min(3, roundsOfFaults(t)) {
		fill(t, b, topic, 0, end, end+3000)
		end += 3000
		awaitOffset(t, b, topic, 0, earliestLocal, end-900)
		paused := fmt.Sprintf("tiering-%d", round%2+1)
		p.Pause(paused)
		leader, _ := leaderOf(t, adm, topic)
		wiped := leader%3 + 1
		name := fmt.Sprintf("storage-%d", wiped)
		p.Kill(name)
		if err := os.RemoveAll(filepath.Join(p.Dir(), name, "data")); err != nil {
			t.Fatal(err)
		}
		p.Restart(name)
		awaitInSync(t, adm, topic)
		fill(t, b, topic, 0, end, end+2000)
		end += 2000
		awaitOffset(t, b, topic, 0, earliestLocal, end-1500) // the other instance copies
		p.Resume(paused)
		// The only one that is left is the one that was wiped.
		for id := range int32(3) {
			if id+1 != wiped {
				p.Kill(fmt.Sprintf("storage-%d", id+1))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		await(ctx, t, "the wiped node to lead", func() (bool, error) {
			now, _ := leaderOf(t, adm, topic)
			return now == wiped, nil
		})
		cancel()
		for id := range int32(3) {
			if id+1 != wiped {
				p.Restart(fmt.Sprintf("storage-%d", id+1))
			}
		}
		readFrom(t, b, topic, 0, 0, end)
		awaitInSync(t, adm, topic)
		t.Logf("round %d: node %d was wiped and leads, the log begins at %d, locally at %d, ends at %d", round, wiped,
			offsetAt(t, b, topic, 0, earliest), offsetAt(t, b, topic, 0, earliestLocal), end)
	}
	checkStore(t, p)
}
