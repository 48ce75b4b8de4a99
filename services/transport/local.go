package transport

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"chancery/services/kafka/errcode"
)

// Local holds the channels to the services of this process, by name. One Local belongs to one process (or, in tests, to
// each process that a test plays).
type Local struct {
	codec    encoding.CodecV2
	mu       sync.Mutex
	channels map[string]*Channel
}

// NewLocal makes an empty registry whose messages use buffers of pool.
func NewLocal(pool *Pool) *Local {
	return &Local{codec: NewCodec(pool), channels: map[string]*Channel{}}
}

// Channel is the channel of a name, the same one for every caller: the server registers its services on it, clients call
// them through it, in any order. A call before the registration fails as one to a port where nobody listens.
func (l *Local) Channel(name string) *Channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[name]
	if c == nil {
		c = &Channel{name: name, codec: l.codec, services: map[string]localService{}}
		l.channels[name] = c
	}
	return c
}

// LocalAddress is the address of a channel of a Local.
func LocalAddress(name string) string { return localScheme + name }

// Channel carries calls between services of one process without HTTP/2. Messages are copied, so that the ends share
// nothing; errors are those that a network would show.
//
// A unary call runs on the caller's goroutine and returns when the handler does: handlers must heed their context.
type Channel struct {
	name     string
	codec    encoding.CodecV2
	mu       sync.RWMutex
	services map[string]localService
}

type localService struct {
	desc *grpc.ServiceDesc
	impl any
}

var (
	_ grpc.ServiceRegistrar = (*Channel)(nil)
	_ Conn                  = (*Channel)(nil)
)

// RegisterService offers a service on the channel, in place of an earlier one of the same name.
func (c *Channel) RegisterService(desc *grpc.ServiceDesc, impl any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[desc.ServiceName] = localService{desc: desc, impl: impl}
}

// Close does nothing: the channel belongs to its Local.
func (c *Channel) Close() error { return nil }

// find looks up "/package.Service/Method".
func (c *Channel) find(fullMethod string) (localService, string, error) {
	name, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	c.mu.RLock()
	s, ok := c.services[name]
	c.mu.RUnlock()
	if !ok {
		err := errcode.NetworkException.Wrap(fmt.Errorf("no %s at %s%s", name, localScheme, c.name))
		return s, "", &unsentError{&lostError{err}}
	}
	return s, method, nil
}

// Invoke makes a unary call.
func (c *Channel) Invoke(ctx context.Context, fullMethod string, args, reply any, _ ...grpc.CallOption) error {
	service, method, err := c.find(fullMethod)
	if err != nil {
		return err
	}
	ctx, cancel := withDefaultDeadline(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return &unsentError{FromStatus(ctx, ToStatus(ctx.Err()))}
	}
	for i := range service.desc.Methods {
		if service.desc.Methods[i].MethodName != method {
			continue
		}
		decode := func(in any) error { return c.copyMessage(in, args) }
		resp, err := service.desc.Methods[i].Handler(service.impl, ctx, decode, nil)
		if err != nil {
			return FromStatus(ctx, ToStatus(err))
		}
		return c.copyMessage(reply, resp)
	}
	return errcode.UnsupportedVersion.Wrap(fmt.Errorf("no method %s", fullMethod))
}

// copyMessage makes dst equal to src, sharing no memory with it.
func (c *Channel) copyMessage(dst, src any) error {
	d, dstPlain := dst.(proto.Message)
	s, srcPlain := src.(proto.Message)
	if dstPlain && srcPlain {
		proto.Reset(d)
		proto.Merge(d, s)
		return nil
	}
	data, err := c.codec.Marshal(src)
	if err != nil {
		return err
	}
	defer data.Free()
	return c.codec.Unmarshal(data, dst)
}

