package log

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/vfs"
)

// TestReadersBesideTheWriter reads in every way while the log grows, rolls, is cut and loses its oldest segments.
func TestReadersBesideTheWriter(t *testing.T) {
	for name, files := range map[string]*OpenFiles{"files stay open": nil, "files are closed after each append": NewOpenFiles(0)} {
		t.Run(name, func(t *testing.T) { readBesideTheWriter(t, files) })
	}
}

// readSomewhere reads some records of the log, which may be changed meanwhile.
func (f *fixture) readSomewhere(r *rand.Rand) error {
	cuts := func() uint64 {
		f.mu.RLock()
		defer f.mu.RUnlock()
		return f.cuts
	}
	before := cuts()
	start, end := f.LogStartOffset(), f.LogEndOffset()
	if end <= start {
		return nil
	}
	offset := start + r.Int64N(end-start)
	got, err := f.Read(offset, 1+r.IntN(5000), offset+r.Int64N(end-offset)+1, r.IntN(2) == 0)
	if errcode.Of(err) == errcode.OffsetOutOfRange {
		return nil
	}
	if err != nil {
		return err
	}
	defer got.Release()
	b, err := got.ReadAll()
	if cuts() != before {
		return nil // the bytes may be other ones by now
	}
	if err != nil {
		return err
	}
	it := recordbatch.Iterate(b)
	for it.Next() {
		if h := it.Header(); h.LastOffset() < offset {
			return errors.New("a batch before the offset: " + h.String())
		}
	}
	return nil
}

func readBesideTheWriter(t *testing.T, files *OpenFiles) {
	f := newFixture(t, t.TempDir(), func(o *Options) {
		o.OpenFiles = files
		o.Config.SegmentBytes, o.Config.IndexIntervalBytes, o.Config.RetentionBytes = 20000, 300, 60000
	})
	var stop atomic.Bool
	var wg sync.WaitGroup
	reader := func(read func(r *rand.Rand) error) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, 2))
			for !stop.Load() {
				if err := read(r); err != nil {
					t.Error(err)
					stop.Store(true)
				}
			}
		})
	}
	for range 3 {
		reader(f.readSomewhere)
	}
	reader(func(r *rand.Rand) error {
		_, _, err := f.OffsetForTimestamp(r.Int64N(1000))
		return err
	})
	reader(func(*rand.Rand) error {
		_, _, err := f.OffsetOfMaxTimestamp()
		return err
	})
	reader(func(*rand.Rand) error {
		f.Size()
		f.EndOffsetForEpoch(1)
		_, err := f.AbortedTransactions(f.LogStartOffset(), f.LogEndOffset())
		return err
	})
	reader(func(*rand.Rand) error { return f.Flush() })
	w := rand.New(rand.NewPCG(3, 4))
	for i := range 120 {
		if stop.Load() {
			break
		}
		var specs []spec
		for range 1 + w.IntN(4) {
			specs = append(specs, spec{records: 1 + w.IntN(4), bytes: w.IntN(1500), timestamp: int64(i)})
		}
		f.append(1, specs...)
		switch w.IntN(40) {
		case 0:
			if err := f.TruncateTo(max(f.LogStartOffset(), f.LogEndOffset()-int64(w.IntN(20)))); err != nil {
				t.Fatal(err)
			}
		case 1:
			f.SetHighWatermark(f.LogEndOffset())
			if _, err := f.DeleteRetired(f.clock); err != nil {
				t.Fatal(err)
			}
		case 2:
			if err := f.TruncateFullyAndStartAt(f.LogEndOffset()); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	want := f.all(f.LogStartOffset())
	f.reopen(true)
	if !bytes.Equal(f.all(f.LogStartOffset()), want) {
		t.Fatal("after a crash")
	}
}

// TestReadersAreToldBeforeNamesGo: whoever has just found a segment must know that it goes before its files lose their names.
func TestReadersAreToldBeforeNamesGo(t *testing.T) {
	for name, change := range map[string]func(f *fixture) error{
		"start anew": func(f *fixture) error { return f.TruncateFullyAndStartAt(8) },
		"truncate":   func(f *fixture) error { return f.TruncateTo(1) },
		"delete":     func(f *fixture) error { return f.SetLogStartOffset(6) },
		"clean": func(f *fixture) error {
			f.dropped(3, func(h recordbatch.Header) bool { return h.BaseOffset() == 0 })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			var view *segmentView
			gone := 0
			f := segmented(t, 4, func(o *Options) {
				o.FS = vfs.Faulty{FS: o.FS, Inject: func(op vfs.Op, path string) error {
					if view != nil && op == vfs.OpRename && path == view.segment.path(logSuffix) {
						if gone++; !view.moved() {
							t.Error("the segment is still there for its readers")
						}
					}
					return nil
				}}
			})
			v, ok := f.viewOf(2)
			if !ok {
				t.Fatal("no segment")
			}
			defer v.close()
			view = &v
			if err := change(f); err != nil {
				t.Fatal(err)
			}
			if gone != 1 {
				t.Fatalf("the file was renamed %d times", gone)
			}
			f.awaitNames()
		})
	}
}
