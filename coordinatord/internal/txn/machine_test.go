package txn

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

func TestAddPartitions(t *testing.T) {
	for _, version := range []int16{0, 2} {
		w := newWorld(t)
		if code := w.addTo(Producer{5, 0}, version, 0); code != errcode.InvalidProducerIdMapping {
			t.Fatal("unknown id:", code)
		}
		p := w.begin()
		for _, x := range []struct {
			p    Producer
			want errcode.Code
		}{{Producer{p.ID + 1, 0}, errcode.InvalidProducerIdMapping}, {Producer{p.ID, 1}, errcode.ProducerFenced}, {Producer{p.ID, -1}, errcode.ProducerFenced}} {
			if code := w.addTo(x.p, version, 0); code != x.want {
				t.Fatalf("%+v: %s", x.p, code)
			}
		}
		w.mustAdd(p, version, 0, 1)
		began := w.tx().StartMs
		n := len(w.Log)
		w.Now = w.Now.Add(time.Second)
		w.mustAdd(p, version, 1)
		if len(w.Log) != n {
			t.Fatal("nothing is written for partitions that are there")
		}
		w.mustAdd(p, version, 2)
		if s := w.state(Ongoing); s.StartMs != began || s.UpdatedMs != began+1000 || len(s.Partitions) != 3 || s.ClientVersion != version {
			t.Fatalf("%+v", s)
		}
	}
}

func TestVerify(t *testing.T) {
	w := newWorld(t)
	ask := func(p Producer, partitions ...int32) VerifyReply {
		c := &Verify{ID: "tx", Producer: p}
		for _, n := range partitions {
			c.Partitions = append(c.Partitions, Partition{"t", n})
		}
		return reply[VerifyReply](w, w.Do(c))
	}
	if r := ask(Producer{5, 0}, 0); r.Code != errcode.InvalidProducerIdMapping {
		t.Fatalf("%+v", r)
	}
	p := w.begin()
	if r := ask(p, 0); r.Code != errcode.None || r.Codes[0] != errcode.TransactionAbortable {
		t.Fatalf("%+v", r)
	}
	w.mustAdd(p, 0, 0)
	if r := ask(p, 0, 1); r.Codes[0] != errcode.None || r.Codes[1] != errcode.TransactionAbortable {
		t.Fatalf("%+v", r)
	}
	if r := ask(Producer{p.ID, 1}, 0); r.Code != errcode.ProducerFenced {
		t.Fatalf("%+v", r)
	}
	w.end(p, 0, true)
	if r := ask(p, 0); r.Code != errcode.ConcurrentTransactions {
		t.Fatalf("%+v", r)
	}
	w.written()
	if r := ask(p, 0); r.Codes[0] != errcode.TransactionAbortable {
		t.Fatalf("%+v", r)
	}
}

// TestAnswersWaitForTheLog: nobody is told what may still be taken back.
func TestAnswersWaitForTheLog(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.Manual = true
	add := w.Do(&Add{ID: "tx", Producer: p, Partitions: []Partition{{"t", 0}}})
	verify := w.Do(&Verify{ID: "tx", Producer: p, Partitions: []Partition{{"t", 0}}})
	end := w.Do(&End{ID: "tx", Producer: p, Commit: true, NewProducerID: none})
	for _, ticket := range []Ticket{add, verify, end} {
		w.Silent(ticket)
	}
	if len(w.markers) != 0 {
		t.Fatal("markers go out before the decision is durable")
	}
	w.state(Empty)
	w.Fail(errcode.CoordinatorNotAvailable)
	if w.Answers[end].Code != errcode.CoordinatorNotAvailable || len(w.markers) != 0 {
		t.Fatalf("%+v", w.Answers[end])
	}
	w.Manual = false
	w.mustAdd(p, 0, 1)
	if s := w.state(Ongoing); !maps.Equal(s.Partitions, map[Partition]struct{}{{"t", 1}: {}}) {
		t.Fatalf("%+v", s)
	}
}

