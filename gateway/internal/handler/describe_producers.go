package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// DescribeProducers (61), version 0: the producers that write to partitions, as their leaders know them.
//
// Kafka answers for the partitions that the asked node leads; here each leader is asked for its own.

func (h *Handlers) describeProducers(ctx context.Context, r *Request, q *kmsg.DescribeProducersRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrDescribeProducersResponse()
	img := h.Image()
	// places are the partitions of each node, in the order in which they are asked for.
	places := make(map[int32][]*kmsg.DescribeProducersResponseTopicPartition)
	asked := make(map[int32]*kmsg.DescribeProducersRequest)
	resp.Topics = make([]kmsg.DescribeProducersResponseTopic, len(q.Topics))
	for i, t := range q.Topics {
		out := &resp.Topics[i]
		out.Default()
		out.Topic = t.Topic
		out.Partitions = make([]kmsg.DescribeProducersResponseTopicPartition, len(t.Partitions))
		for j, p := range t.Partitions {
			place := &out.Partitions[j]
			place.Default()
			place.Partition = p
			node, code := leaderOf(img, t.Topic, p)
			if code != errcode.None {
				failProducers(place, code)
				continue
			}
			places[node] = append(places[node], place)
			if asked[node] == nil {
				asked[node] = kmsg.NewPtrDescribeProducersRequest()
			}
			// One entry for each partition keeps the answers in the order of the places.
			asked[node].Topics = append(asked[node].Topics, kmsg.DescribeProducersRequestTopic{Topic: t.Topic, Partitions: []int32{p}})
		}
	}
	for node, one := range asked {
		h.describeProducersAt(ctx, r, node, one, places[node])
	}
	return resp, nil
}

// leaderOf is the node that leads a partition by name, or why there is none.
func leaderOf(img metadata.Reader, topic string, partition int32) (int32, errcode.Code) {
	if !validTopicName(topic) {
		return 0, errcode.InvalidTopicException
	}
	t := img.TopicByName(topic)
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return 0, errcode.UnknownTopicOrPartition
	}
	if leader := t.Partitions[partition].Leader; leader >= 0 {
		return leader, errcode.None
	}
	return 0, errcode.NotLeaderOrFollower
}

func failProducers(place *kmsg.DescribeProducersResponseTopicPartition, code errcode.Code) {
	text := code.Message()
	place.ErrorCode, place.ErrorMessage = int16(code), &text
}

func (h *Handlers) describeProducersAt(ctx context.Context, r *Request, node int32, q *kmsg.DescribeProducersRequest, places []*kmsg.DescribeProducersResponseTopicPartition) {
	resp := kmsg.NewPtrDescribeProducersResponse()
	err := h.askNode(ctx, r, node, q, resp)
	for i, place := range places {
		switch {
		case err != nil:
			failProducers(place, errcode.NotLeaderOrFollower)
		case i < len(resp.Topics) && len(resp.Topics[i].Partitions) == 1:
			*place = resp.Topics[i].Partitions[0]
		default:
			failProducers(place, errcode.UnknownServerError)
		}
	}
}
