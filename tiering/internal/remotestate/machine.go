// Package remotestate is what a tiering instance knows of remote segments: the state machine of a shard of
// __remote_log_metadata, and what follows from it for a partition: which segments count in a leader's history, what has
// expired.
//
// It owns these rules, all of them pure. It must never move a byte: package keeper does what follows.
package remotestate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/statemachine"
)

// Command is something that a shard is asked: Write, Get or List.
type Command interface{ command() }

// Write writes a record, if it may follow what is known. The answer is nil once it is durable.
type Write struct{ Record remotelog.Record }

// Get asks for what is known of a partition: the answer is a *View, nil for nothing.
type Get struct{ Partition remotelog.Partition }

// List asks for all partitions: the answer is a []*View.
type List struct{}

func (Write) command() {}
func (Get) command()   {}
func (List) command()  {}

// Reply is an answer: a *View, []*View or nil.
type Reply any

// Entry is a segment as far as its life has come. It is immutable.
type Entry struct {
	*remotelog.Segment
	// State, EventTimestampMs and CustomMetadata are those of the newest record about the segment.
	State            remotelog.SegmentState
	EventTimestampMs int64
	CustomMetadata   []byte
}

// View is what is known of a partition, all of one moment. It is immutable.
type View struct {
	Topic     string
	Partition remotelog.Partition
	// Segments are in the order of their start offsets.
	Segments []Entry
	// Deleting says that the partition's deletion has begun, and how far it is.
	Deleting bool
	Delete   remotelog.DeleteState
}

// Machine is the state of a shard. It is a statemachine.Machine.
type Machine struct {
	partitions map[remotelog.Partition]*partition
}

type partition struct {
	topic    string
	segments map[uuid.UUID]Entry
	deleting bool
	deleted  remotelog.DeleteState
	// pending are the records that are not durable yet, the oldest first.
	pending []remotelog.Record
	// view is made when it is asked for.
	view *View
}

// New makes an empty machine.
func New() *Machine { return &Machine{partitions: map[remotelog.Partition]*partition{}} }

var _ statemachine.Machine[Command, remotelog.Record, Reply] = (*Machine)(nil)

// Decide is part of statemachine.Machine.
func (m *Machine) Decide(_ time.Time, t statemachine.Ticket, command Command, out *statemachine.Effects[remotelog.Record, Reply]) {
	switch c := command.(type) {
	case Write:
		if !m.mayFollow(c.Record) {
			out.Fail(t, errcode.InvalidRequest)
			return
		}
		out.Append(c.Record)
		out.Answer(t, nil)
	case Get:
		if p := m.partitions[c.Partition]; p != nil {
			out.AnswerNow(t, p.look(c.Partition))
		} else {
			out.AnswerNow(t, (*View)(nil))
		}
	case List:
		views := make([]*View, 0, len(m.partitions))
		for k, p := range m.partitions {
			if v := p.look(k); len(v.Segments) > 0 || v.Deleting {
				views = append(views, v)
			}
		}
		out.AnswerNow(t, views)
	}
}

// mayFollow says whether a record may be written after all that are there and on their way.
func (m *Machine) mayFollow(r remotelog.Record) bool {
	p := m.partitions[r.Of()]
	if p == nil {
		p = &partition{}
	}
	switch r := r.(type) {
	case *remotelog.Segment:
		_, known := p.stateOf(r.ID)
		return !known && !p.goes() && r.State == remotelog.CopyStarted
	case *remotelog.SegmentUpdate:
		state, known := p.stateOf(r.ID)
		return known && r.State.MayFollow(state)
	case *remotelog.PartitionDelete:
		return true
	}
	return false
}

// goes says whether the partition's deletion has begun.
func (p *partition) goes() bool {
	goes := p.deleting
	for _, r := range p.pending {
		if d, ok := r.(*remotelog.PartitionDelete); ok {
			goes = d.State != remotelog.PartitionFinished
		}
	}
	return goes
}

// stateOf is the newest state of a segment, durable or not.
func (p *partition) stateOf(id uuid.UUID) (state remotelog.SegmentState, known bool) {
	if e, ok := p.segments[id]; ok {
		state, known = e.State, true
	}
	for _, r := range p.pending {
		switch r := r.(type) {
		case *remotelog.Segment:
			if r.ID == id {
				state, known = r.State, true
			}
		case *remotelog.SegmentUpdate:
			if r.ID == id {
				state = r.State
			}
		}
	}
	return state, known
}

