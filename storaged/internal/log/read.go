package log

import (
	"errors"
	"fmt"
	"io"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/services/vfs"
)

// readRetries is how often a read begins anew when the log is cut under it.
const readRetries = 10

// Read gives whole batches from the one that holds offset on, or the next one if none does. Only batches that lie before
// limit as a whole are given, and at most maxBytes, except that with minOne the first one is given whatever its size.
// All come from one segment. OffsetOutOfRange is the error for an offset before the log's start or after its end.
//
// Any goroutine may call it. The caller must release the records.
func (l *Log) Read(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, error) {
	for range readRetries {
		r, err := l.read(offset, maxBytes, limit, minOne)
		if errors.Is(err, errMoved) {
			l.awaitNames()
			continue
		}
		return r, err
	}
	return storage.Records{}, errcode.UnknownServerError.Wrap(fmt.Errorf("read %s at %d: %w", l.dir, offset, errMoved))
}

func (l *Log) read(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, error) {
	l.mu.RLock()
	if offset < l.logStart || offset > l.logEnd {
		start, end := l.logStart, l.logEnd
		l.mu.RUnlock()
		return storage.Records{}, errcode.OffsetOutOfRange.Errorf("Received request for offset %d for partition %s-%d, "+
			"but we only have log segments in the range %d to %d.", offset, l.topic, l.partition, start, end)
	}
	if offset < l.segments[0].base {
		start := l.segments[0].base
		l.mu.RUnlock()
		return storage.Records{}, errcode.OffsetMovedToTieredStorage.Errorf("The offset %d is in the remote tier; the local log begins at %d.", offset, start)
	}
	limit = min(limit, l.logEnd)
	v, ok := l.viewOf(offset)
	l.mu.RUnlock()
	for ok && offset < limit {
		r, found, err := v.read(offset, maxBytes, limit, minOne)
		v.close()
		if err != nil {
			return storage.Records{}, v.readError(err)
		}
		if v.moved() {
			r.Release()
			return storage.Records{}, errMoved
		}
		if found {
			return r, nil
		}
		// Nothing at or after the offset is left in the segment: the cleaner took it. It goes on in the next.
		offset = v.end
		l.mu.RLock()
		v, ok = l.viewOf(offset)
		l.mu.RUnlock()
	}
	if ok {
		v.close()
	}
	return storage.Records{}, nil
}

// segmentView is a reader's copy of a segment's state, with a hold on its files.
type segmentView struct {
	log     *Log
	segment *segment
	file    vfs.File
	offsets index
	loaded  bool
	size    int64
	// end is the offset after the segment.
	end int64
	// active says that recent of the log is about this segment.
	active  bool
	changes uint64
}

