package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"chancery/gateway/internal/handler"
	"chancery/gateway/internal/wire"
)

const (
	// maxBatch is how many answers are written together at most.
	maxBatch = 128
	// decodedShare is the part of the budget that one decoded request takes at most.
	decodedShare = 8
	// lingerTime is how long a client has to read the last answers.
	lingerTime = 250 * time.Millisecond
	// lapseAfter is how long a request must have been kept waiting before it is asked whether its client is still there. What
	// was sent right before an orderly close is carried out.
	lapseAfter = time.Second
	// apiVersionsKey is the API that is answered in any version.
	apiVersionsKey int16 = 18
)

// errClientGone ends a connection whose client has closed it and does not mean any more what it had sent.
var errClientGone = errors.New("the client gave up waiting")

// exchange is one request and its answer.
type exchange struct {
	req     handler.Request
	api     *handler.API
	metrics *apiMetrics
	taken   int64
	// begun is when the work began, ended when the answer was there.
	begun, ended time.Time
	// answered says that a started request has its answer, of which there is one.
	answered atomic.Bool
	// done belongs to the connection's mutex; message and err are its own once it is done. A nil message without an error
	// means that there is no answer; an error closes the connection when the answers before it have been sent.
	done    bool
	message *wire.Message
	err     error
}

// conn is a client's connection.
type conn struct {
	s      *Server
	nc     net.Conn
	lis    *listener
	ip     string
	info   handler.Conn
	reader *frameReader
	out    responseWriter
	// ctx ends with the connection; waits ends, besides, when the gateway is about to leave.
	ctx       context.Context
	cancel    context.CancelFunc
	waits     context.Context
	stopWaits context.CancelFunc
	// active is when something was last read or written, in nanoseconds since the server began.
	active atomic.Int64
	// expires is when the connection is too old, 0 for never; the server's mutex guards it.
	expires time.Duration
	// clientID is that of the last request, heldUp how long it kept those behind it waiting; the reading goroutine owns both.
	clientID *string
	heldUp   time.Duration

	mu sync.Mutex
	// changed is signalled when a request has ended or the connection was closed.
	changed sync.Cond
	// queue are the requests whose answers have not been sent, in order; head is the index of the first.
	queue []*exchange
	head  int
	// running counts the requests that have begun and not ended; order is what they have in common.
	running int
	order   handler.Order
	// writing says that somebody sends answers, or is about to.
	writing  bool
	draining bool
	closed   bool
}

func newConn(s *Server, lis *listener, nc net.Conn, ip string) *conn {
	c := &conn{s: s, nc: nc, lis: lis, ip: ip}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.waits, c.stopWaits = context.WithCancel(c.ctx)
	c.changed.L = &c.mu
	c.info = handler.Conn{Listener: lis.config.Name, Host: "/" + ip, Principal: handler.Anonymous, NodeID: lis.config.NodeID}
	c.reader = newFrameReader(nc)
	c.reader.chunks, c.reader.buffers = &s.chunks, s.deps.Buffers
	c.reader.max, c.reader.budget, c.reader.mostDecoded = s.config.MaxRequestBytes, s.budget, s.config.MaxQueuedBytes/decodedShare
	c.reader.received = func(n int) {
		s.metrics.received.Add(int64(n))
		c.touch()
	}
	c.out = newResponseWriter(nc, &s.chunks, func(n int) {
		s.metrics.sent.Add(int64(n))
		c.touch()
	})
	c.touch()
	return c
}

func (c *conn) touch() { c.active.Store(int64(c.s.since())) }

// serve reads and runs requests until the connection ends, then waits for what is still running.
func (c *conn) serve() {
	err := c.readRequests()
	c.stopWaits()
	polite := c.settle()
	c.reader.close()
	level := slog.LevelDebug
	if errors.Is(err, wire.ErrMalformed) || errors.Is(err, errFrameSize) {
		level, polite = slog.LevelInfo, true
	}
	if polite {
		c.linger()
	}
	c.s.deps.Logger.Log(c.ctx, level, "connection closed", "client", c.ip, "listener", c.info.Listener, "reason", err)
	c.close()
}

// readRequests ends with the reason why there are no more requests.
func (c *conn) readRequests() error {
	for {
		f, err := c.reader.next(c.ctx)
		if err != nil {
			return err
		}
		x, err := c.parse(&f)
		if err != nil {
			c.s.budget.Release(f.taken)
			if f.buffer != nil {
				f.buffer.Free()
			}
			return err
		}
		if x.api.Several != nil {
			err = c.runSeveral(x)
		} else {
			err = c.run(x)
		}
		if err != nil {
			return err
		}
	}
}

