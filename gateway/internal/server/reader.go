package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/wire"
	"chancery/services/transport"
)

const (
	// chunkSize is how much is read at a time where requests are small.
	chunkSize = 64 << 10
	// peekSize is how much is read first where the last request was large: enough for the header, so that little of a
	// large body has to be copied.
	peekSize = 512
	// largeFrame is from which size on a request is large.
	largeFrame = chunkSize / 2
	// growStep is how far a body's buffer grows at a time, so that a claimed size alone costs no memory.
	growStep = 1 << 20
	// decodedFactor is how much larger a request may be when it is decoded, roughly; the budget counts it so. Records stay
	// as they are.
	decodedFactor = 8
	// sizeLength is the size of the length in front of a frame.
	sizeLength = 4
	// keyLength is the size of the API key and version, with which a request begins.
	keyLength = 4
	// produceKey is the API whose requests get buffers of their own.
	produceKey int16 = 0
)

// errFrameSize is a frame whose size cannot be that of a request.
var errFrameSize = errors.New("frame size out of bounds")

// chunkPool lends the buffers for reading; connections have one only while there is something in it.
type chunkPool struct{ pool sync.Pool }

func (c *chunkPool) get() *[]byte {
	if b, _ := c.pool.Get().(*[]byte); b != nil {
		return b
	}
	b := make([]byte, chunkSize)
	return &b
}

func (c *chunkPool) put(b *[]byte) { c.pool.Put(b) }

// frame is one request as it was read. Exactly one of body and buffer is set.
type frame struct {
	body   []byte
	buffer mem.Buffer
	// taken is what the frame holds of the budget.
	taken int64
}

func (f *frame) bytes() []byte {
	if f.buffer != nil {
		return f.buffer.ReadOnlyData()
	}
	return f.body
}

// frameReader cuts frames out of what comes on a connection.
type frameReader struct {
	nc  net.Conn
	raw syscall.RawConn // nil when the connection is no socket
	// chunk holds what was read and not used yet, between from and to; it is nil when there is nothing.
	chunk    *[]byte
	from, to int
	large    bool
	// ready is the function that raw calls, made once; p, n and err are its argument and results.
	ready func(fd uintptr) bool
	p     []byte
	n     int
	err   error

	chunks  *chunkPool
	buffers mem.BufferPool
	max     int32
	budget  *transport.Budget
	// mostDecoded is how much of the budget a request takes at most for being larger when it is decoded: one that needed all
	// of it would have to wait until nobody waits for anything.
	mostDecoded int64
	// received is told how many bytes came, after each read.
	received func(n int)
}

func newFrameReader(nc net.Conn) *frameReader {
	r := &frameReader{nc: nc}
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			r.raw, r.ready = raw, r.readReady
		}
	}
	return r
}

// next reads a frame. io.EOF means that the client has closed between two frames.
func (r *frameReader) next(ctx context.Context) (frame, error) {
	// The size is judged as soon as it is there: who sends nonsense may never send more.
	if err := r.fill(sizeLength); err != nil {
		return frame{}, err
	}
	size := int32(binary.BigEndian.Uint32((*r.chunk)[r.from:r.to]))
	if size < wire.MinHeaderSize || size > r.max {
		return frame{}, errFrameSize
	}
	if err := r.fill(sizeLength + keyLength); err != nil {
		return frame{}, err
	}
	key, _, _ := wire.PeekKey((*r.chunk)[r.from+sizeLength : r.to])
	r.from += sizeLength
	r.large = size >= largeFrame
	var f frame
	var err error
	if f.taken, err = r.budget.Acquire(ctx, r.cost(key, size)); err != nil {
		return frame{}, err
	}
	if key == produceKey {
		f.buffer, err = r.pooledBody(int(size))
	} else {
		f.body, err = r.body(int(size))
	}
	if err != nil {
		r.budget.Release(f.taken)
		return frame{}, err
	}
	return f, nil
}

// cost is what a frame takes of the budget.
func (r *frameReader) cost(key int16, size int32) int64 {
	if key == produceKey {
		return int64(size)
	}
	return min(int64(size)*decodedFactor, max(int64(size), r.mostDecoded))
}