// Apply is part of statemachine.Machine.
func (m *Machine) Apply(r remotelog.Record) {
	p := m.partitions[r.Of()]
	if p == nil {
		p = &partition{segments: map[uuid.UUID]Entry{}}
		m.partitions[r.Of()] = p
	}
	p.pending = append(p.pending, r)
}

// Commit is part of statemachine.Machine.
func (m *Machine) Commit(_ time.Time, _ int64, r remotelog.Record, _ *statemachine.Effects[remotelog.Record, Reply]) {
	p := m.partitions[r.Of()]
	p.pending[0] = nil
	if p.pending = p.pending[1:]; len(p.pending) == 0 {
		p.pending = nil
	}
	p.view = nil
	switch r := r.(type) {
	case *remotelog.Segment:
		p.topic = r.Topic
		p.segments[r.ID] = Entry{Segment: r, State: r.State, EventTimestampMs: r.EventTimestampMs, CustomMetadata: r.CustomMetadata}
	case *remotelog.SegmentUpdate:
		p.update(r)
	case *remotelog.PartitionDelete:
		p.topic, p.deleting, p.deleted = r.Topic, r.State != remotelog.PartitionFinished, r.State
		if r.State == remotelog.PartitionFinished {
			p.deleted = 0 // as if it had never been
			clear(p.segments)
		}
	}
	if len(p.segments) == 0 && !p.deleting && len(p.pending) == 0 {
		delete(m.partitions, r.Of())
	}
}

// update takes the next state of a segment in. An update that cannot be, as an instance may write that has lost its shard
// without knowing, is left out.
func (p *partition) update(r *remotelog.SegmentUpdate) {
	e, ok := p.segments[r.ID]
	if !ok || !r.State.MayFollow(e.State) {
		return
	}
	if r.State == remotelog.DeleteFinished {
		delete(p.segments, r.ID)
		return
	}
	e.State, e.EventTimestampMs = r.State, r.EventTimestampMs
	if r.CustomMetadata != nil {
		e.CustomMetadata = r.CustomMetadata
	}
	p.segments[r.ID] = e
}

// Rollback is part of statemachine.Machine.
func (m *Machine) Rollback(_ time.Time, records []remotelog.Record, _ []errcode.Code, _ *statemachine.Effects[remotelog.Record, Reply]) {
	for _, r := range records {
		if p := m.partitions[r.Of()]; p != nil {
			p.pending = nil
			if len(p.segments) == 0 && !p.deleting {
				delete(m.partitions, r.Of())
			}
		}
	}
}

// Loaded is part of statemachine.Machine.
func (m *Machine) Loaded(time.Time, *statemachine.Effects[remotelog.Record, Reply]) {}

// Due is part of statemachine.Machine: nothing is done by time.
func (m *Machine) Due() time.Time { return time.Time{} }

// Tick is part of statemachine.Machine.
func (m *Machine) Tick(time.Time, *statemachine.Effects[remotelog.Record, Reply]) {}

// look gives the view of what is durable.
func (p *partition) look(k remotelog.Partition) *View {
	if p.view != nil {
		return p.view
	}
	v := &View{Topic: p.topic, Partition: k, Deleting: p.deleting, Delete: p.deleted, Segments: make([]Entry, 0, len(p.segments))}
	for _, e := range p.segments {
		v.Segments = append(v.Segments, e)
	}
	slices.SortFunc(v.Segments, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.StartOffset, b.StartOffset), cmp.Compare(b.EndOffset, a.EndOffset), slices.Compare(a.ID[:], b.ID[:]))
	})
	p.view = v
	return v
}

// Codec is the statemachine.Codec of the records.
type Codec struct{}

// Encode is part of statemachine.Codec; the records have no keys.
func (Codec) Encode(dst []byte, r remotelog.Record) ([]byte, int, bool) {
	at := len(dst)
	return remotelog.Append(dst, r), at, true
}

// Decode is part of statemachine.Codec.
func (Codec) Decode(batch recordbatch.Header, record *recordbatch.Record) (remotelog.Record, bool, error) {
	if batch.IsControl() || record.Value == nil {
		return nil, false, nil
	}
	r, err := remotelog.Decode(record.Value)
	if err != nil {
		return nil, false, fmt.Errorf("record at offset %d: %w", record.Offset, err)
	}
	return r, r != nil, nil
}
