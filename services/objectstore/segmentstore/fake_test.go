package segmentstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/segmentobject"
)

// fakeStore keeps objects in memory and fails as it is told.
type fakeStore struct {
	mu      sync.Mutex
	objects map[string]fakeObject
	uploads map[string]*fakeUpload
	serial  int
	calls   map[string]int
	// before decides about a request before it is done, after about its answer.
	before, after func(ctx context.Context, op string, n int) error
	body          func(io.ReadCloser) io.ReadCloser
}

type fakeObject struct {
	data     []byte
	metadata map[string]string
}

type fakeUpload struct {
	key   string
	parts map[int32][]byte
	begun time.Time
}

func newFakeStore() *fakeStore {
	return &fakeStore{objects: make(map[string]fakeObject), uploads: make(map[string]*fakeUpload), calls: make(map[string]int)}
}

func refused(kind error, op string, cause error) error {
	return &objectstore.Error{Kind: kind, Op: op, Key: "k", Err: cause}
}

// request runs a request with its hooks.
func (f *fakeStore) request(ctx context.Context, op string, do func() error) error {
	f.mu.Lock()
	f.calls[op]++
	n, before, after := f.calls[op], f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, op, n); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	err := do()
	f.mu.Unlock()
	if err == nil && after != nil {
		err = after(ctx, op, n)
	}
	return err
}

func (f *fakeStore) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// content is what a request brings, with the checksum that it says.
func content(o blob.PutObject) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(o.Body, 0, o.Bytes))
	if err == nil && segmentobject.Checksum(data) != o.CRC32C {
		err = refused(objectstore.ErrRejected, "put", errors.New("another checksum"))
	}
	return data, err
}

func (f *fakeStore) Put(ctx context.Context, o blob.PutObject) error {
	return f.request(ctx, "put", func() error {
		if _, ok := f.objects[o.Key]; ok && o.IfAbsent {
			return refused(objectstore.ErrRejected, "put", blob.ErrExists)
		}
		data, err := content(o)
		f.objects[o.Key] = fakeObject{data, o.Metadata}
		return err
	})
}

func (f *fakeStore) Get(ctx context.Context, key string, start, end int64) (body io.ReadCloser, size int64, err error) {
	err = f.request(ctx, "get", func() error {
		o, ok := f.objects[key]
		if !ok {
			return refused(objectstore.ErrNotFound, "get", nil)
		}
		size = int64(len(o.data))
		body = io.NopCloser(bytes.NewReader(o.data[min(start, size):min(end, size)]))
		if f.body != nil {
			body = f.body(body)
		}
		return nil
	})
	return body, size, err
}

func (f *fakeStore) Head(ctx context.Context, key string) (info blob.Info, err error) {
	err = f.request(ctx, "head", func() error {
		o, ok := f.objects[key]
		if !ok {
			return refused(objectstore.ErrNotFound, "head", nil)
		}
		info = blob.Info{Key: key, Bytes: int64(len(o.data)), Metadata: o.metadata}
		return nil
	})
	return info, err
}

func (f *fakeStore) Delete(ctx context.Context, keys []string) []error {
	err := f.request(ctx, "delete", func() error {
		for _, k := range keys {
			delete(f.objects, k)
		}
		return nil
	})
	if err == nil {
		return nil
	}
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// List gives pages of three.
func (f *fakeStore) List(ctx context.Context, prefix, token string) (page blob.Page, err error) {
	err = f.request(ctx, "list", func() error {
		page = blob.Page{}
		for _, key := range slices.Sorted(maps.Keys(f.objects)) {
			if !strings.HasPrefix(key, prefix) || key <= token {
				continue
			}
			if len(page.Objects) == 3 {
				page.Next = page.Objects[2].Key
				return nil
			}
			page.Objects = append(page.Objects, blob.Info{Key: key, Bytes: int64(len(f.objects[key].data)), LastModified: time.Now()})
		}
		return nil
	})
	return page, err
}

func (f *fakeStore) Close() error { return nil }

func (f *fakeStore) CreateUpload(ctx context.Context, o blob.PutObject) (id string, err error) {
	err = f.request(ctx, "create_upload", func() error {
		f.serial++
		id = fmt.Sprint(f.serial)
		f.uploads[id] = &fakeUpload{key: o.Key, parts: make(map[int32][]byte), begun: time.Now()}
		return nil
	})
	return id, err
}

func (f *fakeStore) UploadPart(ctx context.Context, id string, number int32, p blob.PutObject) (blob.Part, error) {
	err := f.request(ctx, "upload_part", func() error {
		u := f.uploads[id]
		if u == nil {
			return refused(objectstore.ErrNotFound, "upload_part", nil)
		}
		data, err := content(p)
		u.parts[number] = data
		return err
	})
	return blob.Part{Number: number, CRC32C: p.CRC32C}, err
}

func (f *fakeStore) CompleteUpload(ctx context.Context, id string, parts []blob.Part, o blob.PutObject) error {
	return f.request(ctx, "complete_upload", func() error {
		u := f.uploads[id]
		if u == nil {
			return refused(objectstore.ErrNotFound, "complete_upload", nil)
		}
		var data []byte
		for _, p := range parts {
			data = append(data, u.parts[p.Number]...)
		}
		if int64(len(data)) != o.Bytes {
			return refused(objectstore.ErrRejected, "complete_upload", errors.New("another size"))
		}
		delete(f.uploads, id)
		f.objects[u.key] = fakeObject{data, o.Metadata}
		return nil
	})
}

func (f *fakeStore) ListUploads(ctx context.Context, prefix string, visit func(blob.Upload) error) error {
	var all []blob.Upload
	err := f.request(ctx, "list_uploads", func() error {
		for id, u := range f.uploads {
			if strings.HasPrefix(u.key, prefix) {
				all = append(all, blob.Upload{Key: u.key, UploadID: id, Begun: u.begun})
			}
		}
		return nil
	})
	for _, u := range all {
		if err := visit(u); err != nil {
			return err
		}
	}
	return err
}

func (f *fakeStore) AbortUpload(ctx context.Context, _, id string) error {
	return f.request(ctx, "abort_upload", func() error {
		delete(f.uploads, id)
		return nil
	})
}
