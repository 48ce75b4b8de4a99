package assignor

import (
	"cmp"
	"slices"

	"chancery/services/kafka/uuid"
)

// maxBalanceRounds bounds how often the topics of a group with different subscriptions are gone through. Groups in which all
// subscribers of a topic subscribe to the same topics are balanced after one round; for others each round about halves what
// is out of balance.
const maxBalanceRounds = 16

// assignUniform gives all members equally many partitions, as far as their subscriptions allow, and moves as few as possible.
func assignUniform(g Group) (map[string]Partitions, error) {
	topics, subscribers, err := g.subscribers()
	if err != nil || len(topics) == 0 {
		return map[string]Partitions{}, err
	}
	u := newUniform(&g, topics, subscribers)
	if g.Homogeneous {
		u.fillHomogeneous()
	} else {
		u.fillHeterogeneous()
	}
	return u.result(), nil
}

// nobody owns a partition.
const nobody = -1

// uniform is an assignment in the making. Members are their indexes in the group.
type uniform struct {
	group       *Group
	topics      []uuid.UUID
	subscribers map[uuid.UUID][]int
	// owners gives for each partition of a topic who is to have it.
	owners map[uuid.UUID][]int
	// sizes counts what each member is to have.
	sizes []int
}

// newUniform begins with what the members had, where they still subscribe to it and it exists.
func newUniform(g *Group, topics []uuid.UUID, subscribers map[uuid.UUID][]int) *uniform {
	u := &uniform{group: g, topics: topics, subscribers: subscribers, owners: make(map[uuid.UUID][]int, len(topics)), sizes: make([]int, len(g.Members))}
	for _, id := range topics {
		owners := make([]int, g.PartitionCount[id])
		for p := range owners {
			owners[p] = nobody
		}
		u.owners[id] = owners
	}
	for i := range g.Members {
		m := &g.Members[i]
		for id, partitions := range m.Target {
			if _, ok := m.Topics[id]; !ok {
				continue
			}
			for _, p := range partitions {
				if owners := u.owners[id]; int(p) < len(owners) && owners[p] == nobody {
					owners[p] = i
					u.sizes[i]++
				}
			}
		}
	}
	return u
}

func (u *uniform) move(topic uuid.UUID, partition, to int) {
	owners := u.owners[topic]
	if from := owners[partition]; from != nobody {
		u.sizes[from]--
	}
	owners[partition] = to
	if to != nobody {
		u.sizes[to]++
	}
}

func (u *uniform) result() map[string]Partitions {
	out := make(map[string]Partitions, len(u.group.Members))
	for _, id := range u.topics {
		for p, i := range u.owners[id] {
			if i == nobody {
				continue
			}
			member := u.group.Members[i].ID
			if out[member] == nil {
				out[member] = Partitions{}
			}
			out[member][id] = append(out[member][id], int32(p))
		}
	}
	return out
}

// fillHomogeneous takes from members what is above their quota and gives what nobody has to those below it. Of members with
// equal rights, those that already have one more partition than the others keep it.
func (u *uniform) fillHomogeneous() {
	total := 0
	for _, id := range u.topics {
		total += len(u.owners[id])
	}
	members := len(u.group.Members)
	quota, extra := total/members, total%members
	quotas := make([]int, members)
	for i := range quotas {
		quotas[i] = quota
		// The last ones must take what is left over.
		if extra > 0 && (u.sizes[i] > quota || members-i <= extra) {
			quotas[i]++
			extra--
		}
	}
	for _, id := range u.topics {
		kept := make([]int, members)
		for p, i := range u.owners[id] {
			if i == nobody {
				continue
			}
			if kept[i] == quotas[i] {
				u.move(id, p, nobody)
				continue
			}
			kept[i]++
		}
		for i := range kept {
			quotas[i] -= kept[i]
		}
	}
	next := 0
	for _, id := range u.topics {
		for p, i := range u.owners[id] {
			if i != nobody {
				continue
			}
			for quotas[next] == 0 {
				next++
			}
			u.move(id, p, next)
			quotas[next]--
		}
	}
}

