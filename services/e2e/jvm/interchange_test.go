//go:build jvm

package jvm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

const (
	storageTool = "kafka.tools.StorageTool"
	kafkaServer = "kafka.Kafka"
)

// interchanged are the topics that go from one program to the other, with their configs.
var interchanged = map[string][]string{
	"plain":     {"segment.bytes=1048576", "index.interval.bytes=200"},
	"stamped":   {"message.timestamp.type=LogAppendTime"},
	"compacted": {"cleanup.policy=compact", "min.cleanable.dirty.ratio=0.01", "segment.ms=500", "index.interval.bytes=200"},
}

// TestInterchange lets Apache Kafka open, recover and serve the log directory of this broker, and this broker what Apache Kafka
// has left of it.
func TestInterchange(t *testing.T) {
	k := installTools(t)
	data := t.TempDir()
	// A subtest ends with its server.
	run := func(name string, f func(t *testing.T, s server)) {
		if !t.Run(name, func(t *testing.T) {
			addr := testkit.FreeAddress(t)
			boot := start(t, "all", "--data", data, "--kafka-listen", addr, "--set", "admin.listeners=127.0.0.1:0", "--set", "log.cleaner.backoff.ms=100")
			f(t, server{bootstrap: boot, logDirs: findLogDirs(t, data)})
		}) {
			t.FailNow()
		}
	}
	var ours string
	var written map[string]string
	run("written here", func(t *testing.T, s server) {
		ours = s.logDirs[0]
		fillInterchanged(t, k, s)
		written = readInterchanged(t, s.bootstrap)
	})
	dumpInterchanged(t, k, ours)
	kafka := newKafka(t, k)
	t.Run("opened by Kafka", func(t *testing.T) {
		kafka.start(t)
		for topic, configs := range interchanged {
			createTopic(t, k, kafka.bootstrap, topic, configs)
		}
		kafka.stop(t)
		for topic := range interchanged {
			moveLog(t, filepath.Join(ours, topic+"-0"), filepath.Join(kafka.logDir, topic+"-0"))
		}
		// Without the mark of a clean stop, Kafka checks all batches and makes all indexes anew.
		if err := os.Remove(filepath.Join(kafka.logDir, ".kafka_cleanshutdown")); err != nil {
			t.Fatal(err)
		}
		kafka.start(t)
		compareRecords(t, readInterchanged(t, kafka.bootstrap), written)
		for topic := range interchanged {
			produceInterchanged(t, kafka.bootstrap, []*kgo.Record{{Topic: topic, Key: []byte("more"), Value: []byte("from Kafka")}})
		}
		written = readInterchanged(t, kafka.bootstrap)
		kafka.stop(t)
	})
	for topic := range interchanged {
		moveLog(t, filepath.Join(kafka.logDir, topic+"-0"), filepath.Join(ours, topic+"-0"))
	}
	run("opened here", func(t *testing.T, s server) {
		compareRecords(t, readInterchanged(t, s.bootstrap), written)
	})
	dumpInterchanged(t, k, ours)
}

func createTopic(t *testing.T, k *tools, bootstrap, topic string, configs []string) {
	t.Helper()
	args := []string{"--bootstrap-server", bootstrap, "--create", "--topic", topic, "--partitions", "1", "--replication-factor", "1"}
	for _, c := range configs {
		args = append(args, "--config", c)
	}
	k.run(t, "", topicsTool, args...).ok()
}

// fillInterchanged writes batches of all codecs, with tombstones, and waits until the cleaner has been there.
func fillInterchanged(t *testing.T, k *tools, s server) {
	for topic, configs := range interchanged {
		createTopic(t, k, s.bootstrap, topic, configs)
		for i, codec := range []kgo.CompressionCodec{
			kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
		} {
			var records []*kgo.Record
			for j := range 40 {
				r := &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "key-%d", j%11), Value: fmt.Appendf(nil, "value %d, of which there is more and more and more", j)}
				if j%9 == i {
					r.Value = nil
				}
				records = append(records, r)
			}
			produceInterchanged(t, s.bootstrap, records, kgo.ProducerBatchCompression(codec))
			time.Sleep(600 * time.Millisecond) // longer than segment.ms, so that the next batch begins a segment
		}
	}
	cleaned := filepath.Join(s.logDirs[0], "cleaner-offset-checkpoint")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if data, err := os.ReadFile(cleaned); err == nil && regexp.MustCompile(`(?m)^compacted 0 \d`).Match(data) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the cleaner has not come")
		}
	}
}

