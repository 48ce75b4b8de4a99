package txn

import (
	"log/slog"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

const none = recordbatch.NoProducerID

// world is a machine with a log that does as the test says, and a host that only notes.
type world struct {
	t   testing.TB
	m   *Machine
	now time.Time
	out Effects
	// version is transaction.version.
	version int16

	log []*Record
	// pending are the records that are on their way, waiting the answers that wait for them.
	pending []*Record
	waiting []Ticket
	held    map[Ticket]told
	answers map[Ticket]told
	last    Ticket
	// manual leaves records on their way until commit or fail.
	manual bool

	markers   []*Transaction
	resumed   int
	abandoned []Abandon
	// nextID is the next producer id.
	nextID int64
}

type told struct {
	reply Reply
	code  errcode.Code
}

// WriteMarkers is part of Host.
func (w *world) WriteMarkers(t *Transaction, resumed bool) {
	w.markers = append(w.markers, t)
	if resumed {
		w.resumed++
	}
}

// Abandon is part of Host.
func (w *world) Abandon(list []Abandon) { w.abandoned = append(w.abandoned, list...) }

func newWorld(t testing.TB) *world {
	w := &world{
		t: t, now: time.UnixMilli(1_700_000_000_000), version: 2, nextID: 1000,
		held: map[Ticket]told{}, answers: map[Ticket]told{},
	}
	w.m = New(w.config())
	w.m.Loaded(w.now, &w.out)
	return w
}

func (w *world) config() Config {
	return Config{
		Host: w, Version: func() int16 { return w.version }, AbortInterval: 10 * time.Second, Expiration: 24 * time.Hour,
		ExpireInterval: time.Hour, MaxBatchBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) carryOut() {
	records := append([]*Record(nil), w.out.Records()...)
	type late struct {
		t Ticket
		told
	}
	var after []late
	w.out.Answers(func(t Ticket, reply Reply, code errcode.Code, durable bool) {
		if durable {
			after = append(after, late{t, told{reply, code}})
			return
		}
		w.tell(t, told{reply, code})
	})
	w.out.Reset()
	for _, r := range records {
		w.m.Apply(r)
	}
	w.pending = append(w.pending, records...)
	for _, a := range after {
		if len(w.pending) == 0 {
			w.tell(a.t, a.told)
		} else {
			w.waiting = append(w.waiting, a.t)
			w.held[a.t] = a.told
		}
	}
	if !w.manual && len(w.pending) > 0 {
		w.commit()
	}
}

func (w *world) tell(t Ticket, a told) {
	if _, ok := w.answers[t]; ok {
		w.t.Errorf("ticket %d is answered twice", t)
	}
	w.answers[t] = a
}

// commit makes everything durable that is on its way.
func (w *world) commit() {
	records, waiting := w.pending, w.waiting
	w.pending, w.waiting = nil, nil
	for _, r := range records {
		w.m.Commit(w.now, int64(len(w.log)), r, &w.out)
		w.log = append(w.log, r)
		// The answers of what a Commit decides wait for its records.
	}
	for _, t := range waiting {
		w.tell(t, w.held[t])
	}
	w.carryOut()
}

// fail takes everything back that is on its way.
func (w *world) fail() {
	records, waiting := w.pending, w.waiting
	w.pending, w.waiting = nil, nil
	for _, t := range waiting {
		w.tell(t, told{code: errcode.CoordinatorNotAvailable})
	}
	w.m.Rollback(w.now, records, errcode.CoordinatorNotAvailable, &w.out)
	w.carryOut()
}

// do carries out a command.
func (w *world) do(c Command) Ticket {
	w.last++
	w.m.Decide(w.now, w.last, c, &w.out)
	w.carryOut()
	w.tick()
	return w.last
}

// tick does what is due, as a shard does after each round.
func (w *world) tick() {
	if due := w.m.Due(); !due.IsZero() && !due.After(w.now) {
		w.m.Tick(w.now, &w.out)
		w.carryOut()
	}
}

// after lets time pass, alarm by alarm.
func (w *world) after(d time.Duration) {
	end := w.now.Add(d)
	for due := w.m.Due(); !due.IsZero() && !due.After(end); due = w.m.Due() {
		if due.After(w.now) {
			w.now = due
		}
		w.m.Tick(w.now, &w.out)
		w.carryOut()
	}
	w.now = end
}

// reload replaces the machine by one that has been loaded from the log, through bytes.
func (w *world) reload() {
	w.t.Helper()
	w.pending, w.waiting, w.markers, w.resumed = nil, nil, nil, 0
	w.m = New(w.config())
	var codec Codec
	for i, r := range w.log {
		bytes, at, hasValue := codec.Encode(nil, r)
		o := recordbatch.NewOptions()
		o.BaseOffset = int64(i)
		b := recordbatch.NewBuilder(nil, o)
		var value []byte
		if hasValue {
			value = bytes[at:]
		}
		b.Append(w.now.UnixMilli(), bytes[:at], value)
		batch, err := b.Build()
		if err != nil {
			w.t.Fatal(err)
		}
		records := recordbatch.RecordsOf(batch)
		for records.Next() {
			decoded, ok, err := codec.Decode(recordbatch.Header(batch), records.Record())
			if err != nil || !ok {
				w.t.Fatalf("decode: %v %v", ok, err)
			}
			w.m.Apply(decoded)
			w.m.Commit(w.now, int64(i), decoded, &w.out)
		}
	}
	w.out.Reset()
	w.m.Loaded(w.now, &w.out)
	w.carryOut()
}

func reply[A any](w *world, t Ticket) A {
	w.t.Helper()
	a, ok := w.answers[t]
	if !ok {
		w.t.Fatalf("ticket %d has no answer", t)
	}
	r, ok := a.reply.(A)
	if !ok {
		w.t.Fatalf("ticket %d: answer is %T %v (code %s)", t, a.reply, a.reply, a.code.Name())
	}
	return r
}

func (w *world) silent(t Ticket) {
	w.t.Helper()
	if a, ok := w.answers[t]; ok {
		w.t.Fatalf("ticket %d is answered: %+v", t, a)
	}
}

// init sends an Init, with a producer id where one is needed.
func (w *world) init(c Init) InitReply {
	w.t.Helper()
	if c.TimeoutMs == 0 {
		c.TimeoutMs = 60_000
	}
	c.NewProducerID = none
	r := reply[InitReply](w, w.do(&c))
	if r.NeedsID {
		w.nextID++
		again := c
		again.NewProducerID = w.nextID
		r = reply[InitReply](w, w.do(&again))
	}
	return r
}

// begin gives "tx" a producer.
func (w *world) begin() Producer {
	w.t.Helper()
	r := w.init(Init{ID: "tx"})
	if r.Code != errcode.None {
		w.t.Fatal(r.Code)
	}
	return r.Producer
}

func (w *world) addTo(p Producer, version int16, partitions ...int32) errcode.Code {
	w.t.Helper()
	c := &Add{ID: "tx", Producer: p, Version: version}
	for _, n := range partitions {
		c.Partitions = append(c.Partitions, Partition{"t", n})
	}
	return reply[errcode.Code](w, w.do(c))
}

func (w *world) mustAdd(p Producer, version int16, partitions ...int32) {
	w.t.Helper()
	if code := w.addTo(p, version, partitions...); code != errcode.None {
		w.t.Fatal(code)
	}
}

func (w *world) end(p Producer, version int16, commit bool) EndReply {
	w.t.Helper()
	c := End{ID: "tx", Producer: p, Version: version, Commit: commit, NewProducerID: none}
	r := reply[EndReply](w, w.do(&c))
	if r.NeedsID {
		w.nextID++
		again := c
		again.NewProducerID = w.nextID
		r = reply[EndReply](w, w.do(&again))
	}
	return r
}

// written says that the markers of the last transaction are written.
func (w *world) written() {
	w.t.Helper()
	last := w.markers[len(w.markers)-1]
	w.do(&MarkersWritten{ID: last.ID, Producer: Producer{last.ProducerID, last.Epoch}})
}

func (w *world) tx() *Transaction {
	w.t.Helper()
	return reply[*Transaction](w, w.do(&Describe{ID: "tx"}))
}

func (w *world) state(want State) *Transaction {
	w.t.Helper()
	t := w.tx()
	if t == nil || t.State != want {
		w.t.Fatalf("state is %+v, want %s", t, want)
	}
	return t
}

// put brings "tx" into a state.
func (w *world) put(t Transaction) {
	t.ID = "tx"
	if t.TimeoutMs == 0 {
		t.TimeoutMs = 60_000
	}
	if t.PrevProducerID == 0 {
		t.PrevProducerID = none
	}
	if t.NextProducerID == 0 {
		t.NextProducerID = none
	}
	r := &Record{id: "tx", state: &t, version: 1}
	w.m.Apply(r)
	w.m.Commit(w.now, int64(len(w.log)), r, &w.out)
	w.log = append(w.log, r)
	w.carryOut()
}