// segmentAt gives the place of the segment that an offset belongs to; -1 when it lies before all. The lock is held.
func (l *Log) segmentAt(offset int64) int {
	lo, hi := 0, len(l.segments)
	for lo < hi {
		if mid := (lo + hi) / 2; l.segments[mid].base <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// viewOf copies the state of the segment that an offset belongs to, for a reader who must close it. The lock is held.
func (l *Log) viewOf(offset int64) (segmentView, bool) {
	if l.closed.Load() {
		return segmentView{}, false
	}
	i := max(0, l.segmentAt(offset))
	s := l.segments[i]
	v := segmentView{log: l, segment: s, file: s.file, offsets: s.offsets, loaded: s.loaded, size: s.size, end: l.logEnd, changes: l.changes}
	v.active = i == len(l.segments)-1
	if !v.active {
		v.end = l.segments[i+1].base
	} else if offset >= l.logEnd {
		return segmentView{}, false
	}
	s.retain()
	return v, true
}

func (v *segmentView) close() { v.segment.release() }

// prepare opens what is not yet open.
func (v *segmentView) prepare() error {
	if v.file == nil {
		f, err := v.log.open(v.segment)
		if err != nil {
			return err
		}
		v.file = f
	}
	if v.loaded {
		return nil
	}
	err := v.log.loadIndexes(v.segment)
	if errors.Is(err, errIndex) {
		// A broken index of an old segment costs the time to read the segment from its begin, nothing else.
		v.log.logger.Warn("index is not used", "segment", v.segment.base, "error", err)
		v.offsets = index{entry: offsetEntryBytes}
		v.loaded = true
		return nil
	}
	if err != nil {
		return err
	}
	v.log.mu.RLock()
	v.offsets, v.loaded = v.segment.offsets, true
	v.log.mu.RUnlock()
	return nil
}

// awaitNames waits until the list of segments agrees with the names of the files.
func (l *Log) awaitNames() {
	l.names.RLock()
	defer l.names.RUnlock()
}

// moved says whether the log was cut, the segment deleted, or the cleaner has replaced segments, since the view was made, so that
// what was found may be wrong.
func (v *segmentView) moved() bool {
	v.log.mu.RLock()
	defer v.log.mu.RUnlock()
	return v.log.changes != v.changes || v.segment.leaving.Load()
}

// readError tells a file that was cut during the read from a broken one.
func (v *segmentView) readError(err error) error {
	if v.moved() {
		return errMoved
	}
	if errcode.Of(err) != errcode.UnknownServerError {
		return err
	}
	return errcode.KafkaStorageError.Wrap(fmt.Errorf("read segment %d of %s: %w", v.segment.base, v.log.dir, err))
}

// read gives the batches of this segment; false when there is none at or after the offset.
func (v *segmentView) read(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, bool, error) {
	first, err := v.find(offset)
	if err != nil || first.size == 0 {
		return storage.Records{}, false, err
	}
	end := v.size
	if limit < v.end {
		last, err := v.find(limit)
		if err != nil {
			return storage.Records{}, false, err
		}
		if last.size != 0 {
			end = last.position
		}
	}
	if end-first.position > int64(maxBytes) {
		if end, err = v.cut(first, max(maxBytes, 0), minOne); err != nil {
			return storage.Records{}, false, err
		}
	}
	if end <= first.position {
		return storage.Records{}, true, nil
	}
	if err := v.prepare(); err != nil {
		return storage.Records{}, false, err
	}
	v.segment.retain()
	return storage.Records{Files: []storage.FileRegion{{
		File: v.file.OS(), Offset: first.position, Length: int(end - first.position), Done: v.segment.done,
	}}}, true, nil
}

// find gives the batch that holds an offset, or the next one; a batch of size 0 when there is none in the segment.
func (v *segmentView) find(offset int64) (recentBatch, error) {
	if v.active {
		v.log.mu.RLock()
		b, ok := v.log.recent.find(offset)
		// The writer may have begun another segment, or cut this one, since the view was made.
		ok = ok && v.log.changes == v.changes && v.log.active() == v.segment && b.position+int64(b.size) <= v.size
		v.log.mu.RUnlock()
		if ok {
			return b, nil
		}
	}
	if err := v.prepare(); err != nil {
		return recentBatch{}, err
	}
	page := v.log.pools.page()
	defer v.log.pools.freePage(page)
	position, err := v.seek(offset-v.segment.base, entryOffset, *page)
	if err != nil {
		return recentBatch{}, err
	}
	scan := scanner{file: v.file, at: position, end: v.size, buf: (*page)[:scanBytes]}
	for {
		h, err := scan.next()
		if err != nil || h == nil {
			return recentBatch{}, err
		}
		if h.LastOffset() >= offset {
			return recentBatch{base: h.BaseOffset(), last: h.LastOffset(), position: scan.position, size: int32(h.Size())}, nil
		}
	}
}

// seek gives the position of the last index entry whose field is not above target; the begin of the segment when there is
// none. An entry beyond the view's end has been written since, and is not used.
func (v *segmentView) seek(target int64, field func([]byte) int64, page []byte) (int64, error) {
	slot, entry, err := v.offsets.search(target, field, page)
	if err != nil || slot < 0 {
		return 0, err
	}
	if p := entryPosition(entry[:]); p < v.size {
		return p, nil
	}
	return 0, nil
}

// cut gives the end of the last whole batch within maxBytes of the first one's begin.
func (v *segmentView) cut(first recentBatch, maxBytes int, minOne bool) (int64, error) {
	if int(first.size) >= maxBytes {
		if minOne || int(first.size) == maxBytes {
			return first.position + int64(first.size), nil
		}
		return first.position, nil
	}
	most := first.position + int64(maxBytes)
	if v.active {
		v.log.mu.RLock()
		end, ok := v.log.recent.floor(most)
		ok = ok && v.log.changes == v.changes && v.log.active() == v.segment && end >= first.position
		v.log.mu.RUnlock()
		if ok {
			return end, nil
		}
	}
	if err := v.prepare(); err != nil {
		return 0, err
	}
	page := v.log.pools.page()
	defer v.log.pools.freePage(page)
	position, err := v.seek(most, entryPosition, *page)
	if err != nil {
		return 0, err
	}
	scan := scanner{file: v.file, at: max(position, first.position), end: v.size, buf: (*page)[:scanBytes]}
	for {
		h, err := scan.next()
		if err != nil || h == nil {
			return scan.position, err
		}
		if scan.position+int64(h.Size()) > most {
			return scan.position, nil
		}
	}
}

// readFull fills p from an offset on; a file that ends before gives io.ErrUnexpectedEOF.
func readFull(f vfs.File, p []byte, at int64) error {
	n, err := f.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// scanner reads batch headers one after the other, several with one read where the batches are small.
type scanner struct {
	file vfs.File
	at   int64 // of the next batch
	end  int64
	buf  []byte

	position int64 // of the current batch, or where the next one would be
	start, n int64 // what buf holds
}

// next gives the next header, valid until the next call; nil at the end.
func (s *scanner) next() (recordbatch.Header, error) {
	s.position = s.at
	if s.at >= s.end {
		return nil, nil
	}
	if s.at < s.start || s.at+recordbatch.HeaderSize > s.start+s.n {
		want := min(int64(len(s.buf)), s.end-s.at)
		if err := readFull(s.file, s.buf[:want], s.at); err != nil {
			return nil, err
		}
		s.start, s.n = s.at, want
	}
	rest := s.buf[s.at-s.start : s.n]
	if len(rest) < recordbatch.HeaderSize {
		return nil, errcode.CorruptMessage.Errorf("%d bytes at %d are no batch", len(rest), s.at)
	}
	h := recordbatch.Header(rest[:recordbatch.HeaderSize])
	if h.Magic() != recordbatch.Magic || h.Size() < recordbatch.HeaderSize || s.at+int64(h.Size()) > s.end || h.LastOffsetDelta() < 0 {
		return nil, errcode.CorruptMessage.Errorf("bad batch at %d: %s", s.at, h)
	}
	s.at += int64(h.Size())
	return h, nil
}

// headerAt reads the header of the batch at a position. Writer only.
func (l *Log) headerAt(s *segment, position int64) (recordbatch.Header, error) {
	f, err := l.open(s)
	if err != nil {
		return nil, err
	}
	scan := scanner{file: f, at: position, end: s.size, buf: make([]byte, recordbatch.HeaderSize)}
	h, err := scan.next()
	if err == nil && h == nil {
		err = io.ErrUnexpectedEOF
	}
	return h, err
}

// AbortedTransactions are those that a reader of the offsets from one up to, and without, another has to skip. Any
// goroutine may call it.
func (l *Log) AbortedTransactions(from, to int64) ([]storage.AbortedTransaction, error) {
	l.mu.RLock()
	i := max(0, l.segmentAt(from))
	segments := l.segments[i:]
	l.mu.RUnlock()
	var out []storage.AbortedTransaction
	for _, s := range segments {
		list, err := l.abortedOf(s)
		if err != nil {
			return nil, errcode.KafkaStorageError.Wrap(fmt.Errorf("transaction index of segment %d of %s: %w", s.base, l.dir, err))
		}
		for _, t := range list {
			if t.last >= from && t.first < to {
				out = append(out, storage.AbortedTransaction{ProducerID: t.producerID, FirstOffset: t.first})
			}
			if t.lastStable >= to {
				return out, nil
			}
		}
	}
	return out, nil
}

// abortedOf gives a segment's aborted transactions, from its file at first. A file that is gone is that of a segment that
// has been deleted since, whose records the reader cannot get either.
func (l *Log) abortedOf(s *segment) ([]abortedTxn, error) {
	l.mu.RLock()
	list, loaded := s.aborted, s.abortedLoaded
	l.mu.RUnlock()
	if loaded {
		return list, nil
	}
	list, err := loadAbortedTxns(l.fs, s.path(txnIndexSuffix), s.base)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.abortedLoaded {
		s.aborted, s.abortedLoaded = list, true
	}
	return s.aborted, nil
}

// ReadCommitted is Read, with the aborted transactions that a reader of offsets below limit has to skip.
func (l *Log) ReadCommitted(offset int64, maxBytes int, limit int64, minOne bool) (storage.Records, []storage.AbortedTransaction, error) {
	for range readRetries {
		// The cleaner drops an aborted transaction together with its records, so both must be from before or after it.
		before := l.changesNow()
		r, err := l.Read(offset, maxBytes, limit, minOne)
		if err != nil {
			return r, nil, err
		}
		aborted, err := l.AbortedTransactions(offset, limit)
		if l.changesNow() == before {
			return r, aborted, err
		}
		r.Release()
	}
	return storage.Records{}, nil, errcode.UnknownServerError.Wrap(fmt.Errorf("read %s at %d: %w", l.dir, offset, errMoved))
}
