package group

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

func TestLifeOfAMember(t *testing.T) {
	for version := int16(0); version <= 9; version++ {
		w := newWorld(t)
		a := w.client("g")
		a.version = version
		a.sendJoin()
		w.Silent(a.ticket)
		w.After(3 * time.Second)
		r := a.joined()
		if !a.leader || a.generation != 1 || a.members != 1 || *r.Protocol != "range" || *r.ProtocolType != "consumer" {
			t.Fatalf("v%d: %+v", version, r)
		}
		w.state("g", "CompletingRebalance")
		a.sendSync(map[string]string{a.id: "all"})
		a.synced("all")
		if c := a.heartbeat(); c != errcode.None {
			t.Fatal(c.Name())
		}
		d := w.describe("g")
		if d.State != "Stable" || d.Protocol != "range" || d.ProtocolType != "consumer" || len(d.Members) != 1 ||
			string(d.Members[0].MemberAssignment) != "all" || d.Members[0].ClientHost != "/127.0.0.1" {
			t.Fatalf("%+v", d)
		}
		if c := a.leave(); c != errcode.None {
			t.Fatal(c.Name())
		}
		w.state("g", "Empty")
		if c := a.heartbeat(); c != errcode.UnknownMemberId {
			t.Fatal(c.Name())
		}
	}
}

func TestJoinRefusals(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	tests := []struct {
		name string
		c    *client
		want errcode.Code
	}{
		{"unknown member", &client{id: "nobody"}, errcode.UnknownMemberId},
		{"unknown member of an unknown group", &client{group: "other", id: "nobody"}, errcode.UnknownMemberId},
		{"other protocol type", &client{kind: "connect"}, errcode.InconsistentGroupProtocol},
		{"no protocol in common", &client{protocols: []string{"sticky"}}, errcode.InconsistentGroupProtocol},
		{"unknown instance", (&client{id: a.id}).static("i"), errcode.UnknownMemberId},
	}
	for _, tt := range tests {
		c := w.client("g")
		if tt.c.group != "" {
			c.group = tt.c.group
		}
		if tt.c.kind != "" {
			c.kind = tt.c.kind
		}
		if tt.c.protocols != nil {
			c.protocols = tt.c.protocols
		}
		c.id, c.instance = tt.c.id, tt.c.instance
		r := reply[*kmsg.JoinGroupResponse](w, c.sendJoin())
		w.code(tt.name, r.ErrorCode, tt.want)
		if r.MemberID != c.id || r.Generation != -1 {
			t.Fatalf("%s: %+v", tt.name, r)
		}
	}
	for name, c := range map[string]*client{"no protocols": {kind: "consumer"}, "no protocol type": {protocols: []string{"x"}}} {
		n := w.client("new " + name)
		n.kind, n.protocols = c.kind, c.protocols
		w.code(name, reply[*kmsg.JoinGroupResponse](w, n.sendJoin()).ErrorCode, errcode.InconsistentGroupProtocol)
	}
	w.state("g", "Stable")
}

func TestTwoMembers(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g").alone("all"), w.client("g")
	b.sendJoin()
	w.Silent(b.ticket)
	if c := a.heartbeat(); c != errcode.RebalanceInProgress {
		t.Fatal(c.Name())
	}
	if c := a.commit("t", 0, 1); c != errcode.None {
		t.Fatal("commit while the group gathers:", c.Name())
	}
	a.sendJoin()
	a.joined()
	b.joined()
	if a.generation != 2 || b.generation != 2 || !a.leader || b.leader || a.members != 2 || b.members != 0 {
		t.Fatalf("%+v %+v", a, b)
	}
	if c := b.commit("t", 0, 2); c != errcode.RebalanceInProgress {
		t.Fatal("commit before the assignment:", c.Name())
	}
	waiting := b.sendSync(nil)
	w.Silent(waiting)
	a.sendSync(map[string]string{a.id: "half", b.id: "other half"})
	a.synced("half")
	b.synced("other half")
	b.sendSync(nil)
	b.synced("other half")
	if c := b.leave(); c != errcode.None {
		t.Fatal(c.Name())
	}
	if c := a.heartbeat(); c != errcode.RebalanceInProgress {
		t.Fatal(c.Name())
	}
	a.sendJoin()
	a.joined()
	if a.generation != 3 || a.members != 1 {
		t.Fatalf("%+v", a)
	}
}

