// Package tieringclient reads what is in the remote tier only, from the tiering instance that owns the partition's shard of
// remote log metadata.
//
// It owns the connections to tiering instances and the rules of when a question is asked again. It must never decide who owns
// a shard: the metadata image says that.
package tieringclient

import (
	"context"
	"errors"
	"time"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/clients/instances"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storagerpc"
	"chancery/services/transport"
)

// retryPause is the time between attempts when nothing new is known; it doubles up to retryPauseMax.
const (
	retryPause    = 20 * time.Millisecond
	retryPauseMax = 200 * time.Millisecond
)

// Client asks the owners of remote segments. All methods may be called from any goroutine.
type Client struct {
	config    instances.Config
	instances *instances.Set
}

// New makes a client; it connects when it is first needed.
func New(c instances.Config) *Client {
	return &Client{config: c, instances: instances.New(metadata.Tiering, c.Dialer)}
}

// AddLocal makes calls to the instance with this id go over a channel of this process.
func (c *Client) AddLocal(id int32, conn transport.Conn) { c.instances.AddLocal(id, conn) }

// Update closes the connections to instances that the image does not have any more.
func (c *Client) Update(image metadata.Reader) { c.instances.Update(image) }

// Close breaks all connections.
func (c *Client) Close() error { return c.instances.Close() }

// Read reads batches, within the context's time. It sets the request's metadata offset. While the shard has no owner that
// serves, it waits; the error is then the context's.
// The caller releases the records.
func (c *Client) Read(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
	var resp *storagerpc.TierRead
	err := c.ask(ctx, req.GetTopicId(), req.GetPartition(), func(conn transport.Conn, offset int64) (err error) {
		req.MetadataOffset = offset
		resp, err = storagerpc.ReadTier(ctx, conn, req)
		return err
	})
	return resp, err
}

// FindOffset finds a record by its time, in the same way.
func (c *Client) FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	var resp *tieringv1.FindOffsetResponse
	err := c.ask(ctx, req.GetTopicId(), req.GetPartition(), func(conn transport.Conn, offset int64) (err error) {
		req.MetadataOffset = offset
		resp, err = tieringv1.NewTieringClient(conn).FindOffset(ctx, req)
		return err
	})
	return resp, err
}

// ask asks the owner of a partition's shard, and again while there is none or it does not serve yet.
func (c *Client) ask(ctx context.Context, topicID []byte, partition int32, question func(conn transport.Conn, metadataOffset int64) error) error {
	id, ok := uuid.FromBytes(topicID)
	if !ok {
		return errcode.InvalidRequest.Errorf("a topic id has 16 bytes")
	}
	for pause := retryPause; ; pause = min(2*pause, retryPauseMax) {
		image := c.config.Image()
		instance, err := c.owner(image, id, partition)
		if err == nil {
			err = question(instance, image.Offset())
		}
		if err == nil || ctx.Err() == nil && !again(err) {
			return err
		}
		if !c.config.AwaitNewer(ctx, image.Offset(), pause) {
			return errcode.RequestTimedOut.Wrap(err)
		}
	}
}

// again says whether an answer comes from an instance that does not own the shard, or not yet.
func again(err error) bool {
	if errors.Is(err, instances.ErrClosed) {
		return false
	}
	switch errcode.Of(err) {
	case errcode.NotCoordinator, errcode.CoordinatorLoadInProgress, errcode.CoordinatorNotAvailable, errcode.LeaderNotAvailable,
		errcode.ThrottlingQuotaExceeded, errcode.NetworkException, errcode.BrokerNotAvailable:
		return true
	}
	return !transport.Answered(err)
}

// owner finds the way to the instance that owns a partition's shard.
func (c *Client) owner(image metadata.Reader, topicID uuid.UUID, partition int32) (transport.Conn, error) {
	topic := image.TopicByName(internaltopic.RemoteLogMetadata)
	if topic == nil || len(topic.Partitions) == 0 {
		return nil, errcode.NotCoordinator.Errorf("there is no %s", internaltopic.RemoteLogMetadata)
	}
	shard := image.Shard(metadata.RemoteLogShard, hash.RemoteLogMetadataPartition(topicID, partition, len(topic.Partitions)))
	return c.instances.Channel(image, shard.Owner)
}
