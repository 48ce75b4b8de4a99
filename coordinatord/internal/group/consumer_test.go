package group

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
)

func TestConsumersShareTopics(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 4})
	a := w.modern("g", "a", "t").beat().has(2, "t[0 1 2 3]")
	w.consumersAre("g", "Stable", 2, 2)
	b := w.modern("g", "b", "t").beat().has(3, "")
	w.consumersAre("g", "Reconciling", 3, 3)
	// First a must give up what b is to get; only then it is at the new epoch.
	a.beat().has(2, "t[0 1]")
	b.beat().has(3, "")
	a.beat().has(3, "t[0 1]")
	b.beat().has(3, "t[2 3]")
	w.consumersAre("g", "Stable", 3, 3)
	w.code("leave", int16(b.leave(-1)), errcode.None)
	w.consumersAre("g", "Assigning", 4, 3)
	a.beat().has(4, "t[0 1 2 3]")
	w.code("leave", int16(a.leave(-1)), errcode.None)
	w.consumersAre("g", "Empty", 5, 5)
}

func TestConsumerHeartbeatErrors(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	stranger := w.modern("g", "x", "t")
	stranger.epoch = 1
	w.code("no group", int16(stranger.try()), errcode.GroupIdNotFound)
	a := w.modern("g", "a", "t").beat()
	stranger.epoch = 1
	w.code("no member", int16(stranger.try()), errcode.UnknownMemberId)
	for _, tt := range []struct {
		name  string
		epoch int32
		want  errcode.Code
	}{
		{"ahead", 3, errcode.FencedMemberEpoch},
		{"behind, with more than it has", 1, errcode.FencedMemberEpoch},
	} {
		req := a.request()
		req.MemberEpoch = tt.epoch
		r := reply[*kmsg.ConsumerGroupHeartbeatResponse](w, w.Do(&ConsumerHeartbeat{Request: req}))
		w.code(tt.name, r.ErrorCode, tt.want)
	}
	w.m.config.Consumer.MaxSize = 1
	w.code("full", int16(w.modern("g", "b", "t").try()), errcode.GroupMaxSizeReached)
	a.beat()
	bad := w.modern("g", "a")
	expression := "a("
	bad.regex = &expression
	w.code("regex", int16(bad.try()), errcode.InvalidRegularExpression)
	if _, ok := w.m.find("classic").(*Group); ok {
		t.Fatal("there is a group that nobody has made")
	}
}

func TestLostAnswerIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2, "u": 1})
	a := w.modern("g", "a", "t").beat().has(2, "t[0 1]")
	req := a.request()
	req.SubscribedTopicNames = []string{"t", "u"}
	w.Do(&ConsumerHeartbeat{Request: req, ClientID: "client", ClientHost: "/127.0.0.1"})
	// The answer with epoch 3 is lost: the member comes again with epoch 2 and what it has.
	req = a.request()
	req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 60000, []string{"t", "u"}
	a.send(req)
	w.code("again", int16(a.hear()), errcode.None)
	a.has(3, "t[0 1]u[0]")
}

func TestConsumerSessionAndRebalanceTimeouts(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat()
	b := w.modern("g", "b", "t").beat()
	a.beat() // is asked to give up t-1
	for range 5 {
		// It beats on and does not say that it has given it up.
		w.After(13 * time.Second)
		b.beat()
		req := a.request()
		req.Topics = nil
		a.send(req)
	}
	if code := a.hear(); code != errcode.UnknownMemberId {
		t.Fatalf("a member that gives nothing up is told %s", code.Name())
	}
	b.beat().has(4, "t[0 1]")
	w.After(46 * time.Second)
	w.consumersAre("g", "Empty", 5, 5)
}

func TestStaticConsumers(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	instance := "i"
	a := w.modern("g", "a", "t")
	a.instance = &instance
	a.beat().has(2, "t[0 1]")
	b := w.modern("g", "b", "t")
	b.instance = &instance
	w.code("held", int16(b.try()), errcode.UnreleasedInstanceId)
	w.code("away", int16(a.leave(-2)), errcode.None)
	w.consumersAre("g", "Reconciling", 2, 2)
	b.beat().has(2, "t[0 1]")
	a.epoch = 2
	w.code("fenced", int16(a.try()), errcode.FencedInstanceId)
	w.code("fenced leave", int16(a.leave(-2)), errcode.FencedInstanceId)
	w.consumersAre("g", "Stable", 2, 2)
	w.code("gone", int16(b.leave(-2)), errcode.None)
	w.After(46 * time.Second)
	w.consumersAre("g", "Empty", 3, 3)
}

