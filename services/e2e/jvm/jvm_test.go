//go:build jvm

package jvm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The main classes behind Kafka's scripts.
const (
	topicsTool           = "org.apache.kafka.tools.TopicCommand"
	configsTool          = "org.apache.kafka.tools.ConfigCommand"
	consoleProducerTool  = "org.apache.kafka.tools.ConsoleProducer"
	consoleConsumerTool  = "org.apache.kafka.tools.consumer.ConsoleConsumer"
	producerPerfTool     = "org.apache.kafka.tools.ProducerPerformance"
	consumerPerfTool     = "org.apache.kafka.tools.ConsumerPerformance"
	consumerGroupsTool   = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
	getOffsetsTool       = "org.apache.kafka.tools.GetOffsetShell"
	deleteRecordsTool    = "org.apache.kafka.tools.DeleteRecordsCommand"
	brokerAPIVersionTool = "org.apache.kafka.tools.BrokerApiVersionsCommand"
	dumpLogTool          = "org.apache.kafka.tools.DumpLogSegments"
)

func TestToolsAgainstAll(t *testing.T) { testTools(t, startAll(t)) }

func TestToolsAgainstPlayground(t *testing.T) { testTools(t, startPlayground(t)) }

// testTools walks through what a user does on the command line; the steps build on each other.
func testTools(t *testing.T, s server) {
	k := installTools(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *tools, server)
	}{
		{"topics", testTopics},
		{"configs", testConfigs},
		{"console", testConsole},
		{"groups", testGroups},
		{"offsets", testOffsets},
		{"perf", testPerf},
		{"versions", testVersions},
		{"dump-log", testDumpLog},
		{"quorum", testQuorum},
		{"metadata-log", testMetadataLog},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, k, s) }) {
			t.Fatalf("the steps after %s build on it", step.name)
		}
	}
}

func testTopics(t *testing.T, k *tools, s server) {
	topics := func(args ...string) result {
		return k.run(t, "", topicsTool, append([]string{"--bootstrap-server", s.bootstrap}, args...)...)
	}
	topics("--create", "--topic", "payments", "--partitions", "3", "--replication-factor", "1").ok().says(`Created topic payments`)
	topics("--create", "--topic", "payments").failed().says(`already exists`)
	topics("--create", "--topic", "payments", "--if-not-exists").ok()
	topics("--create", "--topic", "not a name").failed()
	topics("--list").ok().says(`^payments$`)
	topics("--describe", "--topic", "payments").ok().says(`PartitionCount: 3`).counts(3, `Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+`)
	topics("--alter", "--topic", "payments", "--partitions", "4").ok()
	topics("--describe", "--topic", "payments").ok().says(`PartitionCount: 4`)
	topics("--create", "--topic", "doomed", "--partitions", "1").ok()
	topics("--delete", "--topic", "doomed").ok()
	topics("--list").ok().never(`^doomed$`)
	topics("--delete", "--topic", "doomed").failed()
}

func testConfigs(t *testing.T, k *tools, s server) {
	configs := func(args ...string) result {
		return k.run(t, "", configsTool, append([]string{"--bootstrap-server", s.bootstrap}, args...)...)
	}
	configs("--alter", "--entity-type", "topics", "--entity-name", "payments", "--add-config", "retention.ms=86400000").ok()
	configs("--describe", "--entity-type", "topics", "--entity-name", "payments").ok().says(`retention\.ms=86400000`)
	configs("--describe", "--entity-type", "topics", "--entity-name", "payments", "--all").ok().says(`cleanup\.policy=delete`, `retention\.ms=86400000`)
	configs("--alter", "--entity-type", "topics", "--entity-name", "payments", "--add-config", "retention.ms=soon").failed()
	configs("--alter", "--entity-type", "topics", "--entity-name", "payments", "--delete-config", "retention.ms").ok()
	configs("--describe", "--entity-type", "topics", "--entity-name", "payments").ok().never(`retention\.ms`)
	configs("--describe", "--entity-type", "brokers", "--entity-default").ok()
}

