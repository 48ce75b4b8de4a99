package pacer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Without producers nothing waits; beside them bytes pass at the least rate, in small pieces, and no longer once they have ended.
func TestReserve(t *testing.T) {
	const mib = 1 << 20
	var g Governor
	at := func(after time.Duration) time.Time { return start.Add(after) }
	for i, step := range []struct {
		after    time.Duration
		produced bool
		bytes    int
		most     time.Duration
		granted  int
		wait     time.Duration
	}{
		{after: 0, bytes: 4 * mib, most: time.Second, granted: 4 * mib},
		{after: 0, bytes: 50 * mib, most: time.Second, granted: 50 * mib},
		{after: time.Second, produced: true, bytes: 4 * mib, most: time.Second, granted: mib},
		{after: time.Second, bytes: 4 * mib, most: time.Second, granted: mib, wait: 250 * time.Millisecond},
		{after: time.Second + 100*time.Millisecond, bytes: 1000, most: time.Second, granted: 1000, wait: 400 * time.Millisecond},
		{after: time.Second + 150*time.Millisecond, bytes: mib, most: 20 * time.Millisecond, granted: 0, wait: 20 * time.Millisecond},
		{after: time.Second + 600*time.Millisecond, bytes: 4 * mib, most: time.Second, granted: mib},
		{after: 4 * time.Second, bytes: mib, most: 0, granted: mib},
	} {
		if step.produced {
			g.Produced(at(step.after), time.Millisecond)
		}
		granted, wait := g.Reserve(at(step.after), step.bytes, step.most)
		if granted != step.granted || (wait-step.wait).Abs() > 200*time.Microsecond {
			t.Errorf("step %d: %d bytes after %s, want %d after %s", i, granted, wait, step.granted, step.wait)
		}
	}
}

func TestBaseline(t *testing.T) {
	var x baseline
	if q := x.quantile(usual); q > time.Microsecond {
		t.Errorf("of nothing: %s", q)
	}
	for i := range 100_000 {
		x.add(time.Duration(1+i%1000) * time.Millisecond)
	}
	if q := x.quantile(usual); q < 940*time.Millisecond || q > 980*time.Millisecond {
		t.Errorf("the 95th percentile of up to 1 s is %s", q)
	}
	for range 2 * generation {
		x.add(time.Millisecond)
	}
	if q := x.quantile(usual); q > 1100*time.Microsecond {
		t.Errorf("what was long ago still counts: %s", q)
	}
	x.add(-1)
	x.add(math.MaxInt64)
}

// simulated is a machine with a producer and a cold reader that always wants more.
type simulated struct {
	g      Governor
	random *rand.Rand
	now    time.Time
	// base is how long a request takes by itself, harm how likely it is to meet a cold read for each byte per second, and to take
	// four times as long.
	base time.Duration
	harm float64
	// perSecond are produce requests.
	perSecond int
	cold      bool

	passed   int
	took     []time.Duration
	readAt   time.Time
	recently []int
}

// run lets time pass in steps of 10 ms.
func (s *simulated) run(d time.Duration) (rate float64) {
	s.passed, s.took = 0, nil
	produced := 0.0
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(10 * time.Millisecond) {
		bytes := 0
		for s.cold && !s.readAt.After(s.now) && bytes < 5<<20 { // half a gigabyte a second is all it can take
			granted, wait := s.g.Reserve(s.now, 1<<20, 250*time.Millisecond)
			s.readAt = s.now.Add(wait)
			bytes += granted
			s.g.Settle(s.now, granted, granted)
		}
		s.passed += bytes
		s.recently = append(s.recently, bytes)
		s.recently = s.recently[max(0, len(s.recently)-10):]
		sum := 0
		for _, b := range s.recently {
			sum += b
		}
		for produced += float64(s.perSecond) / 100; produced >= 1; produced-- {
			took := time.Duration(float64(s.base) * math.Exp(s.random.NormFloat64()/3))
			if s.random.Float64() < s.harm*float64(sum)*10 {
				took *= 4
			}
			s.took = append(s.took, took)
			s.g.Produced(s.now, took)
		}
	}
	return float64(s.passed) / d.Seconds()
}

func (s *simulated) p99() time.Duration {
	slices.Sort(s.took)
	return s.took[len(s.took)*99/100]
}

