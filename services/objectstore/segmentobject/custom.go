package segmentobject

import (
	"encoding/binary"

	"chancery/services/objectstore"
)

// Custom is the custom metadata of a copied segment. With the rest of the metadata it says all that a read needs, and it
// keeps what the key was made of, so that a new prefix does not hide what was copied before.
type Custom struct {
	// TailBytes is the length of what follows the log.
	TailBytes uint32
	// SegmentCRC is the CRC-32C of the log.
	SegmentCRC uint32
	// LastLeaderEpoch is the epoch in the key.
	LastLeaderEpoch int32
	// Layout is how the key was made, and Prefix its prefix.
	Layout Layout
	Prefix string
}

// customFixedBytes is the length of custom metadata without the prefix: version byte, then the numbers.
const customFixedBytes = 13

// customVersion is that of a key ByTopicID; the other layouts have the versions after it.
const customVersion = 1

// Encode makes the bytes for the metadata record.
func (c *Custom) Encode() []byte {
	out := make([]byte, 0, customFixedBytes+len(c.Prefix))
	out = append(out, customVersion+byte(c.Layout))
	out = binary.BigEndian.AppendUint32(out, c.TailBytes)
	out = binary.BigEndian.AppendUint32(out, c.SegmentCRC)
	out = binary.BigEndian.AppendUint32(out, uint32(c.LastLeaderEpoch))
	return append(out, c.Prefix...)
}

// DecodeCustom reads custom metadata. Errors are objectstore.ErrCorrupt.
func DecodeCustom(b []byte) (Custom, error) {
	if len(b) < customFixedBytes || b[0] < customVersion || Layout(b[0]-customVersion) > ByTopicName {
		return Custom{}, corrupt("custom metadata of %d bytes is not of an object of format %d", len(b), version)
	}
	c := Custom{
		TailBytes:       binary.BigEndian.Uint32(b[1:]),
		SegmentCRC:      binary.BigEndian.Uint32(b[5:]),
		LastLeaderEpoch: int32(binary.BigEndian.Uint32(b[9:])),
		Layout:          Layout(b[0] - customVersion),
		Prefix:          string(b[customFixedBytes:]),
	}
	if c.TailBytes < FooterBytes {
		return Custom{}, corrupt("custom metadata says that %d bytes follow the log", c.TailBytes)
	}
	if err := CheckPrefix(c.Prefix); err != nil {
		return Custom{}, corrupt("custom metadata has a prefix that is none: %s", err)
	}
	return c, nil
}

// KeyOf is the key of a segment's object: with its own layout and prefix when its copy was finished, and otherwise with the
// given ones.
func (l Layout) KeyOf(prefix, clusterID string, s *objectstore.SegmentMetadata) (string, error) {
	if len(s.Custom) == 0 {
		return l.Key(prefix, clusterID, s), nil
	}
	c, err := DecodeCustom(s.Custom)
	if err != nil {
		return "", err
	}
	named := *s
	named.LeaderEpochs = nil
	if c.LastLeaderEpoch >= 0 {
		named.LeaderEpochs = []objectstore.EpochStart{{Epoch: c.LastLeaderEpoch}}
	}
	return c.Layout.Key(c.Prefix, clusterID, &named), nil
}
