// Package dirstore keeps objects as files of a directory: the store of a single machine and of tests, or of a file system
// that several machines share.
//
// It owns the files below its root: each object at its key, and those that are being written in .unfinished. An object whose
// key ends in .log is two files: the log alone, which Kafka's tools read, and beside it, with .indexes for .log, all that
// follows the log in the object. Files are written and synced in .unfinished, then renamed, the log last: with it the object
// is there. Deleted it goes first. So a crash leaves all of an object, or none, or indexes without a log, which count as an
// unfinished upload. It must never follow a key out of the root.
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

// The two files of an object whose log is kept by itself.
const (
	logSuffix     = ".log"
	indexesSuffix = ".indexes"
)

// indexesOf is the file, or the key, beside a log; empty for an object that is one file.
func indexesOf(name string) string {
	if rest, ok := strings.CutSuffix(name, logSuffix); ok {
		return rest + indexesSuffix
	}
	return ""
}

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
	if !filepath.IsLocal(key) || path.Clean(key) != key || strings.HasPrefix(key, ".") || strings.HasSuffix(key, indexesSuffix) {
		return "", fmt.Errorf("%q is not a path below the store: %w", key, syscall.EINVAL)
	}
	return filepath.Join(s.root, filepath.FromSlash(key)), nil
}

// piece is a part of an object that is a file.
type piece struct {
	name       string
	temporary  string
	start, end int64
}

// Put writes the files of an object beside their places and renames them.
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
	pieces := []piece{{name: name, end: o.Bytes}}
	if indexes := indexesOf(name); indexes != "" {
		pieces = []piece{{name: name, end: o.LogBytes}, {name: indexes, start: o.LogBytes, end: o.Bytes}}
	}
	for i := range pieces {
		pieces[i].temporary = filepath.Join(s.root, unfinished, uuid.Random().String())
	}
	err = write(ctx, pieces, o)
	for i := len(pieces) - 1; i >= 0 && err == nil; i-- {
		err = s.place(pieces[i].temporary, pieces[i].name)
	}
	if err != nil {
		for _, p := range pieces {
			err = errors.Join(err, remove(p.temporary))
		}
		return failed("put", o.Key, err)
	}
	return nil
}

// write makes durable files of an object, and checks what it was given.
func write(ctx context.Context, pieces []piece, o blob.PutObject) error {
	sum := crc32.New(castagnoli)
	for _, p := range pieces {
		if err := writePiece(ctx, p, o.Body, sum); err != nil {
			return err
		}
	}
	if sum.Sum32() != o.CRC32C {
		return fmt.Errorf("%w: checksum %08x of what was to be stored, want %08x", objectstore.ErrCorrupt, sum.Sum32(), o.CRC32C)
	}
	return nil
}

func writePiece(ctx context.Context, p piece, from io.ReaderAt, sum io.Writer) error {
	f, err := os.OpenFile(p.temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	body := &contextReader{ctx: ctx, r: io.NewSectionReader(from, p.start, p.end-p.start)}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, sum)}, body, make([]byte, 256<<10))
	switch {
	case err != nil:
	case n != p.end-p.start:
		err = fmt.Errorf("%w: %d bytes of %d to be stored", io.ErrUnexpectedEOF, n, p.end-p.start)
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
	b := &body{key: key, contextReader: contextReader{ctx: ctx}}
	size, err := b.open(name, start, end)
	if err == nil && start >= size && end > start {
		err = fmt.Errorf("%w: the object has %d bytes, the range begins at %d", objectstore.ErrCorrupt, size, start)
	}
	if err != nil {
		return nil, 0, failed("get", key, errors.Join(err, b.Close()))
	}
	return b, size, nil
}

// body is an open part of an object.
type body struct {
	contextReader
	files []*os.File
	key   string
}

// open opens what files a range of an object is in, and says how long the whole object is.
func (b *body) open(name string, start, end int64) (size int64, err error) {
	var readers []io.Reader
	for _, name := range []string{name, indexesOf(name)} {
		if name == "" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		b.files = append(b.files, f)
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		from, to := max(start-size, 0), min(end-size, info.Size())
		if from < to {
			readers = append(readers, io.NewSectionReader(f, from, to-from))
		}
		size += info.Size()
	}
	b.r = io.MultiReader(readers...)
	return size, nil
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.contextReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed("get", b.key, err)
	}
	return n, err
}

