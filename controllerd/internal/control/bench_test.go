package control

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkFenceNode decides what follows when a node of ten is silent that is in the ISR of 30,000 of 100,000 partitions and
// leads a third of those.
func BenchmarkFenceNode(b *testing.B) {
	w := newWorld(b, nil)
	w.up(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for i := range 100 {
		w.mustCreate(newTopic(fmt.Sprintf("topic-%d", i), 1000, 3))
	}
	w.advance(10 * time.Second)
	changed := 0
	b.ResetTimer()
	for b.Loop() {
		d, found := w.m.FenceSilent()
		if !found {
			b.Fatal("nobody is silent")
		}
		changed = len(d.Records)
	}
	b.ReportMetric(float64(changed), "records")
}
