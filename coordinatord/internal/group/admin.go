package group

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
)

func (m *Machine) listGroups(c *ListGroups) []ListedGroup {
	var list []ListedGroup
	for _, s := range m.groups {
		g := s.durable
		if g == nil {
			continue
		}
		if len(c.Types) > 0 && !slices.ContainsFunc(c.Types, func(t string) bool { return strings.EqualFold(t, g.typeName()) }) {
			continue
		}
		state := g.stateName()
		if len(c.States) > 0 && !slices.ContainsFunc(c.States, func(s string) bool { return strings.EqualFold(strings.TrimSpace(s), state) }) {
			continue
		}
		list = append(list, ListedGroup{ID: g.groupID(), ProtocolType: g.protocolTypeName(), State: state, Type: g.typeName()})
	}
	return list
}

func (m *Machine) describeGroups(c *DescribeGroups) []DescribedGroup {
	list := make([]DescribedGroup, len(c.IDs))
	for i, id := range c.IDs {
		list[i] = DescribedGroup{ID: id, State: stateDead, Missing: "Group " + id + " not found."}
		s := m.groups[id]
		if s == nil || s.durable == nil {
			continue
		}
		if g, ok := s.durable.(*Group); ok {
			list[i] = describe(g)
		} else {
			list[i].Missing = "Group " + id + " is not a classic group."
		}
	}
	return list
}

// describe shows a group. What the members say for the chosen protocol is shown only while the group is stable.
func describe(g *Group) DescribedGroup {
	d := DescribedGroup{ID: g.id, Exists: true, State: g.state.String(), ProtocolType: g.protocolType}
	if g.state == stable {
		d.Protocol = g.chosenProtocol()
	}
	for _, mem := range g.order {
		x := kmsg.NewDescribeGroupsResponseGroupMember()
		x.MemberID, x.InstanceID, x.ClientID, x.ClientHost = mem.id, mem.instanceID, mem.clientID, mem.clientHost
		x.MemberAssignment = mem.assignment
		if g.state == stable {
			x.ProtocolMetadata = mem.metadata(d.Protocol)
		}
		d.Members = append(d.Members, x)
	}
	return d
}

func (m *Machine) deleteGroups(c *DeleteGroups, out *Effects) []errcode.Code {
	codes := make([]errcode.Code, len(c.IDs))
	// The group's own tombstone comes last, so that a group of which a part is left can still be deleted.
	out.Split()
	for i, id := range c.IDs {
		g := m.find(id)
		switch {
		case g == nil:
			codes[i] = errcode.GroupIdNotFound
		case !isEmpty(g):
			codes[i] = errcode.NonEmptyGroup
		default:
			for k := range m.offsets.AllNewest(id) {
				out.Append(offsetTombstone(g, k))
			}
			for k := range m.offsets.AllOpen(id) {
				if m.offsets.Newest(id, k) == nil {
					out.Append(offsetTombstone(g, k))
				}
			}
			m.deleteGroup(g, out)
		}
	}
	return codes
}

// deleteGroup deletes a group without members, but for its offsets.
func (m *Machine) deleteGroup(g anyGroup, out *Effects) {
	switch g := g.(type) {
	case *Group:
		out.Append(groupTombstone(g))
	case *consumerGroup:
		m.deleteConsumerGroup(g, out)
	}
}

// deleteConsumerGroup deletes a consumer group without members; nil is none.
func (m *Machine) deleteConsumerGroup(g *consumerGroup, out *Effects) {
	if g == nil {
		return
	}
	r := &round{m: m, g: g, state: g.Group}
	for _, c := range g.Deletions("", "") {
		r.write(c)
	}
	r.finish(out)
}

// topicsGone deletes the offsets of topics that are gone, also those of open transactions: else their end would bring them back.
func (m *Machine) topicsGone(c *TopicsGone, out *Effects) {
	out.Split()
	gone := func(topic string, v *offsets.Value) bool { return c.Gone(topic, v.TopicID) }
	for id, k := range m.offsets.Having(gone) {
		if g := m.find(id); g != nil {
			out.Append(offsetTombstone(g, k))
		}
	}
}