func (b *body) Close() error {
	var errs []error
	for _, f := range b.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

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
	return describe(key, name, info), nil
}

// describe is an object whose file, or whose log, is there. Indexes that are missing make it as short as it is.
func describe(key, name string, info fs.FileInfo) blob.Info {
	out := blob.Info{Key: key, Bytes: info.Size(), LastModified: info.ModTime()}
	if indexes := indexesOf(name); indexes != "" {
		if more, err := os.Stat(indexes); err == nil {
			out.Bytes += more.Size()
		}
	}
	return out
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
	return s.removeFiles(name, indexesOf(name))
}

// removeFiles removes the files of one folder one after the other, and the folders that are empty after it.
func (s *Store) removeFiles(names ...string) error {
	for _, name := range names {
		if name == "" {
			continue
		}
		if err := remove(name); err != nil {
			return err
		}
	}
	dir := filepath.Dir(names[0])
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
	err := s.walk(ctx, begin, func(name, key string, e fs.DirEntry) error {
		if !strings.HasPrefix(key, prefix) || strings.HasSuffix(key, indexesSuffix) {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		page.Objects = append(page.Objects, describe(key, name, info))
		return nil
	})
	if err != nil {
		return page, failed("list", prefix, err)
	}
	return page, nil
}

// walk calls visit for the files in a folder, other than those that are being written.
func (s *Store) walk(ctx context.Context, begin string, visit func(name, key string, e fs.DirEntry) error) error {
	writing := filepath.Join(s.root, unfinished)
	return filepath.WalkDir(begin, func(name string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // It was deleted meanwhile.
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir() && name == writing:
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		relative, err := filepath.Rel(s.root, name)
		if err != nil {
			return err
		}
		return visit(name, filepath.ToSlash(relative), e)
	})
}

// ListUploads lists the files that are being written, or that a crash has left. Whose they are is not known, so they are
// listed for every prefix. Indexes without a log have the key of their object.
func (s *Store) ListUploads(ctx context.Context, _ string, visit func(blob.Upload) error) error {
	entries, err := os.ReadDir(filepath.Join(s.root, unfinished))
	if err != nil {
		return failed("list_uploads", "", err)
	}
	for _, e := range entries {
		if err := visitUpload(e, blob.Upload{UploadID: e.Name()}, visit); err != nil {
			return err
		}
	}
	return s.walk(ctx, s.root, func(name, key string, e fs.DirEntry) error {
		rest, ok := strings.CutSuffix(name, indexesSuffix)
		if !ok {
			return nil
		}
		if _, err := os.Stat(rest + logSuffix); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return visitUpload(e, blob.Upload{Key: strings.TrimSuffix(key, indexesSuffix) + logSuffix}, visit)
	})
}

func visitUpload(e fs.DirEntry, u blob.Upload, visit func(blob.Upload) error) error {
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failed("list_uploads", e.Name(), err)
	}
	u.Begun = info.ModTime()
	return visit(u)
}

// AbortUpload removes such a file.
func (s *Store) AbortUpload(_ context.Context, key, uploadID string) error {
	if uploadID == "" {
		return s.abortIndexes(key)
	}
	if filepath.Base(uploadID) != uploadID {
		return failed("abort_upload", uploadID, syscall.EINVAL)
	}
	if err := remove(filepath.Join(s.root, unfinished, uploadID)); err != nil {
		return failed("abort_upload", uploadID, err)
	}
	return nil
}

// abortIndexes removes indexes that have no log.
func (s *Store) abortIndexes(key string) error {
	name, err := s.file(key)
	if err == nil && indexesOf(name) == "" {
		err = syscall.EINVAL
	}
	if err != nil {
		return failed("abort_upload", key, err)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return err // the object has been put meanwhile
	}
	if err := s.removeFiles(indexesOf(name)); err != nil {
		return failed("abort_upload", key, err)
	}
	return nil
}
