package txn

import (
	"log/slog"
	"testing"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/statemachine/machinetest"
)

const none = recordbatch.NoProducerID

// world is a machine, and a host that only notes.
type world struct {
	*machinetest.Player[Command, *Record, Reply]
	m *Machine
	// version is transaction.version.
	version int16

	markers   []*Transaction
	resumed   int
	abandoned []Abandon
	// nextID is the next producer id.
	nextID int64
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
	w := &world{version: 2, nextID: 1000}
	w.m = New(w.config())
	w.Player = machinetest.Start(t, w.m, time.UnixMilli(1_700_000_000_000))
	w.Once = true
	return w
}

func (w *world) config() Config {
	return Config{
		Host: w, Version: func() int16 { return w.version }, AbortInterval: 10 * time.Second, Expiration: 24 * time.Hour,
		ExpireInterval: time.Hour, MaxBatchBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	}
}

// reload replaces the machine by one that has been loaded from the log. Nobody waits for what was on its way.
func (w *world) reload() {
	w.T.Helper()
	w.markers, w.resumed = nil, 0
	w.m = New(w.config())
	w.Replay(Codec{}, w.m)
	w.Restart(w.m)
}

func reply[T any](w *world, t Ticket) T {
	w.T.Helper()
	return machinetest.Reply[T](w.Player, t)
}

// init sends an Init, with a producer id where one is needed.
func (w *world) init(c Init) InitReply {
	w.T.Helper()
	if c.TimeoutMs == 0 {
		c.TimeoutMs = 60_000
	}
	c.NewProducerID = none
	r := reply[InitReply](w, w.Do(&c))
	if r.NeedsID {
		w.nextID++
		again := c
		again.NewProducerID = w.nextID
		r = reply[InitReply](w, w.Do(&again))
	}
	return r
}

// begin gives "tx" a producer.
func (w *world) begin() Producer {
	w.T.Helper()
	r := w.init(Init{ID: "tx"})
	if r.Code != errcode.None {
		w.T.Fatal(r.Code)
	}
	return r.Producer
}

func (w *world) addTo(p Producer, version int16, partitions ...int32) errcode.Code {
	w.T.Helper()
	c := &Add{ID: "tx", Producer: p, Version: version}
	for _, n := range partitions {
		c.Partitions = append(c.Partitions, Partition{"t", n})
	}
	return reply[errcode.Code](w, w.Do(c))
}

func (w *world) mustAdd(p Producer, version int16, partitions ...int32) {
	w.T.Helper()
	if code := w.addTo(p, version, partitions...); code != errcode.None {
		w.T.Fatal(code)
	}
}

func (w *world) end(p Producer, version int16, commit bool) EndReply {
	w.T.Helper()
	c := End{ID: "tx", Producer: p, Version: version, Commit: commit, NewProducerID: none}
	r := reply[EndReply](w, w.Do(&c))
	if r.NeedsID {
		w.nextID++
		again := c
		again.NewProducerID = w.nextID
		r = reply[EndReply](w, w.Do(&again))
	}
	return r
}

// written says that the markers of the last transaction are written.
func (w *world) written() {
	w.T.Helper()
	last := w.markers[len(w.markers)-1]
	w.Do(&MarkersWritten{ID: last.ID, Producer: Producer{last.ProducerID, last.Epoch}})
}

func (w *world) tx() *Transaction {
	w.T.Helper()
	return reply[*Transaction](w, w.Do(&Describe{ID: "tx"}))
}

func (w *world) state(want State) *Transaction {
	w.T.Helper()
	t := w.tx()
	if t == nil || t.State != want {
		w.T.Fatalf("state is %+v, want %s", t, want)
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
	w.m.Commit(w.Now, int64(len(w.Log)), r, &w.Effects)
	w.Log = append(w.Log, r)
	w.CarryOut()
}
