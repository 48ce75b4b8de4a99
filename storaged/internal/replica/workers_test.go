package replica

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// TestWorkersDoEverything: each piece of work is done once, beside the others, before and after Close; and no goroutine is left.
func TestWorkersDoEverything(t *testing.T) {
	for _, keep := range []int{-1, 0, 3} {
		synctest.Test(t, func(t *testing.T) {
			var w *Workers
			if keep >= 0 {
				w = NewWorkers(keep)
			}
			var done sync.Map
			gate := make(chan struct{})
			for i := range 10 {
				w.Go(func() {
					<-gate
					done.Store(i, true)
				})
			}
			synctest.Wait()
			close(gate)
			synctest.Wait()
			if w != nil {
				if idle := w.idle.Load(); idle != w.keep {
					t.Fatalf("%d goroutines are kept, want %d", idle, w.keep)
				}
				w.Go(func() { done.Store(10, true) })
				synctest.Wait()
				w.Close()
			}
			w.Go(func() { done.Store(11, true) })
			synctest.Wait()
			count := 0
			done.Range(func(any, any) bool { count++; return true })
			if want := 11; w == nil && count != want || w != nil && count != want+1 {
				t.Fatalf("%d pieces of work are done", count)
			}
		})
	}
}

// BenchmarkWorkers compares goroutines that grow their stacks with those that have.
func BenchmarkWorkers(b *testing.B) {
	for name, w := range map[string]*Workers{"new": nil, "kept": NewWorkers(4)} {
		b.Run(name, func(b *testing.B) {
			done := make(chan byte)
			for range b.N {
				w.Go(func() { done <- deep(8) })
				<-done
			}
		})
	}
}

//go:noinline
func deep(n int) byte {
	var frame [1 << 10]byte
	if n > 0 {
		frame[n] = deep(n - 1)
	}
	runtime.KeepAlive(&frame)
	return frame[n]
}