// following gives the next frame if it has been read already, is of an API and a version, and need not wait for the budget.
func (r *frameReader) following(api, version int16) (frame, bool) {
	if r.chunk == nil || r.to-r.from < sizeLength+wire.MinHeaderSize {
		return frame{}, false
	}
	b := (*r.chunk)[r.from:r.to]
	size := int32(binary.BigEndian.Uint32(b))
	if k, v, _ := wire.PeekKey(b[sizeLength:]); k != api || v != version {
		return frame{}, false
	}
	if size < wire.MinHeaderSize || size > r.max || int(size) > len(b)-sizeLength {
		return frame{}, false
	}
	taken, ok := r.budget.TryAcquire(r.cost(api, size))
	if !ok {
		return frame{}, false
	}
	r.from += sizeLength
	body := make([]byte, size)
	r.drain(body)
	return frame{body: body, taken: taken}, true
}

// pooledBody reads a body into a pooled buffer. A small one is not worth the pool.
func (r *frameReader) pooledBody(size int) (mem.Buffer, error) {
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := r.body(size)
		return mem.SliceBuffer(b), err
	}
	b := r.buffers.Get(size)
	n := r.drain(*b)
	if err := r.readFull((*b)[n:]); err != nil {
		r.buffers.Put(b)
		return nil, err
	}
	return mem.NewBuffer(b, r.buffers), nil
}

// body reads a body into memory of its own, so that whoever answers may keep parts of it.
func (r *frameReader) body(size int) ([]byte, error) {
	b := make([]byte, min(size, growStep))
	n := r.drain(b)
	for {
		if err := r.readFull(b[n:]); err != nil {
			return nil, err
		}
		n = len(b)
		if n == size {
			return b, nil
		}
		grown := make([]byte, min(size, 2*n))
		copy(grown, b)
		b = grown
	}
}

// drain moves what is there of a body into it.
func (r *frameReader) drain(b []byte) int {
	n := copy(b, (*r.chunk)[r.from:r.to])
	r.from += n
	r.release()
	return n
}

// release gives the chunk back when nothing is in it.
func (r *frameReader) release() {
	if r.chunk != nil && r.from == r.to {
		r.chunks.put(r.chunk)
		r.chunk, r.from, r.to = nil, 0, 0
	}
}

// close gives the chunk back whatever is in it.
func (r *frameReader) close() {
	r.from = r.to
	r.release()
}

// fill makes sure that at least n bytes are in the chunk.
func (r *frameReader) fill(n int) error {
	for r.to-r.from < n {
		if r.from > 0 && r.chunk != nil {
			r.to = copy(*r.chunk, (*r.chunk)[r.from:r.to])
			r.from = 0
		}
		got, err := r.readChunk()
		r.to += got
		if got == 0 {
			r.release()
			if errors.Is(err, io.EOF) && r.to > r.from {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// readChunk reads what there is, up to a chunk, behind what is in the chunk. While it waits there is no chunk unless
// something is in it.
func (r *frameReader) readChunk() (int, error) {
	limit := chunkSize
	if r.large {
		limit = peekSize
	}
	if r.raw == nil {
		if r.chunk == nil {
			r.chunk = r.chunks.get()
		}
		return r.count(r.nc.Read((*r.chunk)[r.to:limit]))
	}
	r.p = nil
	return r.readRaw(limit)
}

// readRaw waits for the socket and reads from it: into p, or into the chunk up to limit when p is nil.
func (r *frameReader) readRaw(limit int) (int, error) {
	r.n, r.err = limit, nil
	if err := r.raw.Read(r.ready); err != nil {
		r.release()
		return 0, err
	}
	if r.n == 0 && r.err == nil {
		r.err = io.EOF
	}
	return r.count(r.n, r.err)
}

// readReady reads once without waiting; false makes the caller wait until there is something.
func (r *frameReader) readReady(fd uintptr) bool {
	p := r.p
	if p == nil {
		if r.chunk == nil {
			r.chunk = r.chunks.get()
		}
		p = (*r.chunk)[r.to:r.n]
	}
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			if r.p == nil {
				r.release()
			}
			return false
		}
		r.n, r.err = max(n, 0), err
		return true
	}
}

func (r *frameReader) count(n int, err error) (int, error) {
	if n > 0 {
		r.received(n)
		return n, nil
	}
	return n, err
}

// readFull fills p from the connection.
func (r *frameReader) readFull(p []byte) error {
	for len(p) > 0 {
		var n int
		var err error
		if r.raw == nil {
			n, err = r.count(r.nc.Read(p))
		} else {
			r.p = p
			n, err = r.readRaw(0)
			r.p = nil
		}
		p = p[n:]
		switch {
		case n > 0:
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
	return nil
}
