package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// The first versions of OffsetCommit and OffsetFetch that name topics by id.
const (
	commitTopicIDs = 10
	fetchTopicIDs  = 10
)

// OffsetCommit 2-10.
//
//	v2-v4 retention   v6 leader epoch   v7 static members   v8 flexible   v9 GROUP_ID_NOT_FOUND, members of newer groups
//	v10 topic ids
//
// Offsets of topics and partitions that do not exist are refused one by one; the group is asked about the others only.
func (h *Handler) offsetCommit(ctx context.Context, c call, req *kmsg.OffsetCommitRequest) (kmsg.Response, error) {
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool {
		for i := range req.Topics {
			if commitTopic(image, req.Version, &req.Topics[i]) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	command := &group.CommitOffsets{
		Group: req.Group, MemberID: req.MemberID, InstanceID: req.InstanceID, Generation: req.Generation,
		APIVersion: req.Version, RetentionMs: req.RetentionTimeMillis,
	}
	r := kmsg.NewPtrOffsetCommitResponse()
	r.Topics = make([]kmsg.OffsetCommitResponseTopic, len(req.Topics))
	// asked are the places in the response of the offsets in the command.
	var asked []*int16
	for i := range req.Topics {
		asked = h.addCommits(image, req.Version, &req.Topics[i], &r.Topics[i], command, asked)
	}
	if len(asked) == 0 {
		return r, nil
	}
	reply, code, err := do[group.CommitReply](ctx, h, c, command)
	if err != nil {
		return nil, err
	}
	if code == errcode.None {
		code = reply.Code
	}
	for i, place := range asked {
		*place = int16(code)
		if code == errcode.None {
			*place = int16(reply.Codes[i])
		}
	}
	return r, nil
}

// commitTopic finds the topic that an OffsetCommit names; nil when there is none.
func commitTopic(image metadata.Reader, version int16, t *kmsg.OffsetCommitRequestTopic) *metadata.Topic {
	if version >= commitTopicIDs {
		return image.Topic(t.TopicID)
	}
	return image.TopicByName(t.Topic)
}

// addCommits adds the offsets of one topic to the command, and to the response with what is wrong with them already.
func (h *Handler) addCommits(image metadata.Reader, version int16, t *kmsg.OffsetCommitRequestTopic, to *kmsg.OffsetCommitResponseTopic, command *group.CommitOffsets, asked []*int16) []*int16 {
	to.Topic, to.TopicID = t.Topic, t.TopicID
	to.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(t.Partitions))
	topic := commitTopic(image, version, t)
	for j := range t.Partitions {
		p, answer := &t.Partitions[j], &to.Partitions[j]
		answer.Partition = p.Partition
		switch {
		case topic == nil && version >= commitTopicIDs:
			answer.ErrorCode = int16(errcode.UnknownTopicId)
			continue
		case topic == nil || p.Partition < 0 || int(p.Partition) >= len(topic.Partitions):
			answer.ErrorCode = int16(errcode.UnknownTopicOrPartition)
			continue
		}
		o := group.OffsetToCommit{
			Key: offsets.Key{Topic: topic.Name, Partition: p.Partition}, TopicID: topic.ID, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch,
		}
		if p.Metadata != nil {
			o.Metadata = *p.Metadata
		}
		command.Offsets = append(command.Offsets, o)
		asked = append(asked, &answer.ErrorCode)
	}
	return asked
}

// OffsetDelete 0.
func (h *Handler) offsetDelete(ctx context.Context, c call, req *kmsg.OffsetDeleteRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrOffsetDeleteResponse()
	if req.Group == "" {
		r.ErrorCode = int16(errcode.InvalidGroupId)
		return r, nil
	}
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool {
		for i := range req.Topics {
			if image.TopicByName(req.Topics[i].Topic) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	command := &group.DeleteOffsets{Group: req.Group}
	topics := make([]kmsg.OffsetDeleteResponseTopic, len(req.Topics))
	var asked []*int16
	for i := range req.Topics {
		t, to := &req.Topics[i], &topics[i]
		to.Topic, to.Partitions = t.Topic, make([]kmsg.OffsetDeleteResponseTopicPartition, len(t.Partitions))
		topic := image.TopicByName(t.Topic)
		for j := range t.Partitions {
			p, answer := t.Partitions[j].Partition, &to.Partitions[j]
			answer.Partition = p
			if topic == nil || p < 0 || int(p) >= len(topic.Partitions) {
				answer.ErrorCode = int16(errcode.UnknownTopicOrPartition)
				continue
			}
			command.Partitions = append(command.Partitions, offsets.Key{Topic: t.Topic, Partition: p})
			asked = append(asked, &answer.ErrorCode)
		}
	}
	reply, code, err := do[group.CommitReply](ctx, h, c, command)
	if err != nil {
		return nil, err
	}
	if code == errcode.None {
		code = reply.Code
	}
	if code != errcode.None {
		r.ErrorCode = int16(code)
		return r, nil
	}
	for i, place := range asked {
		*place = int16(reply.Codes[i])
	}
	r.Topics = topics
	return r, nil
}

// topicName finds the name of a topic by its id.
func topicName(image metadata.Reader, id uuid.UUID) string {
	if t := image.Topic(id); t != nil {
		return t.Name
	}
	return ""
}
