package group

import (
	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
)

// commitMemberEpoch is the first version of OffsetCommit for members of the consumer protocol.
const commitMemberEpoch = 9

// staleEpoch is what a member is told whose epoch is not the one of the books, in the words of its protocol.
func staleEpoch(mem *consumer.Member) errcode.Code {
	if mem.Classic != nil {
		return errcode.IllegalGeneration
	}
	return errcode.StaleMemberEpoch
}

// validateConsumerCommit checks who commits. A member may be behind by some epochs, as long as it has had all the partitions since
// before the epoch that it comes with; those that are refused for their metadata do not count.
func (m *Machine) validateConsumerCommit(g *consumerGroup, c *CommitOffsets) errcode.Code {
	if c.Generation < 0 && len(g.Members) == 0 {
		return errcode.None
	}
	mem := g.Members[c.MemberID]
	switch {
	case mem == nil:
		return errcode.UnknownMemberId
	case mem.Classic == nil && c.APIVersion < commitMemberEpoch:
		return errcode.UnsupportedVersion
	case c.Generation == mem.Epoch:
		return errcode.None
	case c.Generation > mem.Epoch:
		return staleEpoch(mem)
	}
	for i := range c.Offsets {
		o := &c.Offsets[i]
		if m.metadataTooLarge(o.Metadata) {
			continue
		}
		since, ok := mem.Assigned[o.TopicID][o.Key.Partition]
		if !ok {
			since, ok = mem.PendingRemoval[o.TopicID][o.Key.Partition]
		}
		if !ok || c.Generation < since {
			return staleEpoch(mem)
		}
	}
	return errcode.None
}

// validateFetch checks a member that asks for offsets; others may always ask.
func (g *consumerGroup) validateFetch(c *FetchOffsets) errcode.Code {
	if c.MemberID == nil && c.MemberEpoch < 0 {
		return errcode.None
	}
	if c.MemberID == nil {
		return errcode.UnknownMemberId
	}
	mem := g.Members[*c.MemberID]
	switch {
	case mem == nil:
		return errcode.UnknownMemberId
	case mem.Epoch != c.MemberEpoch:
		return staleEpoch(mem)
	}
	return errcode.None
}