// fillHeterogeneous gives what nobody has to the least loaded subscriber of each topic, and then moves partitions from the
// most to the least loaded subscribers until that does not make the assignment more even.
func (u *uniform) fillHeterogeneous() {
	topics := slices.Clone(u.topics)
	slices.SortStableFunc(topics, u.compareTopics)
	for _, id := range topics {
		b := u.balancer(id)
		for p, i := range u.owners[id] {
			if i == nobody {
				u.move(id, p, b.least())
			}
		}
	}
	topics = slices.DeleteFunc(topics, func(id uuid.UUID) bool { return len(u.subscribers[id]) < 2 })
	last := -1
	for range maxBalanceRounds {
		for at, id := range topics {
			if at == last {
				return
			}
			if moved := u.balance(id); moved || last < 0 {
				last = at
			}
		}
	}
}

// compareTopics puts topics with many partitions for each subscriber first, then those with few subscribers.
func (u *uniform) compareTopics(a, b uuid.UUID) int {
	load := func(id uuid.UUID) float64 { return float64(len(u.owners[id])) / float64(len(u.subscribers[id])) }
	return cmp.Or(cmp.Compare(load(b), load(a)), cmp.Compare(len(u.subscribers[a]), len(u.subscribers[b])))
}

// balance moves partitions of one topic, and says whether it has moved any.
func (u *uniform) balance(topic uuid.UUID) bool {
	b := u.balancer(topic)
	if u.sizes[b.order[len(b.order)-1]]-u.sizes[b.order[0]] <= 1 {
		return false
	}
	given := map[int][]int{}
	for p, i := range u.owners[topic] {
		given[i] = append(given[i], p)
	}
	moved := false
	for {
		from := b.most(func(i int) bool { return len(given[i]) > 0 })
		if from == nobody {
			return moved
		}
		to := b.least()
		if b.high-b.low <= 1 {
			return moved
		}
		list := given[from]
		given[from] = list[:len(list)-1]
		u.move(topic, list[len(list)-1], to)
		moved = true
	}
}

// balancer walks over the subscribers of one topic from both ends: those with the fewest partitions, level by level, and those
// with the most.
//
//	|             ##
//	|   least  <-[##]##   The members on the very right have nothing of this topic to give
//	| [..->  ] ##[##]##   and are left out.
//	+-------------------
//	    members
type balancer struct {
	u *uniform
	// order is the subscribers by what they are to have, fewest first.
	order []int
	// low is the level of order[:lowEnd] before nextLow was reached, high that of order[highStart:highEnd].
	low, lowEnd, nextLow               int
	high, highStart, highEnd, nextHigh int
}

func (u *uniform) balancer(topic uuid.UUID) *balancer {
	order := slices.Clone(u.subscribers[topic])
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(u.sizes[a], u.sizes[b]) })
	n := len(order)
	return &balancer{
		u: u, order: order, low: u.sizes[order[0]] - 1,
		high: u.sizes[order[n-1]] + 1, highStart: n, highEnd: n, nextHigh: n - 1,
	}
}

// least is the member that gets the next partition.
func (b *balancer) least() int {
	if b.nextLow >= b.lowEnd {
		b.low++
		for b.lowEnd < len(b.order) && b.u.sizes[b.order[b.lowEnd]] == b.low {
			b.lowEnd++
		}
		b.nextLow = 0
	}
	i := b.order[b.nextLow]
	b.nextLow++
	return i
}

// most is the member that gives the next partition, among those that have one to give; nobody when none has.
func (b *balancer) most(hasOne func(i int) bool) int {
	for {
		if b.nextHigh < b.highStart {
			if b.highEnd <= b.highStart && b.highStart > 0 {
				// Everyone of the level has been left out: go on with the next members, whatever their level.
				b.high = b.u.sizes[b.order[b.highStart-1]]
			} else {
				b.high--
			}
			for b.highStart > 0 && b.u.sizes[b.order[b.highStart-1]] == b.high {
				b.highStart--
			}
			b.nextHigh = b.highEnd - 1
		}
		if b.nextHigh < 0 {
			return nobody
		}
		i := b.order[b.nextHigh]
		b.nextHigh--
		if hasOne(i) {
			return i
		}
		b.order[b.nextHigh+1], b.order[b.highEnd-1] = b.order[b.highEnd-1], b.order[b.nextHigh+1]
		b.highEnd--
	}
}
