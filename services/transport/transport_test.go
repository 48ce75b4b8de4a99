package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
)

// fakeController answers as a test sets it.
type fakeController struct {
	controllerv1.UnimplementedControllerServer
	handle func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	follow func(grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error
}

func (f *fakeController) Handle(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	return f.handle(ctx, e)
}

func (f *fakeController) FollowMetadata(s grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
	return f.follow(s)
}

// overEachTransport runs a test over TCP, a unix socket and inside the process, also with calls that share a stream.
func overEachTransport(t *testing.T, impl controllerv1.ControllerServer, test func(t *testing.T, c controllerv1.ControllerClient)) {
	t.Helper()
	unix := "unix://" + filepath.Join(t.TempDir(), "s")
	plain := func(c Conn) Conn { return c }
	for _, way := range []struct {
		name, address string
		wrap          func(Conn) Conn
	}{
		{"tcp", "127.0.0.1:0", plain}, {"unix", unix, plain}, {"local", LocalAddress("controller"), plain},
		{"tcp, carried", "127.0.0.1:0", Carried}, {"local, carried", LocalAddress("controller"), Carried},
	} {
		t.Run(way.name, func(t *testing.T) {
			address := way.address
			pool := NewDebugPool()
			local := NewLocal(pool)
			controllerv1.RegisterControllerServer(local.Channel("controller"), impl)
			if address != LocalAddress("controller") {
				s := startServer(t, address, impl)
				address = s.Address()
			}
			conn, err := NewDialer(Options{Pool: pool}, local).Dial(address)
			if err != nil {
				t.Fatal(err)
			}
			conn = way.wrap(conn)
			defer func() { _ = conn.Close() }()
			test(t, controllerv1.NewControllerClient(conn))
		})
	}
}

func startServer(t *testing.T, address string, impl controllerv1.ControllerServer) *Server {
	t.Helper()
	s, err := NewServer(address, Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	controllerv1.RegisterControllerServer(s, impl)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Stop(ctx)
	})
	return s
}

func TestCall(t *testing.T) {
	sent := &commonv1.Envelope{ApiKey: 19, ApiVersion: 7, ClientId: proto.String("c"), Body: bytes.Repeat([]byte("x"), 100_000)}
	impl := &fakeController{handle: func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		if _, ok := ctx.Deadline(); !ok {
			return nil, errors.New("no deadline")
		}
		if e == sent || !proto.Equal(e, sent) {
			return nil, errors.New("not a copy of what was sent")
		}
		return &commonv1.EnvelopeReply{Body: e.GetBody()[:50_000], MetadataOffset: 5}, nil
	}}
	overEachTransport(t, impl, func(t *testing.T, c controllerv1.ControllerClient) {
		reply, err := c.Handle(t.Context(), sent)
		if err != nil || len(reply.GetBody()) != 50_000 || reply.GetMetadataOffset() != 5 {
			t.Errorf("got %d bytes, offset %d, %v", len(reply.GetBody()), reply.GetMetadataOffset(), err)
		}
	})
}

func TestErrorsCrossAsTheyAre(t *testing.T) {
	secret := errors.New("disk 3 is on fire")
	for _, c := range []struct {
		name     string
		err      error
		code     errcode.Code
		text     string
		hint     string
		answered bool
	}{
		{"with a text", errcode.InvalidTopicException.Errorf("name %q", "/"), errcode.InvalidTopicException, `name "/"`, "", true},
		{"with a hint", WithHint(errcode.NotController.Err(), "c2:9093"), errcode.NotController, "", "c2:9093", true},
		{"wrapped", fmt.Errorf("create: %w", errcode.PolicyViolation.Wrap(secret)), errcode.PolicyViolation, "", "", true},
		{"of no code", secret, errcode.UnknownServerError, "", "", true},
		{"timed out by itself", errcode.RequestTimedOut.Err(), errcode.RequestTimedOut, "", "", true},
		{"stopping", context.Canceled, errcode.NetworkException, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			impl := &fakeController{handle: func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) { return nil, c.err }}
			overEachTransport(t, impl, func(t *testing.T, cc controllerv1.ControllerClient) {
				_, err := cc.Handle(t.Context(), &commonv1.Envelope{})
				var e *errcode.Error
				if !errors.As(err, &e) || e.Code != c.code || e.Text != c.text || Hint(err) != c.hint {
					t.Errorf("got %v with hint %q", err, Hint(err))
				}
				if Answered(err) != c.answered || Unsent(err) {
					t.Errorf("answered %v, unsent %v", Answered(err), Unsent(err))
				}
				if errors.Is(err, secret) {
					t.Error("the cause travelled")
				}
			})
		})
	}
}

