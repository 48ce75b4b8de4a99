package remotelog

import (
	"errors"
	"fmt"

	"chancery/services/kafka/fieldcodec"
	"chancery/services/kafka/uuid"
)

// ErrCorrupt says that bytes are no record of the topic.
var ErrCorrupt = errors.New("corrupt record of remote log metadata")

// frameVersion is the version of what stands before each record.
const frameVersion = 1

// Append appends a record's bytes, which are the value of a record without a key.
func Append(dst []byte, r Record) []byte {
	c := fieldcodec.Write(dst)
	frame, kind, version := uint32(frameVersion), r.recordType(), uint32(0)
	c.Uvarint(&frame)
	c.Uvarint(&kind)
	c.Uvarint(&version)
	r.fields(&c)
	return c.Written()
}

// Decode reads a record; nil for one of a type that does not belong into the topic.
func Decode(b []byte) (Record, error) {
	c := fieldcodec.Read(b, ErrCorrupt)
	var frame, kind, version uint32
	c.Uvarint(&frame)
	c.Uvarint(&kind)
	c.Uvarint(&version)
	switch {
	case c.Err() != nil:
		return nil, c.Err()
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
	if err := c.End(); err != nil {
		return nil, err
	}
	return r, nil
}

func epochs(c *fieldcodec.Codec, v *[]EpochStart) {
	fieldcodec.Array(c, v, 13, func(c *fieldcodec.Codec, e *EpochStart) {
		c.Int32(&e.Epoch)
		c.Int64(&e.StartOffset)
		c.Tags()
	})
}

func topicPartition(c *fieldcodec.Codec, topic *string, p *Partition) {
	c.String(topic)
	c.UUID(&p.TopicID)
	c.Int32(&p.Partition)
	c.Tags()
}

func segmentID(c *fieldcodec.Codec, topic *string, p *Partition, id *uuid.UUID) {
	topicPartition(c, topic, p)
	c.UUID(id)
	c.Tags()
}

// taggedBool is a bool with the tag 0 that is left out while it is false.
func taggedBool(c *fieldcodec.Codec, v *bool) {
	c.Tags(fieldcodec.Tagged{Tag: 0, Present: *v, Walk: func(c *fieldcodec.Codec) { c.Bool(v) }})
}
