package group

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// TestModel plays random members against a shard whose appends fail at random. Whatever happens, the groups' books balance,
// a shard that is loaded from the log agrees with the one that wrote it, and in the end nobody waits for an answer.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.m.config.MaxSize = rapid.IntRange(1, 5).Draw(rt, "max size")
		w.m.config.InitialRebalanceDelay = rapid.SampledFrom([]time.Duration{3 * time.Second, 0}).Draw(rt, "initial delay")
		p := &play{rt: rt, w: w}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			p.step()
			p.check()
		}
		w.Manual = false
		w.Commit()
		w.After(2 * time.Hour)
		p.check()
		if t, ok := w.Unanswered(); ok {
			rt.Fatalf("ticket %d was never answered", t)
		}
	})
}

// play is a number of clients that know what they were told.
type play struct {
	rt      *rapid.T
	w       *world
	clients []*client
}

var playGroups = []string{"g", "h"}

func (p *play) step() {
	w := p.w
	switch rapid.IntRange(0, 11).Draw(p.rt, "what") {
	case 0:
		w.Manual = !w.Manual
		if !w.Manual {
			w.Commit()
		}
	case 1:
		w.Commit()
	case 2:
		w.Fail(errcode.CoordinatorNotAvailable)
	case 3:
		w.After(time.Duration(rapid.SampledFrom([]int{1, 1000, 3000, 11000, 61000, 700000}).Draw(p.rt, "ms")) * time.Millisecond)
	case 4:
		p.clients = append(p.clients, p.newClient())
	case 5:
		g := rapid.SampledFrom(playGroups).Draw(p.rt, "group")
		c := &client{w: w, group: g, generation: -1}
		w.Do(c.commitCommand(rapid.SampledFrom([]string{"t", "u"}).Draw(p.rt, "topic"), 0, rapid.Int64Range(0, 9).Draw(p.rt, "offset")))
	case 6:
		g := rapid.SampledFrom(playGroups).Draw(p.rt, "group")
		w.Do(&DeleteGroups{IDs: []string{g}})
	case 7:
		w.Do(&TopicsGone{Gone: func(name string, _ uuid.UUID) bool { return name == "u" }})
	default:
		p.clientStep()
	}
}

func (p *play) newClient() *client {
	c := p.w.client(rapid.SampledFrom(playGroups).Draw(p.rt, "group"))
	c.version = int16(rapid.SampledFrom([]int{0, 3, 5, 9}).Draw(p.rt, "version"))
	c.rebalance = rapid.SampledFrom([]int32{60000, 60000, 0, -1, -5, 700}).Draw(p.rt, "rebalance time-out")
	c.protocols = rapid.SampledFrom([][]string{{"range"}, {"range", "rr"}, {"rr", "range"}, {"rr"}}).Draw(p.rt, "protocols")
	if c.version >= 5 && rapid.Bool().Draw(p.rt, "static") {
		c.static(rapid.SampledFrom([]string{"one", "two"}).Draw(p.rt, "instance"))
	}
	return c
}

// clientStep lets a client hear its answer and do something.
func (p *play) clientStep() {
	if len(p.clients) == 0 {
		return
	}
	c := rapid.SampledFrom(p.clients).Draw(p.rt, "client")
	if a, ok := p.w.Answers[c.ticket]; ok {
		if r, ok := a.Reply.(*kmsg.JoinGroupResponse); ok && (r.ErrorCode == 0 || errcode.Code(r.ErrorCode) == errcode.MemberIdRequired) {
			c.id, c.generation, c.leader = r.MemberID, r.Generation, r.LeaderID == r.MemberID
		}
	}
	switch rapid.IntRange(0, 6).Draw(p.rt, "client does") {
	case 0, 1:
		if rapid.IntRange(0, 3).Draw(p.rt, "changes") == 0 {
			c.protocols = append([]string{"range", "x"}, c.protocols...)
		}
		c.sendJoin()
	case 2, 3:
		assignments := map[string]string{}
		if g := p.w.classic(c.group); g != nil && c.leader {
			for _, m := range g.order {
				assignments[m.id] = fmt.Sprint(c.generation, m.id)
			}
		}
		c.sendSync(assignments)
	case 4:
		p.w.Do(&Heartbeat{Group: c.group, MemberID: c.id, InstanceID: c.instance, Generation: c.generation})
	case 5:
		p.w.Do(c.commitCommand("t", 1, rapid.Int64Range(0, 9).Draw(p.rt, "offset")))
	case 6:
		p.w.Do(&Leave{Group: c.group, Members: []LeavingMember{{ID: c.id, InstanceID: c.instance}}})
		c.id = ""
	}
}

