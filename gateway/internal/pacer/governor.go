package pacer

import (
	"math"
	"time"
)

const (
	// Floor is the least rate, in bytes per second for all cold readers of a gateway together.
	Floor = 4 << 20
	// ceiling is a rate that bounds nothing any more.
	ceiling = 8 << 30
	// producing is for how long after a produce request there may be another one.
	producing = 2 * time.Second
	// forgotten is after how long without cold reads the rate begins anew.
	forgotten = 10 * time.Second
	// aftermath is for how long after cold bytes have passed producers may notice them: what was read ahead behind them.
	aftermath = 150 * time.Millisecond

	// A round is how long requests are watched before the rate changes: until there are roundRequests of them, but not longer than
	// roundMost.
	round         = 500 * time.Millisecond
	roundMost     = 5 * time.Second
	roundRequests = 200
	// Without cold reads the share usual of the requests is not slow, and mostUsual not very slow. Of the former a round has enough
	// to tell a little harm to many requests, and the latter tell rare harm that is large.
	usual     = 0.95
	mostUsual = 0.99
	// The rate grows by a growthStep part for each of the last rounds that it has grown in, up to growthMost of them; before the
	// first round as if there had been growthFirst. Of the rate at least cut is left after a round.
	growthStep  = 16
	growthFirst = 4
	growthMost  = 8
	cut         = 0.5

	// Cold reads pause for pause, each pauseEvery, or pauseFirst while it is not known what is usual without them.
	pause      = time.Second
	pauseEvery = 10 * time.Second
	pauseFirst = time.Second
	// leastKnown is how many requests it takes to know what is usual.
	leastKnown = 20

	// A grant is as many bytes as pass in grantTime, and no fewer than leastGrant, what a consumer asks for by default: at a low
	// rate few large pieces hold up fewer produce requests than many small ones.
	grantTime  = 30 * time.Millisecond
	leastGrant = 1 << 20
)

// Governor decides when cold bytes pass. It is a pure state machine: time comes in, and it is not safe for use by several
// goroutines. The zero value is one that nobody has produced through yet.
type Governor struct {
	// produced is when the last produce request ended.
	produced time.Time
	// rate is in bytes per second, grown the rounds that it has grown in since it was last too high.
	rate  float64
	grown int
	// next is when the next bytes may pass, cold when the last ones did or will.
	next, cold time.Time

	// quiet are the times of requests while no cold bytes passed.
	quiet baseline
	// What follows is of the present round: requests beside cold bytes, those of them that are slow and very slow, from what times
	// on they are, and whether a read had to wait.
	began                    time.Time
	requests, slow, verySlow int
	slowFrom, verySlowFrom   time.Duration
	waited                   bool
	// known is from how many requests those times are known.
	known int

	// paused is until when no cold bytes pass, pauseAt when the next pause begins.
	paused, pauseAt time.Time
}

// limited says whether there are producers to yield to.
func (g *Governor) limited(now time.Time) bool {
	return !g.produced.IsZero() && now.Sub(g.produced) < producing
}

// Limit is the rate in bytes per second; 0 while there is none.
func (g *Governor) Limit(now time.Time) float64 {
	if !g.limited(now) {
		return 0
	}
	return max(g.rate, Floor)
}

// Produced notes a produce request that ends now.
func (g *Governor) Produced(now time.Time, took time.Duration) {
	if !g.limited(now) {
		g.begin(now)
	}
	g.produced = now
	if g.cold.Add(aftermath).Before(now.Add(-took)) {
		g.quiet.add(took)
		return
	}
	g.requests++
	if took > g.slowFrom {
		g.slow++
	}
	if took > g.verySlowFrom {
		g.verySlow++
	}
	if watched := now.Sub(g.began); watched >= roundMost || watched >= round && g.requests >= roundRequests {
		g.judge(now)
	}
}

// begin starts with the least rate.
func (g *Governor) begin(now time.Time) {
	g.rate, g.grown = Floor, growthFirst
	g.pauseAt = now.Add(pauseEvery)
	if g.quiet.count() < leastKnown {
		g.pauseAt = now.Add(pauseFirst)
	}
	g.newRound(now)
}

func (g *Governor) newRound(now time.Time) {
	g.began, g.requests, g.slow, g.verySlow, g.waited = now, 0, 0, 0, false
	g.slowFrom, g.verySlowFrom = math.MaxInt64, math.MaxInt64
	if g.quiet.count() >= leastKnown {
		g.slowFrom, g.verySlowFrom = g.quiet.quantile(usual), g.quiet.quantile(mostUsual)
		g.known = g.quiet.count()
	}
}

