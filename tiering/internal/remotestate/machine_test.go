package remotestate

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/statemachine"
)

var here = remotelog.Partition{TopicID: uuid.UUID{1}, Partition: 2}

func segment(id byte, start, end int64, epochs ...remotelog.EpochStart) *remotelog.Segment {
	return &remotelog.Segment{
		Topic: "t", Partition: here, ID: uuid.UUID{id}, StartOffset: start, EndOffset: end, SizeBytes: int32(end - start + 1), MaxTimestampMs: end, LeaderEpochs: epochs,
	}
}

func update(id byte, state remotelog.SegmentState) *remotelog.SegmentUpdate {
	return &remotelog.SegmentUpdate{Topic: "t", Partition: here, ID: uuid.UUID{id}, State: state}
}

// decide carries a command out up to the point where its records are applied.
func decide(m *Machine, c Command) (records []remotelog.Record, reply Reply, code errcode.Code) {
	var e statemachine.Effects[remotelog.Record, Reply]
	m.Decide(time.Time{}, 1, c, &e)
	e.Answers(func(_ statemachine.Ticket, r Reply, c errcode.Code, _ bool) { reply, code = r, c })
	for _, r := range e.Records() {
		records = append(records, r)
		m.Apply(r)
	}
	return records, reply, code
}

func commit(m *Machine, records ...remotelog.Record) {
	for _, r := range records {
		m.Commit(time.Time{}, 0, r, nil)
	}
}

func write(t *testing.T, m *Machine, r remotelog.Record) {
	t.Helper()
	var e statemachine.Effects[remotelog.Record, Reply]
	m.Decide(time.Time{}, 1, Write{r}, &e)
	answers, code := 0, errcode.None
	e.Answers(func(_ statemachine.Ticket, _ Reply, c errcode.Code, durable bool) {
		answers, code = answers+1, c
		if !durable {
			t.Fatalf("%+v is answered before it is durable", r)
		}
	})
	if code != errcode.None || answers != 1 {
		t.Fatalf("%+v: %d answers, %s", r, answers, code.Name())
	}
	records := e.Records()
	for _, r := range records {
		m.Apply(r)
	}
	commit(m, records...)
}

func view(m *Machine) *View {
	_, reply, _ := decide(m, Get{here})
	return reply.(*View)
}

func TestLife(t *testing.T) {
	m := New()
	refused := func(r remotelog.Record) {
		t.Helper()
		if _, _, code := decide(m, Write{r}); code != errcode.InvalidRequest {
			t.Fatalf("%+v: %s", r, code.Name())
		}
	}
	if view(m) != nil {
		t.Fatal("something is known of nothing")
	}
	refused(update(1, remotelog.CopyFinished))
	write(t, m, segment(1, 0, 9))
	refused(segment(1, 0, 9))
	refused(update(1, remotelog.DeleteFinished))
	finished := update(1, remotelog.CopyFinished)
	finished.CustomMetadata, finished.EventTimestampMs = []byte("key"), 5
	write(t, m, finished)
	write(t, m, segment(2, 10, 19))
	v := view(m)
	if len(v.Segments) != 2 || v.Segments[0].State != remotelog.CopyFinished || string(v.Segments[0].CustomMetadata) != "key" || v.Segments[0].EventTimestampMs != 5 {
		t.Fatalf("%+v", v)
	}
	if view(m) != v {
		t.Fatal("the view was made again without need")
	}
	write(t, m, update(1, remotelog.DeleteStarted))
	refused(update(1, remotelog.CopyFinished))
	write(t, m, update(1, remotelog.DeleteFinished))
	if v := view(m); v.Topic != "t" || len(v.Segments) != 1 || v.Segments[0].ID != (uuid.UUID{2}) {
		t.Fatalf("%+v", v)
	}
	write(t, m, &remotelog.PartitionDelete{Topic: "t", Partition: here, State: remotelog.PartitionMarked})
	refused(segment(3, 20, 29))
	if v := view(m); !v.Deleting || v.Delete != remotelog.PartitionMarked {
		t.Fatalf("%+v", v)
	}
	write(t, m, &remotelog.PartitionDelete{Topic: "t", Partition: here, State: remotelog.PartitionFinished})
	if view(m) != nil || len(m.partitions) != 0 {
		t.Fatal("something is left")
	}
	write(t, m, segment(3, 20, 29)) // it may begin again
}

