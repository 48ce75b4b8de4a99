package replica

import (
	"sync"

	"chancery/storaged/internal/partition"
)

// event is something for the loop to do: exactly one of the fields is set.
type event struct {
	append appendEvent
	// fetched is a follower's progress, when its Replica is not 0 or hasFetched is set.
	fetched    partition.FollowerFetch
	hasFetched bool
	copied     *Copied
	do         func()
}

// mailbox is the events that wait for the loop.
type mailbox struct {
	mu     sync.Mutex
	queue  []event
	spare  []event
	active bool
}

// keptEvents is the capacity that an idle mailbox keeps: a node may have tens of thousands of them.
const keptEvents = 2

// post queues an event and starts the loop when it does not run.
func (r *Replica) post(e event) {
	b := &r.box
	b.mu.Lock()
	b.queue = append(b.queue, e)
	start := !b.active
	b.active = true
	b.mu.Unlock()
	if start {
		r.env.Workers.Go(r.loop)
	}
}

// loop works the mailbox off and ends when it is empty.
func (r *Replica) loop() {
	b := &r.box
	for {
		b.mu.Lock()
		events := b.queue
		if len(events) == 0 {
			b.active = false
			if cap(b.queue) > keptEvents {
				b.queue = nil
			}
			b.spare = nil
			r.forget()
			b.mu.Unlock()
			return
		}
		b.queue = b.spare[:0]
		b.mu.Unlock()
		r.handle(events)
		clear(events)
		b.spare = events[:0]
	}
}

// handle does events in order; appends that follow each other are done together.
func (r *Replica) handle(events []event) {
	for i := 0; i < len(events); {
		e := &events[i]
		switch {
		case e.append.op != nil:
			end := i + 1
			for end < len(events) && events[end].append.op != nil {
				end++
			}
			r.appendAll(events[i:end])
			i = end
			continue
		case e.hasFetched:
			r.followerFetched(e.fetched)
		case e.copied != nil:
			r.takeCopied(e.copied)
		default:
			e.do()
		}
		i++
	}
}

// Do runs a function in the replica's loop and waits for it.
func (r *Replica) Do(f func()) {
	done := make(chan struct{})
	r.post(event{do: func() {
		defer close(done)
		f()
	}})
	<-done
}