// runSeveral runs a request together with those like it that the client has sent behind it.
func (c *conn) runSeveral(first *exchange) error {
	xs := []*exchange{first}
	var broken error
	for len(xs) < min(maxBatch, c.s.config.MaxInFlight) {
		f, ok := c.reader.following(first.req.Key, first.req.Version)
		if !ok {
			break
		}
		x, err := c.parse(&f)
		if err != nil {
			c.s.budget.Release(f.taken)
			broken = err
			break
		}
		xs = append(xs, x)
	}
	if len(xs) == 1 {
		return errors.Join(c.run(first), broken)
	}
	if first.api.LapsesWithClient && c.heldUp > lapseAfter && peerHasClosed(c.nc) {
		c.drop(xs...)
		return errClientGone
	}
	if !c.begin(handler.Alone, xs...) {
		c.drop(xs...)
		return net.ErrClosed
	}
	now := c.s.deps.Now()
	requests := make([]*handler.Request, len(xs))
	for i, x := range xs {
		x.begun, requests[i] = now, &x.req
	}
	c.s.metrics.inFlight.Add(int64(len(xs)))
	messages, err := c.handleSeveral(first, requests)
	c.heldUp = c.s.deps.Now().Sub(now)
	for i, x := range xs {
		if i < len(messages) {
			x.message = messages[i]
		} else {
			x.err = err
		}
	}
	c.endAll(true, xs...)
	return errors.Join(err, broken)
}

// handleSeveral is handle for several requests.
func (c *conn) handleSeveral(first *exchange, requests []*handler.Request) (messages []*wire.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			messages, err = nil, c.panicked(first, p)
		}
	}()
	return first.api.Several(c.s.deps.Handlers, c.ctx, requests)
}

// parse finds out what a frame asks for.
func (c *conn) parse(f *frame) (*exchange, error) {
	b := f.bytes()
	key, version, _ := wire.PeekKey(b)
	api := c.s.deps.Handlers.API(key)
	if api == nil || !api.Serves(version) && key != apiVersionsKey {
		return nil, fmt.Errorf("%w: API %d version %d", wire.ErrMalformed, key, version)
	}
	// The header of an ApiVersions request of a future version is read as far as it is known.
	flexible := api.Flexible(version) && api.Serves(version)
	header, err := wire.ParseHeader(b, flexible, c.clientID)
	if err != nil {
		return nil, err
	}
	c.clientID = header.ClientID
	x := &exchange{api: api, metrics: c.s.metrics.api(key), taken: f.taken}
	x.req = handler.Request{
		Key: key, Version: version, CorrelationID: header.CorrelationID, ClientID: header.ClientID,
		Conn: &c.info, Arrived: c.s.deps.Now(), Body: b[header.Size:], Frame: f.buffer, BodyAt: header.Size,
	}
	return x, nil
}

// run begins a request when those before it allow, and ends it too if it is alone.
func (c *conn) run(x *exchange) error {
	order := handler.Alone
	if x.api.Order != nil {
		order = x.api.Order(&x.req)
	}
	if x.api.LapsesWithClient && c.heldUp > lapseAfter && peerHasClosed(c.nc) {
		c.drop(x)
		return errClientGone
	}
	if !c.begin(order, x) {
		c.drop(x)
		return net.ErrClosed
	}
	x.begun = c.s.deps.Now()
	c.heldUp = 0
	c.s.metrics.inFlight.Add(1)
	switch {
	case x.api.Start != nil:
		// What has been started is carried out also when the client goes away.
		c.start(x)
	case order == handler.Alone:
		m, err := c.handle(x)
		c.heldUp = c.s.deps.Now().Sub(x.begun)
		c.end(x, m, err, true)
		if err != nil {
			return err
		}
	default:
		go func() {
			m, err := c.handle(x)
			c.end(x, m, err, true)
		}()
	}
	return nil
}

// start starts a request whose answer comes by itself. A panic meanwhile costs the connection; an answer that comes all the same
// is then too late.
func (c *conn) start(x *exchange) {
	defer func() {
		if p := recover(); p != nil && x.answered.CompareAndSwap(false, true) {
			c.end(x, nil, c.panicked(x, p), false)
		}
	}()
	x.api.Start(c.s.deps.Handlers, c.s.ctx, &x.req, func(m *wire.Message, err error) {
		if x.answered.CompareAndSwap(false, true) {
			c.end(x, m, err, false)
		} else if m != nil {
			m.Release()
		}
	})
}

// panicked logs a bug in a handler.
func (c *conn) panicked(x *exchange, p any) error {
	c.s.deps.Logger.Error("a request handler panicked", "api", x.api.Name, "version", x.req.Version, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%s panicked: %v", x.api.Name, p)
}

// handle calls the handler. A panic in it is a bug that must cost one connection, not all of them.
func (c *conn) handle(x *exchange) (m *wire.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			m, err = nil, c.panicked(x, p)
		}
	}()
	ctx := c.ctx
	if x.api.EndsOnDrain {
		ctx = c.waits
	}
	return x.api.Handle(c.s.deps.Handlers, ctx, &x.req)
}

