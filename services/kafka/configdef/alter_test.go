package configdef

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"chancery/services/kafka/errcode"
)

func alteration(op Op, name, value string) Alteration { return Alteration{name, op, &value} }

func show(configs map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(configs)) {
		parts = append(parts, k+"="+configs[k])
	}
	return strings.Join(parts, " ")
}

func TestAlter(t *testing.T) {
	current := map[string]string{"retention.ms": "1", "cleanup.policy": "compact"}
	for _, c := range []struct {
		what string
		r    Resource
		ops  []Alteration
		want string
	}{
		{"set", TopicResource, []Alteration{alteration(OpSet, "retention.ms", "2")}, "cleanup.policy=compact retention.ms=2 (1)"},
		{"set the same", TopicResource, []Alteration{alteration(OpSet, "retention.ms", "1")}, "cleanup.policy=compact retention.ms=1 (0)"},
		{"set the same for a broker", BrokerResource, []Alteration{alteration(OpSet, "retention.ms", "1")}, "cleanup.policy=compact retention.ms=1 (1)"},
		{"delete", TopicResource, []Alteration{{Name: "retention.ms", Op: OpDelete}}, "cleanup.policy=compact (1)"},
		{"delete nothing", TopicResource, []Alteration{{Name: "segment.ms", Op: OpDelete}}, "cleanup.policy=compact retention.ms=1 (0)"},
		{"append", TopicResource, []Alteration{alteration(OpAppend, "cleanup.policy", "delete,compact")}, "cleanup.policy=compact,delete retention.ms=1 (1)"},
		{"subtract", TopicResource, []Alteration{alteration(OpSubtract, "cleanup.policy", "compact")}, "cleanup.policy= retention.ms=1 (1)"},
		{"append to the default", GroupResource, []Alteration{alteration(OpAppend, "streams.rack.aware.assignment.tags", "a")},
			"cleanup.policy=compact retention.ms=1 streams.rack.aware.assignment.tags=a (1)"},
		{"append to a number", TopicResource, []Alteration{alteration(OpAppend, "retention.ms", "1")},
			"INVALID_CONFIG: Can't APPEND to key retention.ms because its type is not LIST."},
		{"subtract from the unknown", TopicResource, []Alteration{alteration(OpSubtract, "no.such", "1")},
			"INVALID_CONFIG: Can't SUBTRACT to key no.such because its type is not LIST."},
		{"twice", TopicResource, []Alteration{alteration(OpSet, "retention.ms", "1"), alteration(OpSet, "retention.ms", "2")},
			"INVALID_REQUEST: Error due to duplicate config keys"},
		{"null", TopicResource, []Alteration{{Name: "retention.ms"}, {Name: "flush.ms", Op: OpAppend}},
			"INVALID_REQUEST: Null value not supported for : retention.ms, flush.ms"},
		{"unknown operation", TopicResource, []Alteration{alteration(9, "retention.ms", "1")}, "INVALID_REQUEST: Unknown operations type 9"},
		{"long", TopicResource, []Alteration{alteration(OpSet, "x", strings.Repeat("x", 32768))},
			"INVALID_CONFIG: The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."},
	} {
		after, changes, err := Alter(c.r, current, c.ops)
		got := fmt.Sprintf("%s (%d)", show(after), len(changes))
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
	if show(current) != "cleanup.policy=compact retention.ms=1" {
		t.Errorf("the current configs were changed: %v", current)
	}
}

func TestReplace(t *testing.T) {
	changes, err := Replace(TopicResource, map[string]string{"a": "1", "b": "2", "c": "3"}, map[string]string{"b": "2", "c": "4", "d": "5"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.Name+"="+text(c.Value))
	}
	if s := strings.Join(got, " "); s != "c=4 d=5 a=null" {
		t.Errorf("got %s", s)
	}
	if _, err := Replace(TopicResource, nil, map[string]string{"a": strings.Repeat("x", 40000)}); errcode.Of(err) != errcode.InvalidConfig {
		t.Errorf("long value: %v", err)
	}
}

func pairs(s string) map[string]string {
	m := make(map[string]string)
	for _, p := range strings.Fields(s) {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return m
}

func TestCheckTopic(t *testing.T) {
	plain := NewNode(nil)
	tiered := NewNode(map[string]string{"remote.log.storage.system.enable": "true"})
	const on = "remote.storage.enable=true "
	for _, c := range []struct {
		node              *Node
		configs, existing string
		want              string
	}{
		{plain, "retention.ms=5 cleanup.policy=compact", "", ""},
		{plain, "no.such=1", "", "Unknown topic config name: no.such"},
		{plain, "retention.ms=x", "", "Invalid value x for configuration retention.ms: Not a number of type LONG"},
		{plain, "min.compaction.lag.ms=5 max.compaction.lag.ms=4", "", "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)"},
		{plain, on, "", "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."},
		{tiered, on, "", ""},
		{tiered, "", on, "It is invalid to disable remote storage without deleting remote data."},
		{tiered, "remote.log.delete.on.disable=true", on, ""},
		{tiered, on + "cleanup.policy=compact", "", "Remote log storage only supports topics with cleanup.policy=delete"},
		{tiered, on + "cleanup.policy=", "", ""},
		{tiered, on + "retention.ms=5 local.retention.ms=6", "", "Invalid value 6 for configuration local.retention.ms: Value must not be more than retention.ms property value: 5"},
		{tiered, on + "retention.bytes=5 local.retention.bytes=-1", "", "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as retention.bytes value is set as 5."},
		{tiered, on + "local.retention.ms=5 remote.copy.lag.ms=6", "", "Invalid value 6 for configuration remote.copy.lag.ms: Value must not exceed local.retention.ms (effective value: 5)"},
		{tiered, on + "local.retention.ms=5 remote.log.copy.disable=true", "", "When `remote.log.copy.disable` is set to true, the `local.retention.ms`"},
	} {
		err := c.node.CheckTopic(pairs(c.configs), pairs(c.existing))
		checkError(t, c.configs, err, c.want, errcode.InvalidConfig)
	}
}

func checkError(t *testing.T, what string, err error, want string, code errcode.Code) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (errcode.Of(err) != code || !strings.HasPrefix(errcode.Text(err), want)):
		t.Errorf("%s: got %v, want %v: %s", what, err, code, want)
	}
}

