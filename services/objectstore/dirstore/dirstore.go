// Package dirstore keeps objects as files of a directory: the store of a single machine and of tests, or of a file system
// that several machines share.
//
// It owns the files below its root: each object at its key, and those that are being written in .unfinished. An object is
// written and synced there, then renamed, so that a crash leaves either all of it or none. It must never follow a key out
// of the root.
package dirstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
)

// unfinished is the folder of objects that are being written. No key begins with a dot.
const unfinished = ".unfinished"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is a directory.
type Store struct {
	root string
}

var (
	_ blob.Store      = (*Store)(nil)
	_ blob.Unfinished = (*Store)(nil)
)

// Open makes the directory if it is missing.
func Open(root string) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(root, unfinished), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the object store: %w", err)
	}
	return &Store{root: filepath.Clean(root)}, nil
}

// Close does nothing: no file is open between two requests.
func (s *Store) Close() error { return nil }

// failed makes an error of one of objectstore's kinds.
func failed(op, key string, err error) error {
	kind := objectstore.ErrTransient
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = objectstore.ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		kind = objectstore.ErrCredentials
	case errors.Is(err, objectstore.ErrCorrupt):
		kind = objectstore.ErrCorrupt
	case errors.Is(err, blob.ErrExists), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG):
		kind = objectstore.ErrRejected
	}
	return &objectstore.Error{Kind: kind, Op: op, Key: key, Err: err}
}

// file is the path of an object.
func (s *Store) file(key string) (string, error) {
	if !filepath.IsLocal(key) || path.Clean(key) != key || strings.HasPrefix(key, ".") {
		return "", fmt.Errorf("%q is not a path below the store: %w", key, syscall.EINVAL)
	}
	return filepath.Join(s.root, filepath.FromSlash(key)), nil
}

// Put writes an object beside its place and renames it.
func (s *Store) Put(ctx context.Context, o blob.PutObject) error {
	name, err := s.file(o.Key)
	if err != nil {
		return failed("put", o.Key, err)
	}
	if o.IfAbsent {
		if _, err := os.Stat(name); err == nil {
			return failed("put", o.Key, blob.ErrExists)
		}
	}
	temporary := filepath.Join(s.root, unfinished, uuid.Random().String())
	if err := write(ctx, temporary, o); err != nil {
		return failed("put", o.Key, errors.Join(err, remove(temporary)))
	}
	if err := s.place(temporary, name); err != nil {
		return failed("put", o.Key, errors.Join(err, remove(temporary)))
	}
	return nil
}

// write makes a durable file of an object, and checks what it was given.
func write(ctx context.Context, name string, o blob.PutObject) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	body := &contextReader{ctx: ctx, r: io.NewSectionReader(o.Body, 0, o.Bytes)}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, sum)}, body, make([]byte, 256<<10))
	switch {
	case err != nil:
	case n != o.Bytes:
		err = fmt.Errorf("%w: %d bytes of %d to be stored", io.ErrUnexpectedEOF, n, o.Bytes)
	case sum.Sum32() != o.CRC32C:
		err = fmt.Errorf("%w: checksum %08x of what was to be stored, want %08x", objectstore.ErrCorrupt, sum.Sum32(), o.CRC32C)
	default:
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// place renames a file to its place. The folders are made again when a deletion has just removed them as empty.
func (s *Store) place(temporary, name string) error {
	dir := filepath.Dir(name)
	for attempt := 0; ; attempt++ {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		err := os.Rename(temporary, name)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || attempt == 10 {
			return err
		}
	}
	for ; len(dir) >= len(s.root); dir = filepath.Dir(dir) {
		if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// contextReader ends a copy when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// Get opens a part of an object.
func (s *Store) Get(ctx context.Context, key string, start, end int64) (io.ReadCloser, int64, error) {
	name, err := s.file(key)
	if err != nil {
		return nil, 0, failed("get", key, err)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, failed("get", key, err)
	}
	info, err := f.Stat()
	if err == nil && start >= info.Size() && end > start {
		err = fmt.Errorf("%w: the object has %d bytes, the range begins at %d", objectstore.ErrCorrupt, info.Size(), start)
	}
	if err != nil {
		return nil, 0, failed("get", key, errors.Join(err, f.Close()))
	}
	section := io.NewSectionReader(f, start, end-start)
	return &body{contextReader{ctx: ctx, r: section}, f, key}, info.Size(), nil
}

// body is an open part of an object.
type body struct {
	contextReader
	file *os.File
	key  string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.contextReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed("get", b.key, err)
	}
	return n, err
}

func (b *body) Close() error { return b.file.Close() }

// Head describes an object; a directory keeps no metadata.
func (s *Store) Head(_ context.Context, key string) (blob.Info, error) {
	name, err := s.file(key)
	if err != nil {
		return blob.Info{}, failed("head", key, err)
	}
	info, err := os.Stat(name)
	if err != nil {
		return blob.Info{}, failed("head", key, err)
	}
	return blob.Info{Key: key, Bytes: info.Size(), LastModified: info.ModTime()}, nil
}

// Delete removes objects, and the folders that are empty after it.
func (s *Store) Delete(ctx context.Context, keys []string) []error {
	var errs []error
	for i, key := range keys {
		if err := s.deleteOne(ctx, key); err != nil {
			if errs == nil {
				errs = make([]error, len(keys))
			}
			errs[i] = failed("delete", key, err)
		}
	}
	return errs
}

func (s *Store) deleteOne(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	name, err := s.file(key)
	if err != nil {
		return err
	}
	if err := remove(name); err != nil {
		return err
	}
	dir := filepath.Dir(name)
	for len(dir) > len(s.root) && os.Remove(dir) == nil { // until one has other objects in it
		dir = filepath.Dir(dir)
	}
	return nil
}

// List walks the folders that can hold keys of the prefix; there is only one page.
func (s *Store) List(ctx context.Context, prefix, _ string) (blob.Page, error) {
	var page blob.Page
	begin := s.root
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		dir, err := s.file(prefix[:i])
		if err != nil {
			return page, failed("list", prefix, err)
		}
		begin = dir
	}
	err := filepath.WalkDir(begin, func(name string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // It was deleted meanwhile.
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir() && e.Name() == unfinished:
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		relative, err := filepath.Rel(s.root, name)
		if err != nil {
			return err
		}
		key := filepath.ToSlash(relative)
		if !strings.HasPrefix(key, prefix) {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		page.Objects = append(page.Objects, blob.Info{Key: key, Bytes: info.Size(), LastModified: info.ModTime()})
		return nil
	})
	if err != nil {
		return page, failed("list", prefix, err)
	}
	return page, nil
}

// ListUploads lists the files that are being written, or that a crash has left. Whose they are is not known, so they are
// listed for every prefix.
func (s *Store) ListUploads(_ context.Context, _ string, visit func(blob.Upload) error) error {
	entries, err := os.ReadDir(filepath.Join(s.root, unfinished))
	if err != nil {
		return failed("list_uploads", "", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return failed("list_uploads", e.Name(), err)
		}
		if err := visit(blob.Upload{UploadID: e.Name(), Begun: info.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

// AbortUpload removes such a file.
func (s *Store) AbortUpload(_ context.Context, _, uploadID string) error {
	if filepath.Base(uploadID) != uploadID {
		return failed("abort_upload", uploadID, syscall.EINVAL)
	}
	if err := remove(filepath.Join(s.root, unfinished, uploadID)); err != nil {
		return failed("abort_upload", uploadID, err)
	}
	return nil
}
