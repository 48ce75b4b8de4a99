package group

import (
	"log/slog"
	"time"

	"chancery/services/kafka/errcode"
)

// replaceStatic is the return of a static member without its member id, after a restart of its client: it gets a new id,
// and whoever still uses the old one is fenced. While the group is stable and would choose the same protocol again, nothing
// else changes: no rebalance.
func (m *Machine) replaceStatic(now time.Time, t Ticket, g *Group, old *member, id string, c *Join, protocols []protocol, out *Effects) {
	leader := g.leader
	mem := m.substitute(g, old, id, out)
	m.keepAlive(now, mem)
	m.updateMember(g, mem, c.Request, protocols)
	m.await(g, mem, t, out)
	m.config.Logger.Info("static member is back", slog.String("group", g.id), slog.String("instance", *mem.instanceID),
		slog.String("old", old.id), slog.String("new", id))
	switch g.state {
	case stable:
		if g.selectProtocol() != g.chosenProtocol() {
			m.rebalance(now, g, "the protocol changes with static member "+id, out)
			return
		}
		r := g.record(g.assignments())
		r.settled = &settlement{replaced: &replaced{
			old: old, new: mem, leader: leader, skipAssignment: c.Request.Version >= joinSkipAssignment,
		}}
		out.Append(r)
	case completingRebalance:
		// The leader may already assign to the old id.
		m.prepareRebalance(now, g, "static member "+id+" is back", out)
	case preparingRebalance:
		m.rebalance(now, g, "", out)
	}
}

// substitute puts a member with another id in the place of a static member, whose requests that wait are fenced.
func (m *Machine) substitute(g *Group, old *member, id string, out *Effects) *member {
	m.answerJoin(g, old, joinError(old.id, errcode.FencedInstanceId), out)
	m.answerSync(old, syncError(errcode.FencedInstanceId), out)
	m.alarms.cancel(&old.session)
	mem := &member{
		id:                 id,
		instanceID:         old.instanceID,
		clientID:           old.clientID,
		clientHost:         old.clientHost,
		rebalanceTimeoutMs: old.rebalanceTimeoutMs,
		sessionTimeoutMs:   old.sessionTimeoutMs,
		protocols:          old.protocols,
		assignment:         old.assignment,
	}
	m.prepareSession(g, mem)
	delete(g.members, old.id)
	g.members[id] = mem
	g.static[*mem.instanceID] = mem
	for i := range g.order {
		if g.order[i] == old {
			g.order[i] = mem
		}
	}
	if g.leader == old.id {
		g.leader = id
	}
	delete(g.pendingSync, old.id)
	return mem
}

// assignments are those of the members.
func (g *Group) assignments() map[string][]byte {
	out := make(map[string][]byte, len(g.order))
	for _, mem := range g.order {
		out[mem.id] = mem.assignment
	}
	return out
}

// welcomeBack answers a static member whose return is durable. If the group has begun a rebalance meanwhile, that
// will answer it.
func (m *Machine) welcomeBack(now time.Time, g *Group, r *replaced, out *Effects) {
	if g.members[r.new.id] != r.new || g.state != stable {
		return
	}
	resp := joined(g, r.new)
	if r.skipAssignment {
		resp.SkipAssignment = g.leader == r.new.id
	} else {
		// A client that does not know skipAssignment must not take itself for the leader, or it would assign.
		resp.LeaderID, resp.Members = r.leader, nil
	}
	m.answerJoin(g, r.new, resp, out)
	m.keepAlive(now, r.new)
}

// undoReplacement gives a static member its old id back, because the new one could not be stored. If a rebalance has told
// the new id to the client meanwhile, it stays.
func (m *Machine) undoReplacement(now time.Time, g *Group, r *replaced, reason errcode.Code, out *Effects) {
	mem := g.members[r.new.id]
	if mem == nil || mem.join == 0 && mem == r.new {
		return
	}
	resp := joined(g, mem)
	resp.MemberID, resp.Members, resp.LeaderID, resp.ErrorCode = "", nil, r.leader, int16(reason)
	m.answerJoin(g, mem, resp, out)
	g.countProtocols(mem, -1)
	mem.protocols, mem.rebalanceTimeoutMs, mem.sessionTimeoutMs = r.old.protocols, r.old.rebalanceTimeoutMs, r.old.sessionTimeoutMs
	g.countProtocols(mem, 1)
	m.keepAlive(now, m.substitute(g, mem, r.old.id, out))
}
