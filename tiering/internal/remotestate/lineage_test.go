package remotestate

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
)

func ep(epoch int32, start int64) remotelog.EpochStart {
	return remotelog.EpochStart{Epoch: epoch, StartOffset: start}
}

func finished(s *remotelog.Segment) Entry {
	return Entry{Segment: s, State: remotelog.CopyFinished}
}

func spans(l Lineage) string {
	out := ""
	for _, s := range l.Spans {
		out += fmt.Sprintf("%d:%d-%d ", s.ID[0], s.First, s.Last)
	}
	return fmt.Sprintf("%send %d", out, l.End)
}

func TestLineage(t *testing.T) {
	log := Log{Epochs: []remotelog.EpochStart{ep(1, 0), ep(2, 20), ep(5, 50)}, Start: 0, LocalStart: 40, End: 100}
	for name, tt := range map[string]struct {
		log      Log
		segments []Entry
		want     string
	}{
		"nothing":                       {log, nil, "end 0"},
		"in a row":                      {log, []Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 10, 29, ep(1, 10), ep(2, 20)))}, "1:0-9 2:10-29 end 30"},
		"another history's epoch":       {log, []Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 10, 29, ep(1, 10), ep(3, 20)))}, "1:0-9 2:10-19 end 20"},
		"cut in the middle of an epoch": {log, []Entry{finished(segment(1, 0, 25, ep(1, 0)))}, "1:0-19 end 20"},
		"an epoch that began later":     {log, []Entry{finished(segment(1, 0, 29, ep(1, 0), ep(2, 15)))}, "1:0-14 end 15"},
		"beyond the log's end":          {log, []Entry{finished(segment(1, 0, 100, ep(1, 0), ep(2, 20), ep(5, 50)))}, "1:0-99 end 100"},
		"nothing in common":             {log, []Entry{finished(segment(1, 0, 19, ep(0, 0))), finished(segment(2, 20, 25, ep(1, 20)))}, "end 0"},
		"goes on in the leader's segment": {log, []Entry{finished(segment(1, 0, 29, ep(1, 0))), finished(segment(2, 15, 29, ep(1, 15), ep(2, 20)))},
			"1:0-19 2:20-29 end 30"},
		"not finished": {log, []Entry{{Segment: segment(1, 0, 9, ep(1, 0))}}, "end 0"},
		"a gap that is not local any more": {log, []Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 30, 39, ep(2, 30)))},
			"1:0-9 2:30-39 end 40"},
		"a gap up to the local log": {log, []Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 40, 49, ep(2, 40)))},
			"1:0-9 2:40-49 end 50"},
		"in the first record of another epoch": {log, []Entry{finished(segment(1, 0, 20, ep(1, 0)))}, "1:0-19 end 20"},
		"no epochs":                            {log, []Entry{finished(segment(1, 0, 9))}, "end 0"},
		"an epoch that begins behind it":       {log, []Entry{finished(segment(1, 0, 9, ep(1, 0), ep(9, 30)))}, "1:0-9 end 10"},
		"a gap that is local": {log, []Entry{finished(segment(1, 0, 39, ep(1, 0), ep(2, 20))), finished(segment(2, 45, 49, ep(2, 45)))},
			"1:0-39 end 40"},
		"overlaps": {log, []Entry{finished(segment(1, 0, 14, ep(1, 0))), finished(segment(2, 5, 12, ep(1, 5))), finished(segment(3, 10, 29, ep(1, 10), ep(2, 20)))},
			"1:0-14 3:15-29 end 30"},
		"the log begins inside": {Log{Epochs: []remotelog.EpochStart{ep(2, 25)}, Start: 25, LocalStart: 40, End: 100},
			[]Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 10, 29, ep(1, 10), ep(2, 20)))}, "2:25-29 end 30"},
		"older epochs do not count before the start": {Log{Epochs: []remotelog.EpochStart{ep(2, 25)}, Start: 25, LocalStart: 40, End: 100},
			[]Entry{finished(segment(2, 10, 29, ep(0, 10), ep(2, 20)))}, "2:25-29 end 30"},
	} {
		if got := spans(LineageOf(tt.segments, &tt.log)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestExpire(t *testing.T) {
	log := Log{Epochs: []remotelog.EpochStart{ep(1, 0)}, Start: 0, LocalStart: 30, End: 100}
	segments := []Entry{finished(segment(1, 0, 9, ep(1, 0))), finished(segment(2, 10, 19, ep(1, 10))), finished(segment(3, 20, 29, ep(1, 20)))}
	other := finished(segment(9, 0, 15, ep(7, 0)))
	begun, ended := finished(segment(7, 0, 9, ep(1, 0))), finished(segment(8, 0, 9, ep(1, 0)))
	begun.State, ended.State = remotelog.CopyStarted, remotelog.DeleteStarted
	timeless := segment(6, 0, 9, ep(7, 0))
	timeless.MaxTimestampMs, timeless.EventTimestampMs = -1, 5
	timed := segment(5, 0, 9, ep(7, 0))
	timed.MaxTimestampMs, timed.EventTimestampMs = 0, 999
	for name, tt := range map[string]struct {
		limits Limits
		start  int64
		local  int64
		more   []Entry
		want   string
	}{
		"no limits":                         {Limits{-1, -1}, 0, 70, nil, "start 0:"},
		"size counts both tiers once":       {Limits{-1, 100}, 0, 70, nil, "start 0:"},
		"a segment is only gone as a whole": {Limits{-1, 91}, 0, 70, nil, "start 0:"},
		"size":                              {Limits{-1, 90}, 0, 70, nil, "start 10: 1"},
		"size, two":                         {Limits{-1, 75}, 0, 70, nil, "start 20: 1 2"},
		"all by size":                       {Limits{-1, 0}, 0, 70, nil, "start 30: 1 2 3"},
		"time":                              {Limits{980, -1}, 0, 70, nil, "start 20: 1 2"},
		"all by time":                       {Limits{0, -1}, 0, 70, nil, "start 30: 1 2 3"},
		"deleted records":                   {Limits{-1, -1}, 20, 70, nil, "start 20: 1 2"},
		"deleted within a segment":          {Limits{-1, -1}, 15, 70, nil, "start 15: 1"},
		"deleted up to the last record":     {Limits{-1, -1}, 19, 70, nil, "start 19: 1"},
		"not yet too old":                   {Limits{991, -1}, 0, 70, nil, "start 0:"},
		"too old by a millisecond":          {Limits{990, -1}, 0, 70, nil, "start 10: 1"},
		"only what is finished":             {Limits{-1, -1}, 20, 70, []Entry{begun, ended}, "start 20: 1 2"},
		"the time of the copy, if no other": {Limits{995, -1}, 0, 70, []Entry{finished(timeless)}, "start 0:"},
		"the copy was too long ago":         {Limits{994, -1}, 0, 70, []Entry{finished(timeless)}, "start 0: 6"},
		"a record of time 0 has a time":     {Limits{995, -1}, 0, 70, []Entry{finished(timed)}, "start 0: 5"},
		"another history is no reason":      {Limits{-1, -1}, 0, 70, []Entry{other}, "start 0:"},
		"another history before the start":  {Limits{-1, -1}, 16, 70, []Entry{other}, "start 16: 9 1"},
		"another history that is too old":   {Limits{984, -1}, 0, 70, []Entry{other}, "start 10: 9 1"},
		"what ends in another history":      {Limits{-1, 0}, 0, 0, []Entry{finished(segment(8, 0, 200, ep(1, 0)))}, "start 100: 8 1 2 3"},
	} {
		l := log
		l.Start = tt.start
		l.Epochs = []remotelog.EpochStart{ep(1, tt.start)}
		all := append(tt.more[:len(tt.more):len(tt.more)], segments...)
		line := LineageOf(all, &l)
		out := Expire(all, &line, &l, tt.limits, tt.local, 1000)
		got := fmt.Sprintf("start %d:", out.LogStart)
		for _, e := range out.Segments {
			got += fmt.Sprintf(" %d", e.ID[0])
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestYoungBeforeOld keeps an old segment behind a young one: the log has no gaps.
func TestYoungBeforeOld(t *testing.T) {
	log := Log{Epochs: []remotelog.EpochStart{ep(1, 0)}, LocalStart: 20, End: 100}
	young := segment(1, 0, 9, ep(1, 0))
	young.MaxTimestampMs = 990
	// The last one goes on in another history.
	segments := []Entry{finished(young), finished(segment(2, 10, 19, ep(1, 10))), finished(segment(3, 20, 39, ep(1, 20), ep(4, 30)))}
	line := LineageOf(segments, &log)
	if got := spans(line); got != "1:0-9 2:10-19 3:20-29 end 30" {
		t.Fatal(got)
	}
	if out := Expire(segments, &line, &log, Limits{100, -1}, 0, 1000); out.LogStart != 0 || len(out.Segments) != 0 {
		t.Fatalf("the log begins at %d, and %d segments go", out.LogStart, len(out.Segments))
	}
}

// TestHolds asks about segments at the log's ends, which a copy that has just been read from the leader may be.
func TestHolds(t *testing.T) {
	log := Log{Epochs: []remotelog.EpochStart{ep(1, 10)}, Start: 10, End: 30}
	for name, tt := range map[string]struct {
		start, end int64
		want       bool
	}{
		"before the log":    {0, 9, false},
		"its first record":  {0, 10, true},
		"its last record":   {20, 29, true},
		"one more than all": {20, 30, false},
	} {
		if got := log.Holds(segment(1, tt.start, tt.end, ep(1, 0))); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRemoteEnd is 0 without segments, also where the log does not begin at 0.
func TestRemoteEnd(t *testing.T) {
	log := Log{Epochs: []remotelog.EpochStart{ep(1, 5)}, Start: 5, LocalStart: 5, End: 100}
	none := LineageOf(nil, &log)
	one := LineageOf([]Entry{finished(segment(1, 0, 9, ep(1, 0)))}, &log)
	if none.RemoteEnd() != 0 || one.RemoteEnd() != 10 {
		t.Fatal(none.RemoteEnd(), one.RemoteEnd())
	}
}

// model is a partition under random appends, elections, copies and deletions: what each offset's record is, by the epoch it was
// written in and when.
type model struct {
	epochs   []remotelog.EpochStart
	records  []record // by offset
	start    int64
	epoch    int32
	now      int64
	segments []Entry
	nextID   byte
}

type record struct {
	epoch int32
	time  int64
}

func (m *model) log() *Log {
	l := &Log{Start: m.start, LocalStart: m.start, End: int64(len(m.records))}
	for i, e := range m.epochs {
		if i+1 < len(m.epochs) && m.epochs[i+1].StartOffset <= m.start {
			continue
		}
		l.Epochs = append(l.Epochs, ep(e.Epoch, max(e.StartOffset, m.start)))
	}
	return l
}

// elect makes a leader whose log ends earlier, as an unclean election does, or not.
func (m *model) elect(t *rapid.T) {
	end := rapid.Int64Range(m.start, int64(len(m.records))).Draw(t, "end")
	if rapid.Bool().Draw(t, "clean") {
		end = int64(len(m.records))
	}
	m.records = m.records[:end]
	for len(m.epochs) > 0 && m.epochs[len(m.epochs)-1].StartOffset >= end {
		m.epochs = m.epochs[:len(m.epochs)-1]
	}
	m.epoch++
	m.epochs = append(m.epochs, ep(m.epoch, end))
}

func (m *model) append(n int) {
	for range n {
		m.now++
		m.records = append(m.records, record{m.epoch, m.now})
	}
}

// copy makes a segment remote that begins at or before the end of what is.
func (m *model) copy(t *rapid.T) {
	line := LineageOf(m.segments, m.log())
	end := int64(len(m.records))
	if line.End >= end-1 {
		return
	}
	from := max(m.start, line.End-rapid.Int64Range(0, 3).Draw(t, "overlap"))
	to := rapid.Int64Range(line.End, end-2).Draw(t, "to")
	m.nextID++
	s := segment(m.nextID, from, to)
	s.MaxTimestampMs = 0
	for at := from; at <= to; at++ {
		r := m.records[at]
		s.MaxTimestampMs = max(s.MaxTimestampMs, r.time)
		if n := len(s.LeaderEpochs); n == 0 || s.LeaderEpochs[n-1].Epoch != r.epoch {
			s.LeaderEpochs = append(s.LeaderEpochs, ep(r.epoch, at))
		}
	}
	m.segments = append(m.segments, finished(s))
	if after := LineageOf(sorted(m.segments), m.log()); after.End != to+1 {
		t.Fatalf("after the copy of %d-%d the remote part ends at %d", from, to, after.End)
	}
}

func sorted(list []Entry) []Entry {
	m := New()
	for _, e := range list {
		m.Apply(e.Segment)
		commit(m, e.Segment)
		u := &remotelog.SegmentUpdate{Partition: here, ID: e.ID, State: remotelog.CopyFinished}
		m.Apply(u)
		commit(m, u)
	}
	v := m.partitions[here]
	if v == nil {
		return nil
	}
	return v.look(here).Segments
}

// TestRetentionOverBothTiers checks what must always hold: the remote part is of the leader's history, without gaps and without
// a record twice; retention takes the oldest first, never more than it may, and never leaves more than it must.
func TestRetentionOverBothTiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{epochs: []remotelog.EpochStart{ep(0, 0)}}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				m.append(rapid.IntRange(1, 10).Draw(t, "n"))
			case 2:
				m.elect(t)
			case 3:
				m.copy(t)
			case 4: // DeleteRecords
				m.start = rapid.Int64Range(m.start, int64(len(m.records))).Draw(t, "start")
			case 5:
				m.expire(t)
			}
			m.segments = sorted(m.segments)
			m.check(t)
		}
	})
}

func (m *model) check(t *rapid.T) {
	log := m.log()
	line := LineageOf(m.segments, log)
	next := m.start
	for _, s := range line.Spans {
		if s.First != next || s.Last < s.First || s.First < s.StartOffset || s.Last > s.EndOffset {
			t.Fatalf("spans %s of a log that begins at %d", spans(line), m.start)
		}
		for at := s.First; at <= s.Last; at++ {
			epoch := int32(-1)
			for _, e := range s.LeaderEpochs {
				if e.StartOffset <= at {
					epoch = e.Epoch
				}
			}
			if m.records[at].epoch != epoch {
				t.Fatalf("offset %d is of epoch %d, in segment %d of %d", at, m.records[at].epoch, s.ID[0], epoch)
			}
		}
		next = s.Last + 1
	}
}

func (m *model) expire(t *rapid.T) {
	log := m.log()
	line := LineageOf(m.segments, log)
	limits := Limits{Ms: rapid.Int64Range(-1, m.now+1).Draw(t, "ms"), Bytes: rapid.Int64Range(-1, int64(len(m.records))+1).Draw(t, "bytes")}
	local := int64(len(m.records)) - line.End // each record is one byte
	out := Expire(m.segments, &line, log, limits, local, m.now)
	gone := map[uuid.UUID]bool{}
	for _, e := range out.Segments {
		gone[e.ID] = true
	}
	kept := int64(0)
	for i, s := range line.Spans {
		if gone[s.ID] != (s.Last < out.LogStart) {
			t.Fatalf("segment %d-%d goes: %v, the log begins at %d", s.First, s.Last, gone[s.ID], out.LogStart)
		}
		old := limits.Ms >= 0 && m.now-s.MaxTimestampMs > limits.Ms
		if !gone[s.ID] {
			kept += int64(s.SizeBytes)
			if i == 0 || gone[line.Spans[i-1].ID] {
				if old {
					t.Fatalf("segment %d-%d is too old and stays", s.First, s.Last)
				}
			}
		}
	}
	first := slices.IndexFunc(line.Spans, func(s Span) bool { return s.Last >= out.LogStart })
	if limits.Bytes >= 0 && first >= 0 && !gone[line.Spans[first].ID] {
		if excess := local + kept - limits.Bytes; excess >= int64(line.Spans[first].SizeBytes) && excess > 0 {
			t.Fatalf("%d bytes stay, %d may", local+kept, limits.Bytes)
		}
	}
	m.start = out.LogStart
	var left []Entry
	for _, e := range m.segments {
		if !gone[e.ID] {
			left = append(left, e)
		}
	}
	m.segments = left
}
