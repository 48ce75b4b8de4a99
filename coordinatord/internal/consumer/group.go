package consumer

import (
	"maps"
	"slices"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/uuid"
)

// Regex is the topics that a regular expression stands for; immutable.
type Regex struct {
	// Topics are sorted.
	Topics []string
	// Version is the offset of the metadata in which they were looked up, at TimestampMs.
	Version     int64
	TimestampMs int64
}

// Group is the state of a consumer group: what its records say. Only Apply changes it. It belongs to one goroutine.
type Group struct {
	ID string
	// Epoch grows with each change that asks for another target assignment; TargetEpoch is that of the present one.
	Epoch       int32
	TargetEpoch int32
	// TargetTimestampMs is when the target assignment was made, 0 when that is not known or does not matter.
	TargetTimestampMs int64
	// MetadataHash stands for what the subscribed topics looked like when Epoch was reached.
	MetadataHash int64
	// OutdatedPartitions says that the log has a record of the group that brokers before 4.1 have written.
	OutdatedPartitions bool

	Members map[string]*Member
	// Static gives the member id of an instance.
	Static map[string]string
	// Target is what each member is to have.
	Target map[string]assignor.Partitions
	// Resolved are the regular expressions whose topics are known.
	Resolved map[string]*Regex
	// Counts summarizes the members.
	Counts Counts
	// owners says which member has a partition, or must give it up.
	owners map[uuid.UUID]map[int32]string
}

// Counts are numbers of members by what they say.
type Counts struct {
	Members int
	// Classic are those that speak the classic protocol, Protocols the assignors that these know.
	Classic   int
	Protocols map[string]int
	// Topics, Regexes and Assignors are those that members name.
	Topics, Regexes, Assignors map[string]int
}

// NewGroup is a group without members.
func NewGroup(id string) *Group {
	return &Group{
		ID: id, Epoch: 1, TargetEpoch: 1,
		Members: map[string]*Member{}, Static: map[string]string{}, Target: map[string]assignor.Partitions{}, Resolved: map[string]*Regex{},
		Counts: Counts{Protocols: map[string]int{}, Topics: map[string]int{}, Regexes: map[string]int{}, Assignors: map[string]int{}},
		owners: map[uuid.UUID]map[int32]string{},
	}
}

// With are the counts after one member has become another; either may be nil.
func (c Counts) With(before, after *Member) Counts {
	c.Protocols, c.Topics = maps.Clone(c.Protocols), maps.Clone(c.Topics)
	c.Regexes, c.Assignors = maps.Clone(c.Regexes), maps.Clone(c.Assignors)
	c.change(before, after)
	return c
}

func (c *Counts) change(before, after *Member) {
	if before != nil {
		c.add(before, -1)
	}
	if after != nil {
		c.add(after, 1)
	}
}

func (c *Counts) add(m *Member, by int) {
	c.Members += by
	for _, t := range m.Topics {
		count(c.Topics, t, by)
	}
	if m.Regex != "" {
		count(c.Regexes, m.Regex, by)
	}
	if m.Assignor != nil {
		count(c.Assignors, *m.Assignor, by)
	}
	if m.Classic != nil {
		c.Classic += by
		for _, p := range m.Classic.Protocols {
			count(c.Protocols, p.Name, by)
		}
	}
}

