package cleaner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/vfs"
	"chancery/storaged/internal/log"

	"pgregory.net/rapid"
)

func TestOffsetMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.Int64Range(0, 50).Draw(t, "keys")
		m := newOffsetMap(slotBytes*rapid.Int64Range(0, 40).Draw(t, "slots"), rapid.SampledFrom([]float64{0.1, 0.9, 1}).Draw(t, "load factor"), keys)
		want := map[string]int64{}
		for offset := range rapid.Int64Range(0, 60).Draw(t, "puts") {
			key := fmt.Sprint(rapid.Int64Range(0, max(1, keys)-1).Draw(t, "key"))
			ok := m.put([]byte(key), offset)
			if _, known := want[key]; !ok && (known || len(want) < m.most) {
				t.Fatalf("%q was refused with %d of %d keys in the map", key, len(want), m.most)
			}
			if ok {
				want[key] = offset
			}
		}
		if len(want) != m.n || m.n > m.most {
			t.Fatalf("%d keys, want %d of at most %d", m.n, len(want), m.most)
		}
		for key := range keys + 1 {
			offset, ok := want[fmt.Sprint(key)]
			if got := m.get(fmt.Append(nil, key)); ok && got != offset || !ok && got != -1 {
				t.Fatalf("key %d is at %d, want %d", key, got, offset)
			}
		}
	})
}

func TestOffsetMapIsBounded(t *testing.T) {
	if m := newOffsetMap(1<<20, 0.9, 1<<40); len(m.slots)*slotBytes > 1<<20 || m.most != int(0.9*float64(len(m.slots))) {
		t.Fatalf("%d slots, %d keys", len(m.slots), m.most)
	}
	if m := newOffsetMap(1<<30, 0.9, 100); len(m.slots) > 200 || m.most < 100 {
		t.Fatalf("%d slots, %d keys for 100", len(m.slots), m.most)
	}
}

