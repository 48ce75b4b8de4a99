package contract

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

// Batches makes a segment of real record batches, one record each, so that it can be read with coldread as well.
func Batches(t testing.TB, topic uuid.UUID, base int64, batches, recordBytes int) (*objectstore.SegmentMetadata, *objectstore.SegmentData, []byte) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(base), uint64(batches)))
	codecs := recordbatch.NewCodecs()
	var log, offsets, times []byte
	since := 0
	for i := range batches {
		options := recordbatch.NewOptions()
		options.BaseOffset, options.LeaderEpoch = base+int64(i), 5
		b := recordbatch.NewBuilder(codecs, options)
		value := make([]byte, recordBytes)
		for k := 0; k+8 <= recordBytes; k += 8 {
			binary.LittleEndian.PutUint64(value[k:], random.Uint64())
		}
		b.Append(options.BaseOffset*1000, nil, value)
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if since >= 4096 {
			offsets = binary.BigEndian.AppendUint32(offsets, uint32(i))
			offsets = binary.BigEndian.AppendUint32(offsets, uint32(len(log)))
			times = binary.BigEndian.AppendUint64(times, uint64(options.BaseOffset-1)*1000)
			times = binary.BigEndian.AppendUint32(times, uint32(i-1))
			since = 0
		}
		since += len(batch)
		log = append(log, batch...)
	}
	m := &objectstore.SegmentMetadata{
		TopicID: topic, Topic: "orders", ID: uuid.Random(), BaseOffset: base, EndOffset: base + int64(batches) - 1,
		MaxTimestampMs: (base + int64(batches) - 1) * 1000, SizeBytes: int64(len(log)),
		LeaderEpochs: []objectstore.EpochStart{{Epoch: 5, StartOffset: 0}}, TxnIndexEmpty: true,
	}
	d := &objectstore.SegmentData{
		Log: bytes.NewReader(log), CRC32C: segmentobject.Checksum(log), HasCRC: true,
		Indexes: objectstore.Indexes{Offset: offsets, Time: times, LeaderEpochs: m.LeaderEpochs},
	}
	return m, d, log
}
