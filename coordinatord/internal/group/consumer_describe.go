package group

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/assignor"
	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
)

// The types of members, as ConsumerGroupDescribe shows them.
const (
	memberClassic  int8 = 0
	memberConsumer int8 = 1
)

// describeConsumerGroups describes consumer groups.
func (m *Machine) describeConsumerGroups(c *DescribeConsumerGroups) []kmsg.ConsumerGroupDescribeResponseGroup {
	list := make([]kmsg.ConsumerGroupDescribeResponseGroup, len(c.IDs))
	for i, id := range c.IDs {
		g, err := m.consumerGroupByID(id)
		if err != nil {
			text := errcode.Text(err)
			list[i] = kmsg.NewConsumerGroupDescribeResponseGroup()
			list[i].Group, list[i].ErrorCode, list[i].ErrorMessage = id, int16(errcode.Of(err)), &text
			continue
		}
		list[i] = m.describeConsumerGroup(g)
	}
	return list
}

func (m *Machine) describeConsumerGroup(g *consumerGroup) kmsg.ConsumerGroupDescribeResponseGroup {
	d := kmsg.NewConsumerGroupDescribeResponseGroup()
	d.Group, d.State, d.Epoch, d.AssignmentEpoch = g.ID, g.State(), g.Epoch, g.TargetEpoch
	d.AssignorName = g.Counts.PreferredAssignor(g.Counts, m.config.Consumer.Assignors[0])
	for _, mem := range g.SortedMembers() {
		x := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		x.MemberID, x.MemberEpoch, x.InstanceID, x.RackID = mem.ID, mem.Epoch, mem.InstanceID, mem.RackID
		x.ClientID, x.ClientHost, x.SubscribedTopics, x.SubscribedTopicRegex = mem.ClientID, mem.ClientHost, mem.Topics, &mem.Regex
		x.Assignment.TopicPartitions = m.named(heldBy(mem))
		x.TargetAssignment.TopicPartitions = m.named(g.Target[mem.ID])
		x.MemberType = memberConsumer
		if mem.Classic != nil {
			x.MemberType = memberClassic
		}
		d.Members = append(d.Members, x)
	}
	return d
}

// heldBy is what a member has, including what it must still give up.
func heldBy(mem *consumer.Member) assignor.Partitions {
	held := mem.Assigned.Partitions()
	for topic, partitions := range mem.PendingRemoval {
		held[topic] = slices.AppendSeq(held[topic], maps.Keys(partitions))
		slices.Sort(held[topic])
	}
	return held
}

// named are partitions with the names of their topics; topics that do not exist any more are left out.
func (m *Machine) named(p assignor.Partitions) []kmsg.AssignmentTopicPartition {
	list := []kmsg.AssignmentTopicPartition{}
	for _, topic := range sortedTopics(p) {
		if t := m.image.Topic(topic); t != nil {
			x := kmsg.NewAssignmentTopicPartition()
			x.TopicID, x.Topic, x.Partitions = topic, t.Name, p[topic]
			list = append(list, x)
		}
	}
	return list
}
