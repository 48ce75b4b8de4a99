package control

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// placer spreads the replicas of new partitions over racks and nodes, as Kafka does: replicas go round the racks and, within
// a rack, round its nodes, each from a random start that moves on by one with every partition. A leader is always an
// unfenced node; a fenced one is taken only when its rack has no other left. After as many partitions as there are nodes
// everything is shuffled, so that the same pairs do not come again and again.
type placer struct {
	random   *rand.Rand
	racks    []*rack
	total    int
	unfenced int
	// round counts the partitions since the last shuffle, first is the rack of the next leader.
	round, first int
}

type rack struct {
	// name is nil for the nodes without a rack.
	name             *string
	unfenced, fenced ring
}

// next gives a node that was not given in this round yet, an unfenced one first; -1 when there is none.
func (r *rack) next(round int) int32 {
	if n := r.unfenced.next(round); n >= 0 {
		return n
	}
	return r.fenced.next(round)
}

// ring gives its nodes one after the other, each once in a round, and starts each round one further.
type ring struct {
	nodes        []int32
	round        int
	given, start int
}

func (r *ring) next(round int) int32 {
	if len(r.nodes) == 0 {
		return -1
	}
	if r.round != round {
		r.round, r.given = round, 0
		r.start = (r.start + 1) % len(r.nodes)
	}
	if r.given >= len(r.nodes) {
		return -1
	}
	n := r.nodes[(r.given+r.start)%len(r.nodes)]
	r.given++
	return n
}

func (r *ring) begin(random *rand.Rand) {
	if len(r.nodes) > 0 {
		slices.Sort(r.nodes)
		r.start = random.IntN(len(r.nodes))
	}
}

func (r *ring) shuffle(random *rand.Rand) {
	random.Shuffle(len(r.nodes), func(i, j int) { r.nodes[i], r.nodes[j] = r.nodes[j], r.nodes[i] })
}

// newPlacer makes a placer over the nodes that can take replicas.
func (m *Manager) newPlacer() *placer {
	p := &placer{random: m.random}
	for _, b := range m.image.Brokers() {
		if m.isLeaving(b) || !hasUncordonedDirectory(b) {
			continue
		}
		r := p.rackOf(b.Rack)
		if b.Fenced {
			r.fenced.nodes = append(r.fenced.nodes, b.ID)
		} else {
			r.unfenced.nodes = append(r.unfenced.nodes, b.ID)
			p.unfenced++
		}
		p.total++
	}
	slices.SortFunc(p.racks, func(a, b *rack) int {
		switch {
		case a.name == nil || b.name == nil:
			return cmp.Compare(btoi(a.name != nil), btoi(b.name != nil))
		}
		return cmp.Compare(*a.name, *b.name)
	})
	for _, r := range p.racks {
		r.unfenced.begin(p.random)
		r.fenced.begin(p.random)
	}
	if len(p.racks) > 0 {
		p.first = p.random.IntN(len(p.racks))
	}
	return p
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p *placer) rackOf(name *string) *rack {
	for _, r := range p.racks {
		if r.name == name || r.name != nil && name != nil && *r.name == *name {
			return r
		}
	}
	r := &rack{name: name}
	p.racks = append(p.racks, r)
	return r
}

// check says whether partitions with so many replicas can be placed at all.
func (p *placer) check(replicationFactor int16) error {
	switch {
	case replicationFactor <= 0:
		return errcode.InvalidReplicationFactor.Errorf("Invalid replication factor %d: the replication factor must be positive.",
			replicationFactor)
	case p.unfenced == 0:
		return errcode.InvalidReplicationFactor.Errorf("All brokers are currently fenced, or have all their log directories cordoned.")
	case int(replicationFactor) > p.total:
		return errcode.InvalidReplicationFactor.Errorf("The target replication factor of %d cannot be reached because only %d "+
			"broker(s) are registered or some brokers have all their log directories cordoned.", replicationFactor, p.total)
	}
	return nil
}

// place gives the replicas of one more partition, its preferred leader first. check must have allowed it.
func (p *placer) place(replicationFactor int16) []int32 {
	if p.round == p.unfenced && p.unfenced > 1 {
		p.shuffle()
	}
	if p.first == len(p.racks) {
		p.first = 0
	}
	replicas := make([]int32, 0, replicationFactor)
	leaderRack := p.first
	for {
		if n := p.racks[leaderRack].unfenced.next(p.round); n >= 0 {
			replicas = append(replicas, n)
			break
		}
		leaderRack = (leaderRack + 1) % len(p.racks)
	}
	for at := p.first; len(replicas) < int(replicationFactor); at = (at + 1) % len(p.racks) {
		if at == leaderRack {
			leaderRack = -1 // Once round, the leader's rack has its turn, but not before.
			continue
		}
		if n := p.racks[at].next(p.round); n >= 0 {
			replicas = append(replicas, n)
		}
	}
	p.round++
	p.first++
	return replicas
}

func (p *placer) shuffle() {
	p.random.Shuffle(len(p.racks), func(i, j int) { p.racks[i], p.racks[j] = p.racks[j], p.racks[i] })
	for _, r := range p.racks {
		r.unfenced.shuffle(p.random)
		r.fenced.shuffle(p.random)
	}
	p.round = 0
}

// hasUncordonedDirectory says whether a node takes new replicas.
func hasUncordonedDirectory(b *metadata.Broker) bool {
	if len(b.Directories) == 0 {
		return true
	}
	return slices.ContainsFunc(b.Directories, func(d uuid.UUID) bool { return !slices.Contains(b.CordonedDirectories, d) })
}

// defaultDirectory is where a node will keep a new replica: known only if it has just one directory.
func (m *Manager) defaultDirectory(node int32) uuid.UUID {
	b := m.image.Broker(node)
	switch {
	case b == nil:
		return uuid.UnassignedDir
	case len(b.Directories) == 0:
		return uuid.MigratingDir
	case len(b.Directories) == 1:
		return b.Directories[0]
	}
	return uuid.UnassignedDir
}

// hasOnlineDirectory says whether a node has a directory; one that is not known is taken to be there.
func (m *Manager) hasOnlineDirectory(node int32, dir uuid.UUID) bool {
	b := m.image.Broker(node)
	switch {
	case b == nil:
		return false
	case dir == uuid.UnassignedDir || dir == uuid.MigratingDir:
		return true
	case dir == uuid.LostDir:
		return false
	}
	return len(b.Directories) == 0 || slices.Contains(b.Directories, dir)
}

// isActive says whether a node can take part in an ISR.
func (m *Manager) isActive(node int32) bool {
	b := m.image.Broker(node)
	return b != nil && !b.Fenced && !b.InControlledShutdown
}
