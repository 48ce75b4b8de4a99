package log

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"chancery/services/kafka/recordbatch"

	"pgregory.net/rapid"
)

// TestCrash damages a log as crashes and bad disks do, and checks that what comes back is a prefix that works.
func TestCrash(t *testing.T) {
	source := newFixture(t, t.TempDir(), func(o *Options) {
		o.Config.SegmentBytes, o.Config.IndexIntervalBytes, o.ProducerIDExpiration = 3000, 150, 1<<62
	})
	for i := range 30 {
		source.append(int32(1+i/7), spec{records: 1 + i%3, bytes: 17 * i, pid: int64(1 + i%3), sequence: int32(i), timestamp: int64(i), codec: recordbatch.Compression(i % 5)})
	}
	whole := source.all(0)
	source.Abandon()
	var ends []int
	for it := recordbatch.Iterate(whole); it.Next(); {
		ends = append(ends, it.Position())
	}
	ends = append(ends, len(whole))
	names := files(t, source.dir)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		copyDir(t, source.dir, filepath.Join(dir, "t-4"))
		damage(t, filepath.Join(dir, "t-4"), names)
		f := &fixture{t: t, o: source.o}
		f.o.Dir, f.o.CleanShutdown = dir, false
		f.open()
		got := f.all(0)
		if !bytes.HasPrefix(whole, got) || !slices.Contains(ends, len(got)) {
			t.Fatalf("%d bytes are no prefix of %d at a batch's end", len(got), len(whole))
		}
		for range 2 {
			f.append(9, spec{bytes: 300, records: 3, timestamp: 1000})
		}
		if ts, ok, err := f.OffsetForTimestamp(1000); err != nil || !ok || ts.Offset != f.LogEndOffset()-6 {
			t.Fatal(ts, ok, err)
		}
		longer, producers := f.all(0), f.ActiveProducers()
		f.reopen(rapid.Bool().Draw(t, "crash again"))
		if !bytes.Equal(f.all(0), longer) || !slices.Equal(f.ActiveProducers(), producers) {
			t.Fatal("it changed with the next start", f.ActiveProducers(), producers)
		}
		f.Abandon()
	})
}

// TestRotAtRest damages a log that was closed in order. It opens all the same, whatever is wrong with what need not be read for that, or the
// whole log directory would be out of service; and it takes new records.
func TestRotAtRest(t *testing.T) {
	source := newFixture(t, t.TempDir(), func(o *Options) {
		o.Config.SegmentBytes, o.Config.IndexIntervalBytes, o.ProducerIDExpiration = 3000, 150, 1<<62
	})
	for i := range 30 {
		source.append(1, spec{records: 1 + i%3, bytes: 17 * i, pid: int64(1 + i%3), sequence: int32(i), timestamp: int64(i), txn: true, codec: recordbatch.Compression(i % 5)})
		if i%5 == 4 {
			source.marker(1, int64(1+i%3), 0, recordbatch.Abort)
		}
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	names := files(t, source.dir)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		copyDir(t, source.dir, filepath.Join(dir, "t-4"))
		damage(t, filepath.Join(dir, "t-4"), names)
		f := &fixture{t: t, o: source.o}
		f.o.Dir, f.o.CleanShutdown = dir, true
		f.open()
		f.SetHighWatermark(f.LogEndOffset())
		if _, err := f.AbortedTransactions(0, f.LogEndOffset()); err != nil {
			t.Fatal(err)
		}
		end := f.LogEndOffset()
		f.append(9, spec{bytes: 300, records: 3, timestamp: 1000})
		f.reopen(false)
		if got := f.LogEndOffset(); got != end+3 {
			t.Fatalf("the log ends at %d, want %d", got, end+3)
		}
		f.Abandon()
	})
}

