package group

import (
	"log/slog"
	"time"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/grouprecord"
)

// expire deletes the offsets that nobody has needed for long, and the groups of which nothing is left.
func (m *Machine) expire(now time.Time, out *Effects) {
	m.alarms.set(&m.expiry, now.Add(m.config.OffsetsRetentionCheckInterval))
	out.Split()
	m.expireProducers(now)
	before := len(out.Records())
	for id, s := range m.groups {
		g := s.newest
		if g == nil || !m.expireOffsets(now, g, out) {
			continue
		}
		// An id that was given out is about to be joined with.
		classic, _ := g.(*Group)
		awaited := classic != nil && len(classic.pendingJoin) > 0
		if isEmpty(g) && !awaited && !m.offsets.HasOpen(id) {
			m.deleteGroup(g, out)
		}
	}
	if n := len(out.Records()) - before; n > 0 {
		m.config.Logger.Info("deleting expired offsets and empty groups", slog.Int("records", n))
	}
}

// expireOffsets deletes a group's expired offsets, and says whether no others are left.
func (m *Machine) expireOffsets(now time.Time, g anyGroup, out *Effects) bool {
	base, may := expiryBase(g)
	none := true
	for k, v := range m.offsets.AllNewest(g.groupID()) {
		if may && !g.subscribedTo(k.Topic) && m.expired(now, v, base(v)) && !m.offsets.IsOpen(g.groupID(), k) {
			out.Append(offsetTombstone(g, k))
		} else {
			none = false
		}
	}
	return none
}

// expiryBase gives the time from which the retention of an offset counts, and whether the group's offsets may expire at all:
// not while it has members, but for a consumer group's offsets of topics that it does not subscribe to any more.
func expiryBase(any anyGroup) (base func(*offsets.Value) int64, may bool) {
	committed := func(v *offsets.Value) int64 { return v.CommitTimestampMs }
	g, ok := any.(*Group)
	switch {
	case !ok:
		return committed, true
	case g.protocolType == "":
		return committed, true
	case g.state == empty:
		if g.sinceMs == grouprecord.NoTimestamp {
			return committed, true
		}
		return func(*offsets.Value) int64 { return g.sinceMs }, true
	case g.state == stable && g.subscribed != nil:
		return committed, true
	}
	return committed, false
}

// expired goes by the offset's own expiry where its client gave one.
func (m *Machine) expired(now time.Time, v *offsets.Value, baseMs int64) bool {
	if v.ExpireTimestampMs != grouprecord.NoTimestamp {
		return now.UnixMilli() >= v.ExpireTimestampMs
	}
	return now.UnixMilli()-baseMs >= m.config.OffsetsRetention.Milliseconds()
}
