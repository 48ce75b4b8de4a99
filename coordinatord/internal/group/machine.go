package group

import (
	"slices"
	"time"

	"chancery/coordinatord/internal/consumer"
	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

var _ statemachine.Machine[Command, *Record, Reply] = (*Machine)(nil)

// Machine is the groups and offsets of one shard.
type Machine struct {
	config  Config
	groups  map[string]*slot
	offsets *offsets.Table
	// producers are those that commit in transactions, by id.
	producers map[int64]*producer
	lastGuard Guard
	alarms    alarms
	expiry    alarm

	// image is the newest metadata that any command has brought, and topicsSince the offset of the last one in which
	// there were topics that had not been there before.
	image       metadata.Reader
	topicsSince int64
	hashes      *consumer.Hashes
}

// slot is a group by both views: the newest one, by which commands are decided, and the durable one, which clients
// read. They differ while the group's creation, conversion or deletion is under way. Only the newest one has alarms.
type slot struct{ newest, durable anyGroup }

// New makes an empty machine.
func New(c Config) *Machine {
	m := &Machine{
		config: c, groups: map[string]*slot{}, offsets: offsets.NewTable(), image: c.Image, topicsSince: c.Image.Offset(), hashes: consumer.NewHashes(),
		producers: map[int64]*producer{},
	}
	m.expiry.fire = m.expire
	return m
}

// Decide carries out a command.
func (m *Machine) Decide(now time.Time, t Ticket, c Command, out *Effects) {
	switch c := c.(type) {
	case *CommitOffsets:
		out.Answer(t, m.commitOffsets(now, c, out))
	case *CommitInTransaction:
		out.Answer(t, m.commitInTransaction(now, c, out))
	case *EndTransaction:
		out.Answer(t, m.endTransaction(c, out))
	case *FetchOffsets:
		m.fetchOffsets(t, c, out)
	case *Heartbeat:
		out.Answer(t, m.heartbeat(now, c))
	case *Join:
		m.join(now, t, c, out)
	case *Sync:
		m.sync(now, t, c, out)
	case *Leave:
		out.Answer(t, m.leave(now, c, out))
	case *ListGroups:
		out.AnswerNow(t, m.listGroups(c))
	case *DescribeGroups:
		out.AnswerNow(t, m.describeGroups(c))
	case *DeleteGroups:
		out.Answer(t, m.deleteGroups(c, out))
	case *DeleteOffsets:
		out.Answer(t, m.deleteOffsets(c, out))
	case *Count:
		out.AnswerNow(t, m.count())
	case *TopicsGone:
		m.topicsGone(c, out)
		out.Answer(t, nil)
	case *ConsumerHeartbeat:
		m.see(c.Image)
		out.Answer(t, m.consumerHeartbeat(now, c, out))
	case *DescribeConsumerGroups:
		m.see(c.Image)
		out.Answer(t, m.describeConsumerGroups(c))
	case *NewImage:
		m.see(c.Image)
		if c.NewTopics {
			m.topicsSince = max(m.topicsSince, c.Image.Offset())
		}
		out.Answer(t, nil)
	case *regexResolved:
		m.takeResolved(now, c, out)
		out.Answer(t, nil)
	}
}

// Apply changes the newest view.
func (m *Machine) Apply(r *Record) {
	switch r.kind {
	case offsetRecord:
		m.applyOffset(r)
	case transactionRecord:
		m.applyMarker(r)
	case groupRecord:
		s := m.slotOf(r.groupID)
		switch {
		case r.metadata == nil:
			s.newest = nil
		case r.group != nil:
			s.newest = r.group
		default:
			g := groupFromRecord(r.groupID, r.metadata)
			m.prepareAlarms(g)
			s.newest = g
		}
	case consumerRecord:
		m.applyConsumer(r)
	}
}

func (m *Machine) applyOffset(r *Record) {
	if r.producerID != noProducer {
		if r.offset != nil {
			m.applyPending(r)
			m.ensureGroup(r)
		}
		return
	}
	m.offsets.Set(r.groupID, r.key, r.offset)
	if r.offset != nil {
		m.ensureGroup(r)
	}
}

// ensureGroup makes the group of an offset that is committed without one: a group that is only a name.
func (m *Machine) ensureGroup(r *Record) {
	s := m.slotOf(r.groupID)
	if s.newest != nil {
		return
	}
	if s.newest = r.group; s.newest == nil {
		s.newest = newGroup(r.groupID, r.offset.CommitTimestampMs)
	}
}

// Commit changes the durable view.
func (m *Machine) Commit(now time.Time, offset int64, r *Record, out *Effects) {
	switch r.kind {
	case transactionRecord:
		m.offsets.Settle(r.ending, r.marker.Type == recordbatch.Commit)
		m.seen(now, r.producerID)
		return
	case offsetRecord:
		if r.offset != nil {
			r.offset.RecordOffset = offset
		}
		if r.producerID == noProducer {
			m.offsets.Commit(r.groupID, r.key, r.offset)
		} else {
			m.seen(now, r.producerID)
		}
		if r.offset == nil {
			m.offsets.DropPending(r.groupID, r.key)
		}
		if r.offset != nil {
			s := m.slotOf(r.groupID)
			if s.durable == nil {
				s.durable = m.groupOf(r, s)
			}
		}
	case groupRecord:
		s := m.slotOf(r.groupID)
		if r.metadata == nil {
			s.durable = nil
		} else {
			s.durable = m.groupOf(r, s)
		}
	case consumerRecord:
		m.commitConsumer(r)
	}
	m.tidy(r.groupID)
	if g, ok := r.group.(*Group); ok && r.settled != nil {
		r.settled.committed(m, now, g, out)
	}
}

// groupOf is the group that a record is about: the one that it was decided for, or for a replayed record the newest.
func (m *Machine) groupOf(r *Record, s *slot) anyGroup {
	if r.group != nil {
		return r.group
	}
	return s.newest
}

// Rollback takes back what was applied and not committed.
func (m *Machine) Rollback(now time.Time, records []*Record, reasons []errcode.Code, out *Effects) {
	// Newest first, so that one change after the other is undone.
	for _, r := range slices.Backward(records) {
		if r.undo != nil {
			r.undo()
			r.undo = nil
		}
	}
	for i, r := range records {
		if r.kind == offsetRecord && r.producerID == noProducer {
			m.offsets.Revert(r.groupID, r.key)
		}
		if s := m.groups[r.groupID]; s != nil && s.newest != s.durable {
			m.abandon(s.newest, reasons[i], out)
			s.newest = s.durable
			m.revive(now, s.newest, out)
		} else if s != nil && r.kind == consumerRecord {
			m.revive(now, s.newest, out)
		}
		m.tidy(r.groupID)
	}
	for i, r := range slices.Backward(records) {
		m.takeBack(r)
		if g, ok := r.group.(*Group); ok && r.settled != nil {
			r.settled.rolledBack(m, now, g, reasons[i], out)
		}
	}
}

// abandon tells everyone who waits for a group that is not there any more, and stops its alarms.
func (m *Machine) abandon(any anyGroup, reason errcode.Code, out *Effects) {
	if c, ok := any.(*consumerGroup); ok {
		m.silence(c)
		return
	}
	g, ok := any.(*Group)
	if !ok {
		return
	}
	for _, mem := range g.order {
		m.answerJoin(g, mem, joinError(mem.id, reason), out)
		m.answerSync(mem, syncError(reason), out)
		m.alarms.cancel(&mem.session)
	}
	for _, a := range g.pendingJoin {
		m.alarms.cancel(a)
	}
	m.alarms.cancel(&g.joinAlarm)
	m.alarms.cancel(&g.syncAlarm)
}

// revive lets a group live on that was not to be replaced after all: members get the time of their sessions again.
func (m *Machine) revive(now time.Time, any anyGroup, out *Effects) {
	switch g := any.(type) {
	case *consumerGroup:
		m.watchMembers(now, g)
	case *Group:
		for _, mem := range g.order {
			m.keepAlive(now, mem)
		}
		if g.state == preparingRebalance || g.state == completingRebalance {
			m.prepareRebalance(now, g, "the group could not be converted", out)
		}
	}
}

// Loaded gives the members of the groups in the log the time of their sessions to come back.
func (m *Machine) Loaded(now time.Time, out *Effects) {
	m.alarms.set(&m.expiry, now.Add(m.config.OffsetsRetentionCheckInterval))
	for _, s := range m.groups {
		if c, ok := s.newest.(*consumerGroup); ok {
			m.watchMembers(now, c)
		}
		g, ok := s.newest.(*Group)
		if !ok {
			continue
		}
		for _, mem := range g.order {
			m.keepAlive(now, mem)
		}
		if len(g.members) > m.config.MaxSize {
			m.prepareRebalance(now, g, "the loaded group is larger than group.max.size", out)
		}
	}
}

// Due is when Tick has something to do.
func (m *Machine) Due() time.Time { return m.alarms.next() }

// Tick fires the alarms that are due, up to one that has records written: the next one must see what they change.
func (m *Machine) Tick(now time.Time, out *Effects) {
	for len(out.Records()) == 0 {
		a := m.alarms.pop(now)
		if a == nil {
			return
		}
		a.fire(now, out)
	}
}

// find is the newest view of a group; nil when it does not exist.
func (m *Machine) find(id string) anyGroup {
	if s := m.groups[id]; s != nil {
		return s.newest
	}
	return nil
}

func (m *Machine) slotOf(id string) *slot {
	s := m.groups[id]
	if s == nil {
		s = &slot{}
		m.groups[id] = s
	}
	return s
}

func (m *Machine) tidy(id string) {
	if s := m.groups[id]; s != nil && s.newest == nil && s.durable == nil {
		delete(m.groups, id)
	}
}

// create makes a group that the caller then has written.
func (m *Machine) create(now time.Time, id string) *Group {
	g := newGroup(id, now.UnixMilli())
	m.prepareAlarms(g)
	return g
}

// prepareAlarms says what a group's alarms do.
func (m *Machine) prepareAlarms(g *Group) {
	g.joinAlarm.fire = func(now time.Time, out *Effects) { m.completeJoin(now, g, out) }
	g.syncAlarm.fire = func(now time.Time, out *Effects) { m.expireSync(now, g, out) }
	for _, mem := range g.order {
		m.prepareSession(g, mem)
	}
}

func (m *Machine) prepareSession(g *Group, mem *member) {
	mem.session.fire = func(now time.Time, out *Effects) { m.expireSession(now, g, mem, out) }
}

// keepAlive begins a member's session anew.
func (m *Machine) keepAlive(now time.Time, mem *member) {
	m.alarms.set(&mem.session, now.Add(time.Duration(mem.sessionTimeoutMs)*time.Millisecond))
}

// count counts the durable groups with their members, and the durable offsets.
func (m *Machine) count() Counts {
	c := Counts{Offsets: m.offsets.Len()}
	for _, s := range m.groups {
		if s.durable != nil {
			c.Groups++
			c.Members += memberCount(s.durable)
		}
	}
	return c
}
