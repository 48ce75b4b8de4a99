package group

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

func TestFailedCommitIsTakenBack(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.manual = true
	c := &client{w: w, group: "g", generation: -1}
	first := w.do(c.commitCommand("t", 0, 2))
	second := w.do(c.commitCommand("t", 0, 3))
	fresh := &client{w: w, group: "new", generation: -1}
	w.do(fresh.commitCommand("t", 0, 3))
	w.fail(errcode.CoordinatorNotAvailable)
	for _, tk := range []Ticket{first, second} {
		if w.answers[tk].code != errcode.CoordinatorNotAvailable {
			t.Fatalf("%+v", w.answers[tk])
		}
	}
	w.manual = false
	if f := w.fetch("g", "t", 0, true); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
	if w.m.find("new") != nil {
		t.Fatal("a group that was not written exists")
	}
}

func TestFailedAssignmentMakesARebalance(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("g"), w.client("g")
	a.sendJoin()
	b.sendJoin()
	w.after(6 * time.Second)
	a.joined()
	b.joined()
	w.manual = true
	waiting := b.sendSync(nil)
	leader := a.sendSync(map[string]string{a.id: "x", b.id: "y"})
	twice := a.sendSync(map[string]string{a.id: "z"})
	if len(w.pending) != 1 {
		t.Fatalf("a leader assigns once: %d records", len(w.pending))
	}
	w.code("overtaken", reply[*kmsg.SyncGroupResponse](w, leader).ErrorCode, errcode.RebalanceInProgress)
	w.silent(waiting)
	w.fail(errcode.CoordinatorNotAvailable)
	for _, tk := range []Ticket{waiting, twice} {
		r := reply[*kmsg.SyncGroupResponse](w, tk)
		w.code("sync", r.ErrorCode, errcode.CoordinatorNotAvailable)
		if len(r.MemberAssignment) != 0 {
			t.Fatalf("%q", r.MemberAssignment)
		}
	}
	w.state("g", "PreparingRebalance")
}

func TestAssignmentThatCameTooLateIsForgotten(t *testing.T) {
	w := newWorld(t)
	a := w.client("g")
	a.sendJoin()
	w.after(3 * time.Second)
	a.joined()
	w.manual = true
	waiting := a.sendSync(map[string]string{a.id: "x"})
	b := w.client("g")
	b.version = 3
	b.sendJoin()
	w.code("sync", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
	w.commit()
	w.state("g", "PreparingRebalance")
	w.manual = false
	a.sendJoin()
	a.joined()
	b.joined()
	if a.generation != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestGroupThatCouldNotBeCreated(t *testing.T) {
	w := newWorld(t)
	w.manual = true
	a := w.client("g")
	a.version = 3
	waiting := a.sendJoin()
	w.silent(waiting)
	w.fail(errcode.CoordinatorNotAvailable)
	w.code("join", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.CoordinatorNotAvailable)
	if w.m.find("g") != nil || len(w.m.groups) != 0 {
		t.Fatal("the group exists")
	}
	w.after(time.Hour)
	if len(w.pending) != 0 {
		t.Fatal("alarms of a group that is gone have fired")
	}
}

func TestFailedDeletion(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.manual = true
	w.do(&DeleteGroups{IDs: []string{"g"}})
	again := w.do(&DeleteGroups{IDs: []string{"g"}})
	a := w.client("g")
	a.version = 3
	waiting := a.sendJoin()
	w.fail(errcode.UnknownServerError)
	if w.answers[again].code != errcode.UnknownServerError {
		t.Fatalf("%+v", w.answers[again])
	}
	w.code("join", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.UnknownServerError)
	w.manual = false
	w.state("g", "Empty")
	if f := w.fetch("g", "t", 0, true); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
}

func TestDeletedAndMadeAgainInOneBatch(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.manual = true
	w.do(&DeleteGroups{IDs: []string{"g"}})
	c := &client{w: w, group: "g", generation: -1}
	w.do(c.commitCommand("u", 0, 2))
	w.commit()
	w.manual = false
	w.state("g", "Empty")
	if f := w.fetch("g", "t", 0, false); f.Offset != -1 {
		t.Fatalf("%+v", f)
	}
	if f := w.fetch("g", "u", 0, false); f.Offset != 2 {
		t.Fatalf("%+v", f)
	}
}

func TestFailedReturnOfAStaticMember(t *testing.T) {
	w := newWorld(t)
	a := w.client("g").static("one").alone("x")
	w.manual = true
	b := w.client("g").static("one")
	first := b.sendJoin()
	c := w.client("g").static("one")
	second := c.sendJoin()
	w.code("overtaken", reply[*kmsg.JoinGroupResponse](w, first).ErrorCode, errcode.FencedInstanceId)
	w.silent(second)
	w.fail(errcode.CoordinatorNotAvailable)
	w.manual = false
	w.code("join", reply[*kmsg.JoinGroupResponse](w, second).ErrorCode, errcode.CoordinatorNotAvailable)
	if code := a.heartbeat(); code != errcode.None {
		t.Fatal("the old id must be valid again:", code.Name())
	}
	a.sendSync(nil)
	a.synced("x")
}

func TestRebalanceAnswersAReturnThatIsNotDurableYet(t *testing.T) {
	w := newWorld(t)
	w.client("g").static("one").alone("x")
	w.manual = true
	b := w.client("g").static("one")
	b.sendJoin()
	c := w.client("g")
	c.version = 3
	c.sendJoin()
	w.state("g", "CompletingRebalance")
	b.joined()
	w.fail(errcode.CoordinatorNotAvailable)
	w.manual = false
	if code := b.heartbeat(); code != errcode.None {
		t.Fatal("the new id was told, and must stay:", code.Name())
	}
}
