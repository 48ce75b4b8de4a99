package storaged

import (
	"testing"
	"time"
)

func TestMeter(t *testing.T) {
	var m meter
	start := time.Unix(1000, 0)
	at := func(after time.Duration) time.Time { return start.Add(after) }
	for _, step := range []struct {
		after time.Duration
		bytes int
		want  int64
	}{
		{0, 0, 0},
		{100 * time.Millisecond, 1, 1},
		{1100 * time.Millisecond, 2999, 2727},
		{2000 * time.Millisecond, 0, 3000},
		{2999 * time.Millisecond, 0, 1500},
		{3100 * time.Millisecond, 0, 0},
		{60 * time.Second, 500, 500},
		{61500 * time.Millisecond, 0, 333},
		{63 * time.Second, 0, 0},
	} {
		m.add(at(step.after), step.bytes)
		if got := m.perSecond(at(step.after)); got < step.want-2 || got > step.want+2 {
			t.Errorf("after %s: %d, want %d", step.after, got, step.want)
		}
	}
}
