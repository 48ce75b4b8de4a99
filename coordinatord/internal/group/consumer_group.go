package group

import (
	"time"

	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
	"chancery/services/metadata"
)

// The types of groups, as lists show them.
const (
	classicType  = "classic"
	consumerType = "consumer"
)

// anyGroup is a group of whatever type: a classic or a consumer group.
type anyGroup interface {
	groupID() string
	typeName() string
	stateName() string
	protocolTypeName() string
	// subscribedTo says whether members consume a topic.
	subscribedTo(topic string) bool
}

func (g *Group) groupID() string          { return g.id }
func (g *Group) typeName() string         { return classicType }
func (g *Group) stateName() string        { return g.state.String() }
func (g *Group) protocolTypeName() string { return g.protocolType }

// isEmpty says whether a group has no members.
func isEmpty(g anyGroup) bool {
	switch g := g.(type) {
	case *Group:
		return g.state == empty
	case *consumerGroup:
		return len(g.Members) == 0
	}
	return false
}

func memberCount(g anyGroup) int {
	switch g := g.(type) {
	case *Group:
		return len(g.members)
	case *consumerGroup:
		return len(g.Members)
	}
	return 0
}

// consumerGroup is a consumer group with its soft part: time-outs, and what is under way.
type consumerGroup struct {
	*consumer.Group
	alarms map[string]*memberAlarms
	// seen is the image by which the group's metadata hash was last computed, at an epoch that may have been taken back.
	seen      metadata.Reader
	seenEpoch int32
	// resolving says that the topics of regular expressions are being looked up.
	resolving bool
}

func newConsumerGroup(id string) *consumerGroup {
	return &consumerGroup{Group: consumer.NewGroup(id), alarms: map[string]*memberAlarms{}}
}

func (g *consumerGroup) groupID() string                { return g.ID }
func (g *consumerGroup) typeName() string               { return consumerType }
func (g *consumerGroup) stateName() string              { return g.State() }
func (g *consumerGroup) protocolTypeName() string       { return consumerProtocolType }
func (g *consumerGroup) subscribedTo(topic string) bool { return g.SubscribedTo(topic) }

// memberAlarms are the time-outs of a member of a consumer group.
type memberAlarms struct {
	// session is when it is taken for dead, revoke by when it must have given partitions up, at the member epoch
	// revokeEpoch.
	session, revoke alarm
	revokeEpoch     int32
	// join and sync are by when a member that speaks the classic protocol must have joined again and asked for its assignment.
	join, sync alarm
}

// alarmsOf gives the time-outs of a member.
func (m *Machine) alarmsOf(g *consumerGroup, id string) *memberAlarms {
	a := g.alarms[id]
	if a != nil {
		return a
	}
	a = &memberAlarms{}
	g.alarms[id] = a
	fence := func(reason string) func(time.Time, *Effects) {
		return func(now time.Time, out *Effects) { m.fenceByAlarm(now, g, id, reason, out) }
	}
	a.session.fire = fence("its session has ended")
	a.join.fire = fence("it did not join in time")
	a.sync.fire = fence("it did not ask for its assignment in time")
	a.revoke.fire = func(now time.Time, out *Effects) {
		if mem := g.Members[id]; mem != nil && mem.Epoch == a.revokeEpoch {
			m.fenceByAlarm(now, g, id, "it did not give up its partitions in time", out)
		}
	}
	return a
}

// cancelAlarms stops the time-outs of a member.
func (m *Machine) cancelAlarms(g *consumerGroup, id string) {
	if a := g.alarms[id]; a != nil {
		for _, one := range []*alarm{&a.session, &a.revoke, &a.join, &a.sync} {
			m.alarms.cancel(one)
		}
		delete(g.alarms, id)
	}
}

// silence stops the time-outs of all members.
func (m *Machine) silence(g *consumerGroup) {
	for id := range g.alarms {
		m.cancelAlarms(g, id)
	}
}

// watchMembers makes the time-outs fit the members: those that are there get the time of their session.
func (m *Machine) watchMembers(now time.Time, g *consumerGroup) {
	for id := range g.alarms {
		if g.Members[id] == nil {
			m.cancelAlarms(g, id)
		}
	}
	settings := m.settingsOf(g.ID)
	for id, mem := range g.Members {
		a := m.alarmsOf(g, id)
		if a.session.due.IsZero() {
			m.alarms.set(&a.session, now.Add(sessionTimeout(mem, settings)))
		}
		if mem.State == consumer.Unrevoked && mem.Classic == nil && a.revoke.due.IsZero() {
			m.awaitRevocation(now, g, mem)
		}
	}
}

func sessionTimeout(mem *consumer.Member, s ConsumerSettings) time.Duration {
	if mem.Classic != nil {
		return millis(mem.Classic.SessionTimeoutMs)
	}
	return s.SessionTimeout
}

func millis(ms int32) time.Duration { return time.Duration(ms) * time.Millisecond }

// awaitRevocation bounds the time in which a member must give partitions up.
func (m *Machine) awaitRevocation(now time.Time, g *consumerGroup, mem *consumer.Member) {
	a := m.alarmsOf(g, mem.ID)
	a.revokeEpoch = mem.Epoch
	m.alarms.set(&a.revoke, now.Add(millis(mem.RebalanceTimeoutMs)))
}

// settingsOf are the settings of a group, with its own configs counted in.
func (m *Machine) settingsOf(id string) ConsumerSettings {
	return m.config.Consumer.Settings(m.image, id)
}

// see takes over an image if it is newer than the one that is known.
func (m *Machine) see(image metadata.Reader) {
	if image != nil && image.Offset() > m.image.Offset() {
		m.image = image
	}
}

// applyConsumer applies a record of a consumer group. Whatever is said about a group that is not there makes it, but for
// deletions.
func (m *Machine) applyConsumer(r *Record) {
	s := m.slotOf(r.groupID)
	g, _ := r.group.(*consumerGroup)
	deletion := isDeletion(r.consumer)
	if g == nil {
		if g, _ = s.newest.(*consumerGroup); g == nil {
			if deletion {
				m.tidy(r.groupID)
				return
			}
			g = newConsumerGroup(r.groupID)
		}
		r.group = g
	}
	r.undo = g.Apply(r.consumer)
	switch {
	case !deletion:
		s.newest = g
	case r.consumer.Type == grouprecord.TypeConsumerGroup && s.newest == anyGroup(g):
		s.newest = nil
	}
}

// commitConsumer makes a record of a consumer group durable.
func (m *Machine) commitConsumer(r *Record) {
	r.undo = nil
	if r.group == nil {
		return
	}
	s := m.slotOf(r.groupID)
	switch {
	case !isDeletion(r.consumer):
		s.durable = r.group
	case r.consumer.Type == grouprecord.TypeConsumerGroup && s.durable == r.group:
		s.durable = nil
	}
}

func isDeletion(r *grouprecord.Consumer) bool {
	return r.Epoch == nil && r.Member == nil && r.Target == nil && r.Planned == nil && r.Current == nil && r.Regex == nil && !r.Partitions
}

// consumerGroupByID finds a consumer group that exists.
func (m *Machine) consumerGroupByID(id string) (*consumerGroup, error) {
	switch g := m.find(id).(type) {
	case *consumerGroup:
		return g, nil
	case nil:
		return nil, groupNotFound(id)
	}
	return nil, errcode.GroupIdNotFound.Errorf("Group %s is not a consumer group.", id)
}

func groupNotFound(id string) error {
	return errcode.GroupIdNotFound.Errorf("Group %s not found.", id)
}
