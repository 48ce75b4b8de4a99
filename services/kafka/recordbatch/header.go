// Package recordbatch is Kafka's record batch, format 2: reading it, checking it as a leader does, building it.
//
// It owns the bytes of the format: the 61-byte header, the records, control records, the compression of both, and the
// rules of what a leader accepts. It must never read a clock or a file, know a partition's state (offsets, producers), or
// change bytes that it was given: what has to change goes into a copy of the header.
package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"

	"google.golang.org/grpc/mem"
)

// Where the fields of a batch begin. All numbers are big-endian.
//
//	 0 base offset            int64   offset of the first record
//	 8 length                 int32   bytes after this field
//	12 partition leader epoch int32   stamped by the leader, outside the CRC
//	16 magic                  int8    2
//	17 CRC                    uint32  CRC-32C of everything from the attributes to the end
//	21 attributes             int16   see the attribute constants
//	23 last offset delta      int32   offset of the last record minus the base offset
//	27 base timestamp         int64   of the first record, or the delete horizon
//	35 max timestamp          int64
//	43 producer id            int64   -1 without idempotence
//	51 producer epoch         int16
//	53 base sequence          int32
//	57 records                int32   how many follow; fewer than the offsets tell after compaction
//	61 the records, compressed as a whole
const (
	offsetLength          = 8
	offsetLeaderEpoch     = 12
	offsetMagic           = 16
	offsetCRC             = 17
	offsetAttributes      = 21
	offsetLastOffsetDelta = 23
	offsetBaseTimestamp   = 27
	offsetMaxTimestamp    = 35
	offsetProducerID      = 43
	offsetProducerEpoch   = 51
	offsetBaseSequence    = 53
	offsetCount           = 57

	// HeaderSize is the size of a batch without records.
	HeaderSize = 61
	// LogOverhead is the part before the bytes that the length field counts.
	LogOverhead = 12
	// minPrefix is what must be there before the magic can be read.
	minPrefix = 17
	// minRecordOverhead is the least length that any message format allows.
	minRecordOverhead = 14
)

// Magic is the only message format that this package reads and writes.
const Magic int8 = 2

// The values that stand for "none" in a header.
const (
	NoTimestamp     int64 = -1
	NoProducerID    int64 = -1
	NoProducerEpoch int16 = -1
	NoSequence      int32 = -1
	NoLeaderEpoch   int32 = -1
)

// The bits of the attributes above the compression's three.
const (
	attributeCompression   = 0x07
	attributeLogAppendTime = 0x08
	attributeTransactional = 0x10
	attributeControl       = 0x20
	attributeDeleteHorizon = 0x40
)

// castagnoli is the table of CRC-32C; the standard library keeps one and gives it out.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TimestampType says whose clock a batch's timestamps come from, with Kafka's numbers.
type TimestampType int8

// The timestamp types of message.timestamp.type.
const (
	CreateTime    TimestampType = 0
	LogAppendTime TimestampType = 1
)

// String is the name as in message.timestamp.type.
func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

// Header is a view of the first 61 bytes of a batch: no copy. It must be at least HeaderSize long; the setters write
// through, so they are only for bytes that the caller owns.
type Header []byte

// BaseOffset is the offset of the first record.
func (h Header) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(h)) }

// LastOffset is the offset of the last record that the batch had when it was written.
func (h Header) LastOffset() int64 { return h.BaseOffset() + int64(h.LastOffsetDelta()) }

// NextOffset is the offset after the batch.
func (h Header) NextOffset() int64 { return h.LastOffset() + 1 }

// Size is the size of the whole batch, header included.
func (h Header) Size() int {
	return LogOverhead + int(int32(binary.BigEndian.Uint32(h[offsetLength:])))
}

// LeaderEpoch is the epoch of the leader that appended the batch.
func (h Header) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(h[offsetLeaderEpoch:])) }

// Magic is the message format.
func (h Header) Magic() int8 { return int8(h[offsetMagic]) }

// CRC is the checksum that the batch carries.
func (h Header) CRC() uint32 { return binary.BigEndian.Uint32(h[offsetCRC:]) }

// Attributes are the raw attribute bits.
func (h Header) Attributes() int16 { return int16(binary.BigEndian.Uint16(h[offsetAttributes:])) }

// Compression is the codec of the records; it may be one that does not exist.
func (h Header) Compression() Compression {
	return Compression(h.Attributes() & attributeCompression)
}

// TimestampType says whether the timestamps are the producer's or the broker's.
func (h Header) TimestampType() TimestampType {
	if h.Attributes()&attributeLogAppendTime != 0 {
		return LogAppendTime
	}
	return CreateTime
}

// IsTransactional says that the batch belongs to a transaction.
func (h Header) IsTransactional() bool { return h.Attributes()&attributeTransactional != 0 }

// IsControl says that the records are control records, which no application sees.
func (h Header) IsControl() bool { return h.Attributes()&attributeControl != 0 }

// DeleteHorizon is the time in ms after which the cleaner may drop the batch's tombstones; false when none is set.
func (h Header) DeleteHorizon() (int64, bool) {
	if h.Attributes()&attributeDeleteHorizon == 0 {
		return 0, false
	}
	return h.BaseTimestamp(), true
}

// LastOffsetDelta is the last offset relative to the base offset.
func (h Header) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(h[offsetLastOffsetDelta:]))
}

// BaseTimestamp is what the records' timestamp deltas count from.
func (h Header) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(h[offsetBaseTimestamp:])) }

