package metadata

import (
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

func text(s string) *string { return &s }

func id(n byte) uuid.UUID { return uuid.UUID{n, 15: n} }

// contents are everything in an image, comparable with reflect.DeepEqual.
func contents(i *Image) []metarecord.Record { return slices.Collect(i.Records()) }

func apply(t *testing.T, i *Image, records ...metarecord.Record) *Delta {
	t.Helper()
	d, err := i.Apply(i.Offset()+int64(len(records)), max(1, i.Epoch()), records...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func partitionRecord(topic uuid.UUID, n int32, replicas ...int32) *metarecord.PartitionRecord {
	return &metarecord.PartitionRecord{
		PartitionID: n, TopicID: topic, Replicas: replicas, ISR: replicas, Leader: replicas[0], Directories: make([]uuid.UUID, len(replicas)),
	}
}

func TestPartitionChange(t *testing.T) {
	base := apply(t, Empty("c"), &metarecord.TopicRecord{Name: "a", TopicID: id(1)}, partitionRecord(id(1), 0, 1, 2, 3)).Image()
	dirs := []uuid.UUID{id(7), id(8)}
	for _, c := range []struct {
		what   string
		change func(*metarecord.PartitionChangeRecord)
		want   Partition
	}{
		{"nothing", func(*metarecord.PartitionChangeRecord) {},
			Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Directories: make([]uuid.UUID, 3), Leader: 1, PartitionEpoch: 1}},
		{"the same leader", func(r *metarecord.PartitionChangeRecord) { r.Leader = 1 },
			Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Directories: make([]uuid.UUID, 3), Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1}},
		{"no leader, empty ISR, ELR", func(r *metarecord.PartitionChangeRecord) {
			r.Leader, r.ISR, r.EligibleLeaderReplicas, r.LastKnownELR = NoLeader, []int32{}, []int32{1, 2}, []int32{3}
		}, Partition{Replicas: []int32{1, 2, 3}, ELR: []int32{1, 2}, LastKnownELR: []int32{3}, Directories: make([]uuid.UUID, 3), Leader: NoLeader, LeaderEpoch: 1, PartitionEpoch: 1}},
		{"unclean", func(r *metarecord.PartitionChangeRecord) {
			r.Leader, r.ISR, r.LeaderRecoveryState = 3, []int32{3}, metarecord.Recovering
		}, Partition{Replicas: []int32{1, 2, 3}, ISR: []int32{3}, Directories: make([]uuid.UUID, 3), Leader: 3, LeaderEpoch: 1, PartitionEpoch: 1, RecoveringUnclean: true}},
		{"reassignment", func(r *metarecord.PartitionChangeRecord) {
			r.Replicas, r.AddingReplicas, r.RemovingReplicas, r.Directories = []int32{1, 4}, []int32{4}, []int32{2, 3}, dirs
		}, Partition{Replicas: []int32{1, 4}, ISR: []int32{1, 2, 3}, AddingReplicas: []int32{4}, RemovingReplicas: []int32{2, 3}, Directories: dirs, Leader: 1, PartitionEpoch: 1}},
	} {
		r := metarecord.NewPartitionChange(id(1), 0)
		c.change(r)
		d := apply(t, base, r)
		if got := d.Image().Partition(id(1), 0); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.what, *got, c.want)
		}
		changes := slices.Collect(d.Topics())
		if len(changes) != 1 || len(slices.Collect(changes[0].Partitions())) != 1 {
			t.Errorf("%s: changes %+v", c.what, changes)
		}
	}
	// The recovery state and the ELR end when a record says so, and only then.
	r := metarecord.NewPartitionChange(id(1), 0)
	r.LeaderRecoveryState, r.EligibleLeaderReplicas = metarecord.Recovering, []int32{2}
	recovering := apply(t, base, r).Image()
	still := apply(t, recovering, metarecord.NewPartitionChange(id(1), 0)).Image().Partition(id(1), 0)
	r = metarecord.NewPartitionChange(id(1), 0)
	r.LeaderRecoveryState = metarecord.Recovered
	done := apply(t, recovering, r, &metarecord.ClearElrRecord{}).Image().Partition(id(1), 0)
	if !still.RecoveringUnclean || len(still.ELR) != 1 || done.RecoveringUnclean || done.ELR != nil || done.PartitionEpoch != 3 {
		t.Errorf("still %+v, done %+v", still, done)
	}
}

