package logdir

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"chancery/services/kafka/uuid"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func open(t *testing.T, paths []string) *Set {
	t.Helper()
	s, err := Open(paths, 7, "", quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestIdentityIsKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, []string{dir})
	if err := s.Stamp("cluster-a"); err != nil {
		t.Fatal(err)
	}
	id := s.All()[0].ID()
	_ = s.Close()

	s = open(t, []string{dir})
	if s.ClusterID() != "cluster-a" || s.All()[0].ID() != id {
		t.Fatalf("cluster %q directory %s, want cluster-a and %s", s.ClusterID(), s.All()[0].ID(), id)
	}
	if _, err := Open([]string{dir}, 8, "", quiet()); err == nil {
		t.Fatal("another node opened the directory")
	}
	if _, err := Open([]string{dir}, 7, "cluster-b", quiet()); err == nil {
		t.Fatal("another cluster's node opened the directory")
	}
}

func TestMetaOfKafka(t *testing.T) {
	// As Apache Kafka's storage tool writes it.
	m, err := parseMeta([]byte("#\n#Tue Sep 01 10:00:00 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\ndirectory.id=L0FCr4Vv2ZJCBk4sjZ2N1w\nnode.id=3\nversion=1\n"))
	if err != nil || m.nodeID != 3 || m.clusterID != "MkU3OEVBNTcwNTJENDM2Qk" || m.directory.String() != "L0FCr4Vv2ZJCBk4sjZ2N1w" {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, bad := range []string{"", "version=2\nnode.id=1", "version=1", "version=1\nnode.id=x", "version=1\nnode.id=1\ndirectory.id=?"} {
		if _, err := parseMeta([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestCleanStopIsSeenOnce(t *testing.T) {
	dir := t.TempDir()
	s := open(t, []string{dir})
	if s.All()[0].Clean() || s.PreviousEpoch() != -1 {
		t.Fatal("a new directory looks cleanly stopped")
	}
	if err := s.MarkClean(42); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	data, err := os.ReadFile(filepath.Join(dir, cleanShutdownFile))
	if err != nil || string(data) != `{"version":0,"brokerEpoch":42}` {
		t.Fatalf("%s, %v", data, err)
	}
	s = open(t, []string{dir})
	if !s.All()[0].Clean() || s.PreviousEpoch() != 42 {
		t.Fatalf("clean %v, epoch %d", s.All()[0].Clean(), s.PreviousEpoch())
	}
	// The stop of a run that opened nothing: one that was never registered, and one of epoch 43, which the controller will ask for.
	for _, epoch := range []int64{-1, 43} {
		if err := s.MarkAsFound(epoch); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		if s = open(t, []string{dir}); !s.All()[0].Clean() || s.PreviousEpoch() != max(42, epoch) {
			t.Fatalf("a stop of epoch %d before anything was opened: clean %v, epoch %d", epoch, s.All()[0].Clean(), s.PreviousEpoch())
		}
	}
	_ = s.Close()
	if s = open(t, []string{dir}); s.All()[0].Clean() {
		t.Fatal("the mark was seen twice")
	}
	if err := s.MarkAsFound(44); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if s = open(t, []string{dir}); s.All()[0].Clean() {
		t.Fatal("what was not clean has become so")
	}
}

func TestCheckpoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), HighWatermarkFile)
	want := Offsets{{Topic: "a", Partition: 0}: 5, {Topic: "b.c-d", Partition: 12}: 1 << 40}
	if err := WriteOffsets(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadOffsets(path)
	if err != nil || len(got) != 2 || got[Replica{"b.c-d", 12}] != 1<<40 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, empty := range []string{"", "0\n", "0", "0\n0\n"} {
		if got, err := parseOffsets([]byte(empty)); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
	for _, bad := range []string{"1\n0\n", "1\n", "0\n1\n", "0\n1\na 0\n", "0\n1\na x 0\n", "0\n1\na 0 x\n", "0\n0\na 0 0\n", "0\n-1\n"} {
		if _, err := parseOffsets([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestPlacement(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	s := open(t, []string{a, b})
	count := map[string]int{}
	for i := range int32(6) {
		p, err := s.Place(Replica{"t", i}, uuid.Random(), uuid.UnassignedDir, nil)
		if err != nil || !p.New {
			t.Fatalf("%+v, %v", p, err)
		}
		count[p.Dir.Path()]++
	}
	if count[a] != 3 || count[b] != 3 {
		t.Fatalf("not spread: %v", count)
	}
	if p, err := s.Place(Replica{"t", 6}, uuid.Random(), s.All()[1].ID(), nil); err != nil || p.Dir.Path() != b {
		t.Fatalf("the assignment was not followed: %v", err)
	}
	if p, err := s.Place(Replica{"t", 7}, uuid.Random(), uuid.UnassignedDir, []uuid.UUID{s.All()[0].ID()}); err != nil || p.Dir.Path() != b {
		t.Fatalf("a cordoned directory was used: %v", err)
	}
	all := []uuid.UUID{s.All()[0].ID(), s.All()[1].ID()}
	if p, err := s.Place(Replica{"t", 10}, uuid.Random(), uuid.UnassignedDir, all); err != nil || p.Dir.Path() != a {
		t.Fatalf("a replica that came just before all directories were cordoned: %v", err)
	}
	s.All()[0].Fail(errors.New("broken"))
	if _, err := s.Place(Replica{"t", 8}, uuid.Random(), s.All()[0].ID(), nil); !errors.Is(err, ErrOffline) {
		t.Fatalf("a replica of a broken directory was made anew: %v", err)
	}
	if p, err := s.Place(Replica{"t", 9}, uuid.Random(), uuid.UnassignedDir, nil); err != nil || p.Dir.Path() != b {
		t.Fatalf("the working directory was not used: %v", err)
	}
	s.All()[1].Fail(errors.New("broken"))
	if _, err := s.Place(Replica{"t", 11}, uuid.Random(), uuid.UnassignedDir, all); !errors.Is(err, ErrOffline) {
		t.Fatalf("a replica was made in a broken directory: %v", err)
	}
}

func TestReplicasOnDisk(t *testing.T) {
	dir := t.TempDir()
	here, old := uuid.Random(), uuid.Random()
	for name, id := range map[string]uuid.UUID{"kept-0": here, "again-1": old, "gone-3": old} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		text := "version: 0\ntopic_id: " + id.String() + "\n"
		if err := os.WriteFile(filepath.Join(dir, name, "partition.metadata"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"x-0.abc-delete", "lost+found", "__cluster_metadata-0", "no-partition-01"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, []string{dir})
	if p, err := s.Place(Replica{"kept", 0}, here, uuid.UnassignedDir, nil); err != nil || p.New {
		t.Fatalf("the replica on disk was not found: %+v %v", p, err)
	}
	if p, err := s.Place(Replica{"again", 1}, uuid.Random(), uuid.UnassignedDir, nil); err != nil || !p.New {
		t.Fatalf("another topic's replica was taken: %+v %v", p, err)
	}
	s.Strays()
	for pattern, want := range map[string]int{"kept-0": 1, "again-1.*-stray": 1, "again-1": 0, "gone-3.*-stray": 1, "x-0*": 0, "lost+found": 1, "__cluster_metadata-0": 1, "no-partition-01": 1} {
		if got, _ := filepath.Glob(filepath.Join(dir, pattern)); len(got) != want {
			t.Errorf("%s: %v", pattern, got)
		}
	}
}

func FuzzParseOffsets(f *testing.F) {
	f.Add([]byte("0\n1\na 0 5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseOffsets(data)
	})
}

func FuzzParseMeta(f *testing.F) {
	f.Add([]byte("version=1\nnode.id=1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseMeta(data)
	})
}
