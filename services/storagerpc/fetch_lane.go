package storagerpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

const (
	cancelGrace = 500 * time.Millisecond
	// fetchGrace is what a node may take longer than a fetch's own wait; Kafka's replica.socket.timeout.ms.
	fetchGrace = 30 * time.Second
)

// fetchLane sends fetches over one connection.
type fetchLane struct {
	ctx context.Context
	rpc storagev1.StorageClient
	// channel gives the channel for files, if there is one; with a new stream it is looked for anew.
	channel func(renew bool) *fileChannel
	// cancelGrace is how long a cancelled fetch waits for what the node has by then.
	cancelGrace time.Duration
	// receivers are the receiving goroutines of all streams.
	receivers sync.WaitGroup

	// opening is held while a stream is opened, which takes as long as connecting does.
	opening sync.Mutex

	mu     sync.Mutex
	stream *fetchStream
}

// fetchStream is one Fetch stream and what is unanswered on it.
type fetchStream struct {
	lane *fetchLane
	grpc storagev1.Storage_FetchClient
	// sending is held while a frame is sent.
	sending sync.Mutex
	cancel  context.CancelFunc

	// mu guards what follows.
	mu sync.Mutex
	// unanswered is nil once the stream is broken.
	unanswered map[uint64]*fetchCall
	nextID     uint64
}

// fetchCall is a fetch that waits for its answer. Its result belongs to the stream until done is closed, or until
// the fetch has taken itself off the stream.
type fetchCall struct {
	result *storage.FetchResult
	// regions are where records are in passed files, by the partition's place in the result.
	regions map[int][]passedRegion
	// open says that the records of the last partition go on in the next frame.
	open bool
	err  error
	done chan struct{}
}

func newFetchLane(ctx context.Context, rpc storagev1.StorageClient, channel func(renew bool) *fileChannel) *fetchLane {
	return &fetchLane{ctx: ctx, rpc: rpc, channel: channel, cancelGrace: cancelGrace}
}

// close waits for the streams to end, which they do with the lane's context.
func (l *fetchLane) close() {
	l.opening.Lock()
	defer l.opening.Unlock()
	l.receivers.Wait()
}

func (l *fetchLane) fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	stream, err := l.open() //nolint:contextcheck // A stream outlives the fetch that opens it.
	if err != nil {
		return nil, err
	}
	id, call := stream.register(len(req.Partitions))
	if call == nil {
		return nil, errcode.NetworkException.Wrap(errStreamBroken)
	}
	files := l.channel(false)
	number := files.expect()
	frame := &fetchFrame{id: id, req: req}
	if number != 0 {
		frame.files = fileTarget{files.token, number}
	}
	if err := stream.send(frame); err != nil {
		files.forget(number)
		stream.abandon(id, call)
		return nil, errcode.NetworkException.Wrap(err)
	}
	if err := stream.wait(ctx, id, call, req); err != nil {
		files.forget(number)
		stream.abandon(id, call)
		return nil, err
	}
	if call.err == nil {
		call.err = files.attach(ctx, number, call.result, call.regions)
	} else {
		files.forget(number)
	}
	if call.err == nil && req.Session == nil && len(call.result.Partitions) != len(req.Partitions) {
		call.err = fmt.Errorf("answer to a fetch has %d partitions, not %d", len(call.result.Partitions), len(req.Partitions))
	}
	if call.err != nil {
		call.result.Release()
		return nil, call.err
	}
	return call.result, nil
}

