package wire

import (
	"encoding/binary"
	"errors"
)

// MinHeaderSize is the size of the shortest request header: API key, version and correlation id.
const MinHeaderSize = 8

// ErrMalformed is a frame, header or body that does not follow the protocol. The connection is closed on it.
var ErrMalformed = errors.New("malformed request")

// Header is the header of a request, versions 1 and 2.
type Header struct {
	Key           int16
	Version       int16
	CorrelationID int32
	// ClientID is nil when the client sent null.
	ClientID *string
	// Size is how many bytes the header takes; the body follows.
	Size int
}

// PeekKey reads the API key and version of a request without looking at the rest.
func PeekKey(b []byte) (key, version int16, ok bool) {
	if len(b) < 4 {
		return 0, 0, false
	}
	return int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:])), true
}

// ParseHeader reads a request header; flexible says whether it is of version 2, which ends with tagged fields. previous
// is the last header of the connection: its client id string is used again when it is equal, which it nearly always is.
func ParseHeader(b []byte, flexible bool, previous *string) (Header, error) {
	var h Header
	r := Reader{b: b}
	h.Key, h.Version, h.CorrelationID = r.Int16(), r.Int16(), r.Int32()
	if n := r.Int16(); n >= 0 {
		id := r.Bytes(int(n))
		if r.failed {
			return h, ErrMalformed
		}
		if previous != nil && *previous == string(id) {
			h.ClientID = previous
		} else {
			s := string(id)
			h.ClientID = &s
		}
	}
	if flexible {
		r.SkipTags()
	}
	if r.failed {
		return h, ErrMalformed
	}
	h.Size = r.at
	return h, nil
}
