package listener

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// envelope answers a request that somebody passes on for a client, with the client's name (KIP-590).
func (l *Listener) envelope(ctx context.Context, c client, req *kmsg.EnvelopeRequest) *kmsg.EnvelopeResponse {
	resp := kmsg.NewPtrEnvelopeResponse()
	refuse := func(code errcode.Code) *kmsg.EnvelopeResponse {
		resp.ErrorCode = int16(code)
		return resp
	}
	var principal kmsg.DefaultPrincipalData
	if err := principal.ReadFrom(req.RequestPrincipal); err != nil || principal.Type == "" {
		return refuse(errcode.PrincipalDeserializationFailure)
	}
	host, ok := hostOf(req.ClientHostAddress)
	if !ok {
		return refuse(errcode.InvalidRequest)
	}
	_, inner, _, err := l.parse(req.RequestData)
	if err != nil || inner == nil || l.apis[inner.Key()].answer != nil || kmsg.Key(inner.Key()) == kmsg.Envelope {
		// Only what the active controller answers is worth passing on.
		return refuse(errcode.InvalidRequest)
	}
	answer, err := l.answerPart(ctx, client{host: "/" + host, listener: c.listener, principal: principal.Type + ":" + principal.Name}, req.RequestData)
	if err != nil {
		return refuse(errcode.NotController)
	}
	resp.ResponseData = answer
	return resp
}
