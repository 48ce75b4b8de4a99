package server

import (
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/handler"
)

// Listener is an address to listen on, and the name by which clients' requests tell the listeners apart.
type Listener struct {
	Name    string
	Address string
	// NodeID is the node that clients mean who dial this address; handler.UnknownNode when it may be any.
	NodeID int32
	// Listen opens the socket; nil means TCP. Tests and other transports set it.
	Listen func(address string) (net.Listener, error)
}

// Config is the settings of a server.
type Config struct {
	Listeners []Listener
	// MaxRequestBytes bounds one request (socket.request.max.bytes).
	MaxRequestBytes int32
	// MaxQueuedBytes bounds the bytes of all requests that have been read and not answered (queued.max.request.bytes).
	MaxQueuedBytes int64
	// MaxInFlight bounds the requests of one connection that run beside each other.
	MaxInFlight int
	// IdleTimeout closes connections without traffic (connections.max.idle.ms); 0 or less means never.
	IdleTimeout time.Duration
	// MaxAge closes connections that are so old, between two requests (connection.max.age.ms); 0 or less means never.
	MaxAge time.Duration
	// MaxConnections and MaxConnectionsPerIP bound the connections; 0 or less means no bound. PerIPOverrides are bounds of
	// single addresses.
	MaxConnections      int
	MaxConnectionsPerIP int
	PerIPOverrides      map[string]int
	// SendBufferBytes and ReceiveBufferBytes are the sizes of the sockets' buffers; -1 leaves them to the system.
	SendBufferBytes    int
	ReceiveBufferBytes int
}

// Deps are what a server works with.
type Deps struct {
	Handlers *handler.Handlers
	// Buffers lends the buffers of produce requests.
	Buffers mem.BufferPool
	Now     func() time.Time
	Logger  *slog.Logger
}
