package replica

import "sync"

// Listener is told when a replica has news for a reader. It must not wait, nor call the replica.
type Listener interface {
	// Woken says that there is something to read, or an error to be told; or, when soft is set, only that the high watermark or
	// the end of the remote tier is another one.
	Woken(soft bool)
}

// Registration is a listener's place at one replica.
type Registration struct {
	listener Listener
	replica  *Replica
	bound    Bound
	// at is the offset that the reader would read next. The mutex of the replica's list guards it, and index, the place there.
	at    int64
	index int
}

// Listen registers a listener for records at an offset. The caller looks at the replica's View once more afterwards, since what
// came before is not told.
func (r *Replica) Listen(l Listener, b Bound, at int64) *Registration {
	e := &Registration{listener: l, replica: r, bound: b, at: at}
	r.waiters.add(e)
	return e
}

// Replica is where the listener is registered.
func (e *Registration) Replica() *Replica { return e.replica }

// Move says that the reader goes on at another offset. The caller looks at the replica's View once more afterwards.
func (e *Registration) Move(at int64) {
	e.replica.waiters.mu.Lock()
	defer e.replica.waiters.mu.Unlock()
	e.at = at
}

// Close ends the registration.
func (e *Registration) Close() { e.replica.waiters.remove(e) }

// Waiter is woken when one of the replicas that it is registered on has news for it. It belongs to one goroutine.
type Waiter struct {
	// C gets a value, at most one at a time, when there may be something new.
	C chan struct{}
	// slab is where entries are taken from, one allocation for all of a fetch.
	slab    []Registration
	entries []*Registration
}

// NewWaiter makes a waiter for up to n replicas.
func NewWaiter(n int) *Waiter {
	return &Waiter{C: make(chan struct{}, 1), slab: make([]Registration, n), entries: make([]*Registration, 0, n)}
}

// Woken is part of Listener.
func (w *Waiter) Woken(soft bool) {
	if soft {
		return
	}
	select {
	case w.C <- struct{}{}:
	default: // it has been told
	}
}

// Watch registers the waiter for records at an offset. The caller looks at the replica's View once more afterwards, since
// what came before is not told.
func (w *Waiter) Watch(r *Replica, b Bound, at int64) {
	if len(w.slab) == 0 {
		w.slab = make([]Registration, 1)
	}
	e := &w.slab[0]
	w.slab = w.slab[1:]
	*e = Registration{listener: w, replica: r, bound: b, at: at}
	w.entries = append(w.entries, e)
	r.waiters.add(e)
}

// Close ends the waiter's registrations.
func (w *Waiter) Close() {
	for _, e := range w.entries {
		e.replica.waiters.remove(e)
	}
	w.entries = nil
}

// waitList is the waiters of a replica.
type waitList struct {
	mu      sync.Mutex
	entries []*Registration
}

func (l *waitList) add(e *Registration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.index = len(l.entries)
	l.entries = append(l.entries, e)
}

func (l *waitList) remove(e *Registration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.entries) - 1
	l.entries[e.index] = l.entries[last]
	l.entries[e.index].index = e.index
	l.entries[last] = nil
	l.entries = l.entries[:last]
	if last == 0 {
		l.entries = nil // thousands of idle partitions keep nothing
	}
}

// wake tells the waiters for whom a new view makes a difference: there is something to read, or the reader may have to
// be told an error, or, for a follower, that the log begins elsewhere.
func (l *waitList) wake(old, v *View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) == 0 {
		return
	}
	turned := old == nil || old.Role != v.Role || old.LeaderEpoch != v.LeaderEpoch || old.Failed != v.Failed || v.LogEnd < old.LogEnd
	for _, e := range l.entries {
		if turned || v.End(e.bound) > e.at || e.bound == ToLogEnd && old.LogStart != v.LogStart {
			e.listener.Woken(false)
		} else if e.bound == ToLogEnd && (old.HighWatermark != v.HighWatermark || old.RemoteEnd != v.RemoteEnd) {
			e.listener.Woken(true)
		}
	}
}
