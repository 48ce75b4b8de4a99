package memfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/services/vfs"
)

func newDisk() *Disk { return New(func() time.Time { return time.UnixMilli(1) }) }

func create(t *testing.T, d vfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := d.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err == nil {
		_, err = f.WriteAt([]byte(content), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func read(d vfs.FS, name string) string {
	b, err := d.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestLikeTheOperatingSystem does the same to a disk in memory and to a real one, which must then hold the same.
func TestLikeTheOperatingSystem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Both have the same names, so that errors can be compared.
		dir, err := os.MkdirTemp("", "memfs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		disk := newDisk()
		if err := disk.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		name := rapid.Custom(func(t *rapid.T) string {
			return filepath.Join(dir, rapid.SampledFrom([]string{"a", "b", "d/a", "d/b", "e/a"}).Draw(t, "name"))
		})
		both := func(what string, do func(vfs.FS) error) {
			got, want := do(disk), do(vfs.OS{})
			if (got == nil) != (want == nil) || errors.Is(got, fs.ErrNotExist) != errors.Is(want, fs.ErrNotExist) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"mkdir": func(t *rapid.T) {
				n := filepath.Join(dir, rapid.SampledFrom([]string{"d", "e"}).Draw(t, "dir"))
				both("mkdir "+n, func(f vfs.FS) error { return f.MkdirAll(n, 0o755) })
			},
			"write": func(t *rapid.T) {
				n, at, size := name.Draw(t, "name"), rapid.IntRange(0, 20).Draw(t, "at"), rapid.IntRange(0, 20).Draw(t, "size")
				both("write "+n, func(f vfs.FS) error {
					file, err := f.OpenFile(n, os.O_CREATE|os.O_RDWR, 0o644)
					if err != nil {
						return err
					}
					_, err = file.WriteBuffers([][]byte{make([]byte, 3), []byte("0123456789012345678901")[:size]}, int64(at))
					return errors.Join(err, file.Truncate(int64(at+2)), file.Close())
				})
			},
			"rename": func(t *rapid.T) {
				from, to := name.Draw(t, "from"), name.Draw(t, "to")
				if _, err := os.Stat(filepath.Dir(to)); err != nil {
					t.Skip("no such directory")
				}
				both("rename "+from+" to "+to, func(f vfs.FS) error { return f.Rename(from, to) })
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				both("remove "+n, func(f vfs.FS) error { return f.Remove(n) })
			},
			"remove all": func(t *rapid.T) {
				n := filepath.Join(dir, rapid.SampledFrom([]string{"a", "d", "e"}).Draw(t, "name"))
				both("remove all "+n, func(f vfs.FS) error { return f.RemoveAll(n) })
			},
			"": func(t *rapid.T) {
				for _, n := range []string{"a", "b", "d/a", "d/b", "e/a"} {
					got, gotErr := disk.ReadFile(filepath.Join(dir, n))
					want, wantErr := os.ReadFile(filepath.Join(dir, n))
					if (gotErr == nil) != (wantErr == nil) || string(got) != string(want) {
						t.Fatalf("%s: %q %v, want %q %v", n, got, gotErr, want, wantErr)
					}
				}
			},
		})
	})
}

func TestPowerLoss(t *testing.T) {
	nothing := func(int) int { return 0 }
	everything := func(n int) int { return n - 1 }
	d := newDisk()
	if err := d.MkdirAll("/d", 0o755); err != nil {
		t.Fatal(err)
	}
	f := create(t, d, "/d/kept", "durable")
	if err := errors.Join(f.Sync(), d.SyncDir("/d")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(" and more"), 7); err != nil {
		t.Fatal(err)
	}
	create(t, d, "/d/lost", "x")
	d.LosePower(nothing)
	if got := read(d, "/d/kept"); got != "durable" {
		t.Errorf("kept: %q", got)
	}
	if _, err := d.Stat("/d/lost"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lost: %v", err)
	}
	// The file of before goes on by itself.
	if _, err := f.WriteAt([]byte("!"), 0); err != nil || read(d, "/d/kept") != "durable" {
		t.Error("a file of before the power loss writes to the disk of after it")
	}
	// A rename that nobody synced is kept whole or not at all.
	if err := d.Rename("/d/kept", "/d/renamed"); err != nil {
		t.Fatal(err)
	}
	d.LosePower(nothing)
	if read(d, "/d/kept") != "durable" {
		t.Error("the rename was kept")
	}
	if err := d.Rename("/d/kept", "/d/renamed"); err != nil {
		t.Fatal(err)
	}
	d.LosePower(everything)
	if _, err := d.Stat("/d/kept"); err == nil || read(d, "/d/renamed") != "durable" {
		t.Error("the rename was not kept")
	}
}

func TestPowerLossTearsFiles(t *testing.T) {
	seen := map[string]bool{}
	for kind := range 4 {
		for at := range 4 {
			d := newDisk()
			if err := d.MkdirAll("/", 0o755); err != nil {
				t.Fatal(err)
			}
			f := create(t, d, "/f", "ab")
			if err := errors.Join(f.Sync(), d.SyncDir("/")); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("cde"), 2); err != nil {
				t.Fatal(err)
			}
			d.LosePower(func(n int) int {
				if n == 4 && !seen["choosing"] {
					seen["choosing"] = true
					return at
				}
				seen["choosing"] = false
				return min(kind, n-1)
			})
			seen[read(d, "/f")] = true
		}
	}
	for _, want := range []string{"ab", "abc", "abcd", "abcde", "ab\x00\x00\x00", "abc\x00\x00"} {
		if !seen[want] {
			t.Errorf("%q was never left", want)
		}
	}
}

func TestMirror(t *testing.T) {
	d := newDisk()
	if err := d.MkdirAll("/", 0o755); err != nil {
		t.Fatal(err)
	}
	f := create(t, d, "/f", "one")
	m := f.OS()
	if m == nil {
		t.Fatal("no file of the operating system")
	}
	if _, err := f.WriteAt([]byte("two"), 3); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	n, _ := m.ReadAt(got, 0)
	if string(got[:n]) != "onetw" || f.OS() != m {
		t.Errorf("%q", got[:n])
	}
	entries, err := d.ReadDir("/")
	if err != nil || len(entries) != 1 || slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		t.Error(entries, err)
	}
}
