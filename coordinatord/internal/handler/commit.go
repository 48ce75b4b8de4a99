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
	if p.none() {
		return p.response(group.CommitReply{}, errcode.None), nil
	}
	reply, code, err := do[group.CommitReply](ctx, h, c, p.command)
	if err != nil {
		return nil, err
	}
	return p.response(reply, code), nil
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
		if !prepared[i].none() {
			commands = append(commands, prepared[i].command)
		}
	}
	replies, errs := h.shards.DoEach(ctx, shard, e.GetMetadataOffset(), commands)
	responses := make([][]byte, len(prepared))
	next := 0
	for i := range prepared {
		var reply group.CommitReply
		var code errcode.Code
		if !prepared[i].none() {
			if err := errs[next]; err != nil && elsewhere(ctx, err) {
				return nil, err
			}
			reply, _ = replies[next].(group.CommitReply)
			code = codeOf(errs[next])
			next++
		}
		response := prepared[i].response(reply, code)
		response.SetVersion(version)
		responses[i] = response.AppendTo(nil)
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
	command *group.CommitOffsets
	answers
}

// response is the answer to the request when the shard has answered.
func (p *preparedCommit) response(reply group.CommitReply, code errcode.Code) *kmsg.OffsetCommitResponse {
	topics := p.finish(reply, code)
	r := kmsg.NewPtrOffsetCommitResponse()
	r.Topics = make([]kmsg.OffsetCommitResponseTopic, len(topics))
	for i, t := range topics {
		to := &r.Topics[i]
		to.Topic, to.TopicID = t.topic, t.id
		to.Partitions = make([]kmsg.OffsetCommitResponseTopicPartition, len(t.partitions))
		for j, x := range t.partitions {
			to.Partitions[j] = kmsg.OffsetCommitResponseTopicPartition{Partition: x.partition, ErrorCode: int16(x.code)}
		}
	}
	return r
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
	p := preparedCommit{command: &group.CommitOffsets{
		Group: req.Group, MemberID: req.MemberID, InstanceID: req.InstanceID, Generation: req.Generation,
		APIVersion: req.Version, RetentionMs: req.RetentionTimeMillis,
	}}
	for i := range req.Topics {
		p.addTopic(image, req.Version, &req.Topics[i])
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

// addTopic adds the offsets of one topic to the command, and refuses those that cannot be committed by anyone.
func (p *preparedCommit) addTopic(image metadata.Reader, version int16, t *kmsg.OffsetCommitRequestTopic) {
	topic := commitTopic(image, version, t)
	if topic == nil {
		p.of(t.Topic, t.TopicID) // also without any partition
	}
	asked := make([]partitionCode, 0, len(t.Partitions))
	for j := range t.Partitions {
		x := &t.Partitions[j]
		o, code := offsetToCommit(topic, version >= commitTopicIDs, x.Partition)
		if code != errcode.None {
			p.refuse(t.Topic, t.TopicID, x.Partition, code)
			continue
		}
		o.Offset, o.LeaderEpoch = x.Offset, x.LeaderEpoch
		if x.Metadata != nil {
			o.Metadata = *x.Metadata
		}
		p.command.Offsets = append(p.command.Offsets, o)
		asked = append(asked, partitionCode{partition: x.Partition})
	}
	p.ask(t.Topic, t.TopicID, asked)
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
	command, all := offsetsToDelete(image, req)
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
	for _, t := range all.finish(reply, code) {
		to := kmsg.OffsetDeleteResponseTopic{Topic: t.topic}
		for _, p := range t.partitions {
			to.Partitions = append(to.Partitions, kmsg.OffsetDeleteResponseTopicPartition{Partition: p.partition, ErrorCode: int16(p.code)})
		}
		r.Topics = append(r.Topics, to)
	}
	return r, nil
}

// offsetsToDelete are those of partitions that exist; the others are refused.
func offsetsToDelete(image metadata.Reader, req *kmsg.OffsetDeleteRequest) (*group.DeleteOffsets, *answers) {
	command, all := &group.DeleteOffsets{Group: req.Group}, &answers{}
	for i := range req.Topics {
		t := &req.Topics[i]
		topic := image.TopicByName(t.Topic)
		if topic == nil {
			all.of(t.Topic, uuid.UUID{})
		}
		var asked []partitionCode
		for j := range t.Partitions {
			p := t.Partitions[j].Partition
			if topic == nil || p < 0 || int(p) >= len(topic.Partitions) {
				all.refuse(t.Topic, uuid.UUID{}, p, errcode.UnknownTopicOrPartition)
				continue
			}
			command.Partitions = append(command.Partitions, offsets.Key{Topic: t.Topic, Partition: p})
			asked = append(asked, partitionCode{partition: p})
		}
		all.ask(t.Topic, uuid.UUID{}, asked)
	}
	return command, all
}

// topicName finds the name of a topic by its id.
func topicName(image metadata.Reader, id uuid.UUID) string {
	if t := image.Topic(id); t != nil {
		return t.Name
	}
	return ""
}
