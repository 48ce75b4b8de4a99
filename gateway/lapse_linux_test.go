package gateway_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"

	"chancery/gateway"
	"chancery/gateway/internal/fake"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// slowCoordinator keeps the first request until it is released, and answers commits.
type slowCoordinator struct {
	calls   atomic.Int32
	began   chan struct{}
	release chan struct{}
}

func (c *slowCoordinator) Handle(_ context.Context, _ metadata.ShardKind, _ int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	if c.calls.Add(1) == 1 {
		close(c.began)
		<-c.release
	}
	resp := kmsg.NewPtrOffsetCommitResponse()
	resp.SetVersion(int16(e.GetApiVersion()))
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

func (c *slowCoordinator) HandleAll(context.Context, metadata.ShardKind, *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error) {
	return nil, nil
}

// TestCommitsLapseWithTheirClient: a commit that was kept waiting until its client gave up is not carried out, since the
// client has gone on elsewhere; one that was sent right before the client closed is.
func TestCommitsLapseWithTheirClient(t *testing.T) {
	for name, test := range map[string]struct {
		held time.Duration
		want int32
	}{
		"kept waiting":        {1100 * time.Millisecond, 1},
		"sent before closing": {0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewCluster(1)
			c.AddTopic("__consumer_offsets", 1)
			slow := &slowCoordinator{began: make(chan struct{}), release: make(chan struct{})}
			now := newClock()
			g, err := gateway.New(gateway.Config{NodeID: 1, Properties: map[string]string{"listeners": "PLAINTEXT://127.0.0.1:0"}, Version: "test"}, gateway.Deps{
				Image: func() metadata.Reader { return c.Image() }, Await: c.Await, Storage: c.Storage, Controller: c, Coordinator: slow,
				Buffers: transport.NewDebugPool(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Now: now.now,
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			k := dial(t, g)
			commit := func(version int16) *kmsg.OffsetCommitRequest {
				req := kmsg.NewPtrOffsetCommitRequest()
				req.Version, req.Group = version, "g"
				return req
			}
			// Those of one version would be carried out together.
			k.send(commit(7), commit(6))
			<-slow.began
			hangUp(t, k.nc.(*net.TCPConn))
			now.advance(test.held)
			close(slow.release)
			// Stopping waits for the connection to end.
			if err := g.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := slow.calls.Load(); got != test.want {
				t.Errorf("%d commits carried out, want %d", got, test.want)
			}
		})
	}
}

// hangUp closes a connection, and returns when the other side's kernel knows.
func hangUp(t *testing.T, nc *net.TCPConn) {
	t.Helper()
	if err := nc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	raw, err := nc.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for acknowledged := false; !acknowledged; {
		outer := raw.Control(func(fd uintptr) {
			var info *unix.TCPInfo
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			acknowledged = err == nil && info.State != finWait1
		})
		if err := errors.Join(outer, err); err != nil {
			t.Fatal(err)
		}
	}
	_ = nc.Close()
}

// finWait1 is the state of a TCP connection whose end the other side has not acknowledged, as the kernel numbers it.
const finWait1 = 4
