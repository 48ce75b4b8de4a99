package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
)

// request is a pointer to a request of kmsg.
type request[Q any] interface {
	*Q
	kmsg.Request
}

// on makes a Handle of a method that takes a decoded request: it decodes, and encodes the response in the request's
// version. A nil response means that there is no answer.
func on[Q any, PQ request[Q]](f func(*Handlers, context.Context, *Request, PQ) (kmsg.Response, error)) func(*Handlers, context.Context, *Request) (*wire.Message, error) {
	return func(h *Handlers, ctx context.Context, r *Request) (*wire.Message, error) {
		q := PQ(new(Q))
		q.SetVersion(r.Version)
		if err := q.ReadFrom(r.Body); err != nil {
			return nil, wire.ErrMalformed
		}
		resp, err := f(h, ctx, r, q)
		if err != nil || resp == nil {
			return nil, err
		}
		return h.encode(r, resp), nil
	}
}

// encode makes the response frame.
func (h *Handlers) encode(r *Request, resp kmsg.Response) *wire.Message {
	resp.SetVersion(r.Version)
	m := h.newMessage(r)
	m.B = resp.AppendTo(m.B)
	return m
}

// newMessage begins the response to a request. The response header of ApiVersions never has tagged fields, so that a
// client can read it whatever versions the two have in common.
func (h *Handlers) newMessage(r *Request) *wire.Message {
	api := h.byKey[r.Key]
	return h.Messages.New(r.CorrelationID, api.Flexible(r.Version) && r.Key != kmsg.ApiVersions.Int16())
}
