// Package grouprecord is the format of the records in __consumer_offsets: committed offsets, the metadata of classic
// groups and the state of consumer groups, as Apache Kafka writes them.
//
// It owns keys and values as bytes; it must never decide what to write or what a record means for a group.
//
//	record key:   int16 record type, then the key's fields
//	record value: int16 value version, then the value's fields; null deletes
package grouprecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/uuid"
)

// The record types of offsets and classic groups.
const (
	// TypeLegacyOffsetCommit is not written any more; its key is that of TypeOffsetCommit.
	TypeLegacyOffsetCommit int16 = 0
	TypeOffsetCommit       int16 = 1
	TypeGroupMetadata      int16 = 2
)

// The value versions that are written, as Kafka 4.4 writes them, and the newest that is understood.
const (
	offsetValueVersion        int16 = 4
	expiringOffsetVersion     int16 = 1
	groupMetadataValueVersion int16 = 3
	newestValueVersion        int16 = 4
)

// NoTimestamp is a time that is not known.
const NoTimestamp int64 = -1

// ErrUnknownType says that the record belongs to something that this package does not know; such records are skipped.
var ErrUnknownType = errors.New("record type is not one of offsets, classic or consumer groups")

// Offset is a committed offset.
type Offset struct {
	Offset int64
	// LeaderEpoch is -1 when the client gave none.
	LeaderEpoch       int32
	Metadata          string
	CommitTimestampMs int64
	// ExpireTimestampMs is set for commits with a retention of their own (OffsetCommit 2 to 4), else NoTimestamp.
	ExpireTimestampMs int64
	// TopicID is zero in records of older brokers.
	TopicID uuid.UUID
}

// Record is a decoded record: an offset or the metadata of a group. Both pointers are nil for a deletion.
type Record struct {
	// Type is TypeOffsetCommit, TypeGroupMetadata or one of consumer groups.
	Type  int16
	Group string
	// Topic and Partition belong to offsets.
	Topic     string
	Partition int32
	Offset    *Offset
	Metadata  *kmsg.GroupMetadataValue
	// Consumer is set for the record types of consumer groups, and then the only field beside Type and Group.
	Consumer *Consumer
}

// AppendOffsetKey appends the key of a committed offset.
func AppendOffsetKey(dst []byte, group, topic string, partition int32) []byte {
	key := kmsg.OffsetCommitKey{Version: TypeOffsetCommit, Group: group, Topic: topic, Partition: partition}
	return key.AppendTo(dst)
}

// AppendOffsetValue appends the value of a committed offset.
func AppendOffsetValue(dst []byte, o *Offset) []byte {
	value := kmsg.OffsetCommitValue{
		Version:         offsetValueVersion,
		Offset:          o.Offset,
		LeaderEpoch:     o.LeaderEpoch,
		Metadata:        o.Metadata,
		CommitTimestamp: o.CommitTimestampMs,
		ExpireTimestamp: o.ExpireTimestampMs,
		TopicID:         o.TopicID,
	}
	if o.ExpireTimestampMs != NoTimestamp {
		value.Version = expiringOffsetVersion
	}
	return value.AppendTo(dst)
}

// AppendGroupKey appends the key of a group's metadata.
func AppendGroupKey(dst []byte, group string) []byte {
	key := kmsg.GroupMetadataKey{Version: TypeGroupMetadata, Group: group}
	return key.AppendTo(dst)
}

// AppendGroupValue appends a group's metadata, in the version that is written whatever the value's own version is.
func AppendGroupValue(dst []byte, v *kmsg.GroupMetadataValue) []byte {
	value := *v
	value.Version = groupMetadataValueVersion
	return value.AppendTo(dst)
}

// Decode reads a record; a nil value is a deletion. The result shares no memory with the bytes. It fails with ErrUnknownType
// for records of other kinds of groups.
func Decode(key, value []byte) (Record, error) {
	if len(key) < 2 {
		return Record{}, errors.New("record key is shorter than its type")
	}
	switch recordType := int16(binary.BigEndian.Uint16(key)); recordType {
	case TypeLegacyOffsetCommit, TypeOffsetCommit:
		return decodeOffset(key, value)
	case TypeGroupMetadata:
		return decodeGroup(key, value)
	case TypeConsumerGroup, TypeConsumerPartitions, TypeConsumerMember, TypeConsumerTarget, TypeConsumerTargetMember,
		TypeConsumerCurrent, TypeConsumerRegex:
		c, err := decodeConsumer(recordType, key, value)
		if err != nil {
			return Record{}, err
		}
		return Record{Type: recordType, Group: c.Group, Consumer: c}, nil
	default:
		return Record{}, fmt.Errorf("%w: %d", ErrUnknownType, recordType)
	}
}

func decodeOffset(key, value []byte) (Record, error) {
	var k kmsg.OffsetCommitKey
	if err := k.ReadFrom(key); err != nil {
		return Record{}, fmt.Errorf("key of a committed offset: %w", err)
	}
	r := Record{Type: TypeOffsetCommit, Group: k.Group, Topic: k.Topic, Partition: k.Partition}
	if value == nil {
		return r, nil
	}
	if err := checkVersion(value); err != nil {
		return Record{}, fmt.Errorf("committed offset of group %q: %w", k.Group, err)
	}
	v := kmsg.NewOffsetCommitValue()
	if err := v.ReadFrom(value); err != nil {
		return Record{}, fmt.Errorf("committed offset of group %q: %w", k.Group, err)
	}
	r.Offset = &Offset{
		Offset:            v.Offset,
		LeaderEpoch:       -1,
		Metadata:          v.Metadata,
		CommitTimestampMs: v.CommitTimestamp,
		ExpireTimestampMs: NoTimestamp,
		TopicID:           v.TopicID,
	}
	if v.Version >= 3 {
		r.Offset.LeaderEpoch = v.LeaderEpoch
	}
	if v.Version == expiringOffsetVersion {
		r.Offset.ExpireTimestampMs = v.ExpireTimestamp
	}
	return r, nil
}

func decodeGroup(key, value []byte) (Record, error) {
	var k kmsg.GroupMetadataKey
	if err := k.ReadFrom(key); err != nil {
		return Record{}, fmt.Errorf("key of a group's metadata: %w", err)
	}
	r := Record{Type: TypeGroupMetadata, Group: k.Group}
	if value == nil {
		return r, nil
	}
	if err := checkVersion(value); err != nil {
		return Record{}, fmt.Errorf("metadata of group %q: %w", k.Group, err)
	}
	v := kmsg.NewGroupMetadataValue()
	if err := v.ReadFrom(value); err != nil {
		return Record{}, fmt.Errorf("metadata of group %q: %w", k.Group, err)
	}
	for i := range v.Members {
		v.Members[i].Subscription = bytes.Clone(v.Members[i].Subscription)
		v.Members[i].Assignment = bytes.Clone(v.Members[i].Assignment)
	}
	r.Metadata = &v
	return r, nil
}

// checkVersion refuses values of a version that did not exist when this was written: what they mean is unknown.
func checkVersion(value []byte) error {
	if len(value) < 2 {
		return errors.New("value is shorter than its version")
	}
	if v := int16(binary.BigEndian.Uint16(value)); v < 0 || v > newestValueVersion {
		return fmt.Errorf("unknown value version %d", v)
	}
	return nil
}
