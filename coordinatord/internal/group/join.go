package group

import (
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

const (
	// joinMemberIDRequired is the first version of JoinGroup whose clients are told to join again with the id they get
	// (KIP-394), so that a client that hangs up does not leave a member behind.
	joinMemberIDRequired = 4
	// joinSkipAssignment is the first version that can tell a returning static leader not to assign (KIP-814).
	joinSkipAssignment = 9
	// absentPause is the shortest time between looks for members of a group that are all away.
	absentPause = 100 * time.Millisecond
)

// joinError is the answer to a JoinGroup that failed.
func joinError(memberID string, code errcode.Code) *kmsg.JoinGroupResponse {
	r := kmsg.NewPtrJoinGroupResponse()
	r.Generation, r.MemberID, r.ErrorCode = -1, memberID, int16(code)
	return r
}

// joined is the answer to a member of the present generation. The leader is given all members, unless it is not to assign.
func joined(g *Group, m *member) *kmsg.JoinGroupResponse {
	r := kmsg.NewPtrJoinGroupResponse()
	protocolType := g.protocolType
	r.Generation, r.MemberID, r.LeaderID, r.Protocol, r.ProtocolType = g.generation, m.id, g.leader, g.protocol, &protocolType
	if g.leader == m.id {
		chosen := g.chosenProtocol()
		for _, o := range g.order {
			r.Members = append(r.Members, kmsg.JoinGroupResponseMember{
				MemberID: o.id, InstanceID: o.instanceID, ProtocolMetadata: o.metadata(chosen),
			})
		}
	}
	return r
}

// answerJoin answers a member's waiting JoinGroup, if there is one.
func (m *Machine) answerJoin(g *Group, mem *member, r *kmsg.JoinGroupResponse, out *Effects) {
	if mem.join == 0 {
		return
	}
	out.AnswerNow(mem.join, r)
	mem.join = 0
	g.awaitingJoin--
}

// await makes a member wait in JoinGroup. An earlier request of the same member that still waits is overtaken: it
// is told to join again, which is what it would do if anyone still listened.
func (m *Machine) await(g *Group, mem *member, t Ticket, out *Effects) {
	m.answerJoin(g, mem, joinError(mem.id, errcode.RebalanceInProgress), out)
	mem.join = t
	g.awaitingJoin++
}

func (m *Machine) join(now time.Time, t Ticket, c *Join, out *Effects) {
	req := c.Request
	m.see(c.Image)
	consumers, _ := m.find(req.Group).(*consumerGroup)
	if consumers != nil && !isEmpty(consumers) {
		m.joinConsumer(now, t, consumers, c, out)
		return
	}
	g, _ := m.find(req.Group).(*Group)
	isNew := g == nil
	if isNew {
		// An empty consumer group goes, also for a member that is refused, as in Apache Kafka. Its offsets stay.
		m.deleteConsumerGroup(consumers, out)
		if req.MemberID != "" {
			out.Answer(t, joinError(req.MemberID, errcode.UnknownMemberId))
			return
		}
		g = m.create(now, req.Group)
	}
	protocols := protocolsOf(req)
	switch {
	case !m.accepts(g, req.MemberID):
		if mem := g.members[req.MemberID]; mem != nil {
			m.remove(g, mem, out)
		}
		m.forgetPending(g, req.MemberID)
		out.Answer(t, joinError("", errcode.GroupMaxSizeReached))
	case !g.supports(req.ProtocolType, protocols):
		out.Answer(t, joinError(req.MemberID, errcode.InconsistentGroupProtocol))
	case req.MemberID == "":
		m.joinNew(now, t, g, c, protocols, out)
	default:
		m.joinAgain(now, t, g, c, protocols, out)
	}
	if isNew {
		// Every group is written when it comes to be, so that it can be found, and rolled back.
		out.Append(g.creationRecord())
	}
}

// protocolsOf are the protocols of a request; a name that comes twice counts once.
func protocolsOf(req *kmsg.JoinGroupRequest) []protocol {
	protocols := make([]protocol, 0, len(req.Protocols))
	named := make(map[string]bool, len(req.Protocols))
	for _, p := range req.Protocols {
		if !named[p.Name] {
			named[p.Name] = true
			protocols = append(protocols, protocol{name: p.Name, metadata: p.Metadata})
		}
	}
	return protocols
}

// rebalanceTimeoutMs is the member's; version 0 has none and means its session time-out.
func rebalanceTimeoutMs(req *kmsg.JoinGroupRequest) int32 {
	if req.Version == 0 {
		return req.SessionTimeoutMillis
	}
	return req.RebalanceTimeoutMillis
}

// accepts says whether there is room. While a group gathers, those who have come count, so that the last ones
// to come back to a group that has become too large are left out; afterwards the members count.
func (m *Machine) accepts(g *Group, memberID string) bool {
	mem := g.members[memberID]
	switch g.state {
	case empty:
		return true
	case preparingRebalance:
		return mem != nil && mem.join != 0 || g.awaitingJoin < m.config.MaxSize
	default:
		return mem != nil || len(g.members) < m.config.MaxSize
	}
}

// joinNew is the join of someone without a member id.
func (m *Machine) joinNew(now time.Time, t Ticket, g *Group, c *Join, protocols []protocol, out *Effects) {
	req := c.Request
	if req.InstanceID != nil {
		id := *req.InstanceID + "-" + m.config.NewUUID()
		if old := g.static[*req.InstanceID]; old != nil {
			m.replaceStatic(now, t, g, old, id, c, protocols, out)
			return
		}
		m.addMember(now, t, g, id, c, protocols, out)
		return
	}
	id := c.ClientID + "-" + m.config.NewUUID()
	if req.Version < joinMemberIDRequired {
		m.addMember(now, t, g, id, c, protocols, out)
		return
	}
	a := &alarm{}
	a.fire = func(now time.Time, out *Effects) { m.expirePending(now, g, id, out) }
	g.pendingJoin[id] = a
	m.alarms.set(a, now.Add(time.Duration(req.SessionTimeoutMillis)*time.Millisecond))
	out.Answer(t, joinError(id, errcode.MemberIdRequired))
}

// forgetPending takes back an id that was given out, and says whether it had been.
func (m *Machine) forgetPending(g *Group, id string) bool {
	a := g.pendingJoin[id]
	if a == nil {
		return false
	}
	m.alarms.cancel(a)
	delete(g.pendingJoin, id)
	return true
}

func (m *Machine) expirePending(now time.Time, g *Group, id string, out *Effects) {
	m.forgetPending(g, id)
	m.completeIfJoined(now, g, out)
}

// joinAgain is the join of someone who has a member id.
func (m *Machine) joinAgain(now time.Time, t Ticket, g *Group, c *Join, protocols []protocol, out *Effects) {
	req := c.Request
	if g.pendingJoin[req.MemberID] != nil {
		if req.InstanceID != nil {
			// Such ids are given out to dynamic members only.
			out.Answer(t, joinError("", errcode.UnknownServerError))
			return
		}
		m.forgetPending(g, req.MemberID)
		m.addMember(now, t, g, req.MemberID, c, protocols, out)
		return
	}
	mem, code := g.validateMember(req.MemberID, req.InstanceID)
	if code != errcode.None {
		out.Answer(t, joinError(req.MemberID, code))
		return
	}
	var unchanged bool
	switch g.state {
	case completingRebalance:
		// With the same metadata it has probably not heard the first answer.
		unchanged = mem.matches(protocols)
	case stable:
		// A leader that joins wants a rebalance, for reasons that its metadata need not show.
		unchanged = mem.matches(protocols) && g.leader != mem.id
	case empty:
		out.Answer(t, joinError(req.MemberID, errcode.UnknownMemberId))
		return
	}
	if unchanged {
		out.Answer(t, joined(g, mem))
		return
	}
	m.updateMember(g, mem, req, protocols)
	m.await(g, mem, t, out)
	m.rebalance(now, g, "member "+mem.id+" joins again", out)
}

// updateMember takes over what a member says about itself.
func (m *Machine) updateMember(g *Group, mem *member, req *kmsg.JoinGroupRequest, protocols []protocol) {
	g.countProtocols(mem, -1)
	mem.protocols = protocols
	g.countProtocols(mem, 1)
	mem.rebalanceTimeoutMs, mem.sessionTimeoutMs = rebalanceTimeoutMs(req), req.SessionTimeoutMillis
}

func (m *Machine) addMember(now time.Time, t Ticket, g *Group, id string, c *Join, protocols []protocol, out *Effects) {
	req := c.Request
	mem := &member{
		id:                 id,
		instanceID:         req.InstanceID,
		clientID:           c.ClientID,
		clientHost:         c.ClientHost,
		rebalanceTimeoutMs: rebalanceTimeoutMs(req),
		sessionTimeoutMs:   req.SessionTimeoutMillis,
		protocols:          protocols,
		join:               t,
		isNew:              true,
	}
	m.prepareSession(g, mem)
	if g.state == preparingRebalance && g.previous == empty {
		g.newMemberAdded = true
	}
	if len(g.members) == 0 {
		g.protocolType = req.ProtocolType
	}
	g.insert(mem)
	m.alarms.set(&mem.session, now.Add(newMemberJoinTimeout))
	m.rebalance(now, g, "member "+id+" joins", out)
}

// rebalance begins a rebalance where the group's state allows one, or goes on with the one that is under way.
func (m *Machine) rebalance(now time.Time, g *Group, reason string, out *Effects) {
	if g.state != preparingRebalance {
		m.prepareRebalance(now, g, reason, out)
		return
	}
	m.completeIfJoined(now, g, out)
}

// completeIfJoined ends the join phase when nobody is missing any more. The initial rebalance ends by its delay alone.
func (m *Machine) completeIfJoined(now time.Time, g *Group, out *Effects) {
	if g.state == preparingRebalance && g.previous != empty && g.allJoined() {
		m.completeJoin(now, g, out)
	}
}

// prepareRebalance makes the members join again.
func (m *Machine) prepareRebalance(now time.Time, g *Group, reason string, out *Effects) {
	if g.state == completingRebalance {
		m.propagate(now, g, nil, errcode.RebalanceInProgress, out)
	}
	clear(g.pendingSync)
	m.alarms.cancel(&g.syncAlarm)
	initial := g.state == empty
	g.transition(preparingRebalance, now.UnixMilli())
	m.config.Logger.Info("group rebalances", slog.String("group", g.id), slog.String("reason", reason),
		slog.Int("generation", int(g.generation)), slog.Int("members", len(g.members)))
	if initial {
		delay := m.config.InitialRebalanceDelay
		m.delayInitial(now, g, delay, max(g.rebalanceTimeout()-delay, 0))
		return
	}
	m.awaitMembers(now, g, out)
}

// awaitMembers ends the join phase if everyone is there, and else at the rebalance time-out.
func (m *Machine) awaitMembers(now time.Time, g *Group, out *Effects) {
	if g.allJoined() {
		m.completeJoin(now, g, out)
		return
	}
	g.joinAlarm.fire = func(now time.Time, out *Effects) { m.completeJoin(now, g, out) }
	m.alarms.set(&g.joinAlarm, now.Add(g.rebalanceTimeout()))
}

// delayInitial waits for more members of a group that had none, as long as new ones keep coming and the rebalance time-out
// is not used up.
func (m *Machine) delayInitial(now time.Time, g *Group, delay, remaining time.Duration) {
	g.joinAlarm.fire = func(now time.Time, out *Effects) {
		if !g.newMemberAdded || remaining == 0 {
			m.completeJoin(now, g, out)
			return
		}
		g.newMemberAdded = false
		m.delayInitial(now, g, min(m.config.InitialRebalanceDelay, remaining), max(remaining-delay, 0))
	}
	m.alarms.set(&g.joinAlarm, now.Add(delay))
}

// completeJoin ends the join phase with those who have come.
func (m *Machine) completeJoin(now time.Time, g *Group, out *Effects) {
	m.alarms.cancel(&g.joinAlarm)
	m.dropAbsent(g, out)
	if len(g.members) > 0 && !g.electJoined() {
		// Only static members are left, and none has come: their sessions decide. They may have given no time at all for a rebalance.
		g.joinAlarm.fire = func(now time.Time, out *Effects) { m.completeJoin(now, g, out) }
		m.alarms.set(&g.joinAlarm, now.Add(max(g.rebalanceTimeout(), absentPause)))
		return
	}
	g.nextGeneration(now.UnixMilli())
	if g.state == empty {
		m.config.Logger.Info("group is empty", slog.String("group", g.id), slog.Int("generation", int(g.generation)))
		out.Append(g.record(nil))
		return
	}
	m.config.Logger.Info("group has a new generation", slog.String("group", g.id),
		slog.Int("generation", int(g.generation)), slog.Int("members", len(g.members)))
	for _, mem := range g.order {
		m.answerJoin(g, mem, joined(g, mem), out)
		m.keepAlive(now, mem)
		mem.isNew = false
		g.pendingSync[mem.id] = struct{}{}
	}
	m.alarms.set(&g.syncAlarm, now.Add(g.rebalanceTimeout()))
}

// dropAbsent removes the dynamic members that have not come. Static ones stay until their session ends.
func (m *Machine) dropAbsent(g *Group, out *Effects) {
	var absent []*member
	for _, mem := range g.order {
		if mem.join == 0 && !mem.isStatic() {
			absent = append(absent, mem)
		}
	}
	for _, mem := range absent {
		m.remove(g, mem, out)
	}
	if len(absent) > 0 {
		m.config.Logger.Info("members did not join in time", slog.String("group", g.id), slog.Int("count", len(absent)))
	}
}

// electJoined makes sure that the leader is one of those who have come, and says whether anyone has.
func (g *Group) electJoined() bool {
	if leader := g.members[g.leader]; leader != nil && leader.join != 0 {
		return true
	}
	for _, mem := range g.order {
		if mem.join != 0 {
			g.leader = mem.id
			return true
		}
	}
	return false
}

// remove takes a member out. Its requests that wait are answered: if its client is still there, it may join anew.
func (m *Machine) remove(g *Group, mem *member, out *Effects) {
	m.answerJoin(g, mem, joinError("", errcode.UnknownMemberId), out)
	m.answerSync(mem, syncError(errcode.UnknownMemberId), out)
	m.alarms.cancel(&mem.session)
	g.drop(mem)
}

// expireSession is called when a member's session ends. A member that waits for an answer is alive, but for its first
// join, which is bounded in time.
func (m *Machine) expireSession(now time.Time, g *Group, mem *member, out *Effects) {
	if g.members[mem.id] != mem || !mem.isNew && (mem.join != 0 || mem.sync != 0) {
		return
	}
	m.config.Logger.Info("member's session has ended", slog.String("group", g.id), slog.String("member", mem.id))
	m.remove(g, mem, out)
	m.afterRemoval(now, g, "the session of member "+mem.id+" has ended", out)
}

// afterRemoval goes on after members have left.
func (m *Machine) afterRemoval(now time.Time, g *Group, reason string, out *Effects) {
	switch g.state {
	case stable, completingRebalance:
		m.prepareRebalance(now, g, reason, out)
	case preparingRebalance:
		m.completeIfJoined(now, g, out)
	}
}
