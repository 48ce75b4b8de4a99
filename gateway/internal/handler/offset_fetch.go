package handler

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
)

// OffsetFetch (9), versions 1 to 10: the committed offsets of groups.
//
// Up to version 7 a request is about one group and travels byte for byte. From version 8 on it is about several, each of
// which has its own coordinator: the request is taken apart and the answers are put together in its order. Version 10 names
// topics by id.

func (h *Handlers) offsetFetch(ctx context.Context, r *Request) (*wire.Message, error) {
	if r.Version < 8 {
		return toGroup(offsetFetchGroup, offsetFetchFailed)(h, ctx, r)
	}
	return on((*Handlers).offsetFetchSeveral)(h, ctx, r)
}

func offsetFetchGroup(q *kmsg.OffsetFetchRequest) string { return q.Group }

// offsetFetchFailed has the error in each partition in version 1, which has no other place for it.
func offsetFetchFailed(q *kmsg.OffsetFetchRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if q.Version >= 2 {
		resp.ErrorCode = int16(code)
		return resp
	}
	for _, t := range q.Topics {
		out := kmsg.NewOffsetFetchResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			o := kmsg.NewOffsetFetchResponseTopicPartition()
			o.Partition, o.Offset, o.ErrorCode, o.Metadata = p, -1, int16(code), kmsg.StringPtr("")
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (h *Handlers) offsetFetchSeveral(ctx context.Context, r *Request, req *kmsg.OffsetFetchRequest) (kmsg.Response, error) {
	names := make([]string, len(req.Groups))
	for i := range req.Groups {
		names[i] = req.Groups[i].Group
	}
	parts := h.splitGroups(ctx, r, names)
	answers := make([]*kmsg.OffsetFetchResponseGroup, len(names))
	h.askGroups(ctx, r, parts, func(groups []int) []byte {
		if len(parts) == 1 {
			return r.Body
		}
		part := *req
		part.Groups = make([]kmsg.OffsetFetchRequestGroup, len(groups))
		for k, i := range groups {
			part.Groups[k] = req.Groups[i]
		}
		return part.AppendTo(nil)
	}, func(p *groupPart, reply []byte) error {
		resp := kmsg.NewPtrOffsetFetchResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(reply); err != nil || len(resp.Groups) != len(p.groups) {
			return fmt.Errorf("answer to OffsetFetch with %d groups, not %d: %w", len(resp.Groups), len(p.groups), err)
		}
		for k, i := range p.groups {
			answers[i] = &resp.Groups[k]
		}
		return nil
	})
	resp := kmsg.NewPtrOffsetFetchResponse()
	codes := groupCodes(len(names), parts)
	for i, name := range names {
		if answers[i] != nil {
			resp.Groups = append(resp.Groups, *answers[i])
			continue
		}
		out := kmsg.NewOffsetFetchResponseGroup()
		out.Group, out.ErrorCode = name, int16(codes[i])
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}
