package sim

import (
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// eventsPerSeed is how many events happen to a seed's cluster before it is healed.
const eventsPerSeed = 6000

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a number", name, s)
	}
	return n
}

// traceFile is where everything that happens is told, if CHANCERY_SIM_TRACE names a file.
func traceFile(t *testing.T) io.Writer {
	t.Helper()
	name := os.Getenv("CHANCERY_SIM_TRACE")
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// played is the outcome of a seed.
type played struct {
	report Report
	err    error
}

// play plays seeds, some at a time, and gives their outcomes in order.
func play(first, count uint64, options Options) []played {
	out := make([]played, count)
	var workers sync.WaitGroup
	var next atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < count; i = next.Add(1) - 1 {
				o := options
				o.Seed = first + i
				out[i].report, out[i].err = Run(o)
			}
		})
	}
	workers.Wait()
	return out
}

// TestSeeds plays CHANCERY_SIM_SEEDS seeds from CHANCERY_SIM_SEED on. The trace of a single one goes to CHANCERY_SIM_TRACE.
func TestSeeds(t *testing.T) {
	first, count := number(t, "CHANCERY_SIM_SEED", 1), number(t, "CHANCERY_SIM_SEEDS", 50)
	o := Options{Events: eventsPerSeed}
	if count == 1 {
		o.Trace = traceFile(t)
	}
	begin := time.Now()
	total := Report{Faults: map[string]int{}}
	for i, p := range play(first, count, o) {
		if seed := first + uint64(i); p.err != nil {
			t.Errorf("seed %d: %v\nrepeat with: CHANCERY_SIM_SEED=%d CHANCERY_SIM_SEEDS=1 CHANCERY_SIM_TRACE=trace.txt "+
				"go test -count=1 -run '^TestSeeds$' ./services/testkit/sim", seed, p.err, seed)
		}
		total.add(p.report)
	}
	took := time.Since(begin)
	t.Logf("%d seeds in %s (%.0f/s): %d events, %s, %d leaders, %d records committed, %d acknowledged, %d elections out of sync", count,
		took.Round(time.Millisecond), float64(count)/took.Seconds(), total.Events, total.Time.Round(time.Second), total.Leaders,
		total.Committed, total.Acknowledged, total.Unclean)
	for _, name := range slices.Sorted(maps.Keys(total.Faults)) {
		t.Logf("%s: %d", name, total.Faults[name])
	}
}

func (r *Report) add(other Report) {
	r.Events += other.Events
	r.Time += other.Time
	r.Committed += other.Committed
	r.Acknowledged += other.Acknowledged
	r.Unclean += other.Unclean
	r.Leaders += other.Leaders
	for name, n := range other.Faults {
		r.Faults[name] += n
	}
}

// TestSeedsRepeat plays seeds twice.
func TestSeedsRepeat(t *testing.T) {
	for seed := range uint64(3) {
		a, errA := Run(Options{Seed: seed, Events: eventsPerSeed})
		b, errB := Run(Options{Seed: seed, Events: eventsPerSeed})
		if a.Digest != b.Digest || a.Events != b.Events || a.Time != b.Time || (errA == nil) != (errB == nil) {
			t.Errorf("seed %d: %+v %v, and then %+v %v", seed, a, errA, b, errB)
		}
	}
}

// TestBrokenRulesAreNoticed plays seeds with one rule broken each: the checks must find out.
func TestBrokenRulesAreNoticed(t *testing.T) {
	for name, wrong := range map[string]Wrong{
		"truncate to the high watermark": {TruncateToHighWatermark: true},
		"skip the leader epochs":         {SkipEpochs: true},
		"acknowledge early":              {AcknowledgeEarly: true},
		"forget the ELR":                 {ForgetELR: true},
		"claim clean stops":              {ClaimCleanStops: true},
	} {
		t.Run(name, func(t *testing.T) {
			const seeds, atOnce = 100, 4
			for first := uint64(0); first < seeds; first += atOnce {
				for i, p := range play(first, atOnce, Options{Events: eventsPerSeed, Wrong: wrong}) {
					if p.err != nil {
						t.Logf("seed %d: %v", first+uint64(i), p.err)
						return
					}
				}
			}
			t.Errorf("%d seeds have noticed nothing", seeds)
		})
	}
}
