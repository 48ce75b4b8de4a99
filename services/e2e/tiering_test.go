package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

// tieringOn switches tiered storage on, with passes that come quickly.
var tieringOn = map[string]string{
	"remote.log.storage.system.enable":                     "true",
	"remote.log.manager.task.interval.ms":                  "200",
	"rlmm.config.remote.log.metadata.topic.num.partitions": "8",
	"rlmm.config.remote.log.metadata.topic.min.isr":        "1",
	"log.flush.start.offset.checkpoint.interval.ms":        "1000",
	"remote.log.manager.task.retry.backoff.max.ms":         "500",
	"rlmm.config.remote.log.metadata.topic.retention.ms":   "-1",
}

func set(value string) *string { return &value }

// tieredTopic makes a topic whose closed segments of 1 MiB leave the storage nodes as soon as they are remote.
func tieredTopic(t *testing.T, bootstrap []string, name string, partitions int32, replicas int16, more map[string]*string) {
	t.Helper()
	configs := map[string]*string{
		"remote.storage.enable": set("true"), "local.retention.ms": set("1000"), "segment.bytes": set("1048576"), "file.delete.delay.ms": set("1000"),
	}
	for k, v := range more {
		configs[k] = v
	}
	createTopics(t.Context(), t, admin(t, bootstrap), partitions, replicas, configs, name)
}

// tieredValue is the value of the record at an offset: 1 KiB.
func tieredValue(offset int64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%015d|", offset), 64)
}

// fill writes records in batches of 50, so that offsets and values go together.
func fill(t *testing.T, bootstrap []string, topic string, partition int32, from, to int64) {
	t.Helper()
	cl := newClient(t, bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for at := from; at < to; {
		var records []*kgo.Record
		for ; at < to && len(records) < 50; at++ {
			records = append(records, &kgo.Record{Topic: topic, Partition: partition, Value: tieredValue(at)})
		}
		if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if last := records[len(records)-1]; last.Offset != at-1 {
			t.Fatalf("record %d is at offset %d", at-1, last.Offset)
		}
	}
}

// The special positions of ListOffsets.
const (
	latest          = -1
	earliest        = -2
	earliestLocal   = -4
	latestTiered    = -5
	earliestPending = -6
)

// offsetAt asks for a special position, or a time.
func offsetAt(t *testing.T, bootstrap []string, topic string, partition int32, at int64) int64 {
	t.Helper()
	offset, err := tryOffsetAt(t.Context(), newClient(t, bootstrap), topic, partition, at)
	if err != nil {
		t.Fatalf("offset at %d of %s-%d: %v", at, topic, partition, err)
	}
	return offset
}

func tryOffsetAt(ctx context.Context, cl *kgo.Client, topic string, partition int32, at int64) (int64, error) {
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp = partition, -1, at
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{rp}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.Topics = -1, []kmsg.ListOffsetsRequestTopic{rt}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	p := resp.Topics[0].Partitions[0]
	return p.Offset, kerr.ErrorForCode(p.ErrorCode)
}

// awaitOffset waits until a special position is at least at an offset.
func awaitOffset(t *testing.T, bootstrap []string, topic string, partition int32, at, least int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cl := newClient(t, bootstrap)
	await(ctx, t, fmt.Sprintf("position %d of %s-%d to be %d", at, topic, partition, least), func() (bool, error) {
		offset, err := tryOffsetAt(ctx, cl, topic, partition, at)
		return offset >= least && err == nil, err
	})
}

// readFrom reads the records from one offset up to another and compares each byte.
func readFrom(t *testing.T, bootstrap []string, topic string, partition int32, from, to int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cl := newClient(t, bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}))
	defer cl.Close()
	for at := from; at < to; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("at offset %d: %v", at, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != at || !bytes.Equal(r.Value, tieredValue(at)) {
				t.Fatalf("offset %d: got offset %d, value %.20q", at, r.Offset, r.Value)
			}
			at++
		})
	}
}

// remoteDir is the store of a process that has nothing else configured.
func remoteDir(a *testkit.All) string { return filepath.Join(a.Dir(), "remote") }

