package group

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/errcode"
)

// assigned is the assignment of partitions of topic t, as leaders write it.
func (w *world) assigned(partitions ...int32) string {
	p := assignor.Partitions{}
	if len(partitions) > 0 {
		p[topicOf("t")] = partitions
	}
	return string(writeAssignment(w.image, p, subscription("t")))
}

// reads gives the partitions of topic t in an assignment.
func reads(t *testing.T, assignment []byte) []int32 {
	t.Helper()
	a := kmsg.NewConsumerMemberAssignment()
	if err := a.ReadFrom(assignment); err != nil {
		t.Fatal(err)
	}
	var partitions []int32
	for _, topic := range a.Topics {
		partitions = append(partitions, topic.Partitions...)
	}
	slices.Sort(partitions)
	return partitions
}

// step joins and syncs as a member of the classic protocol does in a consumer group, and gives what it gets.
func (c *client) step(t *testing.T) []int32 {
	t.Helper()
	c.sendJoin()
	c.joined()
	c.sendSync(nil)
	r := reply[*kmsg.SyncGroupResponse](c.w, c.ticket)
	c.w.code("SyncGroup", r.ErrorCode, errcode.None)
	return reads(t, r.MemberAssignment)
}

func TestUpgradeAndDowngradeWithMembers(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 4})
	old := w.client("g").alone(w.assigned(0, 1, 2, 3))
	a := w.modern("g", "a", "t").beat().has(2, "")
	g := w.consumers("g")
	if g.Counts.Classic != 1 || len(g.Members) != 2 {
		t.Fatalf("%+v", g.Counts)
	}
	w.consumersAre("g", "Reconciling", 2, 2)
	// The classic member hears of it, gives up half, and keeps the rest.
	w.code("heartbeat", int16(old.heartbeat()), errcode.RebalanceInProgress)
	owned := [][]byte{ownedSubscription(0, 1, 2, 3), ownedSubscription(0, 1)}
	if got := old.stepWith(t, owned[0]); !slices.Equal(got, []int32{0, 1}) {
		t.Fatalf("%v", got)
	}
	w.code("heartbeat while it must give up", int16(old.heartbeat()), errcode.RebalanceInProgress)
	if got := old.stepWith(t, owned[1]); !slices.Equal(got, []int32{0, 1}) || old.generation != 2 {
		t.Fatalf("%v at %d", got, old.generation)
	}
	w.code("heartbeat", int16(old.heartbeat()), errcode.None)
	a.beat().has(2, "t[2 3]")
	w.consumersAre("g", "Stable", 2, 2)
	if d := w.describeConsumers("g"); !slices.ContainsFunc(d.Members, func(m kmsg.ConsumerGroupDescribeResponseGroupMember) bool { return m.MemberType == 0 }) {
		t.Fatalf("%+v", d.Members)
	}
	// The last member of the consumer protocol leaves: the group is classic again, and rebalances.
	w.code("leave", int16(a.leave(-1)), errcode.None)
	w.state("g", "PreparingRebalance")
	w.code("heartbeat", int16(old.heartbeat()), errcode.RebalanceInProgress)
	old.sendJoin()
	if r := old.joined(); r.Generation != 3 || r.LeaderID != old.id {
		t.Fatalf("%+v", r)
	}
	old.sendSync(map[string]string{old.id: w.assigned(0, 1, 2, 3)})
	old.synced(w.assigned(0, 1, 2, 3))
	w.state("g", "Stable")
}

func ownedSubscription(partitions ...int32) []byte {
	sub := kmsg.NewConsumerMemberMetadata()
	sub.Version, sub.Topics = 1, []string{"t"}
	sub.OwnedPartitions = []kmsg.ConsumerMemberMetadataOwnedPartition{{Topic: "t", Partitions: partitions}}
	return sub.AppendTo(nil)
}

// stepWith is step with a subscription of its own.
func (c *client) stepWith(t *testing.T, sub []byte) []int32 {
	t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = c.version, c.group, c.id, c.instance, c.kind
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = c.session, c.rebalance
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: sub}}
	c.ticket = c.w.Do(&Join{Request: req, ClientID: "client", ClientHost: "/127.0.0.1"})
	c.joined()
	c.sendSync(nil)
	r := reply[*kmsg.SyncGroupResponse](c.w, c.ticket)
	c.w.code("SyncGroup", r.ErrorCode, errcode.None)
	return reads(t, r.MemberAssignment)
}

