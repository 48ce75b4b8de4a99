package transport

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// OnDisconnect has f called once the connection that a call came on has ended: because its other end closed it, or because the
// process there has died. There is one f for each name on a connection, the last one. The connection that is given stands for
// the connection itself; it is nil for calls within the process, for which f is never called.
func OnDisconnect(ctx context.Context, name string, f func(connection any)) (connection any) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	c, ok := p.Addr.(*watchedAddr)
	if !ok {
		return nil
	}
	c.watch(name, func() { f(c) })
	return c
}

// watchedConn is an accepted connection whose end is noticed.
type watchedConn struct {
	net.Conn
	addr *watchedAddr
}

func watched(c net.Conn) net.Conn {
	return &watchedConn{Conn: c, addr: &watchedAddr{Addr: c.RemoteAddr(), watchers: map[string]func(){}}}
}

// RemoteAddr is the address by which gRPC lets handlers know the connection.
func (c *watchedConn) RemoteAddr() net.Addr { return c.addr }

// Close ends the connection and tells those who watch it.
func (c *watchedConn) Close() error {
	err := c.Conn.Close()
	c.addr.end()
	return err
}

// watchedAddr is the address of a connection, and who wants to know of its end.
type watchedAddr struct {
	net.Addr
	mu       sync.Mutex
	ended    bool
	watchers map[string]func()
}

func (a *watchedAddr) watch(name string, f func()) {
	a.mu.Lock()
	ended := a.ended
	if !ended {
		a.watchers[name] = f
	}
	a.mu.Unlock()
	if ended {
		f()
	}
}

func (a *watchedAddr) end() {
	a.mu.Lock()
	a.ended = true
	watchers := a.watchers
	a.watchers = nil
	a.mu.Unlock()
	for _, f := range watchers {
		f()
	}
}
