package remotelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"chancery/services/kafka/uuid"
)

// ErrCorrupt says that bytes are no record of the topic.
var ErrCorrupt = errors.New("corrupt record of remote log metadata")

// frameVersion is the version of what stands before each record.
const frameVersion = 1

// Append appends a record's bytes, which are the value of a record without a key.
func Append(dst []byte, r Record) []byte {
	c := codec{buf: dst}
	frame, kind, version := uint32(frameVersion), r.recordType(), uint32(0)
	c.uvarint(&frame)
	c.uvarint(&kind)
	c.uvarint(&version)
	r.fields(&c)
	return c.buf
}

// Decode reads a record; nil for one of a type that does not belong into the topic.
func Decode(b []byte) (Record, error) {
	c := codec{buf: b, reading: true}
	var frame, kind, version uint32
	c.uvarint(&frame)
	c.uvarint(&kind)
	c.uvarint(&version)
	switch {
	case c.err != nil:
		return nil, c.err
	case frame != frameVersion:
		return nil, fmt.Errorf("%w: version %d of the frame, want %d", ErrCorrupt, frame, frameVersion)
	case version != 0:
		return nil, fmt.Errorf("%w: version %d of type %d, want 0", ErrCorrupt, version, kind)
	}
	var r Record
	switch kind {
	case segmentType:
		r = new(Segment)
	case updateType:
		r = new(SegmentUpdate)
	case partitionType:
		r = new(PartitionDelete)
	case snapshotType:
		return nil, nil
	default:
		return nil, fmt.Errorf("%w: type %d", ErrCorrupt, kind)
	}
	r.fields(&c)
	if c.err == nil && len(c.buf) > 0 {
		c.fail("bytes left over")
	}
	if c.err != nil {
		return nil, c.err
	}
	return r, nil
}

// codec walks the fields of a record, either reading or writing. After the first error all calls do nothing.
type codec struct {
	buf     []byte
	reading bool
	err     error
}

func (c *codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s", ErrCorrupt, what)
		c.buf = nil
	}
}

// take cuts n bytes off; nil when there are not that many.
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

func (c *codec) int8(v *int8) {
	if !c.reading {
		c.buf = append(c.buf, byte(*v))
	} else if b := c.take(1); b != nil {
		*v = int8(b[0])
	}
}

func (c *codec) int32(v *int32) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(*v))
	} else if b := c.take(4); b != nil {
		*v = int32(binary.BigEndian.Uint32(b))
	}
}

func (c *codec) int64(v *int64) {
	if !c.reading {
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(*v))
	} else if b := c.take(8); b != nil {
		*v = int64(binary.BigEndian.Uint64(b))
	}
}

func (c *codec) uuid(v *uuid.UUID) {
	if !c.reading {
		c.buf = append(c.buf, v[:]...)
	} else if b := c.take(len(v)); b != nil {
		copy(v[:], b)
	}
}

// length is a length plus one, with 0 for null; -1 says null.
func (c *codec) length(n int) int {
	u := uint32(n + 1)
	c.uvarint(&u)
	if c.reading && (c.err != nil || int64(u)-1 > int64(len(c.buf))) {
		c.fail("a length beyond the end")
		return -1
	}
	return int(u) - 1
}

func (c *codec) string(v *string) {
	n := c.length(len(*v))
	switch {
	case !c.reading:
		c.buf = append(c.buf, *v...)
	case n < 0:
		c.fail("null where a string has to be")
	default:
		*v = string(c.take(n))
	}
}

func (c *codec) nullableBytes(v *[]byte) {
	n := len(*v)
	if *v == nil {
		n = -1
	}
	n = c.length(n)
	switch {
	case !c.reading:
		c.buf = append(c.buf, *v...)
	case n >= 0:
		*v = append([]byte{}, c.take(n)...)
	}
}

func (c *codec) epochs(v *[]EpochStart) {
	n := c.length(len(*v))
	if c.reading {
		if n < 0 {
			c.fail("null where a list has to be")
			return
		}
		*v = nil
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reading {
			*v = append(*v, EpochStart{})
		}
		c.int32(&(*v)[i].Epoch)
		c.int64(&(*v)[i].StartOffset)
		c.noTags()
	}
}

func (c *codec) topicPartition(topic *string, p *Partition) {
	c.string(topic)
	c.uuid(&p.TopicID)
	c.int32(&p.Partition)
	c.noTags()
}

func (c *codec) segmentID(topic *string, p *Partition, id *uuid.UUID) {
	c.topicPartition(topic, p)
	c.uuid(id)
	c.noTags()
}

// noTags writes that there are no tagged fields, and skips those of a newer writer.
func (c *codec) noTags() { c.tags(nil) }

// taggedBool is a bool with the tag 0 that is left out while it is false.
func (c *codec) taggedBool(v *bool) {
	if c.reading {
		c.tags(func(tag uint32, b []byte) {
			if tag == 0 {
				*v = len(b) == 1 && b[0] != 0
			}
		})
		return
	}
	if !*v {
		c.noTags()
		return
	}
	c.buf = append(c.buf, 1, 0, 1, 1) // one field, its tag, its size, true
}

func (c *codec) tags(each func(tag uint32, b []byte)) {
	var n uint32
	c.uvarint(&n)
	for i := uint32(0); i < n && c.err == nil; i++ {
		var tag, size uint32
		c.uvarint(&tag)
		c.uvarint(&size)
		if int64(size) > int64(len(c.buf)) {
			c.fail("a tagged field beyond the end")
			return
		}
		if b := c.take(int(size)); each != nil {
			each(tag, b)
		}
	}
}
