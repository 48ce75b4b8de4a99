package group

import (
	"time"
	"unicode/utf8"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
)

// The sizes that bound what a record takes in a batch beside its strings: lengths, times, ids and varints.
const (
	recordOverhead = 96
	batchOverhead  = 61
)

// commitGroupNotFound is the first version of OffsetCommit whose clients are told that a group does not exist; older
// ones take their generation for outdated.
const commitGroupNotFound = 9

func (m *Machine) commitOffsets(now time.Time, c *CommitOffsets, out *Effects) CommitReply {
	g := m.find(c.Group)
	if g == nil {
		if c.Generation >= 0 {
			if c.APIVersion >= commitGroupNotFound {
				return CommitReply{Code: errcode.GroupIdNotFound}
			}
			return CommitReply{Code: errcode.IllegalGeneration}
		}
		// A commit from outside any group makes a group that is only a name.
		g = m.create(now, c.Group)
	}
	if code := m.validateCommitTo(now, g, c); code != errcode.None {
		return CommitReply{Code: code}
	}
	if batchOverhead+commitBytes(c) > m.config.MaxBatchBytes {
		return CommitReply{Code: errcode.UnknownServerError}
	}
	expireMs := grouprecord.NoTimestamp
	if c.RetentionMs != -1 {
		expireMs = now.UnixMilli() + c.RetentionMs
	}
	return CommitReply{Codes: m.appendOffsets(now, c, Record{kind: offsetRecord, groupID: c.Group, producerID: noProducer, group: g}, expireMs, out)}
}

// appendOffsets has offsets written, each by a copy of a record, and gives a code for each.
func (m *Machine) appendOffsets(now time.Time, c *CommitOffsets, like Record, expireMs int64, out *Effects) []errcode.Code {
	codes := make([]errcode.Code, len(c.Offsets))
	records := make([]Record, len(c.Offsets))
	values := make([]offsets.Value, len(c.Offsets))
	for i := range c.Offsets {
		o := &c.Offsets[i]
		if m.metadataTooLarge(o.Metadata) {
			codes[i] = errcode.OffsetMetadataTooLarge
			continue
		}
		values[i] = offsets.Value{RecordOffset: -1, Offset: grouprecord.Offset{
			Offset:            o.Offset,
			LeaderEpoch:       o.LeaderEpoch,
			Metadata:          o.Metadata,
			CommitTimestampMs: now.UnixMilli(),
			ExpireTimestampMs: expireMs,
			TopicID:           o.TopicID,
		}}
		records[i] = like
		records[i].key, records[i].offset = o.Key, &values[i]
		out.Append(&records[i])
	}
	return codes
}

// validateCommitTo checks who commits to a group of whatever type.
func (m *Machine) validateCommitTo(now time.Time, g anyGroup, c *CommitOffsets) errcode.Code {
	switch g := g.(type) {
	case *Group:
		return m.validateCommit(now, g, c)
	case *consumerGroup:
		return m.validateConsumerCommit(g, c)
	}
	return errcode.UnknownServerError
}

// validateCommit checks who commits. A member's commit shows that it is alive.
func (m *Machine) validateCommit(now time.Time, g *Group, c *CommitOffsets) errcode.Code {
	if c.Generation < 0 && g.state == empty {
		return errcode.None
	}
	if c.Generation < 0 && c.MemberID == "" && c.InstanceID == nil {
		return errcode.UnknownMemberId
	}
	mem, code := g.validateMember(c.MemberID, c.InstanceID)
	switch {
	case code != errcode.None:
		return code
	case c.Generation != g.generation:
		return errcode.IllegalGeneration
	case g.state == completingRebalance:
		return errcode.RebalanceInProgress
	}
	m.keepAlive(now, mem)
	return errcode.None
}

// commitBytes is about what the records of a commit take; never less.
func commitBytes(c *CommitOffsets) int {
	n := 0
	for i := range c.Offsets {
		n += recordOverhead + len(c.Group) + len(c.Offsets[i].Key.Topic) + len(c.Offsets[i].Metadata)
	}
	return n
}

// metadataTooLarge counts UTF-16 units, as Kafka does.
func (m *Machine) metadataTooLarge(s string) bool {
	if len(s) <= m.config.OffsetMetadataMaxBytes {
		return false
	}
	units := utf8.RuneCountInString(s)
	for _, r := range s {
		if r > 0xffff {
			units++
		}
	}
	return units > m.config.OffsetMetadataMaxBytes
}

func (m *Machine) fetchOffsets(t Ticket, c *FetchOffsets, out *Effects) {
	if g, ok := m.find(c.Group).(*consumerGroup); ok {
		if code := g.validateFetch(c); code != errcode.None {
			out.Answer(t, FetchReply{Code: code})
			return
		}
	}
	find, all := m.offsets.Durable, m.offsets.AllDurable
	if c.RequireStable {
		find, all = m.offsets.Newest, m.offsets.AllNewest
	}
	var reply FetchReply
	if c.All {
		for k, v := range all(c.Group) {
			reply.Offsets = append(reply.Offsets, m.fetched(c, PartitionToFetch{Key: k}, v))
		}
	} else {
		reply.Offsets = make([]FetchedOffset, len(c.Partitions))
		for i, p := range c.Partitions {
			reply.Offsets[i] = m.fetched(c, p, find(c.Group, p.Key))
		}
	}
	if c.RequireStable {
		out.Answer(t, reply)
		return
	}
	out.AnswerNow(t, reply)
}

// fetched is the answer for one partition. An offset that was committed for another topic of the same name is none.
func (m *Machine) fetched(c *FetchOffsets, p PartitionToFetch, v *offsets.Value) FetchedOffset {
	f := FetchedOffset{Key: p.Key, TopicID: p.TopicID, Offset: -1, LeaderEpoch: -1}
	if c.RequireStable && m.offsets.IsOpen(c.Group, p.Key) {
		f.Code = errcode.UnstableOffsetCommit
		return f
	}
	if v == nil || !v.TopicID.IsZero() && !p.TopicID.IsZero() && v.TopicID != p.TopicID {
		return f
	}
	f.Offset, f.LeaderEpoch, f.Metadata = v.Offset.Offset, v.LeaderEpoch, v.Metadata
	return f
}

func (m *Machine) deleteOffsets(c *DeleteOffsets, out *Effects) CommitReply {
	g := m.find(c.Group)
	if g == nil {
		return CommitReply{Code: errcode.GroupIdNotFound}
	}
	if !isEmpty(g) && g.protocolTypeName() != consumerProtocolType {
		return CommitReply{Code: errcode.NonEmptyGroup}
	}
	codes := make([]errcode.Code, len(c.Partitions))
	for i, k := range c.Partitions {
		switch {
		case g.subscribedTo(k.Topic):
			codes[i] = errcode.GroupSubscribedToTopic
		case m.offsets.Newest(c.Group, k) != nil || m.offsets.IsOpen(c.Group, k):
			out.Append(offsetTombstone(g, k))
		}
	}
	return CommitReply{Codes: codes}
}
