//go:build jvm

package jvm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

// quickMembers makes members that were killed leave their groups, and their transactions end, after seconds.
var quickMembers = map[string]string{
	"group.consumer.session.timeout.ms":     "6000",
	"group.consumer.min.session.timeout.ms": "6000",
	"group.consumer.heartbeat.interval.ms":  "500", "group.consumer.min.heartbeat.interval.ms": "500",
	"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}

// TestGroupMigration moves a group of Java consumers, member by member, from the classic protocol to the consumer protocol and
// back, while records come in. Each record must be consumed once: members commit before they leave.
func TestGroupMigration(t *testing.T) {
	k := installTools(t)
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Controllers: 1, Properties: quickMembers})
	makeTopic(t, p.Bootstrap[0], "events", 6, 3, nil)
	bootstrap := strings.Join(p.Bootstrap, ",")
	var all []*program
	join := func(protocol string) *program {
		member := k.start(t, "Clients", "consume", bootstrap, "readers", protocol, "events")
		all = append(all, member)
		member.awaitLine(t, `^record `)
		t.Logf("a %s member has joined", protocol)
		return member
	}
	writer := writeNumbers(t, p.Bootstrap, "events")
	members := []*program{join("classic"), join("classic")}
	for _, protocol := range []string{"consumer", "classic"} {
		for i := range members {
			members[i].stop(t)
			members[i] = join(protocol)
		}
		k.run(t, "", consumerGroupsTool, "--bootstrap-server", bootstrap, "--list", "--type", protocol).ok().says(`(?i)^readers\s+` + protocol)
		k.run(t, "", consumerGroupsTool, "--bootstrap-server", bootstrap, "--describe", "--group", "readers", "--members").ok().counts(2, `^readers\s+\S+\s+/127\.0\.0\.1\s`)
	}
	written := writer.stop(t)
	awaitNoLag(t, p.Bootstrap[0], "readers", "events")
	for _, m := range members {
		m.stop(t)
	}
	seen := map[string]int{}
	for _, m := range all {
		for _, line := range m.output() {
			if value, ok := strings.CutPrefix(line, "record "); ok {
				seen[value]++
			} else if strings.HasPrefix(line, "commit failed") || strings.HasPrefix(line, "lost") {
				t.Errorf("%s: %s", m.name, line)
			}
		}
	}
	if len(seen) != written {
		t.Errorf("%d records were consumed of %d", len(seen), written)
	}
	for value, times := range seen {
		if times != 1 {
			t.Errorf("record %s was consumed %d times", value, times)
		}
	}
	t.Logf("%d records", written)
}

// TestReadProcessWrite copies records from topic to topic with transactions of the Java client, by each version of the protocol of
// transactions, while processes of the cluster and the copying program are killed. Each record must come out once.
func TestReadProcessWrite(t *testing.T) {
	k := installTools(t)
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Controllers: 1, Properties: quickMembers})
	for _, level := range []struct{ version, protocol string }{{"1", "classic"}, {"2", "consumer"}} {
		if !t.Run("transaction.version "+level.version, func(t *testing.T) {
			change := "upgrade"
			if level.version == "1" {
				change = "downgrade"
			}
			k.run(t, "", featureTool, "--bootstrap-server", p.Bootstrap[0], change, "--feature", "transaction.version="+level.version).ok()
			copyWithFaults(t, k, p, level.version, level.protocol)
		}) {
			t.FailNow()
		}
	}
}

