package replica

import "sync"

// Waiter is woken when one of the replicas that it is registered on has news for it. It belongs to one goroutine.
type Waiter struct {
	// C gets a value, at most one at a time, when there may be something new.
	C chan struct{}
	// slab is where entries are taken from, one allocation for all of a fetch.
	slab    []waitEntry
	entries []*waitEntry
}

// waitEntry is a waiter's place at one replica.
type waitEntry struct {
	waiter  *Waiter
	replica *Replica
	bound   Bound
	// at is the offset that the waiter would read next.
	at int64
	// index is the entry's place in the replica's list, whose mutex guards it.
	index int
}

// NewWaiter makes a waiter for up to n replicas.
func NewWaiter(n int) *Waiter {
	return &Waiter{C: make(chan struct{}, 1), slab: make([]waitEntry, n), entries: make([]*waitEntry, 0, n)}
}

// Watch registers the waiter for records at an offset. The caller looks at the replica's View once more afterwards, since
// what came before is not told.
func (w *Waiter) Watch(r *Replica, b Bound, at int64) {
	if len(w.slab) == 0 {
		w.slab = make([]waitEntry, 1)
	}
	e := &w.slab[0]
	w.slab = w.slab[1:]
	*e = waitEntry{waiter: w, replica: r, bound: b, at: at}
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
	entries []*waitEntry
}

func (l *waitList) add(e *waitEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.index = len(l.entries)
	l.entries = append(l.entries, e)
}

func (l *waitList) remove(e *waitEntry) {
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
			select {
			case e.waiter.C <- struct{}{}:
			default: // it has been told
			}
		}
	}
}