func TestChoose(t *testing.T) {
	bounds := func(clean, dirty int64, ratio float64, overdue time.Duration) log.CleanBounds {
		return log.CleanBounds{CleanBytes: clean, CleanableBytes: dirty, Overdue: overdue, Config: &configdef.Topic{MinCleanableDirtyRatio: ratio}}
	}
	for _, c := range []struct {
		name  string
		among []log.CleanBounds
		want  int
	}{
		{"none", nil, -1},
		{"nothing dirty", []log.CleanBounds{bounds(100, 0, 0, 0), bounds(0, 0, 0, time.Hour)}, -1},
		{"not dirty enough", []log.CleanBounds{bounds(50, 50, 0.5, 0)}, -1},
		{"the dirtiest", []log.CleanBounds{bounds(50, 60, 0.5, 0), bounds(10, 60, 0.5, 0), bounds(50, 70, 0.5, 0)}, 1},
		{"overdue, though hardly dirty", []log.CleanBounds{bounds(0, 60, 0.5, 0), bounds(100, 1, 0.5, time.Second)}, 1},
		{"overdue with nothing to clean", []log.CleanBounds{bounds(0, 60, 0.5, 0), bounds(100, 0, 0.5, time.Second)}, 0},
	} {
		var candidates []candidate
		for _, b := range c.among {
			candidates = append(candidates, candidate{bounds: b})
		}
		next, _ := choose(candidates)
		if (next == nil) != (c.want < 0) || next != nil && next != &candidates[c.want] {
			t.Errorf("%s: chose %+v", c.name, next)
		}
	}
}

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var th throttle
		th.set(1e6)
		began := time.Now()
		for range 100 {
			if err := th.spend(t.Context(), 100_000); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d < 9500*time.Millisecond || d > 10*time.Second {
			t.Fatalf("10 MB at 1 MB/s took %s", d)
		}
		th.set(1.7e308)
		began = time.Now()
		for range 100 {
			_ = th.spend(t.Context(), 1<<30)
		}
		if d := time.Since(began); d > time.Second {
			t.Fatalf("it took %s without a limit", d)
		}
		th.set(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := th.spend(ctx, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

// target is a log of its own, written to by whoever calls.
type target struct {
	name string
	log  *log.Log
}

func (t *target) String() string             { return t.name }
func (t *target) Log() *log.Log              { return t.log }
func (t *target) LogDir() string             { return "/d" }
func (t *target) Write(f func() error) error { return f() }

// fill makes a log of closed segments that hold a few keys again and again.
func fill(t *testing.T, name string, segments int, edit func(*log.Options)) *target {
	t.Helper()
	o := log.Options{Dir: t.TempDir(), Topic: name, Codecs: testCodecs, FS: unsynced{vfs.OS{}}, Config: &configdef.Topic{
		CleanupCompact: true, SegmentBytes: 1 << 20, SegmentMs: 1 << 40, SegmentIndexBytes: 1 << 20, FlushMessages: 1<<63 - 1,
		RetentionMs: -1, RetentionBytes: -1, MaxCompactionLagMs: 1<<63 - 1, MinCleanableDirtyRatio: 0.5,
	}}
	if edit != nil {
		edit(&o)
	}
	l, err := log.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Abandon)
	for i := range segments {
		opts := recordbatch.NewOptions()
		opts.BaseOffset, opts.LeaderEpoch = l.LogEndOffset(), 0
		b := recordbatch.NewBuilder(nil, opts)
		for j := range 10 {
			b.Append(time.Now().UnixMilli(), fmt.Append(nil, j%5), fmt.Append(nil, i))
		}
		batch, _ := b.Build()
		if err := l.Append([]recordbatch.Batch{recordbatch.BatchOf(batch)}); err != nil {
			t.Fatal(err)
		}
		if err := l.Roll(); err != nil {
			t.Fatal(err)
		}
	}
	l.SetHighWatermark(l.LogEndOffset())
	return &target{name, l}
}

// start runs a cleaner over logs until the test ends.
func start(t *testing.T, config Config, targets ...*target) (*Cleaner, chan string) {
	t.Helper()
	cleaned := make(chan string, 100)
	c := New(Options{
		Targets: func() []Target {
			var out []Target
			for _, x := range targets {
				out = append(out, x)
			}
			return out
		},
		Cleaned: func(x Target) { cleaned <- x.String() },
		Failed:  func(x Target, err error) { t.Errorf("%s failed: %v", x, err) },
		Codecs:  testCodecs, Logger: slog.New(slog.DiscardHandler),
	})
	c.Start(config)
	t.Cleanup(c.Stop)
	return c, cleaned
}

var testCleanerConfig = Config{Threads: 2, DedupeBufferBytes: 4 << 20, LoadFactor: 0.9, IOBufferBytes: 64 << 10, MaxBytesPerSecond: 1e308, Backoff: 15 * time.Second}

func TestCleanerCleans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := fill(t, "a", 3, nil), fill(t, "b", 2, nil)
		plain := fill(t, "plain", 3, func(o *log.Options) { o.Config.CleanupCompact, o.Config.CleanupDelete = false, true })
		c, cleaned := start(t, testCleanerConfig, a, b, plain)
		got := map[string]int{<-cleaned: 1}
		got[<-cleaned]++
		synctest.Wait()
		if got["a"] != 1 || got["b"] != 1 || a.log.CleanedTo() != 30 || plain.log.CleanedTo() != 0 {
			t.Fatalf("cleaned %v, a up to %d", got, a.log.CleanedTo())
		}
		if n := len(a.log.Segments()); n != 2 {
			t.Errorf("a has %d segments", n)
		}
		<-time.After(time.Minute)
		if len(cleaned) > 0 {
			t.Error("a clean log was cleaned again")
		}
		m := c.Metrics()
		if m.CleanerRecopyPercent <= 0 || m.CleanerRecopyPercent >= 60 || m.TimeSinceLastRun > testCleanerConfig.Backoff || m.MaxDirtyPercent != 0 {
			t.Errorf("metrics %+v", m)
		}
		next := testCleanerConfig
		next.Threads = 1
		c.Reconfigure(next)
		c.Stop()
	})
}

func TestMinCompactionLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := fill(t, "a", 3, func(o *log.Options) { o.Config.MinCompactionLagMs = 60_000 })
		_, cleaned := start(t, testCleanerConfig, a)
		<-cleaned
		if d := time.Since(began); d < time.Minute || d > time.Minute+testCleanerConfig.Backoff {
			t.Fatalf("cleaned after %s", d)
		}
	})
}

func TestMaxCompactionLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := fill(t, "a", 3, func(o *log.Options) { o.Config.MaxCompactionLagMs, o.Config.MinCleanableDirtyRatio = 60_000, 1 })
		c, cleaned := start(t, testCleanerConfig, a)
		<-cleaned
		if d := time.Since(began); d < time.Minute || d > time.Minute+testCleanerConfig.Backoff {
			t.Fatalf("cleaned after %s", d)
		}
		if m := c.Metrics(); m.MaxCompactionDelay <= 0 || m.MaxCompactionDelay > testCleanerConfig.Backoff {
			t.Errorf("delay %s", m.MaxCompactionDelay)
		}
	})
}

func TestUncleanable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := fill(t, "bad", 3, nil)
		good := fill(t, "good", 2, nil)
		r, err := bad.log.Read(10, 1<<20, 20, true)
		if err != nil {
			t.Fatal(err)
		}
		// A bit of the second segment's records has flipped on disk.
		f := r.Files[0]
		if _, err := f.File.WriteAt([]byte{0xff}, f.Offset+int64(f.Length)-3); err != nil {
			t.Fatal(err)
		}
		r.Release()
		c, cleaned := start(t, testCleanerConfig, bad, good)
		if name := <-cleaned; name != "good" {
			t.Fatal(name)
		}
		<-time.After(time.Minute)
		if m := c.Metrics(); m.UncleanablePartitions["/d"] != 1 || m.UncleanableBytes["/d"] == 0 {
			t.Fatalf("%+v", m)
		}
		if bad.log.CleanedTo() != 0 || len(bad.log.Segments()) != 4 {
			t.Fatal("the broken log was changed")
		}
	})
}

// TestAborted lets a log change at every point of a pass at which somebody else may run.
func TestAborted(t *testing.T) {
	for name, change := range map[string]func(*log.Log) error{
		"cut":        func(l *log.Log) error { return l.TruncateTo(15) },
		"begun anew": func(l *log.Log) error { return l.TruncateFullyAndStartAt(1000) },
		"retention":  func(l *log.Log) error { return l.SetLogStartOffset(20) },
		"closed":     func(l *log.Log) error { return l.Close() },
		"deleted":    func(l *log.Log) error { return l.Delete() },
	} {
		for at := range 6 {
			x := fill(t, "t", 3, nil)
			b, err := x.log.CleanBounds(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			c, err := x.log.BeginCleaning(b)
			if err != nil {
				t.Fatal(err)
			}
			steps := 0
			step := func() error {
				if steps++; steps == at+1 {
					return change(x.log)
				}
				return nil
			}
			p := pass{
				ctx: t.Context(), cleaning: c, limits: Limits{DedupeBytes: 1 << 20, LoadFactor: 0.9, IOBufferBytes: 100},
				filter: &recordbatch.Filter{Codecs: testCodecs}, unchecked: checkEvery, replace: func(f func() error) error {
					if err := step(); err != nil {
						t.Fatal(err)
					}
					return f()
				},
			}
			p.spend = func(context.Context, int64) error {
				p.unchecked = checkEvery // the next batch comes here, too
				return step()
			}
			end, err := p.run(b)
			if err == nil {
				c.SetCleanedTo(end)
			}
			if (err != nil) != (steps > at) {
				t.Errorf("%s at %d: %v after %d steps", name, at, err, steps)
			}
			c.Close()
			if cleaned := x.log.CleanedTo(); name == "cut" && err != nil && cleaned > 15 {
				t.Errorf("%s at %d: clean up to %d", name, at, cleaned)
			}
		}
	}
}