// check looks at everything that must always hold.
func (p *play) check() {
	settled := len(p.w.Pending) == 0
	for id, s := range p.w.m.groups {
		if settled && s.newest == nil && s.durable == nil {
			p.rt.Fatalf("group %s: an empty slot", id)
		}
		if settled && s.newest != s.durable {
			p.rt.Fatalf("group %s: two views and nothing under way", id)
		}
		if g, ok := s.newest.(*Group); ok {
			p.checkGroup(g)
		}
	}
	for _, id := range playGroups {
		for k, v := range p.w.m.offsets.AllNewest(id) {
			if p.w.m.find(id) == nil {
				p.rt.Fatalf("offset %v of a group %s that is not there", k, id)
			}
			if settled && p.w.m.offsets.Durable(id, k) != v {
				p.rt.Fatalf("offset %v of %s: two views and nothing under way", k, id)
			}
		}
	}
	if settled {
		p.checkReplay()
	}
}

func (p *play) checkGroup(g *Group) {
	awaiting, supported := 0, map[string]int{}
	for _, m := range g.order {
		if g.members[m.id] != m {
			p.rt.Fatalf("member %s is only in one of the lists", m.id)
		}
		if m.join != 0 {
			awaiting++
		}
		for _, x := range m.protocols {
			supported[x.name]++
		}
		if m.instanceID != nil && g.static[*m.instanceID] != m {
			p.rt.Fatalf("static member %s is not found by its instance", m.id)
		}
		if g.protocol != nil && g.state >= completingRebalance && m.metadata(*g.protocol) == nil {
			p.rt.Fatalf("member %s does not support %s", m.id, *g.protocol)
		}
		if m.sync != 0 && g.state != completingRebalance {
			p.rt.Fatalf("member %s waits for an assignment in state %s", m.id, g.state)
		}
	}
	switch {
	case len(g.order) != len(g.members):
		p.rt.Fatalf("%d members in order, %d by id", len(g.order), len(g.members))
	case awaiting != g.awaitingJoin:
		p.rt.Fatalf("%d members wait, %d counted", awaiting, g.awaitingJoin)
	case fmt.Sprint(supported) != fmt.Sprint(g.supported):
		p.rt.Fatalf("protocols %v, counted %v", supported, g.supported)
	case g.state == empty != (len(g.members) == 0) && g.state != preparingRebalance:
		p.rt.Fatalf("state %s with %d members", g.state, len(g.members))
	case len(g.members) > 0 && g.members[g.leader] == nil:
		p.rt.Fatalf("leader %q is no member", g.leader)
	case g.state >= completingRebalance && g.protocol == nil:
		p.rt.Fatalf("no protocol in state %s", g.state)
	}
}

// checkReplay compares with a shard that has only the log.
func (p *play) checkReplay() {
	m := p.w.replay()
	for _, id := range playGroups {
		want, got := p.w.classic(id), classicOf(m, id)
		if (want == nil) != (got == nil) {
			p.rt.Fatalf("group %s: there is %v, after a replay %v", id, want != nil, got != nil)
		}
		for _, table := range []struct{ a, b *offsets.Table }{{p.w.m.offsets, m.offsets}, {m.offsets, p.w.m.offsets}} {
			for k, v := range table.a.AllDurable(id) {
				if o := table.b.Durable(id, k); o == nil || *o != *v {
					p.rt.Fatalf("offset %v of %s: %+v and %+v", k, id, v, o)
				}
			}
		}
		if want == nil || want.state != stable || want.awaitingJoin > 0 {
			continue
		}
		if got.state != stable || got.generation != want.generation || got.leader != want.leader || len(got.members) != len(want.members) {
			p.rt.Fatalf("group %s: %+v, after a replay %+v", id, want, got)
		}
		for _, a := range want.order {
			b := got.members[a.id]
			if b == nil || !bytes.Equal(a.assignment, b.assignment) || !bytes.Equal(a.metadata(*want.protocol), b.metadata(*want.protocol)) {
				p.rt.Fatalf("member %+v, after a replay %+v", a, b)
			}
		}
	}
}