func TestTopics(t *testing.T) {
	one := apply(t, Empty("c"),
		&metarecord.TopicRecord{Name: "a", TopicID: id(1)}, partitionRecord(id(1), 1, 1), partitionRecord(id(1), 0, 1),
		&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "a", Name: "retention.ms", Value: text("1")}).Image()
	if a := one.TopicByName("a"); a == nil || len(a.Partitions) != 2 || one.TopicCount() != 1 {
		t.Fatalf("topic %+v", a)
	}
	// Deleted and made again under the same name in one batch.
	d := apply(t, one, &metarecord.RemoveTopicRecord{TopicID: id(1)}, &metarecord.TopicRecord{Name: "a", TopicID: id(2)}, partitionRecord(id(2), 0, 1))
	two := d.Image()
	if two.Topic(id(1)) != nil || two.TopicByName("a").ID != id(2) || two.Config(ResourceTopic, "a") != nil || two.ConfigResources(ResourceTopic) != nil {
		t.Errorf("after the replacement: %v", contents(two))
	}
	changes := slices.Collect(d.Topics())
	if len(changes) != 2 || changes[0].New != nil || changes[0].ID() != id(1) || changes[1].Old != nil || changes[1].Name() != "a" {
		t.Errorf("changes %+v", changes)
	}
	if got := slices.Collect(d.Configs()); len(got) != 1 || got[0] != (ConfigResource{ResourceTopic, "a"}) {
		t.Errorf("configs %v", got)
	}
	// Made and deleted in one batch leaves no trace.
	d = apply(t, two, &metarecord.TopicRecord{Name: "b", TopicID: id(3)}, partitionRecord(id(3), 0, 1), &metarecord.RemoveTopicRecord{TopicID: id(3)})
	if got := slices.Collect(d.Topics()); len(got) != 0 || d.Image().TopicByName("b") != nil {
		t.Errorf("changes %+v", got)
	}
	if one.TopicByName("a").ID != id(1) || one.Config(ResourceTopic, "a")["retention.ms"] != "1" {
		t.Error("an earlier image changed")
	}
	if one.Partition(id(1), 2) != nil || one.Partition(id(1), -1) != nil || one.Partition(id(9), 0) != nil || one.TopicByName("x") != nil {
		t.Error("found what is not there")
	}
}

