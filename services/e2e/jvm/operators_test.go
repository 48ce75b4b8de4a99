//go:build jvm

package jvm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

const (
	reassignTool       = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
	leaderElectionTool = "org.apache.kafka.tools.LeaderElectionCommand"
	logDirsTool        = "org.apache.kafka.tools.LogDirsCommand"
	clusterTool        = "org.apache.kafka.tools.ClusterTool"
	transactionsTool   = "org.apache.kafka.tools.TransactionsCommand"
)

// operator is one who looks after a cluster with Kafka's tools.
type operator struct {
	tools     *tools
	cluster   *testkit.Playground
	bootstrap string
}

// TestOperators does what operators do: moves between nodes and disks, elections, settings, groups, transactions, the loss of nodes,
// and in the end the removal of one.
func TestOperators(t *testing.T) {
	k := installTools(t)
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{LogDirs: 2})
	o := &operator{tools: k, cluster: p, bootstrap: strings.Join(p.Bootstrap, ",")}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"moves between nodes", o.testMoves},
		{"cancelled moves", o.testCancel},
		{"moves between disks", o.testDisks},
		{"cordoned disks", o.testCordoned},
		{"settings of nodes", o.testNodeConfigs},
		{"loggers", o.testLoggers},
		{"offsets of groups", o.testResets},
		{"open transactions", o.testTransactions},
		{"a lost node", o.testLostNode},
		{"unclean election", o.testUncleanElection},
		{"decommission", o.testDecommission},
	} {
		t.Run(step.name, step.run)
	}
}

// run calls a tool with the cluster's addresses.
func (o *operator) run(t *testing.T, class string, args ...string) result {
	t.Helper()
	return o.tools.run(t, "", class, append([]string{"--bootstrap-server", o.bootstrap}, args...)...)
}