func newSimulated() *simulated {
	return &simulated{random: rand.New(rand.NewPCG(1, 2)), now: start, base: time.Millisecond, perSecond: 1000}
}

// On a machine with room for both the rate grows until it bounds nothing.
func TestRoomForBoth(t *testing.T) {
	for _, perSecond := range []int{20, 1000, 5000} {
		s := newSimulated()
		s.perSecond = perSecond
		s.run(20 * time.Second)
		s.cold = true
		if first := s.run(time.Second); first > 3*Floor {
			t.Errorf("%d requests a second: the first second brought %.0f MB", perSecond, first/1e6)
		}
		s.run(5 * time.Minute)
		if rate := s.run(30 * time.Second); rate < 150e6 { // the simulation's steps permit 200
			t.Errorf("%d requests a second: %.0f MB/s after 5 minutes", perSecond, rate/1e6)
		}
	}
}

// Where cold reads harm, the rate stays where producers hardly notice them, and above the least all the same.
func TestHarm(t *testing.T) {
	for name, harmlessRate := range map[string]float64{"at every rate": 1e6, "above 100 MB/s": 100e6} {
		s := newSimulated()
		s.harm = 0.01 / harmlessRate
		s.run(20 * time.Second)
		alone := s.p99()
		s.cold = true
		s.run(time.Minute)
		rate := s.run(2 * time.Minute)
		if rate < 0.9*Floor {
			t.Errorf("harm %s: %.1f MB/s", name, rate/1e6)
		}
		ratio := float64(s.p99()) / float64(alone)
		if harmlessRate > Floor && (rate < harmlessRate/8 || ratio > 1.15) || harmlessRate < Floor && rate > 2*Floor {
			t.Errorf("harm %s: %.1f MB/s, p99 of producers is %.2f times what it is without", name, rate/1e6, ratio)
		}
	}
}

// Producers that become slower by themselves are not taken for harmed for long.
func TestSlowerByThemselves(t *testing.T) {
	s := newSimulated()
	s.run(20 * time.Second)
	s.cold = true
	s.run(2 * time.Minute)
	before := s.run(10 * time.Second)
	s.base *= 3
	s.run(10 * time.Minute)
	if rate := s.run(time.Minute); rate < before/2 {
		t.Errorf("%.0f MB/s, %.0f before requests became slower", rate/1e6, before/1e6)
	}
}

// Whatever happens, some bytes pass in each second that somebody asks.
func TestNobodyStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulated()
		s.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s.cold = true
		for range rapid.IntRange(1, 10).Draw(t, "phases") {
			s.perSecond = rapid.IntRange(0, 3000).Draw(t, "requests")
			s.harm = rapid.Float64Range(0, 1e-6).Draw(t, "harm")
			s.base = time.Duration(rapid.IntRange(1, 1_000_000).Draw(t, "us")) * time.Microsecond
			if rate := s.run(2 * time.Second); rate < Floor/4 {
				t.Fatalf("%.0f bytes a second", rate)
			}
		}
	})
}

func TestPacerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(time.Now)
		p.Produced(time.Now().Add(-time.Millisecond))
		began := time.Now()
		for passed := 0; passed < Floor; {
			n := p.Wait(t.Context(), 1<<20, time.Second)
			if n == 0 {
				t.Fatal("nothing passes")
			}
			passed += n
			p.Settle(n, n)
			p.Produced(time.Now())
		}
		if took := time.Since(began); took < 700*time.Millisecond || took > 1500*time.Millisecond {
			t.Errorf("%d bytes took %s", Floor, took)
		}
		// Who would have to wait for longer than he can gets nothing, after that time.
		began = time.Now()
		n, refused := p.Wait(t.Context(), 1<<20, time.Second), 0
		p.Settle(n, 100<<20)
		if n = p.Wait(t.Context(), 1<<20, 200*time.Millisecond); n == 0 {
			refused++
		}
		if s := p.Stats(); refused != 1 || s.Refused != 1 || s.Waited < 200*time.Millisecond || s.Passed != 100<<20+Floor && s.Passed < 100<<20 || s.Limit < Floor {
			t.Errorf("%d bytes after %s, %+v", n, time.Since(began), s)
		}
	})
}
