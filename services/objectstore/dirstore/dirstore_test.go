package dirstore_test

import (
	"bytes"
	"errors"
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

func open(t *testing.T, root string, deps segmentstore.Deps) *segmentstore.Manager {
	t.Helper()
	store, err := dirstore.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	config := segmentstore.DefaultConfig()
	config.ClusterID = "cluster"
	deps.Meter, deps.Logger = noop.Meter{}, slog.New(slog.DiscardHandler)
	m, err := segmentstore.New(store, config, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestContract(t *testing.T) {
	root := t.TempDir()
	contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { return open(t, root, segmentstore.Deps{}) })
}

func TestKeysStayBelowTheRoot(t *testing.T) {
	s, err := dirstore.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "../x", "/etc/x", "a/../../x", "a//b", ".unfinished/x", "a/./b"} {
		o := blob.PutObject{Key: key, Body: bytes.NewReader(nil)}
		if err := s.Put(t.Context(), o); !errors.Is(err, objectstore.ErrRejected) {
			t.Errorf("%q: %v, want rejected", key, err)
		}
	}
}

// What a crash leaves of a write is no object, and is found as an unfinished upload.
func TestCrashWhileWriting(t *testing.T) {
	root := t.TempDir()
	m := open(t, root, segmentstore.Deps{})
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
	root := t.TempDir()
	m := open(t, root, segmentstore.Deps{})
	s, d, _ := contract.Segment(uuid.Random(), 0, 3*objectstore.BlockBytes)
	contract.Copy(t, m, s, d)
	key, err := m.ObjectKey(s)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(root, filepath.FromSlash(key))
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 100, 2 * objectstore.BlockBytes, 3 * objectstore.BlockBytes, len(whole) - 1} {
		if err := os.WriteFile(name, whole[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		if r, err := m.FetchLogSegment(t.Context(), s, 0, s.SizeBytes); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("cut at %d: log %v, %v", n, r, err)
		}
		if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("cut at %d: indexes %v", n, err)
		}
	}
	for _, at := range []int{3 * objectstore.BlockBytes, len(whole) - 1} {
		bad := bytes.Clone(whole)
		bad[at] ^= 1
		if err := os.WriteFile(name, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := m.FetchIndexes(t.Context(), s); !errors.Is(err, objectstore.ErrCorrupt) {
			t.Errorf("flip at %d: %v", at, err)
		}
	}
}

// A copy that ends at any step leaves nothing that a deletion with the same metadata does not remove.
func TestCrashAtEachStep(t *testing.T) {
	for _, step := range segmentstore.Steps {
		t.Run(step, func(t *testing.T) {
			root := t.TempDir()
			crash := errors.New("crash")
			m := open(t, root, segmentstore.Deps{Step: func(name string) error {
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
			after := open(t, root, segmentstore.Deps{})
			if errs := after.DeleteLogSegmentData(t.Context(), []*objectstore.SegmentMetadata{s}); errs != nil {
				t.Fatal(errs)
			}
			if _, err := after.AbortStaleUploads(t.Context(), time.Now().Add(time.Hour), false); err != nil {
				t.Fatal(err)
			}
			err = filepath.WalkDir(root, func(name string, e os.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					t.Errorf("%s is left", name)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
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
