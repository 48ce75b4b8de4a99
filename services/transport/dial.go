package transport

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

const (
	// The windows bound what one stream and one connection have under way; they are static, because gRPC's own estimate
	// starts too small for record batches. 1 MiB for a connection is 1 GB/s at 1 ms.
	tcpStreamWindow  = 512 << 10
	tcpConnWindow    = 1 << 20
	unixStreamWindow = 1 << 20
	unixConnWindow   = 4 << 20
	tcpBuffer        = 256 << 10
	unixBuffer       = 128 << 10
	unixSocketBuffer = 2 << 20

	// messageSlack is what a message may be larger than the largest client request that it carries.
	messageSlack = 1 << 20
	// defaultMaxRequestBytes is Kafka's default of socket.request.max.bytes.
	defaultMaxRequestBytes = 100 << 20

	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// minPingInterval is how often a client may ping before a server takes it for an attack.
	minPingInterval = 5 * time.Second

	// A lost connection is tried again soon: processes come back within a second or two, and nothing else works
	// meanwhile. Each attempt is bounded, so that a host that swallows packets does not hold requests for long.
	redialBase    = 50 * time.Millisecond
	redialMax     = time.Second
	dialTimeout   = 3 * time.Second
	tcpKeepAlive  = 15 * time.Second
	unixScheme    = "unix://"
	localScheme   = "local:"
	passthroughTo = "passthrough:///"
)

// Options are what both ends of a connection agree on. The zero value is good for plain connections.
type Options struct {
	// Pool is where buffers of messages come from; nil makes a new one.
	Pool *Pool
	// MaxRequestBytes is the largest client request, which a message must be able to carry; 0 means Kafka's default of
	// socket.request.max.bytes.
	MaxRequestBytes int
	// ClientCredentials and ServerCredentials secure the connections; nil means plaintext.
	ClientCredentials credentials.TransportCredentials
	ServerCredentials credentials.TransportCredentials
}

func (o Options) withDefaults() Options {
	if o.Pool == nil {
		o.Pool = NewPool()
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = defaultMaxRequestBytes
	}
	if o.ClientCredentials == nil {
		o.ClientCredentials = insecure.NewCredentials()
	}
	if o.ServerCredentials == nil {
		o.ServerCredentials = insecure.NewCredentials()
	}
	return o
}

// Conn is a channel to a service, over the network or inside the process.
type Conn interface {
	grpc.ClientConnInterface
	Close() error
}

// Dialer makes channels.
type Dialer struct {
	options Options
	local   *Local
}

// NewDialer makes a dialer; local may be nil where no service is in the same process.
func NewDialer(o Options, local *Local) *Dialer {
	return &Dialer{options: o.withDefaults(), local: local}
}

// Pool is where the buffers of the dialer's connections come from.
func (d *Dialer) Pool() *Pool { return d.options.Pool }

// Dial makes a channel to an address. It does not wait for a connection: that is made when it is first needed, and again
// when it is lost. A call made while there is none fails at once after a failed attempt, and Unsent says so of its error.
func (d *Dialer) Dial(address string) (Conn, error) {
	if name, ok := strings.CutPrefix(address, localScheme); ok {
		if d.local == nil {
			return nil, fmt.Errorf("address %q: no services in this process", address)
		}
		return d.local.Channel(name), nil
	}
	if _, _, err := splitAddress(address); err != nil {
		return nil, err
	}
	marking := callMarks{watched: true}
	return grpc.NewClient(passthroughTo+address, append(d.dialOptions(address, marking), grpc.WithStatsHandler(sentWatcher{}))...)
}

// DialData is Dial for record batches: it watches no call, which would cost allocations for each message, so Unsent is
// false for all its errors. Services in the same process cannot be reached so: their contract is called directly.
func (d *Dialer) DialData(address string) (*grpc.ClientConn, error) {
	if _, _, err := splitAddress(address); err != nil {
		return nil, err
	}
	return grpc.NewClient(passthroughTo+address, d.dialOptions(address, callMarks{})...)
}

func (d *Dialer) dialOptions(address string, marks callMarks) []grpc.DialOption {
	o := d.options
	maxBytes := o.MaxRequestBytes + messageSlack
	streamWindow, connWindow, buffer := windows(address)
	return []grpc.DialOption{
		grpc.WithTransportCredentials(o.ClientCredentials),
		grpc.WithContextDialer(dialNet),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(buffer),
		grpc.WithWriteBufferSize(buffer),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(NewCodec(o.Pool)),
			grpc.MaxCallRecvMsgSize(maxBytes),
			grpc.MaxCallSendMsgSize(maxBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMax},
			MinConnectTimeout: dialTimeout}),
		grpc.WithUnaryInterceptor(marks.unaryClient),
		grpc.WithStreamInterceptor(marks.streamClient),
		experimental.WithBufferPool(o.Pool),
	}
}

// serverOptions are the same for a server that listens on an address.
func (o Options) serverOptions(address string) []grpc.ServerOption {
	maxBytes := o.MaxRequestBytes + messageSlack
	streamWindow, connWindow, buffer := windows(address)
	return []grpc.ServerOption{
		grpc.Creds(o.ServerCredentials),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ReadBufferSize(buffer),
		grpc.WriteBufferSize(buffer),
		grpc.MaxRecvMsgSize(maxBytes),
		grpc.MaxSendMsgSize(maxBytes),
		grpc.ForceServerCodecV2(NewCodec(o.Pool)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(unaryServer),
		grpc.StreamInterceptor(streamServer),
		experimental.BufferPool(o.Pool),
	}
}

func windows(address string) (stream, conn int32, buffer int) {
	if strings.HasPrefix(address, unixScheme) {
		return unixStreamWindow, unixConnWindow, unixBuffer
	}
	return tcpStreamWindow, tcpConnWindow, tcpBuffer
}

// splitAddress gives the network and the address that package net wants.
func splitAddress(address string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(address, unixScheme); ok {
		if !strings.HasPrefix(path, "/") {
			return "", "", fmt.Errorf("address %q: want unix:///path", address)
		}
		return "unix", path, nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("address %q: want host:port or unix:///path: %w", address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("address %q: %q is no port", address, port)
	}
	return "tcp", address, nil
}

func dialNet(ctx context.Context, address string) (net.Conn, error) {
	network, addr, err := splitAddress(address)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{KeepAlive: tcpKeepAlive}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if err := growUnixBuffers(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// growUnixBuffers makes the socket buffers of a unix socket large enough for a window of data; the kernel's default of
// about 200 KiB costs a wake-up for each few messages.
func growUnixBuffers(conn net.Conn) error {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	if err := u.SetReadBuffer(unixSocketBuffer); err != nil {
		return err
	}
	return u.SetWriteBuffer(unixSocketBuffer)
}

// JoinAddress makes an address of a registered endpoint. Hosts that are whole addresses already, of unix sockets and of
// services in the same process, have no port.
func JoinAddress(host string, port uint16) string {
	if strings.HasPrefix(host, unixScheme) || strings.HasPrefix(host, localScheme) {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// SplitAddress is the inverse of JoinAddress.
func SplitAddress(address string) (host string, port uint16, err error) {
	if strings.HasPrefix(address, localScheme) {
		return address, 0, nil
	}
	network, addr, err := splitAddress(address)
	if err != nil {
		return "", 0, err
	}
	if network == "unix" {
		return address, 0, nil
	}
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, uint16(n), err
}
