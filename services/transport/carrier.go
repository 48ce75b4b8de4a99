package transport

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	transportv1 "chancery/proto/transport/v1"
	"chancery/services/kafka/errcode"
)

// A frame takes what has queued up, to these limits; there is no timer.
const (
	maxFrameCalls = 256
	maxFrameBytes = 512 << 10
)

// Carried makes the unary calls of a connection share one stream, in which calls that come at the same time share a frame: a
// call by itself costs ten times more. Errors are those of a plain call, Unsent and Answered among them. Streams stay plain. A
// channel within the process is given back as it is, and a server of an older release, which does not know the stream, gets plain
// calls.
func Carried(conn Conn) Conn {
	if _, ok := conn.(*Channel); ok {
		return conn
	}
	c := &carrier{Conn: conn, calls: transportv1.NewCallsClient(conn)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// carrier is a connection with the stream that is in use.
type carrier struct {
	Conn
	calls  transportv1.CallsClient
	ctx    context.Context // ends with Close; it is not a call's
	cancel context.CancelFunc

	// plain says that the server does not carry calls.
	plain atomic.Bool

	mu     sync.Mutex
	stream *carrierStream
}

// carriedCall is a call that waits for its answer.
type carriedCall struct {
	method  string
	request []byte
	// deadline is when the caller stops waiting.
	deadline time.Time
	// id is 0 until the call has been put into a frame; the stream's mutex guards it.
	id   uint64
	done chan carriedAnswer
}

type carriedAnswer struct {
	reply *transportv1.Reply
	err   error
	// plain asks for a plain call instead: this one was not carried out.
	plain bool
}

// carrierStream is one Carry stream. One goroutine opens it and sends, one receives.
type carrierStream struct {
	// wake has room for one signal that there is something to send.
	wake chan struct{}

	mu        sync.Mutex
	queue     []*carriedCall
	cancelled []uint64
	pending   map[uint64]*carriedCall
	lastID    uint64
	// broken is set once the stream has ended: nothing may be put on it any more.
	broken bool
}

// Invoke makes a unary call.
func (c *carrier) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.plain.Load() {
		return c.Conn.Invoke(ctx, method, args, reply, opts...)
	}
	in, out, err := protoMessages(args, reply)
	if err != nil {
		return err
	}
	request, err := proto.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := withDefaultDeadline(ctx)
	defer cancel()
	call := &carriedCall{method: method, request: request, done: make(chan carriedAnswer, 1)}
	call.deadline, _ = ctx.Deadline()
	stream := c.enqueue(call)
	select {
	case answer := <-call.done:
		if answer.plain {
			c.plain.Store(true)
			return c.Conn.Invoke(ctx, method, args, reply, opts...)
		}
		return answer.read(ctx, out)
	case <-ctx.Done():
	}
	if sent := stream.giveUp(call); sent {
		return FromStatus(ctx, ToStatus(ctx.Err()))
	}
	return &unsentError{FromStatus(ctx, ToStatus(ctx.Err()))}
}

func protoMessages(args, reply any) (in, out proto.Message, err error) {
	in, isMessage := args.(proto.Message)
	out, takesMessage := reply.(proto.Message)
	if !isMessage || !takesMessage {
		return nil, nil, errcode.InvalidRequest.Wrap(errors.New("only protobuf messages can be carried"))
	}
	return in, out, nil
}

// read gives what was answered.
func (a carriedAnswer) read(ctx context.Context, out proto.Message) error {
	if a.err != nil {
		return a.err
	}
	if a.reply.GetRefused() {
		return &unsentError{errStopping()}
	}
	if len(a.reply.GetStatus()) == 0 {
		return proto.Unmarshal(a.reply.GetResponse(), out)
	}
	var st spb.Status
	if err := proto.Unmarshal(a.reply.GetStatus(), &st); err != nil {
		return err
	}
	return FromStatus(ctx, status.ErrorProto(&st))
}

// errStopping is the failure of calls that a server has not taken any more.
func errStopping() error {
	return &lostError{errcode.NetworkException.Wrap(errors.New("the server is about to stop"))}
}

// Close breaks the connection.
func (c *carrier) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// enqueue puts a call on the stream in use, or on a new one.
func (c *carrier) enqueue(call *carriedCall) *carrierStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil && c.stream.put(call) {
		return c.stream
	}
	c.stream = &carrierStream{wake: make(chan struct{}, 1), pending: map[uint64]*carriedCall{}}
	c.stream.put(call)
	go c.stream.run(c.ctx, c.calls)
	return c.stream
}

