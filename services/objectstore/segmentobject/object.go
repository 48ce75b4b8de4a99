// Package segmentobject is the format of a segment in an object store, version 1, with the keys of the objects and the
// custom metadata that finds them again.
//
// It owns those bytes: what an object is made of, every checksum in it, what a key says. It is pure, and must never know a
// store, a file or a clock.
//
// # An object
//
//	log       the bytes of the .log file as they are, so that a range of the object is a range of the log
//	sections  the indexes, one behind the other
//	table     16-byte entries: kind uint16, zero uint16, length uint32, CRC-32C uint32, zero uint32. Sections come in the
//	          order of the table, without gaps, from the end of the log to the table
//	footer    64 bytes, see below
//
// All numbers are big-endian. Log and sections without the log are called the tail; a reader gets it with one request, since
// the metadata of the segment says how long it is. The footer:
//
//	 0  magic            8 bytes   "CHSEGMNT"
//	 8  version          uint16    1
//	10  table entries    uint16
//	12  block size       uint32    bytes of the log that have a CRC together
//	16  log length       uint64
//	24  tail length      uint64    the footer included
//	32  segment CRC      uint32    CRC-32C of the log
//	36  table CRC        uint32
//	40  segment id       16 bytes
//	56  zero             uint32
//	60  footer CRC       uint32    CRC-32C of the 60 bytes before
//
// A reader of version 1 refuses other versions, and skips sections of kinds that it does not know, so that a kind may be
// added without a new version.
package segmentobject

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

const (
	magic      = "CHSEGMNT"
	version    = 1
	entryBytes = 16
	epochBytes = 12
)

// FooterBytes is the length of the footer.
const FooterBytes = 64

