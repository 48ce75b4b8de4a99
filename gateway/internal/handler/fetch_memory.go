package handler

import "sync/atomic"

// leastFetchBytes is what a fetch may always bring.
const leastFetchBytes = 64 << 10

// fetchMemory bounds the records in memory that clients have not read yet. What is in files, because the storage node is on this
// machine, is not in memory and does not count.
//
// Many clients that read slowly would hold an answer of fetch.max.bytes each. So the more there is already, the less a further
// fetch brings; Kafka's clients take what comes and ask again.
type fetchMemory struct {
	limit int64
	held  atomic.Int64
}

// room is how many bytes a fetch may bring that a client lets bring wanted ones. Without a limit that is all of them.
func (m *fetchMemory) room(wanted int32) int32 {
	if m.limit <= 0 {
		return wanted
	}
	// A quarter of what is left, since others ask at the same time.
	left := (m.limit - m.held.Load()) / 4
	return int32(min(int64(wanted), max(left, leastFetchBytes)))
}

// hold counts bytes until the returned function is called.
func (m *fetchMemory) hold(bytes int) (release func()) {
	m.held.Add(int64(bytes))
	return func() { m.held.Add(-int64(bytes)) }
}
