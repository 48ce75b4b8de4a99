package recordbatch

import (
	"encoding/binary"

	"chancery/services/kafka/errcode"
)

// ControlType is the kind of a control record, with Kafka's numbers.
type ControlType int16

// The control records.
const (
	Abort          ControlType = 0
	Commit         ControlType = 1
	LeaderChange   ControlType = 2
	SnapshotHeader ControlType = 3
	SnapshotFooter ControlType = 4
	KRaftVersion   ControlType = 5
	Voters         ControlType = 6
)

// ControlKey is the key of a control record: version 0 and the type.
func ControlKey(t ControlType) []byte {
	return binary.BigEndian.AppendUint16(make([]byte, 2, 4), uint16(t))
}

// ControlTypeOf reads the key of a control record. Newer versions may have more fields, which are not read.
func ControlTypeOf(key []byte) (ControlType, error) {
	if len(key) < 4 {
		return 0, errcode.InvalidRecord.Errorf("the key of a control record has %d bytes, and needs 4", len(key))
	}
	if v := int16(binary.BigEndian.Uint16(key)); v < 0 {
		return 0, errcode.InvalidRecord.Errorf("the key of a control record has version %d", v)
	}
	return ControlType(binary.BigEndian.Uint16(key[2:])), nil
}

// EndTxnMarker ends a transaction in a partition.
type EndTxnMarker struct {
	// Type is Commit or Abort.
	Type ControlType
	// CoordinatorEpoch is the epoch of the transaction coordinator that decided.
	CoordinatorEpoch int32
}

// Value is the value of the marker's record.
func (m EndTxnMarker) Value() []byte {
	return binary.BigEndian.AppendUint32(make([]byte, 2, 6), uint32(m.CoordinatorEpoch))
}

// ParseEndTxnMarker reads a marker's record.
func ParseEndTxnMarker(r *Record) (EndTxnMarker, error) {
	t, err := ControlTypeOf(r.Key)
	if err != nil {
		return EndTxnMarker{}, err
	}
	if t != Commit && t != Abort {
		return EndTxnMarker{}, errcode.InvalidRecord.Errorf("control record of type %d does not end a transaction", t)
	}
	if len(r.Value) < 6 || int16(binary.BigEndian.Uint16(r.Value)) < 0 {
		return EndTxnMarker{}, errcode.InvalidRecord.Errorf("the value of a transaction marker is broken")
	}
	return EndTxnMarker{Type: t, CoordinatorEpoch: int32(binary.BigEndian.Uint32(r.Value[2:]))}, nil
}

// MarkerBatch is a whole batch of one transaction marker.
func MarkerBatch(producerID int64, producerEpoch int16, m EndTxnMarker, timestamp int64) []byte {
	o := NewOptions()
	o.ProducerID, o.ProducerEpoch = producerID, producerEpoch
	o.Transactional, o.Control = true, true
	b := NewBuilder(nil, o)
	b.Append(timestamp, ControlKey(m.Type), m.Value())
	out, _ := b.Build() // only codecs fail, and there is none
	return out
}
