package throttle_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"chancery/storaged/internal/throttle"
)

func TestAQuotaIsExceededUntilTheBytesArePaidBack(t *testing.T) {
	now := time.Unix(1000, 0)
	q := throttle.New(11, time.Second)
	q.Record(now, 1<<30)
	if q.Exceeded(now) {
		t.Fatal("a quota without a bound is exceeded")
	}
	q.SetBound(1 << 28)
	if got := q.Rate(now); got != 1<<30 {
		t.Fatalf("rate %v", got)
	}
	for second, want := range []bool{true, true, true, true, false} {
		if got := q.Exceeded(now.Add(time.Duration(second) * time.Second)); got != want {
			t.Errorf("after %d s: %v", second, got)
		}
	}
	q.SetBound(1)
	if got := q.Wait(now); got != time.Second {
		t.Errorf("wait %v, want one window", got)
	}
	if q.Exceeded(now.Add(11 * time.Second)) {
		t.Error("what lies further back than all windows still counts")
	}
	if q.Total() != 1<<30 || q.Bound() != 1 {
		t.Errorf("total %d, bound %d", q.Total(), q.Bound())
	}
}

// Whoever records only while the quota is not exceeded stays near the bound.
func TestTheRateStaysNearTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.Int64Range(1000, 1_000_000).Draw(t, "bound")
		chunk := rapid.IntRange(1, 2000).Draw(t, "chunk")
		q := throttle.New(11, time.Second)
		q.SetBound(bound)
		now := time.Unix(0, 0)
		sent, end := int64(0), now.Add(60*time.Second)
		for now.Before(end) {
			if w := q.Wait(now); w > 0 {
				now = now.Add(w)
				continue
			}
			q.Record(now, chunk)
			sent += int64(chunk)
			now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "pause")) * time.Millisecond)
		}
		if limit := float64(bound)*62 + 2*float64(chunk); float64(sent) > limit*1.1 {
			t.Fatalf("%d bytes in 60 s, bound %d per second", sent, bound)
		}
	})
}