// wait waits for the answer. When the context ends it asks the node for what is there.
func (s *fetchStream) wait(ctx context.Context, id uint64, call *fetchCall, req *storage.FetchRequest) error {
	overdue := time.NewTimer(time.Duration(max(0, req.MaxWaitMs))*time.Millisecond + fetchGrace)
	defer overdue.Stop()
	select {
	case <-call.done:
		return nil
	case <-overdue.C:
		return errcode.RequestTimedOut.Wrap(errors.New("storage node does not answer a fetch"))
	case <-ctx.Done():
	}
	if err := s.send(&fetchFrame{id: id, cancel: true}); err != nil {
		return errcode.NetworkException.Wrap(errors.Join(ctx.Err(), err))
	}
	grace := time.NewTimer(s.lane.cancelGrace)
	defer grace.Stop()
	select {
	case <-call.done:
		return nil
	case <-grace.C:
		return errcode.NetworkException.Wrap(ctx.Err())
	}
}

// open gives the stream in use, or a new one.
func (l *fetchLane) open() (*fetchStream, error) {
	if s := l.current(); s != nil {
		return s, nil
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	if s := l.current(); s != nil {
		return s, nil
	}
	if l.ctx.Err() != nil {
		return nil, errcode.NetworkException.Wrap(errors.New("storage client is closed"))
	}
	ctx, cancel := context.WithCancel(l.ctx)
	rpc, err := l.rpc.Fetch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	l.channel(true)
	s := &fetchStream{lane: l, grpc: rpc, cancel: cancel, unanswered: map[uint64]*fetchCall{}}
	l.mu.Lock()
	l.stream = s
	l.mu.Unlock()
	l.receivers.Go(s.receive)
	return s, nil
}

func (l *fetchLane) current() *fetchStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stream
}

// register makes a call known before it is sent; the call is nil when the stream has broken.
func (s *fetchStream) register(partitions int) (uint64, *fetchCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unanswered == nil {
		return 0, nil
	}
	s.nextID++
	call := &fetchCall{
		result: &storage.FetchResult{Partitions: make([]storage.FetchPartitionResult, 0, partitions)},
		done:   make(chan struct{}),
	}
	s.unanswered[s.nextID] = call
	return s.nextID, call
}

// abandon takes a call off the stream and frees what has come for it.
func (s *fetchStream) abandon(id uint64, call *fetchCall) {
	s.mu.Lock()
	delete(s.unanswered, id)
	s.mu.Unlock()
	call.result.Release()
}

func (s *fetchStream) send(frame *fetchFrame) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.grpc.SendMsg(frame)
}

// receive takes results until the stream ends, and then fails what is unanswered on it.
func (s *fetchStream) receive() {
	var frame fetchResultFrame
	var err error
	for {
		if err = s.grpc.RecvMsg(&frame); err != nil {
			break
		}
		s.take(&frame)
		frame.release()
	}
	s.cancel()
	s.lane.mu.Lock()
	if s.lane.stream == s {
		s.lane.stream = nil
	}
	s.lane.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.unanswered {
		call.err = errcode.NetworkException.Wrap(errors.Join(errStreamBroken, err))
		close(call.done)
	}
	s.unanswered = nil
}

// take adds a frame to the result of its fetch. What it does not take stays in the frame.
func (s *fetchStream) take(frame *fetchResultFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call := s.unanswered[frame.id]
	if call == nil {
		return
	}
	for i := range frame.partitions {
		call.add(&frame.partitions[i])
	}
	if !frame.last {
		return
	}
	if frame.err != errcode.None {
		call.err = frame.err.Err()
	}
	delete(s.unanswered, frame.id)
	close(call.done)
}

func (c *fetchCall) add(p *partitionPart) {
	if n := len(c.result.Partitions); c.open && n > 0 {
		last := &c.result.Partitions[n-1]
		last.Records.Buffers = append(last.Records.Buffers, p.Records.Buffers...)
	} else {
		c.result.Partitions = append(c.result.Partitions, p.FetchPartitionResult)
		if len(p.regions) > 0 {
			if c.regions == nil {
				c.regions = map[int][]passedRegion{}
			}
			c.regions[len(c.result.Partitions)-1] = p.regions
		}
	}
	p.Records.Buffers = nil
	c.open = p.more
}

var errStreamBroken = errors.New("connection to the storage node was lost")
