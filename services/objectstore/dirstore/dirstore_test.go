package dirstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/blob"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/dirstore"
	"chancery/services/objectstore/segmentobject"
	"chancery/services/objectstore/segmentstore"
)

// layouts are the ways in which the store is used: as in the registry, and with objects of one file each.
var layouts = map[string]segmentobject.Layout{"by name": segmentobject.ByTopicName, "by id": segmentobject.ByTopicID}

func open(t *testing.T, root string, layout segmentobject.Layout, deps segmentstore.Deps) *segmentstore.Manager {
	t.Helper()
	store, err := dirstore.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	config := segmentstore.DefaultConfig()
	config.ClusterID, config.Layout = "cluster", layout
	deps.Meter, deps.Logger = noop.Meter{}, slog.New(slog.DiscardHandler)
	m, err := segmentstore.New(store, config, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestContract(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { return open(t, root, layout, segmentstore.Deps{}) })
		})
	}
}

// People find a segment by its topic's name, as a file with the bytes of the log alone.
func TestFilesForPeople(t *testing.T) {
	root := t.TempDir()
	m := open(t, root, segmentobject.ByTopicName, segmentstore.Deps{})
	s, d, log := contract.Segment(uuid.Random(), 1234, 5000)
	contract.Copy(t, m, s, d)
	name := filepath.Join(root, "v1/cluster/orders", s.TopicID.String(), "0/00000000000000001234.5-"+s.ID.String())
	got, err := os.ReadFile(name + ".log")
	if err != nil || !bytes.Equal(got, log) {
		t.Errorf("%d bytes, %v; want the log's %d", len(got), err, len(log))
	}
	if _, err := os.Stat(name + ".indexes"); err != nil {
		t.Error(err)
	}
	if errs := m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
		t.Fatal(errs)
	}
	if names := files(t, root); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

// What was copied when objects were named by topic ids is read, listed and deleted as before.
func TestLayoutOfBefore(t *testing.T) {
	root := t.TempDir()
	s, d, log := contract.Segment(uuid.Random(), 0, 5000)
	contract.Copy(t, open(t, root, segmentobject.ByTopicID, segmentstore.Deps{}), s, d)
	m := open(t, root, segmentobject.ByTopicName, segmentstore.Deps{})
	if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
		t.Error("the bytes differ")
	}
	key, err := m.ObjectKey(s)
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	err = m.ListObjects(t.Context(), objectstore.Scope{TopicID: s.TopicID}, func(o objectstore.Object) error {
		listed++
		if o.Key != key || o.Segment == nil || o.Segment.ID != s.ID {
			t.Errorf("got %+v, want %s", o, key)
		}
		return nil
	})
	if err != nil || listed != 1 {
		t.Errorf("%d objects, %v", listed, err)
	}
	if errs := m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
		t.Fatal(errs)
	}
	if names := files(t, root); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

// files are all files below a folder.
func files(t *testing.T, root string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(name string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A crash between the two files of an object, when it is put or deleted, leaves indexes without a log: no object, but an
// unfinished upload.
func TestIndexesWithoutLog(t *testing.T) {
	root := t.TempDir()
	m := open(t, root, segmentobject.ByTopicName, segmentstore.Deps{})
	s, d, log := contract.Segment(uuid.Random(), 0, 5000)
	contract.Copy(t, m, s, d)
	key, err := m.ObjectKey(s)
	if err != nil {
		t.Fatal(err)
	}
	crash := func() {
		if err := os.Remove(filepath.Join(root, filepath.FromSlash(key))); err != nil {
			t.Fatal(err)
		}
	}
	crash()
	err = m.ListObjects(t.Context(), objectstore.Scope{}, func(o objectstore.Object) error {
		t.Errorf("%s is listed", o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.FetchLogSegment(t.Context(), s, 0, 10); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("read: %v, want not found", err)
	}
	// The same copy once more finishes it.
	contract.Copy(t, m, s, d)
	if got := contract.Read(t, m, s, 0, s.SizeBytes); !bytes.Equal(got, log) {
		t.Error("the bytes differ")
	}
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), false); n != 0 || err != nil {
		t.Errorf("with the log: %d uploads, %v", n, err)
	}
	crash()
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(-time.Hour), false); n != 0 || err != nil {
		t.Errorf("of an hour ago: %d uploads, %v", n, err)
	}
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), false); n != 1 || err != nil {
		t.Errorf("%d uploads, %v, want one", n, err)
	}
	if names := files(t, root); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

