package handler

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/fake"
	"chancery/gateway/internal/pacer"
	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/session"
	"chancery/gateway/internal/wire"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// noCoordinator is a coordinator that cannot be reached.
type noCoordinator struct{}

func (noCoordinator) Handle(context.Context, metadata.ShardKind, int32, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	return nil, errcode.CoordinatorNotAvailable.Err()
}

func (noCoordinator) HandleAll(context.Context, metadata.ShardKind, *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error) {
	return nil, errcode.CoordinatorNotAvailable.Err()
}

// handlersOf makes the handlers of a gateway in front of a cluster.
func handlersOf(c *fake.Cluster) *Handlers {
	config := NewConfig(configdef.NewNode(map[string]string{"request.timeout.ms": "1000"}))
	return New(config, Deps{
		Image: c.Image, Await: c.Await, Storage: c.Storage, Controller: c, Coordinator: noCoordinator{},
		Addresses: routing.NewAddresses(nil), Sessions: session.NewCache(10, time.Minute), Messages: new(wire.Pool), Now: time.Now,
		Pacer: pacer.New(time.Now), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

func TestTheTableAgreesWithTheCodec(t *testing.T) {
	last := int16(-1)
	for _, a := range table() {
		if a.Key <= last {
			t.Errorf("%s stands in the wrong place", a.Name)
		}
		last = a.Key
		if (a.Handle == nil) == (a.Start == nil) {
			t.Errorf("%s must have one of Handle and Start", a.Name)
		}
		req := kmsg.RequestForKey(a.Key)
		if req == nil || req.MaxVersion() < a.Max || a.Min > a.Max || a.Advertised > a.Min {
			t.Fatalf("%s: versions %d to %d", a.Name, a.Min, a.Max)
		}
		for v := a.Min; v <= a.Max; v++ {
			req.SetVersion(v)
			if req.IsFlexible() != a.Flexible(v) {
				t.Errorf("%s version %d: flexible %v", a.Name, v, a.Flexible(v))
			}
		}
	}
}

// call runs a request to its end; ok is false when it closes the connection.
func call(t testing.TB, h *Handlers, a *API, version int16, body []byte) (m *wire.Message, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := &Request{
		Key: a.Key, Version: version, CorrelationID: 1, Body: body, Frame: mem.SliceBuffer(body), Arrived: time.Now(),
		Conn: &Conn{Listener: "PLAINTEXT", Host: "/127.0.0.1", Principal: Anonymous, NodeID: UnknownNode},
	}
	var err error
	if a.Handle != nil {
		m, err = a.Handle(h, ctx, r)
	} else {
		done := make(chan struct{})
		a.Start(h, ctx, r, func(answer *wire.Message, failed error) {
			m, err = answer, failed
			close(done)
		})
		<-done
	}
	return m, err == nil
}

func TestEveryVersionIsAnsweredInThatVersion(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	c.Controller = func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return nil, errcode.RequestTimedOut.Err()
	}
	h := handlersOf(c)
	for i := range h.APIs() {
		a := &h.APIs()[i]
		for v := a.Min; v <= a.Max; v++ {
			req := kmsg.RequestForKey(a.Key)
			req.SetVersion(v)
			if p, ok := req.(*kmsg.ProduceRequest); ok {
				p.Acks = -1
			}
			m, ok := call(t, h, a, v, req.AppendTo(nil))
			if !ok || m == nil {
				t.Errorf("%s version %d: not answered", a.Name, v)
				continue
			}
			skip := 8
			if a.Flexible(v) && a.Key != 18 {
				skip++
			}
			resp := req.ResponseKind()
			resp.SetVersion(v)
			if err := resp.ReadFrom(m.B[skip:]); err != nil {
				t.Errorf("%s version %d: %v", a.Name, v, err)
			} else if again := resp.AppendTo(nil); string(again) != string(m.B[skip:]) {
				t.Errorf("%s version %d: %x, want %x", a.Name, v, m.B[skip:], again)
			}
			m.Release()
		}
	}
}

// FuzzRequests throws any body at any API: nothing may panic.
func FuzzRequests(f *testing.F) {
	for i, a := range table() {
		for v := a.Min; v <= a.Max; v++ {
			req := kmsg.RequestForKey(a.Key)
			req.SetVersion(v)
			f.Add(uint8(i), v, req.AppendTo(nil))
		}
	}
	c := fake.NewCluster(1)
	c.AddTopic("a", 1)
	c.Controller = func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return &commonv1.EnvelopeReply{Body: []byte{0, 0, 0}}, nil
	}
	h := handlersOf(c)
	f.Fuzz(func(t *testing.T, api uint8, version int16, body []byte) {
		a := &h.APIs()[int(api)%len(h.APIs())]
		if !a.Serves(version) || len(body) > 1<<16 {
			t.Skip()
		}
		if m, _ := call(t, h, a, version, body); m != nil {
			m.Seal()
			m.Release()
		}
	})
}