func copyWithFaults(t *testing.T, k *tools, p *testkit.Playground, suffix, protocol string) {
	from, to, group := "from-"+suffix, "to-"+suffix, "copiers-"+suffix
	for _, topic := range []string{from, to} {
		makeTopic(t, p.Bootstrap[0], topic, 3, 3, map[string]string{"min.insync.replicas": "2"})
	}
	run := func(id string) *program {
		return k.start(t, "Clients", "transform", strings.Join(p.Bootstrap, ","), group, protocol, from, to, id+suffix)
	}
	writer := writeNumbers(t, p.Bootstrap, from)
	copiers := []*program{run("first-"), run("second-")}
	const commits = 5
	for _, victim := range []string{"storage-1", "coordinator-1", "gateway-1", "coordinator-2", "storage-3"} {
		awaitAny(t, copiers, `^committed `, commits)
		p.Kill(victim)
		if victim == "gateway-1" {
			copiers[0].kill(t)
			copiers[0] = run("first-")
		}
		awaitAny(t, copiers, `^committed `, commits)
		p.Restart(victim)
	}
	written := writer.stop(t)
	awaitNoLag(t, p.Bootstrap[0], group, from)
	for _, c := range copiers {
		c.stop(t)
	}
	seen := map[string]int{}
	for _, r := range readAll(t, p.Bootstrap[0], to, kgo.ReadCommitted()) {
		if !r.Attrs.IsControl() {
			seen[string(r.Value)]++
		}
	}
	for i := range written {
		if n := seen[strconv.Itoa(i)]; n != 1 {
			t.Errorf("record %d came out %d times", i, n)
		}
	}
	if len(seen) != written {
		t.Errorf("%d different records came out of %d", len(seen), written)
	}
	t.Logf("%d records", written)
}

// awaitAny waits until programs together have printed n more lines that match.
func awaitAny(t *testing.T, programs []*program, pattern string, n int) {
	t.Helper()
	count := func() int {
		total := 0
		for _, p := range programs {
			total += p.count(pattern)
		}
		return total
	}
	want := count() + n
	await(t, fmt.Sprintf("%d lines %q", n, pattern), func() bool { return count() >= want })
}

// awaitNoLag waits until a group has committed the ends of a topic's partitions.
func awaitNoLag(t *testing.T, bootstrap, group, topic string) {
	t.Helper()
	client := admin(t, bootstrap)
	var last any
	defer func() {
		if t.Failed() {
			t.Logf("offsets of %s: %v", group, last)
		}
	}()
	await(t, group+" to have read everything", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), stateTime)
		defer cancel()
		ends, err := client.ListCommittedOffsets(ctx, topic)
		offsets, err2 := client.FetchOffsets(ctx, group)
		last = []any{err, err2, ends, offsets}
		if err != nil || err2 != nil || ends.Error() != nil || offsets.Error() != nil {
			return false
		}
		done := true
		ends.Each(func(end kadm.ListedOffset) {
			at, ok := offsets.Lookup(topic, end.Partition)
			done = done && (end.Offset == 0 || ok && at.At == end.Offset)
		})
		return done
	})
}

// numberWriter writes 0, 1, 2, ... to a topic until it is told to stop.
type numberWriter struct {
	quit  chan struct{}
	done  chan error
	count int
}

// numbersPerTick records are written each numberInterval.
const (
	numbersPerTick = 10
	numberInterval = 50 * time.Millisecond
)

func writeNumbers(t *testing.T, bootstrap []string, topic string) *numberWriter {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	w := &numberWriter{quit: make(chan struct{}), done: make(chan error, 1)}
	ctx := t.Context()
	go func() {
		defer client.Close()
		w.done <- w.write(ctx, client)
	}()
	return w
}

func (w *numberWriter) write(ctx context.Context, client *kgo.Client) error {
	tick := time.NewTicker(numberInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var records []*kgo.Record
		for range numbersPerTick {
			records = append(records, &kgo.Record{Value: strconv.AppendInt(nil, int64(w.count), 10)})
			w.count++
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
	}
}

// stop returns how many records were written.
func (w *numberWriter) stop(t *testing.T) int {
	t.Helper()
	close(w.quit)
	if err := <-w.done; err != nil {
		t.Fatalf("write: %v", err)
	}
	return w.count
}

// readAll reads a topic to its end, each partition in order, the control records too.
func readAll(t *testing.T, bootstrap, topic string, level kgo.IsolationLevel) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topic)
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %s, ends not reached %v: %v", topic, left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			records = append(records, r)
		})
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int { return int(a.Partition - b.Partition) })
	return records
}
