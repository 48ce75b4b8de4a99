// Package machinetest plays the runtime of a shard for a machine in a test: one batch at a time, a log in memory, and a clock that the
// test moves.
//
// It owns what statemachine.Machine promises a machine about the order of calls. It must never know what the commands mean.
package machinetest

import (
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/statemachine"
)

// Ticket is a caller that waits for an answer.
type Ticket = statemachine.Ticket

// Answer is what a caller was told: a reply, or a code that is not None.
type Answer[A any] struct {
	Reply A
	Code  errcode.Code
}

// Player plays the runtime for one machine.
type Player[C, R, A any] struct {
	T       testing.TB
	Machine statemachine.Machine[C, R, A]
	// Now is the time of the next call.
	Now time.Time
	// Manual leaves records on their way until Commit or Fail, instead of making them durable at once.
	Manual bool
	// Once makes a second answer to a caller a failure of the test; the runtime drops it.
	Once bool

	Effects statemachine.Effects[R, A]
	// Log is what is durable, Pending what is on its way.
	Log, Pending []R
	Answers      map[Ticket]Answer[A]

	// waiting are the answers that wait for what is on its way, in their order.
	waiting []waiting[A]
	last    Ticket
}

type waiting[A any] struct {
	ticket Ticket
	answer Answer[A]
}

// Start lets a machine that has nothing to load begin to serve.
func Start[C, R, A any](t testing.TB, m statemachine.Machine[C, R, A], now time.Time) *Player[C, R, A] {
	p := &Player[C, R, A]{T: t, Now: now, Answers: map[Ticket]Answer[A]{}}
	p.Restart(m)
	return p
}

// Restart goes on with a machine that has been brought to the end of the log. What was on its way is forgotten, with those who wait
// for it.
func (p *Player[C, R, A]) Restart(m statemachine.Machine[C, R, A]) {
	p.Machine, p.Pending, p.waiting = m, nil, nil
	m.Loaded(p.Now, &p.Effects)
	p.CarryOut()
}

// CarryOut does what the machine has put into the effects.
func (p *Player[C, R, A]) CarryOut() {
	records := append([]R(nil), p.Effects.Records()...)
	var after []waiting[A]
	p.Effects.Answers(func(t Ticket, reply A, code errcode.Code, durable bool) {
		if w := (waiting[A]{t, Answer[A]{reply, code}}); durable {
			after = append(after, w)
		} else {
			p.tell(w)
		}
	})
	p.Effects.Reset()
	for _, r := range records {
		p.Machine.Apply(r)
	}
	p.Pending = append(p.Pending, records...)
	for _, w := range after {
		if len(p.Pending) == 0 {
			p.tell(w)
		} else {
			p.waiting = append(p.waiting, w)
		}
	}
	if !p.Manual && len(p.Pending) > 0 {
		p.Commit()
	}
}

func (p *Player[C, R, A]) tell(w waiting[A]) {
	p.T.Helper()
	if _, answered := p.Answers[w.ticket]; !answered {
		p.Answers[w.ticket] = w.answer
	} else if p.Once {
		p.T.Errorf("ticket %d is answered twice", w.ticket)
	}
}

// settle gives what was on its way.
func (p *Player[C, R, A]) settle() (records []R, callers []waiting[A]) {
	records, callers = p.Pending, p.waiting
	p.Pending, p.waiting = nil, nil
	return records, callers
}

// Commit makes everything durable that is on its way. The answers of what that brings about wait for its records.
func (p *Player[C, R, A]) Commit() {
	records, callers := p.settle()
	for _, r := range records {
		p.Machine.Commit(p.Now, int64(len(p.Log)), r, &p.Effects)
		p.Log = append(p.Log, r)
	}
	for _, w := range callers {
		p.tell(w)
	}
	p.CarryOut()
}

// Fail takes everything back that is on its way.
func (p *Player[C, R, A]) Fail(code errcode.Code) {
	records, callers := p.settle()
	for _, w := range callers {
		w.answer = Answer[A]{Code: code}
		p.tell(w)
	}
	reasons := make([]errcode.Code, len(records))
	for i := range reasons {
		reasons[i] = code
	}
	p.Machine.Rollback(p.Now, records, reasons, &p.Effects)
	p.CarryOut()
}

// Do has a command carried out, and what is due then.
func (p *Player[C, R, A]) Do(command C) Ticket {
	p.last++
	t := p.last
	p.Machine.Decide(p.Now, t, command, &p.Effects)
	p.CarryOut()
	p.Tick()
	return t
}

// Tick does what is due.
func (p *Player[C, R, A]) Tick() {
	if due := p.Machine.Due(); !due.IsZero() && !due.After(p.Now) {
		p.Machine.Tick(p.Now, &p.Effects)
		p.CarryOut()
	}
}

// After lets time pass, alarm by alarm.
func (p *Player[C, R, A]) After(d time.Duration) {
	end := p.Now.Add(d)
	for due := p.Machine.Due(); !due.IsZero() && !due.After(end); due = p.Machine.Due() {
		if due.After(p.Now) {
			p.Now = due
		}
		p.Tick()
	}
	p.Now = end
}

// Silent fails the test when a caller has been answered.
func (p *Player[C, R, A]) Silent(t Ticket) {
	p.T.Helper()
	if a, ok := p.Answers[t]; ok {
		p.T.Fatalf("ticket %d is answered: %+v", t, a)
	}
}

// Unanswered is a caller that has no answer, if there is one.
func (p *Player[C, R, A]) Unanswered() (Ticket, bool) {
	for t := Ticket(1); t <= p.last; t++ {
		if _, ok := p.Answers[t]; !ok {
			return t, true
		}
	}
	return 0, false
}

// Replay brings an empty machine to the end of the log, through bytes.
func (p *Player[C, R, A]) Replay(codec statemachine.Codec[R], m statemachine.Machine[C, R, A]) {
	p.T.Helper()
	for i, r := range p.Log {
		options := recordbatch.NewOptions()
		options.BaseOffset = int64(i)
		if framer, ok := codec.(statemachine.Framer[R]); ok {
			frame := framer.Frame(r)
			options.ProducerID, options.ProducerEpoch, options.Control = frame.ProducerID, frame.ProducerEpoch, frame.Control
			options.Transactional = frame.ProducerID != recordbatch.NoProducerID
		}
		bytes, at, hasValue := codec.Encode(nil, r)
		var value []byte
		if hasValue {
			value = bytes[at:]
		}
		builder := recordbatch.NewBuilder(nil, options)
		builder.Append(p.Now.UnixMilli(), bytes[:at], value)
		batch, err := builder.Build()
		if err != nil {
			p.T.Fatal(err)
		}
		records := recordbatch.RecordsOf(batch)
		for records.Next() {
			decoded, ok, err := codec.Decode(recordbatch.Header(batch), records.Record())
			if err != nil || !ok {
				p.T.Fatalf("decode: %v %v", ok, err)
			}
			m.Apply(decoded)
			m.Commit(p.Now, int64(i), decoded, &statemachine.Effects[R, A]{})
		}
		if err := records.Err(); err != nil {
			p.T.Fatal(err)
		}
	}
}

// Reply is the reply of a type that a caller has got.
func Reply[T, C, R, A any](p *Player[C, R, A], t Ticket) T {
	p.T.Helper()
	a, ok := p.Answers[t]
	if !ok {
		p.T.Fatalf("ticket %d has no answer", t)
	}
	r, ok := any(a.Reply).(T)
	if !ok {
		p.T.Fatalf("ticket %d: answer is %T %v (code %s)", t, a.Reply, a.Reply, a.Code.Name())
	}
	return r
}
