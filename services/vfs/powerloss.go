package vfs

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// PowerLoss is a file system that forgets what was not synced, for tests. It works on real files, and knows of each what is
// durable: the bytes by Sync, the names in a directory by SyncDir. As on file systems with a journal, changes of names that
// have not been synced survive in their order: some of the first, none of the later ones.
type PowerLoss struct {
	FS

	mu sync.Mutex
	// names are the states that the names may be found in, the newest last; the first is durable.
	names []map[string]*inode
}

// inode is a file, whatever its name.
type inode struct{ synced []byte }

// NewPowerLoss makes one on top of a file system, of files that are made from now on.
func NewPowerLoss(fs FS) *PowerLoss { return &PowerLoss{FS: fs, names: []map[string]*inode{{}}} }

// change adds a state of the names. The lock is held.
func (p *PowerLoss) change(f func(names map[string]*inode)) {
	next := maps.Clone(p.names[len(p.names)-1])
	f(next)
	p.names = append(p.names, next)
}

func (p *PowerLoss) now() map[string]*inode { return p.names[len(p.names)-1] }

// OpenFile opens a file whose unsynced bytes can be lost.
func (p *PowerLoss) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	if flag&os.O_WRONLY != 0 {
		flag = flag&^os.O_WRONLY | os.O_RDWR // Sync reads what it makes durable
	}
	f, err := p.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.now()[name]
	if n == nil {
		n = &inode{}
		p.change(func(names map[string]*inode) { names[name] = n })
	}
	return powerLossFile{File: f, fs: p, inode: n}, nil
}

// Rename moves a file or a directory.
func (p *PowerLoss) Rename(from, to string) error {
	if err := p.FS.Rename(from, to); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(func(names map[string]*inode) {
		for name, n := range p.now() {
			if name == from || strings.HasPrefix(name, from+"/") {
				delete(names, name)
				names[to+strings.TrimPrefix(name, from)] = n
			}
		}
	})
	return nil
}

// Remove removes a file.
func (p *PowerLoss) Remove(name string) error {
	if err := p.FS.Remove(name); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(func(names map[string]*inode) { delete(names, name) })
	return nil
}

// SyncDir makes the names in a directory durable, and, as a journal does, all changes before.
func (p *PowerLoss) SyncDir(name string) error {
	if err := p.FS.SyncDir(name); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = slices.Clone(p.names[len(p.names)-1:])
	return nil
}

// Lose cuts the power: of the changes of names only some survive, and of each file's bytes those that were synced and some of
// the rest. choose gives a number from 0 to n for what survives. The files must not be in use any more.
func (p *PowerLoss) Lose(choose func(what string, n int) int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	survivors := p.names[choose("changes of names", len(p.names)-1)]
	contents := map[*inode][]byte{}
	for name, n := range p.now() {
		data, err := p.ReadFile(name)
		if err != nil {
			return err
		}
		contents[n] = data
		if err := p.FS.Remove(name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(survivors)) {
		n := survivors[name]
		data := n.synced
		// Bytes behind the synced ones may have reached the disk on their own, also with zeros where they have not.
		if now := contents[n]; len(now) > len(data) && string(now[:len(data)]) == string(data) {
			reached := len(data) + choose("bytes of "+filepath.Base(name), len(now)-len(data))
			length := reached + choose("zeros of "+filepath.Base(name), len(now)-reached)
			data = append(slices.Clone(now[:reached]), make([]byte, length-reached)...)
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
		n.synced = data
	}
	p.names = []map[string]*inode{survivors}
	return nil
}

type powerLossFile struct {
	File
	fs    *PowerLoss
	inode *inode
}

func (f powerLossFile) Sync() error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	data := make([]byte, size)
	if n, err := f.ReadAt(data, 0); n < len(data) {
		return err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.inode.synced = data
	return nil
}
