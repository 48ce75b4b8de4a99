package log

import (
	"errors"
	"os"
	"strings"
	"testing"

	"chancery/services/vfs"
)

// beforeOpen does something before a file is opened.
type beforeOpen struct {
	vfs.FS
	do func(path string)
}

// OpenFile is part of vfs.FS.
func (b *beforeOpen) OpenFile(path string, flag int, mode os.FileMode) (vfs.File, error) {
	if b.do != nil {
		b.do(path)
	}
	return b.FS.OpenFile(path, flag, mode)
}

// TestFlushOfDeletedSegments: retention may delete a segment that a flush is about to open. That is no fault of the disk.
func TestFlushOfDeletedSegments(t *testing.T) {
	var fs *beforeOpen
	f := newFixture(t, t.TempDir(), func(o *Options) {
		fs = &beforeOpen{FS: o.FS}
		o.FS = fs
	})
	for range 8 {
		f.append(0, spec{records: 1})
		if err := f.rollAt(f.LogEndOffset()); err != nil {
			t.Fatal(err)
		}
	}
	f.SetHighWatermark(8)
	f.reopen(true) // what a crash has left has to be flushed
	f.SetHighWatermark(8)
	if _, err := f.DeleteRetired(f.clock); err != nil { // files are closed that nobody reads
		t.Fatal(err)
	}
	deleted := 0
	fs.do = func(path string) {
		if !strings.HasSuffix(path, logSuffix) || deleted > 0 {
			return
		}
		deleted++
		if err := f.SetLogStartOffset(6); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	if deleted == 0 {
		t.Fatal("no segment was opened")
	}
	if f.append(0, spec{records: 1}); f.LogEndOffset() != 9 {
		t.Fatalf("the log ends at %d", f.LogEndOffset())
	}
}
