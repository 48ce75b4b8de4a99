package controllerclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
)

// ProducerIDs hands out producer ids, each once in the life of the cluster. They come in blocks from the controller, which gives
// each block away once.
type ProducerIDs struct {
	allocate func(ctx context.Context) (start, end int64, err error)

	mu sync.Mutex
	// nextID to end are the ids left.
	nextID, end int64
	// fetching is closed when the block that is on its way has come, or failed with err.
	fetching chan struct{}
	err      error
}

// NewProducerIDs makes a source of ids that asks the controller by handle, as a service that is no storage node. A request for a
// block takes at most the given time.
func NewProducerIDs(handle func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error), timeout time.Duration) *ProducerIDs {
	return &ProducerIDs{allocate: func(ctx context.Context) (start, end int64, err error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return allocateProducerIDs(ctx, handle)
	}}
}

// Next gives one id. When none is left, one caller gets a new block, and the others wait for it.
func (b *ProducerIDs) Next(ctx context.Context) (int64, error) {
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
			// The block is good for others also when this caller goes away.
			go b.fetch(context.WithoutCancel(ctx))
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

func (b *ProducerIDs) fetch(ctx context.Context) {
	start, end, err := b.allocate(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.nextID, b.end = start, end
	}
	b.err = err
	close(b.fetching)
	b.fetching = nil
}

// allocateProducerIDs gets a block. The request names no storage node; the controller knows the sender by the envelope.
func allocateProducerIDs(ctx context.Context, handle func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error)) (start, end int64, err error) {
	q := kmsg.NewPtrAllocateProducerIDsRequest()
	q.BrokerID, q.BrokerEpoch = -1, -1
	reply, err := handle(ctx, &commonv1.Envelope{ApiKey: int32(q.Key()), Body: q.AppendTo(nil), Trusted: true})
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