func TestReplayRefuses(t *testing.T) {
	base := apply(t, Empty("c"), &metarecord.TopicRecord{Name: "a", TopicID: id(1)}, partitionRecord(id(1), 0, 1),
		&metarecord.RegisterBrokerRecord{BrokerID: 1, BrokerEpoch: 5}, &metarecord.RegisterServiceRecord{Kind: 1, ID: 1, Epoch: 6}).Image()
	for what, records := range map[string][]metarecord.Record{
		"partition of no topic":       {partitionRecord(id(9), 0, 1)},
		"gap":                         {partitionRecord(id(1), 2, 1), &metarecord.NoOpRecord{}},
		"huge partition":              {partitionRecord(id(1), 1<<30, 1)},
		"negative partition":          {partitionRecord(id(1), -1, 1)},
		"change of no partition":      {metarecord.NewPartitionChange(id(1), 1)},
		"change of no topic":          {metarecord.NewPartitionChange(id(9), 0)},
		"removal of no topic":         {&metarecord.RemoveTopicRecord{TopicID: id(9)}},
		"topic without a name":        {&metarecord.TopicRecord{TopicID: id(9)}},
		"directories":                 {&metarecord.PartitionRecord{TopicID: id(1), Replicas: []int32{1}, Directories: []uuid.UUID{id(1), id(2)}}},
		"unknown broker":              {&metarecord.FenceBrokerRecord{ID: 2, Epoch: 5}},
		"old broker epoch":            {&metarecord.UnfenceBrokerRecord{ID: 1, Epoch: 4}},
		"bad fencing":                 {&metarecord.BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 5, Fenced: 2}},
		"bad shutdown":                {&metarecord.BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 5, InControlledShutdown: 2}},
		"unknown service":             {&metarecord.ServiceChangeRecord{Kind: 2, ID: 1, Epoch: 6}},
		"old service epoch":           {&metarecord.ServiceChangeRecord{Kind: 1, ID: 1, Epoch: 5}},
		"ELR of no topic":             {&metarecord.ClearElrRecord{TopicName: "x"}},
		"removal of no access rule":   {&metarecord.RemoveAccessControlEntryRecord{ID: id(1)}},
		"removal of no credential":    {&metarecord.RemoveUserScramCredentialRecord{Name: "x"}},
		"quota of an unknown element": {&metarecord.ClientQuotaRecord{Entity: []metarecord.QuotaEntity{{Type: "planet"}}}},
	} {
		if _, err := base.Apply(9, 1, records...); err == nil || !strings.Contains(err.Error(), ErrReplay.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	d := NewDelta(base)
	d.Image()
	if err := d.Apply(9, 1, &metarecord.NoOpRecord{}); err == nil {
		t.Error("a delta changed after its image was taken")
	}
}

func TestMembers(t *testing.T) {
	endpoint := []metarecord.Endpoint{{Name: GRPCEndpoint, Host: "h", Port: 1}}
	one := apply(t, Empty("c"),
		&metarecord.RegisterBrokerRecord{BrokerID: 3, BrokerEpoch: 1, Fenced: true, EndPoints: endpoint, LogDirs: []uuid.UUID{id(2), id(1)},
			Features: []metarecord.Feature{{Name: "metadata.version", MinSupportedVersion: 7, MaxSupportedVersion: 33}}, Rack: text("r")},
		&metarecord.RegisterBrokerRecord{BrokerID: 1, BrokerEpoch: 2},
		&metarecord.RegisterServiceRecord{Kind: 2, ID: 1, Epoch: 3, EndPoints: endpoint, Version: "v", Fenced: true},
		&metarecord.RegisterServiceRecord{Kind: 1, ID: 9, Epoch: 4},
		&metarecord.RegisterServiceRecord{Kind: 1, ID: 2, Epoch: 5},
		&metarecord.RegisterControllerRecord{ControllerID: 3, EndPoints: endpoint},
		&metarecord.ShardRecord{Kind: 1, Shard: 7, Owner: 1, Epoch: 1}).Image()
	if got := one.Brokers(); len(got) != 2 || got[0].ID != 1 || got[1].Directories[0] != id(1) || got[1].SupportedFeatures["metadata.version"].Max != 33 {
		t.Errorf("brokers %+v", got)
	}
	if got := one.Services(Gateway); len(got) != 2 || got[0].ID != 2 || len(one.Services(Tiering)) != 0 || one.Services(Coordinator)[0].Version != "v" {
		t.Errorf("gateways %+v", got)
	}
	if e, ok := one.Service(Coordinator, 1).Endpoint(GRPCEndpoint); !ok || e.Port != 1 || one.Service(Coordinator, 2) != nil {
		t.Errorf("endpoint %+v", e)
	}
	if one.Shard(GroupShard, 7) != (Shard{1, 1}) || one.Shard(GroupShard, 8) != (Shard{Owner: -1}) || one.Shard(ShareShard, 7) != (Shard{Owner: -1}) {
		t.Error("wrong shards")
	}
	d := apply(t, one,
		&metarecord.UnfenceBrokerRecord{ID: 3, Epoch: 1},
		&metarecord.BrokerRegistrationChangeRecord{BrokerID: 3, BrokerEpoch: 1, InControlledShutdown: metarecord.ControlledShutdownEnter, CordonedLogDirs: []uuid.UUID{id(1)}},
		&metarecord.UnregisterBrokerRecord{BrokerID: 1, BrokerEpoch: 2},
		&metarecord.ServiceChangeRecord{Kind: 2, ID: 1, Epoch: 3, Fenced: false},
		&metarecord.UnregisterServiceRecord{Kind: 1, ID: 9, Epoch: 4},
		&metarecord.UnregisterControllerRecord{ControllerID: 3},
		&metarecord.ShardRecord{Kind: 1, Shard: 7, Owner: -1, Epoch: 2})
	two := d.Image()
	b := two.Broker(3)
	if b.Fenced || !b.InControlledShutdown || len(b.CordonedDirectories) != 1 || two.Broker(1) != nil || *b.Rack != "r" || len(b.Directories) != 2 {
		t.Errorf("broker %+v", b)
	}
	if !one.Broker(3).Fenced || one.Broker(1) == nil {
		t.Error("an earlier image changed")
	}
	if two.Service(Coordinator, 1).Fenced || two.Service(Gateway, 9) != nil || len(two.Controllers()) != 0 {
		t.Error("wrong services")
	}
	var changed []string
	for c := range d.Brokers() {
		changed = append(changed, fmt.Sprintf("broker old=%v new=%v", c.Old != nil, c.New != nil))
	}
	for c := range d.Services() {
		changed = append(changed, fmt.Sprintf("service old=%v new=%v", c.Old != nil, c.New != nil))
	}
	for c := range d.Controllers() {
		changed = append(changed, fmt.Sprintf("controller old=%v new=%v", c.Old != nil, c.New != nil))
	}
	for s, now := range d.Shards() {
		changed = append(changed, fmt.Sprintf("shard %v %v", s, now))
	}
	want := "broker old=true new=true, broker old=true new=false, service old=true new=true, service old=true new=false, " +
		"controller old=true new=false, shard {1 7} {-1 2}"
	if got := strings.Join(changed, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestKafkaLog replays a log that Apache Kafka wrote.
func TestKafkaLog(t *testing.T) {
	data, err := os.ReadFile("../kafka/metarecord/testdata/apache-kafka-4.4.txt")
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(Empty("c"))
	for line := range strings.Lines(string(data)) {
		offset, frame, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(offset, 10, 64)
		if err != nil || n < 0 {
			continue
		}
		b, err := hex.DecodeString(frame)
		if err != nil {
			t.Fatal(err)
		}
		r, err := metarecord.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		// Control records and the records of other batches lie between.
		for l.NextOffset() < n {
			if err := l.Add(l.NextOffset(), 1, []metarecord.Record{&metarecord.NoOpRecord{}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Add(n, 1, []metarecord.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	i := l.Take().Image()
	a := i.TopicByName("a")
	if a == nil || len(a.Partitions) != 3 || a.Partitions[0].Replicas[0] != 1 || i.TopicCount() != 1 {
		t.Errorf("topic a is %+v", a)
	}
	if got := i.Config(ResourceTopic, "a"); !maps.Equal(got, map[string]string{"cleanup.policy": "compact"}) {
		t.Errorf("configs of a: %v", got)
	}
	if i.FeatureLevel("metadata.version") != 33 || i.Config(ResourceBroker, "")["min.insync.replicas"] != "1" || i.NextProducerID() != 1000 {
		t.Errorf("features %v, producer id %d", i.Features(), i.NextProducerID())
	}
	if b := i.Broker(1); b == nil || len(b.Directories) != 1 || len(i.Controllers()) != 1 {
		t.Errorf("broker %+v", b)
	}
	if len(slices.Collect(i.ACLs())) != 0 || len(maps.Collect(i.ClientQuotas())) != 1 {
		t.Errorf("access rules or quotas: %v", contents(i))
	}
}

// drawRecord makes a record that fits the image.
func drawRecord(t *rapid.T, i *Image) metarecord.Record {
	n := func(what string, high int) int { return rapid.IntRange(0, high).Draw(t, what) }
	topic := id(byte(1 + n("topic", 4)))
	existing := i.Topic(topic)
	kind := n("kind", 15)
	switch {
	case kind < 3 && existing == nil:
		return &metarecord.TopicRecord{Name: fmt.Sprint("t", topic[0]), TopicID: topic}
	case kind < 3 && existing != nil:
		r := partitionRecord(topic, int32(len(existing.Partitions)), 1, 2, int32(3+n("replica", 2)))
		r.EligibleLeaderReplicas = []int32{7}
		return r
	case kind == 3 && existing != nil:
		return &metarecord.RemoveTopicRecord{TopicID: topic}
	case kind == 4 && existing != nil:
		return &metarecord.ClearElrRecord{TopicName: existing.Name}
	case kind < 8 && existing != nil && len(existing.Partitions) > 0:
		r := metarecord.NewPartitionChange(topic, int32(n("partition", len(existing.Partitions)-1)))
		if n("leader", 1) == 0 {
			r.Leader = int32(n("leader id", 3)) - 1
		}
		r.ISR = []int32{1, 2, 3}[:n("isr", 3)]
		return r
	case kind == 8:
		return &metarecord.RegisterBrokerRecord{BrokerID: int32(n("broker", 3)), BrokerEpoch: i.Offset(), Fenced: true}
	case kind == 9 && len(i.Brokers()) > 0:
		b := i.Brokers()[n("broker", len(i.Brokers())-1)]
		return &metarecord.BrokerRegistrationChangeRecord{BrokerID: b.ID, BrokerEpoch: b.Epoch, Fenced: int8(n("fence", 2)) - 1}
	case kind == 10:
		return &metarecord.RegisterServiceRecord{Kind: int8(1 + n("service", 2)), ID: int32(n("id", 2)), Epoch: i.Offset()}
	case kind == 11:
		return &metarecord.ShardRecord{Kind: int8(1 + n("shard kind", 2)), Shard: int32(n("shard", 3)), Owner: int32(n("owner", 3)), Epoch: int32(i.Offset())}
	case kind == 12:
		entity := []metarecord.QuotaEntity{{Type: "user", Name: []*string{nil, text("a")}[n("user", 1)]}}
		return &metarecord.ClientQuotaRecord{Entity: entity, Key: fmt.Sprint("k", n("key", 1)), Value: float64(n("value", 3)), Remove: n("remove", 1) == 0}
	case kind == 13:
		return &metarecord.AccessControlEntryRecord{ID: id(byte(n("acl", 3))), ResourceName: fmt.Sprint(n("name", 3))}
	case kind == 14:
		return &metarecord.FeatureLevelRecord{Name: fmt.Sprint("f", n("feature", 2)), FeatureLevel: int16(n("level", 2))}
	}
	r := &metarecord.ConfigRecord{ResourceType: 2, ResourceName: fmt.Sprint("t", topic[0]), Name: fmt.Sprint("c", n("config", 2))}
	if n("set", 1) == 1 {
		r.Value = text(fmt.Sprint(n("value", 3)))
	}
	return r
}

// TestImagesAreImmutableAndEqualTheirSnapshots applies random records in random batches and checks after each batch that no
// earlier image has changed, that the snapshot makes an equal image, and that the delta tells all differences.
func TestImagesAreImmutableAndEqualTheirSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		images := []*Image{Empty("c")}
		before := [][]metarecord.Record{nil}
		for range rapid.IntRange(1, 15).Draw(t, "batches") {
			base := images[len(images)-1]
			d := NewDelta(base)
			view := base
			for range rapid.IntRange(1, 6).Draw(t, "records") {
				r := drawRecord(t, view)
				single, err := view.Apply(view.Offset()+1, 1, r)
				if err != nil {
					t.Fatal(err)
				}
				view = single.Image()
				if err := d.Apply(view.Offset(), 1, r); err != nil {
					t.Fatal(err)
				}
			}
			next := d.Image()
			if !reflect.DeepEqual(contents(next), contents(view)) {
				t.Fatalf("one delta gives\n%v\nmany give\n%v", contents(next), contents(view))
			}
			checkSnapshot(t, next)
			checkDiff(t, d)
			images, before = append(images, next), append(before, contents(next))
		}
		for n, i := range images {
			if !reflect.DeepEqual(contents(i), before[n]) {
				t.Fatalf("image %d of %d has changed", n, len(images))
			}
		}
	})
}

func checkSnapshot(t *rapid.T, i *Image) {
	records, err := metarecord.DecodeAll(metarecord.EncodeAll(contents(i)))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Empty("c").Apply(i.Offset(), i.Epoch(), records...)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(contents(d.Image()), contents(i)) {
		t.Fatalf("snapshot gives\n%v\nnot\n%v", contents(d.Image()), contents(i))
	}
	// From a snapshot to an equal image nothing is different.
	if same := Diff(i, d.Image()); describe(same) != "" {
		t.Fatalf("difference between equal images: %s", describe(same))
	}
}

// describe lists the differences of a delta, sorted.
func describe(d *Delta) string {
	var lines []string
	for c := range d.Topics() {
		var partitions []int32
		for p := range c.Partitions() {
			partitions = append(partitions, p.Partition)
		}
		lines = append(lines, fmt.Sprint("topic ", c.Name(), c.ID()[0], c.Old == nil, c.New == nil, partitions))
	}
	for c := range d.Brokers() {
		lines = append(lines, fmt.Sprint("broker ", c.Old, c.New))
	}
	for c := range d.Services() {
		lines = append(lines, fmt.Sprint("service ", c.Old, c.New))
	}
	for s, now := range d.Shards() {
		lines = append(lines, fmt.Sprint("shard ", s, now))
	}
	for c := range d.Configs() {
		lines = append(lines, fmt.Sprint("config ", c))
	}
	for c := range d.ACLs() {
		lines = append(lines, fmt.Sprint("acl ", c.Old, c.New))
	}
	for c := range d.ClientQuotas() {
		lines = append(lines, fmt.Sprint("quota ", c))
	}
	if d.FeaturesChanged() {
		lines = append(lines, "features")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkDiff compares what a delta tells with what comparing its two images tells. Setting something to the value that it
// has may count as a change for the delta of the records, so that one may tell more.
func checkDiff(t *rapid.T, d *Delta) {
	told := strings.Split(describe(d), "\n")
	diff := Diff(d.Base(), d.Image())
	for line := range strings.SplitSeq(describe(diff), "\n") {
		if line != "" && !slices.Contains(told, line) && !strings.HasPrefix(line, "topic ") {
			t.Fatalf("the delta does not tell of %s, only of\n%s", line, strings.Join(told, "\n"))
		}
	}
	if !reflect.DeepEqual(contents(diff.Image()), contents(d.Image())) {
		t.Fatal("the image of the difference is another one")
	}
	for c := range diff.Topics() {
		if !slices.ContainsFunc(slices.Collect(d.Topics()), func(o TopicChange) bool { return o.ID() == c.ID() }) {
			t.Fatalf("the delta does not tell of topic %s", c.Name())
		}
	}
}

func TestLoaderTransactions(t *testing.T) {
	feature := func(name string) metarecord.Record {
		return &metarecord.FeatureLevelRecord{Name: name, FeatureLevel: 1}
	}
	begin, end, abort := &metarecord.BeginTransactionRecord{}, &metarecord.EndTransactionRecord{}, &metarecord.AbortTransactionRecord{}
	l := NewLoader(Empty("c"))
	step := func(wantOffset int64, wantFeatures string, records ...metarecord.Record) {
		t.Helper()
		if err := l.Add(l.NextOffset(), 1, records); err != nil {
			t.Fatal(err)
		}
		l.Take()
		got := strings.Join(slices.Sorted(maps.Keys(l.Image().Features())), ",")
		if got != wantFeatures || l.Image().Offset() != wantOffset {
			t.Errorf("features %s at offset %d, want %s at %d", got, l.Image().Offset(), wantFeatures, wantOffset)
		}
	}
	step(0, "a", feature("a"))
	step(1, "a,b", feature("b"), begin, feature("c"))
	step(1, "a,b", feature("d"))
	step(6, "a,b,c,d,e", end, feature("e"))
	step(6, "a,b,c,d,e", begin, feature("f"))
	step(10, "a,b,c,d,e,g", abort, feature("g"))
	for _, bad := range []struct {
		what string
		add  func() error
	}{
		{"gap", func() error { return l.Add(99, 1, nil) }},
		{"older epoch", func() error { return l.Add(l.NextOffset(), 0, nil) }},
		{"end of nothing", func() error { return l.Add(l.NextOffset(), 1, []metarecord.Record{end}) }},
		// The last one, since the first of the two begins a transaction.
		{"nested", func() error { return l.Add(l.NextOffset(), 1, []metarecord.Record{begin, begin}) }},
	} {
		if err := bad.add(); err == nil {
			t.Errorf("%s was accepted", bad.what)
		}
	}
}

// big is an image of 1,000 topics with 100 partitions of 3 replicas each.
func big(t testing.TB) *Image {
	image := Empty("c")
	for n := range 1000 {
		topic := uuid.UUID{byte(n), byte(n >> 8), 15: 1}
		records := []metarecord.Record{&metarecord.TopicRecord{Name: fmt.Sprint("topic-", n), TopicID: topic}}
		for p := range int32(100) {
			r := partitionRecord(topic, p, 1, 2, 3)
			r.Directories = []uuid.UUID{id(1), id(2), id(3)}
			// As from a decoder, each record has lists of its own.
			decoded, err := metarecord.Decode(metarecord.Encode(r))
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, decoded)
		}
		d, err := image.Apply(image.Offset()+int64(len(records)), 1, records...)
		if err != nil {
			t.Fatal(err)
		}
		image = d.Image()
	}
	return image
}

func TestMemoryOfAManyPartitions(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	image := big(t)
	used := int64(heap()) - int64(before)
	t.Logf("100,000 partitions take %d MB", used>>20)
	if used > 60<<20 {
		t.Errorf("100,000 partitions take %d MB, more than 60", used>>20)
	}
	runtime.KeepAlive(image)
}

func BenchmarkChangeOnePartition(b *testing.B) {
	image := big(b)
	topic := image.TopicByName("topic-5")
	b.ReportAllocs()
	for b.Loop() {
		r := metarecord.NewPartitionChange(topic.ID, 7)
		r.Leader = 2
		d, err := image.Apply(image.Offset()+1, 1, r)
		if err != nil {
			b.Fatal(err)
		}
		image = d.Image()
	}
}

func BenchmarkSnapshot(b *testing.B) {
	frames := metarecord.EncodeAll(contents(big(b)))
	b.ReportAllocs()
	for b.Loop() {
		records, err := metarecord.DecodeAll(frames)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Empty("c").Apply(1, 1, records...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(frames)), "records/op")
}
