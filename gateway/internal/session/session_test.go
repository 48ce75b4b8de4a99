package session

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/kafka/errcode"
)

var start = time.Unix(1_000_000, 0)

func read(partition int32, offset int64) Read {
	return Read{Key: Key{Topic: "a", Partition: partition}, FetchOffset: offset, MaxBytes: 1}
}

func outcomes(n int) []Outcome { return make([]Outcome, n) }

// open makes a session with partitions 0 to n-1.
func open(t *testing.T, c *Cache, now time.Time, n int) int32 {
	t.Helper()
	var reads []Read
	for i := range n {
		reads = append(reads, read(int32(i), 0))
	}
	f, code := c.Begin(now, NoSession, InitialEpoch, false, reads, nil)
	if code != errcode.None {
		t.Fatal(code.Name())
	}
	a := f.Finish(now, outcomes(n))
	if a.Tell != nil {
		t.Error("the first answer leaves something out")
	}
	return a.SessionID
}

func TestPartitionsWithDataGoLast(t *testing.T) {
	c := NewCache(10, time.Minute)
	id := open(t, c, start, 3)
	f, _ := c.Begin(start, id, 1, false, nil, nil)
	o := outcomes(3)
	o[0].Bytes = 5
	if a := f.Finish(start, o); !a.Tell[0] || a.Tell[1] || a.Tell[2] {
		t.Errorf("told %v", a.Tell)
	}
	f, _ = c.Begin(start, id, 2, false, nil, nil)
	var order []int32
	for _, r := range f.Reads {
		order = append(order, r.Partition)
	}
	if len(order) != 3 || order[0] != 1 || order[2] != 0 {
		t.Errorf("order %v", order)
	}
}

func TestErrorsAreToldAgain(t *testing.T) {
	c := NewCache(10, time.Minute)
	id := open(t, c, start, 1)
	epoch := int32(0)
	told := func(o Outcome) bool {
		epoch++
		f, code := c.Begin(start, id, epoch, false, nil, nil)
		if code != errcode.None {
			t.Fatal(code.Name())
		}
		return f.Finish(start, []Outcome{o}).Tell[0]
	}
	failed := Outcome{HighWatermark: -1, LogStartOffset: -1, Failed: true}
	for i, x := range []struct {
		outcome Outcome
		want    bool
	}{
		{Outcome{}, false}, {failed, true}, {failed, true}, {Outcome{}, true}, {Outcome{}, false}, {Outcome{HighWatermark: 1}, true},
		{Outcome{HighWatermark: 1}, false}, {Outcome{HighWatermark: 1, LogStartOffset: 1}, true}, {Outcome{HighWatermark: 1, LogStartOffset: 1, Preferred: true}, true},
		{Outcome{HighWatermark: 1, LogStartOffset: 1, Diverging: true}, true},
	} {
		if got := told(x.outcome); got != x.want {
			t.Errorf("step %d: told %v", i, got)
		}
	}
}

func TestEviction(t *testing.T) {
	c := NewCache(2, time.Minute)
	a, b := open(t, c, start, 5), open(t, c, start.Add(time.Second), 2)
	if id := open(t, c, start.Add(2*time.Second), 9); id != NoSession {
		t.Error("a session in use had to go")
	}
	late := start.Add(50 * time.Second)
	for id, epoch := range map[int32]int32{a: 1, b: 1} {
		if f, code := c.Begin(late, id, epoch, false, nil, nil); code != errcode.None {
			t.Error(code.Name())
		} else {
			f.Finish(late, outcomes(len(f.Reads)))
		}
	}
	late = start.Add(70 * time.Second)
	if id := open(t, c, late, 2); id != NoSession {
		t.Error("a session had to go for one that is no larger")
	}
	if id := open(t, c, late, 3); id == NoSession {
		t.Error("a larger session found no room beside an old small one")
	}
	if _, code := c.Begin(late, b, 2, false, nil, nil); code != errcode.FetchSessionIdNotFound {
		t.Errorf("the smaller session is still there: %s", code.Name())
	}
	if id := open(t, c, late.Add(2*time.Minute), 1); id == NoSession {
		t.Error("unused sessions keep their place")
	}
	if _, code := c.Begin(late.Add(2*time.Minute), a, 2, false, nil, nil); code != errcode.FetchSessionIdNotFound {
		t.Error("the session that was used longest ago is still there")
	}
	if n, partitions, evictions := c.Stats(); n != 2 || partitions != 4 || evictions != 2 {
		t.Errorf("%d sessions, %d partitions, %d evictions", n, partitions, evictions)
	}
}

