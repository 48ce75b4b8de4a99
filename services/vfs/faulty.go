package vfs

import (
	"io/fs"
	"os"
)

// Op is an operation that can be made to fail.
type Op string

// The operations that a Faulty file system asks about.
const (
	OpOpen     Op = "open"
	OpRead     Op = "read"
	OpWrite    Op = "write"
	OpSync     Op = "sync"
	OpTruncate Op = "truncate"
	OpRename   Op = "rename"
	OpRemove   Op = "remove"
	OpMkdir    Op = "mkdir"
)

// Faulty is another file system whose operations can fail. Before each one Inject is asked with the file's name; a
// non-nil error is returned in place of the operation. A failed write has first written half of its bytes.
type Faulty struct {
	FS
	Inject func(op Op, name string) error
}

// OpenFile opens a file whose operations can fail.
func (f Faulty) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	if err := f.Inject(OpOpen, name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return faultyFile{File: file, inject: f.Inject, name: name}, nil
}

// ReadFile reads a whole file.
func (f Faulty) ReadFile(name string) ([]byte, error) {
	if err := f.Inject(OpRead, name); err != nil {
		return nil, err
	}
	return f.FS.ReadFile(name)
}

// ReadDir lists a directory.
func (f Faulty) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.Inject(OpRead, name); err != nil {
		return nil, err
	}
	return f.FS.ReadDir(name)
}

// MkdirAll makes a directory and its parents.
func (f Faulty) MkdirAll(name string, perm os.FileMode) error {
	if err := f.Inject(OpMkdir, name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, perm)
}

// Rename moves a file or directory.
func (f Faulty) Rename(from, to string) error {
	if err := f.Inject(OpRename, from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

// Remove removes a file.
func (f Faulty) Remove(name string) error {
	if err := f.Inject(OpRemove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// SyncDir makes the entries of a directory durable.
func (f Faulty) SyncDir(name string) error {
	if err := f.Inject(OpSync, name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

type faultyFile struct {
	File
	inject func(Op, string) error
	name   string
}

func (f faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.inject(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.inject(OpWrite, f.name); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off) // the injected error is the one to tell
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f faultyFile) WriteBuffers(buffers [][]byte, off int64) (int64, error) {
	if err := f.inject(OpWrite, f.name); err != nil {
		n, _ := f.File.WriteBuffers(buffers[:len(buffers)/2], off) // the injected error is the one to tell
		return n, err
	}
	return f.File.WriteBuffers(buffers, off)
}

func (f faultyFile) Sync() error {
	if err := f.inject(OpSync, f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f faultyFile) Truncate(size int64) error {
	if err := f.inject(OpTruncate, f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}
