package group

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/grouprecord"
)

// regexRefreshMinInterval is the shortest time between two look-ups of a group's regular expressions, however many of them
// come and however many topics are made.
const regexRefreshMinInterval = 10 * time.Second

// regexChange is what a heartbeat means for the member's regular expression.
type regexChange int8

const (
	regexSame regexChange = iota
	// regexChanged: what it stands for has to be looked up first.
	regexChanged
	// regexResolvedAlready: what the member subscribes to is known.
	regexResolvedAlready
)

// regexResolved is the command that brings the topics of a group's regular expressions.
type regexResolved struct {
	group    *consumerGroup
	resolved map[string]*consumer.Regex
}

// updateRegex takes over a member's expression, and has the group's expressions looked up where that is due. Counts are those
// after the request.
func (r *round) updateRegex(before, after string, counts consumer.Counts) (regexChange, error) {
	change, refresh := regexSame, false
	if before != after {
		change = regexChanged
		if before != "" && r.state.Counts.Regexes[before] == 1 {
			r.write(r.g.Deletion(grouprecord.TypeConsumerRegex, before))
		}
		switch {
		case after == "":
			change = regexResolvedAlready
		case r.state.Counts.Regexes[after] == 0:
			if err := consumer.CheckRegex(after); err != nil {
				return change, err
			}
			refresh = true
		case r.state.Resolved[after] != nil:
			change = regexResolvedAlready
		}
	}
	if len(counts.Regexes) > 0 && !r.g.resolving && r.regexDue(counts, refresh) {
		r.then = append(r.then, func(*Effects) { r.m.resolve(r.now, r.g, slices.Sorted(maps.Keys(counts.Regexes))) })
	}
	return change, nil
}

// regexDue says whether the group's expressions are to be looked up: because some never were, because there are new topics, or
// because the last time is long ago; but not more often than every few seconds.
func (r *round) regexDue(counts consumer.Counts, force bool) bool {
	for _, known := range r.state.Resolved {
		last := time.UnixMilli(known.TimestampMs)
		if !r.now.After(last.Add(regexRefreshMinInterval)) {
			return false
		}
		return force || len(counts.Regexes) != len(r.state.Resolved) || known.Version < r.m.topicsSince ||
			r.now.After(last.Add(r.m.config.Consumer.RegexRefreshInterval))
	}
	return true
}

// resolve looks up a group's expressions beside the machine.
func (m *Machine) resolve(now time.Time, g *consumerGroup, expressions []string) {
	g.resolving = true
	image := m.image
	m.config.Background(func() Command {
		return &regexResolved{group: g, resolved: consumer.Resolve(image, expressions, now.UnixMilli())}
	})
}

// takeResolved takes over what the expressions of a group stand for.
func (m *Machine) takeResolved(now time.Time, c *regexResolved, out *Effects) {
	g := c.group
	g.resolving = false
	if m.find(g.ID) != anyGroup(g) {
		return
	}
	r := &round{m: m, now: now, g: g, state: g.Group}
	changed := false
	resolved := maps.Clone(g.Resolved)
	for _, expression := range slices.Sorted(maps.Keys(c.resolved)) {
		if g.Counts.Regexes[expression] == 0 {
			continue // nobody uses it any more
		}
		found := c.resolved[expression]
		old := g.Resolved[expression]
		changed = changed || old == nil && len(found.Topics) > 0 || old != nil && !slices.Equal(old.Topics, found.Topics)
		resolved[expression] = found
		r.write(g.RegexRecord(expression, found))
	}
	view := *g.Group
	view.Resolved = resolved
	hash := m.hashes.Of(m.image, view.Subscribed(g.Counts))
	if changed || hash != g.MetadataHash {
		epoch := g.Epoch + 1
		r.write(g.EpochRecord(epoch, hash))
		g.seen, g.seenEpoch = m.image, epoch
		m.config.Logger.Info("regular expressions of a consumer group stand for other topics", slog.String("group", g.ID), slog.Int("epoch", int(epoch)))
	}
	r.finish(out)
}
