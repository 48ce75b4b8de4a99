package txn

import (
	"fmt"
	"math"
	"testing"

	"chancery/services/kafka/errcode"
)

func TestCommitOfVersion1(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 0, 1, 0)
	if s := w.state(Ongoing); s.StartMs != w.Now.UnixMilli() || len(s.Partitions) != 2 {
		t.Fatalf("%+v", s)
	}
	if r := w.end(p, 0, true); r.Code != errcode.None || r.Producer != noProducer {
		t.Fatalf("%+v", r)
	}
	w.state(PrepareCommit)
	w.written()
	if s := w.state(CompleteCommit); s.Epoch != p.Epoch || s.Partitions != nil {
		t.Fatalf("%+v", s)
	}
	w.mustAdd(p, 0, 3)
	if s := w.state(Ongoing); len(s.Partitions) != 1 {
		t.Fatalf("%+v", s)
	}
}

// TestEndOfVersion1 is what EndTxn answers in each state. The epoch must be the present one.
func TestEndOfVersion1(t *testing.T) {
	for _, x := range []struct {
		state  State
		commit bool
		want   errcode.Code
	}{
		{Empty, true, errcode.InvalidTxnState}, {Empty, false, errcode.InvalidTxnState},
		{Ongoing, true, errcode.None}, {Ongoing, false, errcode.None},
		{CompleteCommit, true, errcode.None}, {CompleteCommit, false, errcode.InvalidTxnState},
		{CompleteAbort, true, errcode.InvalidTxnState}, {CompleteAbort, false, errcode.None},
	} {
		w := newWorld(t)
		w.put(Transaction{ProducerID: 5, Epoch: 3, State: x.state, StartMs: 1})
		if r := w.end(Producer{5, 3}, 0, x.commit); r.Code != x.want {
			t.Errorf("%s, commit %t: %s", x.state, x.commit, r.Code)
		}
		for _, p := range []Producer{{5, 2}, {5, 4}, {6, 3}} {
			want := errcode.ProducerFenced
			if p.ID != 5 {
				want = errcode.InvalidProducerIdMapping
			}
			w.put(Transaction{ProducerID: 5, Epoch: 3, State: x.state, StartMs: 1})
			if r := w.end(p, 0, x.commit); r.Code != want {
				t.Errorf("%s, commit %t, %+v: %s", x.state, x.commit, p, r.Code)
			}
		}
	}
	if r := newWorld(t).end(Producer{5, 3}, 0, true); r.Code != errcode.InvalidProducerIdMapping {
		t.Error(r.Code)
	}
}

// TestEndOfVersion2 is the table of KIP-890: a request with the epoch before repeats one whose answer was lost.
func TestEndOfVersion2(t *testing.T) {
	const fenced, invalid, same, bump = "fenced", "invalid", "same", "bump"
	for _, x := range []struct {
		state                      State
		abortAgain, abort          string
		commitAgain, commit        string
		abortLater, commitWithNext string
	}{
		{Empty, fenced, bump, fenced, invalid, fenced, fenced},
		{CompleteAbort, same, bump, invalid, invalid, fenced, fenced},
		{CompleteCommit, invalid, bump, same, invalid, fenced, fenced},
		{Ongoing, fenced, bump, fenced, bump, fenced, fenced},
	} {
		for _, y := range []struct {
			commit bool
			epoch  int16
			want   string
		}{
			{false, 2, x.abortAgain}, {false, 3, x.abort}, {true, 2, x.commitAgain}, {true, 3, x.commit},
			{false, 4, x.abortLater}, {true, 4, x.commitWithNext},
		} {
			w := newWorld(t)
			w.put(Transaction{ProducerID: 5, Epoch: 3, LastEpoch: 2, State: x.state, StartMs: 1})
			r := w.end(Producer{5, y.epoch}, 2, y.commit)
			what := fmt.Sprintf("%s, commit %t, epoch %d", x.state, y.commit, y.epoch)
			switch y.want {
			case fenced:
				if r.Code != errcode.ProducerFenced {
					t.Errorf("%s: %+v", what, r)
				}
			case invalid:
				if r.Code != errcode.InvalidTxnState {
					t.Errorf("%s: %+v", what, r)
				}
			case same:
				if r.Code != errcode.None || r.Producer != (Producer{5, 3}) {
					t.Errorf("%s: %+v", what, r)
				}
			case bump:
				if r.Code != errcode.None || r.Producer != (Producer{5, 4}) {
					t.Errorf("%s: %+v", what, r)
				}
				// Without partitions there is no marker to wait for.
				want := CompleteAbort
				if y.commit {
					want = CompleteCommit
				}
				if s := w.state(want); s.Epoch != 4 || len(w.markers) != 0 {
					t.Errorf("%s: %+v", what, s)
				}
			}
		}
	}
}