func TestUpgradeInTheMiddleOfARebalance(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	old := w.client("g").alone(w.assigned(0, 1))
	late := w.client("g")
	waiting := late.sendJoin()
	w.state("g", "PreparingRebalance")
	a := w.modern("g", "a", "t").beat()
	w.code("the one that waited", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
	if g := w.consumers("g"); len(g.Members) != 3 || g.Counts.Classic != 2 {
		t.Fatalf("%+v", g.Counts)
	}
	w.code("heartbeat", int16(old.heartbeat()), errcode.RebalanceInProgress)
	// Whoever does not join again in time is out; then nobody of the classic protocol is left.
	for range 7 {
		w.After(9 * time.Second)
		a.beat()
		if code := old.heartbeat(); code != errcode.RebalanceInProgress {
			w.code("after the rebalance time-out", int16(code), errcode.UnknownMemberId)
		}
	}
	if g := w.consumers("g"); g.Members[old.id] != nil {
		t.Fatal("the member that did not join is still there")
	}
}

func TestConversionsThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *world)
		make   func(w *world)
	}{
		{"upgrades are off", func(w *world) { w.m.config.Consumer.Upgrade = false }, func(w *world) { w.client("g").alone(w.assigned(0)) }},
		{"too many members", func(w *world) { w.m.config.Consumer.MaxSize = 0 }, func(w *world) { w.client("g").alone(w.assigned(0)) }},
		{"another protocol type", func(*world) {}, func(w *world) {
			c := w.client("g")
			c.kind = "connect"
			c.alone("x")
		}},
		{"an assignment that nobody can read", func(*world) {}, func(w *world) { w.client("g").alone("x") }},
		{"a custom assignor", func(*world) {}, func(w *world) {
			a := kmsg.NewConsumerMemberAssignment()
			a.UserData = []byte("mine")
			w.client("g").alone(string(a.AppendTo(nil)))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.topics(map[string]int{"t": 2})
			tt.make(w)
			tt.change(w)
			w.code("join", int16(w.modern("g", "a", "t").try()), errcode.GroupIdNotFound)
			w.state("g", "Stable")
		})
	}
}

// TestDowngradesThatAreRefused: a group stays a consumer group when its last member of that protocol leaves, where a classic one is not
// wanted or would be too large; the classic members go on.
func TestDowngradesThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(w *world)
		classic bool
	}{
		"downgrades are off": {func(w *world) { w.m.config.Consumer.Downgrade = false }, false},
		"too many members":   {func(w *world) { w.m.config.MaxSize = 0 }, false},
		"just few enough":    {func(w *world) { w.m.config.MaxSize = 1 }, true},
		"nothing is against": {func(*world) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.topics(map[string]int{"t": 2})
			w.client("g").alone(w.assigned(0, 1))
			a := w.modern("g", "a", "t").beat()
			tt.change(w)
			w.code("leave", int16(a.leave(-1)), errcode.None)
			if got := classicOf(w.m, "g") != nil; got != tt.classic {
				t.Fatalf("the group is a classic one: %v", got)
			}
			if g, ok := w.m.find("g").(*consumerGroup); !tt.classic && (!ok || len(g.Members) != 1 || g.Counts.Classic != 1) {
				t.Fatalf("%T with %+v", w.m.find("g"), g)
			}
			w.reload()
			if got := classicOf(w.m, "g") != nil; got != tt.classic {
				t.Fatalf("after a reload the group is a classic one: %v", got)
			}
		})
	}
}

