package listener

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// minHeaderBytes is the size of the shortest header: key, version, correlation id and client id.
const minHeaderBytes = 10

var errMalformed = errors.New("malformed request")

// header is the header of a request.
type header struct {
	key, version  int16
	correlationID int32
	clientID      *string
}

// parse reads a request. A version that is not served is an error, but for ApiVersions, which then gives no request.
func (l *Listener) parse(frame []byte) (header, kmsg.Request, []byte, error) {
	b := kbin.Reader{Src: frame}
	h := header{key: b.Int16(), version: b.Int16(), correlationID: b.Int32()}
	a := l.apis[h.key]
	if b.Ok() && a == nil {
		return h, nil, nil, fmt.Errorf("API %d is not served on this listener", h.key)
	}
	if b.Ok() && (h.version < a.min || h.version > a.max) {
		if kmsg.Key(h.key) == kmsg.ApiVersions {
			return h, nil, nil, nil
		}
		return h, nil, nil, fmt.Errorf("%s has no version %d", kmsg.NameForKey(h.key), h.version)
	}
	h.clientID = b.NullableString()
	if !b.Ok() {
		return h, nil, nil, errMalformed
	}
	req := kmsg.RequestForKey(h.key)
	req.SetVersion(h.version)
	if req.IsFlexible() {
		kmsg.SkipTags(&b)
	}
	if !b.Ok() {
		return h, nil, nil, errMalformed
	}
	if err := req.ReadFrom(b.Src); err != nil {
		return h, nil, nil, fmt.Errorf("%s: %w: %w", kmsg.NameForKey(h.key), errMalformed, err)
	}
	return h, req, b.Src, nil
}

// response begins an answer: its header. ApiVersions never has a flexible one, so that every client can read it.
func response(h header, flexible bool) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(h.correlationID))
	if flexible && kmsg.Key(h.key) != kmsg.ApiVersions {
		b = append(b, 0)
	}
	return b
}

// framed puts the length in front of an answer.
func framed(answer []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, len(answer)+4), uint32(len(answer))), answer...)
}

// hostOf is the text of an address of 4 or 16 bytes.
func hostOf(address []byte) (string, bool) {
	a, ok := netip.AddrFromSlice(address)
	return a.Unmap().String(), ok
}
