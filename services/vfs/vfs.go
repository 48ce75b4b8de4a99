// Package vfs is the file system as storage code sees it: a small interface over the operating system's files, so that
// tests can make any single operation fail.
//
// It owns that interface, its one real implementation and the faulty one for tests; it must never cache or reorder, nor
// know what is in the files.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// FS is a file system.
//
//nolint:interfacebloat // as os has them
type FS interface {
	// OpenFile opens a file as os.OpenFile does.
	OpenFile(name string, flag int, perm os.FileMode) (File, error)
	ReadFile(name string) ([]byte, error)
	ReadDir(name string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	MkdirAll(name string, perm os.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
	// Chtimes sets when a file was modified.
	Chtimes(name string, modified time.Time) error
	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
}

// File is an open file.
//
//nolint:interfacebloat // as os.File has them
type File interface {
	io.ReaderAt
	io.WriterAt
	// WriteBuffers writes buffers one behind the other from an offset on, with as few system calls as there can be. It
	// returns how many bytes were written, which is all of them if err is nil.
	WriteBuffers(buffers [][]byte, offset int64) (int64, error)
	// Reserve asks for disk space without changing the file's size. File systems that cannot do it do nothing.
	Reserve(size int64) error
	Truncate(size int64) error
	Sync() error
	Size() (int64, error)
	Close() error
	// OS is the file itself, for sendfile.
	OS() *os.File
}

// unknownMaxOpenFiles is what MaxOpenFiles says where the system does not tell.
const unknownMaxOpenFiles = 1024

// OutOfFiles says whether an error means that the process, or the system, may not open any more files. The disk is well
// then, and the same may go well a moment later.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// OS is the operating system's file system.
type OS struct{}

// OpenFile opens a file.
func (OS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// ReadFile reads a whole file.
func (OS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// ReadDir lists a directory, sorted by name.
func (OS) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }

// Stat describes a file.
func (OS) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// MkdirAll makes a directory and its parents.
func (OS) MkdirAll(name string, perm os.FileMode) error { return os.MkdirAll(name, perm) }

// Rename moves a file or directory; it replaces a file.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove removes a file or an empty directory.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll removes a directory with everything in it.
func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

// Chtimes sets when a file was modified, and leaves the time of the last access alone.
func (OS) Chtimes(name string, modified time.Time) error {
	return os.Chtimes(name, time.Time{}, modified)
}

// SyncDir makes the entries of a directory durable.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type osFile struct{ *os.File }

func (f osFile) OS() *os.File { return f.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// WriteFileAtomically writes a small file so that a reader, also after a crash of the process, finds either the old
// contents or the new. With sync the new contents outlive a crash of the machine, too.
func WriteFileAtomically(fsys FS, name string, data []byte, sync bool) error {
	tmp := name + ".tmp"
	f, err := fsys.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	if sync {
		return fsys.SyncDir(filepath.Dir(name))
	}
	return nil
}

// errShortWrite is a write that the system cut short without saying why.
var errShortWrite = fmt.Errorf("short write: %w", io.ErrShortWrite)
