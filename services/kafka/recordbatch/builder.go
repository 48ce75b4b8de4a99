package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// BatchOptions is what a Builder puts into the header. The zero value is a plain uncompressed batch only with the
// producer fields set to "none": use NewOptions.
type BatchOptions struct {
	BaseOffset    int64
	LeaderEpoch   int32
	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
	Codec         Compression
	Level         int
	// AppendTimeMs, unless NoTimestamp, makes the batch's timestamps the broker's.
	AppendTimeMs int64
	// DeleteHorizonMs, unless NoTimestamp, is when the cleaner may drop the batch's tombstones.
	DeleteHorizonMs int64
}

// NewOptions is a plain uncompressed batch at offset 0.
func NewOptions() BatchOptions {
	return BatchOptions{
		LeaderEpoch: NoLeaderEpoch, ProducerID: NoProducerID, ProducerEpoch: NoProducerEpoch, BaseSequence: NoSequence,
		AppendTimeMs: NoTimestamp, DeleteHorizonMs: NoTimestamp,
	}
}

// Builder makes one batch at a time out of records. It may be used again after Reset. Not for concurrent use.
type Builder struct {
	codecs *Codecs
	opts   BatchOptions
	buf    []byte

	count         int32
	lastDelta     int32
	baseTimestamp int64
	maxTimestamp  int64
}

// NewBuilder begins a batch. codecs may be nil for uncompressed batches.
func NewBuilder(codecs *Codecs, opts BatchOptions) *Builder {
	b := &Builder{codecs: codecs}
	b.Reset(opts)
	return b
}

// Reset begins another batch and forgets the records of the last. Bytes that Build has returned stay valid.
func (b *Builder) Reset(opts BatchOptions) {
	b.opts = opts
	b.buf = append(b.buf[:0], make([]byte, HeaderSize)...)
	b.count, b.lastDelta = 0, -1
	b.baseTimestamp, b.maxTimestamp = NoTimestamp, NoTimestamp
	if opts.DeleteHorizonMs != NoTimestamp {
		b.baseTimestamp = opts.DeleteHorizonMs
	}
}

// Count is how many records the batch has so far.
func (b *Builder) Count() int { return int(b.count) }

// Size is how large the batch is so far, uncompressed.
func (b *Builder) Size() int { return len(b.buf) }

// Append adds a record at the offset after the last one's. A nil key or value is null.
func (b *Builder) Append(timestamp int64, key, value []byte, headers ...RecordHeader) {
	b.AppendAt(b.opts.BaseOffset+int64(b.lastDelta)+1, timestamp, key, value, headers...)
}

// AppendAt adds a record at an offset, which must be higher than the last one's.
func (b *Builder) AppendAt(offset, timestamp int64, key, value []byte, headers ...RecordHeader) {
	if b.count == 0 && b.opts.DeleteHorizonMs == NoTimestamp {
		b.baseTimestamp = timestamp
	}
	b.count++
	b.lastDelta = int32(offset - b.opts.BaseOffset)
	b.maxTimestamp = max(b.maxTimestamp, timestamp)
	b.buf = appendRecord(b.buf, timestamp-b.baseTimestamp, b.lastDelta, key, value, headers)
}

func appendRecord(buf []byte, timestampDelta int64, offsetDelta int32, key, value []byte, headers []RecordHeader) []byte {
	size := 1 + varintSize(timestampDelta) + varintSize(int64(offsetDelta)) + fieldSize(len(key), key == nil) +
		fieldSize(len(value), value == nil) + varintSize(int64(len(headers)))
	for i := range headers {
		size += fieldSize(len(headers[i].Key), false) + fieldSize(len(headers[i].Value), headers[i].Value == nil)
	}
	buf = binary.AppendVarint(buf, int64(size))
	buf = append(buf, 0)
	buf = binary.AppendVarint(buf, timestampDelta)
	buf = binary.AppendVarint(buf, int64(offsetDelta))
	buf = appendField(buf, key)
	buf = appendField(buf, value)
	buf = binary.AppendVarint(buf, int64(len(headers)))
	for i := range headers {
		buf = binary.AppendVarint(buf, int64(len(headers[i].Key)))
		buf = append(buf, headers[i].Key...)
		buf = appendField(buf, headers[i].Value)
	}
	return buf
}

func appendField(buf, field []byte) []byte {
	if field == nil {
		return binary.AppendVarint(buf, -1)
	}
	buf = binary.AppendVarint(buf, int64(len(field)))
	return append(buf, field...)
}

func fieldSize(n int, null bool) int {
	if null {
		return 1
	}
	return varintSize(int64(n)) + n
}

func varintSize(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for ; u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// Build ends the batch and returns it in bytes of its own. An error comes only from a codec.
func (b *Builder) Build() ([]byte, error) {
	var out []byte
	if b.opts.Codec == None {
		out = append(make([]byte, 0, len(b.buf)), b.buf...)
	} else {
		if b.codecs == nil {
			return nil, fmt.Errorf("build a batch with %s: no codecs given", b.opts.Codec)
		}
		var err error
		out, err = b.codecs.Compress(make([]byte, HeaderSize, HeaderSize+len(b.buf)), b.opts.Codec, b.opts.Level, b.buf[HeaderSize:])
		if err != nil {
			return nil, err
		}
	}
	b.writeHeader(out)
	return out, nil
}

func (b *Builder) writeHeader(out []byte) {
	h, o := Header(out), &b.opts
	h.SetBaseOffset(o.BaseOffset)
	h.setLength(len(out))
	h.SetLeaderEpoch(o.LeaderEpoch)
	h[offsetMagic] = byte(Magic)
	attributes := int16(o.Codec)
	if o.AppendTimeMs != NoTimestamp {
		attributes |= attributeLogAppendTime
		b.maxTimestamp = o.AppendTimeMs
	}
	if o.Transactional {
		attributes |= attributeTransactional
	}
	if o.Control {
		attributes |= attributeControl
	}
	if o.DeleteHorizonMs != NoTimestamp {
		attributes |= attributeDeleteHorizon
	}
	h.setAttributes(attributes)
	h.setLastOffsetDelta(b.lastDelta)
	h.setBaseTimestamp(b.baseTimestamp)
	h.setMaxTimestamp(b.maxTimestamp)
	h.setProducer(o.ProducerID, o.ProducerEpoch, o.BaseSequence)
	h.setCount(b.count)
	h.setCRC(crc32.Checksum(out[offsetAttributes:], castagnoli))
}
