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
	pages     sync.Pool // *[]byte, a page of the time index, the larger one; also for scans
	appenders sync.Pool // *appender
}

func (p *Pools) page() *[]byte {
	if b, _ := p.pages.Get().(*[]byte); b != nil {
		return b
	}
	b := make([]byte, pageEntries*timeEntryBytes)
	return &b
}

func (p *Pools) freePage(b *[]byte) { p.pages.Put(b) }
