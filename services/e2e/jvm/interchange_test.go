//go:build jvm

package jvm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

// The topics that go from one program to the other. Those that begin with "kafka-" are written by Apache Kafka, the others here.
var interchanged = map[string]map[string]string{
	"plain":            {"segment.bytes": "1048576", "index.interval.bytes": "200"},
	"stamped":          {"message.timestamp.type": "LogAppendTime"},
	"compacted":        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", "index.interval.bytes": "200"},
	"transacted":       {"segment.ms": "500"},
	"kafka-plain":      {"segment.bytes": "1048576", "index.interval.bytes": "200"},
	"kafka-compacted":  {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500", "index.interval.bytes": "200"},
	"kafka-transacted": {"segment.ms": "500"},
}

// cleanStop is the mark of a clean stop in a log directory. Without it all batches are checked and all indexes made anew.
const cleanStop = ".kafka_cleanshutdown"

// TestInterchange lets Apache Kafka open, recover, serve and continue the log directory of this broker, and this broker that of
// Apache Kafka.
func TestInterchange(t *testing.T) {
	k := installTools(t)
	here := testkit.StartAll(t, testkit.AllOptions{Properties: map[string]string{
		"log.cleaner.backoff.ms": "100", "remote.log.storage.system.enable": "true", "remote.log.manager.task.interval.ms": "200",
		"rlmm.config.remote.log.metadata.topic.num.partitions": "2", "rlmm.config.remote.log.metadata.topic.min.isr": "1",
	}})
	ours := findLogDirs(t, here.Dir())[0]
	there := newKafka(t, k)
	in := &interchange{ours: ours, theirs: there.logDir}
	steps := []struct {
		name string
		run  func(*testing.T)
	}{
		{"written here", func(t *testing.T) {
			createInterchanged(t, here.Bootstrap)
			in.fill(t, here.Bootstrap, ours, written(here))
			useGroupAndTier(t, here.Bootstrap)
			here.Stop()
			dumpInterchanged(t, k, ours)
			dumpInternal(t, k, findLogDirs(t, here.Dir()))
		}},
		{"written by Kafka", func(t *testing.T) {
			there.start(t)
			createInterchanged(t, there.bootstrap)
			spendProducerIDs(t, there.bootstrap)
			in.fill(t, there.bootstrap, there.logDir, written(nil))
			there.stop(t)
		}},
		{"opened by Kafka", func(t *testing.T) {
			in.move(t, ours, there.logDir, written(here))
			there.start(t)
			in.compare(t, there.bootstrap, there.logDir)
			in.more(t, there.bootstrap)
			there.stop(t)
		}},
		{"opened here", func(t *testing.T) {
			in.move(t, there.logDir, ours, slices.Concat(written(here), written(nil)))
			here.Start()
			awaitLeaders(t, here.Bootstrap)
			in.compare(t, here.Bootstrap, ours)
			in.more(t, here.Bootstrap)
			here.Stop()
			dumpInterchanged(t, k, ours)
		}},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.run) {
			t.FailNow()
		}
	}
}