func TestKeysStayBelowTheRoot(t *testing.T) {
	s, err := dirstore.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "../x", "/etc/x", "a/../../x", "a//b", ".unfinished/x", "a/./b", "a/x.indexes"} {
		o := blob.PutObject{Key: key, Body: bytes.NewReader(nil)}
		if err := s.Put(t.Context(), o); !errors.Is(err, objectstore.ErrRejected) {
			t.Errorf("%q: %v, want rejected", key, err)
		}
	}
}

// What a crash leaves of a write is no object, and is found as an unfinished upload.
func TestCrashWhileWriting(t *testing.T) {
	root := t.TempDir()
	m := open(t, root, segmentobject.ByTopicName, segmentstore.Deps{})
	left := filepath.Join(root, ".unfinished", uuid.Random().String())
	if err := os.WriteFile(left, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := m.ListObjects(t.Context(), objectstore.Scope{}, func(o objectstore.Object) error {
		t.Errorf("%s is listed", o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(-time.Hour), false); n != 0 || err != nil {
		t.Errorf("of an hour ago: %d %v", n, err)
	}
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), true); n != 1 || err != nil {
		t.Errorf("dry run: %d %v", n, err)
	}
	if n, err := m.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), false); n != 1 || err != nil {
		t.Errorf("abort: %d %v", n, err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// An object that was cut or changed on disk gives an error for what is missing, and never other bytes from the indexes.
func TestDamagedObject(t *testing.T) {
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) { damage(t, layout) })
	}
}

func damage(t *testing.T, layout segmentobject.Layout) {
	root := t.TempDir()
	m := open(t, root, layout, segmentstore.Deps{})
	s, d, _ := contract.Segment(uuid.Random(), 0, 3*objectstore.BlockBytes)
	contract.Copy(t, m, s, d)
	corrupt := func(what string, indexes bool) {
		t.Helper()
		if r, err := m.FetchLogSegment(t.Context(), s, 0, s.SizeBytes); !indexes && !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("%s: log %v, %v", what, r, err)
		}
		if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("%s: indexes %v", what, err)
		}
	}
	for _, name := range files(t, root) {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write := func(b []byte) {
			if err := os.WriteFile(name, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{0, 100, 2 * objectstore.BlockBytes, 3 * objectstore.BlockBytes, len(whole) - 1} {
			if n < len(whole) {
				write(whole[:n])
				corrupt(fmt.Sprintf("%s cut at %d", filepath.Ext(name), n), false)
			}
		}
		for at := range whole {
			if layout == segmentobject.ByTopicName && filepath.Ext(name) == ".log" || at < len(whole)-1 && at != 3*objectstore.BlockBytes {
				continue
			}
			bad := bytes.Clone(whole)
			bad[at] ^= 1
			write(bad)
			corrupt(fmt.Sprintf("%s flipped at %d", filepath.Ext(name), at), true)
		}
		write(whole)
		if filepath.Ext(name) == ".indexes" {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			if _, err := m.FetchLogSegment(t.Context(), s, 0, s.SizeBytes); !errors.Is(err, objectstore.ErrNotFound) {
				t.Errorf("without indexes: %v", err)
			}
			write(whole)
		}
	}
}

// A copy that ends at any step leaves nothing that a deletion with the same metadata does not remove.
func TestCrashAtEachStep(t *testing.T) {
	for name, layout := range layouts {
		for _, step := range segmentstore.Steps {
			t.Run(name+"/"+step, func(t *testing.T) { crashAt(t, layout, step) })
		}
	}
}

func crashAt(t *testing.T, layout segmentobject.Layout, step string) {
	root := t.TempDir()
	crash := errors.New("crash")
	m := open(t, root, layout, segmentstore.Deps{Step: func(name string) error {
		if name == step {
			return crash
		}
		return nil
	}})
	s, d, _ := contract.Segment(uuid.Random(), 0, 5000)
	custom, err := m.CopyLogSegmentData(t.Context(), s, d)
	if err != nil && !errors.Is(err, crash) {
		t.Fatal(err)
	}
	s.Custom = custom
	m.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s})
	after := open(t, root, layout, segmentstore.Deps{})
	if errs := after.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
		t.Fatal(errs)
	}
	if _, err := after.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	if names := files(t, root); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

// A store refuses bytes that differ from their checksum.
func TestPutChecks(t *testing.T) {
	s, err := dirstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := blob.PutObject{Key: "a/b", Body: bytes.NewReader([]byte("hello")), Bytes: 5, CRC32C: segmentobject.Checksum([]byte("hellp"))}
	if err := s.Put(t.Context(), o); !errors.Is(err, objectstore.ErrCorrupt) {
		t.Errorf("another checksum: %v", err)
	}
	if _, err := s.Head(t.Context(), "a/b"); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("it was stored: %v", err)
	}
}