func copyDir(t *rapid.T, from, to string) {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func damage(t *rapid.T, dir string, names []string) {
	name := filepath.Join(dir, rapid.SampledFrom(names).Draw(t, "file"))
	if strings.HasSuffix(name, partitionMetadataName) {
		return
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := rapid.IntRange(0, len(data)).Draw(t, "at")
	switch rapid.IntRange(0, 5).Draw(t, "damage") {
	case 0: // torn
		data = data[:at]
	case 1: // the size is there, the data is not
		clear(data[at:])
	case 2: // a bit flipped
		if at < len(data) && (!strings.HasSuffix(name, logSuffix) || !outsideCRC(data, at)) {
			data[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
	case 3: // zeros behind, as preallocation leaves them
		data = append(data, make([]byte, rapid.IntRange(1, 5000).Draw(t, "zeros"))...)
	case 4: // noise behind
		noise := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		for range rapid.IntRange(1, 300).Draw(t, "noise") {
			data = append(data, byte(noise.Uint32()))
		}
	case 5: // gone
		if !strings.HasSuffix(name, logSuffix) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// outsideCRC says that a byte is in the offset or the leader epoch of a batch, which no checksum covers.
func outsideCRC(data []byte, at int) bool {
	for it := recordbatch.Iterate(data); it.Next(); {
		if i := at - it.Position(); i >= 0 && i < 16 && (i < 8 || i >= 12) {
			return true
		}
	}
	return false
}

// TestTornAtEveryByte cuts the last segment everywhere.
func TestTornAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, dir, nil)
	f.append(1, spec{bytes: 50}, spec{bytes: 20, records: 2}, spec{bytes: 10})
	whole := f.all(0)
	f.Abandon()
	f.o.CleanShutdown = false
	path := segmentPath(f.dir, 0, logSuffix)
	for n := len(whole); n >= 0; n-- {
		if err := os.WriteFile(path, whole[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		f.open()
		want := 0
		for it := recordbatch.Iterate(whole[:n]); it.Next(); {
			want = it.Position() + it.Header().Size()
		}
		if got := f.all(0); !bytes.Equal(got, whole[:want]) {
			t.Fatalf("cut at %d: %d bytes, want %d", n, len(got), want)
		}
		f.Abandon()
	}
}

// TestCleanOpenOfOddFiles: after a clean shutdown files are believed, but what cannot be is rebuilt.
func TestCleanOpenOfOddFiles(t *testing.T) {
	for name, edit := range map[string]func(t *testing.T, dir string){
		"no index":      func(t *testing.T, dir string) { remove(t, segmentPath(dir, 0, indexSuffix)) },
		"no time index": func(t *testing.T, dir string) { remove(t, segmentPath(dir, 0, timeIndexSuffix)) },
		"odd index":     func(t *testing.T, dir string) { write(t, segmentPath(dir, 0, indexSuffix), make([]byte, 7)) },
		"zero index":    func(t *testing.T, dir string) { write(t, segmentPath(dir, 0, indexSuffix), make([]byte, 800)) },
		"wild index": func(t *testing.T, dir string) {
			write(t, segmentPath(dir, 0, indexSuffix), bytes.Repeat([]byte{0x7f}, 8))
		},
		"odd txn index": func(t *testing.T, dir string) { write(t, segmentPath(dir, 0, txnIndexSuffix), make([]byte, 7)) },
		"torn tail": func(t *testing.T, dir string) {
			path := segmentPath(dir, 0, logSuffix)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, append(data, make([]byte, 100)...))
		},
		"orphan index": func(t *testing.T, dir string) { write(t, segmentPath(dir, 999, indexSuffix), make([]byte, 8)) },
		"deleted segment": func(t *testing.T, dir string) {
			write(t, segmentPath(dir, 999, logSuffix+deletedSuffix), make([]byte, 8))
		},
		"cleaned segment": func(t *testing.T, dir string) {
			write(t, segmentPath(dir, 999, logSuffix+cleanedSuffix), make([]byte, 8))
		},
		"no snapshot": func(t *testing.T, dir string) { remove(t, segmentPath(dir, 21, snapshotSuffix)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.IndexIntervalBytes = 100 })
			for i := range 20 {
				f.append(1, spec{bytes: 100, timestamp: int64(i)})
			}
			f.append(1, spec{pid: 3, txn: true})
			want := f.all(0)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			edit(t, f.dir)
			f.o.CleanShutdown = true
			f.open()
			if !bytes.Equal(f.all(0), want) || f.RecoveryPoint() != 21 {
				t.Fatal("lost", f.RecoveryPoint())
			}
			f.append(1, spec{})
			f.marker(1, 3, 0, recordbatch.Abort)
			f.reopen(false)
			if f.LogEndOffset() != 23 {
				t.Fatal(f.LogEndOffset())
			}
			for _, n := range files(t, f.dir) {
				if strings.Contains(n, "999") {
					t.Error("left over:", n)
				}
			}
		})
	}
}

// TestTransactionIndexOfAnOldSegment breaks the index of aborted transactions of a closed segment: it is made anew at the next start, or
// nobody could read committed records there any more.
func TestTransactionIndexOfAnOldSegment(t *testing.T) {
	for _, clean := range []bool{true, false} {
		f := newFixture(t, t.TempDir(), nil)
		f.append(1, spec{pid: 3, txn: true})
		f.marker(1, 3, 0, recordbatch.Abort)
		if err := f.Roll(); err != nil {
			t.Fatal(err)
		}
		f.append(1, spec{})
		want, err := f.AbortedTransactions(0, 3)
		if err != nil || len(want) != 1 {
			t.Fatal(want, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, segmentPath(f.dir, 0, txnIndexSuffix), make([]byte, 7))
		f.o.CleanShutdown, f.o.RecoveryPoint = clean, 3
		f.open()
		if got, err := f.AbortedTransactions(0, 3); err != nil || !slices.Equal(got, want) || f.LogEndOffset() != 3 {
			t.Fatalf("clean %v: %v %v, the log ends at %d", clean, got, err, f.LogEndOffset())
		}
	}
}

// TestSwap: the cleaner's new segments replace the old ones if they were all there.
func TestSwap(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Config.SegmentBytes = 500 })
	for range 6 {
		f.append(1, spec{bytes: 350})
	}
	run := f.all(0)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	it := recordbatch.Iterate(run)
	it.Next()
	first := bytes.Clone(it.Bytes())
	it.Next()
	second := bytes.Clone(it.Bytes())
	write(t, segmentPath(f.dir, 0, logSuffix+swapSuffix), append(bytes.Clone(first), second...))
	write(t, segmentPath(f.dir, 0, indexSuffix+swapSuffix), nil)
	write(t, segmentPath(f.dir, 0, timeIndexSuffix+swapSuffix), nil)
	f.o.CleanShutdown = true
	f.open()
	if s := f.Segments(); s[0].BaseOffset != 0 || s[1].BaseOffset != 2 || !bytes.Equal(f.all(0), run) {
		t.Fatal(s)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
