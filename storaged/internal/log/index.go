package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sort"

	"chancery/services/vfs"
)

const (
	offsetEntryBytes = 8
	timeEntryBytes   = 12
)

// index is one index file of a segment. Entries grow in both of their fields, so one can be looked for by either.
//
// The writer changes it under the log's lock; readers copy it under the lock and look into the copy. That is safe since
// the bytes behind sample and tail are only ever appended to: cutting an index short makes new ones.
type index struct {
	path  string
	entry int
	// file is open once it has been read or written.
	file vfs.File
	n    int
	// sample is the first entry of each full page, tail the entries after the last full page.
	sample []byte
	tail   []byte
}

// How the fields of an entry are read.
func entryOffset(e []byte) int64   { return int64(int32(binary.BigEndian.Uint32(e))) }
func entryPosition(e []byte) int64 { return int64(int32(binary.BigEndian.Uint32(e[4:]))) }
func entryTime(e []byte) int64     { return int64(binary.BigEndian.Uint64(e)) }
func entryTimeOffset(e []byte) int64 {
	return int64(int32(binary.BigEndian.Uint32(e[8:])))
}

func appendOffsetEntry(b []byte, offset, position int64) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(offset))
	return binary.BigEndian.AppendUint32(b, uint32(position))
}

func appendTimeEntry(b []byte, timestamp, offset int64) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(timestamp))
	return binary.BigEndian.AppendUint32(b, uint32(offset))
}

// open opens the file for writing and reading; it is made if it is missing. The caller holds the log's lock.
func (x *index) open(fsys vfs.FS) error {
	if x.file != nil {
		return nil
	}
	f, err := fsys.OpenFile(x.path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	x.file = f
	return nil
}

// add notes entries in memory. The caller holds the log's lock.
func (x *index) add(entries []byte) {
	for len(entries) > 0 {
		x.tail = append(x.tail, entries[:x.entry]...)
		entries = entries[x.entry:]
		x.n++
		if len(x.tail) == pageEntries*x.entry {
			x.sample = append(x.sample, x.tail[:x.entry]...)
			x.tail = nil
		}
	}
}

// writeEntries puts entries behind those in the file of the active segment's index. Writer only.
func (l *Log) writeEntries(x *index, entries []byte) error {
	if len(entries) == 0 {
		return nil
	}
	if x.file == nil {
		l.mu.Lock()
		err := x.open(l.fs)
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
	_, err := x.file.WriteAt(entries, int64(x.n*x.entry))
	return err
}

// load reads the file. What is in it is believed if it can be true: whole entries that grow and lie within the segment.
// errIndex says that it cannot, and the segment must be recovered.
func (x *index) load(fsys vfs.FS, check func(entry []byte) bool) (index, error) {
	out := index{path: x.path, entry: x.entry}
	f, err := fsys.OpenFile(x.path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return out, fmt.Errorf("%w: %s is missing", errIndex, x.path)
	}
	if err != nil {
		return out, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = f.Close()
		}
	}()
	size, err := f.Size()
	if err != nil {
		return out, err
	}
	if size%int64(x.entry) != 0 || size > 1<<31 {
		return out, fmt.Errorf("%w: %s has %d bytes, which are not whole entries", errIndex, x.path, size)
	}
	data := make([]byte, size)
	if err := readFull(f, data, 0); err != nil {
		return out, err
	}
	if size > 0 && (!check(data[:x.entry]) || !check(data[size-int64(x.entry):])) {
		return out, fmt.Errorf("%w: %s has entries outside of its segment", errIndex, x.path)
	}
	for i := x.entry; i < len(data); i += x.entry {
		if !grows(data[i-x.entry:i], data[i:i+x.entry]) {
			return out, fmt.Errorf("%w: %s has entries that do not grow at %d", errIndex, x.path, i)
		}
	}
	out.setAll(data)
	out.file, keep = f, true
	return out, nil
}

// grows says whether one entry may follow another.
func grows(a, b []byte) bool {
	if len(a) == offsetEntryBytes {
		return entryOffset(b) > entryOffset(a) && entryPosition(b) > entryPosition(a)
	}
	return entryTime(b) > entryTime(a) && entryTimeOffset(b) >= entryTimeOffset(a)
}

// setAll takes the contents of the whole file.
func (x *index) setAll(data []byte) {
	page := pageEntries * x.entry
	x.n = len(data) / x.entry
	x.sample = nil
	full := len(data) / page
	for i := range full {
		x.sample = append(x.sample, data[i*page:i*page+x.entry]...)
	}
	x.tail = append([]byte(nil), data[full*page:]...)
}

// cut keeps only the first n entries, in memory and in the file. The caller holds the log's lock.
func (x *index) cut(fsys vfs.FS, n int) error {
	if n < x.n {
		if err := x.open(fsys); err != nil {
			return err
		}
		page := pageEntries * x.entry
		full := n / pageEntries
		tail := make([]byte, n*x.entry-full*page)
		if len(tail) > 0 {
			if _, err := x.file.ReadAt(tail, int64(full*page)); err != nil {
				return err
			}
		}
		x.n, x.sample, x.tail = n, append([]byte(nil), x.sample[:full*x.entry]...), tail
	}
	if x.file == nil {
		return nil
	}
	// Also when nothing is cut off: a file that Kafka left preallocated ends in zeros.
	return x.file.Truncate(int64(x.n * x.entry))
}

// last is the last entry, or nil.
func (x *index) last() ([]byte, error) {
	if x.n == 0 {
		return nil, nil
	}
	if len(x.tail) > 0 {
		return x.tail[len(x.tail)-x.entry:], nil
	}
	e := make([]byte, x.entry)
	_, err := x.file.ReadAt(e, int64((x.n-1)*x.entry))
	return e, err
}

// search finds the last entry whose field is not above target: its place and a copy of it; -1 when there is none. The
// file is read at most once. buf is a page of scratch.
func (x *index) search(target int64, field func([]byte) int64, buf []byte) (slot int, entry [timeEntryBytes]byte, err error) {
	find := func(entries []byte) int {
		return sort.Search(len(entries)/x.entry, func(i int) bool { return field(entries[i*x.entry:]) > target }) - 1
	}
	if i := find(x.tail); i >= 0 {
		copy(entry[:], x.tail[i*x.entry:(i+1)*x.entry])
		return x.n - len(x.tail)/x.entry + i, entry, nil
	}
	page := find(x.sample)
	if page < 0 {
		return -1, entry, nil
	}
	buf = buf[:pageEntries*x.entry]
	if _, err := x.file.ReadAt(buf, int64(page*pageEntries*x.entry)); err != nil {
		return 0, entry, err
	}
	i := find(buf)
	if i < 0 {
		return 0, entry, fmt.Errorf("%w: %s does not hold what it did", errIndex, x.path)
	}
	copy(entry[:], buf[i*x.entry:(i+1)*x.entry])
	return page*pageEntries + i, entry, nil
}

func (x *index) close() error {
	if x.file == nil {
		return nil
	}
	err := x.file.Close()
	x.file = nil
	return err
}
