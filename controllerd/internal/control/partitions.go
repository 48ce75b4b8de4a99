package control

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// noBrokerEpoch stands for an epoch that the sender does not know.
const noBrokerEpoch = -1

// AlterPartition changes the ISRs of partitions as their leader asks.
func (m *Manager) AlterPartition(req *kmsg.AlterPartitionRequest) Decision {
	resp := kmsg.NewPtrAlterPartitionResponse()
	resp.Version = req.Version
	if len(req.Topics) == 0 {
		return Decision{Reply: resp} // Whoever asks for nothing gets it.
	}
	if _, err := m.checkBrokerEpoch(req.BrokerID, req.BrokerEpoch); err != nil {
		resp.ErrorCode, _ = fail(err)
		return Decision{Reply: resp}
	}
	d := Decision{Reply: resp}
	for i := range req.Topics {
		in := &req.Topics[i]
		out := kmsg.NewAlterPartitionResponseTopic()
		out.TopidID = in.TopicID
		t := m.image.Topic(in.TopicID)
		for j := range in.Partitions {
			p := kmsg.NewAlterPartitionResponseTopicPartition()
			p.Partition = in.Partitions[j].Partition
			if t == nil {
				p.ErrorCode = int16(errcode.UnknownTopicId)
			} else if record := m.alterPartition(req, t, &in.Partitions[j], &p); record != nil {
				d.Records = append(d.Records, record)
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return d
}

// alterPartition gives the record of one partition's change, if any, and fills in its part of the answer.
func (m *Manager) alterPartition(req *kmsg.AlterPartitionRequest, t *metadata.Topic, in *kmsg.AlterPartitionRequestTopicPartition,
	out *kmsg.AlterPartitionResponseTopicPartition) metarecord.Record {
	isr, epochs := proposedISR(req.Version, in)
	if code := m.checkAlterPartition(req.BrokerID, t, in, isr, epochs); code != errcode.None {
		out.ErrorCode = int16(code)
		return nil
	}
	config := m.topicConfig(t.Name)
	c := m.newChange(t, in.Partition, m.isActive, m.minISR(t, config))
	if config.UncleanLeaderElectionEnable {
		c.election = electUnclean
	}
	c.isr = isr
	c.recovering = in.LeaderRecoveryState == metarecord.Recovering
	after := t.Partitions[in.Partition]
	r := c.record()
	if r != nil {
		// A reassignment that this completes may take the leadership from the sender.
		if r.Leader != req.BrokerID && r.Leader != metarecord.NoLeaderChange {
			out.ErrorCode = int16(errcode.NewLeaderElected)
			return r
		}
		after = altered(after, r)
	}
	out.LeaderID, out.LeaderEpoch = after.Leader, after.LeaderEpoch
	out.ISR, out.PartitionEpoch = after.ISR, after.PartitionEpoch
	if after.RecoveringUnclean {
		out.LeaderRecoveryState = metarecord.Recovering
	}
	if r == nil {
		return nil
	}
	return r
}

// altered is how a partition's leader sees it after a change that keeps it the leader.
func altered(p *metadata.Partition, r *metarecord.PartitionChangeRecord) *metadata.Partition {
	q := *p
	q.PartitionEpoch++
	if r.Leader != metarecord.NoLeaderChange {
		q.LeaderEpoch++
	}
	if r.ISR != nil {
		q.ISR = r.ISR
	}
	if r.LeaderRecoveryState != metarecord.RecoveryNoChange {
		q.RecoveringUnclean = r.LeaderRecoveryState == metarecord.Recovering
	}
	return &q
}

// proposedISR gives the ISR that a leader asks for, and the epoch of each node in it as the leader knows it.
func proposedISR(version int16, in *kmsg.AlterPartitionRequestTopicPartition) (isr []int32, epochs []int64) {
	if version < 3 {
		for _, n := range in.NewISR {
			isr, epochs = append(isr, n), append(epochs, noBrokerEpoch)
		}
		return isr, epochs
	}
	for i := range in.NewEpochISR {
		isr, epochs = append(isr, in.NewEpochISR[i].BrokerID), append(epochs, in.NewEpochISR[i].BrokerEpoch)
	}
	return isr, epochs
}

func (m *Manager) checkAlterPartition(leader int32, t *metadata.Topic, in *kmsg.AlterPartitionRequestTopicPartition, isr []int32, epochs []int64) errcode.Code {
	if in.Partition < 0 || int(in.Partition) >= len(t.Partitions) {
		return errcode.UnknownTopicOrPartition
	}
	p := t.Partitions[in.Partition]
	switch {
	case in.LeaderEpoch > p.LeaderEpoch || in.PartitionEpoch > p.PartitionEpoch:
		// The sender knows more than this controller, which then cannot be the active one.
		return errcode.NotController
	case in.LeaderEpoch < p.LeaderEpoch:
		return errcode.FencedLeaderEpoch
	case leader != p.Leader:
		return errcode.InvalidRequest
	case in.PartitionEpoch < p.PartitionEpoch:
		return errcode.InvalidUpdateVersion
	case !isISROf(p, isr) || !slices.Contains(isr, leader):
		return errcode.InvalidRequest
	case in.LeaderRecoveryState != metarecord.Recovered && in.LeaderRecoveryState != metarecord.Recovering:
		return errcode.InvalidRequest
	case in.LeaderRecoveryState == metarecord.Recovering && (len(isr) > 1 || !p.RecoveringUnclean):
		return errcode.InvalidRequest
	}
	for i, n := range isr {
		b := m.image.Broker(n)
		if b == nil || b.InControlledShutdown || b.Fenced || epochs[i] != noBrokerEpoch && epochs[i] != b.Epoch {
			m.logger.Info("refusing an ISR with a node that cannot be in it", "topic", t.Name, "partition", in.Partition, "node", n)
			return errcode.IneligibleReplica
		}
	}
	return errcode.None
}

// isISROf says whether nodes are replicas of a partition, each named once.
func isISROf(p *metadata.Partition, isr []int32) bool {
	for i, n := range isr {
		if !slices.Contains(p.Replicas, n) || slices.Contains(isr[:i], n) {
			return false
		}
	}
	return true
}

// AssignReplicasToDirs takes note of the log directories in which a node keeps its replicas.
func (m *Manager) AssignReplicasToDirs(req *kmsg.AssignReplicasToDirsRequest) Decision {
	resp := kmsg.NewPtrAssignReplicasToDirsResponse()
	resp.Version = req.Version
	b, err := m.checkBrokerEpoch(req.BrokerID, req.BrokerEpoch)
	if err != nil {
		resp.ErrorCode, _ = fail(err)
		return Decision{Reply: resp}
	}
	d := Decision{Reply: resp}
	// Replicas in a directory that is not online any more cannot stay in sync.
	offline := m.newChanges(removal{gone: b.ID, back: metadata.NoLeader, unclean: metadata.NoLeader})
	for i := range req.Directories {
		dir := &req.Directories[i]
		out := kmsg.NewAssignReplicasToDirsResponseDirectory()
		out.ID = dir.ID
		for j := range dir.Topics {
			topic := kmsg.NewAssignReplicasToDirsResponseDirectoryTopic()
			topic.TopicID = dir.Topics[j].TopicID
			for k := range dir.Topics[j].Partitions {
				p := kmsg.NewAssignReplicasToDirsResponseDirectoryTopicPartition()
				p.Partition = dir.Topics[j].Partitions[k].Partition
				record, code := m.assignDirectory(b, topic.TopicID, p.Partition, dir.ID)
				if record != nil {
					d.Records = append(d.Records, record)
				}
				if code == errcode.None && !m.hasOnlineDirectory(b.ID, dir.ID) {
					offline.visit(m.image.Topic(topic.TopicID), p.Partition)
				}
				p.ErrorCode = int16(code)
				topic.Partitions = append(topic.Partitions, p)
			}
			out.Topics = append(out.Topics, topic)
		}
		resp.Directories = append(resp.Directories, out)
	}
	for _, r := range offline.records {
		// The directory is in a record of its own already, which this one must not take back.
		r.(*metarecord.PartitionChangeRecord).Directories = nil
		d.Records = append(d.Records, r)
	}
	return d
}

func (m *Manager) assignDirectory(b *metadata.Broker, topic uuid.UUID, partition int32, dir uuid.UUID) (metarecord.Record, errcode.Code) {
	t := m.image.Topic(topic)
	switch {
	case t == nil:
		return nil, errcode.UnknownTopicId
	case partition < 0 || int(partition) >= len(t.Partitions):
		return nil, errcode.UnknownTopicOrPartition
	case !slices.Contains(t.Partitions[partition].Replicas, b.ID):
		return nil, errcode.NotLeaderOrFollower
	}
	c := m.newChange(t, partition, m.isActive, m.minISR(t, m.topicConfig(t.Name)))
	c.setDirectory(b.ID, dir)
	if r := c.record(); r != nil {
		return r, errcode.None
	}
	return nil, errcode.None
}

// producerIDBlock is how many producer ids are given out at once.
const producerIDBlock = 1000

// AllocateProducerIDs gives a block of producer ids to a node.
func (m *Manager) AllocateProducerIDs(req *kmsg.AllocateProducerIDsRequest, trusted bool) Decision {
	resp := kmsg.NewPtrAllocateProducerIDsResponse()
	resp.Version = req.Version
	// A gateway is no node and has no epoch; a block that it lost is lost, and no harm done.
	if _, err := m.checkBrokerEpoch(req.BrokerID, req.BrokerEpoch); err != nil && (!trusted || req.BrokerEpoch != noBrokerEpoch) {
		resp.ErrorCode, _ = fail(err)
		return Decision{Reply: resp}
	}
	first := m.image.NextProducerID()
	if first > 1<<63-1-producerIDBlock {
		resp.ErrorCode = int16(errcode.UnknownServerError)
		return Decision{Reply: resp}
	}
	resp.ProducerIDStart, resp.ProducerIDLen = first, producerIDBlock
	return Decision{
		Records: []metarecord.Record{&metarecord.ProducerIDsRecord{
			BrokerID: req.BrokerID, BrokerEpoch: req.BrokerEpoch, NextProducerID: first + producerIDBlock,
		}},
		Reply: resp,
	}
}
