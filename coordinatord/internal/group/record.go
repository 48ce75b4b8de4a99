package group

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/recordbatch"
	"chancery/services/statemachine"
)

// noProducer is the producer id of a record outside transactions.
const noProducer int64 = -1

// kind is what a record is about.
type kind int8

const (
	offsetRecord kind = iota + 1
	groupRecord
	// transactionRecord is a marker that ends a transaction.
	transactionRecord
	// consumerRecord is one of a consumer group.
	consumerRecord
)

// Record is one record of the shard's log, with what the machine has to remember until it is settled.
type Record struct {
	kind    kind
	groupID string

	// key and offset belong to offset records; a nil offset deletes. The producer is that of a commit in a transaction, or of
	// the transaction that a marker ends; replaced is the transaction's earlier offset for the key, wasOpen whether the transaction was
	// open before the record.
	key           offsets.Key
	offset        *offsets.Value
	replaced      *offsets.Value
	producerID    int64
	producerEpoch int16
	wasOpen       bool

	// metadata belongs to group records; nil deletes.
	metadata *kmsg.GroupMetadataValue

	// marker belongs to markers, with the transaction that it ends once it has been applied.
	marker recordbatch.EndTxnMarker
	ending *offsets.Ending

	// consumer belongs to records of consumer groups, undo takes one back that was applied and is not durable.
	consumer *grouprecord.Consumer
	undo     func()

	// group is the group that the record was decided for; nil for a replayed record.
	group anyGroup
	// settled is what follows when the outcome is known; nil when nothing does.
	settled *settlement
}

// Codec is the codec of a shard's records.
type Codec struct{}

// Encode appends the key and the value of a record.
func (Codec) Encode(dst []byte, r *Record) (out []byte, valueAt int, hasValue bool) {
	switch r.kind {
	case transactionRecord:
		dst = append(dst, recordbatch.ControlKey(r.marker.Type)...)
		valueAt = len(dst)
		return append(dst, r.marker.Value()...), valueAt, true
	case offsetRecord:
		dst = grouprecord.AppendOffsetKey(dst, r.groupID, r.key.Topic, r.key.Partition)
		valueAt = len(dst)
		if r.offset == nil {
			return dst, valueAt, false
		}
		return grouprecord.AppendOffsetValue(dst, &r.offset.Offset), valueAt, true
	case consumerRecord:
		dst = grouprecord.AppendConsumerKey(dst, r.consumer)
		valueAt = len(dst)
		dst, hasValue = grouprecord.AppendConsumerValue(dst, r.consumer)
		return dst, valueAt, hasValue
	default:
		dst = grouprecord.AppendGroupKey(dst, r.groupID)
		valueAt = len(dst)
		if r.metadata == nil {
			return dst, valueAt, false
		}
		return grouprecord.AppendGroupValue(dst, r.metadata), valueAt, true
	}
}

// Decode reads a record of the log. Records of other kinds of groups are skipped.
func (Codec) Decode(batch recordbatch.Header, record *recordbatch.Record) (*Record, bool, error) {
	if batch.IsControl() {
		return decodeMarker(batch, record)
	}
	decoded, err := grouprecord.Decode(record.Key, record.Value)
	if errors.Is(err, grouprecord.ErrUnknownType) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("record at offset %d: %w", record.Offset, err)
	}
	r := &Record{groupID: decoded.Group, producerID: noProducer}
	if decoded.Consumer != nil {
		r.kind, r.consumer = consumerRecord, decoded.Consumer
		return r, true, nil
	}
	if decoded.Type == grouprecord.TypeGroupMetadata {
		r.kind, r.metadata = groupRecord, decoded.Metadata
		return r, true, nil
	}
	r.kind, r.key = offsetRecord, offsets.Key{Topic: decoded.Topic, Partition: decoded.Partition}
	if batch.IsTransactional() {
		r.producerID, r.producerEpoch = batch.ProducerID(), batch.ProducerEpoch()
	}
	if decoded.Offset != nil {
		r.offset = &offsets.Value{Offset: *decoded.Offset, RecordOffset: record.Offset}
	}
	return r, true, nil
}

// decodeMarker reads the marker of a transaction. Other control records are skipped.
func decodeMarker(batch recordbatch.Header, record *recordbatch.Record) (*Record, bool, error) {
	kind, err := recordbatch.ControlTypeOf(record.Key)
	if err != nil || kind != recordbatch.Commit && kind != recordbatch.Abort {
		return nil, false, err
	}
	marker, err := recordbatch.ParseEndTxnMarker(record)
	r := &Record{kind: transactionRecord, producerID: batch.ProducerID(), producerEpoch: batch.ProducerEpoch(), marker: marker}
	return r, err == nil, err
}

// Frame makes the offsets of a transaction, and the marker that ends it, part of the transaction in the log.
func (Codec) Frame(r *Record) statemachine.Frame {
	if r.producerID == noProducer {
		return statemachine.PlainFrame()
	}
	return statemachine.Frame{ProducerID: r.producerID, ProducerEpoch: r.producerEpoch, Control: r.kind == transactionRecord}
}

// offsetTombstone deletes a committed offset.
func offsetTombstone(g anyGroup, k offsets.Key) *Record {
	return &Record{kind: offsetRecord, groupID: g.groupID(), key: k, producerID: noProducer, group: g}
}

// groupTombstone deletes a classic group.
func groupTombstone(g *Group) *Record {
	return &Record{kind: groupRecord, groupID: g.id, producerID: noProducer, group: g}
}
