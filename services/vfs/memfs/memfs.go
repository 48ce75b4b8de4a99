// Package memfs is a disk in memory that forgets what was not made durable: for tests and simulations of crashes.
//
// It owns what a power loss leaves of files and of directories. It must never be used for a cluster's data.
//
// A file's bytes are durable after Sync. Changes of names (files made, renamed, removed) are durable after SyncDir, in their
// order, as journaling file systems keep them: a power loss keeps some first part of those since the last SyncDir, whichever
// directory it named. What a file holds beyond its last Sync may survive, may be gone, be cut anywhere, or read as zeros or as what was
// there before.
package memfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"chancery/services/vfs"
)

// Disk is a file system. Its methods may be called from any goroutine.
type Disk struct {
	now func() time.Time

	mu sync.Mutex
	// names are the files and directories, durable those that a power loss cannot undo, and journal the changes in between.
	names   map[string]*inode
	durable map[string]*inode
	journal []change
}

// change is one change of names: a name that stands for another file, or for none any more. Changes of one call belong
// together.
type change map[string]*inode

var _ vfs.FS = (*Disk)(nil)

// New makes an empty disk, whose files are dated by a clock.
func New(now func() time.Time) *Disk {
	return &Disk{now: now, names: map[string]*inode{}, durable: map[string]*inode{}}
}

// inode is a file or a directory.
type inode struct {
	isDir    bool
	mu       sync.Mutex
	data     []byte
	durable  []byte
	modified time.Time
	// mirror is a file of the operating system with the same bytes, once somebody has asked for one.
	mirror *os.File
}

func (d *Disk) apply(c change) {
	merge(d.names, c)
	d.journal = append(d.journal, c)
}

func merge(names map[string]*inode, c change) {
	for name, n := range c {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// OpenFile opens a file.
func (d *Disk) OpenFile(name string, flag int, _ os.FileMode) (vfs.File, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[name]
	switch {
	case n != nil && n.isDir:
		return nil, pathError("open", name, fs.ErrInvalid)
	case n == nil && flag&os.O_CREATE == 0:
		return nil, pathError("open", name, fs.ErrNotExist)
	case n == nil:
		if dir := d.names[filepath.Dir(name)]; dir == nil || !dir.isDir {
			return nil, pathError("open", name, fs.ErrNotExist)
		}
		n = &inode{modified: d.now()}
		d.apply(change{name: n})
	}
	f := &file{inode: n, now: d.now}
	if flag&os.O_TRUNC != 0 {
		if err := f.Truncate(0); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// ReadFile reads a whole file.
func (d *Disk) ReadFile(name string) ([]byte, error) {
	n, err := d.find("read", name, false)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.data), nil
}

func (d *Disk) find(op, name string, isDir bool) (*inode, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[name]
	if n == nil || n.isDir != isDir {
		return nil, pathError(op, name, fs.ErrNotExist)
	}
	return n, nil
}

// ReadDir lists a directory, sorted by name.
func (d *Disk) ReadDir(name string) ([]fs.DirEntry, error) {
	if _, err := d.find("readdir", name, true); err != nil {
		return nil, err
	}
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []fs.DirEntry
	for path, n := range d.names {
		if filepath.Dir(path) == name && path != name {
			out = append(out, fs.FileInfoToDirEntry(n.info(path)))
		}
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// Stat describes a file or directory.
func (d *Disk) Stat(name string) (fs.FileInfo, error) {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.names[name]
	if n == nil {
		return nil, pathError("stat", name, fs.ErrNotExist)
	}
	return n.info(name), nil
}

// MkdirAll makes a directory and its parents.
func (d *Disk) MkdirAll(name string, _ os.FileMode) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	made := change{}
	for dir := name; ; dir = filepath.Dir(dir) {
		if n := d.names[dir]; n != nil && !n.isDir {
			return pathError("mkdir", dir, fs.ErrExist)
		} else if n == nil {
			made[dir] = &inode{isDir: true, modified: d.now()}
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if len(made) > 0 {
		d.apply(made)
	}
	return nil
}

// Rename moves a file or directory; it replaces a file.
func (d *Disk) Rename(from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[from] == nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrNotExist}
	}
	moved := change{}
	for name, n := range d.names {
		if rest, ok := below(name, from); ok {
			moved[name] = nil
			moved[to+rest] = n
		}
	}
	d.apply(moved)
	return nil
}

// below gives the part of a path after one of its parents, or after itself.
func below(name, parent string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(name, parent)
	return rest, ok && (rest == "" || rest[0] == filepath.Separator)
}

// Remove removes a file or an empty directory.
func (d *Disk) Remove(name string) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return pathError("remove", name, fs.ErrNotExist)
	}
	for other := range d.names {
		if _, ok := below(other, name); ok && other != name {
			return pathError("remove", name, fs.ErrExist)
		}
	}
	d.apply(change{name: nil})
	return nil
}

// RemoveAll removes a file or a directory with everything in it.
func (d *Disk) RemoveAll(name string) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := change{}
	for other := range d.names {
		if _, ok := below(other, name); ok {
			gone[other] = nil
		}
	}
	if len(gone) > 0 {
		d.apply(gone)
	}
	return nil
}

// Chtimes sets when a file was modified.
func (d *Disk) Chtimes(name string, modified time.Time) error {
	name = filepath.Clean(name)
	d.mu.Lock()
	n := d.names[name]
	d.mu.Unlock()
	if n == nil {
		return pathError("chtimes", name, fs.ErrNotExist)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.modified = modified
	return nil
}

// SyncDir makes all changes of names so far durable.
func (d *Disk) SyncDir(name string) error {
	if _, err := d.find("sync", name, true); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commit(len(d.journal))
	return nil
}

func (d *Disk) commit(changes int) {
	for _, c := range d.journal[:changes] {
		merge(d.durable, c)
	}
	d.journal = d.journal[changes:]
}

// LosePower brings the disk to what a power loss leaves; draw gives a number from 0 to n-1, by which it is chosen. Files that
// are open go on with their own bytes, which nobody else sees any more.
func (d *Disk) LosePower(draw func(n int) int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commit(draw(len(d.journal) + 1))
	d.journal = nil
	left := map[string]*inode{}
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		left[name] = d.durable[name].afterPowerLoss(draw)
	}
	d.names, d.durable = left, maps.Clone(left)
}

// afterPowerLoss is what is left of a file.
func (n *inode) afterPowerLoss(draw func(n int) int) *inode {
	n.mu.Lock()
	defer n.mu.Unlock()
	same := 0
	for same < len(n.data) && same < len(n.durable) && n.data[same] == n.durable[same] {
		same++
	}
	data := n.durable
	if same < len(n.data) || same < len(n.durable) {
		at := same + draw(len(n.data)-same+1)
		switch draw(5) {
		case 0: // nothing since the last sync
		case 1: // everything
			data = n.data
		case 2: // cut anywhere
			data = n.data[:at]
		case 3: // the size is there, the bytes are not
			data = append(slices.Clone(n.data[:at]), make([]byte, len(n.data)-at)...)
		case 4: // what was there before is still there behind what has been written over it
			data = append(slices.Clone(n.data[:at]), n.durable[min(at, len(n.durable)):]...)
		}
	}
	return &inode{isDir: n.isDir, data: slices.Clone(data), durable: slices.Clone(data), modified: n.modified}
}

// info describes a file under a name.
func (n *inode) info(name string) fs.FileInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fileInfo{name: filepath.Base(name), size: int64(len(n.data)), modified: n.modified, isDir: n.isDir}
}

