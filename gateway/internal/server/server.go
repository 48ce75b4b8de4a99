package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"chancery/services/transport"
)

const (
	// sweepInterval is how often idle connections are looked for.
	sweepInterval = time.Second
	// acceptRetry is the pause after a connection could not be accepted, for want of file descriptors most likely.
	acceptRetry = 100 * time.Millisecond
)

// listener is an open socket for clients.
type listener struct {
	config   Listener
	socket   net.Listener
	open     atomic.Int64
	accepted atomic.Int64
	refused  atomic.Int64
}

// Server serves clients on its listeners.
type Server struct {
	config  Config
	deps    Deps
	budget  *transport.Budget
	metrics *metrics
	chunks  chunkPool
	began   time.Time

	// ctx ends when the server has to give everything up.
	ctx       context.Context
	cancel    context.CancelFunc
	listeners []*listener
	// accepting and serving count the goroutines of listeners and of connections.
	accepting sync.WaitGroup
	serving   sync.WaitGroup
	failed    chan error

	mu       sync.Mutex
	conns    map[*conn]struct{}
	perIP    map[string]int
	draining bool
	// room is signalled when a connection has gone.
	room sync.Cond
}

// New makes a server; Start opens its listeners.
func New(config Config, deps Deps) *Server {
	s := &Server{
		config: config, deps: deps, budget: transport.NewBudget(config.MaxQueuedBytes), began: deps.Now(),
		conns: make(map[*conn]struct{}), perIP: make(map[string]int), failed: make(chan error, 1),
	}
	s.room.L = &s.mu
	s.metrics = newMetrics(s, deps.Handlers.APIs())
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Collector gives the server's metrics.
func (s *Server) Collector() prometheus.Collector { return s.metrics }

// since is the time since the server was made.
func (s *Server) since() time.Duration { return s.deps.Now().Sub(s.began) }

// Listen opens the listeners; connections wait until Serve.
func (s *Server) Listen(ctx context.Context) error {
	for _, c := range s.config.Listeners {
		open := c.Listen
		if open == nil {
			open = func(address string) (net.Listener, error) {
				var lc net.ListenConfig
				return lc.Listen(ctx, "tcp", address)
			}
		}
		socket, err := open(c.Address)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("listener %s: %w", c.Name, err)
		}
		s.listeners = append(s.listeners, &listener{config: c, socket: socket})
	}
	return nil
}

// ListenerAddr is the address of the listener with this index in the Config, after Listen.
func (s *Server) ListenerAddr(i int) net.Addr { return s.listeners[i].socket.Addr() }

// Serve begins to accept connections.
func (s *Server) Serve() {
	for _, l := range s.listeners {
		s.accepting.Go(func() { s.accept(l) })
	}
	s.accepting.Go(s.sweep)
}

// Failed tells when a listener broke.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop accepts no more connections, lets the requests that have come be answered, and closes each connection after that.
// When ctx ends first, what is left is broken off.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.room.Broadcast()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	s.closeListeners()
	for _, c := range conns {
		c.drain()
	}
	done := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("connections were broken off: %w", ctx.Err())
		for _, c := range conns {
			c.close()
		}
	}
	s.cancel()
	s.accepting.Wait()
	if err != nil {
		s.serving.Wait()
	}
	return err
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		// A listener that is closed already has nothing more to close.
		_ = l.socket.Close()
	}
}

// accept takes connections until the listener is closed.
func (s *Server) accept(l *listener) {
	for s.awaitRoom() {
		nc, err := l.socket.Accept()
		switch {
		case err == nil:
			s.admit(l, nc)
		case errors.Is(err, net.ErrClosed):
			if !s.leaving() {
				s.fail(fmt.Errorf("listener %s was closed", l.config.Name))
			}
			return
		default:
			s.deps.Logger.Warn("a connection could not be accepted", "listener", l.config.Name, "error", err)
			if !pause(s.ctx, acceptRetry) {
				return
			}
		}
	}
}

func (s *Server) leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// awaitRoom waits until another connection may be accepted; false when the server is leaving.
func (s *Server) awaitRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.draining && s.config.MaxConnections > 0 && len(s.conns) >= s.config.MaxConnections {
		s.room.Wait()
	}
	return !s.draining
}

// admit begins to serve a connection, or closes it when its address has too many.
func (s *Server) admit(l *listener, nc net.Conn) {
	l.accepted.Add(1)
	ip := hostOf(nc.RemoteAddr())
	c := newConn(s, l, nc, ip)
	if !s.remember(c) {
		l.refused.Add(1)
		c.cancel()
		// It was never used.
		_ = nc.Close()
		return
	}
	s.setBuffers(nc)
	go func() {
		defer s.serving.Done()
		c.serve()
	}()
}

func (s *Server) remember(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.config.MaxConnectionsPerIP
	if n, ok := s.config.PerIPOverrides[c.ip]; ok {
		limit = n
	}
	if s.draining || limit > 0 && s.perIP[c.ip] >= limit {
		return false
	}
	if s.config.MaxAge > 0 {
		// A tenth more or less, so that connections that came together do not go together.
		c.expires = s.since() + s.config.MaxAge/100*time.Duration(90+rand.IntN(20))
	}
	s.conns[c] = struct{}{}
	s.perIP[c.ip]++
	c.lis.open.Add(1)
	s.serving.Add(1)
	return true
}

// forget is called once for each connection that was closed.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.perIP[c.ip]--; s.perIP[c.ip] == 0 {
		delete(s.perIP, c.ip)
	}
	c.lis.open.Add(-1)
	s.room.Broadcast()
}

func (s *Server) setBuffers(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	// The system may give less than it is asked for; that is not worth a connection.
	if s.config.SendBufferBytes > 0 {
		_ = tcp.SetWriteBuffer(s.config.SendBufferBytes)
	}
	if s.config.ReceiveBufferBytes > 0 {
		_ = tcp.SetReadBuffer(s.config.ReceiveBufferBytes)
	}
}

// sweep closes connections on which nothing happens, and ends those that are old.
func (s *Server) sweep() {
	interval := sweepInterval
	for _, d := range []time.Duration{s.config.IdleTimeout, s.config.MaxAge} {
		if d > 0 {
			interval = min(interval, max(d/4, time.Millisecond))
		}
	}
	for pause(s.ctx, interval) {
		idle, old := s.overdue(s.since())
		for _, c := range idle {
			s.deps.Logger.Debug("an idle connection is closed", "client", c.ip, "listener", c.info.Listener)
			c.close()
		}
		for _, c := range old {
			c.drain()
		}
	}
}

// overdue finds the connections whose time is over.
func (s *Server) overdue(now time.Duration) (idle, old []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		switch {
		case s.config.IdleTimeout > 0 && now-time.Duration(c.active.Load()) > s.config.IdleTimeout:
			idle = append(idle, c)
		case c.expires > 0 && now > c.expires:
			c.expires = 0
			old = append(old, c)
		}
	}
	return idle, old
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// hostOf is the address without the port.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