func TestInitialDelayGrowsWithMembers(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	a.sendJoin()
	w.After(2 * time.Second)
	b.sendJoin()
	w.After(2 * time.Second)
	w.Silent(a.ticket)
	w.After(2 * time.Second)
	a.joined()
	b.joined()
	if a.generation != 1 || a.members != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestInitialDelayEndsAtTheRebalanceTimeout(t *testing.T) {
	w := newWorld(t)
	first := w.client("g")
	first.rebalance = 5000
	first.sendJoin()
	for range 4 {
		w.After(time.Second)
		c := w.client("g")
		c.rebalance = 5000
		c.sendJoin()
	}
	w.Silent(first.ticket)
	w.After(time.Second)
	first.joined()
	if first.members != 5 {
		t.Fatalf("%+v", first)
	}
}

// TestInitialDelayIsNotCutShort by an id that was given out and lapses.
func TestInitialDelayIsNotCutShort(t *testing.T) {
	w := newWorld(t)
	a := w.client("g")
	a.sendJoin()
	w.After(time.Second)
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis = 9, "g", "consumer", 6000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	w.code("first join", reply[*kmsg.JoinGroupResponse](w, w.Do(&Join{Request: req})).ErrorCode, errcode.MemberIdRequired)
	for range 2 {
		w.After(time.Second)
		w.client("g").sendJoin()
		w.After(2 * time.Second)
	}
	w.After(time.Second) // 8 s; the id has lapsed at 7 s
	w.Silent(a.ticket)
	w.After(time.Second)
	a.joined()
	if a.members != 3 {
		t.Fatalf("%+v", a)
	}
}

func TestWaitingInJoinKeepsAlive(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	b := w.client("g")
	a.session, b.session = 6000, 6000
	b.sendJoin()
	for range 9 {
		w.After(time.Second)
		if c := a.heartbeat(); c != errcode.RebalanceInProgress {
			t.Fatal(c.Name())
		}
	}
	w.Silent(b.ticket)
	a.sendJoin()
	a.joined()
	b.joined()
	if a.members != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestRebalanceTimeoutDropsTheAbsent(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	both(a, b)
	old := a.id
	b.protocols = []string{"range", "sticky"}
	b.sendJoin()
	for range 59 {
		w.After(time.Second)
		a.heartbeat()
	}
	w.Silent(b.ticket)
	w.After(time.Second)
	b.joined()
	if !b.leader || b.members != 1 {
		t.Fatalf("the one that came must lead: %+v", b)
	}
	a.id = old
	if c := a.heartbeat(); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
}

func TestVersion0UsesTheSessionForTheRebalance(t *testing.T) {
	w := newWorld(t)
	a := w.client("g")
	a.version, a.session, a.rebalance = 0, 8000, 0
	a.alone("x")
	b := w.client("g")
	b.version, b.session, b.rebalance = 0, 8000, 0
	b.sendJoin()
	w.After(7 * time.Second)
	w.Silent(b.ticket)
	w.After(time.Second)
	b.joined()
	if !b.leader {
		t.Fatalf("%+v", b)
	}
}

func TestSessionTimeout(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	w.After(6 * time.Second)
	a.heartbeat()
	w.After(9 * time.Second)
	w.state("g", "Stable")
	w.After(time.Second)
	w.state("g", "Empty")
	if c := a.heartbeat(); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
}

func TestCommitKeepsAlive(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	for range 4 {
		w.After(8 * time.Second)
		if c := a.commit("t", 0, 1); c != errcode.None {
			t.Fatal(c.Name())
		}
	}
}

func TestPendingMemberHoldsTheRebalanceUntilItLapses(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis = 9, "g", "consumer", 6000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	r := reply[*kmsg.JoinGroupResponse](w, w.Do(&Join{Request: req, ClientID: "c"}))
	w.code("first join", r.ErrorCode, errcode.MemberIdRequired)
	if r.MemberID != "c-uuid2" {
		t.Fatal(r.MemberID)
	}
	a.sendJoin()
	w.Silent(a.ticket)
	w.After(6 * time.Second)
	a.joined()
}

func TestNewMemberMustHearWithinFiveMinutes(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	a.session = 60000
	b := w.client("g")
	b.rebalance = 600000
	b.sendJoin()
	for range 4*60 + 59 {
		w.After(time.Second)
		a.heartbeat()
	}
	w.Silent(b.ticket)
	w.After(time.Second)
	r := reply[*kmsg.JoinGroupResponse](w, b.ticket)
	w.code("join of a member that nobody heard of", r.ErrorCode, errcode.UnknownMemberId)
}

func TestFirstOfTwoEqualJoinsIsAnswered(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	b := w.client("g")
	first := b.sendJoin()
	second := b.sendJoin()
	w.code("overtaken join", reply[*kmsg.JoinGroupResponse](w, first).ErrorCode, errcode.RebalanceInProgress)
	w.Silent(second)
	a.sendJoin()
	a.joined()
	b.joined()
	if a.members != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestOvertakenSyncIsAnswered(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	joinBoth(a, b)
	first := b.sendSync(nil)
	b.sendSync(nil)
	w.code("overtaken sync", reply[*kmsg.SyncGroupResponse](w, first).ErrorCode, errcode.RebalanceInProgress)
	a.sendSync(map[string]string{b.id: "x"})
	b.synced("x")
	a.synced("")
}

func TestSyncRefusals(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	other := "other"
	tests := []struct {
		name   string
		change func(r *kmsg.SyncGroupRequest)
		want   errcode.Code
	}{
		{"again", func(*kmsg.SyncGroupRequest) {}, errcode.None},
		{"generation", func(r *kmsg.SyncGroupRequest) { r.Generation++ }, errcode.IllegalGeneration},
		{"member", func(r *kmsg.SyncGroupRequest) { r.MemberID = "nobody" }, errcode.UnknownMemberId},
		{"group", func(r *kmsg.SyncGroupRequest) { r.Group = "other" }, errcode.UnknownMemberId},
		{"protocol", func(r *kmsg.SyncGroupRequest) { r.Protocol = &other }, errcode.InconsistentGroupProtocol},
		{"protocol type", func(r *kmsg.SyncGroupRequest) { r.ProtocolType = &other }, errcode.InconsistentGroupProtocol},
		{"instance", func(r *kmsg.SyncGroupRequest) { r.InstanceID = &other }, errcode.UnknownMemberId},
	}
	for _, tt := range tests {
		req := kmsg.NewPtrSyncGroupRequest()
		req.Group, req.MemberID, req.Generation = "g", a.id, a.generation
		tt.change(req)
		w.code(tt.name, reply[*kmsg.SyncGroupResponse](w, w.Do(&Sync{Request: req})).ErrorCode, tt.want)
	}
}

func TestHeartbeatRefusals(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").alone("x")
	for _, tt := range []struct {
		c    Heartbeat
		want errcode.Code
	}{
		{Heartbeat{Group: "g", MemberID: a.id, Generation: 1}, errcode.None},
		{Heartbeat{Group: "g", MemberID: a.id, Generation: 2}, errcode.IllegalGeneration},
		{Heartbeat{Group: "g", MemberID: a.id, Generation: -1}, errcode.IllegalGeneration},
		{Heartbeat{Group: "g", MemberID: "nobody", Generation: 1}, errcode.UnknownMemberId},
		{Heartbeat{Group: "g", Generation: 1}, errcode.UnknownMemberId},
		{Heartbeat{Group: "other", MemberID: a.id, Generation: 1}, errcode.UnknownMemberId},
	} {
		if got := reply[errcode.Code](w, w.Do(&tt.c)); got != tt.want {
			t.Fatalf("%+v: %s, want %s", tt.c, got.Name(), tt.want.Name())
		}
	}
}

func TestMembersThatDoNotSyncAreDropped(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	a.session, b.session = 600000, 600000
	joinBoth(a, b)
	a.sendSync(map[string]string{a.id: "x"})
	a.synced("x")
	w.After(60 * time.Second)
	if c := b.heartbeat(); c != errcode.UnknownMemberId {
		t.Fatal(c.Name())
	}
	if c := a.heartbeat(); c != errcode.RebalanceInProgress {
		t.Fatal(c.Name())
	}
}

func TestNewJoinEndsWaitingSyncs(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	joinBoth(a, b)
	waiting := b.sendSync(nil)
	c := w.client("g")
	c.sendJoin()
	w.code("sync", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
	w.state("g", "PreparingRebalance")
}

func TestFollowerThatLostItsAnswerJoinsAgain(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	both(a, b)
	b.sendJoin()
	b.joined()
	if b.generation != 1 || b.members != 0 {
		t.Fatalf("a follower without changes must not make a rebalance: %+v", b)
	}
	a.sendJoin()
	w.Silent(a.ticket)
	w.state("g", "PreparingRebalance")
}

func TestProtocolChoice(t *testing.T) {
	w := newWorld(t)
	for i, p := range [][]string{{"range", "rr", "sticky"}, {"sticky", "rr", "range"}, {"x", "sticky", "range"}} {
		c := w.client("g")
		c.protocols = p
		c.sendJoin()
		if i == 2 {
			w.After(10 * time.Second)
			if r := c.joined(); *r.Protocol != "sticky" {
				t.Fatal(*r.Protocol)
			}
		}
	}
}

// TestProtocolChoiceWithEqualVotes: whoever came first, the choice is Apache Kafka's.
func TestProtocolChoiceWithEqualVotes(t *testing.T) {
	for _, tt := range []struct{ a, b, want string }{
		{"range", "roundrobin", "range"}, {"roundrobin", "range", "range"},
		{"range", "sticky", "sticky"}, {"cooperative-sticky", "range", "range"}, {"sticky", "cooperative-sticky", "sticky"},
	} {
		w := newWorld(t)
		one, other := w.client("g"), w.client("g")
		one.protocols, other.protocols = []string{tt.a, tt.b}, []string{tt.b, tt.a}
		one.sendJoin()
		other.sendJoin()
		w.After(10 * time.Second)
		if r := one.joined(); *r.Protocol != tt.want {
			t.Errorf("%s and %s: %s", tt.a, tt.b, *r.Protocol)
		}
	}
}

// TestPendingIDWithAnInstance: ids are given out to dynamic members; one that comes back as a static member is refused as by Apache Kafka.
func TestPendingIDWithAnInstance(t *testing.T) {
	w := newWorld(t)
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis = 9, "g", "consumer", 10000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	pending := reply[*kmsg.JoinGroupResponse](w, w.Do(&Join{Request: req}))
	w.code("without an id", pending.ErrorCode, errcode.MemberIdRequired)
	b := w.client("g").static("one")
	b.id = pending.MemberID
	r := reply[*kmsg.JoinGroupResponse](w, b.sendJoin())
	w.code("with an instance", r.ErrorCode, errcode.UnknownServerError)
}

func TestMaxSize(t *testing.T) {
	w := newWorld(t)
	w.m.config.MaxSize = 2
	a, b := w.client("g"), w.client("g")
	both(a, b)
	c := w.client("g")
	r := reply[*kmsg.JoinGroupResponse](w, c.sendJoin())
	w.code("third", r.ErrorCode, errcode.GroupMaxSizeReached)
	if r.MemberID != "" {
		t.Fatal(r.MemberID)
	}
	// After a load with a lower limit the last to come back is left out.
	w.m = w.replay()
	w.m.config.MaxSize = 1
	w.Restart(w.m)
	w.state("g", "PreparingRebalance")
	a.sendJoin()
	r = reply[*kmsg.JoinGroupResponse](w, b.sendJoin())
	w.code("last", r.ErrorCode, errcode.GroupMaxSizeReached)
	w.After(time.Minute)
	a.joined()
	if a.members != 1 {
		t.Fatalf("%+v", a)
	}
}

func TestStaticMember(t *testing.T) {
	for _, version := range []int16{5, 9} {
		w := newWorld(t)
		a := w.client("g").static("one")
		a.version = version
		a.sendJoin()
		if a.w.Answers[a.ticket].Reply != nil {
			t.Fatal("a static member needs no MEMBER_ID_REQUIRED")
		}
		w.After(3 * time.Second)
		a.joined()
		if a.id != "one-uuid1" {
			t.Fatal(a.id)
		}
		a.sendSync(map[string]string{a.id: "x"})
		a.synced("x")
		b := w.client("g").static("one")
		b.version = version
		b.sendJoin()
		r := b.joined()
		if b.id == a.id || b.generation != 1 {
			t.Fatalf("%+v", b)
		}
		if version >= 9 {
			if !b.leader || !r.SkipAssignment || len(r.Members) != 1 {
				t.Fatalf("%+v", r)
			}
		} else if r.LeaderID != a.id || len(r.Members) != 0 {
			t.Fatalf("%+v", r)
		}
		b.sendSync(nil)
		b.synced("x")
		if c := a.heartbeat(); c != errcode.FencedInstanceId {
			t.Fatal(c.Name())
		}
		if c := a.commit("t", 0, 1); c != errcode.FencedInstanceId {
			t.Fatal(c.Name())
		}
		w.code("sync", reply[*kmsg.SyncGroupResponse](w, a.sendSync(nil)).ErrorCode, errcode.FencedInstanceId)
		w.code("join", reply[*kmsg.JoinGroupResponse](w, a.sendJoin()).ErrorCode, errcode.FencedInstanceId)
		if c := b.heartbeat(); c != errcode.None {
			t.Fatal(c.Name())
		}
		// A loaded shard knows the new id.
		w.reload()
		if c := b.heartbeat(); c != errcode.None {
			t.Fatal(c.Name())
		}
		inst := "one"
		lr := reply[LeaveReply](w, w.Do(&Leave{Group: "g", Members: []LeavingMember{{InstanceID: &inst}, {InstanceID: &inst}}}))
		if lr.Codes[0] != errcode.None || lr.Codes[1] != errcode.UnknownMemberId {
			t.Fatalf("%+v", lr)
		}
		w.state("g", "Empty")
	}
}

func TestStaticMemberThatChangesTheProtocol(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").static("one")
	a.protocols = []string{"range", "sticky"}
	a.alone("x")
	b := w.client("g").static("one")
	b.protocols = []string{"sticky"}
	b.sendJoin()
	b.joined()
	if b.generation != 2 {
		t.Fatalf("want a rebalance: %+v", b)
	}
}

func TestStaticMemberReturnsDuringRebalances(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g").static("one"), w.client("g").static("two")
	joinBoth(a, b)
	waiting := b.sendSync(nil)
	// Between join and sync: the old id is fenced, and everyone joins anew.
	again := w.client("g").static("two")
	again.sendJoin()
	w.code("old sync", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.FencedInstanceId)
	w.state("g", "PreparingRebalance")
	w.Silent(again.ticket)
	// And while joining: the one that waits is fenced.
	third := w.client("g").static("two")
	third.sendJoin()
	w.code("old join", reply[*kmsg.JoinGroupResponse](w, again.ticket).ErrorCode, errcode.FencedInstanceId)
	a.sendJoin()
	a.joined()
	third.joined()
	if a.members != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestAbsentStaticMembersStayUntilTheirSessionEnds(t *testing.T) {
	w := newWorld(t)
	a := w.client("g")
	b := w.client("g").static("one")
	a.session, b.session, a.rebalance, b.rebalance = 60000, 60000, 5000, 5000
	both(a, b)
	a.sendJoin()
	w.After(5 * time.Second)
	a.joined()
	if a.members != 2 {
		t.Fatalf("%+v", a)
	}
}

// TestRebalanceOfAbsentStaticMembersGoesOn: as long as none of them comes, the time to join begins anew. When one has come, it ends, and
// who has come leads.
func TestRebalanceOfAbsentStaticMembersGoesOn(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g").static("one"), w.client("g").static("two")
	a.session, b.session, a.rebalance, b.rebalance = 60000, 60000, 10000, 10000
	both(a, b)
	c := w.client("g")
	c.rebalance = 10000
	c.sendJoin()
	w.code("leave", int16(c.leave()), errcode.None)
	w.After(25 * time.Second)
	w.state("g", "PreparingRebalance")
	b.sendJoin()
	w.After(4 * time.Second)
	w.Silent(b.ticket)
	w.After(time.Second)
	b.joined()
	if !b.leader || b.members != 2 || b.generation != 2 {
		t.Fatalf("%+v", b)
	}
}

// TestHeartbeatBeforeTheFirstGeneration: who waits for the group to gather is told that it does.
func TestHeartbeatBeforeTheFirstGeneration(t *testing.T) {
	w := newWorld(t)
	a := w.client("g")
	a.sendJoin()
	w.code("heartbeat", int16(a.heartbeat()), errcode.RebalanceInProgress)
}

// TestAbsentStaticMembersWithoutTimeToRebalance: members that give no time for a rebalance do not keep the machine busy when they
// are all away, and whoever comes goes on at once.
func TestAbsentStaticMembersWithoutTimeToRebalance(t *testing.T) {
	for _, timeout := range []int32{0, -1} {
		w := newWorld(t)
		a := w.client("g")
		b := w.client("g").static("one")
		b.rebalance = timeout
		both(a, b)
		a.leave()
		w.After(5 * time.Second)
		w.state("g", "PreparingRebalance")
		b.sendJoin()
		w.After(absentPause)
		b.joined()
		if b.members != 1 {
			t.Fatalf("%d: %+v", timeout, b)
		}
	}
}

func TestLeaveAnswersWhoWaits(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	joinBoth(a, b)
	waiting := b.sendSync(nil)
	b.leave()
	w.code("sync of one that left", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.UnknownMemberId)
	c := w.client("g")
	c.sendJoin()
	waiting = c.ticket
	c.leave()
	w.code("join of one that left", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.UnknownMemberId)
	if r := reply[LeaveReply](w, w.Do(&Leave{Group: "other", Members: []LeavingMember{{ID: "x"}}})); r.Found {
		t.Fatal("a group that does not exist was found")
	}
}

// FuzzSubscription makes sure that nothing in a member's metadata can do harm.
func FuzzSubscription(f *testing.F) {
	f.Add(subscription("t", "topic"))
	f.Add([]byte{0, 1, 0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		topics, err := subscribedTopics(b)
		if err == nil && len(topics)*2 > len(b) {
			t.Fatalf("%d topics in %d bytes", len(topics), len(b))
		}
	})
}