func testConsole(t *testing.T, k *tools, s server) {
	var lines strings.Builder
	for i := range 300 {
		fmt.Fprintf(&lines, "key-%d:value-%d\n", i%7, i)
	}
	k.run(t, lines.String(), consoleProducerTool, "--bootstrap-server", s.bootstrap, "--topic", "payments",
		"--reader-property", "parse.key=true", "--reader-property", "key.separator=:").ok()
	k.run(t, "", consoleConsumerTool, "--bootstrap-server", s.bootstrap, "--topic", "payments", "--from-beginning", "--max-messages", "300",
		"--timeout-ms", "30000", "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true").ok().
		counts(300, `value-\d+$`).says(`Offset:\d+\tkey-3\tvalue-3$`)
	k.run(t, "", consoleConsumerTool, "--bootstrap-server", s.bootstrap, "--topic", "payments", "--group", "readers", "--from-beginning",
		"--max-messages", "300", "--timeout-ms", "30000").ok().counts(300, `^value-\d+$`)
}

func testGroups(t *testing.T, k *tools, s server) {
	groups := func(args ...string) result {
		return k.run(t, "", consumerGroupsTool, append([]string{"--bootstrap-server", s.bootstrap}, args...)...)
	}
	groups("--list").ok().says(`^readers$`)
	groups("--describe", "--group", "readers").ok().counts(4, `readers\s+payments\s+\d`)
	groups("--describe", "--group", "readers", "--state").ok().says(`Empty`)
	groups("--reset-offsets", "--group", "readers", "--topic", "payments", "--to-earliest", "--execute").ok()
	k.run(t, "", consoleConsumerTool, "--bootstrap-server", s.bootstrap, "--topic", "payments", "--group", "readers",
		"--max-messages", "300", "--timeout-ms", "30000").ok().counts(300, `^value-\d+$`)
	groups("--delete-offsets", "--group", "readers", "--topic", "payments").ok()
	groups("--delete", "--group", "readers").never(`Error`)
	groups("--list").ok().never(`^readers$`)
}

func testOffsets(t *testing.T, k *tools, s server) {
	offsets := func(time string) result {
		return k.run(t, "", getOffsetsTool, "--bootstrap-server", s.bootstrap, "--topic", "payments", "--time", time).ok()
	}
	offsets("earliest").counts(4, `^payments:\d:0$`)
	sum := 0
	for line := range strings.Lines(offsets("latest").output) {
		var partition, offset int
		if n, _ := fmt.Sscanf(line, "payments:%d:%d", &partition, &offset); n == 2 {
			sum += offset
		}
	}
	if sum != 300 {
		t.Fatalf("latest offsets add up to %d, want 300", sum)
	}
	plan := filepath.Join(t.TempDir(), "records.json")
	if err := os.WriteFile(plan, []byte(`{"partitions":[{"topic":"payments","partition":0,"offset":-1}],"version":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	k.run(t, "", deleteRecordsTool, "--bootstrap-server", s.bootstrap, "--offset-json-file", plan).ok().says(`low_watermark`)
	offsets("earliest").counts(3, `^payments:\d:0$`)
}

func testPerf(t *testing.T, k *tools, s server) {
	k.run(t, "", topicsTool, "--bootstrap-server", s.bootstrap, "--create", "--topic", "perf", "--partitions", "3").ok()
	k.run(t, "", producerPerfTool, "--topic", "perf", "--num-records", "50000", "--record-size", "200", "--throughput", "-1",
		"--bootstrap-server", s.bootstrap).ok().says(`50000 records sent`)
	k.run(t, "", consumerPerfTool, "--bootstrap-server", s.bootstrap, "--topic", "perf", "--num-records", "50000", "--timeout", "60000").ok().says(`, 50000, `)
}

func testVersions(t *testing.T, k *tools, s server) {
	k.run(t, "", brokerAPIVersionTool, "--bootstrap-server", s.bootstrap).ok().says(`Produce\(0\)`, `Fetch\(1\)`, `JoinGroup\(11\)`)
}

func testDumpLog(t *testing.T, k *tools, s server) {
	k.run(t, "one\ntwo\nthree\n", consoleProducerTool, "--bootstrap-server", s.bootstrap, "--topic", "perf").ok()
	var files []string
	for _, dir := range s.logDirs {
		for _, pattern := range []string{"perf-*/*.log", "perf-*/*.index", "perf-*/*.timeindex", "__consumer_offsets-*/*.log"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, found...)
		}
	}
	if len(files) == 0 {
		t.Fatal("no segment files found")
	}
	k.run(t, "", dumpLogTool, "--files", strings.Join(files, ","), "--deep-iteration").ok().says(`baseOffset: 0`).
		never(`(?i)found \d+ invalid`, `(?i)mismatch`, `(?i)corrupt`, `Index sanity check failed`)
}
