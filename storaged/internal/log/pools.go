package log

import "sync"

const (
	// pageEntries is how many index entries make a page, the unit that a look-up reads.
	pageEntries = 512
	// scanBytes is how much is read at once to find a batch from an index entry on.
	scanBytes = 4 << 10
	// copyBelow is the size below which batches are copied together, for one plain write, and not written in place.
	copyBelow = 4 << 10
	// gatherBytes is how much is copied together at most.
	gatherBytes = 64 << 10
)

// Pools are buffers that all logs of a process share. Any goroutine may use them; the zero value is ready.
type Pools struct {
	pages   sync.Pool // *[]byte of a time index's page, the larger one; also for scans
	writers sync.Pool // *writer
}

func (p *Pools) page() *[]byte {
	if b, _ := p.pages.Get().(*[]byte); b != nil {
		return b
	}
	b := make([]byte, pageEntries*timeEntryBytes)
	return &b
}

func (p *Pools) freePage(b *[]byte) { p.pages.Put(b) }

// writer is what one append works with.
type writer struct {
	gather  []byte
	buffers [][]byte
	offsets []byte // new index entries of the group
	times   []byte
}

func (p *Pools) writer() *writer {
	if w, _ := p.writers.Get().(*writer); w != nil {
		return w
	}
	return &writer{gather: make([]byte, 0, gatherBytes)}
}

func (p *Pools) freeWriter(w *writer) {
	w.reset()
	p.writers.Put(w)
}

func (w *writer) reset() {
	clear(w.buffers)
	w.gather, w.buffers = w.gather[:0], w.buffers[:0]
	w.offsets, w.times = w.offsets[:0], w.times[:0]
}
