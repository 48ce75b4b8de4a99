package log

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/vfs"
)

// maxSegmentBytes is what positions in an index can tell apart.
const maxSegmentBytes = 1<<31 - 1

// segment is a part of the log: a file of batches and its indexes. Files are opened when they are needed; what is not
// active and not read costs no open file and little memory.
//
// The fields below mu's comment in Log are guarded by the log's mu, but for those that never change.
type segment struct {
	base int64
	dir  string
	fs   vfs.FS
	// jitter is how much earlier than segment.ms this segment is rolled, so that not all partitions roll at once.
	jitter time.Duration
	// done is release, kept so that giving it out does not allocate.
	done func()

	// leaving says that the files are losing their names, to nobody or to the files of another segment: what is not open yet must
	// not be opened by name any more.
	leaving atomic.Bool
	// refs counts those who use the files: the log and each region that was given out. The last one closes them.
	refs atomic.Int32

	// loadMu lets one reader at a time open files and load indexes.
	loadMu sync.Mutex

	file vfs.File
	// size is how many bytes of the file are records.
	size    int64
	offsets index
	times   index
	// loaded says that the indexes, maxTime and maxTimeOffset are in memory.
	loaded bool
	// maxTime is the largest timestamp, -1 for none, and maxTimeOffset the last offset of the first batch that has it.
	maxTime       int64
	maxTimeOffset int64
	// aborted is the transaction index, once abortedLoaded.
	aborted       []abortedTxn
	abortedLoaded bool

	// The rest belongs to the writer.
	created time.Time
	// firstTime is the largest timestamp of the first batch; noFirstTime until it is known.
	firstTime int64
	// sinceEntry is how many bytes were appended since the last index entry.
	sinceEntry int
	// idleSize is what size was when files were last looked for that nobody uses.
	idleSize int64
}

// noFirstTime says that the first batch's timestamp has not been read.
const noFirstTime int64 = -1 << 63

func newSegment(fsys vfs.FS, dir string, base int64, created time.Time) *segment {
	s := &segment{
		base: base, dir: dir, fs: fsys, created: created, maxTime: -1, maxTimeOffset: base, firstTime: noFirstTime,
		offsets: index{path: segmentPath(dir, base, indexSuffix), entry: offsetEntryBytes},
		times:   index{path: segmentPath(dir, base, timeIndexSuffix), entry: timeEntryBytes},
	}
	s.refs.Store(1)
	s.done = s.release
	return s
}

