package metarecord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"chancery/services/kafka/uuid"
)

// The ways in which a record cannot be read.
var (
	// ErrCorrupt: the bytes are no record: cut short, a length beyond the end, bytes left over.
	ErrCorrupt = errors.New("corrupt metadata record")
	// ErrUnknownType: a record type that this package does not know.
	ErrUnknownType = errors.New("unknown metadata record type")
	// ErrUnknownVersion: a version of a known record, or of the frame, that this package does not know.
	ErrUnknownVersion = errors.New("unknown metadata record version")
)

// codec walks a record's fields in their order on the wire, either reading or writing. Each record describes its fields
// once, for both directions, so that they cannot drift apart.
//
// After the first error all calls do nothing.
type codec struct {
	// buf is what is still to be read, or what has been written.
	buf     []byte
	reading bool
	version int16
	err     error
}

func (c *codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrCorrupt, what)
		c.buf = nil
	}
}

// take cuts n bytes off what is to be read; nil when there are not that many.
func (c *codec) take(n int) []byte {
	if n > len(c.buf) {
		c.fail("cut short")
		return nil
	}
	b := c.buf[:n]
	c.buf = c.buf[n:]
	return b
}

func (c *codec) uvarint(v *uint32) {
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

func (c *codec) bool(v *bool) {
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

func (c *codec) int8(v *int8) {
	if !c.reading {
		c.buf = append(c.buf, byte(*v))
		return
	}
	if b := c.take(1); b != nil {
		*v = int8(b[0])
	}
}

func (c *codec) int16(v *int16) {
	u := uint16(*v)
	c.uint16(&u)
	*v = int16(u)
}

func (c *codec) uint16(v *uint16) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint16(c.buf, *v)
		return
	}
	if b := c.take(2); b != nil {
		*v = binary.BigEndian.Uint16(b)
	}
}

func (c *codec) int32(v *int32) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(*v))
		return
	}
	if b := c.take(4); b != nil {
		*v = int32(binary.BigEndian.Uint32(b))
	}
}

func (c *codec) int64(v *int64) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(*v))
		return
	}
	if b := c.take(8); b != nil {
		*v = int64(binary.BigEndian.Uint64(b))
	}
}

func (c *codec) float64(v *float64) {
	bits := int64(math.Float64bits(*v))
	c.int64(&bits)
	*v = math.Float64frombits(uint64(bits))
}

func (c *codec) uuid(v *uuid.UUID) {
	if !c.reading {
		c.buf = append(c.buf, v[:]...)
		return
	}
	copy(v[:], c.take(len(v)))
}

// length walks the compact length of something whose elements take at least elementBytes each: an unsigned varint of
// length + 1, where 0 is null. It returns the length, -1 for null. A claimed length that the bytes left cannot hold is
// refused, so that nothing is allocated for it.
func (c *codec) length(n, elementBytes int) int {
	if !c.reading {
		c.buf = binary.AppendUvarint(c.buf, uint64(n+1))
		return n
	}
	var u uint32
	c.uvarint(&u)
	n = int(u) - 1
	if n > 0 && n > len(c.buf)/elementBytes {
		c.fail("length beyond the end")
		return 0
	}
	return n
}

func (c *codec) string(v *string) {
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

func (c *codec) nullableString(v **string) {
	if !c.reading && *v == nil {
		c.length(-1, 1)
		return
	}
	if !c.reading {
		c.string(*v)
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

func (c *codec) bytes(v *[]byte) {
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

// int32s walks an array that is never null; an empty one is read as nil.
func (c *codec) int32s(v *[]int32) {
	array(c, v, 4, (*codec).int32)
}

func (c *codec) nullableInt32s(v *[]int32) {
	nullableArray(c, v, 4, (*codec).int32)
}

func (c *codec) uuids(v *[]uuid.UUID) {
	array(c, v, 16, (*codec).uuid)
}

func (c *codec) nullableUUIDs(v *[]uuid.UUID) {
	nullableArray(c, v, 16, (*codec).uuid)
}

func (c *codec) strings(v *[]string) {
	array(c, v, 1, (*codec).string)
}

func (c *codec) endpoints(v *[]Endpoint) {
	array(c, v, 7, func(c *codec, e *Endpoint) {
		c.string(&e.Name)
		c.string(&e.Host)
		c.uint16(&e.Port)
		c.int16(&e.SecurityProtocol)
		c.tags()
	})
}

func (c *codec) features(v *[]Feature) {
	array(c, v, 6, func(c *codec, f *Feature) {
		c.string(&f.Name)
		c.int16(&f.MinSupportedVersion)
		c.int16(&f.MaxSupportedVersion)
		c.tags()
	})
}

// array walks an array that is never null. Its elements take at least elementBytes each. An empty one is read as nil.
func array[T any](c *codec, v *[]T, elementBytes int, element func(*codec, *T)) {
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

// nullableArray walks an array that may be null; nil is null, and an empty one is read as not nil.
func nullableArray[T any](c *codec, v *[]T, elementBytes int, element func(*codec, *T)) {
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

// taggedField is a field of a tag buffer. It is written only when present says that it differs from its default.
type taggedField struct {
	tag uint32
	// since is the first version of the record that has the field.
	since   int16
	present bool
	walk    func(*codec)
}

// tags walks the tag buffer at the end of a struct. The fields are in the order of their tags. Unknown tags are
// skipped: whoever passes records on passes the bytes on, never a record that was read and written again.
func (c *codec) tags(fields ...taggedField) {
	if c.reading {
		c.readTags(fields)
		return
	}
	var n uint32
	for i := range fields {
		if fields[i].present && c.version >= fields[i].since {
			n++
		}
	}
	c.uvarint(&n)
	for i := range fields {
		if !fields[i].present || c.version < fields[i].since {
			continue
		}
		c.uvarint(&fields[i].tag)
		c.writeSized(fields[i].walk)
	}
}

// writeSized writes a field with its size before it.
func (c *codec) writeSized(walk func(*codec)) {
	start := len(c.buf)
	walk(c)
	size := len(c.buf) - start
	var prefix [binary.MaxVarintLen32]byte
	n := binary.PutUvarint(prefix[:], uint64(size))
	c.buf = append(c.buf, prefix[:n]...)
	copy(c.buf[start+n:], c.buf[start:start+size])
	copy(c.buf[start:], prefix[:n])
}

func (c *codec) readTags(fields []taggedField) {
	var n, tag, size uint32
	c.uvarint(&n)
	for i := uint32(0); i < n && c.err == nil; i++ {
		c.uvarint(&tag)
		c.uvarint(&size)
		if uint64(size) > uint64(len(c.buf)) {
			c.fail("tagged field beyond the end")
			return
		}
		rest := c.buf[size:]
		for j := range fields {
			if fields[j].tag == tag && c.version >= fields[j].since {
				c.buf = c.buf[:size]
				fields[j].walk(c)
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
