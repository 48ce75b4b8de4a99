package handler

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
)

// DescribeTopicPartitions (75), version 0: partitions page by page, with eligible leader replicas (KIP-966).
//
// Topics come in the order of their names; no topics means all. The cursor is where the next page begins.

func (h *Handlers) describeTopicPartitions(_ context.Context, _ *Request, req *kmsg.DescribeTopicPartitionsRequest) (kmsg.Response, error) {
	img := h.Image()
	from, names := "", make([]string, 0, len(req.Topics))
	if req.Cursor != nil {
		from = req.Cursor.Topic
	}
	all := len(req.Topics) == 0
	if all {
		for t := range img.Topics() {
			names = append(names, t.Name)
		}
	}
	for _, t := range req.Topics {
		names = append(names, t.Topic)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n < from })
	slices.Sort(names)
	names = slices.Compact(names)
	if req.Cursor != nil && (req.Cursor.Partition < 0 || !all && !slices.Contains(names, from)) {
		return topicPartitionsError(req), nil
	}
	page := partitionsPage{
		img:  img,
		left: max(1, int(min(req.ResponsePartitionLimit, h.config.MaxRequestPartitionSizeLimit))),
		resp: kmsg.NewPtrDescribeTopicPartitionsResponse(),
	}
	for _, name := range names {
		first := int32(0)
		if req.Cursor != nil && name == from {
			first = req.Cursor.Partition
		}
		if !page.add(name, first, all) {
			break
		}
	}
	return page.resp, nil
}

func topicPartitionsError(req *kmsg.DescribeTopicPartitionsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeTopicPartitionsResponse()
	for _, t := range req.Topics {
		answer := kmsg.NewDescribeTopicPartitionsResponseTopic()
		answer.ErrorCode, answer.Topic = int16(errcode.InvalidRequest), &t.Topic
		resp.Topics = append(resp.Topics, answer)
	}
	return resp
}

// partitionsPage is one page in the making.
type partitionsPage struct {
	img  metadata.Reader
	left int
	resp *kmsg.DescribeTopicPartitionsResponse
}

// add puts a topic's partitions from first on into the page; false when the page is full.
func (p *partitionsPage) add(name string, first int32, onlyExisting bool) bool {
	if p.left == 0 {
		p.stopAt(name, 0)
		return false
	}
	out := kmsg.NewDescribeTopicPartitionsResponseTopic()
	out.Topic, out.IsInternal, out.AuthorizedOperations = &name, internaltopic.Is(name), topicOperations
	t := p.img.TopicByName(name)
	if t == nil {
		if onlyExisting {
			return true
		}
		out.ErrorCode = int16(errcode.UnknownTopicOrPartition)
		if !validTopicName(name) {
			out.ErrorCode = int16(errcode.InvalidTopicException)
		}
		p.resp.Topics = append(p.resp.Topics, out)
		return true
	}
	out.TopicID = t.ID
	end := min(len(t.Partitions), int(first)+p.left)
	for i := int(first); i < end; i++ {
		out.Partitions = append(out.Partitions, p.describe(t.Partitions[i], int32(i)))
	}
	p.left -= len(out.Partitions)
	p.resp.Topics = append(p.resp.Topics, out)
	if end < len(t.Partitions) {
		p.stopAt(name, int32(end))
		return false
	}
	return true
}

func (p *partitionsPage) stopAt(name string, partition int32) {
	cursor := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
	cursor.Topic, cursor.Partition = name, partition
	p.resp.NextCursor = &cursor
}

func (p *partitionsPage) describe(part *metadata.Partition, i int32) kmsg.DescribeTopicPartitionsResponseTopicPartition {
	d := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
	d.Partition, d.LeaderID, d.LeaderEpoch = i, part.Leader, part.LeaderEpoch
	if p.img.Broker(part.Leader) == nil {
		d.LeaderID = -1
	}
	d.Replicas, d.ISR = part.Replicas, part.ISR
	// These two may be null in the schema; Kafka gives empty ones.
	d.EligibleLeaderReplicas = append([]int32{}, part.ELR...)
	d.LastKnownELR = append([]int32{}, part.LastKnownELR...)
	d.OfflineReplicas = offlineReplicas(p.img, part)
	return d
}