// judge changes the rate by what the round has shown.
func (g *Governor) judge(now time.Time) {
	slow, verySlow := g.excess(g.slow, usual), g.excess(g.verySlow, mostUsual)
	switch worst := max(slow, verySlow); {
	case g.slowFrom == math.MaxInt64:
	case worst > 1:
		g.rate, g.grown = max(Floor, g.rate*max(cut, 1/worst)), 0
	case worst == 0 && g.waited:
		g.grown = min(growthMost, g.grown+1)
		g.rate = min(ceiling, g.rate*(1+float64(g.grown)/growthStep))
	}
	g.newRound(now)
}

// excess is by how many times more requests were slow than without cold reads: 0 if there were not more, and 1 if there were but that
// can be chance, as what is usual is known from a number of requests, too.
func (g *Governor) excess(slow int, usual float64) float64 {
	expected := (1 - usual) * float64(g.requests)
	deviation := math.Sqrt(expected * (1 + float64(g.requests)/float64(g.known)))
	switch {
	case float64(slow) <= expected:
		return 0
	case float64(slow) <= expected+3*deviation:
		return 1
	}
	return float64(slow) / expected
}

// Reserve asks for cold bytes to pass. It gives how many may, and after what time; none may when that would be more than
// most.
func (g *Governor) Reserve(now time.Time, bytes int, most time.Duration) (granted int, wait time.Duration) {
	if !g.limited(now) {
		g.next, g.cold = now, now
		return bytes, 0
	}
	if now.Sub(g.cold) > forgotten {
		g.begin(now)
	}
	if !now.Before(g.pauseAt) {
		g.paused, g.pauseAt = now.Add(pause), now.Add(pause+pauseEvery)
	}
	at := now
	for _, earliest := range []time.Time{g.next, g.paused} {
		if earliest.After(at) {
			at = earliest
		}
	}
	wait = at.Sub(now)
	g.waited = g.waited || wait > 0
	if wait > most {
		return 0, most
	}
	granted = min(bytes, max(leastGrant, int(g.rate*grantTime.Seconds())))
	g.next = at.Add(g.worth(granted))
	if at.After(g.cold) {
		g.cold = at
	}
	return granted, wait
}

// Settle corrects a grant by what has passed: a first batch may be larger, and there may be less.
func (g *Governor) Settle(now time.Time, granted, passed int) {
	if g.limited(now) {
		g.next = g.next.Add(g.worth(passed - granted))
	}
	if passed > 0 && now.After(g.cold) {
		g.cold = now
	}
}

// worth is the time that bytes take at the present rate.
func (g *Governor) worth(bytes int) time.Duration {
	return time.Duration(float64(bytes) / g.rate * float64(time.Second))
}

const (
	// timesPerDouble is how many classes of times there are between one and its double.
	timesPerDouble = 32
	// timesClasses reach from a microsecond to over a minute.
	timesClasses = 26*timesPerDouble + 1
	// generation is how many requests a baseline counts before it begins anew.
	generation = 1000
)

// baseline is how long requests took of late, in two generations of times: what is older than both is forgotten, since other
// requests may come now.
type baseline struct{ present, past times }

func (b *baseline) count() int { return b.present.count + b.past.count }

func (b *baseline) add(took time.Duration) {
	if b.present.count >= generation {
		b.past, b.present = b.present, times{}
	}
	b.present.add(took)
}

// quantile is a time that the given share of the requests did not exceed.
func (b *baseline) quantile(share float64) time.Duration {
	above := int((1 - share) * float64(b.count()))
	for class := timesClasses - 1; class > 0; class-- {
		if above -= int(b.present.classes[class]) + int(b.past.classes[class]); above < 0 {
			return time.Duration(math.Exp2(float64(class+1)/timesPerDouble) * float64(time.Microsecond))
		}
	}
	return time.Microsecond
}

// times are how long requests took, in classes.
type times struct {
	count   int
	classes [timesClasses]int32
}

func (t *times) add(took time.Duration) {
	class := 0
	if us := float64(took) / float64(time.Microsecond); us > 1 {
		class = min(int(timesPerDouble*math.Log2(us)), timesClasses-1)
	}
	t.classes[class]++
	t.count++
}
