package handler

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
)

// Requests that the active controller answers: CreateTopics (19), versions 2 to 7; DeleteTopics (20), 1 to 6;
// CreatePartitions (37), 0 to 3; ElectLeaders (43), 0 to 2; AlterPartitionReassignments (45), 0 to 1;
// ListPartitionReassignments (46), 0; DescribeQuorum (55), 0 to 2; UpdateFeatures (57), 0 to 2; UnregisterBroker (64), 0;
// AddRaftVoter (80), 0 to 1; RemoveRaftVoter (81), 0; UnregisterController (94), 0; and the two that change configs (alter_configs.go).
//
// They travel in an envelope, byte for byte. The answer waits until this gateway has seen what the controller did, so that the
// client finds what it made. A controller that has lost its office is not the client's business: that is retried, and where it
// cannot be, the client is told what Kafka tells of a controller that does not answer in time.

// forwardSlack is how much longer than its own time-out a request may take on its way to the controller and back.
const forwardSlack = 5 * time.Second

// failure makes the response of a request that failed as a whole.
type failure[PQ kmsg.Request] func(q PQ, code errcode.Code, text string) kmsg.Response

// toController makes a Handle that forwards; failed makes the answer when there is none from the controller.
func toController[Q any, PQ request[Q]](failed failure[PQ]) func(*Handlers, context.Context, *Request) (*wire.Message, error) {
	return func(h *Handlers, ctx context.Context, r *Request) (*wire.Message, error) {
		q := PQ(new(Q))
		q.SetVersion(r.Version)
		if err := q.ReadFrom(r.Body); err != nil {
			return nil, wire.ErrMalformed
		}
		reply, err := h.forward(ctx, r, q, r.Body)
		if err != nil {
			return h.encode(r, failed(q, forwardCode(err), errcode.Text(err))), nil
		}
		m := h.newMessage(r)
		m.B = append(m.B, reply...)
		return m, nil
	}
}

// forward sends a request to the active controller and waits until this gateway's image is where the answer says.
func (h *Handlers) forward(ctx context.Context, r *Request, q kmsg.Request, body []byte) ([]byte, error) {
	timeout := h.config.RequestTimeout
	if t, ok := q.(kmsg.TimeoutRequest); ok && t.Timeout() > 0 {
		timeout = time.Duration(t.Timeout())*time.Millisecond + forwardSlack
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := h.Now()
	reply, err := h.Controller.Handle(ctx, h.envelope(r, body))
	r.Waited += h.Now().Sub(began)
	if err != nil {
		h.Logger.Warn("the controller has not answered", "api", h.byKey[r.Key].Name, "error", err)
		return nil, err
	}
	h.awaitReply(ctx, reply)
	return reply.GetBody(), nil
}

// awaitReply waits until the image is where a reply says that it must be before the client may see the reply. When the time
// runs out the reply goes to the client all the same: what it says has been done.
func (h *Handlers) awaitReply(ctx context.Context, reply *commonv1.EnvelopeReply) {
	offset := reply.GetMetadataOffset()
	if offset <= h.Image().Offset() {
		return
	}
	if err := h.Await(ctx, offset); err != nil {
		h.Logger.Warn("an answer leaves before this gateway has seen what it says", "metadata_offset", offset, "error", err)
	}
}

// forwardCode is what a client is told when the controller gave no answer. NOT_CONTROLLER would make it look for another
// controller, which it cannot find.
func forwardCode(err error) errcode.Code {
	switch code := errcode.Of(err); code {
	case errcode.NotController, errcode.NetworkException, errcode.UnknownServerError, errcode.None:
		return errcode.RequestTimedOut
	default:
		return code
	}
}

func createTopicsFailed(q *kmsg.CreateTopicsRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrCreateTopicsResponse()
	for _, t := range q.Topics {
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic, out.ErrorCode, out.ErrorMessage = t.Topic, int16(code), &text
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func deleteTopicsFailed(q *kmsg.DeleteTopicsRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrDeleteTopicsResponse()
	for _, name := range q.TopicNames {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.ErrorCode, out.ErrorMessage = &name, int16(code), &text
		resp.Topics = append(resp.Topics, out)
	}
	for _, t := range q.Topics {
		out := kmsg.NewDeleteTopicsResponseTopic()
		out.Topic, out.TopicID, out.ErrorCode, out.ErrorMessage = t.Topic, t.TopicID, int16(code), &text
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func createPartitionsFailed(q *kmsg.CreatePartitionsRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrCreatePartitionsResponse()
	for _, t := range q.Topics {
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic, out.ErrorCode, out.ErrorMessage = t.Topic, int16(code), &text
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func electLeadersFailed(_ *kmsg.ElectLeadersRequest, code errcode.Code, _ string) kmsg.Response {
	resp := kmsg.NewPtrElectLeadersResponse()
	resp.ErrorCode = int16(code)
	return resp
}

func alterReassignmentsFailed(_ *kmsg.AlterPartitionAssignmentsRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrAlterPartitionAssignmentsResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func listReassignmentsFailed(_ *kmsg.ListPartitionReassignmentsRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrListPartitionReassignmentsResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func describeQuorumFailed(_ *kmsg.DescribeQuorumRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrDescribeQuorumResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func updateFeaturesFailed(_ *kmsg.UpdateFeaturesRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrUpdateFeaturesResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func unregisterBrokerFailed(_ *kmsg.UnregisterBrokerRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrUnregisterBrokerResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func unregisterControllerFailed(_ *kmsg.UnregisterControllerRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrUnregisterControllerResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func addRaftVoterFailed(_ *kmsg.AddRaftVoterRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrAddRaftVoterResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}

func removeRaftVoterFailed(_ *kmsg.RemoveRaftVoterRequest, code errcode.Code, text string) kmsg.Response {
	resp := kmsg.NewPtrRemoveRaftVoterResponse()
	resp.ErrorCode, resp.ErrorMessage = int16(code), &text
	return resp
}