// written are the topics that are written first here, or by Kafka for nil.
func written(here *testkit.All) []string {
	var topics []string
	for topic := range interchanged {
		if strings.HasPrefix(topic, "kafka-") == (here == nil) {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics
}

// interchange is what the topics are known to hold.
type interchange struct {
	ours, theirs string
	topics       []string
	records      map[string]string
	bytes        map[string][]byte
}

func createInterchanged(t *testing.T, bootstrap string) {
	t.Helper()
	for topic, configs := range interchanged {
		makeTopic(t, bootstrap, topic, 1, 1, configs)
	}
}

// fill writes batches of all codecs, with tombstones and transactions, and waits until the cleaner has been there.
func (in *interchange) fill(t *testing.T, bootstrap, logDir string, topics []string) {
	t.Helper()
	// Batches are a second apart, which is more than segment.ms, so that each begins a segment.
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for _, topic := range topics {
		for i, codec := range []kgo.CompressionCodec{
			kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
		} {
			at = at.Add(time.Second)
			var records []*kgo.Record
			for j := range 40 {
				r := &kgo.Record{Topic: topic, Timestamp: at, Key: fmt.Appendf(nil, "key-%d", j%11), Value: fmt.Appendf(nil, "value %d, of which there is more and more and more", j)}
				if j%9 == i {
					r.Value = nil
				}
				records = append(records, r)
			}
			if strings.HasSuffix(topic, "transacted") {
				produceTransaction(t, bootstrap, "writer-of-"+topic, i%2 == 0, records)
			} else {
				produceAll(t, bootstrap, records, kgo.ProducerBatchCompression(codec))
			}
		}
		if strings.HasSuffix(topic, "compacted") {
			cleaned := regexp.MustCompile(`(?m)^` + topic + ` 0 [1-9]`)
			await(t, "the cleaner to come to "+topic, func() bool {
				data, err := os.ReadFile(filepath.Join(logDir, "cleaner-offset-checkpoint"))
				return err == nil && cleaned.Match(data)
			})
		}
	}
	in.topics = append(in.topics, topics...)
	in.remember(t, bootstrap, logDir)
}

// more goes on writing where the other program has stopped.
func (in *interchange) more(t *testing.T, bootstrap string) {
	t.Helper()
	for _, topic := range in.topics {
		record := func() []*kgo.Record {
			return []*kgo.Record{{Topic: topic, Key: []byte("more"), Value: []byte("after the move")}}
		}
		if strings.HasSuffix(topic, "transacted") {
			produceTransaction(t, bootstrap, "writer-of-"+topic, false, record())
			produceTransaction(t, bootstrap, "writer-of-"+topic, true, record())
			continue
		}
		produceAll(t, bootstrap, record(), kgo.DisableIdempotentWrite()) // for the reason that spendProducerIDs tells
	}
	in.records = readTopics(t, bootstrap, in.topics)
}

func (in *interchange) remember(t *testing.T, bootstrap, logDir string) {
	t.Helper()
	if in.records == nil {
		in.records, in.bytes = map[string]string{}, map[string][]byte{}
	}
	var fresh []string
	for _, topic := range in.topics {
		if _, ok := in.records[topic]; !ok {
			fresh = append(fresh, topic)
			in.bytes[topic] = logBytes(t, logDir, topic)
		}
	}
	for topic, records := range readTopics(t, bootstrap, fresh) {
		in.records[topic] = records
	}
}

// compare says whether the topics hold what they held before they were moved, record by record, and, where nothing was cleaned,
// byte by byte.
func (in *interchange) compare(t *testing.T, bootstrap, logDir string) {
	t.Helper()
	var here []string
	for _, topic := range in.topics {
		if logDir == in.ours || !strings.HasPrefix(topic, "kafka-") {
			here = append(here, topic)
		}
	}
	for topic, got := range readTopics(t, bootstrap, here) {
		if got != in.records[topic] {
			t.Errorf("%s holds\n%s, want\n%s", topic, got, in.records[topic])
		}
		if !strings.HasSuffix(topic, "compacted") && !bytes.HasPrefix(logBytes(t, logDir, topic), in.bytes[topic]) {
			t.Errorf("the bytes of %s have changed", topic)
		}
	}
}

// move puts partitions' directories into others' places, which keep their topic ids.
func (in *interchange) move(t *testing.T, fromDir, toDir string, topics []string) {
	t.Helper()
	for _, topic := range topics {
		from, to := filepath.Join(fromDir, topic+"-0"), filepath.Join(toDir, topic+"-0")
		metadata := filepath.Join(to, "partition.metadata")
		id, err := os.ReadFile(metadata)
		if err == nil {
			err = os.RemoveAll(to)
		}
		if err == nil {
			err = os.CopyFS(to, os.DirFS(from))
		}
		if err == nil {
			err = os.WriteFile(metadata, id, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(toDir, cleanStop)); err != nil {
		t.Fatal(err)
	}
}

// logBytes are the bytes of a topic's segments.
func logBytes(t *testing.T, logDir, topic string) []byte {
	t.Helper()
	var all []byte
	for _, path := range glob(t, logDir, topic+"-0", "*.log") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// useGroupAndTier leaves records in the internal topics of groups and of the remote tier.
func useGroupAndTier(t *testing.T, bootstrap string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	member, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("plain"), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	fetches := member.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	if err := member.CommitRecords(ctx, fetches.Records()...); err != nil {
		t.Fatal(err)
	}
	makeTopic(t, bootstrap, "tiered", 1, 1, map[string]string{"remote.storage.enable": "true", "segment.ms": "500"})
	at := time.Now().Add(-time.Minute)
	for i := range 3 {
		produceAll(t, bootstrap, []*kgo.Record{{Topic: "tiered", Timestamp: at.Add(time.Duration(i) * time.Second), Value: []byte("goes away")}})
	}
	// Two segments are closed, and each is announced and finished.
	tier, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics("__remote_log_metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	for seen := 0; seen < 4; {
		fetches := tier.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("wait for the remote tier, %d records so far: %v", seen, err)
		}
		seen += fetches.NumRecords()
	}
}

// complaints are what the dump tool says about files that are not as they should be. It exits with 0 nevertheless. Gaps
// between offsets are no fault: compaction makes them, and the tool takes a segment's begin for one.
var complaints = []string{`(?i)mismatch`, `(?i)corrupt`, `(?i)exception`, `(?i)out of order`, `(?i)found \d+ invalid`, `(?i)not found`, `Found timestamp`,
	`isvalid: false`, `Error at`, `(?i)skipping`, `(?i)ignoring`, `(?i)unknown`, `(?i)failed`}

// dumpInterchanged has Kafka's tool read every file of the topics.
func dumpInterchanged(t *testing.T, k *tools, logDir string) {
	t.Helper()
	var files, indexes []string
	for topic := range interchanged {
		for _, pattern := range []string{"*.log", "*.snapshot", "*.txnindex"} {
			files = append(files, glob(t, logDir, topic+"-0", pattern)...)
		}
		indexes = append(indexes, glob(t, logDir, topic+"-0", "*.index")...)
		indexes = append(indexes, glob(t, logDir, topic+"-0", "*.timeindex")...)
	}
	files = append(files, indexes...)
	k.run(t, "", dumpLogTool, "--files", strings.Join(files, ","), "--deep-iteration", "--print-data-log").ok().never(complaints...).
		says(`count: 0|deleteHorizonMs: OptionalLong\[`, `compresscodec: zstd`, `endTxnMarker: ABORT`, `lastStableOffset: \d`, `producerEpoch: \d+ coordinatorEpoch: \d`)
	k.run(t, "", dumpLogTool, "--files", strings.Join(indexes, ","), "--index-sanity-check").ok().never(complaints...).says(`passed sanity check`)
	k.run(t, "", dumpLogTool, "--files", strings.Join(indexes, ","), "--verify-index-only").ok().never(complaints...)
}

// dumpInternal has Kafka's tool decode the records of the internal topics.
func dumpInternal(t *testing.T, k *tools, logDirs []string) {
	t.Helper()
	for _, topic := range []struct {
		directories, decoder string
		says                 []string
	}{
		{"__consumer_offsets-*", "--offsets-decoder", []string{`"group":"readers"`, `"offset":200`, `"protocolType":"consumer"`}},
		{"__transaction_state-*", "--transaction-log-decoder", []string{`"transactionalId":"writer-of-transacted"`, `CompleteAbort`, `CompleteCommit`}},
		{"__remote_log_metadata-*", "--remote-log-metadata-decoder", []string{`COPY_SEGMENT_STARTED`, `COPY_SEGMENT_FINISHED`}},
		{"__cluster_metadata-*", "--cluster-metadata-decoder", []string{`"type":"TOPIC_RECORD".*"name":"plain"`}},
	} {
		var files []string
		for _, dir := range logDirs {
			files = slices.Concat(files, glob(t, dir, topic.directories, "*.log"), glob(t, dir, topic.directories, "*.checkpoint"))
		}
		k.run(t, "", dumpLogTool, "--files", strings.Join(files, ","), topic.decoder).ok().never(complaints...).says(topic.says...)
	}
}

// spendProducerIDs uses up the first producer ids of a cluster. Each cluster counts from the same one on, so that in a log that has
// been moved a transaction of the one would be taken for an old one of the other.
func spendProducerIDs(t *testing.T, bootstrap string) {
	t.Helper()
	const enough = 3000 // more than the blocks of a thousand ids that were given out here
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for id := int64(0); id < enough; {
		resp, err := kmsg.NewPtrInitProducerIDRequest().RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			t.Fatal(err)
		}
		id = resp.ProducerID
	}
}

// produceTransaction writes records in a transaction of their own.
func produceTransaction(t *testing.T, bootstrap, id string, commit bool, records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("%s: produce: %v", id, err)
	}
	if err := client.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
		t.Fatalf("%s: end: %v", id, err)
	}
}

// readTopics reads topics of one partition, all records and those that are committed, each record as a line.
func readTopics(t *testing.T, bootstrap string, topics []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, topic := range topics {
		for _, level := range []kgo.IsolationLevel{kgo.ReadUncommitted(), kgo.ReadCommitted()} {
			for _, r := range readAll(t, bootstrap, topic, level) {
				out[topic] += fmt.Sprintf("%d %d %d %q %q %v\n", r.Offset, r.Timestamp.UnixMilli(), r.ProducerEpoch, r.Key, r.Value, r.Value == nil)
			}
			out[topic] += "---\n"
		}
	}
	return out
}
