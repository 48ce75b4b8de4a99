// Package blob is what segmentstore needs of an object store: named objects that are put whole and read by ranges.
//
// It owns the interface and its rules; it must never know what is in an object. An implementation makes each request once:
// attempts, deadlines, back-off and concurrency belong to segmentstore, which is why every error must be one of the kinds of
// objectstore.
package blob

import (
	"context"
	"io"
	"time"
)

// Store is an object store. All methods may be called from any goroutine, return errors of objectstore's kinds, and end
// when the context does.
type Store interface {
	// Put makes an object durable. When it was to be made only if absent and there is one, the error is ErrExists.
	Put(ctx context.Context, object PutObject) error
	// Get reads the bytes [start, end) of an object. objectBytes is the size of the whole object, or -1 when the store does
	// not say. A start beyond the object's end is objectstore.ErrCorrupt: the caller knew the size. Errors of the stream
	// are of objectstore's kinds; it may end early without one, which the caller has to notice.
	Get(ctx context.Context, key string, start, end int64) (body io.ReadCloser, objectBytes int64, err error)
	// Head describes an object.
	Head(ctx context.Context, key string) (Info, error)
	// Delete deletes up to MaxDelete objects; errs is nil or has an error for each that could not be deleted. An object that
	// is not there is deleted.
	Delete(ctx context.Context, keys []string) (errs []error)
	// List gives a page of the objects whose keys begin with a prefix: the first one for an empty token, the next for what
	// the page before had as Next. The order is the store's own.
	List(ctx context.Context, prefix, token string) (Page, error)
	// Close gives back connections.
	Close() error
}

// MaxDelete is how many objects one Delete takes.
const MaxDelete = 1000

// PutObject is an object to be made.
type PutObject struct {
	Key   string
	Body  io.ReaderAt
	Bytes int64
	// LogBytes is how many of the bytes, from the first on, are the log; a store that people look at may keep them apart.
	LogBytes int64
	// CRC32C is the checksum of the body; the store refuses a body that differs.
	CRC32C uint32
	// Metadata is kept with the object, for people and for Head.
	Metadata map[string]string
	// IfAbsent makes the store refuse to replace an object. A store that cannot do so ignores it.
	IfAbsent bool
}

// Info describes an object.
type Info struct {
	Key          string
	Bytes        int64
	LastModified time.Time
	// Metadata is only in the answer of Head, with names in lower case.
	Metadata map[string]string
}

// Page is a part of a listing; Next is empty at the end.
type Page struct {
	Objects []Info
	Next    string
}

// Multipart is a store that takes large objects in parts.
type Multipart interface {
	// CreateUpload begins an upload.
	CreateUpload(ctx context.Context, object PutObject) (uploadID string, err error)
	// UploadPart uploads a part; parts are numbered from 1. Body, Bytes and CRC32C are those of the part.
	UploadPart(ctx context.Context, uploadID string, number int32, part PutObject) (Part, error)
	// CompleteUpload makes the object of its parts. objectstore.ErrNotFound says that there is no such upload, or no
	// longer; ErrExists as with Put; ErrConflict that the upload has to be begun again.
	CompleteUpload(ctx context.Context, uploadID string, parts []Part, object PutObject) error
}

// Part is an uploaded part.
type Part struct {
	Number int32
	ETag   string
	CRC32C uint32
}

// Unfinished is a store that can list uploads that were begun and not finished.
type Unfinished interface {
	// ListUploads calls visit for each unfinished upload of a key with a prefix.
	ListUploads(ctx context.Context, prefix string, visit func(Upload) error) error
	// AbortUpload ends an upload; not being there counts as ended.
	AbortUpload(ctx context.Context, key, uploadID string) error
}

// Upload is an unfinished upload.
type Upload struct {
	Key      string
	UploadID string
	Begun    time.Time
}
