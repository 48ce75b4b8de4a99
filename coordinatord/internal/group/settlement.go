package group

import (
	"time"

	"chancery/services/kafka/errcode"
)

// settlement is what follows when a group record is durable, or was taken back. Exactly one of assigned and replaced is set.
type settlement struct {
	assigned *assigned
	replaced *replaced
}

// assigned is a leader's assignment for a generation.
type assigned struct {
	generation  int32
	assignments map[string][]byte
}

// replaced is a static member that came back under a new id while its group was stable.
type replaced struct {
	old, new *member
	// leader is who led before, in whose place an older client must not see itself.
	leader string
	// skipAssignment says that the client knows the field that keeps a returning leader from assigning.
	skipAssignment bool
}

// isFor says whether the group still waits for this assignment. It may have begun a rebalance meanwhile.
func (a *assigned) isFor(g *Group) bool {
	return g.state == completingRebalance && g.generation == a.generation
}

func (s *settlement) committed(m *Machine, now time.Time, g *Group, out *Effects) {
	if m.find(g.id) != anyGroup(g) {
		return
	}
	switch {
	case s.assigned != nil:
		if s.assigned.isFor(g) {
			m.propagate(now, g, s.assigned.assignments, errcode.None, out)
			g.transition(stable, now.UnixMilli())
		}
	case s.replaced != nil:
		m.welcomeBack(now, g, s.replaced, out)
	}
}

func (s *settlement) rolledBack(m *Machine, now time.Time, g *Group, reason errcode.Code, out *Effects) {
	if m.find(g.id) != anyGroup(g) {
		return
	}
	switch {
	case s.assigned != nil:
		if s.assigned.isFor(g) {
			m.propagate(now, g, nil, reason, out)
			m.rebalance(now, g, "the assignment could not be stored", out)
		}
	case s.replaced != nil:
		m.undoReplacement(now, g, s.replaced, reason, out)
	}
}
