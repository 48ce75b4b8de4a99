// Package coordinatorclient sends requests about groups, transactions and share state to the instance that owns their
// shard.
//
// It owns the connections to coordinators and the rules of when a request is sent again. It must never look inside the
// requests, nor decide who owns a shard: the metadata image says that.
package coordinatorclient

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	"chancery/services/clients/instances"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"
)

const (
	// defaultTimeout bounds a request whose context has no deadline.
	defaultTimeout = 30 * time.Second
	// ownerWait is the longest that a request waits for its shard to have an owner that can be reached. Then it is
	// answered with COORDINATOR_NOT_AVAILABLE, which clients repeat at their own pace.
	ownerWait = 5 * time.Second
	// movedGrace is how long an owner that has lost the shard may take to answer: a request that it has taken may just be
	// coming to its end. One that is paused never answers. It is not waited for long where the new owner can be asked the same.
	movedGrace           = 3 * time.Second
	movedGraceRepeatable = 250 * time.Millisecond
	// moveLook is how long a request takes before anybody looks whether its shard moves. Hardly one takes so long.
	moveLook = 500 * time.Millisecond
	// retryPause is the shortest time between attempts when nothing new is known.
	retryPause    = 20 * time.Millisecond
	retryPauseMax = 200 * time.Millisecond
)

// Client sends requests to the owners of shards. All methods may be called from any goroutine.
type Client struct {
	config    instances.Config
	instances *instances.Set
}

// New makes a client; it connects when it is first needed.
func New(c instances.Config) *Client {
	return &Client{config: c, instances: instances.New(metadata.Coordinator, carrying{c.Dialer})}
}

// carrying dials connections whose calls share a stream: most requests to coordinators are small, and come in crowds.
type carrying struct{ instances.Dialer }

func (d carrying) Dial(address string) (transport.Conn, error) {
	conn, err := d.Dialer.Dial(address)
	if err != nil {
		return nil, err
	}
	return transport.Carried(conn), nil
}

// AddLocal makes calls to the instance with this id go over a channel of this process.
func (c *Client) AddLocal(id int32, conn transport.Conn) { c.instances.AddLocal(id, conn) }

// Update closes the connections to instances that the image does not have any more.
func (c *Client) Update(image metadata.Reader) { c.instances.Update(image) }

// Close breaks all connections.
func (c *Client) Close() error { return c.instances.Close() }

// Handle sends a request, or the part of one, to the owner of one shard, within the context's time.
//
// The client sets the envelope's metadata offset to that of the image it routes by. While the shard has no owner, or moves,
// the client waits for the metadata to say who has it now. What the owner itself answers is returned as it is.
// CoordinatorNotAvailable says that no owner could be reached, or that it was lost and the request is not one that may be
// carried out twice.
func (c *Client) Handle(ctx context.Context, kind metadata.ShardKind, shard int32, envelope *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	req := &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind(kind), Shard: shard, Envelope: envelope}
	giveUp := time.Now().Add(ownerWait)
	for pause := retryPause; ; pause = min(2*pause, retryPauseMax) {
		image := c.config.Image()
		envelope.MetadataOffset = image.Offset()
		owner := image.Shard(kind, shard).Owner
		grace := movedGrace
		if repeatable(int16(envelope.GetApiKey())) {
			grace = movedGraceRepeatable
		}
		attemptCtx, done := c.whileOwned(ctx, kind, shard, owner, grace)
		reply, err := c.attempt(attemptCtx, image, owner, req)
		if attemptCtx.Err() != nil {
			giveUp = time.Now().Add(ownerWait) // the shard has another owner, which is asked for the first time
		}
		done()
		switch {
		case err == nil:
			return reply.GetReply(), nil
		case errcode.Of(err) == errcode.NotCoordinator, transport.Unsent(err):
		case transport.Answered(err):
			return nil, err
		case !repeatable(int16(envelope.GetApiKey())):
			return nil, errcode.CoordinatorNotAvailable.Wrap(err)
		}
		if time.Now().After(giveUp) || !c.config.AwaitNewer(ctx, image.Offset(), pause) {
			return nil, errcode.CoordinatorNotAvailable.Wrap(err)
		}
	}
}

// HandleAll sends a request that is for every shard of a kind, such as ListGroups, to each instance that owns one. It
// gives the replies of all of them, or the first error.
func (c *Client) HandleAll(ctx context.Context, kind metadata.ShardKind, envelope *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	image := c.config.Image()
	envelope.MetadataOffset = image.Offset()
	owners := Owners(image, kind)
	replies := make([]*commonv1.EnvelopeReply, len(owners))
	errs := make([]error, len(owners))
	var wg sync.WaitGroup
	for i, owner := range owners {
		wg.Go(func() {
			req := &coordinatorv1.HandleRequest{Kind: coordinatorv1.ShardKind(kind), Shard: -1, Envelope: envelope}
			resp, err := c.attempt(ctx, image, owner, req)
			if err != nil && !transport.Answered(err) {
				err = errcode.CoordinatorNotAvailable.Wrap(err)
			}
			replies[i], errs[i] = resp.GetReply(), err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// Owners are the instances that own shards of a kind, by id.
func Owners(image metadata.Reader, kind metadata.ShardKind) []int32 {
	topic := image.TopicByName(shardTopic(kind))
	if topic == nil {
		return nil
	}
	var owners []int32
	for shard := range topic.Partitions {
		if owner := image.Shard(kind, int32(shard)).Owner; owner >= 0 && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	slices.Sort(owners)
	return owners
}

// shardTopic is the internal topic whose partitions are the shards of a kind.
func shardTopic(kind metadata.ShardKind) string {
	switch kind {
	case metadata.GroupShard:
		return "__consumer_offsets"
	case metadata.TransactionShard:
		return "__transaction_state"
	case metadata.ShareShard:
		return "__share_group_state"
	}
	return ""
}

// whileOwned gives a context that ends some time after another instance owns the shard.
func (c *Client) whileOwned(ctx context.Context, kind metadata.ShardKind, shard, owner int32, grace time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(moveLook, func() {
		for {
			image := c.config.Image()
			if image.Shard(kind, shard).Owner != owner {
				break
			}
			if c.config.Await(ctx, image.Offset()+1) != nil {
				return
			}
		}
		select {
		case <-time.After(grace):
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { timer.Stop(); cancel() }
}

// attempt asks one instance once.
func (c *Client) attempt(ctx context.Context, image metadata.Reader, owner int32, req *coordinatorv1.HandleRequest) (*coordinatorv1.HandleResponse, error) {
	conn, err := c.instances.Channel(image, owner)
	if err != nil {
		return nil, err
	}
	return coordinatorv1.NewCoordinatorClient(conn).Handle(ctx, req)
}

// repeatable says whether carrying a request out twice is the same as once for its client. Joining and leaving are not
// among them, nor anything that moves a transaction on.
func repeatable(apiKey int16) bool {
	switch kmsg.Key(apiKey) {
	case kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.Heartbeat, kmsg.SyncGroup, kmsg.DescribeGroups, kmsg.ListGroups,
		kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.ConsumerGroupDescribe, kmsg.ShareGroupDescribe, kmsg.StreamsGroupDescribe, kmsg.DescribeTransactions,
		kmsg.ListTransactions, kmsg.DescribeShareGroupOffsets, kmsg.ReadShareGroupState, kmsg.ReadShareGroupStateSummary:
		return true
	}
	return false
}

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultTimeout)
}