// remoteObjects are the segments in a store, as the directory in which it has its files shows them.
func remoteObjects(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".log") || strings.HasSuffix(path, ".seg")) {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTieredTopic is the life of a tiered topic in one process: segments become remote, leave the disk, are read back byte for
// byte and by time, expire, and are gone with the topic.
func TestTieredTopic(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{Properties: tieringOn})
	b := []string{a.Bootstrap}
	const topic = "tiered.topic_1"
	tieredTopic(t, b, topic, 1, 1, nil)
	began := time.Now().UnixMilli()
	fill(t, b, topic, 0, 0, 1600)
	middle := time.Now().UnixMilli()
	fill(t, b, topic, 0, 1600, 3200)
	awaitOffset(t, b, topic, 0, latestTiered, 2900)
	awaitOffset(t, b, topic, 0, earliestLocal, 2900)
	if start := offsetAt(t, b, topic, 0, earliest); start != 0 {
		t.Fatalf("the log begins at %d", start)
	}
	if pending, tiered := offsetAt(t, b, topic, 0, earliestPending), offsetAt(t, b, topic, 0, latestTiered); pending != tiered+1 {
		t.Fatalf("%d is remote, the next is %d", tiered, pending)
	}
	if n := len(remoteObjects(t, remoteDir(a))); n < 3 {
		t.Fatalf("%d objects", n)
	}
	for at, want := range map[int64]int64{0: 0, began: 0, time.Now().UnixMilli() + 1000: -1} {
		if got := offsetAt(t, b, topic, 0, at); got != want {
			t.Errorf("offset at %d: %d, want %d", at, got, want)
		}
	}
	// A few of the second half may have been written in the same millisecond as the last of the first.
	if got := offsetAt(t, b, topic, 0, middle+1); got < 1600 || got > 2200 {
		t.Errorf("offset at the middle: %d", got)
	}
	readFrom(t, b, topic, 0, 0, 3200)
	readFrom(t, b, topic, 0, 1234, 3200)

	// After a restart everything is as it was.
	a.Stop()
	a.Start()
	awaitOffset(t, b, topic, 0, latestTiered, 2900)
	if start, local := offsetAt(t, b, topic, 0, earliest), offsetAt(t, b, topic, 0, earliestLocal); start != 0 || local < 2900 {
		t.Fatalf("the log begins at %d, locally at %d", start, local)
	}
	readFrom(t, b, topic, 0, 0, 3200)

	// Records are deleted in the remote part, and with them the segments before.
	adm := admin(t, b)
	var to kadm.Offsets
	to.AddOffset(topic, 0, 1100, -1)
	if _, err := adm.DeleteRecords(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if start := offsetAt(t, b, topic, 0, earliest); start != 1100 {
		t.Fatalf("the log begins at %d", start)
	}
	readFrom(t, b, topic, 0, 1100, 3200)
	awaitNoObjects(t, remoteDir(a), "/00000000000000000000.")

	// Retention is over both tiers.
	if _, err := adm.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "retention.ms", Value: set("2000")}, {Name: "local.retention.ms", Value: set("1000")}}, topic); err != nil {
		t.Fatal(err)
	}
	awaitOffset(t, b, topic, 0, earliest, 3000)

	// Nothing is left of a topic that is gone.
	fill(t, b, topic, 0, 3200, 6400)
	if _, err := adm.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	awaitNoObjects(t, remoteDir(a), "/")
}

// awaitNoObjects waits until the store has no object with a text in its path.
func awaitNoObjects(t *testing.T, dir, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	await(ctx, t, "objects to go", func() (bool, error) {
		left := slices.DeleteFunc(remoteObjects(t, dir), func(path string) bool { return !strings.Contains(path, text) })
		return len(left) == 0, fmt.Errorf("there are %v", left)
	})
}

// TestTieringCheck lets the store and the metadata differ, and has fsck find it and repair it.
func TestTieringCheck(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{Properties: tieringOn})
	b := []string{a.Bootstrap}
	const topic = "checked"
	tieredTopic(t, b, topic, 1, 1, map[string]*string{"local.retention.ms": set("-2")})
	fill(t, b, topic, 0, 0, 3200)
	awaitOffset(t, b, topic, 0, latestTiered, 2900)
	fsck := func(fails bool, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), testkit.Binary(t), append([]string{"tiering", "fsck", "--admin", a.Admin}, args...)...).CombinedOutput()
		if (err != nil) != fails {
			t.Fatalf("fsck %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if out := fsck(false); !strings.Contains(out, "8 shards, 3 segments, 3 objects, 0 differences") {
		t.Fatal(out)
	}
	objects := remoteObjects(t, remoteDir(a))
	slices.Sort(objects)
	// Somebody has copied an object under another segment's id, and lost another one. The finish of a copy must be a while ago
	// before its object is missed.
	orphan := strings.TrimSuffix(objects[0], ".log")
	orphan = orphan[:len(orphan)-4] + "AAAA"
	for _, suffix := range []string{".log", ".indexes"} {
		data, err := os.ReadFile(strings.TrimSuffix(objects[0], ".log") + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(orphan+suffix, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out := fsck(true); !strings.Contains(out, "orphan  left") {
		t.Fatal(out)
	}
	if out := fsck(true, "--repair"); !strings.Contains(out, "orphan  left") { // it is too young
		t.Fatal(out)
	}
	if out := fsck(false, "--repair", "--older-than", "0s"); !strings.Contains(out, "orphan  repaired") {
		t.Fatal(out)
	}
	if got := remoteObjects(t, remoteDir(a)); len(got) != 3 {
		t.Fatal(got)
	}
	out, err := exec.CommandContext(t.Context(), testkit.Binary(t), "tiering", "status", "--admin", a.Admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "checked  0          3") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestManyColdPartitions has many more partitions than there are places for passes: each becomes remote, and one consumer reads all of
// them, several with one fetch.
func TestManyColdPartitions(t *testing.T) {
	properties := map[string]string{"remote.log.manager.copier.thread.pool.size": "2", "remote.log.reader.threads": "4"}
	for k, v := range tieringOn {
		properties[k] = v
	}
	a := testkit.StartAll(t, testkit.AllOptions{Properties: properties})
	b := []string{a.Bootstrap}
	const topic, partitions, records = "many", 24, 1100
	tieredTopic(t, b, topic, partitions, 1, nil)
	offsets := map[int32]kgo.Offset{}
	for p := range int32(partitions) {
		fill(t, b, topic, p, 0, records)
		offsets[p] = kgo.NewOffset().At(0)
	}
	for p := range int32(partitions) {
		awaitOffset(t, b, topic, p, earliestLocal, 1000)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cl := newClient(t, b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	next := make([]int64, partitions)
	for left := partitions * records; left > 0; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d records are left: %v", left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next[r.Partition] || !bytes.Equal(r.Value, tieredValue(r.Offset)) {
				t.Fatalf("partition %d: offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
			}
			next[r.Partition]++
			left--
		})
	}
}
