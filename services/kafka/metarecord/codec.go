package metarecord

import (
	"errors"

	"chancery/services/kafka/fieldcodec"
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

func endpoints(c *fieldcodec.Codec, v *[]Endpoint) {
	fieldcodec.Array(c, v, 7, func(c *fieldcodec.Codec, e *Endpoint) {
		c.String(&e.Name)
		c.String(&e.Host)
		c.Uint16(&e.Port)
		c.Int16(&e.SecurityProtocol)
		c.Tags()
	})
}

func features(c *fieldcodec.Codec, v *[]Feature) {
	fieldcodec.Array(c, v, 6, func(c *fieldcodec.Codec, f *Feature) {
		c.String(&f.Name)
		c.Int16(&f.MinSupportedVersion)
		c.Int16(&f.MaxSupportedVersion)
		c.Tags()
	})
}
