package storagerpc

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"chancery/services/kafka/uuid"
)

// payloadField is the number of the payload in AppendFrame and FetchResultFrame.
const payloadField = 15

var (
	errTruncated = errors.New("message ends inside a field")
	errUTF8      = errors.New("string is not valid UTF-8")
	errToken     = errors.New("name of a channel for files is not 16 bytes")
	errTopicID   = errors.New("topic id is not 16 bytes")
	errSizes     = errors.New("sizes of the partitions do not add up to the payload")
)

// fields is what a frame does with the fields of its message. Fields whose wire type does not fit are unknown ones, as
// protobuf has it, and are skipped before they come here.
type fields interface {
	// number is called for a field that is a varint on the wire.
	number(field protowire.Number, v uint64) error
	// bytes is called for one with a length. b is only valid during the call.
	bytes(field protowire.Number, b []byte) error
}

// decodeFrame reads a message that lies in several buffers. It gives the field with the number of the payload, if that is not
// 0, as references to them; the caller frees it, also after an error. The fields may come in any order.
func decodeFrame(data mem.BufferSlice, payloadField protowire.Number, f fields) (payload mem.BufferSlice, err error) {
	c := cursor{buffers: data, left: data.Len()}
	for c.left > 0 {
		tag, err := c.varint()
		if err != nil {
			return payload, err
		}
		num, kind := protowire.DecodeTag(tag)
		if !num.IsValid() {
			return payload, fmt.Errorf("invalid field number in tag %#x", tag)
		}
		switch kind {
		case protowire.VarintType:
			v, err := c.varint()
			if err != nil {
				return payload, err
			}
			if err := f.number(num, v); err != nil {
				return payload, err
			}
		case protowire.BytesType:
			n, err := c.varint()
			if err != nil {
				return payload, err
			}
			if n > uint64(c.left) {
				return payload, errTruncated
			}
			if num == payloadField {
				payload.Free() // the last one counts
				payload = c.references(int(n))
				continue
			}
			if err := f.bytes(num, c.contiguous(int(n))); err != nil {
				return payload, err
			}
		default:
			// No field of ours has another type; what is left is few bytes.
			rest := cursor{buffers: c.buffers, index: c.index, offset: c.offset, left: c.left}
			n := protowire.ConsumeFieldValue(num, kind, rest.contiguous(rest.left))
			if n < 0 {
				return payload, protowire.ParseError(n)
			}
			c.advance(n)
		}
	}
	return payload, nil
}

// decodeNested reads a message that lies in one piece.
func decodeNested(b []byte, f fields) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if !num.IsValid() {
			return fmt.Errorf("invalid field number %d", num)
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			if err := f.number(num, v); err != nil {
				return err
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			if err := f.bytes(num, v); err != nil {
				return err
			}
		default:
			n := protowire.ConsumeFieldValue(num, kind, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
		}
	}
	return nil
}

// cursor walks over the bytes of several buffers.
type cursor struct {
	buffers mem.BufferSlice
	// index and offset are where it stands, left is how many bytes are left in all.
	index  int
	offset int
	left   int
}

// current is what is left of the buffer under the cursor; it is empty only at the end.
func (c *cursor) current() []byte {
	for c.index < len(c.buffers) {
		b := c.buffers[c.index].ReadOnlyData()
		if c.offset < len(b) {
			return b[c.offset:]
		}
		c.index++
		c.offset = 0
	}
	return nil
}

// advance moves over n bytes, of which there are enough.
func (c *cursor) advance(n int) {
	c.left -= n
	for n > 0 {
		step := min(n, len(c.current()))
		c.offset += step
		n -= step
	}
}

func (c *cursor) varint() (uint64, error) {
	if b := c.current(); len(b) > 0 && b[0] < 0x80 {
		c.offset++
		c.left--
		return uint64(b[0]), nil
	}
	var scratch [10]byte
	peek := cursor{buffers: c.buffers, index: c.index, offset: c.offset, left: c.left}
	b := scratch[:peek.copyTo(scratch[:min(len(scratch), c.left)])]
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	c.advance(n)
	return v, nil
}

// copyTo fills dst, for which there are enough bytes.
func (c *cursor) copyTo(dst []byte) int {
	done := 0
	for done < len(dst) {
		n := copy(dst[done:], c.current())
		done += n
		c.offset += n
		c.left -= n
	}
	return done
}

// contiguous gives the next n bytes in one piece, copied only when they lie in several buffers.
func (c *cursor) contiguous(n int) []byte {
	if b := c.current(); n <= len(b) {
		c.offset += n
		c.left -= n
		return b[:n:n]
	}
	out := make([]byte, n)
	c.copyTo(out)
	return out
}

// references gives the next n bytes as references to the buffers they lie in; never nil, so that "no bytes" and "nothing"
// differ.
func (c *cursor) references(n int) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, c.span(n))
	c.left -= n
	for n > 0 {
		step := min(n, len(c.current()))
		out = append(out, c.buffers[c.index].Slice(c.offset, c.offset+step))
		c.offset += step
		n -= step
	}
	return out
}

// span is how many buffers the next n bytes lie in.
func (c *cursor) span(n int) int {
	n -= len(c.current())
	count := 1
	for i := c.index + 1; n > 0 && i < len(c.buffers); i++ {
		n -= c.buffers[i].Len()
		count++
	}
	return count
}

// appendNumber writes a varint field; zero is not written, as proto3 has it. Signed numbers that are not zigzag are
// sign-extended to 64 bits by the conversion.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// appendZigZag writes an sint32 or sint64 field.
func appendZigZag(b []byte, field protowire.Number, v int64) []byte {
	return appendNumber(b, field, protowire.EncodeZigZag(v))
}

func appendBool(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendNumber(b, field, 1)
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendTopicID(b []byte, field protowire.Number, id uuid.UUID) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return append(append(b, byte(len(id))), id[:]...)
}

// openNested begins a message field; closeNested, given the returned mark, puts its length in place. Most are below 128
// bytes, so one byte is kept free and the content moved when it takes more.
func openNested(b []byte, field protowire.Number) (_ []byte, mark int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

func closeNested(b []byte, mark int) []byte {
	n := len(b) - mark
	extra := protowire.SizeVarint(uint64(n)) - 1
	if extra > 0 {
		var zeros [9]byte
		b = append(b, zeros[:extra]...)
		copy(b[mark+extra:], b[mark:mark+n])
	}
	protowire.AppendVarint(b[:mark-1], uint64(n))
	return b
}

func toTopicID(b []byte, id *uuid.UUID) error {
	parsed, ok := uuid.FromBytes(b)
	if !ok {
		return errTopicID
	}
	*id = parsed
	return nil
}

func toString(b []byte, s *string) error {
	if !utf8.Valid(b) {
		return errUTF8
	}
	*s = string(b)
	return nil
}

func zigZag32(v uint64) int32 { return int32(protowire.DecodeZigZag(v & 0xffffffff)) }
