// Package assignor computes which member of a consumer group is to have which partitions: Kafka's server-side assignors
// uniform and range.
//
// It owns the two algorithms. It must never know what members have at the moment, look anything up, or keep state: the same
// group gives the same assignment.
package assignor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"chancery/services/kafka/uuid"
)

// ErrUnknownTopic says that a member is subscribed to a topic whose partitions are not known.
var ErrUnknownTopic = errors.New("members are subscribed to a topic that does not exist")

// Partitions are partitions by topic, each list in order and without doubles. No list is empty.
type Partitions map[uuid.UUID][]int32

// Equal says whether two assignments are the same.
func (p Partitions) Equal(other Partitions) bool {
	return maps.EqualFunc(p, other, func(a, b []int32) bool { return slices.Equal(a, b) })
}

// Member is a member of a group as assignors see it.
type Member struct {
	ID         string
	InstanceID *string
	// Topics are those that it subscribes to and that exist.
	Topics map[uuid.UUID]struct{}
	// Target is what it was to have before.
	Target Partitions
}

// Group is what an assignment is made for.
type Group struct {
	// Members are in the order in which, of those with equal rights, they are served.
	Members []Member
	// Homogeneous says that all members subscribe to the same topics.
	Homogeneous bool
	// PartitionCount gives the number of partitions of each subscribed topic.
	PartitionCount map[uuid.UUID]int
}

// Assignor makes an assignment: what each member is to have, by member id. Members that get nothing may be missing.
type Assignor func(g Group) (map[string]Partitions, error)

// The names of the assignors.
const (
	Uniform = "uniform"
	Range   = "range"
)

// ByName gives an assignor, nil when there is none of that name.
func ByName(name string) Assignor {
	switch name {
	case Uniform:
		return assignUniform
	case Range:
		return assignRange
	}
	return nil
}

// subscribers lists for each topic the indexes of the members that subscribe to it, and the topics in order.
func (g *Group) subscribers() (topics []uuid.UUID, byTopic map[uuid.UUID][]int, err error) {
	byTopic = map[uuid.UUID][]int{}
	for i := range g.Members {
		for id := range g.Members[i].Topics {
			if _, ok := g.PartitionCount[id]; !ok {
				return nil, nil, fmt.Errorf("%w: %s", ErrUnknownTopic, id)
			}
			byTopic[id] = append(byTopic[id], i)
		}
	}
	return slices.SortedFunc(maps.Keys(byTopic), compareIDs), byTopic, nil
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// assignRange gives each member a range of every topic that it subscribes to, so that topics with equal numbers of partitions
// go together. Static members come first: they keep their place when they come back.
func assignRange(g Group) (map[string]Partitions, error) {
	members := slices.Clone(g.Members)
	slices.SortFunc(members, func(a, b Member) int {
		switch {
		case a.InstanceID != nil && b.InstanceID != nil:
			return cmp.Compare(*a.InstanceID, *b.InstanceID)
		case a.InstanceID != nil:
			return -1
		case b.InstanceID != nil:
			return 1
		}
		return cmp.Compare(a.ID, b.ID)
	})
	sorted := Group{Members: members, PartitionCount: g.PartitionCount}
	topics, subscribers, err := sorted.subscribers()
	if err != nil {
		return nil, err
	}
	out := make(map[string]Partitions, len(members))
	for _, id := range topics {
		n, takers := g.PartitionCount[id], subscribers[id]
		share, extra := n/len(takers), n%len(takers)
		next := 0
		for k, i := range takers {
			size := share
			if k < extra {
				size++
			}
			if size > 0 {
				give(out, members[i].ID, id, next, next+size)
			}
			next += size
		}
	}
	return out, nil
}

// give adds the partitions from start to before end.
func give(out map[string]Partitions, member string, topic uuid.UUID, start, end int) {
	if out[member] == nil {
		out[member] = Partitions{}
	}
	list := make([]int32, 0, end-start)
	for p := start; p < end; p++ {
		list = append(list, int32(p))
	}
	out[member][topic] = list
}
