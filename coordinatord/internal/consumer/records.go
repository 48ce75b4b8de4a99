package consumer

import (
	"maps"
	"slices"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/grouprecord"
)

// EpochRecord says that the group has reached an epoch.
func (g *Group) EpochRecord(epoch int32, metadataHash int64) *grouprecord.Consumer {
	return &grouprecord.Consumer{
		Type: grouprecord.TypeConsumerGroup, Group: g.ID, Epoch: &grouprecord.ConsumerEpoch{Epoch: epoch, MetadataHash: metadataHash},
	}
}

// TargetRecord says for which epoch the target assignment is.
func (g *Group) TargetRecord(epoch int32, timestampMs int64) *grouprecord.Consumer {
	return &grouprecord.Consumer{
		Type: grouprecord.TypeConsumerTarget, Group: g.ID, Target: &grouprecord.ConsumerTarget{Epoch: epoch, TimestampMs: timestampMs},
	}
}

// PlannedRecord says what a member is to have.
func (g *Group) PlannedRecord(member string, p assignor.Partitions) *grouprecord.Consumer {
	planned := &grouprecord.ConsumerPlanned{Topics: make([]grouprecord.TopicPartitions, 0, len(p))}
	for _, topic := range slices.SortedFunc(maps.Keys(p), compareIDs) {
		planned.Topics = append(planned.Topics, grouprecord.TopicPartitions{TopicID: topic, Partitions: p[topic]})
	}
	return &grouprecord.Consumer{Type: grouprecord.TypeConsumerTargetMember, Group: g.ID, Name: member, Planned: planned}
}

// DescriptionRecord is what a member says about itself.
func (g *Group) DescriptionRecord(m *Member) *grouprecord.Consumer {
	return &grouprecord.Consumer{Type: grouprecord.TypeConsumerMember, Group: g.ID, Name: m.ID, Member: m.description()}
}

// ProgressRecord is how far a member has come.
func (g *Group) ProgressRecord(m *Member) *grouprecord.Consumer {
	return &grouprecord.Consumer{Type: grouprecord.TypeConsumerCurrent, Group: g.ID, Name: m.ID, Current: m.progress()}
}

// RegexRecord says what a regular expression stands for.
func (g *Group) RegexRecord(expression string, r *Regex) *grouprecord.Consumer {
	return &grouprecord.Consumer{Type: grouprecord.TypeConsumerRegex, Group: g.ID, Name: expression, Regex: &grouprecord.ConsumerRegex{
		Topics: r.Topics, Version: r.Version, TimestampMs: r.TimestampMs,
	}}
}

// Deletion deletes what records of a type say about a name.
func (g *Group) Deletion(recordType int16, name string) *grouprecord.Consumer {
	return &grouprecord.Consumer{Type: recordType, Group: g.ID, Name: name}
}

// MemberDeletions delete a member.
func (g *Group) MemberDeletions(id string) []*grouprecord.Consumer {
	return []*grouprecord.Consumer{
		g.Deletion(grouprecord.TypeConsumerCurrent, id),
		g.Deletion(grouprecord.TypeConsumerTargetMember, id),
		g.Deletion(grouprecord.TypeConsumerMember, id),
	}
}

// Deletions delete the group with everything that it has. The member named old, if any, has been replaced by the one named new
// in records before.
func (g *Group) Deletions(old, replacement string) []*grouprecord.Consumer {
	ids := make([]string, 0, len(g.Members))
	for _, m := range g.SortedMembers() {
		if m.ID == old {
			ids = append(ids, replacement)
			continue
		}
		ids = append(ids, m.ID)
	}
	var list []*grouprecord.Consumer
	each := func(recordType int16) {
		for _, id := range ids {
			list = append(list, g.Deletion(recordType, id))
		}
	}
	each(grouprecord.TypeConsumerCurrent)
	each(grouprecord.TypeConsumerTargetMember)
	list = append(list, g.Deletion(grouprecord.TypeConsumerTarget, ""))
	each(grouprecord.TypeConsumerMember)
	for _, expression := range slices.Sorted(maps.Keys(g.Resolved)) {
		list = append(list, g.Deletion(grouprecord.TypeConsumerRegex, expression))
	}
	return append(list, g.Deletion(grouprecord.TypeConsumerPartitions, ""), g.Deletion(grouprecord.TypeConsumerGroup, ""))
}