func TestDeadlinesEndCalls(t *testing.T) {
	var begun atomic.Int32 // the newest attempt that the server has begun with
	impl := &fakeController{handle: func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		begun.Store(e.GetApiKey())
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	overEachTransport(t, impl, func(t *testing.T, c controllerv1.ControllerClient) {
		// The time must be enough for the call to begin, which takes as long as the machine is busy.
		var err error
		begun.Store(0)
		for attempt := int32(1); begun.Load() != attempt-1 || attempt == 1; attempt++ {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond<<attempt)
			_, err = c.Handle(ctx, &commonv1.Envelope{ApiKey: attempt})
			cancel()
		}
		if errcode.Of(err) != errcode.RequestTimedOut || !errors.Is(err, context.DeadlineExceeded) || Answered(err) || Unsent(err) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err = c.Handle(ctx, &commonv1.Envelope{}); !errors.Is(err, context.Canceled) || Answered(err) {
			t.Errorf("got %v", err)
		}
	})
}

func TestUnsent(t *testing.T) {
	local := NewLocal(NewPool())
	s := startServer(t, "127.0.0.1:0", &fakeController{})
	gone := s.Address()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{gone, "unix:///nowhere/s", LocalAddress("nobody")} {
		conn, err := NewDialer(Options{}, local).Dial(address)
		if err != nil {
			t.Fatal(err)
		}
		c := controllerv1.NewControllerClient(conn)
		_, err = c.Handle(t.Context(), &commonv1.Envelope{})
		if !Unsent(err) || Answered(err) || errcode.Of(err) != errcode.NetworkException {
			t.Errorf("%s: %v: unsent %v, answered %v", address, err, Unsent(err), Answered(err))
		}
		stream, err := c.FollowMetadata(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if errcode.Of(err) != errcode.NetworkException {
			t.Errorf("%s: stream: %v", address, err)
		}
		_ = conn.Close()
	}
}

func TestLostInTheMiddleIsNotUnsent(t *testing.T) {
	begun := make(chan struct{})
	s := startServer(t, "127.0.0.1:0", &fakeController{handle: func(ctx context.Context, _ *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	conn, err := NewDialer(Options{}, nil).Dial(s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		<-begun
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Stop(ctx)
	}()
	_, err = controllerv1.NewControllerClient(conn).Handle(t.Context(), &commonv1.Envelope{})
	if Unsent(err) || Answered(err) || errcode.Of(err) != errcode.NetworkException {
		t.Errorf("got %v: unsent %v, answered %v", err, Unsent(err), Answered(err))
	}
}

func TestStream(t *testing.T) {
	impl := &fakeController{follow: func(s grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
		for {
			req, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return errcode.NotController.Err()
			}
			if err != nil {
				return err
			}
			for i := range req.GetFromOffset() {
				batch := &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_Batch{
					Batch: &controllerv1.Batch{BaseOffset: i, Records: [][]byte{bytes.Repeat([]byte{1}, 5000)}}}}
				encoded, err := proto.Marshal(batch)
				if err != nil {
					return err
				}
				if err := s.SendMsg(Encoded(encoded)); err != nil {
					return err
				}
			}
		}
	}}
	overEachTransport(t, impl, func(t *testing.T, c controllerv1.ControllerClient) {
		s, err := c.FollowMetadata(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&controllerv1.FollowMetadataRequest{FromOffset: 100}); err != nil {
			t.Fatal(err)
		}
		for i := range int64(100) {
			resp, err := s.Recv()
			if err != nil || resp.GetBatch().GetBaseOffset() != i || len(resp.GetBatch().GetRecords()[0]) != 5000 {
				t.Fatalf("batch %d: %v, %v", i, resp.GetBatch().GetBaseOffset(), err)
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); errcode.Of(err) != errcode.NotController {
			t.Errorf("the end of the stream is %v", err)
		}
	})
}

func TestLocalStreamEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		local := NewLocal(NewPool())
		controllerv1.RegisterControllerServer(local.Channel("c"), &fakeController{
			follow: func(s grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
				_, err := s.Recv()
				ended <- err
				return err
			}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s, err := controllerv1.NewControllerClient(local.Channel("c")).FollowMetadata(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); errcode.Of(err) != errcode.RequestTimedOut {
			t.Errorf("got %v", err)
		}
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the handler got %v", err)
		}
	})
}

func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewDebugPool()
		n := rapid.IntRange(0, 1<<24).Draw(t, "n")
		b := p.Get(n)
		if len(*b) != n || cap(*b) < n {
			t.Fatalf("asked for %d, got %d of %d", n, len(*b), cap(*b))
		}
		if n > 1<<minPoolShift && cap(*b) >= 2*n {
			t.Fatalf("%d bytes take a buffer of %d", n, cap(*b))
		}
		p.Put(b)
		if p.Outstanding() != 0 {
			t.Fatalf("%d outstanding", p.Outstanding())
		}
	})
}

