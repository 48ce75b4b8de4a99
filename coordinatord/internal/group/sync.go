package group

import (
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// syncError is the answer to a SyncGroup that failed.
func syncError(code errcode.Code) *kmsg.SyncGroupResponse {
	r := kmsg.NewPtrSyncGroupResponse()
	r.ErrorCode, r.MemberAssignment = int16(code), []byte{}
	return r
}

// synced is a member's assignment.
func synced(g *Group, mem *member) *kmsg.SyncGroupResponse {
	r := kmsg.NewPtrSyncGroupResponse()
	protocolType := g.protocolType
	r.ProtocolType, r.Protocol, r.MemberAssignment = &protocolType, g.protocol, mem.assignment
	if r.MemberAssignment == nil {
		r.MemberAssignment = []byte{}
	}
	return r
}

// answerSync answers a member's waiting SyncGroup, and says whether there was one.
func (m *Machine) answerSync(mem *member, r *kmsg.SyncGroupResponse, out *Effects) bool {
	if mem.sync == 0 {
		return false
	}
	out.AnswerNow(mem.sync, r)
	mem.sync = 0
	return true
}

func (m *Machine) sync(now time.Time, t Ticket, c *Sync, out *Effects) {
	req := c.Request
	if consumers, ok := m.find(req.Group).(*consumerGroup); ok {
		out.Answer(t, m.syncConsumer(now, consumers, req))
		return
	}
	g, _ := m.find(req.Group).(*Group)
	if g == nil || g.state == empty {
		out.Answer(t, syncError(errcode.UnknownMemberId))
		return
	}
	mem, code := g.validateMember(req.MemberID, req.InstanceID)
	switch {
	case code != errcode.None:
	case req.Generation != g.generation:
		code = errcode.IllegalGeneration
	case differs(req.ProtocolType, &g.protocolType), differs(req.Protocol, g.protocol):
		code = errcode.InconsistentGroupProtocol
	case g.state == preparingRebalance:
		code = errcode.RebalanceInProgress
	}
	if code != errcode.None {
		out.Answer(t, syncError(code))
		return
	}
	m.forgetPendingSync(g, mem)
	if g.state == stable {
		out.Answer(t, synced(g, mem))
		return
	}
	// An earlier request of the same member is overtaken.
	m.answerSync(mem, syncError(errcode.RebalanceInProgress), out)
	mem.sync = t
	if g.leader == mem.id && g.assigning != g.generation {
		m.storeAssignment(g, req, out)
	}
}

// differs says whether two values are both known and not the same.
func differs(a, b *string) bool { return a != nil && b != nil && *a != *b }

func (m *Machine) forgetPendingSync(g *Group, mem *member) {
	delete(g.pendingSync, mem.id)
	if len(g.pendingSync) == 0 {
		m.alarms.cancel(&g.syncAlarm)
	}
}

// storeAssignment writes what the leader has assigned. Nobody hears of it before it is durable.
func (m *Machine) storeAssignment(g *Group, req *kmsg.SyncGroupRequest, out *Effects) {
	assignments := make(map[string][]byte, len(req.GroupAssignment))
	for _, a := range req.GroupAssignment {
		assignments[a.MemberID] = a.MemberAssignment
	}
	missing := 0
	for _, mem := range g.order {
		if _, ok := assignments[mem.id]; !ok {
			missing++
		}
	}
	if missing > 0 {
		m.config.Logger.Warn("leader has left members without an assignment", slog.String("group", g.id), slog.Int("count", missing))
	}
	g.assigning = g.generation
	r := g.record(assignments)
	r.settled = &settlement{assigned: &assigned{generation: g.generation, assignments: assignments}}
	out.Append(r)
}

// propagate gives the members their assignments, or with a code tells them that there are none, and answers those who wait.
func (m *Machine) propagate(now time.Time, g *Group, assignments map[string][]byte, code errcode.Code, out *Effects) {
	for _, mem := range g.order {
		mem.assignment = assignments[mem.id]
		resp := syncError(code)
		if code == errcode.None {
			resp = synced(g, mem)
		}
		if m.answerSync(mem, resp, out) {
			// Its session may have ended while it waited.
			m.keepAlive(now, mem)
		}
	}
}

// expireSync removes the members that have not asked for their assignment in time.
func (m *Machine) expireSync(now time.Time, g *Group, out *Effects) {
	if g.state != completingRebalance && g.state != stable || len(g.pendingSync) == 0 {
		return
	}
	for id := range g.pendingSync {
		if mem := g.members[id]; mem != nil {
			m.remove(g, mem, out)
		}
	}
	clear(g.pendingSync)
	m.prepareRebalance(now, g, "members did not ask for their assignment", out)
}