// begin waits until requests may begin and puts them into the queue; false when the connection is closed.
func (c *conn) begin(order handler.Order, xs ...*exchange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && !c.mayBegin(order) {
		c.changed.Wait()
	}
	if c.closed {
		return false
	}
	c.order = order
	c.running += len(xs)
	if c.head > 0 && len(c.queue) == cap(c.queue) {
		n := copy(c.queue, c.queue[c.head:])
		clear(c.queue[n:])
		c.queue, c.head = c.queue[:n], 0
	}
	c.queue = append(c.queue, xs...)
	return true
}

// mayBegin says whether those that run allow another one of an order. Answers that wait to be sent count too: a client that
// does not read gets no more work done.
func (c *conn) mayBegin(order handler.Order) bool {
	if len(c.queue)-c.head >= c.s.config.MaxInFlight {
		return false
	}
	return c.running == 0 || order != handler.Alone && order == c.order
}

// end takes the answer to a request; here says that this goroutine may write it.
func (c *conn) end(x *exchange, m *wire.Message, err error, here bool) {
	x.message, x.err = m, err
	c.endAll(here, x)
}

// endAll takes the answers that requests have in them. Nobody else looks at those until they are done.
func (c *conn) endAll(here bool, xs ...*exchange) {
	now := c.s.deps.Now()
	for _, x := range xs {
		if x.message != nil {
			x.message.Seal()
		}
		x.ended = now
		c.s.budget.Release(x.taken)
	}
	c.mu.Lock()
	for _, x := range xs {
		x.done = true
	}
	c.running -= len(xs)
	due := !c.writing && c.queue[c.head].done
	if due {
		c.writing = true
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	switch {
	case !due:
	case here:
		c.flush()
	default:
		go c.flush()
	}
}

// drop forgets requests that never began.
func (c *conn) drop(xs ...*exchange) {
	for _, x := range xs {
		c.s.budget.Release(x.taken)
		if x.req.Frame != nil {
			x.req.Frame.Free()
		}
	}
}

// settle waits until all that has begun has ended and been sent, and says whether the connection is still open because the
// gateway, not the client, wants to end it.
func (c *conn) settle() (leaving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running > 0 || c.writing {
		c.changed.Wait()
	}
	return c.draining && !c.closed
}

// flush sends all answers that are due, until there are none. One goroutine at a time does this.
func (c *conn) flush() {
	var batch []*exchange
	for {
		batch = c.takeDone(batch[:0])
		if len(batch) == 0 {
			return
		}
		c.send(batch)
	}
}

// takeDone takes the answers that are due; when there are none, nobody writes any more.
func (c *conn) takeDone(batch []*exchange) []*exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.head < len(c.queue) && c.queue[c.head].done && len(batch) < maxBatch {
		batch = append(batch, c.queue[c.head])
		c.queue[c.head] = nil
		c.head++
	}
	if c.head == len(c.queue) {
		c.queue, c.head = c.queue[:0], 0
	}
	if len(batch) == 0 {
		c.writing = false
	}
	c.changed.Broadcast()
	return batch
}

// send writes a batch of answers, the last of which may be an error that closes the connection.
func (c *conn) send(batch []*exchange) {
	var failed error
	for _, x := range batch {
		if failed == nil && x.err != nil {
			failed = x.err
		}
		if failed == nil && x.message != nil {
			c.out.add(x.message)
		}
	}
	err := c.out.flush()
	now := c.s.deps.Now()
	for _, x := range batch {
		if x.message != nil {
			x.message.Release()
		}
		c.s.metrics.inFlight.Add(-1)
		x.metrics.observe(x, now)
	}
	if err != nil || failed != nil {
		c.logFailure(failed, err)
		c.close()
	}
}

func (c *conn) logFailure(failed, write error) {
	switch {
	case failed != nil && !errors.Is(failed, wire.ErrMalformed):
		c.s.deps.Logger.Info("a request closes its connection", "client", c.ip, "reason", failed)
	case write != nil && !errors.Is(write, net.ErrClosed) && !errors.Is(write, os.ErrDeadlineExceeded):
		c.s.deps.Logger.Debug("an answer could not be sent", "client", c.ip, "error", write)
	}
}

// drain ends the connection once the requests that have come are answered.
func (c *conn) drain() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.stopWaits()
	// The reader is woken from its wait for the next request. Requests that it has read are carried out first; a part of
	// one is let go. An error means that the connection is closed already.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

// close breaks the connection. Everything that runs is told by its context.
func (c *conn) close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	// The socket first, so that nothing that the end of the context brings about is still sent. Whatever could fail here
	// has no one to be told.
	_ = c.nc.Close()
	c.cancel()
	c.s.forget(c)
}

// linger lets the client read the last answers before the connection is reset: a socket that is closed while bytes have not
// been read would throw away what is on its way out.
func (c *conn) linger() {
	cw, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || cw.CloseWrite() != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.Copy(io.Discard, c.nc)
}
