package storagerpc

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/transport"
)

const (
	// defaultBulkConnections and defaultBulkBytes were measured: bulk on the connection of small requests makes those many
	// times slower, and a third bulk connection gains nothing.
	defaultBulkConnections = 2
	defaultBulkBytes       = 64 << 10

	// answerGrace is what a node may take longer than the time it was given before it counts as lost.
	answerGrace = 10 * time.Second
	// watchInterval is how often a client looks for answers that are overdue.
	watchInterval = time.Second
)

// Dialer makes connections for record batches; *transport.Dialer is one.
type Dialer interface {
	DialData(address string) (*grpc.ClientConn, error)
}

// ClientConfig is how a client reaches a node.
type ClientConfig struct {
	Dialer Dialer
	// BulkConnections is how many connections carry requests above BulkBytes; 0 means 2.
	BulkConnections int
	// BulkBytes is the size up to which a request counts as small; 0 means 64 KiB.
	BulkBytes int
	Logger    *slog.Logger
}

// Client is a storage node in another process.
type Client struct {
	config  ClientConfig
	conns   []transport.Conn
	control storagev1.StorageClient
	// small is for calls that are small and come often: they share a stream.
	small    storagev1.StorageClient
	appends  *appender
	fetches  []*fetchLane
	nextBulk atomic.Uint32
	address  string
	// files is the channel for open files; nil when there is none, as with a node on another machine.
	files atomic.Pointer[fileChannel]

	closing sync.Once
	stop    context.CancelFunc
	stopped chan struct{}
}

var _ storage.Node = (*Client)(nil)

// NewClient makes a client of the node at an address; it connects when it is first needed.
func NewClient(address string, config ClientConfig) (*Client, error) {
	if config.BulkConnections == 0 {
		config.BulkConnections = defaultBulkConnections
	}
	if config.BulkBytes == 0 {
		config.BulkBytes = defaultBulkBytes
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{config: config, address: address, stop: stop, stopped: make(chan struct{})}
	var lanes []*appendLane
	for range 1 + config.BulkConnections {
		conn, err := config.Dialer.DialData(address)
		if err != nil {
			stop()
			return nil, errors.Join(err, c.closeConns())
		}
		if len(c.conns) == 0 {
			carried := transport.Carried(conn)
			c.conns = append(c.conns, carried)
			c.control, c.small = storagev1.NewStorageClient(conn), storagev1.NewStorageClient(carried)
		} else {
			c.conns = append(c.conns, conn)
		}
		rpc := storagev1.NewStorageClient(conn)
		lanes = append(lanes, newAppendLane(ctx, rpc))
		c.fetches = append(c.fetches, newFetchLane(ctx, rpc, c.channel))
	}
	c.appends = newAppender(lanes, config.BulkBytes, config.Logger.With("node", address))
	go c.watch(ctx)
	return c, nil
}

// Close breaks the connections. Appends that may have reached the node fail with OutcomeUnknown.
func (c *Client) Close() error {
	var err error
	c.closing.Do(func() {
		c.stop()
		<-c.stopped
		c.appends.close()
		for _, lane := range c.fetches {
			lane.close()
		}
		if files := c.files.Swap(nil); files != nil {
			files.close()
		}
		err = c.closeConns()
	})
	return err
}

// channel gives the channel for files, which is opened with a stream when the node is on this machine; renew is set then.
func (c *Client) channel(renew bool) *fileChannel {
	present := c.files.Load()
	if !renew || present.alive() {
		return present
	}
	opened, err := dialFiles(c.address)
	if err != nil {
		return nil // the usual case: the node is elsewhere
	}
	if !c.files.CompareAndSwap(present, opened) {
		opened.close()
		return c.files.Load()
	}
	go opened.receive()
	return opened
}

func (c *Client) closeConns() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// watch ends what the node has left unanswered for too long.
func (c *Client) watch(ctx context.Context) {
	defer close(c.stopped)
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			c.appends.expire(now)
		}
	}
}

// Append sends record batches to the node. A partition whose batches never left this process fails with
// NotLeaderOrFollower; one whose connection was lost meanwhile fails so too, with OutcomeUnknown.
func (c *Client) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	c.appends.submit(req, done)
}

// Fetch reads from the node.
func (c *Client) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	lane := c.fetches[0]
	if int(req.MaxBytes) > c.config.BulkBytes && len(c.fetches) > 1 {
		lane = c.fetches[1+int(c.nextBulk.Add(1))%(len(c.fetches)-1)]
	}
	return lane.fetch(ctx, req)
}

// ListOffsets asks the node.
func (c *Client) ListOffsets(ctx context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	return c.control.ListOffsets(ctx, req)
}

// OffsetForLeaderEpoch asks the node.
func (c *Client) OffsetForLeaderEpoch(ctx context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	return c.control.OffsetForLeaderEpoch(ctx, req)
}

// DeleteRecords asks the node.
func (c *Client) DeleteRecords(ctx context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	return c.control.DeleteRecords(ctx, req)
}

// Handle asks the node.
func (c *Client) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	return c.small.Handle(ctx, req)
}

// DescribeTier asks the node.
func (c *Client) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	return c.control.DescribeTier(ctx, req)
}

// UpdateTier asks the node.
func (c *Client) UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	return c.control.UpdateTier(ctx, req)
}

// DescribeSegment asks the node.
func (c *Client) DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	return c.control.DescribeSegment(ctx, req)
}

// ReadSegment asks the node.
func (c *Client) ReadSegment(ctx context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	return c.control.ReadSegment(ctx, req)
}

// failed is the result of an append that the node did not answer.
func failed(req *storage.AppendRequest, code errcode.Code, outcomeUnknown bool) *storage.AppendResult {
	result := &storage.AppendResult{Partitions: make([]storage.PartitionAppendResult, len(req.Partitions))}
	for i := range req.Partitions {
		result.Partitions[i] = storage.PartitionAppendResult{
			TopicID:         req.Partitions[i].TopicID,
			Partition:       req.Partitions[i].Partition,
			Error:           code,
			BaseOffset:      -1,
			LogAppendTimeMs: -1,
			LogStartOffset:  -1,
			Leader:          storage.NoLeader,
			OutcomeUnknown:  outcomeUnknown,
		}
	}
	return result
}
