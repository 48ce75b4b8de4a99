package txn

import (
	"math"
	"testing"

	"chancery/services/kafka/errcode"
)

func TestFirstInitGivesANewProducer(t *testing.T) {
	w := newWorld(t)
	if p := w.begin(); p != (Producer{1001, 0}) {
		t.Fatalf("%+v", p)
	}
	x := w.state(Empty)
	if x.StartMs != -1 || x.TimeoutMs != 60_000 || x.UpdatedMs != w.Now.UnixMilli() {
		t.Fatalf("%+v", x)
	}
	if p := w.begin(); p != (Producer{1001, 1}) {
		t.Fatalf("again: %+v", p)
	}
}

// TestInitByState: what InitProducerId answers, and what becomes of the transaction.
func TestInitByState(t *testing.T) {
	const last = math.MaxInt16 - 1
	expect := func(id int64, epoch int16) *Producer { return &Producer{id, epoch} }
	parts := map[Partition]struct{}{{"t", 0}: {}}
	for _, x := range []struct {
		name     string
		is       Transaction
		expected *Producer
		code     errcode.Code
		want     Producer
		lastWant int16
	}{
		{"new epoch from Empty", Transaction{ProducerID: 5, Epoch: 3, LastEpoch: 2}, nil, 0, Producer{5, 4}, -1},
		{"new epoch from CompleteCommit", Transaction{ProducerID: 5, Epoch: 3, State: CompleteCommit}, nil, 0, Producer{5, 4}, -1},
		{"new epoch from CompleteAbort", Transaction{ProducerID: 5, Epoch: 3, State: CompleteAbort}, nil, 0, Producer{5, 4}, -1},
		{"the present producer goes on", Transaction{ProducerID: 5, Epoch: 3}, expect(5, 3), 0, Producer{5, 4}, 3},
		{"a repeated request", Transaction{ProducerID: 5, Epoch: 4, LastEpoch: 3}, expect(5, 3), 0, Producer{5, 4}, 3},
		{"a fenced producer", Transaction{ProducerID: 5, Epoch: 4, LastEpoch: -1}, expect(5, 3), errcode.ProducerFenced, noProducer, 0},
		{"an epoch to come", Transaction{ProducerID: 5, Epoch: 4, LastEpoch: 3}, expect(5, 5), errcode.ProducerFenced, noProducer, 0},
		{"another producer", Transaction{ProducerID: 5, Epoch: 4}, expect(6, 4), errcode.ProducerFenced, noProducer, 0},
		{"no epoch is left", Transaction{ProducerID: 5, Epoch: last}, nil, 0, Producer{1001, 0}, -1},
		{"no epoch is left for the producer", Transaction{ProducerID: 5, Epoch: last}, expect(5, last), 0, Producer{1001, 0}, last},
		{"the rotation is repeated", Transaction{ProducerID: 7, PrevProducerID: 5, Epoch: 0, LastEpoch: last}, expect(5, last), 0, Producer{7, 0}, last},
		{"the producer before, with one epoch left", Transaction{ProducerID: 7, PrevProducerID: 5, Epoch: 0, LastEpoch: last}, expect(5, last-1), errcode.ProducerFenced, noProducer, 0},
		{"the producer before, with epochs left", Transaction{ProducerID: 7, PrevProducerID: 5, Epoch: 0, LastEpoch: 3}, expect(5, 3), errcode.ProducerFenced, noProducer, 0},
	} {
		w := newWorld(t)
		w.put(x.is)
		r := w.init(Init{ID: "tx", TimeoutMs: 7, Expected: x.expected})
		if r.Code != x.code || r.Producer != x.want {
			t.Errorf("%s: %+v", x.name, r)
			continue
		}
		if x.code != errcode.None {
			continue
		}
		if s := w.state(Empty); s.LastEpoch != x.lastWant || s.TimeoutMs != 7 || s.StartMs != -1 || s.Partitions != nil {
			t.Errorf("%s: %+v", x.name, s)
		}
	}
	for _, s := range []State{PrepareCommit, PrepareAbort} {
		w := newWorld(t)
		w.put(Transaction{ProducerID: 5, Epoch: 3, State: s, Partitions: parts})
		ticket := w.Do(&Init{ID: "tx", TimeoutMs: 7, NewProducerID: none})
		w.Silent(ticket)
		w.After(parkTime)
		if r := reply[InitReply](w, ticket); r.Code != errcode.ConcurrentTransactions {
			t.Errorf("%s: %+v", s, r)
		}
	}
}

// TestInitAbortsAnOngoingTransaction: the one before is fenced, its transaction aborted, and the new producer comes again.
func TestInitAbortsAnOngoingTransaction(t *testing.T) {
	for _, version := range []int16{0, 1, 2} {
		w := newWorld(t)
		w.version = version
		p := w.begin()
		w.mustAdd(p, 0, 0, 1)
		if r := w.init(Init{ID: "tx"}); r.Code != errcode.ConcurrentTransactions {
			t.Fatalf("%+v", r)
		}
		if s := w.state(PrepareAbort); s.Epoch != 1 || len(w.markers) != 1 || len(w.markers[0].Partitions) != 2 {
			t.Fatalf("version %d: %+v, markers %+v", version, s, w.markers)
		}
		if (w.markers[0].ClientVersion >= 2) != (version >= 2) {
			t.Fatalf("version %d: markers of %d", version, w.markers[0].ClientVersion)
		}
		w.written()
		w.state(CompleteAbort)
		if next := w.begin(); next != (Producer{p.ID, 2}) {
			t.Fatalf("%+v", next)
		}
		if code := w.addTo(p, 0, 0); code != errcode.ProducerFenced {
			t.Fatal(code)
		}
	}
}

// TestFencingWithTheLastEpoch: the largest epoch is never a client's. With version 2 the producer id changes at once, before it
// with the next InitProducerId.
func TestFencingWithTheLastEpoch(t *testing.T) {
	for _, version := range []int16{1, 2} {
		w := newWorld(t)
		w.version = version
		w.put(Transaction{ProducerID: 5, Epoch: math.MaxInt16 - 1, State: Ongoing, Partitions: map[Partition]struct{}{{"t", 0}: {}}, StartMs: w.Now.UnixMilli()})
		if r := w.init(Init{ID: "tx"}); r.Code != errcode.ConcurrentTransactions {
			t.Fatalf("%+v", r)
		}
		if m := w.markers[0]; m.ProducerID != 5 || m.Epoch != math.MaxInt16 {
			t.Fatalf("%+v", m)
		}
		w.written()
		w.state(CompleteAbort)
		r := w.init(Init{ID: "tx"})
		if r.Code != errcode.None || r.Producer.ID <= 1000 || r.Producer.Epoch > 1 {
			t.Fatalf("version %d: %+v", version, r)
		}
	}
}

// TestAbortAtTheLargestEpoch: an id whose epoch is already the largest can be aborted, and goes on.
func TestAbortAtTheLargestEpoch(t *testing.T) {
	w := newWorld(t)
	w.put(Transaction{ProducerID: 5, Epoch: math.MaxInt16, State: Ongoing, Partitions: map[Partition]struct{}{{"t", 0}: {}}, StartMs: w.Now.UnixMilli()})
	if r := w.init(Init{ID: "tx"}); r.Code != errcode.ConcurrentTransactions || w.markers[0].Epoch != math.MaxInt16 {
		t.Fatalf("%+v", r)
	}
	w.written()
	if r := w.init(Init{ID: "tx"}); r.Code != errcode.None || r.Producer.ID == 5 {
		t.Fatalf("%+v", r)
	}
}
