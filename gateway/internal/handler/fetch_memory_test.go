package handler

import "testing"

func TestAFetchBringsLessTheMoreIsHeld(t *testing.T) {
	m := fetchMemory{limit: 1 << 20}
	for _, x := range []struct {
		held         int
		wanted, want int32
	}{
		{0, 50 << 20, 256 << 10},
		{0, 1000, 1000},
		{512 << 10, 50 << 20, 128 << 10},
		{1 << 20, 50 << 20, leastFetchBytes},
		{4 << 20, 50 << 20, leastFetchBytes},
		{4 << 20, 10, 10},
	} {
		release := m.hold(x.held)
		if got := m.room(x.wanted); got != x.want {
			t.Errorf("with %d bytes held a fetch of %d brings %d, want %d", x.held, x.wanted, got, x.want)
		}
		release()
	}
	if m.held.Load() != 0 {
		t.Error("bytes are held for ever")
	}
}
