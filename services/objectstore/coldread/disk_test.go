package coldread

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
)

// TestUnusableDisk: a reader whose cache on disk cannot be used reads without one.
func TestUnusableDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := DefaultConfig()
	config.DiskPath = filepath.Join(file, "cache")
	r, err := New(nil, config, Deps{Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if r.disk != nil {
		t.Error("there is a cache below a file")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// A name that is taken for a block's is written in the same way again, so that a file of somebody else is never dropped.
func FuzzParseName(f *testing.F) {
	f.Add("AAAAAAAAAAAAAAAAAAAAAA-0-00000000.block")
	f.Add("-_AAAAAAAAAAAAAAAAAAAA-12-0a0b0c0d.block")
	f.Add("x.block.tmp")
	f.Fuzz(func(t *testing.T, name string) {
		if b, ok := parseName(name); ok && b.name() != name {
			t.Fatalf("%q is read as %q", name, b.name())
		}
	})
}