// TestRefusedConversionAsksWhoWaitsToComeAgain: as in Apache Kafka, and they can.
func TestRefusedConversionAsksWhoWaitsToComeAgain(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	a := w.client("g").alone("x") // an assignment that nobody can read
	b := w.client("g")
	waiting := b.sendJoin()
	w.code("the consumer's join", int16(w.modern("g", "c", "t").try()), errcode.GroupIdNotFound)
	w.code("who waits", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
	w.state("g", "PreparingRebalance")
	b.id = reply[*kmsg.JoinGroupResponse](w, waiting).MemberID
	b.sendJoin()
	a.sendJoin()
	a.joined()
	b.joined()
	follower := a
	if a.leader {
		follower = b
	}
	waiting = follower.sendSync(nil)
	w.code("another join", int16(w.modern("g", "c", "t").try()), errcode.GroupIdNotFound)
	w.code("who waits for the leader", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
}

// TestSessionsThatEndTogether: those who were in the group first go first, so that the group does not become a classic one for members
// who are gone, too.
func TestSessionsThatEndTogether(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	old := w.client("g")
	old.session = 45000
	old.alone(w.assigned(0, 1))
	w.modern("g", "a", "t").beat()
	w.After(45 * time.Second)
	if d := w.describeConsumers("g"); d.State != "Empty" || len(d.Members) != 0 {
		t.Fatalf("%+v", d)
	}
}

func TestEmptyGroupsAreReplaced(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 1})
	old := w.client("g").alone(w.assigned(0))
	w.code("commit", int16(old.commit("t", 0, 7)), errcode.None)
	old.leave()
	w.state("g", "Empty")
	a := w.modern("g", "a", "t").beat().has(2, "t[0]")
	if f := w.fetch("g", "t", 0, true); f.Offset != 7 {
		t.Fatalf("offsets are lost with the conversion: %+v", f)
	}
	a.leave(-1)
	back := w.client("g")
	back.id = "somebody"
	back.sendJoin()
	w.code("a member of a group that is not there", reply[*kmsg.JoinGroupResponse](w, back.ticket).ErrorCode, errcode.UnknownMemberId)
	if d := w.describeConsumers("g"); errcode.Code(d.ErrorCode) != errcode.GroupIdNotFound {
		t.Fatalf("the empty group is still there: %+v", d)
	}
	w.client("g").alone("x")
	w.state("g", "Stable")
	if f := w.fetch("g", "t", 0, true); f.Offset != 7 {
		t.Fatalf("offsets are lost with the conversion: %+v", f)
	}
	if m := w.replay(); classicOf(m, "g") == nil {
		t.Fatalf("after a replay: %T", m.find("g"))
	}
}

func TestStaticMemberChangesItsProtocol(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	instance := "i"
	a := w.modern("g", "a", "t")
	a.instance = &instance
	a.beat().has(2, "t[0 1]")
	// It comes back with the classic protocol, the only member: the group becomes classic, without a rebalance.
	old := w.client("g").static(instance)
	old.sendJoin()
	if r := old.joined(); r.Generation != 2 {
		t.Fatalf("%+v", r)
	}
	w.state("g", "Stable")
	old.sendSync(nil)
	old.synced(w.assigned(0, 1))
	// And back again, while it is still thought alive.
	b := w.modern("g", "b", "t")
	b.instance = &instance
	b.beat().has(2, "t[0 1]")
	w.consumersAre("g", "Stable", 2, 2)
	w.code("the older incarnation", int16(old.heartbeat()), errcode.FencedInstanceId)
}

func TestConversionThatCouldNotBeStored(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	old := w.client("g").alone(w.assigned(0, 1))
	w.Manual = true
	a := w.modern("g", "a", "t")
	a.send(a.request())
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
	w.state("g", "Stable")
	w.code("heartbeat", int16(old.heartbeat()), errcode.None)
	// The other way round.
	a.hear()
	a.beat()
	w.Manual = true
	a.leave2()
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
	w.consumersAre("g", "Reconciling", 2, 2)
	a.epoch = 2
	a.beat()
	w.After(46 * time.Second)
	if w.m.find("g") != nil && !isEmpty(w.m.find("g")) {
		t.Fatal("the members' sessions have not ended")
	}
}

// leave2 leaves without waiting for the answer.
func (c *modern) leave2() {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, c.group, c.id, -1
	c.w.Do(&ConsumerHeartbeat{Request: req})
}