// put queues a call; false means that the stream takes none any more.
func (s *carrierStream) put(call *carriedCall) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return false
	}
	s.queue = append(s.queue, call)
	if len(s.queue) == 1 {
		s.signal()
	}
	return true
}

func (s *carrierStream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// giveUp forgets a call, and says whether it may have been sent. The server is told that nobody waits for it.
func (s *carrierStream) giveUp(call *carriedCall) (sent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if call.id == 0 {
		for i, c := range s.queue {
			if c == call {
				s.queue = append(s.queue[:i], s.queue[i+1:]...)
				break
			}
		}
		return false
	}
	if s.pending[call.id] == call {
		delete(s.pending, call.id)
		s.cancelled = append(s.cancelled, call.id)
		s.signal()
	}
	return true
}

// run opens the stream and sends until it is broken.
func (s *carrierStream) run(ctx context.Context, calls transportv1.CallsClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := calls.Carry(ctx)
	if err != nil {
		s.end(err, true)
		return
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		s.receive(stream)
		cancel()
	}()
	for {
		select {
		case <-s.wake:
		case <-received:
			return
		}
		for {
			// What other goroutines are about to put here goes out in the same frame. An idle process comes back at once.
			runtime.Gosched()
			frame := s.next()
			if frame == nil {
				break
			}
			if stream.Send(frame) != nil {
				// The receiving side sees the same end of the stream, and fails what is unanswered on it.
				cancel()
				<-received
				return
			}
		}
	}
}

// next makes a frame of what is queued; nil when nothing is.
func (s *carrierStream) next() *transportv1.CallFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken || len(s.queue) == 0 && len(s.cancelled) == 0 {
		return nil
	}
	n, bytes := 0, 0
	for n < len(s.queue) && n < maxFrameCalls && (n == 0 || bytes+len(s.queue[n].request) <= maxFrameBytes) {
		bytes += len(s.queue[n].request)
		n++
	}
	frame := &transportv1.CallFrame{Calls: make([]*transportv1.Call, n), Cancelled: s.cancelled}
	s.cancelled = nil
	calls := make([]transportv1.Call, n)
	now := time.Now()
	for i, call := range s.queue[:n] {
		s.lastID++
		call.id = s.lastID
		s.pending[call.id] = call
		out := &calls[i]
		out.Id, out.Method, out.Request, out.TimeoutUs = call.id, call.method, call.request, call.deadline.Sub(now).Microseconds()
		frame.Calls[i] = out
	}
	rest := copy(s.queue, s.queue[n:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
	return frame
}

// receive takes answers until the stream ends.
func (s *carrierStream) receive(stream transportv1.Calls_CarryClient) {
	for {
		frame, err := stream.Recv()
		if err != nil {
			s.end(err, errors.Is(err, io.EOF))
			return
		}
		s.mu.Lock()
		for _, reply := range frame.GetReplies() {
			if call := s.pending[reply.GetId()]; call != nil {
				delete(s.pending, reply.GetId())
				call.done <- carriedAnswer{reply: reply}
			}
		}
		s.mu.Unlock()
	}
}

// end fails what is unanswered. After an orderly end, or when the stream was never there, none of it was carried out.
func (s *carrierStream) end(err error, untouched bool) {
	if errors.Is(err, io.EOF) {
		err = errStopping()
	}
	neverSent := carriedAnswer{err: err, plain: Answered(err) && errcode.Of(err) == errcode.UnsupportedVersion}
	if !Unsent(err) {
		neverSent.err = &unsentError{err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	for _, call := range s.queue {
		call.done <- neverSent
	}
	for _, call := range s.pending {
		if untouched || neverSent.plain {
			call.done <- neverSent
		} else {
			call.done <- carriedAnswer{err: err}
		}
	}
	s.queue, s.pending = nil, nil
}
