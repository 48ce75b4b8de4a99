package handler

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

const (
	// fetchGroupError is the first version of OffsetFetch with an error for the whole group.
	fetchGroupError = 2
	// fetchSeveralGroups is the first one that asks for several groups.
	fetchSeveralGroups = 8
)

// OffsetFetch 1-10.
//
//	v2 all topics, error of the group   v5 leader epoch   v6 flexible   v7 requireStable   v8 several groups
//	v9 member id and epoch, for members of newer groups          v10 topic ids
//
// The groups of one request are all of this shard. Unknown groups, topics and partitions have no offset, which is no error.
func (h *Handler) offsetFetch(ctx context.Context, c call, req *kmsg.OffsetFetchRequest) (kmsg.Response, error) {
	r := kmsg.NewPtrOffsetFetchResponse()
	if req.Version < fetchSeveralGroups {
		g := kmsg.NewOffsetFetchRequestGroup() // of nobody's member
		g.Group = req.Group
		for i := range req.Topics {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.Partitions = req.Topics[i].Topic, req.Topics[i].Partitions
			g.Topics = append(g.Topics, t)
		}
		if req.Topics != nil && g.Topics == nil {
			g.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
		}
		answer, err := h.fetchGroup(ctx, c, req, &g)
		if err != nil {
			return nil, err
		}
		r.ErrorCode = answer.ErrorCode
		for i := range answer.Topics {
			r.Topics = append(r.Topics, withoutGroup(&answer.Topics[i]))
		}
		return r, nil
	}
	for i := range req.Groups {
		answer, err := h.fetchGroup(ctx, c, req, &req.Groups[i])
		if err != nil {
			return nil, err
		}
		r.Groups = append(r.Groups, answer)
	}
	return r, nil
}

// withoutGroup is the form of versions with one group.
func withoutGroup(t *kmsg.OffsetFetchResponseGroupTopic) kmsg.OffsetFetchResponseTopic {
	to := kmsg.NewOffsetFetchResponseTopic()
	to.Topic = t.Topic
	for _, p := range t.Partitions {
		x := kmsg.NewOffsetFetchResponseTopicPartition()
		x.Partition, x.Offset, x.LeaderEpoch, x.Metadata, x.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
		to.Partitions = append(to.Partitions, x)
	}
	return to
}

// fetchGroup answers for one group.
func (h *Handler) fetchGroup(ctx context.Context, c call, req *kmsg.OffsetFetchRequest, g *kmsg.OffsetFetchRequestGroup) (kmsg.OffsetFetchResponseGroup, error) {
	answer := kmsg.NewOffsetFetchResponseGroup()
	answer.Group = g.Group
	image, err := h.imageKnowing(ctx, c, func(image metadata.Reader) bool {
		for i := range g.Topics {
			if req.Version >= fetchTopicIDs && image.Topic(g.Topics[i].TopicID) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return answer, err
	}
	command := &group.FetchOffsets{
		Group: g.Group, RequireStable: req.RequireStable, All: g.Topics == nil, MemberID: g.MemberID, MemberEpoch: g.MemberEpoch,
	}
	for i := range g.Topics {
		t := &g.Topics[i]
		if req.Version >= fetchTopicIDs {
			t.Topic = topicName(image, t.TopicID)
			if t.Topic == "" {
				continue
			}
		}
		for _, p := range t.Partitions {
			command.Partitions = append(command.Partitions, group.PartitionToFetch{
				Key: offsets.Key{Topic: t.Topic, Partition: p}, TopicID: t.TopicID,
			})
		}
	}
	reply, code, err := do[group.FetchReply](ctx, h, c, command)
	if code == errcode.None {
		code = reply.Code
	}
	switch {
	case err != nil:
		return answer, err
	case code != errcode.None && req.Version >= fetchGroupError:
		answer.ErrorCode = int16(code)
	case command.All:
		answer.Topics = allTopics(image, req.Version, reply.Offsets)
	default:
		answer.Topics = askedTopics(req.Version, g.Topics, reply.Offsets, code)
	}
	return answer, nil
}

func fetchedPartition(f group.FetchedOffset) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = f.Key.Partition, f.Offset, f.LeaderEpoch, &f.Metadata, int16(f.Code)
	return p
}

// askedTopics puts the offsets in the order of the request. A code other than None is every partition's.
func askedTopics(version int16, topics []kmsg.OffsetFetchRequestGroupTopic, fetched []group.FetchedOffset, code errcode.Code) []kmsg.OffsetFetchResponseGroupTopic {
	out := make([]kmsg.OffsetFetchResponseGroupTopic, len(topics))
	next := 0
	for i := range topics {
		t, to := &topics[i], &out[i]
		to.Topic, to.TopicID = t.Topic, t.TopicID
		unknown := version >= fetchTopicIDs && t.Topic == ""
		for _, p := range t.Partitions {
			f := group.FetchedOffset{Key: offsets.Key{Partition: p}, Offset: -1, LeaderEpoch: -1, Code: code}
			switch {
			case unknown:
				f.Code = errcode.UnknownTopicId
			case code == errcode.None:
				f = fetched[next]
				next++
			}
			to.Partitions = append(to.Partitions, fetchedPartition(f))
		}
	}
	return out
}

// allTopics puts all offsets of a group in order. Topics that have no id any more cannot be told by id.
func allTopics(image metadata.Reader, version int16, fetched []group.FetchedOffset) []kmsg.OffsetFetchResponseGroupTopic {
	slices.SortFunc(fetched, func(a, b group.FetchedOffset) int {
		return cmp.Or(cmp.Compare(a.Key.Topic, b.Key.Topic), cmp.Compare(a.Key.Partition, b.Key.Partition))
	})
	var out []kmsg.OffsetFetchResponseGroupTopic
	for i, f := range fetched {
		if i == 0 || fetched[i-1].Key.Topic != f.Key.Topic {
			t := kmsg.NewOffsetFetchResponseGroupTopic()
			t.Topic = f.Key.Topic
			if topic := image.TopicByName(f.Key.Topic); topic != nil {
				t.TopicID = topic.ID
			}
			out = append(out, t)
		}
		last := &out[len(out)-1]
		last.Partitions = append(last.Partitions, fetchedPartition(f))
	}
	if version < fetchTopicIDs {
		return out
	}
	return slices.DeleteFunc(out, func(t kmsg.OffsetFetchResponseGroupTopic) bool { return t.TopicID == [16]byte{} })
}
