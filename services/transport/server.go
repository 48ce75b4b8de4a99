package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	transportv1 "chancery/proto/transport/v1"
)

// Server listens on an address and serves the services registered on it, with gRPC's health service beside them. It is a
// lifecycle.Service; services register before Start.
type Server struct {
	address string
	logger  *slog.Logger
	grpc    *grpc.Server
	health  *health.Server
	carried *carriedServices
	bound   atomic.Pointer[string]
	serving atomic.Bool
	failed  chan error
}

// NewServer makes a server for "host:port" or "unix:///path"; port 0 means any free one.
func NewServer(address string, o Options, logger *slog.Logger) (*Server, error) {
	if _, _, err := splitAddress(address); err != nil {
		return nil, err
	}
	s := &Server{
		address: address,
		logger:  logger,
		grpc:    grpc.NewServer(o.withDefaults().serverOptions(address)...),
		health:  health.NewServer(),
		carried: newCarriedServices(),
		failed:  make(chan error, 1),
	}
	healthv1.RegisterHealthServer(s.grpc, s.health)
	transportv1.RegisterCallsServer(s.grpc, s.carried)
	return s, nil
}

// RegisterService makes the server a grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
	s.carried.add(desc, impl)
}

// Start listens and serves.
func (s *Server) Start(ctx context.Context) error {
	network, addr, err := splitAddress(s.address)
	if err != nil {
		return err
	}
	if network == "unix" {
		if err := removeStaleSocket(addr); err != nil {
			return err
		}
	}
	l, err := (&net.ListenConfig{KeepAlive: tcpKeepAlive}).Listen(ctx, network, addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.address, err)
	}
	bound := l.Addr().String()
	if network == "unix" {
		bound = s.address
	}
	s.bound.Store(&bound)
	s.serving.Store(true)
	go func() {
		err := s.grpc.Serve(growingListener{l})
		if s.serving.Swap(false) {
			s.failed <- fmt.Errorf("serve on %s: %w", s.address, err)
		}
	}()
	s.logger.Info("listening for other services", "address", bound)
	return nil
}

// Address is where the server listens, with the real port; empty before Start.
func (s *Server) Address() string {
	if a := s.bound.Load(); a != nil {
		return *a
	}
	return ""
}

// Stop takes no more calls, waits for those under way within the context's time, then breaks the rest. Long streams
// last until their handlers end them, so services stop before their server.
func (s *Server) Stop(ctx context.Context) error {
	s.serving.Store(false)
	s.health.Shutdown()
	s.carried.leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		return ctx.Err()
	}
}

// Failed tells when serving ended by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Ready is nil while the server accepts connections.
func (s *Server) Ready() error {
	if !s.serving.Load() {
		return errors.New("not serving")
	}
	return nil
}

// removeStaleSocket removes the socket that an earlier process left behind: a unix socket outlives its listener. A socket
// that someone answers on is left, and listening then fails.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if conn, err := net.Dial("unix", path); err == nil {
		return conn.Close()
	}
	return os.Remove(path)
}

// growingListener gives accepted unix sockets large buffers, and has the end of connections noticed.
type growingListener struct{ net.Listener }

func (l growingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if err := growUnixBuffers(conn); err != nil {
		_ = conn.Close()
		// The listener itself is fine; the peer of this connection sees it closed and tries again.
		return l.Accept()
	}
	return watched(conn), nil
}
