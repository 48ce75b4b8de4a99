package consumer

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

var topicT, topicU = uuid.UUID{15: 1}, uuid.UUID{15: 2}

// owned makes partitions of topic t at an epoch.
func owned(epoch int32, partitions ...int32) Owned {
	o := Owned{}
	for _, p := range partitions {
		put(o, topicT, p, epoch)
	}
	return o
}

func show(m *Member) string {
	text := func(o Owned) string {
		s := ""
		for _, topic := range slices.SortedFunc(maps.Keys(o), compareIDs) {
			for _, p := range slices.Sorted(maps.Keys(o[topic])) {
				s += fmt.Sprintf(" %d-%d@%d", topic[15], p, o[topic][p])
			}
		}
		return s
	}
	return fmt.Sprintf("%d<%d %d has%s gives%s", m.Epoch, m.PreviousEpoch, m.State, text(m.Assigned), text(m.PendingRemoval))
}

func TestSteps(t *testing.T) {
	both := map[uuid.UUID]struct{}{topicT: {}, topicU: {}}
	onlyU := map[uuid.UUID]struct{}{topicU: {}}
	target := func(partitions ...int32) assignor.Partitions { return assignor.Partitions{topicT: partitions} }
	for _, tt := range []struct {
		name       string
		member     Member
		epoch      int32
		target     assignor.Partitions
		subscribed map[uuid.UUID]struct{}
		changed    bool
		taken      []int32
		reported   Reported
		want       string
	}{
		{"stable stays", Member{Epoch: 3, PreviousEpoch: 2, Assigned: owned(2, 0)}, 3, target(0), both, false, nil, nil, "3<2 0 has 1-0@2 gives"},
		{"nothing changes but the epoch", Member{Epoch: 3, Assigned: owned(2, 0)}, 4, target(0), both, false, nil, nil, "4<3 0 has 1-0@2 gives"},
		{"gets what is free", Member{Epoch: 3, Assigned: owned(2, 0)}, 4, target(0, 1), both, false, nil, nil, "4<3 0 has 1-0@2 1-1@4 gives"},
		{"waits for what is another's", Member{Epoch: 3, Assigned: owned(2, 0)}, 4, target(0, 1), both, false, []int32{1}, nil, "4<3 2 has 1-0@2 gives"},
		{"gets what is free and waits for the rest", Member{Epoch: 3}, 4, target(0, 1), both, false, []int32{1}, nil, "4<3 2 has 1-0@4 gives"},
		{"waiting goes on", Member{Epoch: 4, PreviousEpoch: 3, State: Unreleased, Assigned: owned(2, 0)}, 4, target(0, 1), both, false, nil, nil, "4<4 0 has 1-0@2 1-1@4 gives"},
		{"must give up first", Member{Epoch: 3, Assigned: owned(2, 0, 1)}, 4, target(0, 2), both, false, nil, Reported{topicT: {0, 1}}, "3<3 1 has 1-0@2 gives 1-1@2"},
		{"does not say what it has", Member{Epoch: 3, Assigned: owned(2, 0, 1)}, 4, target(0), both, false, nil, nil, "3<3 1 has 1-0@2 gives 1-1@2"},
		{"has given up already", Member{Epoch: 3, Assigned: owned(2, 0, 1)}, 4, target(0), both, false, nil, Reported{topicT: {0}}, "4<3 0 has 1-0@2 gives"},
		{"has not given up yet", Member{Epoch: 3, PreviousEpoch: 2, State: Unrevoked, Assigned: owned(2, 0), PendingRemoval: owned(2, 1)}, 4, target(0), both, false, nil,
			Reported{topicT: {0, 1}}, "3<2 1 has 1-0@2 gives 1-1@2"},
		{"has given up", Member{Epoch: 3, State: Unrevoked, Assigned: owned(2, 0), PendingRemoval: owned(2, 1)}, 4, target(0, 2), both, false, nil,
			Reported{topicT: {0}}, "4<3 0 has 1-0@2 1-2@4 gives"},
		{"gets back what it has given up", Member{Epoch: 3, State: Unrevoked, PendingRemoval: owned(2, 1)}, 5, target(1), both, false, []int32{1},
			Reported{}, "5<3 0 has 1-1@5 gives"},
		{"a topic that it does not subscribe to any more", Member{Epoch: 3, Assigned: owned(2, 0)}, 3, target(0), onlyU, true, nil,
			Reported{topicT: {0}}, "3<3 1 has gives 1-0@2"},
		{"and that it has given up already", Member{Epoch: 3, Assigned: owned(2, 0)}, 3, target(0), onlyU, true, nil, Reported{}, "3<3 0 has gives"},
		{"its subscription changed, not its topics", Member{Epoch: 3, PreviousEpoch: 1, Assigned: owned(2, 0)}, 3, target(0), both, true, nil, nil, "3<1 0 has 1-0@2 gives"},
		{"one more to give up", Member{Epoch: 3, State: Unrevoked, Assigned: owned(2, 0), PendingRemoval: owned(2, 1)}, 4, target(0), onlyU, true, nil,
			nil, "3<3 1 has gives 1-0@2 1-1@2"},
		{"a target of an unsubscribed topic is not taken", Member{Epoch: 3}, 4, target(0), onlyU, false, nil, nil, "4<3 0 has gives"},
		{"a state from the future", Member{Epoch: 3, State: 99}, 4, target(0), both, false, nil, Reported{}, "4<3 0 has 1-0@4 gives"},
	} {
		step := Reconciliation{
			Member: &tt.member, TargetEpoch: tt.epoch, Target: tt.target, Subscribed: tt.subscribed, SubscriptionChanged: tt.changed,
			Owned:    func(_ uuid.UUID, p int32) bool { return slices.Contains(tt.taken, p) },
			Reported: tt.reported,
		}
		if got := show(step.Step()); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestOlderRecordsHaveNoEpochs(t *testing.T) {
	g := NewGroup("g")
	g.Apply(&grouprecord.Consumer{Type: grouprecord.TypeConsumerCurrent, Group: "g", Name: "a", Current: &grouprecord.ConsumerCurrent{
		Epoch: LeftForAWhile, Assigned: []grouprecord.TopicPartitions{{TopicID: topicT, Partitions: []int32{1}}},
	}})
	if got := show(g.Members["a"]); got != "-2<0 0 has 1-1@0 gives" {
		t.Fatal(got)
	}
}

func TestCounts(t *testing.T) {
	name := func(s string) *string { return &s }
	for _, tt := range []struct {
		name        string
		members     []*Member
		homogeneous bool
		assignor    string
	}{
		{"nobody", nil, true, "uniform"},
		{"same topics", []*Member{{Topics: []string{"a", "b"}}, {Topics: []string{"a", "b"}}}, true, "uniform"},
		{"other topics", []*Member{{Topics: []string{"a", "b"}}, {Topics: []string{"a"}}}, false, "uniform"},
		{"one expression", []*Member{{Regex: "a"}, {Regex: "a"}}, true, "uniform"},
		{"two expressions", []*Member{{Regex: "a"}, {Regex: "b"}}, false, "uniform"},
		{"expression and names", []*Member{{Regex: "a"}, {Regex: "a", Topics: []string{"a"}}}, false, "uniform"},
		{"most want range", []*Member{{Assignor: name("range")}, {Assignor: name("uniform")}, {Assignor: name("range")}}, true, "range"},
		{"as many want either", []*Member{{Assignor: name("uniform")}, {Assignor: name("range")}}, true, "uniform"},
	} {
		c := NewGroup("g").Counts
		for _, m := range tt.members {
			c = c.With(nil, m)
		}
		if c.Homogeneous() != tt.homogeneous || c.PreferredAssignor(c, "uniform") != tt.assignor {
			t.Errorf("%s: %+v", tt.name, c)
		}
		for _, m := range tt.members {
			c = c.With(m, nil)
		}
		if c.Members != 0 || len(c.Topics)+len(c.Regexes)+len(c.Assignors) != 0 {
			t.Errorf("%s, afterwards: %+v", tt.name, c)
		}
	}
}

// TestPreferredAssignorOfEquallyLiked: one that is named for the first time wins, as long as the request is being decided that names it.
func TestPreferredAssignorOfEquallyLiked(t *testing.T) {
	name := func(s string) *string { return &s }
	for _, tt := range []struct{ has, names, now, later string }{
		{"uniform", "range", "range", "uniform"},
		{"range", "uniform", "uniform", "uniform"},
	} {
		before := NewGroup("g").Counts.With(nil, &Member{ID: "a", Assignor: name(tt.has)})
		after := before.With(nil, &Member{ID: "b", Assignor: name(tt.names)})
		if now, later := after.PreferredAssignor(before, "uniform"), after.PreferredAssignor(after, "uniform"); now != tt.now || later != tt.later {
			t.Errorf("%s against %s: %s, later %s", tt.names, tt.has, now, later)
		}
	}
}

func image(t *testing.T, racks bool) *metadata.Image {
	t.Helper()
	d := metadata.NewDelta(metadata.Empty("c"))
	records := []metarecord.Record{
		&metarecord.TopicRecord{Name: "orders", TopicID: topicT}, &metarecord.TopicRecord{Name: "orders-dead", TopicID: topicU},
		&metarecord.PartitionRecord{TopicID: topicT, PartitionID: 0, Replicas: []int32{1, 2}, ISR: []int32{1, 2}, Leader: 1},
		&metarecord.PartitionRecord{TopicID: topicU, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
	}
	if racks {
		for id, rack := range map[int32]string{1: "b", 2: "a"} {
			records = append(records, &metarecord.RegisterBrokerRecord{BrokerID: id, Rack: &rack})
		}
	}
	if err := d.Apply(9, 1, records...); err != nil {
		t.Fatal(err)
	}
	return d.Image()
}

func TestResolve(t *testing.T) {
	got := Resolve(image(t, false), []string{"orders", "orders.*", "ORDERS", "(?i)ORDERS", "a|orders-.*", "("}, 5)
	for expression, want := range map[string][]string{
		"orders": {"orders"}, "orders.*": {"orders", "orders-dead"}, "ORDERS": nil, "(?i)ORDERS": {"orders"}, "a|orders-.*": {"orders-dead"}, "(": nil,
	} {
		if r := got[expression]; !slices.Equal(r.Topics, want) || r.Version != 9 || r.TimestampMs != 5 {
			t.Errorf("%s: %+v", expression, r)
		}
	}
	if err := CheckRegex("a("); errcode.Of(err) != errcode.InvalidRegularExpression {
		t.Errorf("%v", err)
	}
	if err := CheckRegex(`\p{L}+`); err != nil {
		t.Errorf("%v", err)
	}
}

func TestHashesSeeWhatMatters(t *testing.T) {
	plain, racked := image(t, false), image(t, true)
	h := NewHashes()
	names := []string{"orders", "orders-dead"}
	base := h.Of(plain, names)
	if base == 0 || base != h.Of(plain, names) || base != NewHashes().Of(plain, names) {
		t.Fatal("a hash depends on more than the topics")
	}
	if h.Of(plain, nil) != 0 || h.Of(plain, []string{"nothing"}) != 0 {
		t.Fatal("topics that do not exist have a hash")
	}
	if NewHashes().Of(racked, names) == base || h.Of(plain, names[:1]) == base {
		t.Fatal("other racks or topics do not change the hash")
	}
}
