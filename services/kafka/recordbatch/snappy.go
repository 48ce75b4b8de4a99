package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
)

// Kafka's Java clients wrap snappy blocks in the framing of xerial's library: a header of magic, version and least
// compatible version, then each block behind its length in four big-endian bytes. Other clients send one bare block.
// Both are accepted; what this package writes has the framing.
const (
	xerialMagic      = "\x82SNAPPY\x00"
	xerialHeaderSize = 16
	xerialBlockSize  = 32 << 10
	xerialVersion    = 1
)

// snappyExpansion is more than a snappy block can grow: a copy of three bytes gives at most 64. A block that claims more
// is broken, whatever follows, and nothing is allocated for it.
const snappyExpansion = 22

var errSnappy = errors.New("not a valid snappy stream")

// snappyReader decompresses either framing, block by block.
type snappyReader struct {
	rest   []byte
	framed bool
	done   bool
	block  []byte
}

func (s *snappyReader) reset(src []byte) error {
	s.done = false
	s.framed = bytes.HasPrefix(src, []byte(xerialMagic))
	s.rest = src
	if s.framed {
		return s.takeHeader()
	}
	return nil
}

func (s *snappyReader) takeHeader() error {
	if len(s.rest) < xerialHeaderSize {
		return errSnappy
	}
	if compatible := binary.BigEndian.Uint32(s.rest[12:]); compatible > xerialVersion {
		return errSnappy
	}
	s.rest = s.rest[xerialHeaderSize:]
	return nil
}

// next decompresses the next block. One that says it is larger than room is refused before anything is allocated.
func (s *snappyReader) next(room int64) ([]byte, error) {
	for !s.done {
		block, err := s.takeBlock()
		if err != nil || block == nil {
			return nil, err
		}
		n, err := snappy.DecodedLen(block)
		if err != nil {
			return nil, err
		}
		if int64(n) > int64(len(block))*snappyExpansion+16 {
			return nil, errSnappy
		}
		if int64(n) > room {
			return nil, errDecompressed
		}
		if cap(s.block) < n {
			s.block = make([]byte, n)
		}
		out, err := snappy.DecodeStrict(s.block[:cap(s.block)], block)
		if err != nil {
			return nil, err
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	return nil, nil
}

// takeBlock gives the next compressed block, nil at the end.
func (s *snappyReader) takeBlock() ([]byte, error) {
	if !s.framed {
		s.done = true
		return s.rest, nil
	}
	// Streams may be put one after the other: then a header stands where a block's length would.
	for bytes.HasPrefix(s.rest, []byte(xerialMagic)) {
		if err := s.takeHeader(); err != nil {
			return nil, err
		}
	}
	if len(s.rest) == 0 {
		s.done = true
		return nil, nil
	}
	if len(s.rest) < 4 {
		return nil, errSnappy
	}
	n := int64(binary.BigEndian.Uint32(s.rest))
	if n > int64(len(s.rest)-4) {
		return nil, errSnappy
	}
	block := s.rest[4 : 4+n]
	s.rest = s.rest[4+n:]
	return block, nil
}

func (s *snappyReader) release() {
	s.rest = nil
	if cap(s.block) > maxPooledBuffer {
		s.block = nil
	}
}

// snappyWriter compresses with xerial's framing.
type snappyWriter struct {
	out   *bounded
	block []byte // what is not yet compressed, up to a block
	work  []byte
	begun bool
}

func (w *snappyWriter) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), xerialBlockSize-len(w.block))
		w.block = append(w.block, p[:n]...)
		p = p[n:]
		if len(w.block) == xerialBlockSize {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *snappyWriter) flush() error {
	if !w.begun {
		w.begun = true
		head := append(make([]byte, 0, xerialHeaderSize), xerialMagic...)
		head = binary.BigEndian.AppendUint32(head, xerialVersion)
		head = binary.BigEndian.AppendUint32(head, xerialVersion)
		if err := w.out.write(head); err != nil {
			return err
		}
	}
	if len(w.block) == 0 {
		return nil
	}
	if w.work == nil {
		w.work = make([]byte, s2.MaxEncodedLen(xerialBlockSize)+4)
	}
	z := s2.EncodeSnappy(w.work[4:], w.block)
	binary.BigEndian.PutUint32(w.work, uint32(len(z)))
	w.block = w.block[:0]
	return w.out.write(w.work[:4+len(z)])
}

func (w *snappyWriter) finish() error { return w.flush() }

func (w *snappyWriter) abandon() {}
