package handler

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	"chancery/services/metadata"
)

// offsetCommits answers OffsetCommits that a client has pipelined. Those of one shard go to its owner together, which carries
// them out in their order: so they cost little more than one.
func (h *Handlers) offsetCommits(ctx context.Context, rs []*Request) ([]*wire.Message, error) {
	queries := make([]kmsg.OffsetCommitRequest, len(rs))
	groups := make([]string, 0, len(rs))
	var malformed error
	for i, r := range rs {
		q := &queries[i]
		q.Version = r.Version
		if err := q.ReadFrom(r.Body); err != nil {
			rs, malformed = rs[:i], wire.ErrMalformed
			break
		}
		groups = append(groups, q.Group)
	}
	if len(rs) == 0 {
		return nil, malformed
	}
	answers := make([]*wire.Message, len(rs))
	began := h.Now()
	parts := h.splitGroups(ctx, rs[0], groups)
	var wg sync.WaitGroup
	for i := range parts[1:] {
		wg.Go(func() { h.commitPart(ctx, rs, &parts[1+i], answers) })
	}
	if len(parts) > 0 {
		h.commitPart(ctx, rs, &parts[0], answers)
	}
	wg.Wait()
	waited := h.Now().Sub(began)
	codes := groupCodes(len(rs), parts)
	for i, r := range rs {
		r.Waited += waited
		if answers[i] == nil {
			answers[i] = h.encode(r, offsetCommitFailed(&queries[i], codes[i]))
		}
	}
	return answers, malformed
}

// commitPart has the owner of one shard carry out its part of the requests.
func (h *Handlers) commitPart(ctx context.Context, rs []*Request, p *groupPart, answers []*wire.Message) {
	first := rs[p.groups[0]]
	e := h.envelope(first, first.Body)
	for _, i := range p.groups[1:] {
		e.More = append(e.More, rs[i].Body)
	}
	reply, err := h.askOwner(ctx, first, metadata.GroupShard, p.shard, e)
	for k, i := range p.groups {
		body := reply.GetBody()
		switch {
		case err != nil:
		case k > 0 && k <= len(reply.GetMore()):
			body = reply.GetMore()[k-1]
		case k > 0:
			// The coordinator is of an older release, which knows one request at a time only.
			body, err = h.askShardOf(ctx, rs[i], metadata.GroupShard, p.shard, rs[i].Body)
		}
		if err != nil {
			p.err = err
			return
		}
		m := h.newMessage(rs[i])
		m.B = append(m.B, body...)
		answers[i] = m
	}
}
