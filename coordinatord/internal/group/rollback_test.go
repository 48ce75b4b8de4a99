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
	w.Manual = true
	c := &client{w: w, group: "g", generation: -1}
	first := w.Do(c.commitCommand("t", 0, 2))
	second := w.Do(c.commitCommand("t", 0, 3))
	fresh := &client{w: w, group: "new", generation: -1}
	w.Do(fresh.commitCommand("t", 0, 3))
	w.Fail(errcode.CoordinatorNotAvailable)
	for _, tk := range []Ticket{first, second} {
		if w.Answers[tk].Code != errcode.CoordinatorNotAvailable {
			t.Fatalf("%+v", w.Answers[tk])
		}
	}
	w.Manual = false
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
	joinBoth(a, b)
	w.Manual = true
	waiting := b.sendSync(nil)
	leader := a.sendSync(map[string]string{a.id: "x", b.id: "y"})
	twice := a.sendSync(map[string]string{a.id: "z"})
	if len(w.Pending) != 1 {
		t.Fatalf("a leader assigns once: %d records", len(w.Pending))
	}
	w.code("overtaken", reply[*kmsg.SyncGroupResponse](w, leader).ErrorCode, errcode.RebalanceInProgress)
	w.Silent(waiting)
	w.Fail(errcode.CoordinatorNotAvailable)
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
	w.After(3 * time.Second)
	a.joined()
	w.Manual = true
	waiting := a.sendSync(map[string]string{a.id: "x"})
	b := w.client("g")
	b.version = 3
	b.sendJoin()
	w.code("sync", reply[*kmsg.SyncGroupResponse](w, waiting).ErrorCode, errcode.RebalanceInProgress)
	w.Commit()
	w.state("g", "PreparingRebalance")
	w.Manual = false
	a.sendJoin()
	a.joined()
	b.joined()
	if a.generation != 2 {
		t.Fatalf("%+v", a)
	}
}

func TestGroupThatCouldNotBeCreated(t *testing.T) {
	w := newWorld(t)
	w.Manual = true
	a := w.client("g")
	a.version = 3
	waiting := a.sendJoin()
	w.Silent(waiting)
	w.Fail(errcode.CoordinatorNotAvailable)
	w.code("join", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.CoordinatorNotAvailable)
	if w.m.find("g") != nil || len(w.m.groups) != 0 {
		t.Fatal("the group exists")
	}
	w.After(time.Hour)
	if len(w.Pending) != 0 {
		t.Fatal("alarms of a group that is gone have fired")
	}
}

func TestFailedDeletion(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.Manual = true
	w.Do(&DeleteGroups{IDs: []string{"g"}})
	again := w.Do(&DeleteGroups{IDs: []string{"g"}})
	a := w.client("g")
	a.version = 3
	waiting := a.sendJoin()
	w.Fail(errcode.UnknownServerError)
	if w.Answers[again].Code != errcode.UnknownServerError {
		t.Fatalf("%+v", w.Answers[again])
	}
	w.code("join", reply[*kmsg.JoinGroupResponse](w, waiting).ErrorCode, errcode.UnknownServerError)
	w.Manual = false
	w.state("g", "Empty")
	if f := w.fetch("g", "t", 0, true); f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
}

func TestDeletedAndMadeAgainInOneBatch(t *testing.T) {
	w := newWorld(t)
	w.commitOutside("g", "t", 0, 1)
	w.Manual = true
	w.Do(&DeleteGroups{IDs: []string{"g"}})
	c := &client{w: w, group: "g", generation: -1}
	w.Do(c.commitCommand("u", 0, 2))
	w.Commit()
	w.Manual = false
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
	w.Manual = true
	b := w.client("g").static("one")
	first := b.sendJoin()
	c := w.client("g").static("one")
	second := c.sendJoin()
	w.code("overtaken", reply[*kmsg.JoinGroupResponse](w, first).ErrorCode, errcode.FencedInstanceId)
	w.Silent(second)
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
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
	w.Manual = true
	b := w.client("g").static("one")
	b.sendJoin()
	c := w.client("g")
	c.version = 3
	c.sendJoin()
	w.state("g", "CompletingRebalance")
	b.joined()
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
	if code := b.heartbeat(); code != errcode.None {
		t.Fatal("the new id was told, and must stay:", code.Name())
	}
}