func count(m map[string]int, key string, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// PreferredAssignor is the one that most members name, fallback when none does. Of equally liked ones the last by name wins,
// which is uniform; but one that nobody had named before wins against those that members had named already, as in Apache Kafka.
func (c Counts) PreferredAssignor(before Counts, fallback string) string {
	best := fallback
	most := 0
	for name, n := range c.Assignors {
		isNew, bestIsNew := before.Assignors[name] == 0, before.Assignors[best] == 0
		if n > most || n == most && (isNew && !bestIsNew || isNew == bestIsNew && name > best) {
			best, most = name, n
		}
	}
	return best
}

// Homogeneous says whether all members subscribe to the same topics.
func (c Counts) Homogeneous() bool {
	if len(c.Regexes) > 0 {
		for _, n := range c.Regexes {
			if n == c.Members {
				return len(c.Topics) == 0
			}
		}
		return false
	}
	for _, n := range c.Topics {
		if n != c.Members {
			return false
		}
	}
	return true
}

// Subscribed are the names of all topics that the members of some counts subscribe to, in order.
func (g *Group) Subscribed(c Counts) []string {
	names := make(map[string]struct{}, len(c.Topics))
	for t := range c.Topics {
		names[t] = struct{}{}
	}
	for regex := range c.Regexes {
		if r := g.Resolved[regex]; r != nil {
			for _, t := range r.Topics {
				names[t] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// SubscribedTo says whether any member subscribes to a topic.
func (g *Group) SubscribedTo(topic string) bool {
	if g.Counts.Topics[topic] > 0 {
		return true
	}
	for regex := range g.Counts.Regexes {
		if r := g.Resolved[regex]; r != nil {
			if _, ok := slices.BinarySearch(r.Topics, topic); ok {
				return true
			}
		}
	}
	return false
}

// TopicsOf are the names that a member subscribes to by name or by its expression.
func (g *Group) TopicsOf(m *Member) []string {
	r := g.Resolved[m.Regex]
	if m.Regex == "" || r == nil {
		return m.Topics
	}
	if len(m.Topics) == 0 {
		return r.Topics
	}
	return SortTopics(slices.Concat(m.Topics, r.Topics))
}

// Owned says whether any member has a partition, or has still to give it up.
func (g *Group) Owned(topic uuid.UUID, partition int32) bool {
	_, ok := g.owners[topic][partition]
	return ok
}

// StaticMember finds a member by its instance id.
func (g *Group) StaticMember(instance string) *Member { return g.Members[g.Static[instance]] }

// WaitsForOthers says whether something that a member is to get is still another's.
func (g *Group) WaitsForOthers(m *Member) bool {
	for topic, partitions := range g.Target[m.ID] {
		for _, p := range partitions {
			if !m.Assigned.Has(topic, p) && g.Owned(topic, p) {
				return true
			}
		}
	}
	return false
}

// The states of a group, as they are shown.
const (
	Empty       = "Empty"
	Assigning   = "Assigning"
	Reconciling = "Reconciling"
	StableGroup = "Stable"
)

// State is the state of the group.
func (g *Group) State() string {
	switch {
	case len(g.Members) == 0:
		return Empty
	case g.Epoch > g.TargetEpoch:
		return Assigning
	}
	for _, m := range g.Members {
		if !m.ReconciledTo(g.TargetEpoch) {
			return Reconciling
		}
	}
	return StableGroup
}

// SortedMembers are the members in the order of their ids.
func (g *Group) SortedMembers() []*Member {
	list := slices.Collect(maps.Values(g.Members))
	slices.SortFunc(list, func(a, b *Member) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return list
}

// Apply changes the group by a record and gives what takes the change back. Changes are taken back in the reverse order.
// The record that deletes the group itself changes nothing here.
func (g *Group) Apply(r *grouprecord.Consumer) (undo func()) {
	switch r.Type {
	case grouprecord.TypeConsumerGroup:
		epoch, hash := g.Epoch, g.MetadataHash
		if r.Epoch != nil {
			g.Epoch, g.MetadataHash = r.Epoch.Epoch, r.Epoch.MetadataHash
		}
		return func() { g.Epoch, g.MetadataHash = epoch, hash }
	case grouprecord.TypeConsumerPartitions:
		outdated := g.OutdatedPartitions
		g.OutdatedPartitions = r.Partitions
		return func() { g.OutdatedPartitions = outdated }
	case grouprecord.TypeConsumerTarget:
		epoch, at := g.TargetEpoch, g.TargetTimestampMs
		g.TargetEpoch, g.TargetTimestampMs = -1, 0
		if r.Target != nil {
			g.TargetEpoch, g.TargetTimestampMs = r.Target.Epoch, r.Target.TimestampMs
		}
		return func() { g.TargetEpoch, g.TargetTimestampMs = epoch, at }
	case grouprecord.TypeConsumerMember:
		return g.putMember(r.Name, g.describe(r))
	case grouprecord.TypeConsumerCurrent:
		return g.putMember(r.Name, g.advance(r))
	case grouprecord.TypeConsumerTargetMember:
		return g.putTarget(r)
	default:
		return g.putRegex(r)
	}
}

// describe is the member after a record of its description.
func (g *Group) describe(r *grouprecord.Consumer) *Member {
	if r.Member == nil {
		return nil
	}
	old := g.Members[r.Name]
	if old == nil {
		old = NewMember(r.Name)
	}
	return old.describedBy(r.Member)
}

// advance is the member after a record of its progress.
func (g *Group) advance(r *grouprecord.Consumer) *Member {
	old := g.Members[r.Name]
	if r.Current == nil {
		if old == nil {
			return nil
		}
		return old.gone()
	}
	if old == nil {
		old = NewMember(r.Name)
	}
	return old.at(r.Current)
}

// putMember puts a member in its place; nil takes it out.
func (g *Group) putMember(id string, m *Member) (undo func()) {
	old := g.Members[id]
	if old == m {
		return func() {}
	}
	var instances []string
	if old != nil {
		g.disown(old)
		if old.InstanceID != nil {
			instances = append(instances, *old.InstanceID)
		}
	}
	if m != nil && m.InstanceID != nil && (len(instances) == 0 || instances[0] != *m.InstanceID) {
		instances = append(instances, *m.InstanceID)
	}
	before := make([]string, len(instances))
	for i, instance := range instances {
		before[i] = g.Static[instance]
	}
	if old != nil && old.InstanceID != nil && g.Static[*old.InstanceID] == id {
		delete(g.Static, *old.InstanceID)
	}
	g.Counts.change(old, m)
	if m == nil {
		delete(g.Members, id)
	} else {
		g.Members[id] = m
		g.own(m)
		if m.InstanceID != nil {
			g.Static[*m.InstanceID] = id
		}
	}
	return func() {
		g.putMember(id, old)
		for i, instance := range instances {
			if before[i] == "" {
				delete(g.Static, instance)
			} else {
				g.Static[instance] = before[i]
			}
		}
	}
}

func (g *Group) own(m *Member) {
	for _, o := range []Owned{m.Assigned, m.PendingRemoval} {
		for topic, partitions := range o {
			owners := g.owners[topic]
			if owners == nil {
				owners = make(map[int32]string, len(partitions))
				g.owners[topic] = owners
			}
			for p := range partitions {
				owners[p] = m.ID
			}
		}
	}
}

func (g *Group) disown(m *Member) {
	for _, o := range []Owned{m.Assigned, m.PendingRemoval} {
		for topic, partitions := range o {
			owners := g.owners[topic]
			for p := range partitions {
				if owners[p] == m.ID {
					delete(owners, p)
				}
			}
			if len(owners) == 0 {
				delete(g.owners, topic)
			}
		}
	}
}

func (g *Group) putTarget(r *grouprecord.Consumer) (undo func()) {
	old, had := g.Target[r.Name]
	if r.Planned == nil {
		delete(g.Target, r.Name)
	} else {
		p := make(assignor.Partitions, len(r.Planned.Topics))
		for _, t := range r.Planned.Topics {
			if len(t.Partitions) > 0 {
				p[t.TopicID] = slices.Sorted(slices.Values(t.Partitions))
			}
		}
		g.Target[r.Name] = p
	}
	return func() {
		if had {
			g.Target[r.Name] = old
		} else {
			delete(g.Target, r.Name)
		}
	}
}

func (g *Group) putRegex(r *grouprecord.Consumer) (undo func()) {
	old := g.Resolved[r.Name]
	if r.Regex == nil {
		delete(g.Resolved, r.Name)
	} else {
		g.Resolved[r.Name] = &Regex{Topics: SortTopics(r.Regex.Topics), Version: r.Regex.Version, TimestampMs: r.Regex.TimestampMs}
	}
	return func() {
		if old == nil {
			delete(g.Resolved, r.Name)
		} else {
			g.Resolved[r.Name] = old
		}
	}
}
