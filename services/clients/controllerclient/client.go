// Package controllerclient reaches the controllers: it finds the active one, repeats what may be repeated, and keeps a
// service registered.
//
// It owns where the active controller is thought to be. It must never repeat a request whose outcome is unknown unless
// doing it twice is the same as once.
package controllerclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"
)

const (
	// defaultTimeout bounds a request whose context has no deadline.
	defaultTimeout = 30 * time.Second
	// attemptTimeout bounds one attempt of a request that may be repeated, so that a controller that hangs costs little.
	attemptTimeout = 3 * time.Second

	retryBase = 20 * time.Millisecond
	retryMax  = 500 * time.Millisecond
)

// Dialer makes channels; *transport.Dialer is one.
type Dialer interface {
	Dial(address string) (transport.Conn, error)
}

// Config says where the controllers are.
type Config struct {
	// Targets are the addresses of the controllers that are known from the start; there must be at least one.
	Targets []string
	Dialer  Dialer
	Logger  *slog.Logger
}

// Client sends requests to the active controller. All methods may be called from any goroutine.
type Client struct {
	dialer  Dialer
	logger  *slog.Logger
	targets []string

	mu     sync.Mutex
	conns  map[string]transport.Conn
	closed bool
	// active is where the active controller is thought to be; empty when unknown.
	active string
	// nextTarget is the target to try while the active one is unknown, nextFollow the one to follow next.
	nextTarget int
	nextFollow int
}

var _ metadata.Source = (*Client)(nil)

// New makes a client; it connects when it is first needed.
func New(c Config) (*Client, error) {
	if len(c.Targets) == 0 {
		return nil, errors.New("no addresses of controllers")
	}
	return &Client{dialer: c.Dialer, logger: c.Logger, targets: c.Targets, conns: map[string]transport.Conn{}}, nil
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

// Sender is who asks, for requests that a service makes itself or passes on.
type Sender struct {
	ClientID   *string
	Principal  string
	ClientHost string
	Listener   string
	// MetadataOffset is the offset of the asking service's image.
	MetadataOffset int64
	// Trusted marks a service of the cluster itself.
	Trusted bool
}

// Handle sends a request in Kafka's format to the active controller and returns its answer, within the context's time.
//
// A controller that is not the active one, or that cannot be reached, is not an answer: the client goes on to another.
// An error is either the controller's own, or RequestTimedOut, or NetworkException for a request that may or may not have
// been carried out.
func (c *Client) Handle(ctx context.Context, envelope *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	var reply *commonv1.EnvelopeReply
	err := c.call(ctx, repeatable(int16(envelope.GetApiKey())), func(ctx context.Context, cc controllerv1.ControllerClient) (err error) {
		reply, err = cc.Handle(ctx, envelope)
		return err
	})
	return reply, err
}

// JoinQuorum asks the active controller to let a controller be a voter.
func (c *Client) JoinQuorum(ctx context.Context, req *controllerv1.JoinQuorumRequest) (*controllerv1.JoinQuorumResponse, error) {
	var resp *controllerv1.JoinQuorumResponse
	err := c.call(ctx, true, func(ctx context.Context, cc controllerv1.ControllerClient) (err error) {
		resp, err = cc.JoinQuorum(ctx, req)
		return err
	})
	return resp, err
}

// Request is Handle for a typed request in the version that is set in it.
func (c *Client) Request(ctx context.Context, req kmsg.Request, from Sender) (kmsg.Response, error) {
	reply, err := c.Handle(ctx, &commonv1.Envelope{
		ApiKey:         int32(req.Key()),
		ApiVersion:     int32(req.GetVersion()),
		ClientId:       from.ClientID,
		Principal:      from.Principal,
		ClientHost:     from.ClientHost,
		Listener:       from.Listener,
		Body:           req.AppendTo(nil),
		MetadataOffset: from.MetadataOffset,
		Trusted:        from.Trusted,
	})
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		return nil, fmt.Errorf("answer to %s v%d: %w", kmsg.NameForKey(req.Key()), req.GetVersion(), err)
	}
	return resp, nil
}