func TestMetadataChangesMakeNewTargets(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 1})
	a := w.modern("g", "a", "t", "u").beat().has(2, "t[0]")
	a.beat().has(2, "t[0]")
	w.topics(map[string]int{"t": 2})
	a.beat().has(3, "t[0 1]")
	w.topics(map[string]int{"u": 1, "other": 3})
	a.beat().has(4, "t[0 1]u[0]")
	w.dropTopic("u")
	a.owned[topicOf("u")] = nil
	delete(a.owned, topicOf("u"))
	a.beat()
	a.beat().has(5, "t[0 1]")
}

func TestAssignmentInterval(t *testing.T) {
	w := newWorld(t)
	w.assignmentInterval = time.Second
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat().has(2, "t[0 1]")
	b := w.modern("g", "b", "t").beat().has(2, "")
	w.consumersAre("g", "Assigning", 3, 2)
	w.After(time.Second)
	settle(a, b)
	a.has(3, "t[0]")
	b.has(3, "t[1]")
}

func TestRegularExpressions(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"ta": 1, "xta": 1})
	a := w.modern("g", "a")
	expression := "t.*|u+"
	a.regex = &expression
	a.beat().has(1, "")
	w.work()
	a.beat().has(2, "ta[0]")
	w.topics(map[string]int{"tb": 1})
	a.beat()
	if len(w.background) != 0 {
		t.Fatal("expressions are looked up again at once")
	}
	w.After(11 * time.Second)
	a.beat()
	w.work()
	a.beat().has(3, "ta[0]tb[0]")
	// Another member with the same expression needs no look-up.
	b := w.modern("g", "b")
	b.regex = &expression
	b.beat()
	settle(a, b)
	if got := heldPartitions(a, b); !slices.Equal(got, []string{"ta0", "tb0"}) || len(w.background) != 0 {
		t.Fatalf("%v, %d look-ups", got, len(w.background))
	}
	none := ""
	req := b.request()
	req.SubscribedTopicRegex = &none
	b.send(req)
	b.hear()
	settle(a, b)
	b.has(5, "")
	a.has(5, "ta[0]tb[0]")
	a.leave(-1)
	if g := w.consumers("g"); len(g.Resolved) != 0 {
		t.Fatalf("%v", g.Resolved)
	}
}

func TestPreferredAssignor(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2, "u": 2})
	ranges := "range"
	a, b := w.modern("g", "a", "t", "u"), w.modern("g", "b", "t", "u")
	a.assignor, b.assignor = &ranges, &ranges
	a.beat()
	b.beat()
	settle(a, b)
	a.has(3, "t[0]u[0]")
	b.has(3, "t[1]u[1]")
	if d := w.describeConsumers("g"); d.AssignorName != "range" || len(d.Members) != 2 || d.Members[0].MemberType != 1 {
		t.Fatalf("%+v", d)
	}
}

