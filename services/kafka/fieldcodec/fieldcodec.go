// Package fieldcodec reads and writes the fields of records in the flexible encoding of Kafka's messages: big endian numbers,
// compact lengths, tagged fields at the end of each struct.
//
// It owns the encoding of a field, and knows no record. A decoder must never panic on its input, nor allocate for a length
// that the bytes left cannot hold.
package fieldcodec

import (
	"encoding/binary"
	"fmt"
	"math"

	"chancery/services/kafka/uuid"
)

// Codec walks a record's fields in their order on the wire, either reading or writing. Each record describes its fields
// once, for both directions, so that they cannot drift apart.
//
// After the first error all calls do nothing.
type Codec struct {
	// buf is what is still to be read, or what has been written.
	buf     []byte
	reading bool
	version int16
	corrupt error
	err     error
}

// Read walks the fields that b has. What is wrong with them is an error that wraps corrupt.
func Read(b []byte, corrupt error) Codec { return Codec{buf: b, reading: true, corrupt: corrupt} }

// Write walks fields that are appended to dst.
func Write(dst []byte) Codec { return Codec{buf: dst} }

// Reading says in which direction the fields are walked.
func (c *Codec) Reading() bool { return c.reading }

// Version is the version of the record.
func (c *Codec) Version() int16 { return c.version }

// SetVersion says in which version the record's fields are.
func (c *Codec) SetVersion(version int16) { c.version = version }

// Written is all that has been written, behind what Write was given.
func (c *Codec) Written() []byte { return c.buf }

// Err is what was wrong first.
func (c *Codec) Err() error { return c.err }

// End is Err after the last field: there must be no more bytes.
func (c *Codec) End() error {
	if c.err == nil && len(c.buf) > 0 {
		c.fail("bytes left over")
	}
	return c.err
}

// fail says what is wrong with the bytes that are read.
func (c *Codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", c.corrupt, what)
		c.buf = nil
	}
}

// take cuts n bytes off what is to be read; nil when there are not that many.
func (c *Codec) take(n int) []byte {
	if n > len(c.buf) {
		c.fail("cut short")
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

// Uvarint walks an unsigned varint of at most 32 bits.
func (c *Codec) Uvarint(v *uint32) {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(*v))
		return
	}
	u, n := binary.Uvarint(c.buf)
	if n <= 0 || u > math.MaxUint32 {
		c.fail("bad unsigned varint")
		return
	}
	*v = uint32(u)
	c.buf = c.buf[n:]
}

// Bool walks a byte that is not 0 for true.
func (c *Codec) Bool(v *bool) {
	if !c.reading {
		var b byte
		if *v {
			b = 1
		}
		c.buf = append(c.buf, b)
		return
	}
	if b := c.take(1); b != nil {
		*v = b[0] != 0
	}
}

// Int8 walks an int8.
func (c *Codec) Int8(v *int8) {
	if !c.reading {
		c.buf = append(c.buf, byte(*v))
		return
	}
	if b := c.take(1); b != nil {
		*v = int8(b[0])
	}
}

// Int16 walks an int16.
func (c *Codec) Int16(v *int16) {
	u := uint16(*v)
	c.Uint16(&u)
	*v = int16(u)
}

// Uint16 walks a uint16.
func (c *Codec) Uint16(v *uint16) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint16(c.buf, *v)
		return
	}
	if b := c.take(2); b != nil {
		*v = binary.BigEndian.Uint16(b)
	}
}

// Int32 walks an int32.
func (c *Codec) Int32(v *int32) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(*v))
		return
	}
	if b := c.take(4); b != nil {
		*v = int32(binary.BigEndian.Uint32(b))
	}
}

// Int64 walks an int64.
func (c *Codec) Int64(v *int64) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(*v))
		return
	}
	if b := c.take(8); b != nil {
		*v = int64(binary.BigEndian.Uint64(b))
	}
}

// Float64 walks a float64.
func (c *Codec) Float64(v *float64) {
	bits := int64(math.Float64bits(*v))
	c.Int64(&bits)
	*v = math.Float64frombits(uint64(bits))
}

// UUID walks the 16 bytes of an id.
func (c *Codec) UUID(v *uuid.UUID) {
	if !c.reading {
		c.buf = append(c.buf, v[:]...)
		return
	}
	copy(v[:], c.take(len(v)))
}

// length walks the compact length of something whose elements take at least elementBytes each: an unsigned varint of
// length + 1, where 0 is null. It returns the length, -1 for null. A claimed length that the bytes left cannot hold is
// refused, so that nothing is allocated for it.
func (c *Codec) length(n, elementBytes int) int {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(n+1))
		return n
	}
	var u uint32
	c.Uvarint(&u)
	n = int(u) - 1
	if n > 0 && n > len(c.buf)/elementBytes {
		c.fail("length beyond the end")
		return 0
	}
	return n
}

// String walks a string that is never null.
func (c *Codec) String(v *string) {
	n := c.length(len(*v), 1)
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	if n < 0 {
		c.fail("null string")
		return
	}
	*v = string(c.take(n))
}