// repeatable says whether carrying a request out twice is the same as once: it only reads, or names the epoch or
// incarnation that it is for, or a lost answer wastes no more than a block of ids.
func repeatable(apiKey int16) bool {
	switch kmsg.Key(apiKey) {
	case kmsg.BrokerRegistration, kmsg.BrokerHeartbeat, kmsg.AlterPartition, kmsg.AllocateProducerIDs, kmsg.AssignReplicasToDirs,
		kmsg.DescribeQuorum, kmsg.DescribeCluster, kmsg.DescribeConfigs, kmsg.DescribeACLs, kmsg.DescribeClientQuotas,
		kmsg.DescribeUserSCRAMCredentials, kmsg.DescribeDelegationToken, kmsg.ListPartitionReassignments:
		return true
	}
	return false
}

// SetActive tells where the active controller is, as heard from the metadata log's heartbeats.
func (c *Client) SetActive(address string) {
	if address == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active = address
}

// call runs do against the active controller until it answers or the time is over.
func (c *Client) call(ctx context.Context, repeatable bool, do func(context.Context, controllerv1.ControllerClient) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	// Each controller is tried once, and one hint followed, before the client waits.
	quick := len(c.targets) + 1
	for delay := retryBase; ; {
		address, cc, err := c.pick()
		if err != nil {
			return err
		}
		err = attempt(ctx, repeatable, cc, do)
		if !c.tryElsewhere(address, err, repeatable) {
			return err
		}
		if quick--; quick > 0 && ctx.Err() == nil {
			continue
		}
		if !sleep(ctx, delay) {
			return errcode.RequestTimedOut.Wrap(fmt.Errorf("no answer from the active controller: %w", err))
		}
		delay = min(2*delay, retryMax)
		quick = len(c.targets) + 1
	}
}

func attempt(ctx context.Context, repeatable bool, cc controllerv1.ControllerClient, do func(context.Context, controllerv1.ControllerClient) error) error {
	if !repeatable {
		return do(ctx, cc)
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return do(ctx, cc)
}

// tryElsewhere says whether the outcome of an attempt calls for another, and notes what it says about the address.
func (c *Client) tryElsewhere(address string, err error, repeatable bool) bool {
	switch {
	case err == nil:
		c.SetActive(address)
		return false
	case errcode.Of(err) == errcode.NotController:
		c.forget(address, transport.Hint(err))
		return true
	case transport.Answered(err):
		c.SetActive(address)
		return false
	case transport.Unsent(err) || repeatable:
		c.forget(address, "")
		return true
	}
	// The request may have been carried out; the next one should still not go to where this one was lost.
	c.forget(address, "")
	return false
}

// forget drops an address that turned out not to be the active controller's, in favour of a hint or the next target.
func (c *Client) forget(address, hint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != "" && c.active != address {
		return // someone else has learned better meanwhile
	}
	if hint == address {
		hint = ""
	}
	c.active = hint
	if hint == "" {
		c.nextTarget++
	}
}

// pick chooses whom to ask.
func (c *Client) pick() (string, controllerv1.ControllerClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	address := c.active
	if address == "" {
		address = c.targets[c.nextTarget%len(c.targets)]
	}
	cc, err := c.connLocked(address)
	return address, cc, err
}

func (c *Client) connLocked(address string) (controllerv1.ControllerClient, error) {
	if c.closed {
		return nil, errcode.NetworkException.Wrap(errors.New("controller client is closed"))
	}
	conn := c.conns[address]
	if conn == nil {
		var err error
		if conn, err = c.dialer.Dial(address); err != nil {
			return nil, fmt.Errorf("controller: %w", err)
		}
		c.conns[address] = conn
	}
	return controllerv1.NewControllerClient(conn), nil
}

// Open opens a stream of the metadata log to one of the controllers, each time to another than before: a Client is a
// metadata.Source. Whether that controller serves shows only in what is received. The stream ends with the context.
func (c *Client) Open(ctx context.Context) (metadata.Stream, error) {
	c.mu.Lock()
	address := c.targets[c.nextFollow%len(c.targets)]
	c.nextFollow++
	cc, err := c.connLocked(address)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	stream, err := cc.FollowMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("follow metadata of %s: %w", address, err)
	}
	return stream, nil
}

// sleep waits and says whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
