package coldread

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"chancery/services/objectstore"
)

// blockPool keeps the memory of blocks for the next ones, so that a fast reader makes no garbage. A block's memory comes back
// when its last reference is freed: those of the cache, of each reader that waited for it, and of each result that has a
// part of it.
type blockPool struct {
	free sync.Pool // *[]byte of objectstore.BlockBytes
	// out counts the blocks whose memory has not come back.
	out atomic.Int64
}

var _ mem.BufferPool = (*blockPool)(nil)

// Get gives memory that holds whatever was in it before.
func (p *blockPool) Get(n int) *[]byte {
	b, ok := p.free.Get().(*[]byte)
	if !ok {
		whole := make([]byte, objectstore.BlockBytes)
		b = &whole
	}
	*b = (*b)[:n]
	p.out.Add(1)
	return b
}

// Put takes memory back.
func (p *blockPool) Put(b *[]byte) {
	*b = (*b)[:cap(*b)]
	p.out.Add(-1)
	p.free.Put(b)
}
