package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	transportv1 "chancery/proto/transport/v1"
	"chancery/services/kafka/errcode"
)

// carriedServices carries out calls that share streams, on the services of a server.
type carriedServices struct {
	transportv1.UnimplementedCallsServer
	// methods are those of all services by their full names. Services are registered before the server starts.
	methods map[string]carriedMethod
	// leaving is closed when the server is about to stop.
	leaving chan struct{}
	once    sync.Once
}

type carriedMethod struct {
	impl    any
	handler grpc.MethodHandler
}

func newCarriedServices() *carriedServices {
	return &carriedServices{methods: map[string]carriedMethod{}, leaving: make(chan struct{})}
}

func (c *carriedServices) add(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		c.methods["/"+desc.ServiceName+"/"+m.MethodName] = carriedMethod{impl: impl, handler: m.Handler}
	}
}

// leave lets the streams end when everything that they have taken is answered.
func (c *carriedServices) leave() { c.once.Do(func() { close(c.leaving) }) }

// Carry serves one stream.
func (c *carriedServices) Carry(stream transportv1.Calls_CarryServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	s := &carriedCalls{services: c, ctx: ctx, wake: make(chan struct{}, 1), running: map[uint64]context.CancelFunc{}}
	received := make(chan error, 1)
	go func() { received <- s.receive(stream) }()
	ended := make(chan error, 1)
	go func() { ended <- s.send(stream) }()
	leaving := c.leaving
	for {
		select {
		case err := <-received:
			if !errors.Is(err, io.EOF) {
				return err
			}
			s.finish()
			received = nil
		case <-leaving:
			s.finish()
			leaving = nil
		case err := <-ended:
			return err
		}
	}
}

// carriedCalls are the calls of one stream.
type carriedCalls struct {
	services *carriedServices
	ctx      context.Context // the stream's
	wake     chan struct{}

	mu      sync.Mutex
	replies []*transportv1.Reply
	// running are the calls that are being carried out, with what ends each.
	running map[uint64]context.CancelFunc
	// finishing says that no more calls are taken.
	finishing bool
}

// receive begins calls until the client sends no more.
func (s *carriedCalls) receive(stream transportv1.Calls_CarryServer) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		s.begin(frame)
	}
}

// begin begins the calls of a frame, or refuses them when no more are taken.
func (s *carriedCalls) begin(frame *transportv1.CallFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range frame.GetCancelled() {
		if cancel := s.running[id]; cancel != nil {
			cancel()
		}
	}
	for _, call := range frame.GetCalls() {
		if s.finishing {
			s.put(&transportv1.Reply{Id: call.GetId(), Refused: true})
			continue
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(call.GetTimeoutUs())*time.Microsecond)
		s.running[call.GetId()] = cancel
		go s.carryOut(ctx, call)
	}
}

// put queues a reply. The mutex is held.
func (s *carriedCalls) put(r *transportv1.Reply) {
	if s.replies = append(s.replies, r); len(s.replies) == 1 {
		s.signal()
	}
}

func (s *carriedCalls) carryOut(ctx context.Context, call *transportv1.Call) {
	response, err := s.services.call(ctx, call.GetMethod(), call.GetRequest())
	reply := &transportv1.Reply{Id: call.GetId(), Response: response}
	if err != nil {
		// A status without unknown types in its details can always be marshalled.
		reply.Status, _ = proto.Marshal(status.Convert(ToStatus(err)).Proto())
	}
	s.mu.Lock()
	s.running[reply.Id]()
	delete(s.running, reply.Id)
	s.put(reply)
	s.mu.Unlock()
}

// call calls one method with a request in its wire form.
func (c *carriedServices) call(ctx context.Context, name string, request []byte) ([]byte, error) {
	m, ok := c.methods[name]
	if !ok {
		return nil, errcode.UnsupportedVersion.Wrap(fmt.Errorf("no method %s", strings.TrimPrefix(name, "/")))
	}
	response, err := m.handler(m.impl, ctx, func(in any) error {
		return proto.Unmarshal(request, in.(proto.Message))
	}, nil)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(response.(proto.Message))
}

func (s *carriedCalls) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// finish lets the sender end when everything is answered.
func (s *carriedCalls) finish() {
	s.mu.Lock()
	s.finishing = true
	s.mu.Unlock()
	s.signal()
}

// next makes a frame of the replies that there are; over says that there will be no more.
func (s *carriedCalls) next() (frame *transportv1.ReplyFrame, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, bytes := 0, 0
	for n < len(s.replies) && n < maxFrameCalls && (n == 0 || bytes+len(s.replies[n].Response) <= maxFrameBytes) {
		bytes += len(s.replies[n].Response)
		n++
	}
	if n == 0 {
		return nil, s.finishing && len(s.running) == 0
	}
	frame = &transportv1.ReplyFrame{Replies: append([]*transportv1.Reply(nil), s.replies[:n]...)}
	rest := copy(s.replies, s.replies[n:])
	clear(s.replies[rest:])
	s.replies = s.replies[:rest]
	return frame, false
}

// send sends replies until there will be no more, or the stream is lost.
func (s *carriedCalls) send(stream transportv1.Calls_CarryServer) error {
	for {
		// The replies that other goroutines are about to put here go out in the same frame.
		runtime.Gosched()
		frame, over := s.next()
		switch {
		case frame != nil:
			if err := stream.Send(frame); err != nil {
				return err
			}
		case over:
			return nil
		default:
			select {
			case <-s.wake:
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		}
	}
}
