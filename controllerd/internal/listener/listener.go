package listener

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	commonv1 "chancery/proto/common/v1"

	"chancery/controllerd/internal/feed"
)

const (
	// acceptPause is how long the listener waits when the system has no more files for connections.
	acceptPause = 100 * time.Millisecond
	// writeTimeout is how long a client may take to read an answer.
	writeTimeout = 30 * time.Second
	// bufferBytes is how much is read from a connection at once; larger frames are read into memory of their own.
	bufferBytes = 16 << 10
)

// Config describes the listener.
type Config struct {
	// NodeID is the controller's id.
	NodeID int32
	// Name is the listener's name (controller.listener.names).
	Name string
	// Address is where it listens: "host:port".
	Address string
	// MaxRequestBytes bounds a request (socket.request.max.bytes), IdleTimeout the silence of a client
	// (connections.max.idle.ms).
	MaxRequestBytes int
	IdleTimeout     time.Duration
	// Properties are this controller's static configs, which DescribeConfigs tells.
	Properties map[string]string
	// SnapshotDir has the copy of the metadata log, whose snapshots FetchSnapshot gives.
	SnapshotDir string

	// Handle takes a request to the active controller.
	Handle func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	// State is what is durable, as this controller knows it.
	State  func() feed.State
	Logger *slog.Logger
}

// Listener serves clients; it is made by New and works from Start to Stop.
type Listener struct {
	Config
	apis     map[int16]*api
	listener net.Listener
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// New makes a listener.
func New(c Config) *Listener {
	l := &Listener{Config: c, apis: map[int16]*api{}, conns: map[net.Conn]bool{}}
	rows := table()
	for i := range rows {
		l.apis[rows[i].key] = &rows[i]
	}
	return l
}

// Start binds the address and serves.
func (l *Listener) Start(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("listener %s: %w", l.Name, err)
	}
	l.listener = listener
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.running.Go(func() { l.accept(ctx) })
	return nil
}

// Addr is where the listener is, with the real port.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Stop ends all connections.
func (l *Listener) Stop() error {
	if l.listener == nil {
		return nil
	}
	l.cancel()
	err := l.listener.Close()
	l.mu.Lock()
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
	return err
}

func (l *Listener) accept(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.Logger.Warn("accepting connections", "listener", l.Name, "error", err)
			t := time.NewTimer(acceptPause)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
			continue
		}
		l.mu.Lock()
		l.conns[c] = true
		l.mu.Unlock()
		l.running.Go(func() {
			defer func() {
				l.mu.Lock()
				delete(l.conns, c)
				l.mu.Unlock()
				_ = c.Close()
			}()
			if err := l.serve(ctx, c); err != nil && ctx.Err() == nil {
				l.Logger.Info("closing a connection", "listener", l.Name, "client", c.RemoteAddr().String(), "reason", err)
			}
		})
	}
}

// serve answers one request after the other until the client goes.
func (l *Listener) serve(ctx context.Context, c net.Conn) error {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return err
	}
	client := client{host: "/" + host, listener: l.Name, principal: anonymous}
	r := bufio.NewReaderSize(c, bufferBytes)
	for {
		if l.IdleTimeout > 0 {
			if err := c.SetReadDeadline(time.Now().Add(l.IdleTimeout)); err != nil {
				return err
			}
		}
		frame, err := l.readFrame(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer, err := l.answer(ctx, client, frame)
		if err != nil {
			return err
		}
		if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := c.Write(answer); err != nil {
			return err
		}
	}
}

func (l *Listener) readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int32(binary.BigEndian.Uint32(size[:]))
	if n < minHeaderBytes || int(n) > l.MaxRequestBytes {
		return nil, fmt.Errorf("a request of %d bytes, want %d to %d", n, minHeaderBytes, l.MaxRequestBytes)
	}
	// The memory grows with what arrives, not with what is claimed.
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(body) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return body, err
}
