package handler

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// DescribeGroups (15), versions 0 to 6, ConsumerGroupDescribe (69), 0 to 1, and DeleteGroups (42), 0 to 3: each group is
// described or deleted by its own coordinator. The answers are in the order of the request; a group that is named twice is
// asked about once.

func (h *Handlers) describeGroups(ctx context.Context, r *Request, req *kmsg.DescribeGroupsRequest) (kmsg.Response, error) {
	names := unique(req.Groups)
	parts := h.splitGroups(ctx, r, names)
	answers := make(map[string]kmsg.DescribeGroupsResponseGroup, len(names))
	h.askGroups(ctx, r, parts, func(groups []int) []byte {
		part := *req
		part.Groups = pick(names, groups)
		return part.AppendTo(nil)
	}, func(_ *groupPart, reply []byte) error {
		resp := kmsg.NewPtrDescribeGroupsResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(reply); err != nil {
			return fmt.Errorf("answer to DescribeGroups: %w", err)
		}
		for _, g := range resp.Groups {
			answers[g.Group] = g
		}
		return nil
	})
	codes := codesByName(names, groupCodes(len(names), parts))
	resp := kmsg.NewPtrDescribeGroupsResponse()
	for _, name := range req.Groups {
		out, ok := answers[name]
		if !ok {
			out = kmsg.NewDescribeGroupsResponseGroup()
			out.Group, out.ErrorCode = name, int16(codes[name])
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}

func (h *Handlers) consumerGroupDescribe(ctx context.Context, r *Request, req *kmsg.ConsumerGroupDescribeRequest) (kmsg.Response, error) {
	names := unique(req.Groups)
	parts := h.splitGroups(ctx, r, names)
	answers := make(map[string]kmsg.ConsumerGroupDescribeResponseGroup, len(names))
	h.askGroups(ctx, r, parts, func(groups []int) []byte {
		part := *req
		part.Groups = pick(names, groups)
		return part.AppendTo(nil)
	}, func(_ *groupPart, reply []byte) error {
		resp := kmsg.NewPtrConsumerGroupDescribeResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(reply); err != nil {
			return fmt.Errorf("answer to ConsumerGroupDescribe: %w", err)
		}
		for i := range resp.Groups {
			answers[resp.Groups[i].Group] = resp.Groups[i]
		}
		return nil
	})
	codes := codesByName(names, groupCodes(len(names), parts))
	resp := kmsg.NewPtrConsumerGroupDescribeResponse()
	for _, name := range req.Groups {
		out, ok := answers[name]
		if !ok {
			out = kmsg.NewConsumerGroupDescribeResponseGroup()
			out.Group, out.ErrorCode = name, int16(codes[name])
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}

func (h *Handlers) deleteGroups(ctx context.Context, r *Request, req *kmsg.DeleteGroupsRequest) (kmsg.Response, error) {
	names := unique(req.Groups)
	parts := h.splitGroups(ctx, r, names)
	answers := make(map[string]kmsg.DeleteGroupsResponseGroup, len(names))
	h.askGroups(ctx, r, parts, func(groups []int) []byte {
		part := *req
		part.Groups = pick(names, groups)
		return part.AppendTo(nil)
	}, func(_ *groupPart, reply []byte) error {
		resp := kmsg.NewPtrDeleteGroupsResponse()
		resp.SetVersion(r.Version)
		if err := resp.ReadFrom(reply); err != nil {
			return fmt.Errorf("answer to DeleteGroups: %w", err)
		}
		for _, g := range resp.Groups {
			answers[g.Group] = g
		}
		return nil
	})
	codes := groupCodes(len(names), parts)
	resp := kmsg.NewPtrDeleteGroupsResponse()
	for i, name := range names {
		out, ok := answers[name]
		if !ok {
			out = kmsg.NewDeleteGroupsResponseGroup()
			out.Group, out.ErrorCode = name, int16(codes[i])
		}
		resp.Groups = append(resp.Groups, out)
	}
	return resp, nil
}

// unique drops what has been there before.
func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	var out []string
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

func pick(names []string, indexes []int) []string {
	out := make([]string, len(indexes))
	for k, i := range indexes {
		out[k] = names[i]
	}
	return out
}

func codesByName(names []string, codes []errcode.Code) map[string]errcode.Code {
	out := make(map[string]errcode.Code, len(names))
	for i, n := range names {
		out[n] = codes[i]
	}
	return out
}