// NewStream opens a stream, whose handler runs on a goroutine of its own until it returns.
func (c *Channel) NewStream(ctx context.Context, _ *grpc.StreamDesc, fullMethod string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	service, method, err := c.find(fullMethod)
	if err != nil {
		return nil, err
	}
	for i := range service.desc.Streams {
		if service.desc.Streams[i].StreamName != method {
			continue
		}
		s := &localStream{
			codec:    c.codec,
			client:   ctx,
			toServer: make(chan mem.BufferSlice, localStreamDepth),
			toClient: make(chan mem.BufferSlice, localStreamDepth),
			ended:    make(chan struct{}),
		}
		s.server, s.cancel = context.WithCancel(ctx)
		go s.run(service.desc.Streams[i].Handler, service.impl)
		return localClientStream{s}, nil
	}
	return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("no method %s", fullMethod))
}

// localStreamDepth is how many messages may wait in each direction.
const localStreamDepth = 16

// localStream is what the two ends of a stream share. Messages travel in their wire form, since neither end knows the
// type that the other receives into.
type localStream struct {
	codec    encoding.CodecV2
	client   context.Context
	server   context.Context
	cancel   context.CancelFunc
	toServer chan mem.BufferSlice
	toClient chan mem.BufferSlice
	closing  sync.Once
	// ended is closed when the handler has returned; err is what it returned, and is set before.
	ended chan struct{}
	err   error
}

func (s *localStream) run(handle grpc.StreamHandler, impl any) {
	defer s.cancel()
	err := handle(impl, localServerStream{s})
	if err != nil {
		s.err = FromStatus(s.client, ToStatus(err))
	}
	close(s.ended)
}

// localClientStream is the caller's end.
type localClientStream struct{ *localStream }

func (s localClientStream) Header() (metadata.MD, error) { return nil, nil }
func (s localClientStream) Trailer() metadata.MD         { return nil }
func (s localClientStream) Context() context.Context     { return s.client }

func (s localClientStream) CloseSend() error {
	s.closing.Do(func() { close(s.toServer) })
	return nil
}

// SendMsg gives io.EOF when the handler has ended, as gRPC does; RecvMsg then tells why.
func (s localClientStream) SendMsg(m any) error {
	select {
	case <-s.ended:
		return io.EOF
	default:
	}
	data, err := s.codec.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case s.toServer <- data:
		return nil
	case <-s.ended:
		data.Free()
		return io.EOF
	case <-s.client.Done():
		data.Free()
		return FromStatus(s.client, ToStatus(s.client.Err()))
	}
}

func (s localClientStream) RecvMsg(m any) error {
	select {
	case data := <-s.toClient:
		return s.receive(data, m)
	case <-s.client.Done():
		return FromStatus(s.client, ToStatus(s.client.Err()))
	case <-s.ended:
	}
	// The handler is gone, but what it sent before is still to be read.
	select {
	case data := <-s.toClient:
		return s.receive(data, m)
	default:
	}
	if s.err != nil {
		return s.err
	}
	return io.EOF
}

func (s *localStream) receive(data mem.BufferSlice, m any) error {
	defer data.Free()
	return s.codec.Unmarshal(data, m)
}

// localServerStream is the handler's end.
type localServerStream struct{ *localStream }

func (s localServerStream) SetHeader(metadata.MD) error  { return nil }
func (s localServerStream) SendHeader(metadata.MD) error { return nil }
func (s localServerStream) SetTrailer(metadata.MD)       {}
func (s localServerStream) Context() context.Context     { return s.server }

func (s localServerStream) SendMsg(m any) error {
	data, err := s.codec.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case s.toClient <- data:
		return nil
	case <-s.server.Done():
		data.Free()
		return s.server.Err()
	}
}

func (s localServerStream) RecvMsg(m any) error {
	select {
	case data, ok := <-s.toServer:
		if !ok {
			return io.EOF
		}
		return s.receive(data, m)
	case <-s.server.Done():
		return s.server.Err()
	}
}
