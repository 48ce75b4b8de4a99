package recordbatch

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/pierrec/lz4/v4"
)

// The LZ4 frame format, as far as Kafka's own codec speaks it: independent blocks, optional checksum per block, no
// dictionary. Numbers are little-endian.
const (
	lz4Magic        = 0x184D2204
	lz4Version      = 1 << 6
	lz4Independent  = 1 << 5
	lz4BlockSum     = 1 << 4
	lz4ContentSize  = 1 << 3
	lz4ContentSum   = 1 << 2
	lz4FlagReserved = 0x03
	lz4BlockReserve = 0x8f
	lz4Uncompressed = 1 << 31

	// lz4BlockKind is what this package writes: 64 KiB, as Kafka's clients do.
	lz4BlockKind = 4
	lz4BlockSize = 64 << 10
)

// What can be wrong with an LZ4 frame.
var (
	errLZ4Short     = errors.New("the lz4 frame ends too early")
	errLZ4Header    = errors.New("not an lz4 frame that Kafka's clients read")
	errLZ4Dependent = errors.New("lz4 frames with dependent blocks are not supported")
	errLZ4Checksum  = errors.New("lz4 checksum does not match")
	errLZ4Block     = errors.New("an lz4 block is larger than its frame allows")
)

// lz4Reader decompresses one frame block by block. As Kafka's, it ignores the checksum over the content, and what
// follows the frame.
type lz4Reader struct {
	rest      []byte
	blockSums bool
	blockMax  int
	block     []byte
}

func (r *lz4Reader) reset(src []byte) error {
	r.rest = nil
	if len(src) < 7 {
		return errLZ4Short
	}
	if binary.LittleEndian.Uint32(src) != lz4Magic {
		return errLZ4Header
	}
	flags, kind := src[4], src[5]
	if flags>>6 != 1 || flags&lz4FlagReserved != 0 || kind&lz4BlockReserve != 0 || kind>>4 < 4 {
		return errLZ4Header
	}
	if flags&lz4Independent == 0 {
		return errLZ4Dependent
	}
	end := 6
	if flags&lz4ContentSize != 0 {
		end += 8
	}
	if len(src) < end+1 {
		return errLZ4Short
	}
	if src[end] != byte(xxh32(src[4:end])>>8) {
		return errLZ4Checksum
	}
	r.blockSums = flags&lz4BlockSum != 0
	r.blockMax = 1 << (8 + 2*int(kind>>4))
	r.rest = src[end+1:]
	return nil
}

// next gives the next decompressed block, nil at the end mark.
func (r *lz4Reader) next() ([]byte, error) {
	for r.rest != nil {
		if len(r.rest) < 4 {
			return nil, errLZ4Short
		}
		word := binary.LittleEndian.Uint32(r.rest)
		size := int(word &^ lz4Uncompressed)
		if size == 0 {
			r.rest = nil
			return nil, nil
		}
		if size > r.blockMax {
			return nil, errLZ4Block
		}
		body := r.rest[4:]
		if len(body) < size {
			return nil, errLZ4Short
		}
		body, r.rest = body[:size], body[size:]
		if r.blockSums {
			if len(r.rest) < 4 {
				return nil, errLZ4Short
			}
			if binary.LittleEndian.Uint32(r.rest) != xxh32(body) {
				return nil, errLZ4Checksum
			}
			r.rest = r.rest[4:]
		}
		if word&lz4Uncompressed != 0 {
			return body, nil
		}
		// No block grows more than 255 times, so a small block needs no buffer of the frame's block size.
		room := min(r.blockMax, 255*size)
		if cap(r.block) < room {
			r.block = make([]byte, room)
		}
		n, err := lz4.UncompressBlock(body, r.block[:room])
		if err != nil {
			return nil, err
		}
		if n > 0 {
			return r.block[:n], nil
		}
	}
	return nil, nil
}

func (r *lz4Reader) release() {
	r.rest = nil
	if cap(r.block) > maxPooledBuffer {
		r.block = nil
	}
}

// lz4Writer compresses into one frame of independent blocks.
type lz4Writer struct {
	codecs *Codecs
	level  int
	out    *bounded
	block  []byte
	work   []byte
	begun  bool
}

func (w *lz4Writer) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), lz4BlockSize-len(w.block))
		w.block = append(w.block, p[:n]...)
		p = p[n:]
		if len(w.block) == lz4BlockSize {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *lz4Writer) begin() error {
	if w.begun {
		return nil
	}
	w.begun = true
	head := binary.LittleEndian.AppendUint32(make([]byte, 0, 7), lz4Magic)
	head = append(head, lz4Version|lz4Independent, lz4BlockKind<<4)
	return w.out.write(append(head, byte(xxh32(head[4:6])>>8)))
}

func (w *lz4Writer) flush() error {
	if err := w.begin(); err != nil {
		return err
	}
	if len(w.block) == 0 {
		return nil
	}
	if w.work == nil {
		w.work = make([]byte, lz4.CompressBlockBound(lz4BlockSize)+4)
	}
	n, err := w.codecs.lz4Block(w.level, w.block, w.work[4:])
	if err != nil {
		return err
	}
	if n == 0 || n >= len(w.block) {
		n = copy(w.work[4:], w.block)
		binary.LittleEndian.PutUint32(w.work, uint32(n)|lz4Uncompressed)
	} else {
		binary.LittleEndian.PutUint32(w.work, uint32(n))
	}
	w.block = w.block[:0]
	return w.out.write(w.work[:4+n])
}

func (w *lz4Writer) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.out.write([]byte{0, 0, 0, 0})
}

func (w *lz4Writer) abandon() {}

// The primes of xxHash32.
const (
	xxPrime1 = 2654435761
	xxPrime2 = 2246822519
	xxPrime3 = 3266489917
	xxPrime4 = 668265263
	xxPrime5 = 374761393
)

// xxh32 is the xxHash of 32 bits with seed 0.
func xxh32(b []byte) uint32 {
	n := uint32(len(b))
	var h uint32 = xxPrime5
	if len(b) >= 16 {
		var seed uint32
		v1, v2, v3, v4 := seed+xxPrime1, seed+xxPrime2, seed, seed-xxPrime1
		v1 += xxPrime2
		for len(b) >= 16 {
			v1 = xxRound(v1, binary.LittleEndian.Uint32(b))
			v2 = xxRound(v2, binary.LittleEndian.Uint32(b[4:]))
			v3 = xxRound(v3, binary.LittleEndian.Uint32(b[8:]))
			v4 = xxRound(v4, binary.LittleEndian.Uint32(b[12:]))
			b = b[16:]
		}
		h = bits.RotateLeft32(v1, 1) + bits.RotateLeft32(v2, 7) + bits.RotateLeft32(v3, 12) + bits.RotateLeft32(v4, 18)
	}
	h += n
	for ; len(b) >= 4; b = b[4:] {
		h = bits.RotateLeft32(h+binary.LittleEndian.Uint32(b)*xxPrime3, 17) * xxPrime4
	}
	for _, c := range b {
		h = bits.RotateLeft32(h+uint32(c)*xxPrime5, 11) * xxPrime1
	}
	h = (h ^ h>>15) * xxPrime2
	h = (h ^ h>>13) * xxPrime3
	return h ^ h>>16
}

func xxRound(v, input uint32) uint32 {
	return bits.RotateLeft32(v+input*xxPrime2, 13) * xxPrime1
}