// produceInterchanged writes records.
func produceInterchanged(t *testing.T, bootstrap string, records []*kgo.Record, options ...kgo.Opt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// readInterchanged reads the topics to their ends, each record as a line.
func readInterchanged(t *testing.T, bootstrap string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := map[string]string{}
	for topic := range interchanged {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
		if err != nil || ends.Error() != nil {
			t.Fatal(err, ends.Error())
		}
		end, _ := ends.Lookup(topic, 0)
		var lines strings.Builder
		for next := int64(0); next < end.Offset; {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				t.Fatalf("read %s at %d of %d: %v", topic, next, end.Offset, err)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				fmt.Fprintf(&lines, "%d %d %q %q %v\n", r.Offset, r.Timestamp.UnixMilli(), r.Key, r.Value, r.Value == nil)
				next = r.Offset + 1
			})
		}
		out[topic] = lines.String()
	}
	return out
}

func compareRecords(t *testing.T, got, want map[string]string) {
	t.Helper()
	for topic := range interchanged {
		if got[topic] != want[topic] {
			t.Errorf("%s holds\n%s, want\n%s", topic, got[topic], want[topic])
		}
	}
}

// dumpInterchanged has Kafka's tool read every file of the topics.
func dumpInterchanged(t *testing.T, k *tools, logDir string) {
	t.Helper()
	var segments, indexes []string
	for topic := range interchanged {
		for _, pattern := range []string{"*.log", "*.snapshot", "*.txnindex", "*.index", "*.timeindex"} {
			found, err := filepath.Glob(filepath.Join(logDir, topic+"-0", pattern))
			if err != nil {
				t.Fatal(err)
			}
			segments = append(segments, found...)
			if strings.HasSuffix(pattern, "index") && pattern != "*.txnindex" {
				indexes = append(indexes, found...)
			}
		}
	}
	complaints := []string{`(?i)mismatch`, `(?i)corrupt`, `(?i)exception`, `(?i)out of order`, `(?i)found \d+ invalid`}
	k.run(t, "", dumpLogTool, "--files", strings.Join(segments, ","), "--deep-iteration", "--print-data-log").ok().never(complaints...).says(`count: 0|deleteHorizonMs: OptionalLong\[`)
	k.run(t, "", dumpLogTool, "--files", strings.Join(indexes, ","), "--index-sanity-check").ok().never(complaints...)
	k.run(t, "", dumpLogTool, "--files", strings.Join(indexes, ","), "--verify-index-only").ok().never(complaints...)
}

// moveLog puts a partition's directory into another's place, which keeps its topic id.
func moveLog(t *testing.T, from, to string) {
	t.Helper()
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

// kafka is an Apache Kafka of one node.
type kafka struct {
	tools     *tools
	config    string
	logDir    string
	bootstrap string
	process   *exec.Cmd
}

func newKafka(t *testing.T, k *tools) *kafka {
	t.Helper()
	dir := t.TempDir()
	clients, controllers := testkit.FreeAddress(t), testkit.FreeAddress(t)
	s := &kafka{tools: k, config: filepath.Join(dir, "server.properties"), logDir: filepath.Join(dir, "data"), bootstrap: clients}
	text := fmt.Sprintf("process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@%s\nlisteners=PLAINTEXT://%s,CONTROLLER://%s\n"+
		"controller.listener.names=CONTROLLER\nlog.dirs=%s\noffsets.topic.replication.factor=1\nlog.cleaner.backoff.ms=100\n",
		controllers, clients, controllers, s.logDir)
	if err := os.WriteFile(s.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	k.run(t, "", storageTool, "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", s.config).ok()
	return s
}

// start begins to serve; the tools wait until it does.
func (s *kafka) start(t *testing.T) {
	t.Helper()
	s.process = exec.CommandContext(t.Context(), "java", "-Xmx512m", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile="+s.tools.logging,
		"-cp", s.tools.classPath, kafkaServer, s.config)
	s.process.Stderr = os.Stderr
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
}

// stop ends it cleanly.
func (s *kafka) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = s.process.Wait() // a JVM that was told to end has a code of its own
}
