package wire

import "encoding/binary"

// Reader reads the primitive fields of a message. After the first field that is cut short it only gives zeros, and
// Failed is true; so a decoder need ask once, at the end, and before it allocates for a count.
type Reader struct {
	b      []byte
	at     int
	failed bool
}

// NewReader reads from b, which it never changes.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Failed says whether anything was missing or broken so far.
func (r *Reader) Failed() bool { return r.failed }

// Fail marks the message as broken.
func (r *Reader) Fail() { r.failed = true }

// Offset is the position of the next byte in the whole message.
func (r *Reader) Offset() int { return r.at }

// Left is the number of bytes not read yet.
func (r *Reader) Left() int { return len(r.b) - r.at }

// Bytes gives the next n bytes, which are part of the message.
func (r *Reader) Bytes(n int) []byte {
	if r.failed || n < 0 || n > len(r.b)-r.at {
		r.failed = true
		return nil
	}
	out := r.b[r.at : r.at+n : r.at+n]
	r.at += n
	return out
}

// Int8 reads one byte.
func (r *Reader) Int8() int8 {
	if b := r.Bytes(1); b != nil {
		return int8(b[0])
	}
	return 0
}

// Int16 reads two bytes.
func (r *Reader) Int16() int16 {
	if b := r.Bytes(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

// Int32 reads four bytes.
func (r *Reader) Int32() int32 {
	if b := r.Bytes(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// Int64 reads eight bytes.
func (r *Reader) Int64() int64 {
	if b := r.Bytes(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// UUID reads sixteen bytes.
func (r *Reader) UUID() [16]byte {
	var id [16]byte
	copy(id[:], r.Bytes(16))
	return id
}

// Uvarint reads an unsigned varint of at most 32 bits.
func (r *Reader) Uvarint() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		b := r.Bytes(1)
		if b == nil {
			return 0
		}
		v |= uint64(b[0]&0x7f) << shift
		if b[0]&0x80 == 0 {
			return uint32(v)
		}
	}
	r.failed = true
	return 0
}

// length reads the length of a field that may be null: compact in flexible versions, otherwise of the given width.
func (r *Reader) length(flexible bool, wide bool) int {
	switch {
	case flexible:
		return int(int32(r.Uvarint())) - 1
	case wide:
		return int(r.Int32())
	default:
		return int(r.Int16())
	}
}

// String gives a string that must not be null, as bytes of the message.
func (r *Reader) String(flexible bool) []byte {
	n := r.length(flexible, false)
	if n < 0 {
		r.failed = true
	}
	return r.Bytes(n)
}

// NullableString gives a string and whether it is there at all.
func (r *Reader) NullableString(flexible bool) ([]byte, bool) {
	n := r.length(flexible, false)
	if n < 0 {
		return nil, false
	}
	return r.Bytes(n), true
}

// Span gives position and size of a run of bytes that may be null, in which case the size is -1.
func (r *Reader) Span(flexible bool) (at, size int) {
	n := r.length(flexible, true)
	if n < 0 {
		return r.at, -1
	}
	at = r.at
	r.Bytes(n)
	return at, n
}

// Count reads the length of an array that must not be null, whose elements take at least minSize bytes each. A count for
// which the message has no room fails before anything is allocated for it.
func (r *Reader) Count(flexible bool, minSize int) int {
	n := r.length(flexible, true)
	if n < 0 || n > r.Left()/minSize {
		r.failed = true
	}
	if r.failed {
		return 0
	}
	return n
}

// SkipTags skips the tagged fields at the end of a flexible structure. Unknown tags in any order are fine.
func (r *Reader) SkipTags() {
	r.Tags(func(uint32, []byte) {})
}

// Tags calls f for each tagged field.
func (r *Reader) Tags(f func(tag uint32, value []byte)) {
	for n := r.Uvarint(); n > 0 && !r.failed; n-- {
		tag := r.Uvarint()
		value := r.Bytes(int(r.Uvarint()))
		if !r.failed {
			f(tag, value)
		}
	}
}
