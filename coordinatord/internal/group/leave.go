package group

import (
	"log/slog"
	"time"

	"chancery/services/kafka/errcode"
)

func (m *Machine) heartbeat(now time.Time, c *Heartbeat) errcode.Code {
	if consumers, ok := m.find(c.Group).(*consumerGroup); ok {
		return m.heartbeatConsumer(now, consumers, c)
	}
	g, _ := m.find(c.Group).(*Group)
	if g == nil {
		return errcode.UnknownMemberId
	}
	mem, code := g.validateMember(c.MemberID, c.InstanceID)
	if code != errcode.None {
		return code
	}
	if c.Generation != g.generation {
		return errcode.IllegalGeneration
	}
	m.keepAlive(now, mem)
	if g.state == preparingRebalance {
		return errcode.RebalanceInProgress
	}
	return errcode.None
}

// leave removes members at their own wish or that of an administrator, who may name static members by their instance.
func (m *Machine) leave(now time.Time, c *Leave, out *Effects) LeaveReply {
	if consumers, ok := m.find(c.Group).(*consumerGroup); ok {
		return m.leaveConsumer(now, consumers, c, out)
	}
	g, _ := m.find(c.Group).(*Group)
	if g == nil {
		return LeaveReply{}
	}
	reply := LeaveReply{Found: true, Codes: make([]errcode.Code, len(c.Members))}
	left := false
	for i, who := range c.Members {
		reply.Codes[i] = m.leaveOne(g, who, out)
		left = left || reply.Codes[i] == errcode.None
	}
	if left && g.state != empty {
		m.rebalance(now, g, "members have left", out)
	}
	return reply
}

func (m *Machine) leaveOne(g *Group, who LeavingMember, out *Effects) errcode.Code {
	var mem *member
	switch {
	case who.ID == "":
		if who.InstanceID != nil {
			mem = g.static[*who.InstanceID]
		}
		if mem == nil {
			return errcode.UnknownMemberId
		}
	case m.forgetPending(g, who.ID):
		return errcode.None
	default:
		var code errcode.Code
		if mem, code = g.validateMember(who.ID, who.InstanceID); code != errcode.None {
			return code
		}
	}
	m.config.Logger.Info("member leaves", slog.String("group", g.id), slog.String("member", mem.id), slog.String("reason", who.Reason))
	m.remove(g, mem, out)
	return errcode.None
}
