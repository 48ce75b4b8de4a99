package control

import (
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// election says how far an election may go.
type election int

const (
	// The zero value keeps the leader while it can lead, else takes the first replica that can.
	_ election = iota
	// electPreferred takes the first replica if it can lead.
	electPreferred
	// electUnclean does the same as the zero value, but takes a replica out of the ISR when there is no other; records may be lost.
	electUnclean
)

// change works out how a partition changes: from the wishes set on it to a record that holds together, with a leader elected.
type change struct {
	topicID   uuid.UUID
	partition int32
	was       *metadata.Partition
	// canLead says whether a node is up and has the replica's directory.
	canLead    func(node int32) bool
	minISR     int
	elrEnabled bool
	defaultDir func(node int32) uuid.UUID

	election election
	// unclean is a node that may have lost acknowledged records, or NoLeader.
	unclean     int32
	isr         []int32
	replicas    []int32
	removing    []int32
	adding      []int32
	elr         []int32
	recovering  bool
	directories map[int32]uuid.UUID
}

// newChange begins a change of a partition that wishes nothing yet.
func (m *Manager) newChange(t *metadata.Topic, partition int32, canLead func(int32) bool, minISR int) *change {
	p := t.Partitions[partition]
	return &change{
		topicID:    t.ID,
		partition:  partition,
		was:        p,
		canLead:    func(node int32) bool { return canLead(node) && m.hasOnlineDirectory(node, directoryOf(p, node)) },
		minISR:     minISR,
		elrEnabled: m.elrEnabled(),
		defaultDir: m.defaultDirectory,
		unclean:    metadata.NoLeader,
		isr:        p.ISR,
		replicas:   p.Replicas,
		removing:   p.RemovingReplicas,
		adding:     p.AddingReplicas,
		elr:        p.ELR,
		recovering: p.RecoveringUnclean,
	}
}

// setDirectory says in which directory a node keeps its replica.
func (c *change) setDirectory(node int32, dir uuid.UUID) {
	if c.directories == nil {
		c.directories = map[int32]uuid.UUID{}
	}
	c.directories[node] = dir
}

// record gives the record of the change, nil when nothing changes.
func (c *change) record() *metarecord.PartitionChangeRecord {
	r := metarecord.NewPartitionChange(c.topicID, c.partition)
	c.completeReassignment()
	c.fillELR()
	c.elect(r)
	if r.Leader == metarecord.NoLeaderChange && !containsAll(c.replicas, c.was.Replicas) {
		// A replica that is taken away must not go on as a follower of this epoch.
		r.Leader = c.was.Leader
	}
	c.setELR(r)
	if r.ISR == nil && (len(c.isr) > 0 || c.elrEnabled) && !slices.Equal(c.isr, c.was.ISR) {
		r.ISR = listed(c.isr)
	}
	c.setLastKnownELR(r)
	c.setAssignment(r)
	if c.recovering != c.was.RecoveringUnclean {
		r.LeaderRecoveryState = metarecord.Recovered
		if c.recovering {
			r.LeaderRecoveryState = metarecord.Recovering
		}
	}
	if isNoChange(r) {
		return nil
	}
	return r
}

func isNoChange(r *metarecord.PartitionChangeRecord) bool {
	return r.ISR == nil && r.EligibleLeaderReplicas == nil && r.LastKnownELR == nil && r.Leader == metarecord.NoLeaderChange &&
		r.Replicas == nil && r.RemovingReplicas == nil && r.AddingReplicas == nil &&
		r.LeaderRecoveryState == metarecord.RecoveryNoChange && r.Directories == nil
}

// completeReassignment ends a reassignment whose new replicas are all in sync.
func (c *change) completeReassignment() {
	if len(c.removing) == 0 && len(c.adding) == 0 {
		return
	}
	isr := without(c.isr, c.removing)
	replicas := without(c.replicas, c.removing)
	if len(c.removing) > 0 && (len(isr) == 0 || len(replicas) == 0) || !containsAll(isr, c.adding) {
		return
	}
	// When there will be fewer replicas than before, all of them must be in sync.
	if len(c.adding) < len(c.removing) && !containsAll(isr, replicas) {
		return
	}
	c.isr, c.replicas, c.removing, c.adding = isr, replicas, nil, nil
}

// fillELR keeps the replicas that leave a small ISR as eligible leaders: they have every acknowledged record.
func (c *change) fillELR() {
	if !c.elrEnabled {
		return
	}
	if len(c.isr) >= c.minISR {
		c.elr = nil
		return
	}
	candidates := slices.Concat(c.elr, c.was.ISR)
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	c.elr = slices.DeleteFunc(candidates, func(n int32) bool {
		// A replica that a reassignment has taken away is none any more, whatever it still has.
		return n == c.unclean || slices.Contains(c.isr, n) || !slices.Contains(c.replicas, n)
	})
}

func (c *change) elect(r *metarecord.PartitionChangeRecord) {
	leader, unclean := c.electAny()
	if c.election == electPreferred {
		leader, unclean = c.electPreferredLeader()
	}
	if leader == c.was.Leader {
		return
	}
	if slices.Contains(c.elr, leader) {
		c.isr = []int32{leader}
		c.elr = without(c.elr, c.isr)
	}
	r.Leader = leader
	if unclean {
		r.ISR = []int32{leader}
		if !c.was.RecoveringUnclean {
			r.LeaderRecoveryState = metarecord.Recovering
		}
	}
}

func (c *change) electPreferredLeader() (leader int32, unclean bool) {
	if c.isValidLeader(c.replicas[0]) {
		return c.replicas[0], false
	}
	if c.isValidLeader(c.was.Leader) {
		return c.was.Leader, false
	}
	for _, n := range c.replicas[1:] {
		if c.isValidLeader(n) {
			return n, false
		}
	}
	if c.canElectLastKnown() {
		return c.was.LastKnownELR[0], true
	}
	return metadata.NoLeader, false
}

func (c *change) electAny() (leader int32, unclean bool) {
	if c.isValidLeader(c.was.Leader) {
		return c.was.Leader, false
	}
	for _, n := range c.replicas {
		if c.isValidLeader(n) {
			return n, false
		}
	}
	if c.canElectLastKnown() {
		return c.was.LastKnownELR[0], true
	}
	if c.election == electUnclean {
		for _, n := range c.replicas {
			if c.canLead(n) {
				return n, true
			}
		}
	}
	return metadata.NoLeader, false
}

// isValidLeader says whether a node can lead without losing acknowledged records.
func (c *change) isValidLeader(node int32) bool {
	return (slices.Contains(c.isr, node) || len(c.isr) == 0 && slices.Contains(c.elr, node)) && c.canLead(node)
}

// canElectLastKnown says whether the last leader, though it may have lost records, is the best there is.
func (c *change) canElectLastKnown() bool {
	return c.elrEnabled && len(c.elr) == 0 && len(c.isr) == 0 && len(c.was.LastKnownELR) == 1 && c.canLead(c.was.LastKnownELR[0])
}

func (c *change) setELR(r *metarecord.PartitionChangeRecord) {
	if r.ISR != nil || !c.elrEnabled {
		// After an unclean election nobody else is known to have every record.
		c.elr = nil
	}
	if !slices.Equal(c.elr, c.was.ELR) {
		r.EligibleLeaderReplicas = listed(c.elr)
	}
}

// setLastKnownELR remembers the leader when there is none any more, and forgets it when there is one.
func (c *change) setLastKnownELR(r *metarecord.PartitionChangeRecord) {
	switch {
	case !c.elrEnabled:
	case r.Leader == metarecord.NoLeader && len(c.was.LastKnownELR) == 0:
		r.LastKnownELR = []int32{c.was.Leader}
	case r.Leader >= 0 && len(c.was.LastKnownELR) > 0:
		r.LastKnownELR = []int32{}
	}
}

func (c *change) setAssignment(r *metarecord.PartitionChangeRecord) {
	directories := make([]uuid.UUID, len(c.replicas))
	for i, n := range c.replicas {
		dir, ok := c.directories[n]
		if !ok && slices.Contains(c.was.Replicas, n) {
			dir, ok = directoryOf(c.was, n), true
		}
		if !ok {
			dir = c.defaultDir(n)
		}
		directories[i] = dir
	}
	if !slices.Equal(directories, directoriesOf(c.was)) {
		r.Directories = directories
	}
	if !slices.Equal(c.replicas, c.was.Replicas) {
		r.Replicas = c.replicas
	}
	if !slices.Equal(c.removing, c.was.RemovingReplicas) {
		r.RemovingReplicas = listed(c.removing)
	}
	if !slices.Equal(c.adding, c.was.AddingReplicas) {
		r.AddingReplicas = listed(c.adding)
	}
}

// directoryOf is the directory in which a node keeps its replica of a partition.
func directoryOf(p *metadata.Partition, node int32) uuid.UUID {
	if i := slices.Index(p.Replicas, node); i >= 0 && i < len(p.Directories) {
		return p.Directories[i]
	}
	return uuid.MigratingDir
}

// directoriesOf are the directories of all replicas.
func directoriesOf(p *metadata.Partition) []uuid.UUID {
	if len(p.Directories) == len(p.Replicas) {
		return p.Directories
	}
	return make([]uuid.UUID, len(p.Replicas))
}

// listed gives a list that is not nil, since nil means no change in a record.
func listed(list []int32) []int32 {
	if list == nil {
		return []int32{}
	}
	return list
}

// without gives the list without some nodes.
func without(list, out []int32) []int32 {
	kept := make([]int32, 0, len(list))
	for _, n := range list {
		if !slices.Contains(out, n) {
			kept = append(kept, n)
		}
	}
	return kept
}

func containsAll(list, all []int32) bool {
	for _, n := range all {
		if !slices.Contains(list, n) {
			return false
		}
	}
	return true
}