// The kinds of sections.
const (
	kindOffsetIndex      = 1
	kindTimeIndex        = 2
	kindProducerSnapshot = 3
	kindTransactionIndex = 4
	kindLeaderEpochs     = 5
	kindBlockCRCs        = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC-32C of bytes.
func Checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Summer computes the checksums of a log from its bytes in order: of each block and of the whole.
type Summer struct {
	blocks  []uint32
	inBlock int
	block   uint32
	whole   uint32
}

// Write takes the next bytes of the log; it never fails.
func (s *Summer) Write(p []byte) (int, error) {
	n := len(p)
	s.whole = crc32.Update(s.whole, castagnoli, p)
	for len(p) > 0 {
		k := min(len(p), objectstore.BlockBytes-s.inBlock)
		s.block = crc32.Update(s.block, castagnoli, p[:k])
		s.inBlock += k
		p = p[k:]
		if s.inBlock == objectstore.BlockBytes {
			s.blocks = append(s.blocks, s.block)
			s.inBlock, s.block = 0, 0
		}
	}
	return n, nil
}

// Sums are the checksums of each block, and of all that was written.
func (s *Summer) Sums() (blocks []uint32, whole uint32) {
	blocks = s.blocks[:len(s.blocks):len(s.blocks)]
	if s.inBlock > 0 {
		blocks = append(blocks, s.block)
	}
	return blocks, s.whole
}

// Blocks is how many blocks a log of a length has.
func Blocks(logBytes int64) int64 {
	return (logBytes + objectstore.BlockBytes - 1) / objectstore.BlockBytes
}

// EncodeTail makes what follows the log in an object.
func EncodeTail(id uuid.UUID, logBytes int64, x *objectstore.Indexes) ([]byte, error) {
	if logBytes < 0 || Blocks(logBytes) != int64(len(x.BlockCRCs)) {
		return nil, fmt.Errorf("%d block checksums for a log of %d bytes, want %d", len(x.BlockCRCs), logBytes, Blocks(logBytes))
	}
	sections := [...]struct {
		kind uint16
		data []byte
	}{
		{kindOffsetIndex, x.Offset},
		{kindTimeIndex, x.Time},
		{kindProducerSnapshot, x.ProducerSnapshot},
		{kindTransactionIndex, x.Transaction},
		{kindLeaderEpochs, encodeEpochs(x.LeaderEpochs)},
		{kindBlockCRCs, encodeCRCs(x.BlockCRCs)},
	}
	size := FooterBytes + len(sections)*entryBytes
	for _, s := range sections {
		size += len(s.data)
	}
	out := make([]byte, 0, size)
	table := make([]byte, 0, len(sections)*entryBytes)
	for _, s := range sections {
		if uint64(len(s.data)) > 1<<32-1 {
			return nil, fmt.Errorf("section %d has %d bytes, which is too much", s.kind, len(s.data))
		}
		out = append(out, s.data...)
		table = binary.BigEndian.AppendUint16(table, s.kind)
		table = binary.BigEndian.AppendUint16(table, 0)
		table = binary.BigEndian.AppendUint32(table, uint32(len(s.data)))
		table = binary.BigEndian.AppendUint32(table, Checksum(s.data))
		table = binary.BigEndian.AppendUint32(table, 0)
	}
	out = append(out, table...)
	footer := len(out)
	out = append(out, magic...)
	out = binary.BigEndian.AppendUint16(out, version)
	out = binary.BigEndian.AppendUint16(out, uint16(len(sections)))
	out = binary.BigEndian.AppendUint32(out, objectstore.BlockBytes)
	out = binary.BigEndian.AppendUint64(out, uint64(logBytes))
	out = binary.BigEndian.AppendUint64(out, uint64(size))
	out = binary.BigEndian.AppendUint32(out, x.SegmentCRC)
	out = binary.BigEndian.AppendUint32(out, Checksum(table))
	out = append(out, id[:]...)
	out = binary.BigEndian.AppendUint32(out, 0)
	out = binary.BigEndian.AppendUint32(out, Checksum(out[footer:]))
	return out, nil
}

// footer is a footer that has been checked.
type footer struct {
	entries    int
	logBytes   int64
	tailBytes  int64
	segmentCRC uint32
	tableCRC   uint32
	id         uuid.UUID
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", objectstore.ErrCorrupt, fmt.Sprintf(format, args...))
}

func decodeFooter(b []byte) (footer, error) {
	var f footer
	if string(b[:8]) != magic {
		return f, corrupt("the object does not end as a segment")
	}
	if got, want := Checksum(b[:60]), binary.BigEndian.Uint32(b[60:]); got != want {
		return f, corrupt("the footer's checksum is %08x, want %08x", got, want)
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != version {
		return f, corrupt("object format %d, this program knows %d", v, version)
	}
	if n := binary.BigEndian.Uint32(b[12:]); n != objectstore.BlockBytes {
		return f, corrupt("blocks of %d bytes, want %d", n, objectstore.BlockBytes)
	}
	f.entries = int(binary.BigEndian.Uint16(b[10:]))
	f.logBytes = int64(binary.BigEndian.Uint64(b[16:]))
	f.tailBytes = int64(binary.BigEndian.Uint64(b[24:]))
	f.segmentCRC = binary.BigEndian.Uint32(b[32:])
	f.tableCRC = binary.BigEndian.Uint32(b[36:])
	copy(f.id[:], b[40:])
	return f, nil
}

// DecodeTail reads what follows the log in the object of a segment, and checks all of it. The result refers to the bytes
// of tail. Errors are objectstore.ErrCorrupt.
func DecodeTail(id uuid.UUID, logBytes int64, tail []byte) (*objectstore.Indexes, error) {
	if len(tail) < FooterBytes {
		return nil, corrupt("%d bytes behind the log are no footer", len(tail))
	}
	at := len(tail) - FooterBytes
	f, err := decodeFooter(tail[at:])
	if err != nil {
		return nil, err
	}
	if f.id != id || f.logBytes != logBytes || f.tailBytes != int64(len(tail)) {
		return nil, corrupt("the object is of segment %s with %d bytes and %d behind it, want segment %s with %d and %d",
			f.id, f.logBytes, f.tailBytes, id, logBytes, len(tail))
	}
	if f.entries*entryBytes > at {
		return nil, corrupt("a table of %d sections does not fit", f.entries)
	}
	at -= f.entries * entryBytes
	table := tail[at : len(tail)-FooterBytes]
	if got := Checksum(table); got != f.tableCRC {
		return nil, corrupt("the table's checksum is %08x, want %08x", got, f.tableCRC)
	}
	x := &objectstore.Indexes{SegmentCRC: f.segmentCRC}
	rest := tail[:at]
	for ; len(table) > 0; table = table[entryBytes:] {
		kind, n := binary.BigEndian.Uint16(table), uint64(binary.BigEndian.Uint32(table[4:]))
		if n > uint64(len(rest)) {
			return nil, corrupt("section %d of %d bytes does not fit", kind, n)
		}
		section := rest[:n:n]
		rest = rest[n:]
		if got, want := Checksum(section), binary.BigEndian.Uint32(table[8:]); got != want {
			return nil, corrupt("the checksum of section %d is %08x, want %08x", kind, got, want)
		}
		if err := addSection(x, kind, section); err != nil {
			return nil, err
		}
	}
	if len(rest) > 0 {
		return nil, corrupt("%d bytes of no section", len(rest))
	}
	if int64(len(x.BlockCRCs)) != Blocks(logBytes) {
		return nil, corrupt("%d block checksums for a log of %d bytes", len(x.BlockCRCs), logBytes)
	}
	return x, nil
}

func addSection(x *objectstore.Indexes, kind uint16, section []byte) error {
	whole := func(entry int) error {
		if len(section)%entry != 0 {
			return corrupt("section %d of %d bytes has no whole entries", kind, len(section))
		}
		return nil
	}
	switch kind {
	case kindOffsetIndex:
		x.Offset = section
		return whole(8)
	case kindTimeIndex:
		x.Time = section
		return whole(12)
	case kindProducerSnapshot:
		x.ProducerSnapshot = section
	case kindTransactionIndex:
		x.Transaction = section
		return whole(34)
	case kindLeaderEpochs:
		if err := whole(epochBytes); err != nil {
			return err
		}
		x.LeaderEpochs = decodeEpochs(section)
	case kindBlockCRCs:
		if err := whole(4); err != nil {
			return err
		}
		x.BlockCRCs = decodeCRCs(section)
	}
	return nil
}

func encodeEpochs(epochs []objectstore.EpochStart) []byte {
	out := make([]byte, 0, len(epochs)*epochBytes)
	for _, e := range epochs {
		out = binary.BigEndian.AppendUint32(out, uint32(e.Epoch))
		out = binary.BigEndian.AppendUint64(out, uint64(e.StartOffset))
	}
	return out
}

func decodeEpochs(b []byte) []objectstore.EpochStart {
	out := make([]objectstore.EpochStart, 0, len(b)/epochBytes)
	for ; len(b) > 0; b = b[epochBytes:] {
		out = append(out, objectstore.EpochStart{
			Epoch:       int32(binary.BigEndian.Uint32(b)),
			StartOffset: int64(binary.BigEndian.Uint64(b[4:])),
		})
	}
	return out
}

func encodeCRCs(crcs []uint32) []byte {
	out := make([]byte, 0, len(crcs)*4)
	for _, c := range crcs {
		out = binary.BigEndian.AppendUint32(out, c)
	}
	return out
}

func decodeCRCs(b []byte) []uint32 {
	out := make([]uint32, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		out = append(out, binary.BigEndian.Uint32(b))
	}
	return out
}
