package transport

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

const (
	minPoolShift = 10 // 1 KiB
	maxPoolShift = 23 // 8 MiB
	poolClasses  = maxPoolShift - minPoolShift + 1
	poisonByte   = 0xdb
)

// Pool lends byte buffers, one sync.Pool for each power of two from 1 KiB to 8 MiB. Buffers are not zeroed: whoever gets
// one writes all of it before showing it to anyone. Larger buffers are allocated and left to the garbage collector.
//
// A Pool is a mem.BufferPool, so gRPC itself and mem.NewBuffer can use it.
type Pool struct {
	classes     [poolClasses]sync.Pool
	debug       bool
	outstanding atomic.Int64
}

var _ mem.BufferPool = (*Pool)(nil)

// NewPool makes a pool.
func NewPool() *Pool { return &Pool{} }

// NewDebugPool makes a pool that overwrites what is put back, so that a use after the last Free shows, and counts what
// is lent. It is for tests.
func NewDebugPool() *Pool { return &Pool{debug: true} }

// Get lends a buffer of the given length.
func (p *Pool) Get(length int) *[]byte {
	if p.debug {
		p.outstanding.Add(1)
	}
	class, ok := poolClass(length)
	if !ok {
		b := make([]byte, length)
		return &b
	}
	if b, _ := p.classes[class].Get().(*[]byte); b != nil {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<(class+minPoolShift))
	return &b
}

// Put takes a buffer back. Buffers whose capacity is none of the pool's are left to the garbage collector.
func (p *Pool) Put(b *[]byte) {
	whole := (*b)[:cap(*b)]
	if p.debug {
		p.outstanding.Add(-1)
		for i := range whole {
			whole[i] = poisonByte
		}
	}
	if class, ok := poolClass(cap(whole)); ok && cap(whole) == 1<<(class+minPoolShift) {
		*b = whole
		p.classes[class].Put(b)
	}
}

// Buffer lends a buffer as a reference-counted one, which goes back with its last Free. The caller writes to the slice
// before it shares the buffer with anyone, and never after.
//
// Buffers of up to 1 KiB are ordinary memory: for them Ref and Free do nothing.
func (p *Pool) Buffer(length int) (mem.Buffer, []byte) {
	if mem.IsBelowBufferPoolingThreshold(length) {
		b := make([]byte, length)
		return mem.SliceBuffer(b), b
	}
	b := p.Get(length)
	if mem.IsBelowBufferPoolingThreshold(cap(*b)) {
		return mem.SliceBuffer(*b), *b
	}
	return mem.NewBuffer(b, p), *b
}

// Outstanding is how many buffers are lent; only a debug pool counts them.
func (p *Pool) Outstanding() int64 { return p.outstanding.Load() }

// poolClass is the index of the smallest class that holds n bytes.
func poolClass(n int) (int, bool) {
	if n <= 1<<minPoolShift {
		return 0, true
	}
	if n > 1<<maxPoolShift {
		return 0, false
	}
	return bits.Len(uint(n-1)) - minPoolShift, true
}
