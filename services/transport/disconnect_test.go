package transport

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
)

// TestDisconnect ends connections from the client's side: whoever watches hears of it once, and only by the last name.
func TestDisconnect(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "unix://" + filepath.Join(t.TempDir(), "s")} {
		t.Run(address, func(t *testing.T) {
			heard := make(chan any, 10)
			var connection any
			impl := &fakeController{handle: func(ctx context.Context, _ *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
				OnDisconnect(ctx, "member", func(any) { t.Error("a watcher that was replaced has been called") })
				connection = OnDisconnect(ctx, "member", func(c any) { heard <- c })
				return &commonv1.EnvelopeReply{}, nil
			}}
			s, err := NewServer(address, Options{}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			controllerv1.RegisterControllerServer(s, impl)
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			conn, err := NewDialer(Options{Pool: NewPool()}, nil).Dial(s.Address())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := controllerv1.NewControllerClient(conn).Handle(ctx, &commonv1.Envelope{}); err != nil {
				t.Fatal(err)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case c := <-heard:
				if c == nil || c != connection {
					t.Fatalf("heard of %v, want %v", c, connection)
				}
			case <-ctx.Done():
				t.Fatal("nobody has heard of the end of the connection")
			}
			if err := s.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if len(heard) > 0 {
				t.Fatal("heard of it twice")
			}
		})
	}
}

func TestCallsWithinTheProcessHaveNoConnection(t *testing.T) {
	if c := OnDisconnect(t.Context(), "member", func(any) {}); c != nil {
		t.Fatalf("%v", c)
	}
}
