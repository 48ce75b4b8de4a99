package metalog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrCorrupt says that bytes are no batch, or no chunk of a snapshot.
var ErrCorrupt = errors.New("corrupt batch of the metadata log")

// Batch is records that were appended together.
type Batch struct {
	BaseOffset int64
	// Epoch is that of the claim under which it was appended.
	Epoch       int32
	TimestampMs int64
	// Records are Kafka's frames; there is at least one.
	Records [][]byte
}

// EndOffset is the offset after the last record.
func (b *Batch) EndOffset() int64 { return b.BaseOffset + int64(len(b.Records)) }

// The stored form of a batch:
//
//	byte     magic, 1
//	uint32   CRC32C of all that follows
//	int64    base offset
//	int32    epoch
//	int64    timestamp in ms
//	uint32   number of records
//	records  each an unsigned varint of its length, then the frame
const (
	batchMagic       = 1
	batchHeaderBytes = 1 + 4 + 8 + 4 + 8 + 4
	crcEnd           = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode gives the stored form.
func (b *Batch) Encode() []byte {
	size := batchHeaderBytes
	for _, r := range b.Records {
		size += binary.MaxVarintLen32 + len(r)
	}
	out := make([]byte, crcEnd, size)
	out[0] = batchMagic
	out = binary.BigEndian.AppendUint64(out, uint64(b.BaseOffset))
	out = binary.BigEndian.AppendUint32(out, uint32(b.Epoch))
	out = binary.BigEndian.AppendUint64(out, uint64(b.TimestampMs))
	out = binary.BigEndian.AppendUint32(out, uint32(len(b.Records)))
	for _, r := range b.Records {
		out = AppendRecord(out, r)
	}
	binary.BigEndian.PutUint32(out[1:], crc32.Checksum(out[crcEnd:], castagnoli))
	return out
}

// DecodeBatch reads the stored form. The records share the bytes' memory.
func DecodeBatch(data []byte) (*Batch, error) {
	if len(data) < batchHeaderBytes || data[0] != batchMagic {
		return nil, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	if binary.BigEndian.Uint32(data[1:]) != crc32.Checksum(data[crcEnd:], castagnoli) {
		return nil, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	b := &Batch{
		BaseOffset:  int64(binary.BigEndian.Uint64(data[5:])),
		Epoch:       int32(binary.BigEndian.Uint32(data[13:])),
		TimestampMs: int64(binary.BigEndian.Uint64(data[17:])),
	}
	count := binary.BigEndian.Uint32(data[25:])
	records, err := SplitRecords(data[batchHeaderBytes:])
	if err != nil {
		return nil, err
	}
	if len(records) == 0 || uint32(len(records)) != count {
		return nil, fmt.Errorf("%w: %d records, want %d", ErrCorrupt, len(records), count)
	}
	b.Records = records
	return b, nil
}

// AppendRecord adds a record with its length before it.
func AppendRecord(dst, record []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(record)))
	return append(dst, record...)
}

// SplitRecords reads records that AppendRecord wrote. They share the bytes' memory.
func SplitRecords(data []byte) ([][]byte, error) {
	var records [][]byte
	for len(data) > 0 {
		n, used := binary.Uvarint(data)
		if used <= 0 || n > uint64(len(data)-used) {
			return nil, fmt.Errorf("%w: record beyond the end", ErrCorrupt)
		}
		data = data[used:]
		records = append(records, data[:n:n])
		data = data[n:]
	}
	return records, nil
}
