// Package tieringclient reads what is in the remote tier only, from the tiering instance that owns the partition's shard of
// remote log metadata.
//
// It owns the connections to tiering instances and the rules of when a question is asked again. It must never decide who owns
// a shard: the metadata image says that.
package tieringclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// retryPause is the time between attempts when nothing new is known; it doubles up to retryPauseMax.
const (
	retryPause    = 20 * time.Millisecond
	retryPauseMax = 200 * time.Millisecond
)

// Dialer makes channels; *transport.Dialer is one.
type Dialer interface {
	Dial(address string) (transport.Conn, error)
}

// Config is what a client needs.
type Config struct {
	// Image is the newest metadata image, by which the client routes.
	Image func() metadata.Reader
	// Await waits until the image has reached an offset.
	Await  func(ctx context.Context, offset int64) error
	Dialer Dialer
}

// Client asks the owners of remote segments. All methods may be called from any goroutine.
type Client struct {
	config Config

	mu     sync.Mutex
	closed bool
	local  map[int32]tieringv1.TieringClient
	conns  map[string]transport.Conn
}

// New makes a client; it connects when it is first needed.
func New(c Config) *Client {
	return &Client{config: c, local: map[int32]tieringv1.TieringClient{}, conns: map[string]transport.Conn{}}
}

// AddLocal makes calls to the instance with this id go over a channel of this process.
func (c *Client) AddLocal(id int32, conn transport.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.local[id] = tieringv1.NewTieringClient(conn)
}

// Close breaks all connections.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	clear(c.conns)
	return errors.Join(errs...)
}

// Read reads batches, within the context's time. It sets the request's metadata offset. While the shard has no owner that
// serves, it waits; the error is then the context's.
func (c *Client) Read(ctx context.Context, req *tieringv1.ReadRequest) (*tieringv1.ReadResponse, error) {
	var resp *tieringv1.ReadResponse
	err := c.ask(ctx, req.GetTopicId(), req.GetPartition(), func(t tieringv1.TieringClient, offset int64) (err error) {
		req.MetadataOffset = offset
		resp, err = t.Read(ctx, req)
		return err
	})
	return resp, err
}

// FindOffset finds a record by its time, in the same way.
func (c *Client) FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	var resp *tieringv1.FindOffsetResponse
	err := c.ask(ctx, req.GetTopicId(), req.GetPartition(), func(t tieringv1.TieringClient, offset int64) (err error) {
		req.MetadataOffset = offset
		resp, err = t.FindOffset(ctx, req)
		return err
	})
	return resp, err
}

// ask asks the owner of a partition's shard, and again while there is none or it does not serve yet.
func (c *Client) ask(ctx context.Context, topicID []byte, partition int32, question func(t tieringv1.TieringClient, metadataOffset int64) error) error {
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
		if !c.awaitNewer(ctx, image.Offset(), pause) {
			return errcode.RequestTimedOut.Wrap(err)
		}
	}
}

// again says whether an answer comes from an instance that does not own the shard, or not yet.
func again(err error) bool {
	switch errcode.Of(err) {
	case errcode.NotCoordinator, errcode.CoordinatorLoadInProgress, errcode.CoordinatorNotAvailable, errcode.LeaderNotAvailable,
		errcode.ThrottlingQuotaExceeded, errcode.NetworkException, errcode.BrokerNotAvailable:
		return true
	}
	return !transport.Answered(err)
}

// owner finds the way to the instance that owns a partition's shard.
func (c *Client) owner(image metadata.Reader, topicID uuid.UUID, partition int32) (tieringv1.TieringClient, error) {
	topic := image.TopicByName(internaltopic.RemoteLogMetadata)
	if topic == nil || len(topic.Partitions) == 0 {
		return nil, errcode.NotCoordinator.Errorf("there is no %s", internaltopic.RemoteLogMetadata)
	}
	shard := image.Shard(metadata.RemoteLogShard, hash.RemoteLogMetadataPartition(topicID, partition, len(topic.Partitions)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errcode.UnknownServerError.Wrap(errors.New("tiering client is closed"))
	}
	if t := c.local[shard.Owner]; t != nil {
		return t, nil
	}
	member := image.Service(metadata.Tiering, shard.Owner)
	if member == nil {
		return nil, errcode.NotCoordinator.Wrap(fmt.Errorf("tiering instance %d is not registered", shard.Owner))
	}
	endpoint, ok := member.Endpoint(metadata.GRPCEndpoint)
	if !ok {
		return nil, errcode.NotCoordinator.Wrap(fmt.Errorf("tiering instance %d has no address", shard.Owner))
	}
	address := transport.JoinAddress(endpoint.Host, endpoint.Port)
	conn := c.conns[address]
	if conn == nil {
		var err error
		if conn, err = c.config.Dialer.Dial(address); err != nil {
			return nil, fmt.Errorf("tiering instance %d: %w", shard.Owner, err)
		}
		c.conns[address] = conn
	}
	return tieringv1.NewTieringClient(conn), nil
}

// Update closes the connections to instances that the image does not have any more.
func (c *Client) Update(image metadata.Reader) {
	live := map[string]bool{}
	for _, member := range image.Services(metadata.Tiering) {
		if endpoint, ok := member.Endpoint(metadata.GRPCEndpoint); ok {
			live[transport.JoinAddress(endpoint.Host, endpoint.Port)] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, conn := range c.conns {
		if !live[address] {
			_ = conn.Close()
			delete(c.conns, address)
		}
	}
}

// awaitNewer waits for newer metadata, but not longer than the pause. It says whether the context still lives.
func (c *Client) awaitNewer(ctx context.Context, offset int64, pause time.Duration) bool {
	pauseCtx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if c.config.Await(pauseCtx, offset+1) != nil {
		<-pauseCtx.Done()
	}
	return ctx.Err() == nil
}
