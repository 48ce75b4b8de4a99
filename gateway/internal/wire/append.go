package wire

import "encoding/binary"

// The functions below append primitive fields in the form of the protocol.

// AppendString appends a string.
func AppendString(b []byte, s string, flexible bool) []byte {
	if flexible {
		b = binary.AppendUvarint(b, uint64(len(s))+1)
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	}
	return append(b, s...)
}

// AppendNullableString appends a string; nil is null.
func AppendNullableString(b []byte, s *string, flexible bool) []byte {
	switch {
	case s != nil:
		return AppendString(b, *s, flexible)
	case flexible:
		return append(b, 0)
	default:
		return append(b, 0xff, 0xff)
	}
}

// AppendCount appends the length of an array that is not null.
func AppendCount(b []byte, n int, flexible bool) []byte {
	if flexible {
		return binary.AppendUvarint(b, uint64(n)+1)
	}
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// AppendNullCount appends the length of a null array or of null bytes.
func AppendNullCount(b []byte, flexible bool) []byte {
	if flexible {
		return append(b, 0)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff)
}

// AppendInt16 appends two bytes.
func AppendInt16(b []byte, v int16) []byte { return binary.BigEndian.AppendUint16(b, uint16(v)) }

// AppendInt32 appends four bytes.
func AppendInt32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// AppendInt64 appends eight bytes.
func AppendInt64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }
