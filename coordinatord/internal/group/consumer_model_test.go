package group

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"chancery/coordinatord/internal/assignor"
	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// TestConsumerModel plays random members of both protocols, who subscribe to changing topics and lose answers, against a shard
// whose appends fail at random. Whatever happens: no partition is held by two members, a client that is up to date has nothing
// that the books do not give it, the summaries fit the members, and a shard that is loaded from the log agrees.
func TestConsumerModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.topics(map[string]int{"t": 3, "u": 2, "v": 1})
		w.m.config.Consumer.MaxSize = rapid.IntRange(2, 6).Draw(rt, "max size")
		w.assignmentInterval = rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(rt, "assignment interval")
		p := &consumerPlay{rt: rt, w: w}
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			p.step()
			p.check()
		}
		w.Manual = false
		w.Commit()
		p.check()
		w.After(2 * time.Hour)
		p.check()
		if t, ok := w.Unanswered(); ok {
			rt.Fatalf("ticket %d was never answered", t)
		}
		if n := len(w.m.alarms.heap); n > 1 {
			rt.Fatalf("%d alarms are left when everyone is gone", n)
		}
	})
}

type consumerPlay struct {
	rt      *rapid.T
	w       *world
	members []*modern
	old     []*client
	ids     int
}

var playExpressions = []string{"t|u", ".*", "nothing"}

func (p *consumerPlay) step() {
	w := p.w
	switch rapid.IntRange(0, 13).Draw(p.rt, "what") {
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
		w.After(time.Duration(rapid.SampledFrom([]int{1, 1000, 11000, 46000, 61000}).Draw(p.rt, "ms")) * time.Millisecond)
	case 4:
		p.members = append(p.members, p.newMember())
	case 5:
		p.changeTopics()
	case 6:
		w.work()
	case 7:
		c := w.client("g")
		c.protocols = []string{"range"}
		c.version = int16(rapid.SampledFrom([]int{3, 5, 9}).Draw(p.rt, "version"))
		c.rebalance = rapid.SampledFrom([]int32{60000, 60000, 0, -1, 700}).Draw(p.rt, "rebalance time-out")
		if rapid.IntRange(0, 2).Draw(p.rt, "static") == 0 && c.version >= 5 {
			c.static("one")
		}
		p.old = append(p.old, c)
	case 8, 9:
		p.stepOld()
	default:
		p.stepMember()
	}
}

func (p *consumerPlay) newMember() *modern {
	p.ids++
	c := p.w.modern("g", string(rune('a'+p.ids%26))+string(rune('a'+p.ids/26%26)))
	p.subscribe(c)
	if rapid.IntRange(0, 2).Draw(p.rt, "static") == 0 {
		instance := rapid.SampledFrom([]string{"one", "two"}).Draw(p.rt, "instance")
		c.instance = &instance
	}
	if rapid.IntRange(0, 3).Draw(p.rt, "prefers") == 0 {
		name := rapid.SampledFrom([]string{"uniform", "range"}).Draw(p.rt, "assignor")
		c.assignor = &name
	}
	return c
}

func (p *consumerPlay) subscribe(c *modern) {
	c.topics = rapid.SampledFrom([][]string{{"t"}, {"t", "u"}, {"v", "w"}, {}}).Draw(p.rt, "topics")
	none := ""
	c.regex = &none
	if rapid.IntRange(0, 3).Draw(p.rt, "regex") == 0 {
		c.regex = &playExpressions[rapid.IntRange(0, 2).Draw(p.rt, "expression")]
	}
}

func (p *consumerPlay) changeTopics() {
	name := rapid.SampledFrom([]string{"t", "u", "w"}).Draw(p.rt, "topic")
	had := 0
	if t := p.w.image.TopicByName(name); t != nil {
		had = len(t.Partitions)
		if name == "w" {
			p.w.dropTopic(name)
			return
		}
	}
	p.w.topics(map[string]int{name: min(had+1, 6)})
}

// stepMember lets a member hear its answer, or lose it, and do something.
func (p *consumerPlay) stepMember() {
	if len(p.members) == 0 {
		return
	}
	c := rapid.SampledFrom(p.members).Draw(p.rt, "member")
	if rapid.IntRange(0, 5).Draw(p.rt, "loses the answer") > 0 {
		c.hear()
	}
	switch rapid.IntRange(0, 7).Draw(p.rt, "member does") {
	case 0:
		p.subscribe(c)
		req := c.request()
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.SubscribedTopicRegex = 60000, c.topics, c.regex
		c.send(req)
	case 1:
		epoch := int32(-1)
		if c.instance != nil && rapid.Bool().Draw(p.rt, "comes back") {
			epoch = -2
		}
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = 1, c.group, c.id, epoch, c.instance
		c.epoch = 0
		clear(c.owned)
		p.w.Do(&ConsumerHeartbeat{Request: req})
		c.ticket = 0
	case 2:
		c.epoch = 0
		clear(c.owned)
		c.send(c.request())
	default:
		c.send(c.request())
	}
}

