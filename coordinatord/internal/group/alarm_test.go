package group

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAlarmsFireInOrder: by when they are due, and at the same time by when they were last set, however often they are put off,
// brought forward or cancelled.
func TestAlarmsFireInOrder(t *testing.T) {
	type set struct {
		due  time.Time
		turn int
		name int
	}
	rapid.Check(t, func(rt *rapid.T) {
		var q alarms
		all := make([]alarm, 6)
		model := map[int]set{}
		now := time.Unix(0, 0)
		for turn := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			name := rapid.IntRange(0, len(all)-1).Draw(rt, "alarm")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				q.cancel(&all[name])
				delete(model, name)
			case 1:
				now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(rt, "seconds")) * time.Second)
				var want []set
				for _, s := range model {
					if !s.due.After(now) {
						want = append(want, s)
					}
				}
				slices.SortFunc(want, func(a, b set) int {
					if c := a.due.Compare(b.due); c != 0 {
						return c
					}
					return a.turn - b.turn
				})
				for _, s := range want {
					if a := q.pop(now); a != &all[s.name] {
						rt.Fatalf("another alarm than %d, which is due at %s", s.name, s.due)
					}
					delete(model, s.name)
				}
				if q.pop(now) != nil {
					rt.Fatal("an alarm that is not due")
				}
			default:
				due := now.Add(time.Duration(rapid.IntRange(0, 4).Draw(rt, "in")) * time.Second)
				q.set(&all[name], due)
				model[name] = set{due, turn, name}
			}
		}
	})
}
