package transport

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Budget bounds the bytes that a process holds in memory for one purpose. It is taken before the bytes are read or right
// after, and given back when they are gone; who cannot have it waits, in order, and so do the senders behind it, down to
// the client, through the windows of the connections.
type Budget struct {
	total int64
	sem   *semaphore.Weighted
}

// NewBudget makes a budget of a number of bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{total: bytes, sem: semaphore.NewWeighted(bytes)}
}

// Acquire waits for n bytes and returns how many were taken, which is what must be given back: a request for more than
// there is at all takes everything, so that it runs alone instead of never.
func (b *Budget) Acquire(ctx context.Context, n int64) (int64, error) {
	n = min(n, b.total)
	return n, b.sem.Acquire(ctx, n)
}

// TryAcquire takes n bytes, or what there is at all if that is less, and says false when it would have to wait.
func (b *Budget) TryAcquire(n int64) (taken int64, ok bool) {
	n = min(n, b.total)
	return n, b.sem.TryAcquire(n)
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) { b.sem.Release(n) }