// TestEndIsNotedAgain: when the log refuses that a transaction has ended, that is tried again without new markers.
func TestEndIsNotedAgain(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 0, 0)
	w.end(p, 0, true)
	w.Manual = true
	w.written()
	w.Fail(errcode.CoordinatorNotAvailable)
	w.state(PrepareCommit)
	w.After(completionPause)
	w.Fail(errcode.CoordinatorNotAvailable)
	w.Manual = false
	w.After(completionPause)
	w.state(CompleteCommit)
	if len(w.markers) != 1 {
		t.Fatal("the markers were written again")
	}
}

// TestNewOwnerGoesOn: whoever loads the shard has the markers written of transactions that were being ended.
func TestNewOwnerGoesOn(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 2, 0, 1)
	w.end(p, 2, true)
	w.reload()
	if len(w.markers) != 1 || w.resumed != 1 || len(w.markers[0].Partitions) != 2 || w.markers[0].State != PrepareCommit {
		t.Fatalf("%+v", w.markers)
	}
	w.written()
	w.state(CompleteCommit)
	// What an earlier machine has sent is answered late, and says nothing new.
	w.Do(&MarkersWritten{ID: "tx", Producer: p})
	w.Do(&MarkersWritten{ID: "other", Producer: p})
	w.state(CompleteCommit)
	w.reload()
	if len(w.markers) != 0 {
		t.Fatalf("%+v", w.markers)
	}
}

// TestTimeOut: a transaction that takes too long is aborted with the next look, and its producer fenced.
func TestTimeOut(t *testing.T) {
	for _, version := range []int16{1, 2} {
		w := newWorld(t)
		w.version = version
		p := w.begin()
		w.mustAdd(p, version, 0)
		w.After(60 * time.Second)
		if len(w.abandoned) != 0 {
			t.Fatalf("%+v", w.abandoned)
		}
		w.After(10 * time.Second)
		if len(w.abandoned) != 1 || w.abandoned[0].Producer != p {
			t.Fatalf("%+v", w.abandoned)
		}
		if r := reply[EndReply](w, w.Do(&w.abandoned[0])); r.Code != errcode.None {
			t.Fatalf("%+v", r)
		}
		if s := w.state(PrepareAbort); s.Epoch != p.Epoch+1 || w.markers[0].Epoch != p.Epoch+1 {
			t.Fatalf("%+v", s)
		}
		w.written()
		if code := w.addTo(p, version, 0); code != errcode.ProducerFenced {
			t.Fatal(code)
		}
		// It is late: the transaction has ended, and another one has begun.
		late := w.abandoned[0]
		next := w.begin()
		w.mustAdd(next, version, 0)
		late.Producer = next
		if r := reply[EndReply](w, w.Do(&late)); r.Code != errcode.ConcurrentTransactions {
			t.Fatalf("%+v", r)
		}
		w.state(Ongoing)
	}
}

func TestTimeOutWithTheLastEpochNeedsAProducerID(t *testing.T) {
	w := newWorld(t)
	w.put(Transaction{ProducerID: 5, Epoch: 32766, State: Ongoing, StartMs: w.Now.UnixMilli(), Partitions: map[Partition]struct{}{{"t", 0}: {}}})
	w.After(71 * time.Second)
	c := w.abandoned[0]
	if r := reply[EndReply](w, w.Do(&c)); !r.NeedsID {
		t.Fatalf("%+v", r)
	}
	again := c
	again.NewProducerID = 77
	if r := reply[EndReply](w, w.Do(&again)); r.Code != errcode.None || r.NeedsID {
		t.Fatalf("%+v", r)
	}
	w.written()
	if s := w.state(CompleteAbort); s.ProducerID != 77 || s.Epoch != 0 {
		t.Fatalf("%+v", s)
	}
}

// TestLateAbortAfterATimeOut: the producer whose transaction was aborted for it asks for the abort as well. By version 2 it goes on with
// what it is told, by version 1 it is fenced.
func TestLateAbortAfterATimeOut(t *testing.T) {
	for _, epoch := range []int16{3, 32766} {
		w := newWorld(t)
		w.put(Transaction{ProducerID: 5, Epoch: epoch, State: Ongoing, ClientVersion: 2, StartMs: w.Now.UnixMilli(), Partitions: map[Partition]struct{}{{"t", 0}: {}}})
		w.After(71 * time.Second)
		c := w.abandoned[0]
		c.NewProducerID = 77
		w.Do(&c)
		late := w.Do(&End{ID: "tx", Producer: Producer{5, epoch}, Version: 2, NewProducerID: none})
		w.Silent(late)
		w.written()
		want := Producer{5, epoch + 1}
		if epoch == 32766 {
			want = Producer{77, 0}
		}
		if r := reply[EndReply](w, late); r.Code != errcode.None || r.Producer != want {
			t.Fatalf("epoch %d: %+v", epoch, r)
		}
		if r := w.end(Producer{5, epoch}, 2, true); r.Code != errcode.InvalidTxnState {
			t.Fatalf("a commit of what was aborted: %+v", r)
		}
		if r := w.end(Producer{5, epoch}, 0, false); epoch == 3 && r.Code != errcode.ProducerFenced {
			t.Fatalf("%+v", r)
		}
	}
}