// assign makes a topic whose replicas are where they are told to be.
func (o *operator) assign(t *testing.T, topic string, configs map[string]string, partitions ...[]int32) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, -1, -1
	for i, replicas := range partitions {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition, a.Replicas = int32(i), replicas
		one.ReplicaAssignment = append(one.ReplicaAssignment, a)
	}
	for key, value := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, &value
		one.Configs = append(one.Configs, c)
	}
	req.Topics = append(req.Topics, one)
	client, err := kgo.NewClient(kgo.SeedBrokers(o.cluster.Bootstrap...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := req.RequestWith(t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create %s: %v", topic, err)
	}
}

// fill writes records of a kilobyte.
func (o *operator) fill(t *testing.T, topic string, records int) {
	t.Helper()
	var all []*kgo.Record
	for i := range records {
		all = append(all, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%01024d", i)})
	}
	produceAll(t, o.cluster.Bootstrap[0], all, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
}

// plan writes the file of a reassignment. A log directory that is not given is any.
func plan(t *testing.T, topic string, partitions [][]int32, logDirs [][]string) string {
	t.Helper()
	type move struct {
		Topic     string   `json:"topic"`
		Partition int      `json:"partition"`
		Replicas  []int32  `json:"replicas"`
		LogDirs   []string `json:"log_dirs,omitempty"`
	}
	var moves []move
	for i, replicas := range partitions {
		m := move{Topic: topic, Partition: i, Replicas: replicas}
		if logDirs != nil {
			m.LogDirs = logDirs[i]
		}
		moves = append(moves, m)
	}
	return writeJSON(t, map[string]any{"version": 1, "partitions": moves})
}

func writeJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	path := filepath.Join(t.TempDir(), "plan.json")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// verified asks for a plan's state until it is complete. Only then throttles are taken away.
func (o *operator) verified(t *testing.T, path, complete string) result {
	t.Helper()
	var r result
	await(t, complete, func() bool {
		r = o.run(t, reassignTool, "--verify", "--reassignment-json-file", path).ok()
		return strings.Contains(r.output, complete) && !strings.Contains(r.output, "in progress")
	})
	return r
}

func (o *operator) topicConfigs(t *testing.T, topic string) result {
	t.Helper()
	return o.run(t, configsTool, "--describe", "--entity-type", "topics", "--entity-name", topic).ok()
}

func (o *operator) brokerConfigs(t *testing.T, id string) result {
	t.Helper()
	return o.run(t, configsTool, "--describe", "--entity-type", "brokers", "--entity-name", id).ok()
}

const (
	slowly = "200000" // bytes a second
	fast   = "100000000"
)

func (o *operator) testMoves(t *testing.T) {
	o.assign(t, "moved", nil, []int32{1, 2}, []int32{1, 2})
	o.fill(t, "moved", 4000)
	topics := writeJSON(t, map[string]any{"version": 1, "topics": []any{map[string]string{"topic": "moved"}}})
	o.run(t, reassignTool, "--generate", "--topics-to-move-json-file", topics, "--broker-list", "1,2,3").ok().
		says(`^Current partition replica assignment\n\{"version":1,"partitions":\[\{"topic":"moved","partition":0,"replicas":\[1,2\],"log_dirs":\["\S+/storage-1/\S+","\S+/storage-2/\S+"\]\}`,
			`^Proposed partition reassignment configuration\n\{"version":1,`)
	path := plan(t, "moved", [][]int32{{2, 3}, {3, 1}}, nil)
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", path, "--throttle", slowly).ok().
		says(`The inter-broker throttle limit was set to 200000 B/s`, `Successfully started partition reassignments for moved-0,moved-1`)
	o.run(t, reassignTool, "--list").ok().says(`^Current partition reassignments:\nmoved-0: replicas: 2,3,1\. adding: 3\. removing: 1\.\nmoved-1: replicas: 3,1,2\. adding: 3\. removing: 2\.`)
	o.run(t, reassignTool, "--verify", "--reassignment-json-file", path, "--preserve-throttles").ok().says(`Reassignment of partition moved-0 is still in progress`)
	o.topicConfigs(t, "moved").says(`leader\.replication\.throttled\.replicas=0:1,0:2,1:1,1:2`, `follower\.replication\.throttled\.replicas=0:3,1:3`)
	o.brokerConfigs(t, "3").says(`follower\.replication\.throttled\.rate=200000`, `leader\.replication\.throttled\.rate=200000`)
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", path).failed().says(`Cannot execute because there is an existing partition assignment\.`)
	o.run(t, topicsTool, "--describe", "--topic", "moved").ok().says(`Partition: 0.*Replicas: 2,3,1.*Isr: 1,2\s.*`)
	o.run(t, reassignTool, "--execute", "--additional", "--reassignment-json-file", path, "--throttle", fast).ok().says(`limit was set to 100000000 B/s`)
	o.verified(t, path, "Reassignment of partition moved-1 is completed.").
		says(`Clearing broker-level throttles on brokers 1,2,3`, `Clearing topic-level throttles on topic moved`)
	o.topicConfigs(t, "moved").never(`throttled`)
	o.brokerConfigs(t, "3").never(`throttled`)
	o.run(t, topicsTool, "--describe", "--topic", "moved").ok().says(`Partition: 0.*Replicas: 2,3\s`, `Partition: 1.*Replicas: 3,1\s`)
	o.run(t, reassignTool, "--list").ok().says(`^No partition reassignments found\.`)
	if n := len(readAll(t, o.cluster.Bootstrap[0], "moved", kgo.ReadUncommitted())); n != 4000 {
		t.Errorf("%d records are left of 4000", n)
	}
}

func (o *operator) testCancel(t *testing.T) {
	o.assign(t, "stays", nil, []int32{1, 2})
	o.fill(t, "stays", 2000)
	path := plan(t, "stays", [][]int32{{3, 2}}, nil)
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", path, "--throttle", "1000").ok().says(`Successfully started partition reassignment for stays-0`)
	o.run(t, reassignTool, "--cancel", "--reassignment-json-file", path).ok().
		says(`Successfully cancelled partition reassignment for: stays-0`, `Clearing broker-level throttles on brokers 1,2,3`, `Clearing topic-level throttles on topic stays`)
	o.run(t, reassignTool, "--cancel", "--reassignment-json-file", path).ok().says(`None of the specified partition reassignments are active\.`)
	o.run(t, topicsTool, "--describe", "--topic", "stays").ok().says(`Partition: 0\s+Leader: 1\s+Replicas: 2,1\s+Isr: 1,2\s`)
	o.topicConfigs(t, "stays").never(`throttled`)
	o.brokerConfigs(t, "1").never(`throttled`)
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", plan(t, "stays", [][]int32{{1, 77}}, nil)).failed().says(`Unknown broker id 77`)
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", plan(t, "unknown", [][]int32{{1, 2}}, nil)).failed().says(`UnknownTopicOrPartitionException: Topic unknown not found\.`)
}

// dirs are the log directories of a storage node.
func (o *operator) dirs(node int) []string {
	dir := filepath.Join(o.cluster.Dir(), fmt.Sprintf("storage-%d", node))
	return []string{filepath.Join(dir, "data"), filepath.Join(dir, "data-2")}
}

func (o *operator) testDisks(t *testing.T) {
	o.assign(t, "disks", nil, []int32{1})
	o.fill(t, "disks", 2000)
	from, to := o.dirs(1)[0], o.dirs(1)[1]
	if _, err := os.Stat(filepath.Join(from, "disks-0")); err != nil {
		from, to = to, from
	}
	path := plan(t, "disks", [][]int32{{1}}, [][]string{{to}})
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", path, "--replica-alter-log-dirs-throttle", slowly).ok().
		says(`The replica-alter-dir throttle limit was set to 200000 B/s`, `Successfully started moving log directory to \S+ for replica disks-0 with broker 1`)
	o.brokerConfigs(t, "1").says(`replica\.alter\.log\.dirs\.io\.max\.bytes\.per\.second=200000`)
	o.run(t, logDirsTool, "--describe", "--topic-list", "disks", "--broker-list", "1").ok().says(`"partition":"disks-0","size":\d+,"offsetLag":\d+,"isFuture":true`)
	o.run(t, reassignTool, "--verify", "--reassignment-json-file", path, "--preserve-throttles").ok().says(`Reassignment of replica disks-0-1 is still in progress\.`)
	o.run(t, reassignTool, "--execute", "--additional", "--reassignment-json-file", path, "--replica-alter-log-dirs-throttle", fast).ok()
	o.verified(t, path, "Reassignment of replica disks-0-1 completed successfully.").says(`Clearing broker-level throttles on brokers 1,2,3`)
	o.brokerConfigs(t, "1").never(`replica\.alter\.log\.dirs\.io\.max`)
	if _, err := os.Stat(filepath.Join(to, "disks-0")); err != nil {
		t.Error(err)
	}
	if n := len(readAll(t, o.cluster.Bootstrap[0], "disks", kgo.ReadUncommitted())); n != 2000 {
		t.Errorf("%d records are left of 2000", n)
	}
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", plan(t, "disks", [][]int32{{1}}, [][]string{{"/no/such/place"}})).failed().says(`LogDirNotFoundException`)
}

func (o *operator) testCordoned(t *testing.T) {
	cordon := func(id string, dirs ...string) {
		o.run(t, configsTool, "--alter", "--entity-type", "brokers", "--entity-name", id, "--add-config", "cordoned.log.dirs=["+strings.Join(dirs, ",")+"]").ok()
	}
	cordon("1", o.dirs(1)[0])
	o.brokerConfigs(t, "1").says(`cordoned\.log\.dirs=` + o.dirs(1)[0] + ` sensitive=false synonyms=\{DYNAMIC_BROKER_CONFIG:cordoned\.log\.dirs=`)
	for _, topic := range []string{"elsewhere-1", "elsewhere-2", "elsewhere-3"} {
		o.assign(t, topic, nil, []int32{1})
		if _, err := os.Stat(filepath.Join(o.dirs(1)[1], topic+"-0")); err != nil {
			t.Error(err)
		}
	}
	everywhere := func() result {
		o.run(t, topicsTool, "--delete", "--if-exists", "--topic", "everywhere").ok()
		return o.run(t, topicsTool, "--create", "--topic", "everywhere", "--replication-factor", "3", "--partitions", "1")
	}
	// A node without a directory that takes replicas is not chosen for new ones.
	cordon("3", "*")
	await(t, "node 3 to take no replicas", func() bool {
		return strings.Contains(everywhere().output, "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because only 2 broker(s) are registered")
	})
	o.run(t, topicsTool, "--create", "--topic", "two", "--replication-factor", "2", "--partitions", "4").ok()
	o.run(t, topicsTool, "--describe", "--topic", "two").ok().counts(4, `Partition: \d\s+Leader: [12]\s+Replicas: (1,2|2,1)\s`)
	for _, id := range []string{"1", "3"} {
		o.run(t, configsTool, "--alter", "--entity-type", "brokers", "--entity-name", id, "--delete-config", "cordoned.log.dirs").ok()
	}
	await(t, "nodes to take replicas again", func() bool { return everywhere().exit == 0 })
}

func (o *operator) testNodeConfigs(t *testing.T) {
	configs := func(args ...string) result { return o.run(t, configsTool, args...) }
	configs("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.retention.ms=7200000").ok().says(`Completed updating default config for brokers in the cluster\.`)
	configs("--describe", "--entity-type", "brokers", "--entity-default").ok().
		says(`^Default configs for brokers in the cluster are:\n  log\.retention\.ms=7200000 sensitive=false synonyms=\{DYNAMIC_DEFAULT_BROKER_CONFIG:log\.retention\.ms=7200000\}`)
	configs("--alter", "--entity-type", "brokers", "--entity-name", "2", "--add-config", "log.retention.ms=3600000").ok().says(`Completed updating config for broker 2\.`)
	configs("--describe", "--entity-type", "brokers", "--entity-name", "2").ok().
		says(`^Dynamic configs for broker 2 are:\n  log\.retention\.ms=3600000 sensitive=false synonyms=\{DYNAMIC_BROKER_CONFIG:log\.retention\.ms=3600000, DYNAMIC_DEFAULT_BROKER_CONFIG:log\.retention\.ms=7200000`)
	configs("--describe", "--entity-type", "brokers", "--entity-name", "2", "--all").ok().says(`^All configs for broker 2 are:`, `^  node\.id=2 `)
	configs("--describe", "--entity-type", "topics", "--entity-name", "stays", "--all").ok().says(`  retention\.ms=(7200000|3600000) sensitive=false synonyms=\{DYNAMIC_(DEFAULT_)?BROKER_CONFIG:log\.retention\.ms=`)
	configs("--alter", "--entity-type", "brokers", "--entity-name", "2", "--add-config", "log.dirs=/elsewhere").failed().says(`Cannot update these configs dynamically`)
	configs("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.cleaner.threads=none").failed().says(`InvalidRequestException|InvalidConfigurationException`)
	configs("--alter", "--entity-type", "brokers", "--entity-name", "2", "--delete-config", "log.retention.ms").ok()
	configs("--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "log.retention.ms").ok()
	configs("--describe", "--entity-type", "brokers", "--entity-name", "2").ok().never(`log\.retention`)
}

func (o *operator) testLoggers(t *testing.T) {
	loggers := func(args ...string) result {
		return o.run(t, configsTool, append([]string{"--entity-type", "broker-loggers", "--entity-name", "1"}, args...)...)
	}
	loggers("--describe").ok().says(`^Dynamic configs for broker-logger 1 are:\n  root=INFO sensitive=false synonyms=\{\}`)
	loggers("--alter", "--add-config", "root=DEBUG").ok().says(`Completed updating config for broker-logger 1\.`)
	loggers("--describe").ok().says(`^  root=DEBUG `)
	loggers("--alter", "--add-config", "root=INFO").ok()
	loggers("--describe").ok().says(`^  root=INFO `)
	loggers("--alter", "--add-config", "no.such.logger=INFO").failed().says(`no\.such\.logger`)
	loggers("--alter", "--add-config", "root=LOUD").failed().says(`Cannot set the log level of root to LOUD as it is not a supported log level`)
	loggers("--alter", "--delete-config", "root").failed().says(`Removing the log level of the root logger is not allowed`)
}

func (o *operator) testResets(t *testing.T) {
	o.assign(t, "reset", nil, []int32{1, 2, 3}, []int32{2, 3, 1})
	o.fill(t, "reset", 200)
	groups := func(args ...string) result { return o.run(t, consumerGroupsTool, args...) }
	reset := func(how ...string) result {
		return groups(append([]string{"--reset-offsets", "--group", "resetters", "--topic", "reset"}, how...)...).ok()
	}
	to := func(r result, offset string) {
		t.Helper()
		r.says(`^GROUP\s+TOPIC\s+PARTITION\s+NEW-OFFSET`).counts(2, `^resetters\s+reset\s+[01]\s+`+offset+`\s`)
	}
	to(reset("--to-latest", "--execute"), "100")
	to(reset("--to-earliest", "--dry-run"), "0")
	groups("--describe", "--group", "resetters").ok().counts(2, `^resetters\s+reset\s+[01]\s+100\s+100\s+0\s+-\s+-\s+-`)
	to(reset("--shift-by", "-30", "--execute"), "70")
	to(reset("--to-offset", "1000", "--execute"), "100")
	to(reset("--to-offset", "40", "--execute"), "40")
	to(reset("--to-current", "--execute"), "40")
	to(reset("--by-duration", "PT1H", "--execute"), "0")
	to(reset("--to-datetime", "2090-01-01T00:00:00.000", "--execute"), "100")
	groups("--reset-offsets", "--group", "resetters", "--topic", "reset:1", "--to-offset", "7", "--execute").ok().counts(1, `^resetters\s+reset\s+1\s+7\s`)
	exported := groups("--reset-offsets", "--group", "resetters", "--all-topics", "--to-current", "--export", "--dry-run").ok().says(`^"?reset"?,0,100$`, `^"?reset"?,1,7$`)
	path := filepath.Join(t.TempDir(), "offsets.csv")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(exported.output, ",7", ",9")), 0o600); err != nil {
		t.Fatal(err)
	}
	groups("--reset-offsets", "--group", "resetters", "--from-file", path, "--execute").ok().says(`^resetters\s+reset\s+1\s+9\s`)
	groups("--describe", "--all-groups", "--offsets", "--verbose").ok().says(`LEADER-EPOCH`, `^resetters\s+reset\s+1\s+(-|\d+)\s+9\s+100\s+91\s`)
	groups("--describe", "--group", "resetters", "--state").ok().says(`^GROUP\s+COORDINATOR \(ID\)\s+ASSIGNMENT-STRATEGY\s+STATE\s+#MEMBERS\nresetters\s+127\.0\.0\.1:\d+\s+\(\d\)\s+-\s+Empty\s+0`)
	groups("--list", "--state").ok().says(`^resetters\s+Empty`)
	groups("--list", "--state", "empty", "--type", "classic").ok().says(`(?i)^resetters\s+classic\s+empty|^resetters\s+empty\s+classic`)
	member := o.tools.start(t, "Clients", "consume", o.bootstrap, "resetters", "consumer", "reset")
	member.awaitLine(t, `^record `)
	groups("--describe", "--group", "resetters", "--members", "--verbose").ok().says(`CURRENT-EPOCH\s+CURRENT-ASSIGNMENT\s+TARGET-EPOCH\s+TARGET-ASSIGNMENT`, `reset:0,1\s+\d+\s+reset:0,1`)
	groups("--describe", "--group", "resetters", "--state", "--verbose").ok().says(`GROUP-EPOCH\s+TARGET-ASSIGNMENT-EPOCH`, `uniform\s+Stable\s+\d+\s+\d+\s+1`)
	groups("--reset-offsets", "--group", "resetters", "--topic", "reset", "--to-earliest", "--execute").says(`Assignments can only be reset if the group 'resetters' is inactive, but the current state is Stable\.`)
	groups("--delete", "--group", "resetters").says(`Group 'resetters' could not be deleted due to: .*GroupNotEmptyException`)
	member.stop(t)
	groups("--delete-offsets", "--group", "resetters", "--topic", "reset:0").ok().says(`Request succeeded for deleting offsets from group resetters\.`, `^reset\s+0\s+Successful`)
	groups("--delete", "--group", "resetters").ok().says(`Deletion of requested consumer groups \('resetters'\) was successful\.`)
	groups("--describe", "--group", "resetters").says(`GroupIdNotFoundException: Group resetters not found\.`)
	groups("--validate-regex", "re.*").ok().says("The regular expression `re\\.\\*` is valid\\.")
}

func (o *operator) testTransactions(t *testing.T) {
	o.assign(t, "open", nil, []int32{2, 3, 1})
	transactions := func(args ...string) result { return o.run(t, transactionsTool, args...) }
	writer := o.tools.start(t, "Clients", "hang", o.bootstrap, "open", "opener")
	writer.awaitLine(t, "^open$")
	transactions("list").ok().says(`^TransactionalId\s+Coordinator\s+ProducerId\s+TransactionState\s*\nopener\s+\d\s+\d+\s+Ongoing`)
	transactions("list", "--transactional-id-pattern", "other.*").ok().never(`opener`)
	transactions("list", "--duration-filter", "3600000").ok().never(`opener`)
	transactions("describe", "--transactional-id", "opener").ok().
		says(`^CoordinatorId\s+TransactionalId\s+ProducerId\s+ProducerEpoch\s+TransactionState\s+TransactionTimeoutMs\s+CurrentTransactionStartTimeMs\s+TransactionDurationMs\s+TopicPartitions`,
			`^\d\s+opener\s+\d+\s+\d+\s+Ongoing\s+20000\s+\d+\s+\d+\s+open-0`)
	transactions("describe", "--transactional-id", "nobody").failed().says("Failed to describe transaction state of transactional-id `nobody`: .* the ID could not be found")
	transactions("describe-producers", "--topic", "open", "--partition", "0").ok().
		says(`^ProducerId\s+ProducerEpoch\s+LatestCoordinatorEpoch\s+LastSequence\s+LastTimestamp\s+CurrentTransactionStartOffset`, `^\d+\s+\d+\s+-1\s+0\s+\d+\s+0`)
	transactions("describe-producers", "--topic", "open", "--partition", "0", "--broker-id", "3").ok().counts(1, `^\d+\s`)
	transactions("find-hanging", "--broker-id", "2", "--max-transaction-timeout", "0").ok().says(`^Topic\s+Partition\s+ProducerId\s+ProducerEpoch\s+CoordinatorEpoch\s+StartOffset\s+LastTimestamp\s+Duration\(min\)`).never(`^open\s`)
	transactions("forceTerminateTransaction", "--transactionalId", "opener").ok()
	transactions("describe", "--transactional-id", "opener").ok().says(`opener\s+\d+\s+\d+\s+Empty\s+30000\s+None\s+None`)
	writer.kill(t)

	second := o.tools.start(t, "Clients", "hang", o.bootstrap, "open", "second")
	second.awaitLine(t, "^open$")
	second.kill(t)
	// The record and the marker of the first are at 0 and 1.
	transactions("abort", "--topic", "open", "--partition", "0", "--start-offset", "2").ok()
	transactions("describe-producers", "--topic", "open", "--partition", "0").ok().counts(2, `\sNone\s*$`)
	transactions("abort", "--topic", "open", "--partition", "0", "--start-offset", "2").failed().says(`Could not find any open transactions starting at offset 2 on partition open-0`)
}

func (o *operator) testLostNode(t *testing.T) {
	o.assign(t, "kept", map[string]string{"min.insync.replicas": "2"}, []int32{1, 2, 3})
	o.assign(t, "pair", map[string]string{"min.insync.replicas": "2"}, []int32{1, 2})
	o.assign(t, "single", nil, []int32{1})
	o.fill(t, "kept", 10)
	topics := func(args ...string) result {
		return o.run(t, topicsTool, append([]string{"--describe"}, args...)...).ok()
	}
	for _, filter := range []string{"--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"} {
		topics(filter).never(`Topic:`)
	}
	topics("--at-min-isr-partitions").says(`Topic: pair\s`).never(`Topic: kept`)
	o.cluster.Kill("storage-1")
	await(t, "another leader", func() bool {
		return strings.Contains(topics("--topic", "kept").output, "Leader: 2\tReplicas: 1,2,3\tIsr: 2,3")
	})
	topics("--under-replicated-partitions").says(`Topic: kept\tPartition: 0`, `Topic: pair`, `Topic: single`)
	topics("--under-min-isr-partitions").says(`Topic: pair\s`).never(`Topic: kept`)
	topics("--at-min-isr-partitions").says(`Topic: kept\s`).never(`Topic: pair`)
	topics("--unavailable-partitions").says(`Topic: single\tPartition: 0\tLeader: none\tReplicas: 1\tIsr: (1|$|\t)`).never(`Topic: kept`, `Topic: pair`)
	o.run(t, leaderElectionTool, "--election-type", "preferred", "--topic", "kept", "--partition", "0").says(`Error completing leader election \(PREFERRED\) for partition: kept-0: org\.apache\.kafka\.common\.errors\.PreferredLeaderNotAvailableException`)
	o.cluster.Restart("storage-1")
	await(t, "the node to be in sync", func() bool { return !strings.Contains(topics("--under-replicated-partitions").output, "Topic:") })
	topics("--unavailable-partitions").never(`Topic:`)
	o.run(t, leaderElectionTool, "--election-type", "preferred", "--topic", "kept", "--partition", "0").ok().says(`Successfully completed leader election \(PREFERRED\) for partitions kept-0`)
	o.run(t, leaderElectionTool, "--election-type", "preferred", "--topic", "kept", "--partition", "0").ok().says(`Valid replica already elected for partitions kept-0`)
	o.run(t, leaderElectionTool, "--election-type", "preferred", "--all-topic-partitions").ok()
	topics("--topic", "kept").says(`Leader: 1\tReplicas: 1,2,3`)
}

func (o *operator) testUncleanElection(t *testing.T) {
	o.assign(t, "risky", nil, []int32{2, 3})
	o.fill(t, "risky", 10)
	describe := func() string { return o.run(t, topicsTool, "--describe", "--topic", "risky").ok().output }
	shows := func(text string) {
		t.Helper()
		await(t, text, func() bool { return strings.Contains(describe(), text) })
	}
	unclean := func() result {
		return o.run(t, leaderElectionTool, "--election-type", "unclean", "--topic", "risky", "--partition", "0")
	}
	unclean().ok().says(`Valid replica already elected for partitions risky-0`)
	o.cluster.Kill("storage-3")
	shows("Leader: 2\tReplicas: 2,3\tIsr: 2\t")
	o.fill(t, "risky", 10)
	o.cluster.Kill("storage-2")
	shows("Leader: none\tReplicas: 2,3\t")
	unclean().failed().says(`EligibleLeadersNotAvailableException`)
	o.cluster.Restart("storage-3")
	o.run(t, topicsTool, "--describe", "--topic", "risky").ok().says("Leader: none\tReplicas: 2,3\t")
	await(t, "an unclean election", func() bool {
		return strings.Contains(unclean().output, "Successfully completed leader election (UNCLEAN) for partitions risky-0")
	})
	shows("Leader: 3\tReplicas: 2,3\tIsr: 3\t")
	o.cluster.Restart("storage-2")
	shows("Leader: 3\tReplicas: 2,3\tIsr: 3,2\t")
	if n := len(readAll(t, o.cluster.Bootstrap[0], "risky", kgo.ReadUncommitted())); n != 10 {
		t.Errorf("%d records are left, want the 10 that the elected node had", n)
	}
}

// testDecommission moves everything away from node 3, stops it, and forgets it.
func (o *operator) testDecommission(t *testing.T) {
	metadata, err := admin(t, o.cluster.Bootstrap...).Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.run(t, configsTool, "--alter", "--entity-type", "brokers", "--entity-name", "3", "--add-config", "cordoned.log.dirs=*").ok()
	// With two nodes left there can be two replicas at most.
	var moves []any
	metadata.Topics.EachPartition(func(p kadm.PartitionDetail) {
		replicas := []int32{1, 2}
		if p.Partition%2 == 1 {
			replicas = []int32{2, 1}
		}
		moves = append(moves, map[string]any{"topic": p.Topic, "partition": p.Partition, "replicas": replicas})
	})
	path := writeJSON(t, map[string]any{"version": 1, "partitions": moves})
	o.run(t, reassignTool, "--execute", "--reassignment-json-file", path, "--throttle", fast).ok()
	o.verified(t, path, "Clearing broker-level throttles on brokers 1,2,3").never(`[Tt]here is no active reassignment of partition .* but replica set is`)
	o.run(t, logDirsTool, "--describe", "--broker-list", "3").ok().never(`"partition":"`)
	o.run(t, topicsTool, "--describe").ok().counts(len(moves), `Leader: [12]\s+Replicas: (1,2|2,1)\s+Isr: (1,2|2,1)\s`)
	o.cluster.Stop("storage-3")
	o.tools.run(t, "", clusterTool, "unregister", "--bootstrap-server", o.bootstrap, "--id", "3").ok().says(`Broker 3 is no longer registered\.`)
	o.tools.run(t, "", clusterTool, "unregister", "--bootstrap-server", o.bootstrap, "--id", "3").failed()
	o.tools.run(t, "", clusterTool, "list-endpoints", "--bootstrap-server", o.bootstrap, "--include-fenced-brokers").ok().counts(2, `^[123]\s+127`).never(`^3\s`)
	o.run(t, topicsTool, "--describe", "--under-replicated-partitions").ok().never(`Topic:`)
}
