// Package instances knows the way to each instance of a service: the channels to coordinators, or to tiering instances.
//
// It owns the connections. It must never decide which instance is to be asked, nor ask it: that is the business of the
// clients that are built on it.
package instances

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// ErrClosed says that the set was closed. Asking again does not help.
var ErrClosed = errors.New("the client is closed")

// Dialer makes channels; *transport.Dialer is one.
type Dialer interface {
	Dial(address string) (transport.Conn, error)
}

// Config is what a client needs that asks the instances of a service.
type Config struct {
	// Image is the newest metadata image, by which the client routes.
	Image func() metadata.Reader
	// Await waits until the image has reached an offset.
	Await  func(ctx context.Context, offset int64) error
	Dialer Dialer
}

// AwaitNewer waits for newer metadata than that of an offset, but not longer than the pause: an owner may also have been
// refusing only because it was behind. It says whether the context still lives.
func (c *Config) AwaitNewer(ctx context.Context, offset int64, pause time.Duration) bool {
	pauseCtx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if c.Await(pauseCtx, offset+1) != nil {
		<-pauseCtx.Done()
	}
	return ctx.Err() == nil
}

// Set is the channels to the instances of one service. All methods may be called from any goroutine.
type Set struct {
	kind   metadata.ServiceKind
	dialer Dialer

	mu     sync.Mutex
	closed bool
	local  map[int32]transport.Conn
	// conns are by address, so that an instance that comes back elsewhere is found there.
	conns map[string]transport.Conn
}

// New makes the set of a kind of service; it connects to an instance when that is first asked for.
func New(kind metadata.ServiceKind, dialer Dialer) *Set {
	return &Set{kind: kind, dialer: dialer, local: map[int32]transport.Conn{}, conns: map[string]transport.Conn{}}
}

// AddLocal makes the channel to the instance with this id one of this process.
func (s *Set) AddLocal(id int32, conn transport.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local[id] = conn
}

// Channel finds the way to an instance. It fails with NotCoordinator when there is none, so that the caller waits for newer
// metadata, and with ErrClosed, as CoordinatorNotAvailable, after Close.
func (s *Set) Channel(image metadata.Reader, id int32) (transport.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errcode.CoordinatorNotAvailable.Wrap(ErrClosed)
	}
	if conn := s.local[id]; conn != nil {
		return conn, nil
	}
	var endpoint metadata.Endpoint
	found := false
	if member := image.Service(s.kind, id); member != nil {
		endpoint, found = member.Endpoint(metadata.GRPCEndpoint)
	}
	if !found {
		return nil, errcode.NotCoordinator.Wrap(fmt.Errorf("%s %d has no known address", s.kind, id))
	}
	address := transport.JoinAddress(endpoint.Host, endpoint.Port)
	conn := s.conns[address]
	if conn == nil {
		var err error
		if conn, err = s.dialer.Dial(address); err != nil {
			return nil, fmt.Errorf("%s %d: %w", s.kind, id, err)
		}
		s.conns[address] = conn
	}
	return conn, nil
}

// Update closes the connections to instances that the image does not have any more.
func (s *Set) Update(image metadata.Reader) {
	live := map[string]bool{}
	for _, member := range image.Services(s.kind) {
		if endpoint, ok := member.Endpoint(metadata.GRPCEndpoint); ok {
			live[transport.JoinAddress(endpoint.Host, endpoint.Port)] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for address, conn := range s.conns {
		if !live[address] {
			_ = conn.Close()
			delete(s.conns, address)
		}
	}
}

// Connections is how many connections are open.
func (s *Set) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Close breaks all connections.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	clear(s.conns)
	return errors.Join(errs...)
}
