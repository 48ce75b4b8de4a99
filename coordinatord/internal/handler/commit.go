package handler

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/offsets"
	commonv1 "chancery/proto/common/v1"
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
	p, err := h.prepareCommit(ctx, c, req)
	if err != nil {
		return nil, err
	}
	if len(p.asked) == 0 {
		return p.response, nil
	}
	reply, code, err := do[group.CommitReply](ctx, h, c, p.command)
	if err != nil {
		return nil, err
	}
	p.answer(reply, code)
	return p.response, nil
}

// HandleSeveral answers an envelope with several OffsetCommits, which are carried out in their order, with the bodies of the
// responses. An error says that there is no response to any of them, as with Handle; some may have been carried out, which
// does not matter to who sends all of them again.
func (h *Handler) HandleSeveral(ctx context.Context, shard int32, e *commonv1.Envelope) ([][]byte, error) {
	key, version := kmsg.Key(e.GetApiKey()), int16(e.GetApiVersion())
	if row := h.apis[key]; key != kmsg.OffsetCommit || version < row.min || version > row.max {
		return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("several %s v%d are not served by coordinators", key.Name(), version))
	}
	c := call{shard: shard, envelope: e}
	prepared := make([]preparedCommit, 1+len(e.GetMore()))
	commands := make([]group.Command, 0, len(prepared))
	for i := range prepared {
		body := e.GetBody()
		if i > 0 {
			body = e.GetMore()[i-1]
		}
		req := kmsg.NewPtrOffsetCommitRequest()
		err := read(req, version, body)
		if err == nil {
			prepared[i], err = h.prepareCommit(ctx, c, req)
		}
		if err != nil {
			return nil, err
		}
		if len(prepared[i].asked) > 0 {
			commands = append(commands, prepared[i].command)
		}
	}
	replies, errs := h.shards.DoEach(ctx, shard, e.GetMetadataOffset(), commands)
	responses := make([][]byte, len(prepared))
	next := 0
	for i := range prepared {
		p := &prepared[i]
		if len(p.asked) > 0 {
			if err := errs[next]; err != nil && elsewhere(ctx, err) {
				return nil, err
			}
			reply, _ := replies[next].(group.CommitReply)
			p.answer(reply, codeOf(errs[next]))
			next++
		}
		p.response.SetVersion(version)
		responses[i] = p.response.AppendTo(nil)
	}
	return responses, nil
}

// codeOf is the code of an error, None without one.
func codeOf(err error) errcode.Code {
	if err == nil {
		return errcode.None
	}
	return errcode.Of(err)
}

// preparedCommit is an OffsetCommit about to be carried out.
type preparedCommit struct {
	command  *group.CommitOffsets
	response *kmsg.OffsetCommitResponse
	// asked are the places in the response of the offsets in the command; without any the shard need not be asked.
	asked []*int16
}

// answer puts into the response what the shard has answered.
func (p *preparedCommit) answer(reply group.CommitReply, code errcode.Code) {
	if code == errcode.None {
		code = reply.Code
	}
	for i, place := range p.asked {
		*place = int16(code)
		if code == errcode.None {
			*place = int16(reply.Codes[i])
		}
	}
}

// prepareCommit checks the topics of an OffsetCommit.
func (h *Handler) prepareCommit(ctx context.Context, c call, req *kmsg.OffsetCommitRequest) (preparedCommit, error) {
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool {
		for i := range req.Topics {
			if commitTopic(image, req.Version, &req.Topics[i]) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return preparedCommit{}, err
	}
	p := preparedCommit{response: kmsg.NewPtrOffsetCommitResponse(), command: &group.CommitOffsets{
		Group: req.Group, MemberID: req.MemberID, InstanceID: req.InstanceID, Generation: req.Generation,
		APIVersion: req.Version, RetentionMs: req.RetentionTimeMillis,
	}}
	p.response.Topics = make([]kmsg.OffsetCommitResponseTopic, len(req.Topics))
	for i := range req.Topics {
		p.asked = h.addCommits(image, req.Version, &req.Topics[i], &p.response.Topics[i], p.command, p.asked)
	}
	return p, nil
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
		o, code := offsetToCommit(topic, version >= commitTopicIDs, p.Partition)
		if code != errcode.None {
			answer.ErrorCode = int16(code)
			continue
		}
		o.Offset, o.LeaderEpoch = p.Offset, p.LeaderEpoch
		if p.Metadata != nil {
			o.Metadata = *p.Metadata
		}
		command.Offsets = append(command.Offsets, o)
		asked = append(asked, &answer.ErrorCode)
	}
	return asked
}

// offsetToCommit begins an offset of a partition; the code tells that there is no such partition. Topic is nil when there is
// none of the name or, if byID, of the id that was given.
func offsetToCommit(topic *metadata.Topic, byID bool, partition int32) (group.OffsetToCommit, errcode.Code) {
	switch {
	case topic == nil && byID:
		return group.OffsetToCommit{}, errcode.UnknownTopicId
	case topic == nil || partition < 0 || int(partition) >= len(topic.Partitions):
		return group.OffsetToCommit{}, errcode.UnknownTopicOrPartition
	}
	return group.OffsetToCommit{Key: offsets.Key{Topic: topic.Name, Partition: partition}, TopicID: topic.ID}, errcode.None
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