// NullableString walks a string that may be null.
func (c *Codec) NullableString(v **string) {
	if !c.reading && *v == nil {
		c.length(-1, 1)
		return
	}
	if !c.reading {
		c.String(*v)
		return
	}
	n := c.length(0, 1)
	if n < 0 || c.err != nil {
		*v = nil
		return
	}
	s := string(c.take(n))
	*v = &s
}

// Bytes walks bytes that are never null; they are copied.
func (c *Codec) Bytes(v *[]byte) {
	n := c.length(len(*v), 1)
	if !c.reading {
		c.buf = append(c.buf, *v...)
		return
	}
	if n < 0 {
		c.fail("null bytes")
		return
	}
	*v = append([]byte(nil), c.take(n)...)
}

// NullableBytes walks bytes that may be null; they are copied.
func (c *Codec) NullableBytes(v *[]byte) {
	n := len(*v)
	if *v == nil {
		n = -1
	}
	n = c.length(n, 1)
	switch {
	case !c.reading:
		c.buf = append(c.buf, *v...)
	case n >= 0 && c.err == nil:
		*v = append([]byte{}, c.take(n)...)
	default:
		*v = nil
	}
}

// Int32s walks an array that is never null; an empty one is read as nil.
func (c *Codec) Int32s(v *[]int32) {
	Array(c, v, 4, (*Codec).Int32)
}

// NullableInt32s walks an array that may be null.
func (c *Codec) NullableInt32s(v *[]int32) {
	NullableArray(c, v, 4, (*Codec).Int32)
}

// UUIDs walks an array that is never null.
func (c *Codec) UUIDs(v *[]uuid.UUID) {
	Array(c, v, 16, (*Codec).UUID)
}

// NullableUUIDs walks an array that may be null.
func (c *Codec) NullableUUIDs(v *[]uuid.UUID) {
	NullableArray(c, v, 16, (*Codec).UUID)
}

// Strings walks an array that is never null.
func (c *Codec) Strings(v *[]string) {
	Array(c, v, 1, (*Codec).String)
}

// Array walks an array that is never null. Its elements take at least elementBytes each. An empty one is read as nil.
func Array[T any](c *Codec, v *[]T, elementBytes int, element func(*Codec, *T)) {
	n := c.length(len(*v), elementBytes)
	if c.reading {
		*v = nil
		if n < 0 {
			c.fail("null array")
			return
		}
		if n == 0 || c.err != nil {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		element(c, &(*v)[i])
	}
}

// NullableArray walks an array that may be null; nil is null, and an empty one is read as not nil.
func NullableArray[T any](c *Codec, v *[]T, elementBytes int, element func(*Codec, *T)) {
	n := len(*v)
	if *v == nil {
		n = -1
	}
	n = c.length(n, elementBytes)
	if c.reading {
		*v = nil
		if n < 0 || c.err != nil {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		element(c, &(*v)[i])
	}
}

// Tagged is a field of a tag buffer. It is written only when Present says that it differs from its default.
type Tagged struct {
	Tag uint32
	// Since is the first version of the record that has the field.
	Since   int16
	Present bool
	Walk    func(*Codec)
}

// Tags walks the tag buffer at the end of a struct. The fields are in the order of their tags. Unknown tags are
// skipped: whoever passes records on passes the bytes on, never a record that was read and written again.
func (c *Codec) Tags(fields ...Tagged) {
	if c.reading {
		c.readTags(fields)
		return
	}
	var n uint32
	for i := range fields {
		if fields[i].Present && c.version >= fields[i].Since {
			n++
		}
	}
	c.Uvarint(&n)
	for i := range fields {
		if !fields[i].Present || c.version < fields[i].Since {
			continue
		}
		c.Uvarint(&fields[i].Tag)
		c.writeSized(fields[i].Walk)
	}
}

// writeSized writes a field with its size before it.
func (c *Codec) writeSized(walk func(*Codec)) {
	start := len(c.buf)
	walk(c)
	size := len(c.buf) - start
	var prefix [binary.MaxVarintLen32]byte
	n := binary.PutUvarint(prefix[:], uint64(size))
	c.buf = append(c.buf, prefix[:n]...)
	copy(c.buf[start+n:], c.buf[start:start+size])
	copy(c.buf[start:], prefix[:n])
}

func (c *Codec) readTags(fields []Tagged) {
	var n, tag, size uint32
	c.Uvarint(&n)
	for i := uint32(0); i < n && c.err == nil; i++ {
		c.Uvarint(&tag)
		c.Uvarint(&size)
		if uint64(size) > uint64(len(c.buf)) {
			c.fail("tagged field beyond the end")
			return
		}
		rest := c.buf[size:]
		for j := range fields {
			if fields[j].Tag == tag && c.version >= fields[j].Since {
				c.buf = c.buf[:size]
				fields[j].Walk(c)
				if len(c.buf) > 0 {
					c.fail("bytes left over in a tagged field")
				}
			}
		}
		if c.err == nil {
			c.buf = rest
		}
	}
}
