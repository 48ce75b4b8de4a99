package kraftlog

import (
	"encoding/binary"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/recordbatch"

	"chancery/controllerd/internal/metalog"
)

// noOp stands for a record that Kafka does not know: the offsets must stay.
var noOp = metarecord.Encode(&metarecord.NoOpRecord{})

// readable gives a record's frame as Kafka's tools can read it.
func readable(frame []byte) []byte {
	t, err := metarecord.FrameType(frame)
	if err != nil || t.Own() {
		return noOp
	}
	if t == metarecord.FeatureLevel {
		if r, err := metarecord.Decode(frame); err != nil || !hasPlace(r) {
			return noOp
		}
	}
	return frame
}

// hasPlace says whether Kafka's own log has a record like this one: not one of a type of ours, and not the level of
// kraft.version, which Kafka keeps in control records.
func hasPlace(r metarecord.Record) bool {
	f, ok := r.(*metarecord.FeatureLevelRecord)
	return !r.RecordType().Own() && (!ok || f.Name != "kraft.version")
}

// kafkaBatch is a batch of the log in Kafka's form.
func kafkaBatch(b *metalog.Batch) ([]byte, error) {
	o := recordbatch.NewOptions()
	o.BaseOffset, o.LeaderEpoch = b.BaseOffset, b.Epoch
	builder := recordbatch.NewBuilder(nil, o)
	for _, frame := range b.Records {
		builder.Append(b.TimestampMs, nil, readable(frame))
	}
	return builder.Build()
}

// The control records of a snapshot are flexible messages without a version in front: a field with the record's version, its
// other fields, and no tagged ones.

func snapshotHeader(lastTimestampMs int64) []byte {
	b := binary.BigEndian.AppendUint64([]byte{0, 0}, uint64(lastTimestampMs))
	return append(b, 0)
}

func snapshotFooter() []byte { return []byte{0, 0, 0} }

// controlBatch is a batch of one control record of a snapshot.
func controlBatch(offset int64, epoch int32, timestampMs int64, kind recordbatch.ControlType, value []byte) ([]byte, error) {
	o := recordbatch.NewOptions()
	o.BaseOffset, o.LeaderEpoch, o.Control = offset, epoch, true
	builder := recordbatch.NewBuilder(nil, o)
	builder.Append(timestampMs, recordbatch.ControlKey(kind), value)
	return builder.Build()
}
