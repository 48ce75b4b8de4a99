package coldread

import (
	"container/list"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

const (
	// maxStreams is how many readers are remembered between two reads.
	maxStreams = 4096
	// firstWindow is what is read ahead when a reader comes back for the first time.
	firstWindow = 2 * objectstore.BlockBytes
	// windowShare is how many requests the window of a reader is read with: enough to be served at several times the speed
	// of one connection.
	windowShare = 16
	// maxRequestBlocks is the largest request, in blocks.
	maxRequestBlocks = 8
	// consumedShare bounds the window by what the reader has consumed: one that reads little gets little read ahead.
	consumedShare = 8
	// aheadTime bounds the window by how fast the reader has been: what it will not read within that time can wait. So a reader
	// that is slow, or is kept slow for the sake of others, causes no burst of requests.
	aheadTime = time.Second
	// pressurePause is how often the largest window is halved at most.
	pressurePause = time.Second
)

// streamKey is where a sequential reader comes next.
type streamKey struct {
	topic     uuid.UUID
	partition int32
	offset    int64
}

// stream is what is remembered of a sequential reader.
type stream struct {
	// segment and position are where its next batch begins.
	segment  uuid.UUID
	position int64
	// window is how many bytes are read ahead of it.
	window   int64
	consumed int64
	// read is when its last read began, perSecond how fast it has been of late, in bytes; 0 while it is not known.
	read      time.Time
	perSecond float64
	// aheadSegment and aheadBlock are where reading ahead goes on.
	aheadSegment uuid.UUID
	aheadBlock   int32
}

// streams remembers readers, the most recent ones. The reader's lock guards it.
type streams struct {
	byKey  map[streamKey]*list.Element
	recent *list.List
	// largest is the largest window of all, which shrinks when blocks go before anybody has read them.
	largest int64
	shrunk  time.Time
}

type streamEntry struct {
	key    streamKey
	stream stream
}

func newStreams(largest int64) *streams {
	return &streams{byKey: make(map[streamKey]*list.Element), recent: list.New(), largest: largest}
}

// get finds the reader that comes at an offset. It stays known, as others may read at the same pace.
func (s *streams) get(key streamKey) (stream, bool) {
	e, ok := s.byKey[key]
	if !ok {
		return stream{}, false
	}
	s.recent.MoveToFront(e)
	return e.Value.(*streamEntry).stream, true
}

func (s *streams) put(key streamKey, value stream) {
	if e, ok := s.byKey[key]; ok {
		s.recent.MoveToFront(e)
		e.Value.(*streamEntry).stream = value
		return
	}
	s.byKey[key] = s.recent.PushFront(&streamEntry{key, value})
	if s.recent.Len() > maxStreams {
		oldest := s.recent.Back()
		delete(s.byKey, s.recent.Remove(oldest).(*streamEntry).key)
	}
}

// pressure halves the largest window: what is read ahead does not stay until it is read.
func (s *streams) pressure(now time.Time) {
	if now.Sub(s.shrunk) >= pressurePause {
		s.shrunk = now
		s.largest = max(s.largest/2, min(s.largest, firstWindow))
	}
}

// grow is the next window of a reader that has come back, and lets the largest window recover.
func (s *streams) grow(now time.Time, st *stream, limit int64) {
	if now.Sub(s.shrunk) >= pressurePause {
		s.largest = min(limit, s.largest+objectstore.BlockBytes)
	}
	most := max(objectstore.BlockBytes, consumedShare*st.consumed)
	if st.perSecond > 0 {
		most = min(most, max(firstWindow, int64(st.perSecond*aheadTime.Seconds())))
	}
	st.window = min(s.largest, max(firstWindow, 2*st.window), most)
}

// speedWeight is how much the last read counts in a reader's speed.
const speedWeight = 0.25

// took notes a read of some bytes that began at a time: the time since the last one began is what the bytes of that took.
func (st *stream) took(began time.Time, bytes int64) {
	if d := began.Sub(st.read); !st.read.IsZero() && d > 0 {
		speed := float64(bytes) / d.Seconds()
		if st.perSecond == 0 {
			st.perSecond = speed
		}
		st.perSecond += speedWeight * (speed - st.perSecond)
	}
	st.read = began
}

// requestBlocks is how many blocks one request asks for with a window.
func requestBlocks(window int64) int32 {
	return int32(max(1, min(maxRequestBlocks, window/windowShare/objectstore.BlockBytes)))
}

// readAhead begins to read what is in the window of a reader at a position of segment i and was not asked for yet.
func (r *Reader) readAhead(segments []Segment, i int, position int64, st *stream) {
	if st.window == 0 {
		return
	}
	count := requestBlocks(st.window)
	at, ai := int32(position/objectstore.BlockBytes), i
	ahead := int64(at)*objectstore.BlockBytes - position
	// Where reading ahead stands, if that is not behind the reader by now.
	skipped := ahead
	for j := i; j < len(segments) && skipped <= st.window; j++ {
		if segments[j].ID == st.aheadSegment && (j > i || st.aheadBlock >= at) {
			first := int32(0)
			if j == i {
				first = at
			}
			ahead = skipped + int64(st.aheadBlock-first)*objectstore.BlockBytes
			at, ai = st.aheadBlock, j
			break
		}
		first := int64(0)
		if j == i {
			first = int64(at)
		}
		skipped += (segmentobject.Blocks(segments[j].SizeBytes) - first) * objectstore.BlockBytes
	}
	for ai < len(segments) && ahead+int64(count)*objectstore.BlockBytes <= st.window {
		left := segmentobject.Blocks(segments[ai].SizeBytes) - int64(at)
		if left <= 0 {
			ai, at = ai+1, 0
			continue
		}
		n := int32(min(int64(count), left))
		if !r.prefetch(segments[ai].SegmentMetadata, at, n) {
			break
		}
		at += n
		ahead += int64(n) * objectstore.BlockBytes
	}
	if ai < len(segments) {
		st.aheadSegment, st.aheadBlock = segments[ai].ID, at
	}
}