func (p *consumerPlay) stepOld() {
	if len(p.old) == 0 {
		return
	}
	c := rapid.SampledFrom(p.old).Draw(p.rt, "classic member")
	if a, ok := p.w.Answers[c.ticket]; ok {
		if r, ok := a.Reply.(*kmsg.JoinGroupResponse); ok && (r.ErrorCode == 0 || errcode.Code(r.ErrorCode) == errcode.MemberIdRequired) {
			c.id, c.generation, c.leader = r.MemberID, r.Generation, r.LeaderID == r.MemberID
		}
	}
	switch rapid.IntRange(0, 4).Draw(p.rt, "classic member does") {
	case 0, 1:
		c.sendJoin()
	case 2:
		assignments := map[string]string{}
		if g := p.w.classic(c.group); g != nil && c.leader {
			for i, m := range g.order {
				assignments[m.id] = string(writeAssignment(p.w.image, assignor.Partitions{topicOf("t"): {int32(i)}}, subscription("t")))
			}
		}
		c.sendSync(assignments)
	case 3:
		p.w.Do(&Heartbeat{Group: c.group, MemberID: c.id, InstanceID: c.instance, Generation: c.generation})
	case 4:
		p.w.Do(&Leave{Group: c.group, Members: []LeavingMember{{ID: c.id, InstanceID: c.instance}}})
		c.id = ""
	}
}

func (p *consumerPlay) check() {
	settled := len(p.w.Pending) == 0
	s := p.w.m.groups["g"]
	if s == nil {
		return
	}
	if settled && s.newest != s.durable {
		p.rt.Fatalf("two views and nothing under way")
	}
	if g, ok := s.newest.(*consumerGroup); ok {
		p.checkBooks(g)
		p.checkClients(g)
	}
	if settled {
		p.checkReplay()
	}
}

// checkBooks makes sure that no partition is held twice, and that what is kept of the members fits them.
func (p *consumerPlay) checkBooks(g *consumerGroup) {
	type partition struct {
		topic uuid.UUID
		n     int32
	}
	holders := map[partition]string{}
	again := consumer.NewGroup("g")
	for _, mem := range g.SortedMembers() {
		for _, o := range []consumer.Owned{mem.Assigned, mem.PendingRemoval} {
			for topic, partitions := range o {
				for n := range partitions {
					if other := holders[partition{topic, n}]; other != "" {
						p.rt.Fatalf("%s and %s both hold %s-%d", other, mem.ID, topic, n)
					}
					holders[partition{topic, n}] = mem.ID
					if !g.Owned(topic, n) {
						p.rt.Fatalf("%s holds %s-%d and nobody knows", mem.ID, topic, n)
					}
				}
			}
		}
		again.Apply(g.DescriptionRecord(mem))
		again.Apply(g.ProgressRecord(mem))
		a := g.alarms[mem.ID]
		if a == nil || a.session.due.IsZero() {
			p.rt.Fatalf("nobody watches over %s", mem.ID)
		}
		if mem.State == consumer.Unrevoked && mem.Classic == nil && a.revoke.due.IsZero() {
			p.rt.Fatalf("%s has for ever to give up its partitions", mem.ID)
		}
	}
	if !reflect.DeepEqual(again.Counts, g.Counts) {
		p.rt.Fatalf("counts are %+v, want %+v", g.Counts, again.Counts)
	}
	if !maps.Equal(again.Static, g.Static) {
		p.rt.Fatalf("static members are %v, want %v", g.Static, again.Static)
	}
	for id := range g.Target {
		if g.Members[id] == nil {
			p.rt.Fatalf("there is a target for %s, who is no member", id)
		}
	}
}

// checkClients makes sure that members have nothing beyond what the books give them.
func (p *consumerPlay) checkClients(g *consumerGroup) {
	for _, c := range p.members {
		mem := g.Members[c.id]
		if mem == nil || c.epoch == 0 || c.epoch < mem.PreviousEpoch || mem.Epoch < 0 {
			continue
		}
		for topic, partitions := range c.owned {
			for _, n := range partitions {
				if !mem.Assigned.Has(topic, n) && !mem.PendingRemoval.Has(topic, n) {
					p.rt.Fatalf("%s has %s-%d, which the books do not give it: %+v", c.id, topic, n, mem)
				}
			}
		}
	}
}

func (p *consumerPlay) checkReplay() {
	loaded := p.w.replay()
	want, _ := p.w.m.find("g").(*consumerGroup)
	got, _ := loaded.find("g").(*consumerGroup)
	if (want == nil) != (got == nil) {
		p.rt.Fatalf("consumer group: %v, after a replay %v", want != nil, got != nil)
	}
	if want == nil {
		return
	}
	if got.Epoch != want.Epoch || got.TargetEpoch != want.TargetEpoch || got.MetadataHash != want.MetadataHash ||
		got.TargetTimestampMs != want.TargetTimestampMs || len(got.Members) != len(want.Members) || len(got.Target) != len(want.Target) {
		p.rt.Fatalf("%+v, after a replay %+v", want.Group, got.Group)
	}
	for id, mem := range want.Members {
		o := got.Members[id]
		if o == nil || !o.SameDescription(mem) || !o.SameProgress(mem) || !got.Target[id].Equal(want.Target[id]) {
			p.rt.Fatalf("member %+v, after a replay %+v", mem, o)
		}
	}
	if !maps.EqualFunc(got.Resolved, want.Resolved, func(a, b *consumer.Regex) bool {
		return slices.Equal(a.Topics, b.Topics) && a.Version == b.Version && a.TimestampMs == b.TimestampMs
	}) {
		p.rt.Fatalf("expressions %+v, after a replay %+v", want.Resolved, got.Resolved)
	}
}
