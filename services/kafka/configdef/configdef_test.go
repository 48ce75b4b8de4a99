package configdef

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
)

var resources = []Resource{TopicResource, BrokerResource, GroupResource, ClientMetricsResource}

func TestTables(t *testing.T) {
	for _, r := range resources {
		defs := All(r)
		if !slices.IsSortedFunc(defs, func(a, b Def) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("table of resource %d is not sorted", r)
		}
		for i := range defs {
			d := &defs[i]
			if i > 0 && defs[i-1].Name == d.Name {
				t.Errorf("%s comes twice", d.Name)
			}
			if d.Doc == "" || d.Type == Unknown || d.Importance == 0 || (r == BrokerResource) != (d.Mode != 0) {
				t.Errorf("%s lacks something: %+v", d.Name, d)
			}
			if d.DefaultKind == HasDefault {
				if _, err := d.Parse(d.Default); err != nil {
					t.Errorf("default of %s: %v", d.Name, err)
				}
			} else if d.Default != "" {
				t.Errorf("%s has a default that does not count", d.Name)
			}
			for _, s := range d.Synonyms {
				if brokerTable.get(s.Name) == nil {
					t.Errorf("%s has the unknown synonym %s", d.Name, s.Name)
				}
			}
			for _, bound := range []string{d.LowerBound, d.UpperBound} {
				if bound != "" && brokerTable.get(bound) == nil {
					t.Errorf("%s has the unknown bound %s", d.Name, bound)
				}
			}
		}
	}
	if err := NewNode(nil).Check(); err != nil {
		t.Errorf("the defaults do not fit together: %v", err)
	}
}

var sourceNames = map[Source]string{
	DynamicTopic: "DYNAMIC_TOPIC_CONFIG", DynamicBroker: "DYNAMIC_BROKER_CONFIG",
	DynamicDefaultBroker: "DYNAMIC_DEFAULT_BROKER_CONFIG", StaticBroker: "STATIC_BROKER_CONFIG", Default: "DEFAULT_CONFIG",
	DynamicClientMetrics: "CLIENT_METRICS_CONFIG", DynamicGroup: "GROUP_CONFIG",
}

// line writes an entry as the recordings in testdata have it.
func line(e Entry, synonyms bool) string {
	quote := func(s *string) string {
		b, err := json.Marshal(s)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	pick := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	fields := []string{e.Name, e.Type.String(), sourceNames[e.Source], pick(e.ReadOnly, "ro", "rw"),
		pick(e.Sensitive, "sensitive", "-"), quote(e.Value)}
	if synonyms {
		for _, s := range e.Synonyms {
			fields = append(fields, s.Name+":"+sourceNames[s.Source]+":"+quote(s.Value))
		}
	}
	return strings.Join(fields, "\t")
}

func compare(t *testing.T, file string, entries []Entry, synonyms bool) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	var got []string
	for _, e := range entries {
		got = append(got, line(e, synonyms))
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			name, _, _ := strings.Cut(w, "\t")
			i := slices.IndexFunc(got, func(g string) bool { return strings.HasPrefix(g, name+"\t") })
			if i < 0 {
				t.Errorf("missing: %s", w)
				continue
			}
			t.Errorf("want %s\n got %s", w, got[i])
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) && file != "describe-broker.txt" {
			t.Errorf("not in the recording: %s", g)
		}
	}
}

// The recordings were made with these settings; what they set is left out of the recording of the broker.
var recorded = map[string]string{
	"group.consumer.assignment.interval.ms": "0", "group.share.assignment.interval.ms": "0",
	"group.streams.assignment.interval.ms": "0", "group.streams.initial.rebalance.delay.ms": "0",
}

func TestDescribeAgainstKafka(t *testing.T) {
	node := NewNode(recorded).WithDynamic(map[string]string{"min.insync.replicas": "1"}, nil)
	topic := node.Layers(map[string]string{"retention.ms": "12345"}).Describe(TopicResource, nil)
	compare(t, "describe-topic.txt", topic, true)
	compare(t, "describe-group.txt", node.Layers(nil).Describe(GroupResource, nil), true)
	// Configs that the recording's cluster sets are not in it, nor those of which there was no default to see.
	compare(t, "describe-broker.txt", node.Layers(nil).Describe(BrokerResource, nil), false)
}

