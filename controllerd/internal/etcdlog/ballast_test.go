package etcdlog

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestBallast(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ballastName)
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	free, err := freeBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(bytes int64) bool {
		t.Helper()
		if err := keepBallast(dir, bytes, logger); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(path)
		return err == nil
	}
	switch {
	case keep(0):
		t.Fatal("there is a ballast that was not asked for")
	case keep(free):
		t.Fatal("the ballast takes the last room")
	case !keep(1 << 20):
		t.Fatal("there is no ballast")
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 1<<20 {
		t.Fatal(info, err)
	}
	switch {
	case !keep(1 << 20):
		t.Fatal("the ballast went though there is room")
	case keep(4 * free):
		t.Fatal("the ballast stays though the disk is as good as full")
	}
}