// TestCommitOfVersion2: the markers have the next epoch, with which the producer goes on; a lost answer can be had again.
func TestCommitOfVersion2(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	for round := range int16(3) {
		w.mustAdd(p, 2, 0)
		r := w.end(p, 2, round%2 == 0)
		if r.Code != errcode.None || r.Producer != (Producer{p.ID, p.Epoch + 1}) {
			t.Fatalf("%+v", r)
		}
		if m := w.markers[round]; m.Epoch != p.Epoch+1 || m.ClientVersion != 2 {
			t.Fatalf("%+v", m)
		}
		w.written()
		if again := w.end(p, 2, round%2 == 0); again != r {
			t.Fatalf("again: %+v", again)
		}
		p = r.Producer
	}
}

// TestEpochsUsedUp: the transaction ends with the producer's last id, and the producer goes on with the next; the change can be had
// again when its answer was lost, also from another coordinator.
func TestEpochsUsedUp(t *testing.T) {
	for _, reload := range []bool{false, true} {
		w := newWorld(t)
		w.put(Transaction{ProducerID: 5, Epoch: math.MaxInt16 - 1, State: CompleteCommit, StartMs: 1})
		p := Producer{5, math.MaxInt16 - 1}
		w.mustAdd(p, 2, 0)
		r := w.end(p, 2, true)
		if r.Code != errcode.None || r.Producer != (Producer{1001, 0}) {
			t.Fatalf("%+v", r)
		}
		if m := w.markers[0]; m.ProducerID != 5 || m.Epoch != math.MaxInt16 {
			t.Fatalf("%+v", m)
		}
		// While the markers are being written the new id waits, though it is not the transaction's yet.
		early := w.Do(&Add{ID: "tx", Producer: r.Producer, Version: 2, Partitions: []Partition{{"t", 1}}})
		w.Silent(early)
		if reload {
			w.reload()
		}
		w.written()
		if !reload && reply[errcode.Code](w, early) != errcode.None {
			t.Fatal("the new producer was refused")
		}
		if reload {
			if again := w.end(p, 2, true); again != r {
				t.Fatalf("again: %+v", again)
			}
			if wrong := w.end(p, 2, false); wrong.Code != errcode.InvalidTxnState {
				t.Fatalf("%+v", wrong)
			}
			w.mustAdd(r.Producer, 2, 1)
		}
		if s := w.state(Ongoing); s.ProducerID != 1001 || s.Epoch != 0 {
			t.Fatalf("%+v", s)
		}
	}
}