func TestOffsetsOfConsumers(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat()
	w.code("commit", int16(a.commit("t", 0, 5)), errcode.None)
	b := w.modern("g", "b", "t").beat()
	a.beat()
	b.beat()
	a.beat()
	b.beat()
	fetch := func(id *string, epoch int32) errcode.Code {
		return reply[FetchReply](w, w.Do(&FetchOffsets{Group: "g", MemberID: id, MemberEpoch: epoch, All: true})).Code
	}
	for _, tt := range []struct {
		name string
		got  errcode.Code
		want errcode.Code
	}{
		{"at an older epoch, a partition that it has had since", (&modern{w: w, group: "g", id: "a", epoch: 2}).commit("t", 0, 6), errcode.None},
		{"at an older epoch, a partition that it has given up", (&modern{w: w, group: "g", id: "a", epoch: 2}).commit("t", 1, 6), errcode.StaleMemberEpoch},
		{"from before it had the partition", (&modern{w: w, group: "g", id: "a", epoch: 1}).commit("t", 0, 6), errcode.StaleMemberEpoch},
		{"at a newer epoch", (&modern{w: w, group: "g", id: "a", epoch: 9}).commit("t", 0, 6), errcode.StaleMemberEpoch},
		{"not a member", (&modern{w: w, group: "g", id: "x", epoch: 3}).commit("t", 0, 6), errcode.UnknownMemberId},
		{"from outside", w.commitOutside("g", "t", 0, 7), errcode.UnknownMemberId},
		{"fetch by anyone", fetch(nil, -1), errcode.None},
		{"fetch by a member", fetch(&a.id, 3), errcode.None},
		{"fetch at an old epoch", fetch(&a.id, 2), errcode.StaleMemberEpoch},
		{"fetch by no member", fetch(&expressionless, 2), errcode.UnknownMemberId},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got.Name(), tt.want.Name())
		}
	}
	// What is refused for its metadata is not looked at further.
	late := (&client{w: w, group: "g", id: "a", generation: 2}).commitCommand("t", 0, 6)
	late.Offsets[0].TopicID = topicOf("t")
	late.Offsets = append(late.Offsets, OffsetToCommit{Key: offsets.Key{Topic: "t", Partition: 1}, TopicID: topicOf("t"), Metadata: strings.Repeat("x", 4097)})
	if r := reply[CommitReply](w, w.Do(late)); r.Code != errcode.None || r.Codes[0] != errcode.None || r.Codes[1] != errcode.OffsetMetadataTooLarge {
		t.Errorf("at an older epoch, with metadata that is too large: %+v", r)
	}
	old := (&client{w: w, group: "g", id: "a", generation: 3}).commitCommand("t", 0, 6)
	old.APIVersion = 8
	w.code("v8", int16(reply[CommitReply](w, w.Do(old)).Code), errcode.UnsupportedVersion)
	d := reply[CommitReply](w, w.Do(&DeleteOffsets{Group: "g", Partitions: old.keys()}))
	w.code("delete", int16(d.Codes[0]), errcode.GroupSubscribedToTopic)
	w.code("delete group", int16(reply[[]errcode.Code](w, w.Do(&DeleteGroups{IDs: []string{"g"}}))[0]), errcode.NonEmptyGroup)
	a.leave(-1)
	b.leave(-1)
	w.code("from outside when empty", int16(w.commitOutside("g", "t", 0, 7)), errcode.None)
	w.code("delete group", int16(reply[[]errcode.Code](w, w.Do(&DeleteGroups{IDs: []string{"g"}}))[0]), errcode.None)
	if len(w.m.groups) != 0 || w.m.offsets.Has("g") {
		t.Fatal("something is left of a deleted group")
	}
}

var expressionless = "nobody"

func TestEmptyConsumerGroupExpires(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat()
	w.code("commit", int16(a.commit("t", 0, 5)), errcode.None)
	w.code("commit", int16(a.commit("u", 0, 5)), errcode.None)
	for range 250 {
		w.After(20 * time.Second)
		a.beat()
	}
	if f := w.fetch("g", "t", 0, false); f.Offset != 5 {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "u", 0, false); f.Offset != -1 {
		t.Fatalf("an offset of a topic that nobody subscribes to: %+v", f)
	}
	a.leave(-1)
	w.After(2 * time.Hour)
	if len(w.m.groups) != 0 {
		t.Fatal("the group is still there")
	}
}

func TestListsTellTypes(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	w.modern("g", "a", "t").beat()
	w.client("h").alone("x")
	for _, tt := range []struct {
		states, types []string
		want          []string
	}{
		{nil, nil, []string{"g", "h"}},
		{nil, []string{"Consumer"}, []string{"g"}},
		{nil, []string{"classic"}, []string{"h"}},
		{[]string{"stable"}, nil, []string{"g", "h"}},
		{[]string{"assigning", "reconciling"}, nil, nil},
	} {
		var got []string
		for _, g := range reply[[]ListedGroup](w, w.Do(&ListGroups{States: tt.states, Types: tt.types})) {
			got = append(got, g.ID)
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	if d := w.describe("g"); d.Exists || d.Missing != "Group g is not a classic group." {
		t.Fatalf("%+v", d)
	}
	if d := w.describeConsumers("h"); errcode.Code(d.ErrorCode) != errcode.GroupIdNotFound {
		t.Fatalf("%+v", d)
	}
}

// TestChangedTopicsAreSeenAgain: when the log refuses what the changed topics ask for, the next heartbeat sees the change.
func TestChangedTopicsAreSeenAgain(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 1})
	a := w.modern("g", "a", "t").beat().has(2, "t[0]")
	w.topics(map[string]int{"t": 2})
	w.Manual = true
	a.send(a.request())
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
	w.consumersAre("g", "Stable", 2, 2)
	a.beat().has(3, "t[0 1]")
}

