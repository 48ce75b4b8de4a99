package sim

import (
	"container/heap"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"
)

// Options say what is played.
type Options struct {
	Seed uint64
	// Events is how many events happen before the faults end.
	Events int
	// Wrong are the rules that are broken on purpose.
	Wrong Wrong
	// Trace, if set, takes a line about everything that happens.
	Trace io.Writer
}

// Wrong are rules that can be broken, to see that the checks notice.
type Wrong struct {
	// TruncateToHighWatermark has followers cut their logs to the high watermark when they begin to follow.
	TruncateToHighWatermark bool
	// SkipEpochs has followers fetch without leader epochs, and take what they asked for in another one.
	SkipEpochs bool
	// AcknowledgeEarly answers appends with acks=all when the leader alone has them.
	AcknowledgeEarly bool
	// ForgetELR has controllers lose the eligible leader replicas.
	ForgetELR bool
	// ClaimCleanStops has storage nodes say after each crash that they had stopped in order.
	ClaimCleanStops bool
}

// Report is what happened in a run.
type Report struct {
	Events int
	Time   time.Duration
	// Digest is the same for two runs only if the same things happened in the same order.
	Digest uint64
	Faults map[string]int
	// Committed and Acknowledged count records; Unclean are elections that were allowed to lose some.
	Committed, Acknowledged, Unclean int
	// Leaders is how many leader epochs there were.
	Leaders int
}

// epochStart is when every simulated clock begins.
var epochStart = time.UnixMilli(1_700_000_000_000)

// World is everything.
type World struct {
	o      Options
	random *rand.Rand
	now    time.Duration
	queue  events
	seq    uint64
	report Report
	digest hash.Hash64
	// failure is the first thing that must not be.
	failure error

	processes   []*process
	cut         map[[2]int]bool
	lastArrival map[[2]int]time.Duration

	quorum      quorum
	controllers []*controller
	nodes       []*node
	producers   []*producer
	consumers   []*consumer
	admin       *client
	shape       shape
	checker     checker
	// healed says that no more faults happen.
	healed bool
}

// shape is what a seed's cluster looks like.
type shape struct {
	nodes, partitions, minISR int
	// unclean is unclean.leader.election.enable.
	unclean bool
}

// event is something that happens at a time.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push is part of heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop is part of heap.Interface.
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}

// after lets something happen later, whoever is up by then.
func (w *World) after(delay time.Duration, do func()) {
	w.seq++
	heap.Push(&w.queue, event{at: w.now + delay, seq: w.seq, do: do})
}

// step lets the next event happen.
func (w *World) step() {
	e := heap.Pop(&w.queue).(event)
	w.now = e.at
	w.report.Events++
	e.do()
}

// draw gives a number from 0 to n-1.
func (w *World) draw(n int) int { return w.random.IntN(n) }

// chance is true in so many of a hundred cases.
func (w *World) chance(percent int) bool { return w.random.IntN(100) < percent }

// between gives a time from least to most.
func (w *World) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.random.Int64N(int64(most-least)+1))
}

func pick[T any](w *World, list []T) T { return list[w.draw(len(list))] }

// fail notes that something is not as it must be. The first time counts.
func (w *World) fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = fmt.Errorf("after %d events, at %s: "+format, append([]any{w.report.Events, w.now}, args...)...)
		w.note("FAILURE %s", w.failure)
	}
}

// note tells what happens. The digest of a run is made of that, so that two runs can be compared.
func (w *World) note(format string, args ...any) {
	if w.o.Trace != nil {
		_, _ = fmt.Fprintf(w.o.Trace, "%12s %s\n", w.now, fmt.Sprintf(format, args...)) // A trace that cannot be written is none.
	}
}

// stamp adds numbers to the digest.
func (w *World) stamp(numbers ...int64) {
	var buf [8]byte
	for _, n := range append(numbers, int64(w.now)) {
		for i := range buf {
			buf[i] = byte(n >> (8 * i))
		}
		_, _ = w.digest.Write(buf[:]) // A hash never fails.
	}
}

func newDigest() hash.Hash64 { return fnv.New64a() }
