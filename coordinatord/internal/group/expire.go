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
	before := len(out.Records())
	for id, s := range m.groups {
		g := s.newest
		if g == nil || !m.expireOffsets(now, g, out) {
			continue
		}
		// An id that was given out is about to be joined with.
		if g.state == empty && len(g.pendingJoin) == 0 && !m.offsets.HasOpen(id) {
			out.Append(groupTombstone(g))
		}
	}
	if n := len(out.Records()) - before; n > 0 {
		m.config.Logger.Info("deleting expired offsets and empty groups", slog.Int("records", n))
	}
}

// expireOffsets deletes a group's expired offsets, and says whether no others are left.
func (m *Machine) expireOffsets(now time.Time, g *Group, out *Effects) bool {
	base, may := g.expiryBase()
	none := true
	for k, v := range m.offsets.AllNewest(g.id) {
		if may && !g.subscribedTo(k.Topic) && m.expired(now, v, base(v)) && !m.offsets.IsOpen(g.id, k) {
			out.Append(offsetTombstone(g, k))
		} else {
			none = false
		}
	}
	return none
}

// expiryBase gives the time from which the retention of an offset counts, and whether the group's offsets may expire at all:
// not while it has members, but for a consumer group's offsets of topics that it does not subscribe to any more.
func (g *Group) expiryBase() (base func(*offsets.Value) int64, may bool) {
	committed := func(v *offsets.Value) int64 { return v.CommitTimestampMs }
	switch {
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
