package objectstore

import (
	"context"
	"io"
	"time"

	"chancery/services/kafka/uuid"
)

// RemoteStorageManager keeps closed segments, as Kafka's plug-in of that name does. All methods may be called from any
// goroutine.
type RemoteStorageManager interface {
	// CopyLogSegmentData copies a segment and returns what a later read needs to find it, at most
	// remote.log.metadata.custom.metadata.max.bytes (128) bytes. The caller records it as SegmentMetadata.Custom.
	CopyLogSegmentData(ctx context.Context, segment *SegmentMetadata, data *SegmentData) (custom []byte, err error)

	// FetchLogSegment reads the bytes [start, end) of the log of a segment; an end beyond the log's means its end. Reads
	// of the stream fail with one of this package's errors; the stream ends with io.EOF only behind the last byte that was
	// asked for.
	FetchLogSegment(ctx context.Context, segment *SegmentMetadata, start, end int64) (io.ReadCloser, error)

	// FetchIndexes reads all indexes of a segment: they are together in the store, so that one request is enough, where
	// Kafka's fetchIndex reads each by itself. The result has been checked.
	FetchIndexes(ctx context.Context, segment *SegmentMetadata) (*Indexes, error)

	// DeleteLogSegmentData deletes segments, also such whose copy was never finished. A segment that is not there counts
	// as deleted. errs is nil when all are deleted; otherwise it has an error, or nil, for each segment.
	DeleteLogSegmentData(ctx context.Context, segments []*SegmentMetadata) (errs []error)

	// Close ends what the manager runs; requests in flight fail.
	Close() error
}

// Inventory is what a manager offers to those who compare the store with the metadata: sweeper and fsck. A manager whose
// store cannot list does without it.
type Inventory interface {
	// ListObjects calls visit for the objects in a scope, in no particular order, until it returns an error.
	ListObjects(ctx context.Context, scope Scope, visit func(Object) error) error
	// DeleteObjects deletes objects by their keys; not being there counts as deleted. errs is as with
	// DeleteLogSegmentData.
	DeleteObjects(ctx context.Context, keys []string) (errs []error)
	// AbortStaleUploads ends uploads below the present prefix that were begun before a time and never finished, which cost money
	// and are in no listing. It returns how many there were; with dryRun it only counts.
	AbortStaleUploads(ctx context.Context, begunBefore time.Time, dryRun bool) (int, error)
	// ObjectKey is the key of a segment's object.
	ObjectKey(segment *SegmentMetadata) (string, error)
}

// InventoryManager is a manager that can be compared with the metadata, which all of Chancery's own are.
type InventoryManager interface {
	RemoteStorageManager
	Inventory
}

// AllPartitions is the partition of a Scope of a whole topic.
const AllPartitions int32 = -1

// Scope says which objects a listing is about: all of the cluster's (the zero topic id), a topic's, or a partition's.
type Scope struct {
	TopicID   uuid.UUID
	Partition int32
	// Former, unless it is nil, is a prefix of keys that was the store's once: the listing is of that one, not of the present one.
	Former *string
}

// Object is one object in the store.
type Object struct {
	Key          string
	SizeBytes    int64
	LastModified time.Time
	// Segment is what the key says: topic id, partition, base offset, the last leader epoch and the segment's id. It is nil
	// when the key is not one of a segment.
	Segment *SegmentMetadata
}
