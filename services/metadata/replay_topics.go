package metadata

import (
	"fmt"
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

func (d *Delta) replayTopic(r *metarecord.TopicRecord) error {
	if r.Name == "" {
		return fmt.Errorf("topic %s has no name", r.TopicID)
	}
	d.topics.set(r.TopicID, &Topic{ID: r.TopicID, Name: r.Name})
	d.names.set(r.Name, r.TopicID)
	d.touchedTopics[r.TopicID] = struct{}{}
	mark(&d.ownedTopics, r.TopicID)
	return nil
}

func (d *Delta) replayRemoveTopic(r *metarecord.RemoveTopicRecord) error {
	t, ok := d.topics.get(r.TopicID)
	if !ok {
		return fmt.Errorf("there is no topic %s", r.TopicID)
	}
	d.topics.remove(r.TopicID)
	if id, _ := d.names.get(t.Name); id == r.TopicID {
		d.names.remove(t.Name)
	}
	d.removeConfig(ConfigResource{ResourceTopic, t.Name})
	d.touchedTopics[r.TopicID] = struct{}{}
	delete(d.ownedTopics, r.TopicID)
	return nil
}

// ownTopic gives a topic that this delta may change; nil when there is none.
func (d *Delta) ownTopic(id uuid.UUID) *Topic {
	t, ok := d.topics.get(id)
	if !ok {
		return nil
	}
	if _, owned := d.ownedTopics[id]; owned {
		return t
	}
	t = &Topic{ID: t.ID, Name: t.Name, Partitions: slices.Clone(t.Partitions)}
	d.topics.set(id, t)
	d.touchedTopics[id] = struct{}{}
	mark(&d.ownedTopics, id)
	return t
}

func (d *Delta) replayPartition(r *metarecord.PartitionRecord) error {
	t := d.ownTopic(r.TopicID)
	if t == nil {
		return fmt.Errorf("there is no topic %s for its partition %d", r.TopicID, r.PartitionID)
	}
	p := &Partition{
		Replicas:          r.Replicas,
		ISR:               r.ISR,
		AddingReplicas:    r.AddingReplicas,
		RemovingReplicas:  r.RemovingReplicas,
		ELR:               r.EligibleLeaderReplicas,
		LastKnownELR:      r.LastKnownELR,
		Directories:       r.Directories,
		Leader:            r.Leader,
		LeaderEpoch:       r.LeaderEpoch,
		PartitionEpoch:    r.PartitionEpoch,
		RecoveringUnclean: r.LeaderRecoveryState == metarecord.Recovering,
	}
	if err := p.normalize(); err != nil {
		return fmt.Errorf("topic %s partition %d: %w", t.Name, r.PartitionID, err)
	}
	n := int(r.PartitionID)
	if n < 0 || n >= len(t.Partitions)+d.growth {
		return fmt.Errorf("topic %s with %d partitions cannot get a partition %d", t.Name, len(t.Partitions), n)
	}
	for n >= len(t.Partitions) {
		t.Partitions = append(t.Partitions, nil)
	}
	t.Partitions[n] = p
	return nil
}

func (d *Delta) replayPartitionChange(r *metarecord.PartitionChangeRecord) error {
	t := d.ownTopic(r.TopicID)
	before := t.partition(r.PartitionID)
	if before == nil {
		return fmt.Errorf("there is no partition %d of topic %s", r.PartitionID, r.TopicID)
	}
	after, err := before.changed(r)
	if err != nil {
		return fmt.Errorf("topic %s partition %d: %w", t.Name, r.PartitionID, err)
	}
	t.Partitions[r.PartitionID] = after
	return nil
}

// changed gives the partition after a change. The partition epoch always grows; the leader epoch grows exactly when
// the record names a leader, even the same one.
func (p *Partition) changed(r *metarecord.PartitionChangeRecord) (*Partition, error) {
	n := *p
	n.PartitionEpoch++
	replace(&n.Replicas, r.Replicas)
	replace(&n.ISR, r.ISR)
	replace(&n.AddingReplicas, r.AddingReplicas)
	replace(&n.RemovingReplicas, r.RemovingReplicas)
	replace(&n.ELR, r.EligibleLeaderReplicas)
	replace(&n.LastKnownELR, r.LastKnownELR)
	replace(&n.Directories, r.Directories)
	if r.Leader != metarecord.NoLeaderChange {
		n.Leader = r.Leader
		n.LeaderEpoch++
	}
	if r.LeaderRecoveryState != metarecord.RecoveryNoChange {
		n.RecoveringUnclean = r.LeaderRecoveryState == metarecord.Recovering
	}
	return &n, n.normalize()
}

func replace[T any](list *[]T, with []T) {
	if with != nil {
		*list = with
	}
}

// normalize brings a partition into its one form: empty lists are nil, equal lists are shared, and there is a directory
// for each replica, MigratingDir where none is known.
func (p *Partition) normalize() error {
	for _, list := range []*[]int32{&p.Replicas, &p.ISR, &p.AddingReplicas, &p.RemovingReplicas, &p.ELR, &p.LastKnownELR} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	if slices.Equal(p.ISR, p.Replicas) {
		p.ISR = p.Replicas
	}
	if !slices.ContainsFunc(p.Directories, func(d uuid.UUID) bool { return d != uuid.MigratingDir }) {
		p.Directories = nil
		if len(p.Replicas) > 0 {
			p.Directories = make([]uuid.UUID, len(p.Replicas))
		}
	}
	if len(p.Directories) != len(p.Replicas) {
		return fmt.Errorf("%d directories for %d replicas", len(p.Directories), len(p.Replicas))
	}
	return nil
}

func (d *Delta) replayClearElr(r *metarecord.ClearElrRecord) error {
	if r.TopicName != "" {
		id, ok := d.names.get(r.TopicName)
		if !ok {
			return fmt.Errorf("there is no topic %s whose ELR could be cleared", r.TopicName)
		}
		d.clearElr(id)
		return nil
	}
	var ids []uuid.UUID
	for id, t := range d.topics.all() {
		if slices.ContainsFunc(t.Partitions, hasElr) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		d.clearElr(id)
	}
	return nil
}

func hasElr(p *Partition) bool { return p != nil && (p.ELR != nil || p.LastKnownELR != nil) }

func (d *Delta) clearElr(id uuid.UUID) {
	if t, _ := d.topics.get(id); !slices.ContainsFunc(t.Partitions, hasElr) {
		return
	}
	t := d.ownTopic(id)
	for i, p := range t.Partitions {
		if !hasElr(p) {
			continue
		}
		n := *p
		n.ELR, n.LastKnownELR = nil, nil
		n.PartitionEpoch++
		t.Partitions[i] = &n
	}
}