// TestRecordsOnTheirWay refuses what may not follow a record that is not durable yet, and takes what may.
func TestRecordsOnTheirWay(t *testing.T) {
	m := New()
	var pending []remotelog.Record
	try := func(r remotelog.Record, want errcode.Code) {
		t.Helper()
		records, _, code := decide(m, Write{r})
		if code != want {
			t.Fatalf("%+v: %s, want %s", r, code.Name(), want.Name())
		}
		pending = append(pending, records...)
	}
	finished := segment(9, 0, 9)
	finished.State = remotelog.CopyFinished
	try(finished, errcode.InvalidRequest) // a life begins with the copy
	try(segment(1, 0, 9), errcode.None)
	try(segment(1, 0, 9), errcode.InvalidRequest)
	try(update(2, remotelog.CopyFinished), errcode.InvalidRequest)
	try(segment(2, 10, 19), errcode.None)
	try(update(1, remotelog.CopyFinished), errcode.None)
	try(update(1, remotelog.CopyStarted), errcode.InvalidRequest)
	try(update(1, remotelog.DeleteStarted), errcode.None)
	try(update(1, remotelog.CopyFinished), errcode.InvalidRequest)
	try(update(2, remotelog.DeleteFinished), errcode.InvalidRequest) // what is said of one is not said of another
	try(update(2, remotelog.CopyFinished), errcode.None)
	mark := func(state remotelog.DeleteState) *remotelog.PartitionDelete {
		return &remotelog.PartitionDelete{Topic: "t", Partition: here, State: state}
	}
	try(mark(remotelog.PartitionMarked), errcode.None)
	try(segment(3, 20, 29), errcode.InvalidRequest)
	commit(m, pending...)
	pending = nil
	if v := view(m); v.Topic != "t" || len(v.Segments) != 2 || v.Segments[0].State != remotelog.DeleteStarted || v.Segments[1].State != remotelog.CopyFinished {
		t.Fatalf("%+v", v)
	}
	try(segment(3, 20, 29), errcode.InvalidRequest)
	try(mark(remotelog.PartitionFinished), errcode.None)
	try(segment(3, 20, 29), errcode.None)
	commit(m, pending...)
	if v := view(m); v.Deleting || len(v.Segments) != 1 || v.Segments[0].ID != (uuid.UUID{3}) {
		t.Fatalf("%+v", v)
	}
}

// TestUnfencedRecords reads a log in which an instance has gone on writing that had lost its shard: what cannot be is left out.
func TestUnfencedRecords(t *testing.T) {
	m := New()
	s := segment(1, 0, 9)
	s.CustomMetadata = []byte("key")
	for _, r := range []remotelog.Record{
		s, update(1, remotelog.DeleteFinished), update(2, remotelog.CopyFinished), update(1, remotelog.DeleteStarted), update(1, remotelog.CopyFinished),
	} {
		m.Apply(r)
		commit(m, r)
	}
	v := view(m)
	if len(v.Segments) != 1 || v.Segments[0].State != remotelog.DeleteStarted || string(v.Segments[0].CustomMetadata) != "key" {
		t.Fatalf("%+v", v)
	}
}

// TestList lists what has segments or is being deleted, and not what is only asked about.
func TestList(t *testing.T) {
	m := New()
	list := func() int {
		_, reply, _ := decide(m, List{})
		return len(reply.([]*View))
	}
	if n := list(); n != 0 {
		t.Fatal(n)
	}
	records, _, _ := decide(m, Write{segment(1, 0, 9)})
	if n := list(); n != 0 {
		t.Fatalf("%d partitions, of which nothing is durable", n)
	}
	commit(m, records...)
	if n := list(); n != 1 {
		t.Fatal(n)
	}
	write(t, m, update(1, remotelog.DeleteStarted))
	write(t, m, &remotelog.PartitionDelete{Topic: "t", Partition: here, State: remotelog.PartitionMarked})
	write(t, m, update(1, remotelog.DeleteFinished))
	if n := list(); n != 1 {
		t.Fatalf("%d partitions, one of which is being deleted", n)
	}
}

