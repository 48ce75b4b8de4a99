package session

import (
	"math/rand/v2"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
)

// Cache holds the sessions of a gateway, up to a limit. Its mutex guards the map, the order of use and the fields of
// sessions that say so; it is never taken while a session's own is held.
type Cache struct {
	limit int
	// evictAfter is how long a session must be unused before any other may take its place, and how old it must be before
	// a larger one may.
	evictAfter time.Duration

	mu       sync.Mutex
	sessions map[int32]*session
	// order is the sentinel of the ring of sessions: order.newer is the one that was used longest ago.
	order      session
	partitions int
	evictions  int64
}

// NewCache makes a cache for at most limit sessions; with none, every fetch is without a session. A session keeps its
// place for evictAfter at least.
func NewCache(limit int, evictAfter time.Duration) *Cache {
	c := &Cache{limit: limit, evictAfter: evictAfter, sessions: make(map[int32]*session)}
	c.order.older, c.order.newer = &c.order, &c.order
	return c
}

// Stats are the numbers of sessions, of their partitions, and of sessions that were evicted so far.
func (c *Cache) Stats() (sessions, partitions int, evictions int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sessions), c.partitions, c.evictions
}

// Begin says what a fetch with a session id and epoch is about. An error code is for the whole response, without a
// session id. The Fetch keeps wanted.
func (c *Cache) Begin(now time.Time, id, epoch int32, usesIDs bool, wanted []Read, forgotten []Key) (*Fetch, errcode.Code) {
	if epoch == InitialEpoch || epoch == FinalEpoch {
		if id != NoSession {
			c.remove(id)
		}
		return &Fetch{Reads: unique(wanted), cache: c, opens: epoch == InitialEpoch, usesIDs: usesIDs}, errcode.None
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	if s == nil {
		return nil, errcode.FetchSessionIdNotFound
	}
	f, code := s.begin(epoch, usesIDs, wanted, forgotten)
	switch {
	case code != errcode.None:
		return nil, code
	case f.session == nil:
		c.unlink(s)
		f.Reads = unique(wanted)
	default:
		c.touch(s, now, len(f.Reads))
	}
	f.cache = c
	return f, errcode.None
}

// begin takes over a request into the session. A session that has no partitions left is to be closed: then the fetch
// has none.
func (s *session) begin(epoch int32, usesIDs bool, wanted []Read, forgotten []Key) (*Fetch, errcode.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != epoch {
		return nil, errcode.InvalidFetchSessionEpoch
	}
	if s.usesIDs != usesIDs {
		return nil, errcode.FetchSessionTopicIdError
	}
	s.update(wanted, forgotten)
	if len(s.entries) == 0 {
		return &Fetch{}, errcode.None
	}
	s.epoch = nextEpoch(s.epoch)
	f := &Fetch{session: s, epoch: s.epoch, Reads: make([]Read, 0, len(s.entries)), entries: make([]*entry, 0, len(s.entries))}
	for e := s.ring.next; e != &s.ring; e = e.next {
		f.Reads = append(f.Reads, e.read)
		f.entries = append(f.entries, e)
	}
	return f, errcode.None
}

// open makes a session, or gives NoSession when there is no room.
func (c *Cache) open(now time.Time, usesIDs bool, reads []Read, outcomes []Outcome) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) >= c.limit && !c.evict(now, len(reads)) {
		return NoSession
	}
	s := newSession(c.newID(), usesIDs, now, len(reads))
	for i, r := range reads {
		s.add(&entry{read: r, highWatermark: outcomes[i].HighWatermark, logStartOffset: outcomes[i].LogStartOffset})
	}
	c.sessions[s.id] = s
	c.touch(s, now, len(reads))
	return s.id
}

// evict makes room for a session of some size: in place of the one used longest ago when that was long enough, else of
// the smallest one that is not larger and has had its time.
func (c *Cache) evict(now time.Time, size int) bool {
	victim := c.order.newer
	if victim == &c.order {
		return false
	}
	if now.Sub(victim.lastUsed) <= c.evictAfter {
		victim = nil
		for _, s := range c.sessions {
			if now.Sub(s.created) > c.evictAfter && (victim == nil || s.size < victim.size || s.size == victim.size && s.id < victim.id) {
				victim = s
			}
		}
		if victim == nil || victim.size >= size {
			return false
		}
	}
	c.unlink(victim)
	c.evictions++
	return true
}

func (c *Cache) remove(id int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sessions[id]; s != nil {
		c.unlink(s)
	}
}

func (c *Cache) unlink(s *session) {
	delete(c.sessions, s.id)
	s.older.newer, s.newer.older = s.newer, s.older
	c.partitions -= s.size
}

// touch makes s the session used last.
func (c *Cache) touch(s *session, now time.Time, size int) {
	if s.older != nil {
		s.older.newer, s.newer.older = s.newer, s.older
	}
	s.older, s.newer = c.order.older, &c.order
	s.older.newer, c.order.older = s, s
	s.lastUsed = now
	c.partitions += size - s.size
	s.size = size
}

// newID gives a random id, so that a client that comes from another gateway does not meet a session by chance.
func (c *Cache) newID() int32 {
	for {
		if id := rand.Int32N(1<<31-2) + 1; c.sessions[id] == nil {
			return id
		}
	}
}

// unique drops all but the last of several reads of one partition; it stays in the place of the first.
func unique(reads []Read) []Read {
	if len(reads) < 2 {
		return reads
	}
	at := make(map[Key]int, len(reads))
	out := reads[:0]
	for _, r := range reads {
		if i, ok := at[r.Key]; ok {
			out[i] = r
			continue
		}
		at[r.Key] = len(out)
		out = append(out, r)
	}
	return out
}
