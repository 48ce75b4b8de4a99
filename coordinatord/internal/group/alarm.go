package group

import (
	"container/heap"
	"time"
)

// alarm is something that is due at a time. It belongs to one queue.
type alarm struct {
	fire func(now time.Time, out *Effects)
	// due is when it is due, zero when it is not set. queued is its key in the heap, which may be earlier: putting a
	// deadline off, which every heartbeat does, then costs nothing until the old time has come.
	due    time.Time
	queued time.Time
	// turn orders alarms that are due at the same time: whichever was set first. queuedTurn belongs to queued.
	turn, queuedTurn uint64
	// index is the place in the heap plus 1; 0 while it is not there.
	index int
}

// alarms is the queue of all alarms of a machine.
type alarms struct {
	heap  alarmHeap
	turns uint64
}

// set makes an alarm due at a time, whatever it was before.
func (q *alarms) set(a *alarm, due time.Time) {
	q.turns++
	a.due, a.turn = due, q.turns
	switch {
	case a.index == 0:
		a.queued, a.queuedTurn = due, a.turn
		heap.Push(&q.heap, a)
	case !due.After(a.queued):
		a.queued, a.queuedTurn = due, a.turn
		heap.Fix(&q.heap, a.index-1)
	}
}

// cancel makes sure that an alarm does not fire.
func (q *alarms) cancel(a *alarm) {
	a.due = time.Time{}
	if a.index > 0 {
		heap.Remove(&q.heap, a.index-1)
	}
}

// next is when pop has to be called again: no alarm is due before. Zero means never.
func (q *alarms) next() time.Time {
	if len(q.heap) == 0 {
		return time.Time{}
	}
	return q.heap[0].queued
}

// pop takes out an alarm that is due, and gives nil when none is.
func (q *alarms) pop(now time.Time) *alarm {
	for len(q.heap) > 0 && !q.heap[0].queued.After(now) {
		a := q.heap[0]
		if a.due.After(a.queued) {
			a.queued, a.queuedTurn = a.due, a.turn
			heap.Fix(&q.heap, 0)
			continue
		}
		heap.Pop(&q.heap)
		a.due = time.Time{}
		return a
	}
	return nil
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int { return len(h) }

func (h alarmHeap) Less(i, j int) bool {
	if !h[i].queued.Equal(h[j].queued) {
		return h[i].queued.Before(h[j].queued)
	}
	return h[i].queuedTurn < h[j].queuedTurn
}

func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// Push is for container/heap.
func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	*h = append(*h, a)
	a.index = len(*h)
}

// Pop is for container/heap.
func (h *alarmHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	a.index = 0
	return a
}
