package node

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/storaged/internal/replica"
)

// DescribeProducers (61), version 0: the producers that a partition's leader knows.

func (n *Node) describeProducers(req *kmsg.DescribeProducersRequest) *kmsg.DescribeProducersResponse {
	resp := kmsg.NewPtrDescribeProducersResponse()
	for _, t := range req.Topics {
		out := kmsg.NewDescribeProducersResponseTopic()
		out.Topic = t.Topic
		for _, id := range t.Partitions {
			out.Partitions = append(out.Partitions, n.describePartitionProducers(t.Topic, id))
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (n *Node) describePartitionProducers(topic string, id int32) kmsg.DescribeProducersResponseTopicPartition {
	out := kmsg.NewDescribeProducersResponseTopicPartition()
	out.Partition = id
	r, code := n.leaderByName(topic, id)
	if code != errcode.None {
		text := code.Message()
		out.ErrorCode, out.ErrorMessage = int16(code), &text
		return out
	}
	for _, p := range r.Producers() {
		a := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
		a.ProducerID, a.ProducerEpoch = p.ID, int32(p.Epoch)
		a.LastSequence, a.LastTimestamp = p.LastSequence, p.LastTimestampMs
		a.CoordinatorEpoch, a.CurrentTxnStartOffset = p.CoordinatorEpoch, p.TxnStart
		out.ActiveProducers = append(out.ActiveProducers, a)
	}
	return out
}

func (n *Node) leaderByName(topic string, id int32) (*replica.Replica, errcode.Code) {
	t := n.applied.load().TopicByName(topic)
	if t == nil {
		return nil, errcode.UnknownTopicOrPartition
	}
	return n.leader(t.ID[:], id)
}
