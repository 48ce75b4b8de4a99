package wire

import (
	"encoding/binary"
	"sync"

	"chancery/services/storage"
)

// lengthSize is the size of the length in front of each frame.
const lengthSize = 4

// maxKept is the largest buffer that goes back to a pool: a rare huge answer must not stay in memory.
const maxKept = 64 << 10

// Pool keeps the buffers of messages that have been sent.
type Pool struct{ messages sync.Pool }

// Message is one response frame: bytes, and record batches between them that the connection sends from where they are.
// One goroutine at a time uses it; whoever has it last calls Release.
type Message struct {
	// B is the frame with its length in front, without the records. Handlers append to it.
	B    []byte
	cuts []cut
	// records is the size of all cuts.
	records int
	pool    *Pool
	release func()
}

// cut is a place in B where records go.
type cut struct {
	at      int
	records storage.Records
}

// New begins a response: room for the length, then the header.
func (p *Pool) New(correlationID int32, flexible bool) *Message {
	m, _ := p.messages.Get().(*Message)
	if m == nil {
		m = &Message{pool: p}
	}
	m.B = append(m.B[:0], 0, 0, 0, 0)
	m.B = binary.BigEndian.AppendUint32(m.B, uint32(correlationID))
	if flexible {
		m.B = append(m.B, 0)
	}
	return m
}

// AddRecords puts records at the present end of the message, which owns them from now on.
func (m *Message) AddRecords(r storage.Records) {
	n := r.Len()
	if n == 0 {
		r.Release()
		return
	}
	m.cuts = append(m.cuts, cut{at: len(m.B), records: r})
	m.records += n
}

// Len is the size of the frame with its length field.
func (m *Message) Len() int { return len(m.B) + m.records }

// OnRelease calls f when the message has been sent or dropped.
func (m *Message) OnRelease(f func()) { m.release = f }

// Seal writes the length; nothing may be appended afterwards.
func (m *Message) Seal() {
	binary.BigEndian.PutUint32(m.B, uint32(m.Len()-lengthSize))
}

// Pieces calls f for each run of bytes and each run of records, in the order of the frame. It stops at the first false.
func (m *Message) Pieces(f func(b []byte, records *storage.Records) bool) {
	at := 0
	for i := range m.cuts {
		c := &m.cuts[i]
		if c.at > at && !f(m.B[at:c.at], nil) {
			return
		}
		at = c.at
		if !f(nil, &c.records) {
			return
		}
	}
	if at < len(m.B) {
		f(m.B[at:], nil)
	}
}

// Plain says whether the frame is in B alone.
func (m *Message) Plain() bool { return len(m.cuts) == 0 }

// Release gives everything back. The message must not be used afterwards.
func (m *Message) Release() {
	for i := range m.cuts {
		m.cuts[i].records.Release()
		m.cuts[i] = cut{}
	}
	if m.release != nil {
		m.release()
	}
	p := m.pool
	m.cuts, m.records, m.release = m.cuts[:0], 0, nil
	if cap(m.B) <= maxKept {
		p.messages.Put(m)
	}
}
