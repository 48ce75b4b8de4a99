package recordbatch

import "encoding/binary"

// walker reads the records of a batch one after the other as far as a leader needs them, without holding more than the
// piece that the cursor is in. With out set it copies each record there, with the offset delta that it should have.
type walker struct {
	cursor *cursor
	header Header
	out    sink

	offsetDelta int32
	timestamp   int64
	hasKey      bool
}

// next reads the record whose place in the batch is index.
func (w *walker) next(index int32) {
	c := w.cursor
	length := c.varint()
	if c.err == nil && length < 0 {
		c.fail(errStructure)
		return
	}
	start := c.position()
	attributes := c.byte()
	timestampDelta := c.varlong()
	w.offsetDelta = c.varint()
	if c.err != nil {
		return
	}
	w.timestamp = w.header.BaseTimestamp() + timestampDelta
	if w.header.TimestampType() == LogAppendTime {
		w.timestamp = w.header.MaxTimestamp()
	}
	end := start + int64(length)
	if w.out != nil {
		w.begin(attributes, timestampDelta, index, end-c.position())
	}
	keyLength := w.field(end)
	w.hasKey = keyLength >= 0
	w.field(end)
	count := w.number()
	if c.err == nil && (count < 0 || int64(count) > end-c.position()) {
		c.fail(errStructure)
	}
	for i := int32(0); i < count && c.err == nil; i++ {
		if w.field(end) < 0 {
			c.fail(errStructure)
		}
		w.field(end)
	}
	if c.err == nil && c.position() != end {
		c.fail(errStructure)
	}
}

// field passes over a length and as many bytes, within the record, and returns the length.
func (w *walker) field(end int64) int32 {
	c := w.cursor
	n := w.number()
	if c.err != nil || n <= 0 {
		return n
	}
	if int64(n) > end-c.position() {
		c.fail(errStructure)
		return n
	}
	if rest := len(c.buf) - c.at; int(n) <= rest && w.out == nil {
		c.at += int(n)
		return n
	}
	c.out = w.out
	c.skip(int64(n))
	c.out = nil
	return n
}

// number reads a varint and copies it to out, byte by byte, since it may be longer than it had to be.
func (w *walker) number() int32 {
	if w.out == nil {
		return w.cursor.varint()
	}
	var raw [binary.MaxVarintLen32]byte
	var u uint64
	for i := range raw {
		raw[i] = w.cursor.byte()
		u |= uint64(raw[i]&0x7f) << (7 * i)
		if raw[i] < 0x80 {
			if w.cursor.err == nil && u>>32 == 0 {
				if err := w.out.write(raw[:i+1]); err != nil {
					w.cursor.fail(err)
				}
				return int32(uint32(u)>>1) ^ -int32(u&1)
			}
			break
		}
	}
	w.cursor.fail(errVarint)
	return 0
}

// begin writes the start of a record of which rest bytes follow after the offset delta.
func (w *walker) begin(attributes byte, timestampDelta int64, index int32, rest int64) {
	var body [1 + binary.MaxVarintLen64 + binary.MaxVarintLen32]byte
	head := append(body[:0], attributes)
	head = binary.AppendVarint(head, timestampDelta)
	head = binary.AppendVarint(head, int64(index))
	var length [binary.MaxVarintLen64]byte
	err := w.out.write(binary.AppendVarint(length[:0], int64(len(head))+rest))
	if err == nil {
		err = w.out.write(head)
	}
	if err != nil {
		w.cursor.fail(err)
	}
}

// gather puts small writes together before an encoder sees them.
type gather struct {
	out sink
	n   int
	buf [2048]byte
}

func (g *gather) write(p []byte) error {
	large := len(p) > len(g.buf)/2
	if large || g.n+len(p) > len(g.buf) {
		if err := g.flush(); err != nil {
			return err
		}
	}
	if large {
		return g.out.write(p) // what was gathered before has just gone out
	}
	g.n += copy(g.buf[g.n:], p)
	return nil
}

func (g *gather) flush() error {
	n := g.n
	g.n = 0
	if n == 0 {
		return nil
	}
	return g.out.write(g.buf[:n])
}