func TestCheckGroup(t *testing.T) {
	n := NewNode(map[string]string{"group.consumer.min.session.timeout.ms": "5000"})
	for configs, want := range map[string]string{
		"consumer.session.timeout.ms=50000 share.auto.offset.reset=earliest": "",
		"consumer.session.timeout.ms=1":                                      "consumer.session.timeout.ms must be in the range 5000 to 60000 inclusive.",
		"consumer.session.timeout.ms=999999999":                              "consumer.session.timeout.ms must be in the range 5000 to 60000 inclusive.",
		"share.auto.offset.reset=middle":                                     "Invalid value middle for configuration share.auto.offset.reset: ",
		"no.such=1":                                                          "Unknown group config name: no.such",
		"streams.num.standby.replicas=9":                                     "streams.num.standby.replicas must be less than or equal to 2",
		"streams.assignor.name=x":                                            "streams.assignor.name 'x' is not a registered task assignor. Registered assignors are: [sticky].",
		"errors.deadletterqueue.topic.name=__x":                              "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'",
		"streams.rack.aware.assignment.tags=a,a":                             "streams.rack.aware.assignment.tags must not contain duplicate tag keys.",
		"consumer.session.timeout.ms=5000":                                   "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
	} {
		checkError(t, configs, n.CheckGroup(pairs(configs)), want, errcode.InvalidConfig)
	}
}

func TestCheckClientMetrics(t *testing.T) {
	for _, c := range []struct {
		name, configs, want string
		code                errcode.Code
	}{
		{"m", "interval.ms=5000 metrics=a,b match=client_id=x.*,client_source_port=9", "", 0},
		{"", "", "Subscription name can't be empty", errcode.InvalidRequest},
		{"m", "interval.ms=1", "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)", errcode.InvalidRequest},
		{"m", "match=no_such_key=1", "Illegal client matching pattern: no_such_key=1", errcode.InvalidConfig},
		{"m", "match=client_id=(", "Illegal client matching pattern: client_id=(", errcode.InvalidConfig},
		{"m", "match=client_id", "Illegal client matching pattern: client_id", errcode.InvalidConfig},
		{"m", "no.such=1", "Unknown client metrics configuration: no.such", errcode.InvalidRequest},
	} {
		checkError(t, c.configs, CheckClientMetrics(c.name, pairs(c.configs)), c.want, c.code)
	}
}

