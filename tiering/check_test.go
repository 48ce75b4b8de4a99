package tiering

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/tiering/internal/remotestate"
)

// oneSegment is a store that lists nothing and answers reads of any segment alike.
type oneSegment struct {
	objectstore.InventoryManager
	err error
}

func (oneSegment) ObjectKey(*objectstore.SegmentMetadata) (string, error) { return "former/key", nil }

func (s oneSegment) FetchLogSegment(context.Context, *objectstore.SegmentMetadata, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader([]byte{1})), s.err
}

// TestMissingSegments: a segment counts as missing only when the store itself says so. What is not in the listing may have been copied
// under another prefix, and be read every day.
func TestMissingSegments(t *testing.T) {
	for name, x := range map[string]struct {
		answer               error
		differences, unknown int
	}{
		"under another prefix": {nil, 0, 0},
		"gone":                 {objectstore.ErrNotFound, 1, 0},
		"store away":           {objectstore.ErrTransient, 0, 1},
	} {
		store := oneSegment{err: x.answer}
		c := &check{server: &Server{store: store}, inventory: store, began: time.Now(), found: map[string]found{}}
		c.segment(t.Context(), ownedShard{}, &remotestate.Entry{
			Segment: &remotelog.Segment{Topic: "t", ID: uuid.Random(), SizeBytes: 10}, State: remotelog.CopyFinished,
		})
		if got := c.report; len(got.Differences) != x.differences || len(got.Errors) != x.unknown {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// listing is a store that lists some objects of each partition.
type listing struct {
	objectstore.InventoryManager
	objects map[int32][]objectstore.Object
}

func (s listing) ListObjects(_ context.Context, scope objectstore.Scope, visit func(objectstore.Object) error) error {
	for _, o := range s.objects[scope.Partition] {
		if err := visit(o); err != nil {
			return err
		}
	}
	return nil
}

// TestDeletedObjectsAreNoOrphans: a segment may be deleted, and forgotten, between the look at the store and that at the metadata.
func TestDeletedObjectsAreNoOrphans(t *testing.T) {
	store := listing{objects: map[int32][]objectstore.Object{1: {{Key: "a"}, {Key: "left"}}, 2: {{Key: "gone"}}}}
	c := &check{inventory: store}
	for key, want := range map[string]bool{"left": true, "gone": false} {
		if there, err := c.isListed(t.Context(), key, remotelog.Partition{Partition: 1}, nil); there != want || err != nil {
			t.Errorf("%s: %t, %v", key, there, err)
		}
	}
}