func TestClassicMembersOfConsumerGroups(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 2})
	w.modern("g", "a", "t").beat()
	first := w.client("g")
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis = 9, "g", "consumer", 10000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription("t")}}
	r := reply[*kmsg.JoinGroupResponse](w, w.Do(&Join{Request: req}))
	w.code("without an id", r.ErrorCode, errcode.MemberIdRequired)
	first.id = r.MemberID
	if got := first.step(t); len(got) != 0 || first.generation != 3 {
		t.Fatalf("%v at %d", got, first.generation)
	}
	join := func(change func(*kmsg.JoinGroupRequest)) errcode.Code {
		q := *req
		q.MemberID = "new"
		change(&q)
		return errcode.Code(reply[*kmsg.JoinGroupResponse](w, w.Do(&Join{Request: &q})).ErrorCode)
	}
	sync := func(change func(*kmsg.SyncGroupRequest)) errcode.Code {
		q := kmsg.NewPtrSyncGroupRequest()
		q.Group, q.MemberID, q.Generation = "g", first.id, first.generation
		change(q)
		return errcode.Code(reply[*kmsg.SyncGroupResponse](w, w.Do(&Sync{Request: q})).ErrorCode)
	}
	beat := func(id string, generation int32) errcode.Code {
		return reply[errcode.Code](w, w.Do(&Heartbeat{Group: "g", MemberID: id, Generation: generation}))
	}
	other := "other"
	for _, tt := range []struct {
		name string
		got  errcode.Code
		want errcode.Code
	}{
		{"other protocol type", join(func(q *kmsg.JoinGroupRequest) { q.ProtocolType = "connect" }), errcode.InconsistentGroupProtocol},
		{"no common assignor", join(func(q *kmsg.JoinGroupRequest) { q.Protocols[0].Name = "x"; q.Protocols = slices.Clone(q.Protocols) }), errcode.InconsistentGroupProtocol},
		{"static member that is not there", join(func(q *kmsg.JoinGroupRequest) { q.InstanceID = &other; q.Protocols[0].Name = "range" }), errcode.UnknownMemberId},
		{"sync at another generation", sync(func(q *kmsg.SyncGroupRequest) { q.Generation = 9 }), errcode.IllegalGeneration},
		{"sync of a member of the consumer protocol", sync(func(q *kmsg.SyncGroupRequest) { q.MemberID = "a" }), errcode.UnknownMemberId},
		{"sync with another assignor", sync(func(q *kmsg.SyncGroupRequest) { q.Protocol = &other }), errcode.InconsistentGroupProtocol},
		{"sync with another type", sync(func(q *kmsg.SyncGroupRequest) { q.ProtocolType = &other }), errcode.InconsistentGroupProtocol},
		{"sync", sync(func(*kmsg.SyncGroupRequest) {}), errcode.None},
		{"heartbeat of a member of the consumer protocol", beat("a", 2), errcode.UnknownMemberId},
		{"heartbeat at another generation", beat(first.id, 2), errcode.IllegalGeneration},
		{"commit at a newer generation", (&client{w: w, group: "g", id: first.id, generation: 9}).commit("t", 0, 1), errcode.IllegalGeneration},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.got.Name(), tt.want.Name())
		}
	}
	w.m.config.Consumer.Upgrade, w.m.config.Consumer.Downgrade = false, false
	w.code("migration is off", int16(join(func(*kmsg.JoinGroupRequest) {})), errcode.InconsistentGroupProtocol)
	left := reply[LeaveReply](w, w.Do(&Leave{Group: "g", Members: []LeavingMember{{ID: first.id}, {ID: "nobody"}, {ID: first.id}, {InstanceID: &other}}}))
	if !slices.Equal(left.Codes, []errcode.Code{errcode.None, errcode.UnknownMemberId, errcode.None, errcode.UnknownMemberId}) {
		t.Fatalf("%v", left.Codes)
	}
}

// TestClassicMemberIsToldWhatHasBecomeFree: as long as others have some of what a member of the classic protocol is to get, it is not
// told to join again. It may, and then gets what is free.
func TestClassicMemberIsToldWhatHasBecomeFree(t *testing.T) {
	w := newWorld(t)
	w.topics(map[string]int{"t": 6})
	a, b := w.modern("g", "a", "t"), w.modern("g", "b", "t")
	a.beat()
	b.beat()
	settle(a, b)
	old := w.client("g")
	old.sendJoin()
	old.joined()
	if got := old.stepWith(t, ownedSubscription()); len(got) != 0 || old.generation != 4 {
		t.Fatalf("%v at %d", got, old.generation)
	}
	w.code("heartbeat while others have it", int16(old.heartbeat()), errcode.None)
	a.beat()
	w.code("heartbeat while one gives it up", int16(old.heartbeat()), errcode.None)
	a.beat()
	w.code("heartbeat when a part is free", int16(old.heartbeat()), errcode.None)
	got := old.stepWith(t, ownedSubscription())
	if len(got) != 1 {
		t.Fatalf("%v", got)
	}
	w.code("heartbeat with a part", int16(old.heartbeat()), errcode.None)
	b.beat()
	b.beat()
	w.code("heartbeat when all is free", int16(old.heartbeat()), errcode.RebalanceInProgress)
	if got := old.stepWith(t, ownedSubscription(got...)); len(got) != 2 {
		t.Fatalf("%v", got)
	}
	w.code("heartbeat when it has everything", int16(old.heartbeat()), errcode.None)
}