// TestIDsExpire: an id that nobody uses is forgotten, but not while its transaction is open.
func TestIDsExpire(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	w.mustAdd(p, 0, 0)
	w.put(Transaction{ProducerID: p.ID, Epoch: p.Epoch, State: Ongoing, TimeoutMs: noTimeout, StartMs: w.Now.UnixMilli(), UpdatedMs: w.Now.UnixMilli(), Partitions: map[Partition]struct{}{{"t", 0}: {}}})
	w.After(48 * time.Hour)
	w.state(Ongoing)
	if len(w.abandoned) != 0 {
		t.Fatal("a transaction without time-out was abandoned")
	}
	w.end(p, 0, true)
	w.written()
	w.After(23 * time.Hour)
	w.state(CompleteCommit)
	w.After(2 * time.Hour)
	if s := w.tx(); s != nil {
		t.Fatalf("%+v", s)
	}
	w.reload()
	if w.m.count().IDs != 0 {
		t.Fatalf("%+v", w.m.count())
	}
	if code := w.addTo(p, 0, 0); code != errcode.InvalidProducerIdMapping {
		t.Fatal(code)
	}
	if r := w.init(Init{ID: "tx", Expected: &p}); r.Code != errcode.None || r.Producer.ID == p.ID {
		t.Fatalf("%+v", r)
	}
}

// TestStatesThatExpire: an id is forgotten in each state in which its transaction is over, after all of its time, and in no other; nor
// while a command waits for it.
func TestStatesThatExpire(t *testing.T) {
	for state, expires := range map[State]bool{
		Empty: true, CompleteCommit: true, CompleteAbort: true, Ongoing: false, PrepareCommit: false, PrepareAbort: false,
	} {
		for _, waits := range []bool{false, true} {
			w := newWorld(t)
			p := w.begin()
			began := w.Now
			tx := Transaction{ProducerID: p.ID, Epoch: p.Epoch, State: state, TimeoutMs: noTimeout, StartMs: began.UnixMilli(), UpdatedMs: began.UnixMilli()}
			if !expires {
				tx.Partitions = map[Partition]struct{}{{"t", 0}: {}}
			}
			w.put(tx)
			if waits {
				w.m.parked["tx"] = []parked{{1, &Add{ID: "tx"}, began.Add(1000 * time.Hour)}}
			}
			expire := func(at time.Time) {
				var out Effects
				w.m.expire(at, &out)
				if gone := len(out.Records()) > 0; gone != (expires && !waits && !at.Before(began.Add(24*time.Hour))) {
					t.Errorf("%v, a command waits %v: forgotten after %s: %v", state, waits, at.Sub(began), gone)
				}
			}
			expire(began.Add(24*time.Hour - time.Millisecond))
			expire(began.Add(24 * time.Hour))
		}
	}
}