func TestCheckBroker(t *testing.T) {
	n := NewNode(nil)
	for _, c := range []struct {
		configs   string
		perBroker bool
		want      string
	}{
		{"log.cleaner.backoff.ms=16000", true, ""},
		{"log.retention.bytes=1", false, ""},
		{"no.such=1", true, ""},
		{"log.dirs=/x node.id=4", true, "Cannot update these configs dynamically: [log.dirs, node.id]"},
		{"num.io.threads=0", true, "Invalid value 0 for configuration num.io.threads: Value must be at least 1"},
		{"num.io.threads=1000", true, "Invalid dynamic configuration: num.io.threads=1000, value should not be greater than double the current value 8"},
		{"num.io.threads=3", false, "Invalid dynamic configuration: num.io.threads=3, value should be at least half the current value 8"},
		{"num.io.threads=16", true, ""},
		{"log.cleaner.threads=2", true, ""},
		{"log.cleaner.threads=3", true, "Log cleaner threads cannot be increased to more than double the current value 1"},
		{"log.cleaner.threads=0", true, "Log cleaner threads should be at least 1"},
		{"listeners=PLAINTEXT://:1", false, "Cannot update these configs at default cluster level, broker id must be specified: [listeners]"},
		{"ssl.keystore.location=/x", true, "These security configs can be dynamically updated only per-listener"},
		{"listener.name.x.ssl.keystore.location=/x", true, ""},
		{"listener.name.x.ssl.keystore.location=/x", false, "Cannot update these configs at default cluster level"},
		{"listener.name.x.max.connections=5", false, ""},
		{"grpc.listeners=x", true, "Cannot update these configs dynamically: [grpc.listeners]"},
		{"log.retention.ms=0", true, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"},
		{"follower.replication.throttled.rate=5", true, ""},
		{"remote.log.manager.copier.thread.pool.size=4", true, "Invalid dynamic configuration: remote.log.manager.copier.thread.pool.size=4, value should be at least half the current value 10"},
		{"remote.log.manager.copier.thread.pool.size=21", false, "Invalid dynamic configuration: remote.log.manager.copier.thread.pool.size=21, value should not be greater than double the current value 10"},
		{"remote.log.manager.expiration.thread.pool.size=21", true, "Invalid dynamic configuration: remote.log.manager.expiration.thread.pool.size=21, value should not be greater than double the current value 10"},
		{"remote.log.manager.follower.thread.pool.size=5", true, "Invalid dynamic configuration: remote.log.manager.follower.thread.pool.size=5, value should not be greater than double the current value 2"},
		{"remote.log.reader.threads=4", true, "Invalid dynamic configuration: remote.log.reader.threads=4, value should be at least half the current value 10"},
		{"remote.log.reader.threads=5 remote.log.manager.copier.thread.pool.size=20", true, ""},
		{"log.local.retention.ms=-1", true, "Invalid value -1 for configuration log.local.retention.ms: Value must not be -1 as log.retention.ms value is set as 604800000."},
		{"log.local.retention.ms=-1 log.retention.ms=-1", true, ""},
		{"log.local.retention.ms=604800001", false, "Invalid value 604800001 for configuration log.local.retention.ms: Value must not be more than log.retention.ms property value: 604800000"},
		{"log.local.retention.ms=6 log.retention.ms=5", false, "Invalid value 6 for configuration log.local.retention.ms: Value must not be more than log.retention.ms property value: 5"},
		{"log.local.retention.bytes=-1", true, ""},
		{"log.local.retention.bytes=-1 log.retention.bytes=5", true, "Invalid value -1 for configuration log.local.retention.bytes: Value must not be -1 as log.retention.bytes value is set as 5."},
		{"log.local.retention.bytes=6 log.retention.bytes=5", true, "Invalid value 6 for configuration log.local.retention.bytes: Value must not be more than log.retention.bytes property value: 5"},
		{"log.remote.copy.lag.ms=604800001", true, "Invalid value 604800001 for configuration log.remote.copy.lag.ms: Value must not exceed log.local.retention.ms (effective value: 604800000)"},
		{"log.remote.copy.lag.bytes=6 log.local.retention.bytes=5", true, "Invalid value 6 for configuration log.remote.copy.lag.bytes: Value must not exceed log.local.retention.bytes (effective value: 5)"},
	} {
		checkError(t, c.configs, n.CheckBroker(pairs(c.configs), c.perBroker), c.want, errcode.InvalidRequest)
	}
}