// MaxTimestamp is the largest timestamp of the records, or the time of the append.
func (h Header) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(h[offsetMaxTimestamp:])) }

// ProducerID is the idempotent producer's id.
func (h Header) ProducerID() int64 { return int64(binary.BigEndian.Uint64(h[offsetProducerID:])) }

// HasProducerID says that an idempotent or transactional producer made the batch.
func (h Header) HasProducerID() bool { return h.ProducerID() > NoProducerID }

// ProducerEpoch is the epoch of the producer id.
func (h Header) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(h[offsetProducerEpoch:])) }

// BaseSequence is the sequence number of the first record.
func (h Header) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(h[offsetBaseSequence:])) }

// LastSequence is the sequence number of the last record.
func (h Header) LastSequence() int32 {
	if h.BaseSequence() == NoSequence {
		return NoSequence
	}
	return IncrementSequence(h.BaseSequence(), h.LastOffsetDelta())
}

// Count is how many records the batch says it has.
func (h Header) Count() int32 { return int32(binary.BigEndian.Uint32(h[offsetCount:])) }

// SetBaseOffset stamps the base offset; the CRC does not cover it.
func (h Header) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(h, uint64(offset)) }

// SetLeaderEpoch stamps the leader epoch; the CRC does not cover it.
func (h Header) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(h[offsetLeaderEpoch:], uint32(epoch))
}

func (h Header) setLength(size int) {
	binary.BigEndian.PutUint32(h[offsetLength:], uint32(size-LogOverhead))
}

func (h Header) setCRC(crc uint32) { binary.BigEndian.PutUint32(h[offsetCRC:], crc) }

func (h Header) setAttributes(a int16) { binary.BigEndian.PutUint16(h[offsetAttributes:], uint16(a)) }

func (h Header) setMaxTimestamp(ms int64) {
	binary.BigEndian.PutUint64(h[offsetMaxTimestamp:], uint64(ms))
}

func (h Header) setBaseTimestamp(ms int64) {
	binary.BigEndian.PutUint64(h[offsetBaseTimestamp:], uint64(ms))
}

func (h Header) setLastOffsetDelta(d int32) {
	binary.BigEndian.PutUint32(h[offsetLastOffsetDelta:], uint32(d))
}

func (h Header) setCount(n int32) { binary.BigEndian.PutUint32(h[offsetCount:], uint32(n)) }

func (h Header) setProducer(id int64, epoch int16, sequence int32) {
	binary.BigEndian.PutUint64(h[offsetProducerID:], uint64(id))
	binary.BigEndian.PutUint16(h[offsetProducerEpoch:], uint16(epoch))
	binary.BigEndian.PutUint32(h[offsetBaseSequence:], uint32(sequence))
}

// String describes the batch for logs.
func (h Header) String() string {
	return fmt.Sprintf("batch offsets [%d, %d] epoch %d producer %d/%d sequence %d %s records %d size %d",
		h.BaseOffset(), h.LastOffset(), h.LeaderEpoch(), h.ProducerID(), h.ProducerEpoch(), h.BaseSequence(),
		h.Compression(), h.Count(), h.Size())
}

// checksum is the CRC of the header's own part; the records continue it.
func (h Header) checksum() uint32 { return crc32.Update(0, castagnoli, h[offsetAttributes:HeaderSize]) }

// ComputeCRC computes the checksum of a whole batch in one piece, which must be exactly as long as its header says.
func ComputeCRC(batch []byte) uint32 { return crc32.Update(0, castagnoli, batch[offsetAttributes:]) }

// CheckCRC says whether a whole batch in one piece is as its producer made it. It is false for a batch that is too
// short to be one, or not exactly as long as its header says.
func CheckCRC(batch []byte) bool {
	return len(batch) >= HeaderSize && Header(batch).Size() == len(batch) && Header(batch).CRC() == ComputeCRC(batch)
}

// continueCRC goes on with a checksum over n bytes of the buffers from offset at on.
func continueCRC(crc uint32, b mem.BufferSlice, at, n int) uint32 {
	for _, buf := range b {
		if n == 0 {
			break
		}
		p := buf.ReadOnlyData()
		if at >= len(p) {
			at -= len(p)
			continue
		}
		p = p[at:]
		at = 0
		if len(p) > n {
			p = p[:n]
		}
		crc = crc32.Update(crc, castagnoli, p)
		n -= len(p)
	}
	return crc
}

// IncrementSequence adds to a sequence number, which goes on with 0 after the largest int32.
func IncrementSequence(sequence, n int32) int32 {
	return int32((int64(sequence) + int64(n)) & 0x7fffffff)
}

// DecrementSequence takes n from a sequence number, with the same wrap.
func DecrementSequence(sequence, n int32) int32 {
	return int32((int64(sequence) - int64(n)) & 0x7fffffff)
}

// Compression is the codec of a batch's records, with Kafka's numbers.
type Compression int8

// The codecs.
const (
	None   Compression = 0
	Gzip   Compression = 1
	Snappy Compression = 2
	LZ4    Compression = 3
	Zstd   Compression = 4
)

// String is the codec's name in Kafka's configs ("none" for no compression).
func (c Compression) String() string {
	names := [...]string{"none", "gzip", "snappy", "lz4", "zstd"}
	if c < 0 || int(c) >= len(names) {
		return "compression " + strconv.Itoa(int(c))
	}
	return names[c]
}

// Known says whether there is such a codec.
func (c Compression) Known() bool { return c >= None && c <= Zstd }