func TestList(t *testing.T) {
	w := newWorld(t)
	for i, id := range []string{"a", "ab", "b"} {
		w.init(Init{ID: id})
		if i > 0 {
			w.Do(&Add{ID: id, Producer: Producer{1001 + int64(i), 0}, Partitions: []Partition{{"t", 0}}})
		}
	}
	w.Now = w.Now.Add(5 * time.Second)
	for _, x := range []struct {
		c    List
		want []string
	}{
		{List{LongerThanMs: -1}, []string{"a", "ab", "b"}},
		{List{LongerThanMs: -1, ByState: true, States: []string{"Ongoing"}}, []string{"ab", "b"}},
		{List{LongerThanMs: -1, ByState: true}, nil},
		{List{LongerThanMs: -1, ProducerIDs: []int64{1001, 1003}}, []string{"a", "b"}},
		{List{LongerThanMs: 4999, ByState: true, States: []string{"Ongoing"}}, []string{"ab", "b"}},
		{List{LongerThanMs: 5000, ByState: true, States: []string{"Ongoing"}}, nil},
		{List{LongerThanMs: -1, Pattern: regexp.MustCompile("^(?:a.*)$")}, []string{"a", "ab"}},
	} {
		var ids []string
		for _, l := range reply[[]Listed](w, w.Do(&x.c)) {
			ids = append(ids, l.ID)
		}
		slices.Sort(ids)
		if !slices.Equal(ids, x.want) {
			t.Errorf("%+v: %v, want %v", x.c, ids, x.want)
		}
	}
	if c := reply[Counts](w, w.Do(&Count{})); c != (Counts{IDs: 3, Ongoing: 2}) {
		t.Fatalf("%+v", c)
	}
}

// TestTooManyPartitions: a state that the log cannot take is refused before it is tried.
func TestTooManyPartitions(t *testing.T) {
	w := newWorld(t)
	p := w.begin()
	many := make([]int32, 1<<17)
	for i := range many {
		many[i] = int32(i)
	}
	if code := w.addTo(p, 0, many...); code != errcode.UnknownServerError {
		t.Fatal(code)
	}
	w.mustAdd(p, 0, 0)
}

// TestRecords: what is written is read again, in both forms.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := &Transaction{
			ID: rapid.String().Draw(rt, "id"), ProducerID: rapid.Int64().Draw(rt, "producer"), PrevProducerID: none, NextProducerID: none,
			Epoch: rapid.Int16().Draw(rt, "epoch"), LastEpoch: -1, TimeoutMs: rapid.Int32().Draw(rt, "timeout"),
			State: State(rapid.IntRange(int(Empty), int(CompleteAbort)).Draw(rt, "state")), StartMs: rapid.Int64().Draw(rt, "start"),
			UpdatedMs: rapid.Int64().Draw(rt, "updated"),
		}
		r := &Record{id: x.ID, state: x, version: rapid.SampledFrom([]int16{0, 1}).Draw(rt, "version")}
		if r.version == 1 {
			x.PrevProducerID, x.NextProducerID = rapid.Int64().Draw(rt, "prev"), rapid.Int64().Draw(rt, "next")
			x.ClientVersion = rapid.Int16().Draw(rt, "client")
		}
		if x.State != Empty {
			for range rapid.IntRange(0, 5).Draw(rt, "partitions") {
				if x.Partitions == nil {
					x.Partitions = map[Partition]struct{}{}
				}
				x.Partitions[Partition{rapid.String().Draw(rt, "topic"), rapid.Int32().Draw(rt, "partition")}] = struct{}{}
			}
		}
		bytes, at, ok := Codec{}.Encode([]byte("before"), r)
		got, known, err := Codec{}.Decode(recordbatch.MarkerBatch(1, 1, recordbatch.EndTxnMarker{}, 0), nil)
		if got != nil || known || err != nil {
			rt.Fatal("a control record was taken for a transaction")
		}
		got, known, err = Codec{}.Decode(plainHeader(rt), &recordbatch.Record{Key: bytes[len("before"):at], Value: bytes[at:]})
		if err != nil || !known || !ok || !reflect.DeepEqual(got, r) {
			rt.Fatalf("%v %v %v: %+v, want %+v", err, known, ok, got.state, r.state)
		}
	})
}

func plainHeader(t rapid.TB) recordbatch.Header {
	b := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	b.Append(0, nil, nil)
	batch, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return recordbatch.Header(batch)
}

// TestRecordsOfNewerVersions are left out, not a reason to serve nothing.
func TestRecordsOfNewerVersions(t *testing.T) {
	skipped := 0
	c := Codec{Skipped: func(string) { skipped++ }}
	for _, r := range []recordbatch.Record{
		{Key: []byte{0, 9, 1}}, {Key: []byte{0, 0, 0, 1, 'x'}, Value: []byte{0, 7, 1}},
	} {
		if _, ok, err := c.Decode(plainHeader(t), &r); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if skipped != 2 {
		t.Fatal(skipped)
	}
}

func FuzzDecode(f *testing.F) {
	bytes, at, _ := Codec{}.Encode(nil, &Record{id: "x", state: created("x", 1, 1, 1), version: 1})
	f.Add(bytes[:at], bytes[at:])
	header := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
	header.Append(0, nil, nil)
	batch, err := header.Build()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, ok, err := Codec{}.Decode(recordbatch.Header(batch), &recordbatch.Record{Key: key, Value: value})
		if err == nil && ok && r.state != nil {
			Codec{}.Encode(nil, r)
		}
	})
}