type fileInfo struct {
	name     string
	size     int64
	modified time.Time
	isDir    bool
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) ModTime() time.Time { return i.modified }
func (i fileInfo) IsDir() bool        { return i.isDir }
func (i fileInfo) Sys() any           { return nil }

func (i fileInfo) Mode() fs.FileMode {
	if i.isDir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

// file is an open file.
type file struct {
	*inode
	now func() time.Time
}

var _ vfs.File = (*file)(nil)

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resize(max(len(f.data), int(off)+len(p)))
	copy(f.data[off:], p)
	f.modified = f.now()
	if f.mirror != nil {
		return f.mirror.WriteAt(p, off)
	}
	return len(p), nil
}

func (f *file) WriteBuffers(buffers [][]byte, offset int64) (int64, error) {
	var written int64
	for _, b := range buffers {
		n, err := f.WriteAt(b, offset+written)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// resize cuts the data, or adds zeros.
func (n *inode) resize(size int) {
	if size <= len(n.data) {
		n.data = n.data[:size]
		return
	}
	n.data = append(n.data, make([]byte, size-len(n.data))...)
}

func (f *file) Reserve(int64) error { return nil }

func (f *file) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resize(int(size))
	f.modified = f.now()
	if f.mirror != nil {
		return f.mirror.Truncate(size)
	}
	return nil
}

func (f *file) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.durable = slices.Clone(f.data)
	return nil
}

func (f *file) Size() (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *file) Close() error { return nil }

// OS is a file of the operating system that follows this one; nil when none can be made.
func (f *file) OS() *os.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror != nil {
		return f.mirror
	}
	m, err := anonymousFile()
	if err == nil {
		_, err = m.WriteAt(f.data, 0)
	}
	if err != nil {
		return nil
	}
	f.mirror = m
	return m
}

// String helps when a test prints a disk.
func (d *Disk) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		n := d.names[name]
		fmt.Fprintf(&b, "%s %d bytes, %d durable\n", name, len(n.data), len(n.durable))
	}
	return b.String()
}