// TestExpressionsGoWithTheirLastMember, whether it changes its mind, is silent for too long, or is replaced by a member of the classic
// protocol.
func TestExpressionsGoWithTheirLastMember(t *testing.T) {
	expression, other, instance := "t.*", "u.*", "i"
	for _, tt := range []struct {
		name  string
		loses func(t *testing.T, w *world, a, b *modern)
		want  []string
		epoch int32
	}{
		{"another expression", func(_ *testing.T, _ *world, a, _ *modern) {
			req := a.request()
			req.SubscribedTopicRegex = &other
			a.send(req)
			a.hear()
		}, nil, 4},
		{"a silent member", func(_ *testing.T, w *world, _, b *modern) {
			w.After(30 * time.Second)
			b.beat()
			w.After(16 * time.Second)
		}, nil, 5},
		{"a classic member in its place", func(t *testing.T, w *world, _, _ *modern) {
			w.client("g").static(instance).step(t)
		}, nil, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.topics(map[string]int{"t": 2, "ta": 1})
			a, b := w.modern("g", "a", "t"), w.modern("g", "b", "t")
			a.regex, a.instance = &expression, &instance
			a.beat()
			w.work()
			b.beat()
			settle(a, b)
			if g := w.consumers("g"); g.Resolved[expression] == nil || g.Epoch != 4 {
				t.Fatalf("epoch %d, %v", g.Epoch, g.Resolved)
			}
			tt.loses(t, w, a, b)
			if g := w.consumers("g"); g.Resolved[expression] != nil || g.Epoch != tt.epoch || g.Counts.Regexes[expression] != 0 {
				t.Fatalf("epoch %d, %v", g.Epoch, g.Resolved)
			}
			w.reload()
			if g := w.consumers("g"); g.Resolved[expression] != nil {
				t.Fatalf("after a reload: %v", g.Resolved)
			}
		})
	}
}

// TestEmptiedGroupAssignsAtOnce: the assignment interval does not count from what the members had that are gone.
func TestEmptiedGroupAssignsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.assignmentInterval = time.Minute
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat().has(2, "t[0 1]")
	a.leave(-1)
	w.consumersAre("g", "Empty", 3, 3)
	w.modern("g", "b", "t").beat().has(4, "t[0 1]")
}

// TestStaticMemberComesBackToAFullGroup: it takes the place that it had. As in Apache Kafka that is so in consumer groups; in classic ones
// who comes back without its member id is one too many.
func TestStaticMemberComesBackToAFullGroup(t *testing.T) {
	instance := "i"
	w := newWorld(t)
	w.m.config.Consumer.MaxSize = 2
	w.topics(map[string]int{"t": 2})
	a, b := w.modern("g", "a", "t"), w.modern("g", "b", "t")
	a.instance = &instance
	a.beat()
	b.beat()
	settle(a, b)
	w.code("one too many", int16(w.modern("g", "c", "t").try()), errcode.GroupMaxSizeReached)
	w.code("leave for a while", int16(a.leave(-2)), errcode.None)
	w.code("one too many meanwhile", int16(w.modern("g", "c", "t").try()), errcode.GroupMaxSizeReached)
	other := "other"
	stranger := w.modern("g", "s", "t")
	stranger.instance = &other
	w.code("another static one", int16(stranger.try()), errcode.GroupMaxSizeReached)
	again := w.modern("g", "d", "t")
	again.instance = &instance
	w.code("it comes back", int16(again.try()), errcode.None)
	if d := w.describeConsumers("g"); len(d.Members) != 2 {
		t.Fatalf("%+v", d.Members)
	}

	w = newWorld(t)
	w.m.config.MaxSize = 1
	one := w.client("g").static(instance)
	one.sendJoin()
	w.After(3 * time.Second)
	one.joined()
	one.sendSync(map[string]string{one.id: "x"})
	one.synced("x")
	r := reply[*kmsg.JoinGroupResponse](w, w.client("g").static(instance).sendJoin())
	w.code("a classic one comes back", r.ErrorCode, errcode.GroupMaxSizeReached)
}

