package handler

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
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
	id, err := h.producerIDs.next(ctx, h.allocateProducerIDs)
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

// producerIDBlock hands out the ids of blocks that the controller gives, each block to one gateway.
type producerIDBlock struct {
	mu sync.Mutex
	// nextID to end are the ids left.
	nextID, end int64
	// fetching is closed when the block that is on its way has come, or failed with err.
	fetching chan struct{}
	err      error
}

// next gives one id. When none is left, one caller gets a new block, and the others wait for it.
func (b *producerIDBlock) next(ctx context.Context, allocate func(context.Context) (start, end int64, err error)) (int64, error) {
	for {
		b.mu.Lock()
		if b.nextID < b.end {
			id := b.nextID
			b.nextID++
			b.mu.Unlock()
			return id, nil
		}
		fetching := b.fetching
		if fetching == nil {
			fetching = make(chan struct{})
			b.fetching = fetching
			// The block is good for others also when this client goes away.
			go b.fetch(context.WithoutCancel(ctx), allocate)
		}
		b.mu.Unlock()
		select {
		case <-fetching:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		b.mu.Lock()
		err := b.err
		b.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
}

func (b *producerIDBlock) fetch(ctx context.Context, allocate func(context.Context) (start, end int64, err error)) {
	start, end, err := allocate(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.nextID, b.end = start, end
	}
	b.err = err
	close(b.fetching)
	b.fetching = nil
}

// allocateProducerIDs gets a block from the controller. A gateway is no storage node, so the request names none; the
// controller knows it by the envelope.
func (h *Handlers) allocateProducerIDs(ctx context.Context) (start, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	q := kmsg.NewPtrAllocateProducerIDsRequest()
	q.BrokerID, q.BrokerEpoch = -1, -1
	reply, err := h.Controller.Handle(ctx, &commonv1.Envelope{
		ApiKey: int32(q.Key()), Body: q.AppendTo(nil), MetadataOffset: h.Image().Offset(), Trusted: true,
	})
	if err != nil {
		return 0, 0, err
	}
	resp := kmsg.NewPtrAllocateProducerIDsResponse()
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		return 0, 0, fmt.Errorf("answer to AllocateProducerIds: %w", err)
	}
	if resp.ErrorCode != 0 {
		return 0, 0, errcode.Code(resp.ErrorCode).Err()
	}
	if resp.ProducerIDLen <= 0 {
		return 0, 0, errcode.UnknownServerError.Errorf("the controller gave an empty block of producer ids")
	}
	return resp.ProducerIDStart, resp.ProducerIDStart + int64(resp.ProducerIDLen), nil
}
