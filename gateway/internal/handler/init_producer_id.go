package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/metadata"
)

// InitProducerId (22), versions 0 to 5: gives a producer its id and epoch.
//
// A producer without a transactional id gets the next id of a block that this gateway has from the controller. One with a
// transactional id is the business of its coordinator. Version 2 is flexible, 3 brings the id and epoch that a producer
// has already, 4 PRODUCER_FENCED, 5 TRANSACTION_ABORTABLE.

func (h *Handlers) initProducerID(ctx context.Context, r *Request, req *kmsg.InitProducerIDRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if (req.ProducerID == -1) != (req.ProducerEpoch == -1) {
		resp.ErrorCode = int16(errcode.InvalidRequest)
		return resp, nil
	}
	if req.TransactionalID != nil {
		return h.initTransactional(ctx, r, *req.TransactionalID, resp)
	}
	id, err := h.producerIDs.Next(ctx)
	if err != nil {
		h.Logger.Warn("no producer ids from the controller", "error", err)
		// The producer asks again, as it does of a Kafka broker that has run out of ids for the moment.
		resp.ErrorCode = int16(errcode.CoordinatorLoadInProgress)
		return resp, nil
	}
	resp.ProducerID, resp.ProducerEpoch = id, 0
	return resp, nil
}

func (h *Handlers) initTransactional(ctx context.Context, r *Request, id string, failed *kmsg.InitProducerIDResponse) (kmsg.Response, error) {
	if id == "" {
		failed.ErrorCode = int16(errcode.InvalidRequest)
		return failed, nil
	}
	reply, err := h.askShard(ctx, r, metadata.TransactionShard, func(n int) int32 { return hash.TransactionPartition(id, n) }, r.Body)
	if err == nil {
		resp := kmsg.NewPtrInitProducerIDResponse()
		resp.SetVersion(r.Version)
		if err = resp.ReadFrom(reply); err == nil {
			return resp, nil
		}
	}
	failed.ErrorCode = int16(coordinatorCode(err))
	return failed, nil
}
