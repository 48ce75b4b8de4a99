package transport

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Message is a message that writes and reads its own wire form in buffers, without copying what it carries. The wire form
// is that of the protobuf message it stands for, so either side may use the generated type instead.
type Message interface {
	// MarshalBuffers gives the wire form and with it the ownership of the buffers: the message must drop its own
	// references, so that releasing it afterwards is harmless. On an error it still owns them.
	MarshalBuffers() (mem.BufferSlice, error)
	// UnmarshalBuffers reads the wire form. The buffers are freed when it returns; it takes references to what it keeps.
	UnmarshalBuffers(data mem.BufferSlice) error
}

// Encoded is a message in its wire form, for sending the same one to many receivers. It cannot be received into.
type Encoded []byte

// MarshalBuffers gives the bytes themselves, which must not change any more.
func (e Encoded) MarshalBuffers() (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(e)}, nil
}

// UnmarshalBuffers fails: an Encoded does not know its type.
func (e Encoded) UnmarshalBuffers(mem.BufferSlice) error {
	return fmt.Errorf("cannot receive into %T", e)
}

// NewCodec makes the codec "proto" that knows Message, and treats every other message as the stock codec does, with
// temporary buffers from pool.
func NewCodec(pool *Pool) encoding.CodecV2 { return codec{pool: pool} }

type codec struct{ pool *Pool }

func (codec) Name() string { return "proto" }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case Message:
		return m.MarshalBuffers()
	case proto.Message:
		size := proto.Size(m)
		buffer, b := c.pool.Buffer(size)
		if _, err := (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b[:0], m); err != nil {
			buffer.Free()
			return nil, err
		}
		return mem.BufferSlice{buffer}, nil
	}
	return nil, fmt.Errorf("cannot marshal %T", v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case Message:
		return m.UnmarshalBuffers(data)
	case proto.Message:
		b := data.MaterializeToBuffer(c.pool)
		defer b.Free()
		return proto.Unmarshal(b.ReadOnlyData(), m)
	}
	return fmt.Errorf("cannot unmarshal into %T", v)
}
