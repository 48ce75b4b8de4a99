package coldread

import (
	"container/list"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/uuid"
)

// blockKey names a block of a segment.
type blockKey struct {
	segment uuid.UUID
	index   int32
}

// memory keeps blocks within a bound, which those that are being read count towards. It is not safe for use by several
// goroutines: the reader's lock guards it.
type memory struct {
	capacity int64
	kept     int64
	inFlight int64
	blocks   map[blockKey]*list.Element
	// read are the blocks that somebody has read, unread those that were only read ahead; most recent first. What was read
	// goes first: a reader that goes on has no more use for it.
	read, unread *list.List
	// evicted is told about each block that goes, while its bytes are still there.
	evicted func(b *block, unread bool)
}

type block struct {
	key blockKey
	// data has the reference of whoever holds the block.
	data   mem.Buffer
	crc    uint32
	unread bool
}

func newMemory(capacity int64, evicted func(*block, bool)) *memory {
	return &memory{capacity: capacity, blocks: make(map[blockKey]*list.Element), read: list.New(), unread: list.New(), evicted: evicted}
}

// get finds a block that somebody wants to read, and gives a reference to it.
func (m *memory) get(key blockKey) (mem.Buffer, bool) {
	e, ok := m.blocks[key]
	if !ok {
		return nil, false
	}
	b := e.Value.(*block)
	if b.unread {
		m.unread.Remove(e)
		b.unread = false
		m.blocks[key] = m.read.PushFront(b)
	} else {
		m.read.MoveToFront(e)
	}
	b.data.Ref()
	return b.data, true
}

// has says whether a block is there, without being an interest in it.
func (m *memory) has(key blockKey) bool {
	_, ok := m.blocks[key]
	return ok
}

// reserve makes room for bytes that are about to be read; false when what is being read already takes too much.
func (m *memory) reserve(bytes int64) bool {
	if m.inFlight+bytes > m.capacity {
		return false
	}
	for m.kept+m.inFlight+bytes > m.capacity {
		oldest := m.read.Back()
		if oldest == nil {
			oldest = m.unread.Back()
		}
		m.remove(oldest, true)
	}
	m.inFlight += bytes
	return true
}

// keep turns what was reserved into a block, and takes its reference over.
func (m *memory) keep(b *block) {
	m.inFlight -= int64(b.data.Len())
	m.kept += int64(b.data.Len())
	if b.unread {
		m.blocks[b.key] = m.unread.PushFront(b)
	} else {
		m.blocks[b.key] = m.read.PushFront(b)
	}
}

// cancel gives back what was reserved.
func (m *memory) cancel(bytes int64) { m.inFlight -= bytes }

func (m *memory) remove(e *list.Element, tell bool) {
	b := e.Value.(*block)
	if b.unread {
		m.unread.Remove(e)
	} else {
		m.read.Remove(e)
	}
	delete(m.blocks, b.key)
	m.kept -= int64(b.data.Len())
	if tell {
		m.evicted(b, b.unread)
	}
	b.data.Free()
}

// forget drops the blocks of a segment.
func (m *memory) forget(segment uuid.UUID) {
	for key, e := range m.blocks {
		if key.segment == segment {
			m.remove(e, false)
		}
	}
}
