package control

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

// AlterPartitionReassignments begins or cancels the moves of partitions to other nodes.
func (m *Manager) AlterPartitionReassignments(req *kmsg.AlterPartitionAssignmentsRequest) Decision {
	resp := kmsg.NewPtrAlterPartitionAssignmentsResponse()
	resp.Version = req.Version
	resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	d := Decision{Reply: resp, Atomic: true}
	for i := range req.Topics {
		topic := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		topic.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			in := &req.Topics[i].Partitions[j]
			record, err := m.reassign(topic.Topic, in, req.Version < 1 || req.AllowReplicationFactorChange)
			if record != nil {
				d.Records = append(d.Records, record)
			}
			p := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			p.Partition = in.Partition
			p.ErrorCode, p.ErrorMessage = fail(err)
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	if err := tooMany(d.Records); err != nil {
		resp.ErrorCode, resp.ErrorMessage = fail(err)
		resp.Topics = nil
		return Decision{Reply: resp}
	}
	return d
}

func (m *Manager) reassign(topic string, in *kmsg.AlterPartitionAssignmentsRequestTopicPartition, allowFactor bool) (metarecord.Record, error) {
	t := m.image.TopicByName(topic)
	switch {
	case t == nil:
		return nil, errcode.UnknownTopicOrPartition.Errorf("Unable to find a topic named %s.", topic)
	case in.Partition < 0 || int(in.Partition) >= len(t.Partitions):
		return nil, errcode.UnknownTopicOrPartition.Errorf("Unable to find partition %s:%d.", topic, in.Partition)
	}
	config := m.topicConfig(t.Name)
	c := m.newChange(t, in.Partition, m.isActive, m.minISR(t, config))
	var err error
	if in.Replicas == nil {
		err = cancelReassignment(c, topic, config.UncleanLeaderElectionEnable)
	} else {
		err = m.beginReassignment(c, in.Replicas, allowFactor)
	}
	if err != nil {
		return nil, err
	}
	if r := c.record(); r != nil {
		return r, nil
	}
	return nil, nil
}

func isReassigning(p *metadata.Partition) bool {
	return len(p.AddingReplicas) > 0 || len(p.RemovingReplicas) > 0
}

// cancelReassignment brings a partition back to the replicas it had.
func cancelReassignment(c *change, topic string, unclean bool) error {
	if !isReassigning(c.was) {
		return errcode.NoReassignmentInProgress.Err()
	}
	replicas := without(c.was.Replicas, c.was.AddingReplicas)
	isr := without(c.was.ISR, c.was.AddingReplicas)
	if len(isr) == 0 {
		if len(replicas) == 0 {
			return errcode.InvalidReplicaAssignment.Errorf("Invalid replica assignment: addingReplicas contains all replicas.")
		}
		if !unclean {
			return errcode.InvalidReplicaAssignment.Errorf("Unable to revert partition assignment for %s:%d because it would require an "+
				"unclean leader election.", topic, c.partition)
		}
		isr = replicas[:1]
	}
	if unclean {
		c.election = electUnclean
	}
	c.replicas, c.isr, c.removing, c.adding = replicas, isr, nil, nil
	return nil
}

// beginReassignment adds the new replicas to a partition; those that go stay until the new ones are in sync. It takes the place
// of a reassignment under way: who was being added by that one and is wanted still has to come, and who was to go may stay.
func (m *Manager) beginReassignment(c *change, target []int32, allowFactor bool) error {
	if err := m.checkAssignment(target, -1); err != nil {
		return err
	}
	if now := len(settledReplicas(c.was)); !allowFactor && now != len(target) {
		return errcode.InvalidReplicationFactor.Errorf("The replication factor is changed from %d to %d", now, len(target))
	}
	removing := slices.Sorted(slices.Values(without(c.was.Replicas, target)))
	adding := slices.Sorted(slices.Values(without(target, without(c.was.Replicas, c.was.AddingReplicas))))
	c.replicas, c.removing, c.adding = slices.Concat(target, removing), removing, adding
	return nil
}

// settledReplicas are the replicas that a partition will have when its present reassignment is complete.
func settledReplicas(p *metadata.Partition) []int32 {
	all := slices.Concat(p.Replicas, p.AddingReplicas)
	slices.Sort(all)
	return without(slices.Compact(all), p.RemovingReplicas)
}

// ListPartitionReassignments tells which partitions move.
func (m *Manager) ListPartitionReassignments(req *kmsg.ListPartitionReassignmentsRequest) Decision {
	resp := kmsg.NewPtrListPartitionReassignmentsResponse()
	resp.Version = req.Version
	list := func(t *metadata.Topic, wanted func(int32) bool) {
		out := kmsg.NewListPartitionReassignmentsResponseTopic()
		out.Topic = t.Name
		for i, p := range t.Partitions {
			if !isReassigning(p) || !wanted(int32(i)) {
				continue
			}
			moving := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
			moving.Partition = int32(i)
			moving.Replicas, moving.AddingReplicas, moving.RemovingReplicas = p.Replicas, p.AddingReplicas, p.RemovingReplicas
			out.Partitions = append(out.Partitions, moving)
		}
		if len(out.Partitions) > 0 {
			resp.Topics = append(resp.Topics, out)
		}
	}
	if req.Topics == nil {
		for t := range m.image.Topics() {
			list(t, func(int32) bool { return true })
		}
	}
	for i := range req.Topics {
		if t := m.image.TopicByName(req.Topics[i].Topic); t != nil {
			list(t, func(p int32) bool { return slices.Contains(req.Topics[i].Partitions, p) })
		}
	}
	return Decision{Reply: resp}
}
