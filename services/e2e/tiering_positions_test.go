package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

// tierTimes are what the times of the records of oneEach are counted from: a while ago, so that a local retention of a second has
// passed for each.
const tierTimes = 20 * time.Minute

// oneEach writes one record for each of the times, so large that each has a segment of its own.
func oneEach(t *testing.T, bootstrap []string, topic string, base time.Time, seconds ...int) {
	t.Helper()
	cl := newClient(t, bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for _, s := range seconds {
		r := &kgo.Record{Topic: topic, Value: make([]byte, 700<<10), Timestamp: base.Add(time.Duration(s) * time.Second)}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTieredPositions goes through the life of a tiered topic and compares each answer of ListOffsets with what Apache Kafka 4.4
// gave for the same steps.
func TestTieredPositions(t *testing.T) {
	properties := map[string]string{"log.retention.check.interval.ms": "200"}
	for k, v := range tieringOn {
		properties[k] = v
	}
	a := testkit.StartAll(t, testkit.AllOptions{Properties: properties})
	b := []string{a.Bootstrap}
	const topic = "positions"
	tieredTopic(t, b, topic, 1, 1, map[string]*string{"local.retention.ms": set("1000000000"), "retention.ms": set("-1")})
	base := time.Now().Add(-tierTimes).Truncate(time.Second)
	cl, adm := newClient(t, b), admin(t, b)
	answers := func(ctx context.Context, at ...int64) string {
		var out []string
		for _, x := range at {
			offset, err := tryOffsetAt(ctx, cl, topic, 0, x)
			if err != nil {
				return err.Error()
			}
			out = append(out, fmt.Sprint(offset))
		}
		return fmt.Sprint(out)
	}
	// expect wants the latest, the earliest, that of the largest time, the earliest local, the last tiered and the first pending
	// offset, and those for some seconds behind base.
	expect := func(when, positions, times string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		await(ctx, t, fmt.Sprintf("%s: positions %s", when, positions), func() (bool, error) {
			got := answers(ctx, -1, -2, -3, -4, -5, -6)
			return got == positions, fmt.Errorf("they are %s", got)
		})
		var seconds []int64
		for _, s := range []int{-1, 0, 1, 3, 5, 9, 40, 51} {
			seconds = append(seconds, base.Add(time.Duration(s)*time.Second).UnixMilli())
		}
		if got := answers(ctx, seconds...); got != times {
			t.Fatalf("%s: times %s, want %s", when, got, times)
		}
	}
	alter := func(pairs ...string) {
		t.Helper()
		var configs []kadm.AlterConfig
		for i := 0; i < len(pairs); i += 2 {
			configs = append(configs, kadm.AlterConfig{Name: pairs[i], Value: &pairs[i+1]})
		}
		if r, err := adm.AlterTopicConfigs(t.Context(), configs, topic); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
	}
	deleteUpTo := func(offset int64) {
		t.Helper()
		var to kadm.Offsets
		to.AddOffset(topic, 0, offset, -1)
		if r, err := adm.DeleteRecords(t.Context(), to); err != nil || r.Error() != nil {
			t.Fatal(err, r.Error())
		}
	}
	const none = "[-1 -1 -1 -1 -1 -1 -1 -1]"
	expect("empty", "[0 0 -1 0 -1 -1]", none)
	// The largest time is not the last one, and comes to the remote tier.
	oneEach(t, b, topic, base, 0, 1, 2, 3, 50, 5, 6, 7, 8, 9)
	expect("all is local", "[10 0 4 0 8 9]", "[0 0 1 3 4 4 4 -1]")
	alter("local.retention.ms", "1000")
	expect("all is remote", "[10 0 -1 10 9 -1]", "[0 0 1 3 4 4 4 -1]")
	deleteUpTo(3)
	expect("deleted in the remote part", "[10 3 -1 10 9 -1]", "[3 3 3 3 4 4 4 -1]")
	alter("local.retention.ms", "-2", "remote.log.copy.disable", "true")
	oneEach(t, b, topic, base, 10, 11)
	expect("copying is off", "[12 3 11 10 9 10]", "[3 3 3 3 4 4 4 -1]")
	deleteUpTo(9)
	expect("deleted behind the largest time", "[12 9 11 10 9 10]", "[9 9 9 9 9 9 -1 -1]")
	alter("remote.log.copy.disable", "false")
	expect("copying is on", "[12 9 11 10 10 11]", "[9 9 9 9 9 9 -1 -1]")
	deleteUpTo(12)
	expect("all is deleted", "[12 12 11 12 10 -1]", none)
	oneEach(t, b, topic, base, 12, 13, 14)
	expect("and it goes on", "[15 12 14 12 13 14]", "[12 12 12 12 12 12 -1 -1]")
	alter("local.retention.ms", "1000")
	expect("all is remote again", "[15 12 -1 15 14 -1]", "[12 12 12 12 12 12 -1 -1]")
	alter("remote.storage.enable", "false", "remote.log.delete.on.disable", "true")
	expect("the tier is off", "[15 15 -1 15 -1 -1]", none)
	alter("remote.storage.enable", "true")
	oneEach(t, b, topic, base, 15, 16)
	expect("the tier is on again", "[17 15 -1 17 16 -1]", "[15 15 15 15 15 15 -1 -1]")
}

// TestTieredTransactions reads committed records over both tiers: from transactions that are remote as a whole, whose marker is
// local, and while an open one holds copying back.
func TestTieredTransactions(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{Properties: tieringOn})
	b := []string{a.Bootstrap}
	const topic = "transactions"
	tieredTopic(t, b, topic, 1, 1, nil)
	base := time.Now().Add(-tierTimes)
	begin := func(id string, records int) *kgo.Client {
		t.Helper()
		cl := newClient(t, b, kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for range records {
			r := &kgo.Record{Topic: topic, Key: []byte(id), Value: make([]byte, 700<<10), Timestamp: base}
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		return cl
	}
	end := func(cl *kgo.Client, commit kgo.TransactionEndTry) {
		t.Helper()
		if err := cl.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
	// committed reads the offsets of a read_committed consumer up to an end.
	committed := func(to int64) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cl := newClient(t, b, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
			kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}))
		defer cl.Close()
		var out []int64
		for at := int64(0); at < to; {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatalf("at offset %d: %v", at, err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				at = r.Offset + 1
				if !r.Attrs.IsControl() {
					out = append(out, r.Offset)
				}
			})
		}
		return fmt.Sprint(out)
	}
	end(begin("a", 2), kgo.TryCommit) // 0, 1, and its marker
	end(begin("b", 2), kgo.TryAbort)  // 3, 4
	end(begin("c", 1), kgo.TryAbort)  // 6
	end(begin("d", 2), kgo.TryCommit) // 8, 9
	open := begin("e", 3)             // 11, 12, 13
	awaitOffset(t, b, topic, 0, latestTiered, 9)
	if got := committed(11); got != "[0 1 8 9]" {
		t.Fatalf("before the last one ends: %s", got)
	}
	if tiered := offsetAt(t, b, topic, 0, latestTiered); tiered > 10 {
		t.Fatalf("%d is remote, but what comes from 11 on is not decided", tiered)
	}
	end(open, kgo.TryAbort)
	end(begin("f", 1), kgo.TryCommit) // 15
	awaitOffset(t, b, topic, 0, latestTiered, 14)
	if got := committed(16); got != "[0 1 8 9 15]" {
		t.Fatalf("afterwards: %s", got)
	}
}
