package storagerpc

import (
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
)

// resultQueue takes the results of one stream's appends from whoever has them, and sends what has queued up together.
type resultQueue struct {
	// wake has room for one signal that there is something to do.
	wake chan struct{}

	mu    sync.Mutex
	queue []numberedResult
	// expected counts the appends that are with the node.
	expected int
	// finishing says that no more appends come; the sender ends when none is expected.
	finishing bool
}

func newResultQueue() *resultQueue { return &resultQueue{wake: make(chan struct{}, 1)} }

// expect notes that an append goes to the node; false means that the stream takes none any more.
func (q *resultQueue) expect() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.finishing {
		return false
	}
	q.expected++
	return true
}

// put takes a result. It never blocks.
func (q *resultQueue) put(r numberedResult) {
	q.mu.Lock()
	q.queue = append(q.queue, r)
	first := len(q.queue) == 1
	q.mu.Unlock()
	if first {
		q.signal()
	}
}

// finish lets the sender end when everything is answered.
func (q *resultQueue) finish() {
	q.mu.Lock()
	q.finishing = true
	q.mu.Unlock()
	q.signal()
}

func (q *resultQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take gives up to a frame of results and whether the sender may end. The slice is lent until the next call.
func (q *resultQueue) take(into []numberedResult) (results []numberedResult, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.queue), maxFrameAppends)
	results = append(into[:0], q.queue[:n]...)
	rest := copy(q.queue, q.queue[n:])
	clear(q.queue[rest:])
	q.queue = q.queue[:rest]
	q.expected -= n
	return results, q.finishing && q.expected == 0
}

// send sends results until the stream is over or lost. The results of a lost stream are dropped by their next put.
func (q *resultQueue) send(stream grpc.ServerStream) error {
	var frame appendResultFrame
	for {
		// The results that other goroutines are about to put here go out in the same frame.
		runtime.Gosched()
		var over bool
		frame.results, over = q.take(frame.results)
		if len(frame.results) > 0 {
			if err := stream.SendMsg(&frame); err != nil {
				return err
			}
			clear(frame.results)
			continue
		}
		if over {
			return nil
		}
		select {
		case <-q.wake:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// endOfStream turns the regular end of a stream into no error.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
