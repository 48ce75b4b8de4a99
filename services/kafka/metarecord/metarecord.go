// Package metarecord is the codec of the records in the metadata log.
//
// It owns KRaft's record schemas, so that Kafka's tools read the log, and our own records for the members that
// Kafka does not know. It must never give a record a meaning: what it does to the cluster's state is the business of
// services/metadata.
//
// A record is framed as Kafka frames it:
//
//	unsigned varint  frame version, 1
//	unsigned varint  record type
//	unsigned varint  record version
//	                 the message: fields in order, all flexible (compact lengths, tag buffers)
//
// To add a field: put it at the end of the record's fields method under the new version, raise the record's highest
// version in the table, and say in the table from which metadata.version on that version is written.
package metarecord

import (
	"encoding/binary"
	"fmt"

	"chancery/services/kafka/fieldcodec"
)

// frameVersion is the only version of the frame that Kafka has.
const frameVersion = 1

// Type is a record type, with Kafka's number.
type Type int16

// Record is one record of the metadata log; a pointer to one of this package's structs.
type Record interface {
	// RecordType says which record it is.
	RecordType() Type
	// fields walks the fields in the order of the wire.
	fields(c *fieldcodec.Codec)
}

// Append adds a record's frame to dst, in the version that a cluster at the metadata.version of Kafka 4.4 writes.
func Append(dst []byte, r Record) []byte {
	version := specs[r.RecordType()].version
	if l, ok := r.(lowestVersioned); ok {
		version = l.lowestVersion()
	}
	return AppendVersion(dst, r, version)
}

// lowestVersioned is a record that Kafka writes in the lowest version that can hold its fields.
type lowestVersioned interface {
	lowestVersion() int16
}

// AppendVersion adds a record's frame to dst in a version of the record. What that version cannot hold is lost. An
// unknown version is written as the nearest known one.
func AppendVersion(dst []byte, r Record, version int16) []byte {
	t := r.RecordType()
	version = min(max(version, 0), specs[t].version)
	dst = append(dst, frameVersion)
	dst = binary.AppendUvarint(dst, uint64(t))
	dst = binary.AppendUvarint(dst, uint64(version))
	c := fieldcodec.Write(dst)
	c.SetVersion(version)
	r.fields(&c)
	return c.Written()
}

// Encode gives a record's frame in the version that a cluster at the metadata.version of Kafka 4.4 writes.
func Encode(r Record) []byte { return Append(nil, r) }

// Decode reads a record from its frame. It keeps nothing of b.
func Decode(b []byte) (Record, error) {
	c := fieldcodec.Read(b, ErrCorrupt)
	var frame, number, version uint32
	c.Uvarint(&frame)
	c.Uvarint(&number)
	c.Uvarint(&version)
	if c.Err() != nil {
		return nil, c.Err()
	}
	if frame != frameVersion {
		return nil, fmt.Errorf("%w: frame version %d", ErrUnknownVersion, frame)
	}
	if number > maxType {
		return nil, fmt.Errorf("%w: %d", ErrUnknownType, number)
	}
	t := Type(number)
	spec, ok := specs[t]
	if !ok {
		return nil, fmt.Errorf("%w: %d", ErrUnknownType, number)
	}
	if version > uint32(spec.version) {
		return nil, fmt.Errorf("%w: %s version %d, the highest known is %d", ErrUnknownVersion, t, version, spec.version)
	}
	c.SetVersion(int16(version))
	r := spec.make()
	r.fields(&c)
	if err := c.End(); err != nil {
		return nil, fmt.Errorf("%s version %d: %w", t, version, err)
	}
	return r, nil
}

// FrameType is the type of the record in a frame, which need not be known.
func FrameType(b []byte) (Type, error) {
	c := fieldcodec.Read(b, ErrCorrupt)
	var frame, number uint32
	c.Uvarint(&frame)
	c.Uvarint(&number)
	if c.Err() != nil {
		return 0, c.Err()
	}
	if frame != frameVersion || number > maxType {
		return 0, fmt.Errorf("%w: %d in frame version %d", ErrUnknownType, number, frame)
	}
	return Type(number), nil
}

// DecodeAll reads the records of a batch.
func DecodeAll(frames [][]byte) ([]Record, error) {
	records := make([]Record, len(frames))
	for i, b := range frames {
		r, err := Decode(b)
		if err != nil {
			return nil, fmt.Errorf("record %d of %d: %w", i, len(frames), err)
		}
		records[i] = r
	}
	return records, nil
}

// EncodeAll gives the frames of a batch. They share one allocation.
func EncodeAll(records []Record) [][]byte {
	ends := make([]int, len(records))
	var buf []byte
	for i, r := range records {
		buf = Append(buf, r)
		ends[i] = len(buf)
	}
	frames := make([][]byte, len(records))
	start := 0
	for i, end := range ends {
		frames[i] = buf[start:end:end]
		start = end
	}
	return frames
}

// String is the record's name in Kafka, such as TOPIC_RECORD.
func (t Type) String() string {
	if s, ok := specs[t]; ok {
		return s.name
	}
	return fmt.Sprintf("UNKNOWN_RECORD_%d", int16(t))
}

// Own says whether the record type is one of ours, which Kafka's tools cannot read.
func (t Type) Own() bool { return t >= firstOwnType }

// Known says whether this package knows the record type.
func (t Type) Known() bool {
	_, ok := specs[t]
	return ok
}
