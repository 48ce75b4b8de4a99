package transport

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// defaultCallTimeout is the deadline of unary calls whose caller set none.
const defaultCallTimeout = 30 * time.Second

// callMarks is the client side of a connection; watched says that a sentWatcher looks on.
type callMarks struct{ watched bool }

// unaryClient gives each call a deadline, turns its status into a Kafka error and notes whether it was sent at all.
func (c callMarks) unaryClient(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := withDefaultDeadline(ctx)
	defer cancel()
	callCtx, mark := c.mark(ctx)
	return mark.classify(FromStatus(ctx, invoke(callCtx, method, req, reply, cc, opts...)))
}

// streamClient turns the statuses of a stream into Kafka errors.
func (c callMarks) streamClient(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	callCtx, mark := c.mark(ctx)
	s, err := open(callCtx, desc, cc, method, opts...)
	if err != nil {
		return nil, mark.classify(FromStatus(ctx, err))
	}
	return mappedClientStream{s}, nil
}

func (c callMarks) mark(ctx context.Context) (context.Context, *sentMark) {
	if !c.watched {
		return ctx, nil
	}
	m := &sentMark{}
	return context.WithValue(ctx, sentKey{}, m), m
}

// withDefaultDeadline bounds a call that its caller did not bound.
func withDefaultDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultCallTimeout)
}

// mappedClientStream is a client stream whose errors are Kafka's; io.EOF stays.
type mappedClientStream struct{ grpc.ClientStream }

func (s mappedClientStream) SendMsg(m any) error { return s.mapped(s.ClientStream.SendMsg(m)) }
func (s mappedClientStream) RecvMsg(m any) error { return s.mapped(s.ClientStream.RecvMsg(m)) }

func (s mappedClientStream) mapped(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return FromStatus(s.Context(), err)
}

func unaryServer(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	return resp, ToStatus(err)
}

func streamServer(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return ToStatus(handle(srv, ss))
}

// sentKey finds the sentMark of a call in its context.
type sentKey struct{}

// sentMark notes that the headers of a call went out to a connection. A nil mark belongs to a call that nobody watches.
type sentMark struct{ sent atomic.Bool }

func (m *sentMark) classify(err error) error {
	if err == nil || m == nil || m.sent.Load() || Answered(err) {
		return err
	}
	return &unsentError{err}
}

// sentWatcher is the stats handler that sets sentMarks.
type sentWatcher struct{}

func (sentWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentWatcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if m, ok := ctx.Value(sentKey{}).(*sentMark); ok {
		m.sent.Store(true)
	}
}

func (sentWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentWatcher) HandleConn(context.Context, stats.ConnStats)                       {}
