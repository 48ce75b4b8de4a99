package storagerpc

import (
	"context"
	"runtime"
	"sync"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
)

const (
	// A frame takes what has queued up, to these limits; there is no timer.
	maxFrameAppends = 256
	maxFrameBytes   = 512 << 10
)

// appendLane sends appends over one connection in the order they were put there. Its fields are guarded by its appender's
// mutex. One goroutine sends, one for each stream receives.
type appendLane struct {
	ctx      context.Context
	rpc      storagev1.StorageClient
	appender *appender
	// wake has room for one signal that the queue is not empty.
	wake  chan struct{}
	ended chan struct{}

	queue []*part
	// bytes are those of the parts that are queued or unanswered.
	bytes int
	// stream is the one in use, nil when there is none.
	stream *appendStream
}

// appendStream is one Append stream and what is unanswered on it.
type appendStream struct {
	lane   *appendLane
	grpc   storagev1.Storage_AppendClient
	cancel context.CancelFunc
	// sending is held while a frame is filled and sent, so that records are not freed while they are being sent. It is
	// taken before the appender's mutex.
	sending sync.Mutex
	// unanswered is nil once the stream is broken: nothing may be put on it any more.
	unanswered map[uint64]*part
	nextID     uint64
}

func newAppendLane(ctx context.Context, rpc storagev1.StorageClient) *appendLane {
	return &appendLane{ctx: ctx, rpc: rpc, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (l *appendLane) start(a *appender) {
	l.appender = a
	go l.run()
}

// enqueue is called with the appender's mutex held.
func (l *appendLane) enqueue(p *part) {
	l.bytes += p.bytes
	l.queue = append(l.queue, p)
	if len(l.queue) == 1 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// run sends until the client is closed.
func (l *appendLane) run() {
	defer close(l.ended)
	var frame appendFrame
	for {
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
		for l.ctx.Err() == nil && l.sendNext(&frame) {
		}
	}
}

// sendNext sends one frame of what is queued, and says whether there was anything.
func (l *appendLane) sendNext(frame *appendFrame) bool {
	// What other goroutines are about to put here goes out in the same frame. An idle process comes back at once.
	runtime.Gosched()
	stream, err := l.open()
	if err != nil {
		l.appender.mu.Lock()
		queued := l.takeQueue()
		l.appender.mu.Unlock()
		l.appender.fail(l, queued, errcode.NotLeaderOrFollower, false)
		return len(queued) > 0
	}
	if stream == nil {
		return false
	}
	stream.send(frame)
	frame.drop()
	return true
}

// send sends one frame of what is queued.
func (s *appendStream) send(frame *appendFrame) {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.lane.appender.mu.Lock()
	s.lane.fill(frame, s)
	s.lane.appender.mu.Unlock()
	if len(frame.appends) > 0 && s.grpc.SendMsg(frame) != nil {
		// The receiving side sees the same end of the stream, and fails what is unanswered on it.
		s.cancel()
	}
}

// open gives the stream in use, or a new one if there is something to send. It is nil when there is nothing.
func (l *appendLane) open() (*appendStream, error) {
	l.appender.mu.Lock()
	stream, idle := l.stream, len(l.queue) == 0
	l.appender.mu.Unlock()
	if idle {
		return nil, nil
	}
	if stream != nil {
		return stream, nil
	}
	ctx, cancel := context.WithCancel(l.ctx)
	rpc, err := l.rpc.Append(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	stream = &appendStream{lane: l, grpc: rpc, cancel: cancel, unanswered: map[uint64]*part{}}
	l.appender.mu.Lock()
	l.stream = stream
	l.appender.mu.Unlock()
	l.appender.receivers.Go(stream.receive)
	return stream, nil
}

// fill moves what is queued to a frame, and notes it as unanswered. On a broken stream it moves nothing.
func (l *appendLane) fill(frame *appendFrame, s *appendStream) {
	if s.unanswered == nil {
		return
	}
	count, bytes := 0, 0
	for _, p := range l.queue {
		if count > 0 && (count == maxFrameAppends || bytes+p.bytes > maxFrameBytes) {
			break
		}
		count++
		bytes += p.bytes
		s.nextID++
		s.unanswered[s.nextID] = p
		frame.appends = append(frame.appends, numberedAppend{id: s.nextID, req: p.req})
	}
	rest := copy(l.queue, l.queue[count:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
}

// takeQueue takes everything that has not been sent.
func (l *appendLane) takeQueue() []*part {
	queued := l.queue
	l.queue = nil
	return queued
}

// takeStale takes what should have been answered by now but has not even been sent.
func (l *appendLane) takeStale(now time.Time) []*part {
	var stale []*part
	kept := l.queue[:0]
	for _, p := range l.queue {
		if now.After(p.deadline) {
			stale = append(stale, p)
		} else {
			kept = append(kept, p)
		}
	}
	clear(l.queue[len(kept):])
	l.queue = kept
	return stale
}

// receive takes results until the stream ends, and then fails what is unanswered on it.
func (s *appendStream) receive() {
	var frame appendResultFrame
	for {
		if err := s.grpc.RecvMsg(&frame); err != nil {
			break
		}
		s.lane.appender.answered(s, frame.results)
		clear(frame.results)
	}
	s.cancel()
	s.sending.Lock()
	a := s.lane.appender
	a.mu.Lock()
	lost := make([]*part, 0, len(s.unanswered))
	for _, p := range s.unanswered {
		lost = append(lost, p)
	}
	s.unanswered = nil
	if s.lane.stream == s {
		s.lane.stream = nil
	}
	a.mu.Unlock()
	s.sending.Unlock()
	a.fail(s.lane, lost, errcode.NotLeaderOrFollower, true)
}
