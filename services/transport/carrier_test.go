package transport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
)

func carriedClient(t *testing.T, address string) (controllerv1.ControllerClient, Conn) {
	t.Helper()
	conn, err := NewDialer(Options{}, nil).Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	conn = Carried(conn)
	t.Cleanup(func() { _ = conn.Close() })
	return controllerv1.NewControllerClient(conn), conn
}

// TestCarriedCallsAreMatched: each of many calls at once gets its own answer, in whatever order they end, and messages that fill
// several frames arrive whole.
func TestCarriedCallsAreMatched(t *testing.T) {
	s := startServer(t, "127.0.0.1:0", &fakeController{handle: func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if e.GetApiKey()%7 == 3 {
			return nil, errcode.InvalidRequest.Errorf("number %d", e.GetApiKey())
		}
		return &commonv1.EnvelopeReply{Body: e.GetBody(), MetadataOffset: int64(e.GetApiKey())}, nil
	}})
	c, _ := carriedClient(t, s.Address())
	var wg sync.WaitGroup
	for i := range int32(2000) {
		wg.Go(func() {
			body := make([]byte, 1+i%64<<10)
			reply, err := c.Handle(t.Context(), &commonv1.Envelope{ApiKey: i, Body: body})
			if i%7 == 3 {
				if errcode.Of(err) != errcode.InvalidRequest || errcode.Text(err) != "number "+strconv.Itoa(int(i)) {
					t.Errorf("call %d: %v", i, err)
				}
				return
			}
			if err != nil || reply.GetMetadataOffset() != int64(i) || len(reply.GetBody()) != len(body) {
				t.Errorf("call %d got the answer of %d with %d bytes, %v", i, reply.GetMetadataOffset(), len(reply.GetBody()), err)
			}
		})
	}
	wg.Wait()
}

// TestCarriedCallIsCancelled: the server learns that nobody waits any more, and the stream serves on.
func TestCarriedCallIsCancelled(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	s := startServer(t, "127.0.0.1:0", &fakeController{handle: func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if e.GetApiKey() == 1 {
			return &commonv1.EnvelopeReply{}, nil
		}
		close(begun)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}})
	c, conn := carriedClient(t, s.Address())
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if _, err := c.Handle(ctx, &commonv1.Envelope{}); Answered(err) || Unsent(err) {
		t.Errorf("the cancelled call: %v", err)
	}
	<-ended
	before := conn.(*carrier).stream
	if _, err := c.Handle(t.Context(), &commonv1.Envelope{ApiKey: 1}); err != nil || conn.(*carrier).stream != before {
		t.Errorf("the call after it: %v", err)
	}
}

// TestCarriedCallsOfAServerThatStops: what it has taken is answered, what it has not taken may be repeated, and a new server at
// the same address is found.
func TestCarriedCallsOfAServerThatStops(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	slow := &fakeController{handle: func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if e.GetApiKey() == 1 {
			close(begun)
			<-release
		}
		return &commonv1.EnvelopeReply{}, nil
	}}
	s := startServer(t, "127.0.0.1:0", slow)
	c, _ := carriedClient(t, s.Address())
	first := make(chan error, 1)
	go func() {
		_, err := c.Handle(t.Context(), &commonv1.Envelope{ApiKey: 1})
		first <- err
	}()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.WithoutCancel(t.Context())) }()
	// Once the server is leaving, calls are refused, on the old stream or on a new one, and never left open.
	for {
		if _, err := c.Handle(t.Context(), &commonv1.Envelope{}); err != nil {
			if !Unsent(err) {
				t.Fatalf("refused as if it had been sent: %v", err)
			}
			break
		}
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	again, err := NewServer(s.Address(), Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	controllerv1.RegisterControllerServer(again, &fakeController{handle: func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return &commonv1.EnvelopeReply{}, nil
	}})
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Stop(context.WithoutCancel(t.Context())) }()
	for begin := time.Now(); ; {
		_, err := c.Handle(t.Context(), &commonv1.Envelope{})
		if err == nil {
			break
		}
		if !Unsent(err) || time.Since(begin) > 10*time.Second {
			t.Fatalf("after the restart: %v", err)
		}
	}
}

// TestCarriedCallsAreLostWithTheirServer: what had been sent may have been carried out.
func TestCarriedCallsAreLostWithTheirServer(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(3)
	s := startServer(t, "127.0.0.1:0", &fakeController{handle: func(ctx context.Context, _ *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		begun.Done()
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	c, _ := carriedClient(t, s.Address())
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := c.Handle(t.Context(), &commonv1.Envelope{}); Unsent(err) || Answered(err) || errcode.Of(err) != errcode.NetworkException {
				t.Errorf("got %v: unsent %v, answered %v", err, Unsent(err), Answered(err))
			}
		})
	}
	begun.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Stop(ctx)
	wg.Wait()
}

func TestCarriedCallsToNobody(t *testing.T) {
	s := startServer(t, "127.0.0.1:0", &fakeController{})
	gone := s.Address()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, conn := carriedClient(t, gone)
		if _, err := c.Handle(t.Context(), &commonv1.Envelope{}); !Unsent(err) || Answered(err) {
			t.Errorf("got %v", err)
		}
		_ = conn.Close()
		if _, err := c.Handle(t.Context(), &commonv1.Envelope{}); !Unsent(err) || Answered(err) {
			t.Errorf("after the close: %v", err)
		}
	}
}

// TestServerThatCarriesNoCalls: during an upgrade the other side may be of a release that does not know the stream.
func TestServerThatCarriesNoCalls(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := grpc.NewServer(Options{}.withDefaults().serverOptions(l.Addr().String())...)
	controllerv1.RegisterControllerServer(old, &fakeController{handle: func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if e.GetApiKey() == 1 {
			return nil, errcode.NotController.Err()
		}
		return &commonv1.EnvelopeReply{Body: e.GetBody()}, nil
	}})
	go func() { _ = old.Serve(l) }()
	defer old.Stop()
	c, _ := carriedClient(t, l.Addr().String())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 8 {
				reply, err := c.Handle(t.Context(), &commonv1.Envelope{Body: []byte("body")})
				if err != nil || string(reply.GetBody()) != "body" {
					t.Errorf("got %v, %v", reply, err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := c.Handle(t.Context(), &commonv1.Envelope{ApiKey: 1}); errcode.Of(err) != errcode.NotController {
		t.Errorf("got %v", err)
	}
}

// BenchmarkCalls compares calls of 64 goroutines, each by itself and carried.
func BenchmarkCalls(b *testing.B) {
	impl := &fakeController{handle: func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return &commonv1.EnvelopeReply{Body: []byte("answer")}, nil
	}}
	s, err := NewServer("127.0.0.1:0", Options{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		b.Fatal(err)
	}
	controllerv1.RegisterControllerServer(s, impl)
	if err := s.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Stop(context.WithoutCancel(b.Context())) }()
	for _, way := range []struct {
		name string
		wrap func(Conn) Conn
	}{{"plain", func(c Conn) Conn { return c }}, {"carried", Carried}} {
		b.Run(way.name, func(b *testing.B) {
			conn, err := NewDialer(Options{}, nil).Dial(s.Address())
			if err != nil {
				b.Fatal(err)
			}
			conn = way.wrap(conn)
			defer func() { _ = conn.Close() }()
			c := controllerv1.NewControllerClient(conn)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						if _, err := c.Handle(b.Context(), &commonv1.Envelope{Body: []byte("a request of some size")}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