func TestNoSlots(t *testing.T) {
	if id := open(t, NewCache(0, time.Minute), start, 1); id != NoSession {
		t.Error("a session was made")
	}
}

func TestAnOvertakenFetchIsRefused(t *testing.T) {
	c := NewCache(10, time.Minute)
	id := open(t, c, start, 1)
	slow, _ := c.Begin(start, id, 1, false, nil, nil)
	fast, _ := c.Begin(start, id, 2, false, nil, nil)
	fast.Finish(start, outcomes(1))
	if a := slow.Finish(start, outcomes(1)); a.Error != errcode.InvalidFetchSessionEpoch || a.Tell[0] {
		t.Errorf("%+v", a)
	}
}

func TestEpochsGoRound(t *testing.T) {
	if nextEpoch(1<<31-1) != 1 {
		t.Error("the epoch after the last has a meaning of its own")
	}
}

// TestSessionsAgainstAModel compares sessions with a plain map of what the client believes.
func TestSessionsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCache(3, time.Minute)
		now := start
		var id, epoch int32
		wants := map[int32]int64{}
		known := map[int32]int64{}
		t.Repeat(map[string]func(*rapid.T){
			"fetch": func(t *rapid.T) {
				now = now.Add(time.Second)
				var reads []Read
				var forget []Key
				for range rapid.IntRange(0, 4).Draw(t, "reads") {
					p, o := rapid.Int32Range(0, 5).Draw(t, "partition"), rapid.Int64Range(0, 9).Draw(t, "offset")
					reads = append(reads, read(p, o))
				}
				if id != NoSession && rapid.Bool().Draw(t, "forget") {
					forget = append(forget, Key{Topic: "a", Partition: rapid.Int32Range(0, 5).Draw(t, "forgotten")})
				}
				if id == NoSession || rapid.IntRange(0, 9).Draw(t, "full") == 0 {
					epoch, wants, known, forget = InitialEpoch, map[int32]int64{}, map[int32]int64{}, nil
				}
				f, code := c.Begin(now, id, epoch, false, append([]Read{}, reads...), forget)
				if code != errcode.None {
					t.Fatal(code.Name())
				}
				for _, r := range reads {
					if _, ok := wants[r.Partition]; !ok {
						known[r.Partition] = -1
					}
					wants[r.Partition] = r.FetchOffset
				}
				closed := epoch != InitialEpoch
				for _, k := range forget {
					delete(wants, k.Partition)
				}
				closed = closed && len(wants) == 0
				if closed {
					for _, r := range reads {
						wants[r.Partition] = r.FetchOffset
					}
				}
				if len(f.Reads) != len(wants) {
					t.Fatalf("%d partitions are read, want %v", len(f.Reads), wants)
				}
				var o []Outcome
				for _, r := range f.Reads {
					if offset, ok := wants[r.Partition]; !ok || offset != r.FetchOffset {
						t.Fatalf("partition %d is read at %d, want %v", r.Partition, r.FetchOffset, wants)
					}
					o = append(o, Outcome{HighWatermark: rapid.Int64Range(0, 2).Draw(t, "hw")})
				}
				a := f.Finish(now, o)
				for i, r := range f.Reads {
					tell := a.Tell == nil || a.Tell[i]
					if want := epoch == InitialEpoch || closed || known[r.Partition] != o[i].HighWatermark; tell != want {
						t.Fatalf("partition %d told %v, want %v", r.Partition, tell, want)
					}
					known[r.Partition] = o[i].HighWatermark
				}
				id = a.SessionID
				if id == NoSession {
					wants = map[int32]int64{}
				}
				epoch = nextEpoch(epoch)
			},
			"wrong epoch": func(t *rapid.T) {
				if id == NoSession {
					t.Skip()
				}
				if _, code := c.Begin(now, id, epoch+1, false, nil, nil); code != errcode.InvalidFetchSessionEpoch {
					t.Fatal(code.Name())
				}
			},
			"other versions": func(t *rapid.T) {
				if id == NoSession {
					t.Skip()
				}
				if _, code := c.Begin(now, id, epoch, true, nil, nil); code != errcode.FetchSessionTopicIdError {
					t.Fatal(code.Name())
				}
			},
		})
	})
}