// TestLeavingEndsTimeouts: what a member should have done before it left says nothing when it has come back.
func TestLeavingEndsTimeouts(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.modern("g", "a", "t").beat()
	b := w.modern("g", "b", "t").beat()
	a.beat() // is asked to give up a partition, and has a minute for it
	w.After(30 * time.Second)
	b.beat()
	waited := len(w.m.alarms.heap)
	w.code("leave", int16(a.leave(-1)), errcode.None)
	// Its session, and the time that it had to give up the partition, are not waited for any more: members that come and go would
	// leave ever more behind.
	if g, n := w.consumers("g"), waited-len(w.m.alarms.heap); g.alarms["a"] != nil || n != 2 {
		t.Fatalf("%d of %d time-outs have ended with a member that left, want 2", n, waited)
	}
	b.beat()
	for range 4 {
		a.beat()
		b.beat()
		w.After(15 * time.Second)
	}
	settle(a, b)
	if d := w.describeConsumers("g"); len(d.Members) != 2 {
		t.Fatalf("%+v", d.Members)
	}
	if g := w.consumers("g"); g.Epoch != 5 {
		t.Fatalf("a member was fenced: epoch %d", g.Epoch)
	}
}

// TestDescribedMembers: what a member must still give up counts as its own; what it is to have is told beside that.
func TestDescribedMembers(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 4, "u": 1})
	a := w.modern("g", "a", "t")
	expression := "u.*"
	a.regex = &expression
	a.beat()
	w.work()
	a.beat()
	w.modern("g", "b", "t").beat()
	a.beat() // is asked to give up half of t
	d := w.describeConsumers("g")
	show := func(list []kmsg.AssignmentTopicPartition) string {
		text := ""
		for _, p := range list {
			text += fmt.Sprint(p.Topic, p.Partitions)
		}
		return text
	}
	for i, want := range []struct{ id, has, target string }{{"a", "t[0 1 2 3]u[0]", "t[0 1]u[0]"}, {"b", "", "t[2 3]"}} {
		m := d.Members[i]
		if m.MemberID != want.id || show(m.Assignment.TopicPartitions) != want.has || show(m.TargetAssignment.TopicPartitions) != want.target {
			t.Errorf("%+v, want %+v", m, want)
		}
	}
	if m := d.Members[0]; *m.SubscribedTopicRegex != expression || !slices.Equal(m.SubscribedTopics, []string{"t"}) {
		t.Errorf("%+v", m)
	}
}

// TestStaticConsumerComesBackForOtherTopics: it keeps what it had, and gets what is new at once.
func TestStaticConsumerComesBackForOtherTopics(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2, "u": 1})
	instance := "i"
	a, b := w.modern("g", "a", "t"), w.modern("g", "b", "t")
	b.instance = &instance
	a.beat()
	b.beat()
	settle(a, b)
	b.has(3, "t[1]")
	w.code("away", int16(b.leave(-2)), errcode.None)
	w.consumersAre("g", "Reconciling", 3, 3)
	c := w.modern("g", "c", "t", "u")
	c.instance = &instance
	c.beat().has(4, "t[1]u[0]")
	if g := w.consumers("g"); g.Members["b"] != nil || g.Static[instance] != "c" || g.alarms["b"] != nil {
		t.Fatalf("%+v", g.Members)
	}
	w.code("a commit from before it was away", int16((&modern{w: w, group: "g", id: "c", epoch: 3}).commit("t", 1, 6)), errcode.None)
	w.code("of what is new", int16((&modern{w: w, group: "g", id: "c", epoch: 3}).commit("u", 0, 6)), errcode.StaleMemberEpoch)
}
