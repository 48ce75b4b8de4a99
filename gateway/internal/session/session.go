// Package session keeps the fetch sessions of clients (KIP-227): a client names its partitions once and then only
// what changes, and the gateway answers only with what changed.
//
// It owns which partitions a fetch is about and which of them must be in its answer; it must never read partitions nor
// know where they are. Sessions belong to the gateway, not to a connection.
package session

import (
	"math"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// Epochs of a fetch that have a meaning of their own.
const (
	// InitialEpoch opens a session.
	InitialEpoch int32 = 0
	// FinalEpoch asks for everything without opening a session, and closes the one that it names.
	FinalEpoch int32 = -1
)

// NoSession is the session id of a fetch without a session.
const NoSession int32 = 0

// Key names a partition: by topic id from version 13 of Fetch on, by name before. The other of the two is zero.
type Key struct {
	TopicID   uuid.UUID
	Topic     string
	Partition int32
}

// Read is what a client wants of a partition.
type Read struct {
	Key
	FetchOffset      int64
	LogStartOffset   int64
	LeaderEpoch      int32
	LastFetchedEpoch int32
	MaxBytes         int32
}

// Outcome is what came of a Read, as far as it decides whether the client must be told.
type Outcome struct {
	HighWatermark  int64
	LogStartOffset int64
	Bytes          int
	// Failed, Preferred and Diverging are for answers with an error, with a preferred read replica, and with a diverging
	// epoch; each is told again until it is gone.
	Failed    bool
	Preferred bool
	Diverging bool
}

// entry is a partition of a session. The entries of a session form a ring in the order in which they are read:
// those that had data go last, so that each has its turn when the answer's size is limited.
type entry struct {
	read           Read
	highWatermark  int64
	logStartOffset int64
	previous, next *entry
}

// Session is the state of one session. The mutex guards everything below it.
type session struct {
	id       int32
	usesIDs  bool
	created  time.Time
	lastUsed time.Time
	// older and newer link the sessions by their last use; size is what the cache knows of the number of partitions. The
	// cache guards these and lastUsed.
	older, newer *session
	size         int

	mu      sync.Mutex
	epoch   int32
	entries map[Key]*entry
	// ring is the sentinel of the ring of entries.
	ring entry
}

func newSession(id int32, usesIDs bool, now time.Time, size int) *session {
	s := &session{id: id, usesIDs: usesIDs, created: now, epoch: 1, entries: make(map[Key]*entry, size)}
	s.ring.next, s.ring.previous = &s.ring, &s.ring
	return s
}

func (s *session) add(e *entry) {
	s.entries[e.read.Key] = e
	s.pushBack(e)
}

func (s *session) pushBack(e *entry) {
	e.previous, e.next = s.ring.previous, &s.ring
	e.previous.next, s.ring.previous = e, e
}

func (s *session) unlink(e *entry) {
	e.previous.next, e.next.previous = e.next, e.previous
	e.previous, e.next = nil, nil
}

// update takes over what a request says about the session's partitions.
func (s *session) update(wanted []Read, forgotten []Key) {
	for _, w := range wanted {
		if e := s.entries[w.Key]; e != nil {
			e.read = w
			continue
		}
		s.add(&entry{read: w, highWatermark: -1, logStartOffset: -1})
	}
	for _, k := range forgotten {
		if e := s.entries[k]; e != nil {
			delete(s.entries, k)
			s.unlink(e)
		}
	}
}

// mustTell decides whether a partition belongs into an answer, and remembers what the client knows then.
func (e *entry) mustTell(o Outcome) bool {
	tell := o.Bytes > 0 || o.Failed || o.Preferred || o.Diverging ||
		e.highWatermark != o.HighWatermark || e.logStartOffset != o.LogStartOffset
	e.highWatermark, e.logStartOffset = o.HighWatermark, o.LogStartOffset
	if o.Failed {
		// So the partition is told again when the error is gone.
		e.highWatermark = -1
	}
	return tell
}

// Fetch is one fetch on its way: what to read, and then what to tell.
type Fetch struct {
	// Reads are the partitions to read, in order, each once.
	Reads []Read

	cache   *Cache
	opens   bool
	usesIDs bool
	// session and entries are set for an incremental fetch; entries are those of Reads.
	session *session
	entries []*entry
	epoch   int32
}

// Answer is what the response says about the session.
type Answer struct {
	SessionID int32
	Error     errcode.Code
	// Tell says which partitions go into the response, by the index of Reads; nil means all.
	Tell []bool
}

// Finish decides what to tell; outcomes are in the order of Reads.
func (f *Fetch) Finish(now time.Time, outcomes []Outcome) Answer {
	switch {
	case f.opens:
		return Answer{SessionID: f.cache.open(now, f.usesIDs, f.Reads, outcomes)}
	case f.session == nil:
		return Answer{SessionID: NoSession}
	}
	s := f.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != f.epoch {
		// Another request of the session, a repeated one most likely, has overtaken this one.
		return Answer{SessionID: s.id, Error: errcode.InvalidFetchSessionEpoch, Tell: make([]bool, len(f.Reads))}
	}
	tell := make([]bool, len(f.Reads))
	for i, e := range f.entries {
		tell[i] = e.mustTell(outcomes[i])
		if outcomes[i].Bytes > 0 && e.next != nil {
			s.unlink(e)
			s.pushBack(e)
		}
	}
	return Answer{SessionID: s.id, Tell: tell}
}

// nextEpoch is the epoch that follows; it never becomes one that has a meaning of its own.
func nextEpoch(epoch int32) int32 {
	if epoch == math.MaxInt32 {
		return 1
	}
	return epoch + 1
}
