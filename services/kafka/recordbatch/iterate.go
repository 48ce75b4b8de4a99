package recordbatch

import (
	"encoding/binary"

	"chancery/services/kafka/errcode"

	"google.golang.org/grpc/mem"
)

// Iterator goes through a run of batches, contiguous or in buffers, without copying or allocating. What it yields is
// only bounds-checked: the batch lies within the run and is long enough to have a header. Checksums are the caller's.
//
// A run may end in the middle of a batch, as a fetch's answer does; the rest is not an error, Position tells where it
// begins.
type Iterator struct {
	bytes   []byte
	buffers mem.BufferSlice
	length  int

	// piece is the buffer that holds the current batch's begin, and pieceStart where that buffer begins in the run.
	piece, pieceStart int

	position int    // of the current batch
	next     int    // of the batch after it
	view     []byte // the header where one piece holds it; else it is in scratch
	scratch  [HeaderSize]byte
	err      error
}

// Iterate begins at the first batch of a contiguous run.
func Iterate(run []byte) Iterator { return Iterator{bytes: run, length: len(run)} }

// IterateBuffers begins at the first batch of a run in buffers.
func IterateBuffers(run mem.BufferSlice) Iterator {
	if len(run) == 1 {
		b := run[0].ReadOnlyData()
		return Iterator{bytes: b, buffers: run, length: len(b)}
	}
	return Iterator{buffers: run, length: run.Len()}
}

// Next goes to the next batch and says whether there is a whole one.
func (it *Iterator) Next() bool {
	it.position = it.next
	rest := it.length - it.position
	if it.err != nil || rest < minPrefix {
		return false
	}
	it.peek(min(rest, HeaderSize))
	head := it.Header()
	length := int64(int32(binary.BigEndian.Uint32(head[offsetLength:])))
	if length < minRecordOverhead {
		it.err = errcode.CorruptMessage.Errorf("Record batch of length %d is shorter than any message can be", length)
		return false
	}
	if magic := int8(head[offsetMagic]); magic < 0 || magic > Magic {
		it.err = errcode.CorruptMessage.Errorf("Invalid magic found in record: %d", magic)
		return false
	}
	size := LogOverhead + length
	if size > int64(rest) {
		return false
	}
	if int8(head[offsetMagic]) == Magic && size < HeaderSize {
		it.err = errcode.CorruptMessage.Errorf("Record batch of %d bytes is shorter than its header of %d", size, HeaderSize)
		return false
	}
	it.next = it.position + int(size)
	return true
}

// peek finds n bytes at the position: as a view where one piece holds them, else as a copy in scratch.
func (it *Iterator) peek(n int) {
	if it.bytes != nil {
		it.view = it.bytes[it.position : it.position+n]
		return
	}
	for it.position-it.pieceStart >= it.buffers[it.piece].Len() {
		it.pieceStart += it.buffers[it.piece].Len()
		it.piece++
	}
	off := it.position - it.pieceStart
	p := it.buffers[it.piece].ReadOnlyData()
	if len(p)-off >= n {
		it.view = p[off : off+n]
		return
	}
	it.view = nil
	got := copy(it.scratch[:n], p[off:])
	for i := it.piece + 1; got < n; i++ {
		got += copy(it.scratch[got:n], it.buffers[i].ReadOnlyData())
	}
}

// Header is the header of the current batch, valid until the next call of Next. For formats below 2 only BaseOffset,
// Size and Magic mean anything, and it may be shorter than HeaderSize.
func (it *Iterator) Header() Header {
	if it.view != nil {
		return it.view
	}
	return it.scratch[:]
}

// Position is where the current batch begins in the run; after Next has returned false, where the rest begins.
func (it *Iterator) Position() int { return it.position }

// Bytes is the current batch, only for iterators over contiguous bytes.
func (it *Iterator) Bytes() []byte { return it.bytes[it.position:it.next] }

// CheckCRC says whether the current batch of format 2 is as its producer made it.
func (it *Iterator) CheckCRC() bool {
	if it.bytes != nil {
		return it.Header().CRC() == ComputeCRC(it.Bytes())
	}
	crc := it.Header().checksum()
	n := it.next - it.position - HeaderSize
	return it.Header().CRC() == continueCRC(crc, it.buffers[it.piece:], it.position-it.pieceStart+HeaderSize, n)
}

// Err is what ended the iteration before the end of the run, with code CorruptMessage; nil for a clean end and for a
// batch that is cut short.
func (it *Iterator) Err() error { return it.err }
