package metadata

import (
	"reflect"
	"slices"

	"chancery/services/kafka/uuid"
)

// Diff gives the delta between two images that need not have grown out of each other: an image and a snapshot, or
// the empty image and the current one for a subscriber that comes late. The delta's image equals after, and shares with
// before what is the same in both.
func Diff(before, after *Image) *Delta {
	d := NewDelta(after)
	d.base = before
	d.diffTopics()
	n := d.next
	n.brokers = share(before.brokers, n.brokers, func(list []*Broker, b *Broker) (int, bool) { return searchBroker(list, b.ID) })
	n.services = share(before.services, n.services, func(list []*Service, s *Service) (int, bool) {
		return searchService(list, ServiceID{s.Kind, s.ID})
	})
	n.controllers = share(before.controllers, n.controllers, func(list []*Controller, c *Controller) (int, bool) {
		return searchController(list, c.ID)
	})
	d.touchedConfigs = keys(before.configs, after.configs)
	d.touchedQuotas = keys(before.quotas, after.quotas)
	d.touchedACLs = shareValues(before.acls, &d.acls)
	d.touchedScram = shareValues(before.scram, &d.scram)
	d.touchedTokens = shareValues(before.tokens, &d.tokens)
	d.Image()
	return d
}

func (d *Delta) diffTopics() {
	for id := range d.base.topics.all() {
		d.touchedTopics[id] = struct{}{}
	}
	for id, t := range d.topics.all() {
		d.touchedTopics[id] = struct{}{}
		if old := d.base.Topic(id); old != nil {
			d.topics.set(id, shareTopic(old, t))
		}
	}
}

// shareTopic gives a topic equal to after with as many parts of before as possible.
func shareTopic(before, after *Topic) *Topic {
	if before == after {
		return before
	}
	n := &Topic{ID: after.ID, Name: after.Name, Partitions: slices.Clone(after.Partitions)}
	same := before.Name == after.Name && len(before.Partitions) == len(after.Partitions)
	for i, p := range n.Partitions {
		old := before.partition(int32(i))
		if old != nil && old.equal(p) {
			n.Partitions[i] = old
		} else {
			same = false
		}
	}
	if same {
		return before
	}
	return n
}

func (p *Partition) equal(q *Partition) bool {
	return p == q || p.Leader == q.Leader && p.LeaderEpoch == q.LeaderEpoch && p.PartitionEpoch == q.PartitionEpoch &&
		p.RecoveringUnclean == q.RecoveringUnclean &&
		slices.Equal(p.Replicas, q.Replicas) && slices.Equal(p.ISR, q.ISR) &&
		slices.Equal(p.AddingReplicas, q.AddingReplicas) && slices.Equal(p.RemovingReplicas, q.RemovingReplicas) &&
		slices.Equal(p.ELR, q.ELR) && slices.Equal(p.LastKnownELR, q.LastKnownELR) &&
		slices.EqualFunc(p.Directories, q.Directories, func(a, b uuid.UUID) bool { return a == b })
}

// share replaces each element of after that has an equal one in before by that one.
func share[T any](before, after []*T, search func([]*T, *T) (int, bool)) []*T {
	after = slices.Clone(after)
	for i, e := range after {
		if at, ok := search(before, e); ok && reflect.DeepEqual(before[at], e) {
			after[i] = before[at]
		}
	}
	return after
}

// keys are the keys of both maps.
func keys[K comparable, V any](before, after shardMap[K, V]) map[K]struct{} {
	set := make(map[K]struct{}, after.size)
	for k := range before.all() {
		set[k] = struct{}{}
	}
	for k := range after.all() {
		set[k] = struct{}{}
	}
	return set
}

// shareValues replaces each value that has an equal one in before by that one, and gives the keys of both maps.
func shareValues[K comparable, T any](before shardMap[K, *T], after *shardMapEditor[K, *T]) map[K]struct{} {
	set := keys(before, after.shardMap)
	for k := range set {
		old, okOld := before.get(k)
		v, ok := after.get(k)
		if ok && okOld && old != v && reflect.DeepEqual(old, v) {
			after.set(k, old)
		}
	}
	return set
}