func text(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func synonyms(e Entry) string {
	var parts []string
	for _, s := range e.Synonyms {
		parts = append(parts, fmt.Sprintf("%s=%s/%d", s.Name, text(s.Value), s.Source))
	}
	return strings.Join(parts, " ")
}

func TestDescribe(t *testing.T) {
	layers := Layers{
		Static: map[string]string{
			"log.retention.hours": "2", "num.io.threads": " 16 ", "ssl.key.password": "secret", "no.such": "x",
			"listener.name.external.ssl.keystore.location": "/k", "node.id": "7", "internal.metadata.log.segment.bytes": "8388608",
		},
		ClusterDefault: map[string]string{"log.retention.bytes": "5"},
		Broker:         map[string]string{"num.io.threads": "12"},
	}
	for _, c := range []struct{ name, want, synonyms string }{
		{"num.io.threads", "INT 12 2 rw", "num.io.threads=12/2 num.io.threads= 16 /4 num.io.threads=8/5"},
		{"log.retention.bytes", "LONG 5 3 rw", "log.retention.bytes=5/3 log.retention.bytes=-1/5"},
		{"log.retention.ms", "LONG null 5 rw", ""},
		{"log.retention.hours", "INT 2 4 ro", "log.retention.hours=2/4 log.retention.hours=168/5"},
		{"ssl.key.password", "PASSWORD null 4 rw sensitive", "ssl.key.password=null/4"},
		{"no.such", "UNKNOWN null 4 ro sensitive", "no.such=null/4"},
		{"listener.name.external.ssl.keystore.location", "STRING /k 4 ro", "listener.name.external.ssl.keystore.location=/k/4"},
		{"node.id", "INT 7 4 ro", "node.id=7/4"},
		{"internal.metadata.log.segment.bytes", "INT 8388608 4 ro", "internal.metadata.log.segment.bytes=8388608/4"},
	} {
		entries := layers.Describe(BrokerResource, []string{c.name})
		if len(entries) != 1 {
			t.Errorf("%s: %d entries", c.name, len(entries))
			continue
		}
		e := entries[0]
		got := fmt.Sprintf("%s %s %d %s", e.Type, text(e.Value), e.Source, map[bool]string{true: "ro", false: "rw"}[e.ReadOnly])
		if e.Sensitive {
			got += " sensitive"
		}
		if got != c.want || synonyms(e) != c.synonyms {
			t.Errorf("%s: got %q with %q, want %q with %q", c.name, got, synonyms(e), c.want, c.synonyms)
		}
	}
	if all := layers.DescribeClusterDefault(nil); len(all) != 1 || text(all[0].Value) != "5" || synonyms(all[0]) != "log.retention.bytes=5/3" {
		t.Errorf("cluster default: %+v", all)
	}
	for _, e := range layers.Describe(BrokerResource, nil) {
		if e.Name == "grpc.listeners" || e.Name == "server.max.startup.time.ms" {
			t.Errorf("%s is described although it is not set", e.Name)
		}
	}
	topic := layers.Describe(TopicResource, []string{"retention.ms", "retention.bytes"})
	if text(topic[0].Value) != "5" || synonyms(topic[0]) != "log.retention.bytes=5/3 log.retention.bytes=-1/5" {
		t.Errorf("topic: %+v", topic[0])
	}
	if text(topic[1].Value) != "7200000" || topic[1].Source != Default {
		t.Errorf("a coarser unit alone has no source of its own: %+v", topic[1])
	}
}

func TestEffective(t *testing.T) {
	layers := Layers{
		Static:   map[string]string{"log.retention.hours": "2", "log.roll.hours": "3", "log.roll.ms": "5"},
		Resource: map[string]string{"segment.bytes": "2000000"},
	}
	want := map[string]string{"retention.ms": "7200000/4", "segment.ms": "5/4", "segment.bytes": "2000000/1", "flush.ms": "9223372036854775807/5"}
	entries := layers.Effective()
	if len(entries) != len(topicTable)-1 {
		t.Errorf("%d entries for %d configs of which one is internal", len(entries), len(topicTable))
	}
	for _, e := range entries {
		if w, ok := want[e.Name]; ok && w != fmt.Sprintf("%s/%d", text(e.Value), e.Source) {
			t.Errorf("%s: got %s/%d, want %s", e.Name, text(e.Value), e.Source, w)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		resource         Resource
		name, text, want string
	}{
		{TopicResource, "retention.ms", "x", "Invalid value x for configuration retention.ms: Not a number of type LONG"},
		{TopicResource, "retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"},
		{TopicResource, "retention.ms", " 5\t", "=5"},
		{TopicResource, "retention.ms", "+5", "=5"},
		{TopicResource, "segment.bytes", "2147483648", "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT"},
		{TopicResource, "segment.bytes", "1048575", "Invalid value 1048575 for configuration segment.bytes: Value must be at least 1048576"},
		{TopicResource, "preallocate", " TRUE ", "=true"},
		{TopicResource, "preallocate", "yes", "Invalid value yes for configuration preallocate: Expected value to be either true or false"},
		{TopicResource, "cleanup.policy", "compact , delete", "=compact,delete"},
		{TopicResource, "cleanup.policy", "", "="},
		{TopicResource, "cleanup.policy", "compact,compact", "=compact"},
		{TopicResource, "cleanup.policy", "keep", "Invalid value keep for configuration cleanup.policy: String must be one of: compact, delete"},
		{TopicResource, "cleanup.policy", "compact,", "Configuration 'cleanup.policy' values must not be empty."},
		{TopicResource, "min.cleanable.dirty.ratio", "1.5", "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1"},
		{TopicResource, "min.cleanable.dirty.ratio", "1e-1f", "=0.1"},
		{TopicResource, "min.cleanable.dirty.ratio", "0x1p-1", "=0.5"},
		{TopicResource, "min.cleanable.dirty.ratio", "inf", "Invalid value inf for configuration min.cleanable.dirty.ratio: Not a number of type DOUBLE"},
		{TopicResource, "compression.gzip.level", "0", "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1"},
		{TopicResource, "compression.gzip.level", "-1", "=-1"},
		{TopicResource, "compression.type", "brotli", "Invalid value brotli for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"},
		{TopicResource, "leader.replication.throttled.replicas", "*", "=*"},
		{TopicResource, "leader.replication.throttled.replicas", "0:1,2:3", "=0:1,2:3"},
		{TopicResource, "leader.replication.throttled.replicas", "0", "Invalid value 0 for configuration leader.replication.throttled.replicas: " +
			"leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."},
		{BrokerResource, "listeners", "", "Configuration 'listeners' must not be empty. Valid values include: any non-empty value"},
		{BrokerResource, "group.consumer.migration.policy", "Upgrade", "=Upgrade"},
		{BrokerResource, "log.cleaner.io.max.bytes.per.second", "1e7", "=1.0E7"},
		{BrokerResource, "listener.name.x.ssl.keystore.type", "JKS", "=JKS"},
		{BrokerResource, "listener.name.x.scram-sha-256.sasl.jaas.config", "y", "=y"},
		{GroupResource, "share.auto.offset.reset", "by_duration:PT10M", "=by_duration:PT10M"},
		{GroupResource, "share.auto.offset.reset", "by_duration:P", "Invalid value by_duration:P for configuration share.auto.offset.reset: " +
			"The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."},
		{GroupResource, "share.auto.offset.reset", "by_duration:PT-1S", "Invalid value by_duration:PT-1S for configuration share.auto.offset.reset: " +
			"The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."},
	} {
		d := Lookup(c.resource, c.name)
		if d == nil {
			t.Errorf("no config %s", c.name)
			continue
		}
		v, err := d.Parse(c.text)
		got := "=" + text(d.Format(v))
		if err != nil {
			got = errcode.Text(err)
		}
		if got != c.want {
			t.Errorf("%s=%s: got %s, want %s", c.name, c.text, got, c.want)
		}
		if err != nil && errcode.Of(err) != errcode.InvalidConfig {
			t.Errorf("%s=%s: %v", c.name, c.text, errcode.Of(err))
		}
	}
}

func TestFormatDouble(t *testing.T) {
	for f, want := range map[float64]string{
		0.5: "0.5", 0: "0.0", 1: "1.0", 9999999: "9999999.0", 1e7: "1.0E7", math.MaxFloat64: "1.7976931348623157E308",
		0.001: "0.001", 0.0001: "1.0E-4", -2.5: "-2.5", 2147483647: "2.147483647E9",
	} {
		if got := formatDouble(f); got != want {
			t.Errorf("%g: got %s, want %s", f, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "1", "-1", "a,b", "NaN", "0x", "by_duration:P1D", "*", "1:2,3:4", "é", "1e999", "d", "+", "-", "0x1p", "Infinityd"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range resources {
			for i := range r.defs() {
				d := &r.defs()[i]
				v, err := d.Parse(s)
				if err != nil {
					continue
				}
				again, err := d.Parse(*d.Format(v))
				if err != nil || *d.Format(again) != *d.Format(v) {
					t.Errorf("%s=%q is shown as %q, which is read as %q, %v", d.Name, s, *d.Format(v), *d.Format(again), err)
				}
			}
		}
	})
}

func TestNode(t *testing.T) {
	n := NewNode(map[string]string{
		"node.id": "3", "log.retention.minutes": "2", "log.retention.hours": "1", "log.dirs": "/a, /b", "broker.rack": "r",
		"connections.max.idle.ms": "9223372036854775807",
	})
	if n.Int("broker.id") != 3 || n.LogRetentionMs() != 120000 || n.String("broker.rack") != "r" || !n.Bool("auto.create.topics.enable") {
		t.Error("wrong values")
	}
	if got := n.List("log.dirs"); !slices.Equal(got, []string{"/a", "/b"}) {
		t.Errorf("log.dirs: %q", got)
	}
	if n.Duration("connections.max.idle.ms") != math.MaxInt64 || n.Duration("broker.session.timeout.ms") != 9*time.Second {
		t.Error("wrong durations")
	}
	if !n.IsNull("log.retention.ms") || n.IsSet("log.roll.ms") || !n.IsSet("log.dirs") || n.Double("log.cleaner.io.buffer.load.factor") != 0.9 {
		t.Error("wrong about what is set")
	}
	dynamic := n.WithDynamic(map[string]string{"log.retention.ms": "7", "min.insync.replicas": "2"}, map[string]string{"log.retention.ms": "8"})
	topic, err := dynamic.Topic(map[string]string{"cleanup.policy": "compact,delete", "max.message.bytes": "77"})
	if err != nil || topic.RetentionMs != 8 || topic.MinInsyncReplicas != 2 || !topic.CleanupCompact || !topic.CleanupDelete || topic.MaxMessageBytes != 77 {
		t.Errorf("topic: %+v, %v", topic, err)
	}
	topic, err = n.Topic(map[string]string{"max.message.bytes": "x", "internal.segment.bytes": "1000"})
	if errcode.Of(err) == errcode.None || topic.MaxMessageBytes != 1048588 || topic.SegmentBytes != 1000 || topic.RetentionMs != 120000 {
		t.Errorf("topic with a bad value: %+v, %v", topic, err)
	}
	if topic, _ := NewNode(map[string]string{"log.retention.hours": "-1"}).Topic(nil); topic.RetentionMs != -1 {
		t.Errorf("retention of -1 hours is %d ms", topic.RetentionMs)
	}
	g := NewNode(map[string]string{"group.consumer.max.session.timeout.ms": "50000"})
	if got := g.GroupValue("consumer.session.timeout.ms", map[string]string{"consumer.session.timeout.ms": "60000"}).Int; got != 50000 {
		t.Errorf("a group's time-out beyond the bound is %d", got)
	}
	if got := g.GroupValue("streams.assignor.name", nil).Text; got != "sticky" {
		t.Errorf("assignor %q", got)
	}
	for static, want := range map[string]string{
		"replica.fetch.wait.max.ms=40000": "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms",
		"log.retention.ms=0":              "log.retention.ms must be unlimited (-1)",
		"max.connections.per.ip=0":        "max.connections.per.ip can be set to zero only if",
		"num.io.threads=0":                "Invalid value 0 for configuration num.io.threads: Value must be at least 1",
		"group.consumer.session.timeout.ms=70000": "group.consumer.session.timeout.ms must be less than or equal to " +
			"group.consumer.max.session.timeout.ms",
		"remote.log.storage.system.enable=true log.local.retention.ms=604800001":                   "log.local.retention.ms: Value must not be more than log.retention.ms",
		"remote.log.storage.system.enable=true log.retention.bytes=5 log.local.retention.bytes=-1": "log.local.retention.bytes: Value must not be -1",
	} {
		if err := NewNode(pairs(static)).Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", static, err, want)
		}
	}
}
