package sim

import (
	"fmt"
	"time"
)

// process is something that runs, can be held up, ends, and is reached over the network.
type process struct {
	index int
	name  string
	up    bool
	// incarnation counts the starts: what was meant for an earlier one reaches nobody.
	incarnation int
	// heldUntil is until when it does nothing, because it is paused or its disk is slow.
	heldUntil time.Duration
	// repeats says that its requests may come twice, as when a connection breaks before the answer.
	repeats bool
	// skew is by how much its clock is wrong.
	skew time.Duration
}

func (w *World) newProcess(format string, args ...any) process {
	return process{index: -1, name: fmt.Sprintf(format, args...)}
}

// add makes a process known to the network.
func (w *World) add(p *process) {
	p.index = len(w.processes)
	w.processes = append(w.processes, p)
}

func (w *World) start(p *process) {
	p.up, p.heldUntil = true, 0
	p.incarnation++
	w.stamp(1, int64(p.index))
	w.note("%s starts", p.name)
}

func (w *World) end(p *process) {
	p.up = false
	p.incarnation++
	w.stamp(2, int64(p.index))
	w.note("%s ends", p.name)
}

// clock is a process's own time.
func (w *World) clock(p *process) time.Time { return epochStart.Add(w.now + p.skew) }

// later lets a process do something after a while, unless it has ended by then.
func (w *World) later(p *process, delay time.Duration, do func()) {
	incarnation := p.incarnation
	w.after(delay, func() { w.within(p, incarnation, do) })
}

// within does something as a process, when it is not held up.
func (w *World) within(p *process, incarnation int, do func()) {
	switch {
	case !p.up || p.incarnation != incarnation:
	case w.now < p.heldUntil:
		w.after(p.heldUntil-w.now, func() { w.within(p, incarnation, do) })
	default:
		do()
	}
}

// send brings a message to another process, in the order in which they were sent, or not at all. lost, if set, is called when
// the other one is not there to take it.
func (w *World) send(from, to *process, do, lost func()) {
	link := [2]int{from.index, to.index}
	if w.cut[link] || !w.healed && w.draw(1000) < 3 {
		return
	}
	latency := w.between(200*time.Microsecond, 4*time.Millisecond)
	if !w.healed && w.draw(1000) < 5 {
		latency = w.between(10*time.Millisecond, 3*time.Second)
	}
	arrival := max(w.now+latency, w.lastArrival[link])
	if !w.healed && w.draw(100) < 3 {
		arrival = w.now + latency // on another connection, and so before others that were sent earlier
	}
	w.lastArrival[link] = max(arrival, w.lastArrival[link])
	incarnation := to.incarnation
	w.after(arrival-w.now, func() {
		if w.cut[link] {
			return
		}
		if !to.up || to.incarnation != incarnation {
			if lost != nil {
				lost()
			}
			return
		}
		w.within(to, incarnation, do)
	})
}

// call asks another process something. serve runs there, and gives its answer, if any, as a function that runs here; failed
// runs when no answer came in time.
func (w *World) call(from, to *process, timeout time.Duration, serve func(answer func(done func())), failed func()) {
	incarnation, settled := from.incarnation, false
	settle := func(done func()) {
		if settled || !from.up || from.incarnation != incarnation {
			return
		}
		settled = true
		done()
	}
	refused := func() { w.send(to, from, func() { settle(failed) }, nil) }
	ask := func() {
		w.send(from, to, func() {
			serve(func(done func()) { w.send(to, from, func() { settle(done) }, nil) })
		}, refused)
	}
	ask()
	if !w.healed && from.repeats && w.draw(100) < 2 {
		ask()
	}
	w.later(from, timeout, func() { settle(failed) })
}

// cutLink stops all messages between two processes, in one direction or both.
func (w *World) cutLink(a, b *process, both bool) {
	w.cut[[2]int{a.index, b.index}] = true
	if both {
		w.cut[[2]int{b.index, a.index}] = true
	}
}