// TestCommandsWaitForTheEnd: what a producer sends while its markers are being written is answered when they are.
func TestCommandsWaitForTheEnd(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 0, 0)
	w.end(p, 0, true)
	repeated := w.Do(&End{ID: "tx", Producer: p, Commit: true, NewProducerID: none})
	first := w.Do(&Add{ID: "tx", Producer: p, Partitions: []Partition{{"t", 1}}})
	second := w.Do(&Add{ID: "tx", Producer: p, Partitions: []Partition{{"t", 2}}})
	fenced := w.Do(&End{ID: "tx", Producer: Producer{p.ID, p.Epoch + 1}, Commit: true, NewProducerID: none})
	for _, ticket := range []Ticket{repeated, first, second} {
		w.Silent(ticket)
	}
	if r := reply[EndReply](w, fenced); r.Code != errcode.ProducerFenced {
		t.Fatalf("%+v", r)
	}
	w.written()
	if r := reply[EndReply](w, repeated); r.Code != errcode.None {
		t.Fatalf("%+v", r)
	}
	if a, b := reply[errcode.Code](w, first), reply[errcode.Code](w, second); a != errcode.None || b != errcode.None {
		t.Fatal(a, b)
	}
	if s := w.state(Ongoing); len(s.Partitions) != 2 {
		t.Fatalf("%+v", s)
	}
	w.After(parkTime)
}

// TestNextTransactionSharesTheAppend: what has waited for a transaction's end is decided as soon as that is, and goes into the log with
// it. When the log refuses them both, it has to be sent again, and the end is noted again.
func TestNextTransactionSharesTheAppend(t *testing.T) {
	for _, refused := range []bool{false, true} {
		w := newWorld(t)
		p := w.begin()
		w.mustAdd(p, 2, 0)
		next := w.end(p, 2, true).Producer
		w.Manual = true
		add := func() Ticket {
			return w.Do(&Add{ID: "tx", Producer: next, Version: 2, Partitions: []Partition{{"t", 1}}})
		}
		first := add()
		w.written()
		if len(w.Pending) != 2 || w.Pending[1].state.State != Ongoing {
			t.Fatalf("%d records are on their way", len(w.Pending))
		}
		w.Silent(first)
		if refused {
			w.Fail(errcode.CoordinatorNotAvailable)
			if a := w.Answers[first]; a.Code != errcode.CoordinatorNotAvailable {
				t.Fatalf("%+v", a)
			}
			first = add()
			w.Silent(first)
			w.After(completionPause)
			w.Tick()
			if a, ok := w.Answers[first]; !ok || a.Reply != errcode.ConcurrentTransactions {
				t.Fatalf("%+v", a)
			}
			w.Commit()
			first = add()
		}
		w.Commit()
		if code := reply[errcode.Code](w, first); code != errcode.None {
			t.Fatal(code)
		}
		w.state(Ongoing)
	}
}

// TestTransactionsEndTogether: those whose ends become durable with one append have each its waiting command carried out.
func TestTransactionsEndTogether(t *testing.T) {
	w := newWorld(t)
	ids := []string{"a", "b", "c"}
	producers := map[string]Producer{}
	for _, id := range ids {
		producers[id] = w.init(Init{ID: id}).Producer
	}
	w.Manual = true
	// Nothing is in these transactions, so that their ends follow from one append.
	for _, id := range ids {
		w.Do(&End{ID: id, Producer: producers[id], Version: 2, NewProducerID: none})
	}
	var waiting []Ticket
	for _, id := range ids {
		p := producers[id]
		waiting = append(waiting, w.Do(&Add{ID: id, Producer: Producer{p.ID, p.Epoch + 1}, Version: 2, Partitions: []Partition{{"t", 0}}}))
	}
	for range 4 {
		w.Commit()
		w.Tick()
	}
	for _, ticket := range waiting {
		if code := reply[errcode.Code](w, ticket); code != errcode.None {
			t.Fatal(code)
		}
	}
}

// TestCommandsDoNotWaitForEver: markers may take long.
func TestCommandsDoNotWaitForEver(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 2, 0)
	r := w.end(p, 2, true)
	add := w.Do(&Add{ID: "tx", Producer: r.Producer, Version: 2, Partitions: []Partition{{"t", 1}}})
	end := w.Do(&End{ID: "tx", Producer: r.Producer, Version: 2, NewProducerID: none})
	w.After(parkTime)
	if code := reply[errcode.Code](w, add); code != errcode.ConcurrentTransactions {
		t.Fatal(code)
	}
	if r := reply[EndReply](w, end); r.Code != errcode.ConcurrentTransactions {
		t.Fatalf("%+v", r)
	}
}
