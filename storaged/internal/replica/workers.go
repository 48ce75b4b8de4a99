package replica

import "sync/atomic"

// Workers does small pieces of work, each on a goroutine by itself, and keeps some goroutines for the next pieces: a new one has to
// grow its stack, by copying it several times, before it gets to what a small piece is about. A nil *Workers keeps none.
type Workers struct {
	keep   int32
	idle   atomic.Int32
	next   chan func()
	closed chan struct{}
}

// NewWorkers makes one that keeps up to so many idle goroutines until Close.
func NewWorkers(keep int) *Workers {
	return &Workers{keep: int32(keep), next: make(chan func()), closed: make(chan struct{})}
}

// Go does f on another goroutine. It never waits.
func (w *Workers) Go(f func()) {
	if w == nil {
		go f()
		return
	}
	select {
	case w.next <- f:
	default:
		go w.work(f)
	}
}

func (w *Workers) work(f func()) {
	for {
		f()
		if w.idle.Add(1) > w.keep {
			w.idle.Add(-1)
			return
		}
		select {
		case f = <-w.next:
			w.idle.Add(-1)
		case <-w.closed:
			return
		}
	}
}

// Close ends the idle goroutines; those at work end after it. Go may still be called.
func (w *Workers) Close() { close(w.closed) }