func TestDebugPoolPoisons(t *testing.T) {
	p := NewDebugPool()
	buffer, b := p.Buffer(5000)
	copy(b, "secret")
	shared := mem.BufferSlice{buffer, buffer.Slice(0, 10)}
	if p.Outstanding() != 1 {
		t.Errorf("%d outstanding", p.Outstanding())
	}
	shared[0].Free()
	if b[0] != 's' {
		t.Error("freed while a reference is left")
	}
	shared[1].Free()
	if b[0] != poisonByte || p.Outstanding() != 0 {
		t.Errorf("not poisoned: %x, %d outstanding", b[0], p.Outstanding())
	}
}

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		all, err := b.Acquire(t.Context(), 1000)
		if err != nil || all != 100 {
			t.Fatalf("took %d, %v", all, err)
		}
		got := make(chan int64)
		go func() {
			n, _ := b.Acquire(t.Context(), 10)
			got <- n
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("more was given than there is")
		default:
		}
		b.Release(all)
		if n := <-got; n != 10 {
			t.Errorf("took %d", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Acquire(ctx, 91); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{"host:1", "[::1]:65535", "unix:///a/b", "local:x"} {
		host, port, err := SplitAddress(address)
		if err != nil || JoinAddress(host, port) != address {
			t.Errorf("%s became %s, %v", address, JoinAddress(host, port), err)
		}
	}
	for _, bad := range []string{"", "host", "host:", "host:70000", "unix://relative", "::1:90"} {
		if _, _, err := SplitAddress(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
		if _, err := NewDialer(Options{}, nil).Dial(bad); err == nil {
			t.Errorf("%q was dialled", bad)
		}
		if _, err := NewServer(bad, Options{}, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q was listened on", bad)
		}
	}
}

func TestServerLifecycle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := startServer(t, "unix://"+path, &fakeController{})
	second, err := NewServer("unix://"+path, Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); err == nil {
		t.Error("two servers on one socket")
	}
	if first.Ready() != nil {
		t.Error(first.Ready())
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if first.Ready() == nil {
		t.Error("ready after the stop")
	}
	select {
	case err := <-first.Failed():
		t.Error("a stop is no failure:", err)
	default:
	}
}

func BenchmarkLocalCall(b *testing.B) {
	local := NewLocal(NewPool())
	controllerv1.RegisterControllerServer(local.Channel("c"), &fakeController{handle: func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return &commonv1.EnvelopeReply{}, nil
	}})
	c := controllerv1.NewControllerClient(local.Channel("c"))
	e := &commonv1.Envelope{ApiKey: 8, Principal: "User:x", Body: make([]byte, 200)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Handle(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
}