// TestEveryProducerHasItsTransactionsForItself drives several producers of one id through everything that can happen: records that
// are refused, a new owner, markers that are late. At most one of them may think that its transaction was committed, epochs
// of one producer id never go back, and all that was answered holds after a reload.
func TestEveryProducerHasItsTransactionsForItself(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.Manual = true
		version := rapid.SampledFrom([]int16{0, 2}).Draw(rt, "client")
		w.version = rapid.SampledFrom([]int16{1, 2}).Draw(rt, "server")
		if version == 2 {
			w.version = 2
		}
		highest := map[int64]int16{}
		producers := []Producer{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 8).Draw(rt, "step") {
			case 0:
				w.nextID++
				ticket := w.Do(&Init{ID: "tx", TimeoutMs: 60_000, NewProducerID: w.nextID})
				w.Commit()
				w.Commit()
				if a, ok := w.Answers[ticket]; ok {
					if r, _ := a.Reply.(InitReply); a.Reply != nil && r.Code == errcode.None {
						if r.Producer.Epoch <= highest[r.Producer.ID] && highest[r.Producer.ID] != 0 {
							rt.Fatalf("epoch %d of producer %d was given out before", r.Producer.Epoch, r.Producer.ID)
						}
						highest[r.Producer.ID] = r.Producer.Epoch
						producers = append(producers, r.Producer)
					}
				}
			case 1, 2, 3:
				if len(producers) > 0 {
					p := rapid.SampledFrom(producers).Draw(rt, "producer")
					w.Do(&Add{ID: "tx", Producer: p, Version: version, Partitions: []Partition{{"t", rapid.Int32Range(0, 2).Draw(rt, "partition")}}})
				}
			case 4:
				if len(producers) > 0 {
					p := rapid.SampledFrom(producers).Draw(rt, "producer")
					w.nextID++
					ticket := w.Do(&End{ID: "tx", Producer: p, Version: version, Commit: rapid.Bool().Draw(rt, "commit"), NewProducerID: w.nextID})
					w.Commit()
					if a := w.Answers[ticket]; a.Reply != nil {
						if r, _ := a.Reply.(EndReply); r.Code == errcode.None && version == 2 {
							producers = append(producers, r.Producer)
							highest[r.Producer.ID] = max(highest[r.Producer.ID], r.Producer.Epoch)
						}
					}
				}
			case 5:
				w.Commit()
			case 6:
				w.Fail(errcode.CoordinatorNotAvailable)
			case 7:
				w.reload()
			case 8:
				for _, m := range w.markers {
					w.Do(&MarkersWritten{ID: m.ID, Producer: Producer{m.ProducerID, m.Epoch}})
				}
			}
			if s := w.m.newest("tx"); s != nil && s.State.ending() && s == w.m.ids["tx"].durable && len(w.markers) == 0 && len(s.Partitions) > 0 {
				rt.Fatal("a transaction is being ended, and nobody writes its markers")
			}
		}
		for range 5 {
			for _, m := range w.markers {
				w.Do(&MarkersWritten{ID: m.ID, Producer: Producer{m.ProducerID, m.Epoch}})
			}
			w.Commit()
			w.After(2 * completionPause)
			w.Commit()
		}
		before := w.tx()
		if before != nil && before.State.ending() {
			rt.Fatalf("it never ends: %+v", before)
		}
		w.reload()
		w.Commit()
		after := w.tx()
		if (before == nil) != (after == nil) || before != nil && (before.State != after.State || before.ProducerID != after.ProducerID || before.Epoch != after.Epoch || !maps.Equal(before.Partitions, after.Partitions)) {
			rt.Fatalf("%+v\nafter a reload: %+v", before, after)
		}
	})
}