// TestDeletionLeavesNothing lets a segment be on its way while the partition's deletion ends: what comes after does not look
// half deleted.
func TestDeletionLeavesNothing(t *testing.T) {
	m := New()
	end, _, _ := decide(m, Write{&remotelog.PartitionDelete{Topic: "t", Partition: here, State: remotelog.PartitionFinished}})
	next, _, _ := decide(m, Write{segment(1, 0, 9)})
	commit(m, append(end, next...)...)
	if v := view(m); v.Deleting || v.Delete != 0 || len(v.Segments) != 1 {
		t.Fatalf("%+v", v)
	}
}

// TestRollback decides, commits and takes back in any order that can come, and compares with a machine that has only seen
// what was committed.
func TestRollback(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, twin := New(), New()
		var pending []remotelog.Record
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n := len(pending)
				commit(m, pending[:min(1, n)]...)
				for _, r := range pending[:min(1, n)] {
					twin.Apply(r)
					commit(twin, r)
				}
				pending = pending[min(1, n):]
			case 1:
				m.Rollback(time.Time{}, pending, nil, nil)
				pending = nil
			default:
				id := rapid.Byte().Filter(func(b byte) bool { return b < 4 }).Draw(t, "id")
				var r remotelog.Record = update(id, remotelog.SegmentState(rapid.IntRange(0, 3).Draw(t, "state")))
				switch rapid.IntRange(0, 3).Draw(t, "kind") {
				case 0, 1:
					r = segment(id, int64(id)*10, int64(id)*10+9)
				case 2:
					r = &remotelog.PartitionDelete{Topic: "t", Partition: here, State: remotelog.DeleteState(rapid.IntRange(0, 2).Draw(t, "delete"))}
				}
				records, _, _ := decide(m, Write{r})
				pending = append(pending, records...)
			}
		}
		m.Rollback(time.Time{}, pending, nil, nil)
		if got, want := fmt.Sprintf("%+v", state(m)), fmt.Sprintf("%+v", state(twin)); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func state(m *Machine) map[remotelog.Partition]string {
	out := map[remotelog.Partition]string{}
	for k, p := range maps.All(m.partitions) {
		v := p.look(k)
		out[k] = fmt.Sprint(v.Deleting, v.Delete, len(p.pending))
		for _, e := range v.Segments {
			out[k] += fmt.Sprint(e.ID, e.State)
		}
	}
	return out
}

func TestCodecReadsWhatItWrites(t *testing.T) {
	b, _, _ := Codec{}.Encode(nil, segment(1, 0, 9, ep(1, 0)))
	options := recordbatch.NewOptions()
	header := func() recordbatch.Header {
		batch, err := recordbatch.NewBuilder(nil, options).Build()
		if err != nil {
			t.Fatal(err)
		}
		return recordbatch.Header(batch)
	}
	for name, tt := range map[string]struct {
		control bool
		value   []byte
		known   bool
		err     bool
	}{
		"a segment":  {false, b, true, false},
		"a marker":   {true, b, false, false},
		"a deletion": {false, nil, false, false},
		"damage":     {false, b[:len(b)-1], false, true},
	} {
		options.Control = tt.control
		r, known, err := Codec{}.Decode(header(), &recordbatch.Record{Value: tt.value})
		if known != tt.known || (err != nil) != tt.err || known && r.Of() != here {
			t.Errorf("%s: %+v, %v, %v", name, r, known, err)
		}
	}
}

func TestCodecGivesNoKeys(t *testing.T) {
	b, at, ok := Codec{}.Encode([]byte("before"), update(1, remotelog.CopyFinished))
	if at != len("before") || !ok || len(b) <= at {
		t.Fatal(at, ok, len(b))
	}
}