// createSegment makes a new, empty segment with its files. Files that are in the way are left overs and go.
func (l *Log) createSegment(base int64) (*segment, error) {
	s := newSegment(l.fs, l.dir, base, l.now())
	s.loaded, s.abortedLoaded = true, true
	s.jitter = segmentJitter(l.config, l.jitter)
	if err := removeIfThere(l.fs, s.path(txnIndexSuffix)); err != nil {
		return nil, err
	}
	for _, path := range []string{s.path(logSuffix), s.offsets.path, s.times.path} {
		f, err := l.fs.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		if path == s.path(logSuffix) && l.config.Preallocate {
			err = f.Reserve(int64(l.config.SegmentBytes))
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func segmentJitter(c *configdef.Topic, random func(int64) int64) time.Duration {
	n := min(c.SegmentJitterMs, c.SegmentMs)
	if n <= 0 {
		return 0
	}
	return time.Duration(random(n)) * time.Millisecond
}

func (s *segment) path(suffix string) string { return segmentPath(s.dir, s.base, suffix) }

// leave is called before the files of segments lose their names.
func leave(segments []*segment) {
	for _, s := range segments {
		s.leaving.Store(true)
	}
}

// retain takes a hold on the files. The caller holds one already, or the lock under which the log's own is safe.
func (s *segment) retain() { s.refs.Add(1) }

// release gives a hold back. The last one closes the files, whatever has become of their names.
func (s *segment) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if s.file != nil {
		_ = s.file.Close() // nothing unwritten is lost: writes went to the kernel, syncs have their own errors
	}
	_ = s.offsets.close()
	_ = s.times.close()
}

// closeFiles lets go of files that will be opened again when they are needed. An index of which memory has only a part stays
// open. The log's lock is held, and nobody else has a hold on the segment.
func (s *segment) closeFiles() {
	if s.file != nil {
		_ = s.file.Close() // see release
		s.file = nil
	}
	for _, x := range []*index{&s.offsets, &s.times} {
		if len(x.sample) == 0 {
			_ = x.close()
		}
	}
}

// open opens the file of batches. The file is set under the log's lock, since readers look at it.
func (l *Log) open(s *segment) (vfs.File, error) {
	l.mu.RLock()
	f := s.file
	l.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	l.mu.RLock()
	f = s.file
	l.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	f, err := l.fs.OpenFile(s.path(logSuffix), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	s.file = f
	l.mu.Unlock()
	return f, nil
}

// loadIndexes brings the indexes into memory. The indexes of a segment that has not been recovered are believed, but for
// what cannot be: then errIndex comes, and the writer must rebuild them.
func (l *Log) loadIndexes(s *segment) error {
	l.mu.RLock()
	loaded, size := s.loaded, s.size
	l.mu.RUnlock()
	if loaded {
		return nil
	}
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	l.mu.RLock()
	loaded = s.loaded
	l.mu.RUnlock()
	if loaded {
		return nil
	}
	offsets, err := s.offsets.load(l.fs, func(e []byte) bool {
		return entryOffset(e) >= 0 && entryPosition(e) >= 0 && entryPosition(e) < size
	})
	if err != nil {
		return err
	}
	times, err := s.times.load(l.fs, func(e []byte) bool { return entryTimeOffset(e) >= 0 && entryTime(e) >= 0 })
	if err != nil {
		_ = offsets.close()
		return err
	}
	last, err := times.last()
	if err != nil {
		_ = offsets.close()
		_ = times.close()
		return err
	}
	l.mu.Lock()
	s.offsets, s.times, s.loaded = offsets, times, true
	s.maxTime, s.maxTimeOffset = -1, s.base
	if last != nil {
		s.maxTime, s.maxTimeOffset = entryTime(last), s.base+entryTimeOffset(last)
	}
	l.mu.Unlock()
	return nil
}

// largestTime is the largest timestamp of a segment, or when its file was written last if no record has one.
func (l *Log) largestTime(s *segment) (int64, error) {
	if err := l.loadIndexes(s); err != nil {
		return 0, err
	}
	l.mu.RLock()
	t := s.maxTime
	l.mu.RUnlock()
	if t >= 0 {
		return t, nil
	}
	st, err := l.fs.Stat(s.path(logSuffix))
	if err != nil {
		return 0, err
	}
	return st.ModTime().UnixMilli(), nil
}

// recentBatches remembers where the newest batches of the active segment are, so that readers at the log's end, and
// those who look up the high watermark, need no file.
type recentBatches struct {
	ring  []recentBatch
	first int // of the oldest
	n     int
}

type recentBatch struct {
	base     int64
	last     int64
	position int64
	size     int32
}

const recentCount = 32

func (r *recentBatches) add(b recentBatch) {
	if r.ring == nil {
		r.ring = make([]recentBatch, recentCount)
	}
	if r.n < len(r.ring) {
		r.ring[(r.first+r.n)%len(r.ring)] = b
		r.n++
		return
	}
	r.ring[r.first] = b
	r.first = (r.first + 1) % len(r.ring)
}

func (r *recentBatches) at(i int) *recentBatch { return &r.ring[(r.first+i)%len(r.ring)] }

func (r *recentBatches) clear() { r.first, r.n = 0, 0 }

// cut forgets batches at or after a position.
func (r *recentBatches) cut(position int64) {
	for r.n > 0 && r.at(r.n-1).position >= position {
		r.n--
	}
}

// find gives the batch that holds an offset or comes first after it, if the memory reaches that far back.
func (r *recentBatches) find(offset int64) (recentBatch, bool) {
	if r.n == 0 || offset < r.at(0).base {
		return recentBatch{}, false
	}
	lo, hi := 0, r.n
	for lo < hi {
		if mid := (lo + hi) / 2; r.at(mid).last < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == r.n {
		return recentBatch{}, false
	}
	return *r.at(lo), true
}

// floor gives the end of the last batch that ends at or before a position, if the memory reaches that far back.
func (r *recentBatches) floor(position int64) (int64, bool) {
	if r.n == 0 || r.at(0).position > position {
		return 0, false
	}
	end := r.at(0).position
	for i := range r.n {
		b := r.at(i)
		if b.position+int64(b.size) > position {
			break
		}
		end = b.position + int64(b.size)
	}
	return end, true
}
