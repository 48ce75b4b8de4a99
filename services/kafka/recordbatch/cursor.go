package recordbatch

import (
	"google.golang.org/grpc/mem"
)

// source gives a stream's bytes piece by piece. A piece is valid until the next call. It returns nil, nil at the end.
type source interface {
	next() ([]byte, error)
}

// bufferSource reads the pieces of a run of buffers from an offset on.
type bufferSource struct {
	buffers mem.BufferSlice
	skip    int
	length  int
}

func (s *bufferSource) next() ([]byte, error) {
	for len(s.buffers) > 0 && s.length > 0 {
		p := s.buffers[0].ReadOnlyData()
		s.buffers = s.buffers[1:]
		if s.skip >= len(p) {
			s.skip -= len(p)
			continue
		}
		p = p[s.skip:]
		s.skip = 0
		if len(p) > s.length {
			p = p[:s.length]
		}
		s.length -= len(p)
		return p, nil
	}
	return nil, nil
}

// sink takes bytes of records that are being rewritten.
type sink interface {
	write(p []byte) error
}

// cursor reads varints and skips over a source. Errors stick; after one every read gives zero. The reads are plain
// methods on one struct, since they run once or more for every field of every record.
type cursor struct {
	buf  []byte
	at   int
	src  source
	out  sink // what copy writes to
	err  error
	read int64 // bytes in the pieces before buf
}

// position is how many bytes have been consumed.
func (c *cursor) position() int64 { return c.read + int64(c.at) }

// fill gets the next piece once buf is used up; false at the end or after an error.
func (c *cursor) fill() bool {
	for c.at == len(c.buf) {
		if c.err != nil || c.src == nil {
			return false
		}
		p, err := c.src.next()
		if err != nil {
			c.err = err
			return false
		}
		if p == nil {
			c.src = nil
			return false
		}
		c.read += int64(len(c.buf))
		c.buf, c.at = p, 0
	}
	return true
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// atEnd says whether everything has been consumed; an error of the source is not an end.
func (c *cursor) atEnd() bool { return !c.fill() && c.err == nil }

func (c *cursor) byte() byte {
	if c.at == len(c.buf) && !c.fill() {
		c.fail(errTruncated)
		return 0
	}
	b := c.buf[c.at]
	c.at++
	return b
}

// varint reads a zigzag varint of at most 32 bits.
func (c *cursor) varint() int32 {
	if c.at < len(c.buf) {
		if b := c.buf[c.at]; b < 0x80 {
			c.at++
			return int32(b>>1) ^ -int32(b&1)
		}
	}
	u := c.uvarint(5)
	if u>>32 != 0 {
		c.fail(errVarint)
		return 0
	}
	v := uint32(u)
	return int32(v>>1) ^ -int32(v&1)
}

// varlong reads a zigzag varint of at most 64 bits.
func (c *cursor) varlong() int64 {
	u := c.uvarint(10)
	return int64(u>>1) ^ -int64(u&1)
}

func (c *cursor) uvarint(limit int) uint64 {
	var u uint64
	if len(c.buf)-c.at >= limit {
		for i := range limit {
			b := c.buf[c.at+i]
			u |= uint64(b&0x7f) << (7 * i)
			if b < 0x80 {
				c.at += i + 1
				return u
			}
		}
		c.fail(errVarint)
		return 0
	}
	for i := range limit {
		b := c.byte()
		u |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return u
		}
	}
	c.fail(errVarint)
	return 0
}

// skip passes n bytes, which also go to out when there is one.
func (c *cursor) skip(n int64) {
	for n > 0 {
		if c.at == len(c.buf) && !c.fill() {
			c.fail(errTruncated)
			return
		}
		take := len(c.buf) - c.at
		if int64(take) > n {
			take = int(n)
		}
		if c.out != nil {
			if err := c.out.write(c.buf[c.at : c.at+take]); err != nil {
				c.fail(err)
				return
			}
		}
		c.at += take
		n -= int64(take)
	}
}
