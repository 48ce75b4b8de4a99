package remotestate

import (
	"math"
	"sort"

	"chancery/services/kafka/remotelog"
)

// Log is what a leader says about its log.
type Log struct {
	// Epochs are the leader epochs from the log's start on.
	Epochs []remotelog.EpochStart
	// Start and LocalStart are where the log begins, and where its local part does; End is where it ends.
	Start, LocalStart, End int64
}

// Span is a remote segment that belongs to a log's history, with the offsets that are read from it: those of the history that no
// earlier segment has.
type Span struct {
	Entry
	First, Last int64
}

// Lineage is the remote part of a log: spans that follow each other from the log's start on.
type Lineage struct {
	Spans []Span
	// End is the offset after the last record of the remote part; the log's start when there is none.
	End int64
}

// RemoteEnd is End as storage nodes are told it: 0 for none.
func (l *Lineage) RemoteEnd() int64 {
	if len(l.Spans) == 0 {
		return 0
	}
	return l.End
}

// LineageOf finds the remote part of a log among all segments of its partition, which are in the order of their start
// offsets.
//
// The spans have no gap that the local log could fill: what is behind one has still to be copied once more. A gap before the
// local log cannot be filled any more, and is passed over.
func LineageOf(segments []Entry, log *Log) Lineage {
	l := Lineage{End: log.Start}
	for _, e := range segments {
		if e.State != remotelog.CopyFinished {
			continue
		}
		last := log.holdsUntil(e.Segment)
		if last < max(l.End, e.StartOffset) {
			continue
		}
		if e.StartOffset > l.End && e.StartOffset > log.LocalStart {
			break
		}
		l.Spans = append(l.Spans, Span{Entry: e, First: max(e.StartOffset, l.End), Last: last})
		l.End = last + 1
	}
	return l
}

// Holds says whether every record of a segment, from the log's start on, is in the log's history: it was written in an epoch
// that the log has, at an offset that belongs to that epoch there.
func (log *Log) Holds(s *remotelog.Segment) bool {
	return s.EndOffset >= log.Start && log.holdsUntil(s) == s.EndOffset
}

// holdsUntil is the last offset up to which the records of a segment, from the log's start on, are in the log's history; an offset
// before both when none is. After an unclean election a segment may begin in the leader's history and end in another one: what the
// two have in common may be nowhere else any more.
func (log *Log) holdsUntil(s *remotelog.Segment) int64 {
	end := min(s.EndOffset, log.End-1)
	until := max(s.StartOffset, log.Start) - 1
	for i, e := range s.LeaderEpochs {
		first, last := max(e.StartOffset, s.StartOffset, log.Start), end
		if i+1 < len(s.LeaderEpochs) {
			last = min(last, s.LeaderEpochs[i+1].StartOffset-1)
		}
		if first > last {
			continue
		}
		held := log.lastOf(e.Epoch, first)
		if held < first {
			return until
		}
		if until = min(held, last); held < last {
			return until
		}
	}
	return until
}

// lastOf is the last offset of an epoch in the log's history; -1 when the epoch is not there, or begins behind an offset.
func (log *Log) lastOf(epoch int32, from int64) int64 {
	i := sort.Search(len(log.Epochs), func(i int) bool { return log.Epochs[i].Epoch >= epoch })
	if i == len(log.Epochs) || log.Epochs[i].Epoch != epoch || log.Epochs[i].StartOffset > from {
		return -1
	}
	if i+1 == len(log.Epochs) {
		return math.MaxInt64
	}
	return log.Epochs[i+1].StartOffset - 1
}

// Limits are how long and how much of a log is kept over both tiers; -1 for no limit.
type Limits struct{ Ms, Bytes int64 }

// Expired is what retention takes away.
type Expired struct {
	// LogStart is where the log begins then; the leader is to be told before anything is deleted.
	LogStart int64
	// Segments are those that go.
	Segments []Entry
}

// Expire finds the segments that no reader needs any more: those that are too old or too much, of the log's history from its
// start on, and those of any history that lie before the log's start or have grown too old. localBytes is the size of what
// is in the local log only.
func Expire(segments []Entry, lineage *Lineage, log *Log, limits Limits, localBytes, nowMs int64) Expired {
	out := Expired{LogStart: log.Start}
	excess := int64(-1)
	if limits.Bytes >= 0 {
		excess = localBytes - limits.Bytes
		for i := range lineage.Spans {
			excess += int64(lineage.Spans[i].SizeBytes)
		}
	}
	tooOld := func(e *Entry) bool { return limits.Ms >= 0 && nowMs-e.time() > limits.Ms }
	kept, gone := map[*remotelog.Segment]bool{}, map[*remotelog.Segment]bool{}
	for i := range lineage.Spans {
		s := &lineage.Spans[i]
		if excess < int64(s.SizeBytes) && !tooOld(&s.Entry) {
			for _, rest := range lineage.Spans[i:] {
				kept[rest.Segment] = true
			}
			break
		}
		excess -= int64(s.SizeBytes)
		out.LogStart = s.Last + 1
		gone[s.Segment] = true
	}
	for _, e := range segments {
		if e.State != remotelog.CopyFinished || kept[e.Segment] {
			continue
		}
		if gone[e.Segment] || e.EndOffset < out.LogStart || !log.Holds(e.Segment) && tooOld(&e) {
			out.Segments = append(out.Segments, e)
		}
	}
	return out
}

// time is the age that counts: of the newest record, or of the copy where no record has a timestamp.
func (e *Entry) time() int64 {
	if e.MaxTimestampMs >= 0 {
		return e.MaxTimestampMs
	}
	return e.Segment.EventTimestampMs
}
