package vfs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

func TestWriteBuffers(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		var buffers [][]byte
		var want []byte
		for range rapid.IntRange(0, 2500).Draw(t, "buffers") {
			b := bytes.Repeat([]byte{byte(len(buffers))}, len(buffers)%7)
			buffers = append(buffers, b)
			want = append(want, b...)
		}
		f, err := OS{}.OpenFile(filepath.Join(dir, "f"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n, err := f.WriteBuffers(buffers, 3)
		if err != nil || n != int64(len(want)) {
			t.Fatal(n, err)
		}
		got := make([]byte, len(want))
		if _, err := f.ReadAt(got, 3); len(want) > 0 && (err != nil || !bytes.Equal(got, want)) {
			t.Fatal("read back", err)
		}
	})
}

func TestWriteFileAtomically(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for _, sync := range []bool{false, true} {
		if err := WriteFileAtomically(OS{}, name, []byte("new"), sync); err != nil {
			t.Fatal(err)
		}
	}
	errDisk := errors.New("disk")
	for _, op := range []Op{OpOpen, OpWrite, OpSync, OpRename} {
		faulty := Faulty{FS: OS{}, Inject: func(o Op, _ string) error {
			if o == op {
				return errDisk
			}
			return nil
		}}
		if err := WriteFileAtomically(faulty, name, []byte("other"), true); !errors.Is(err, errDisk) {
			t.Error(op, err)
		}
		// Only the sync of the directory comes after the rename.
		if got, err := (OS{}).ReadFile(name); err != nil || string(got) != "new" {
			t.Errorf("after a failed %s: %q %v", op, got, err)
		}
	}
}

// TestLock takes a lock from another process, which is this test again.
func TestLock(t *testing.T) {
	const variable = "CHANCERY_TEST_LOCK"
	if name := os.Getenv(variable); name != "" {
		_, err := Lock(name)
		if _, ok := errors.AsType[*LockedError](err); !ok {
			t.Fatalf("%v instead of a LockedError", err)
		}
		return
	}
	name := filepath.Join(t.TempDir(), ".lock")
	lock, err := Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLock$")
	other.Env = append(os.Environ(), variable+"="+name)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process: %v\n%s", err, out)
	}
}
