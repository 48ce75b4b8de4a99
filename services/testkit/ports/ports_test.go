package ports

import "testing"

// TestNoPortIsGivenTwice plays two processes that take ports.
func TestNoPortIsGivenTwice(t *testing.T) {
	given := map[int]bool{}
	for range 2 {
		b, err := take()
		if err != nil {
			t.Fatal(err)
		}
		defer b.guard.Close()
		for range 20 {
			port, err := b.run(5)
			if err != nil {
				t.Fatal(err)
			}
			for p := port; p < port+5; p++ {
				if given[p] || p <= b.base || p >= b.base+blockSize {
					t.Fatalf("port %d of the block from %d", p, b.base)
				}
				given[p] = true
			}
		}
		if port, err := b.run(blockSize); err == nil {
			t.Fatalf("port %d is the first of more than there are", port)
		}
	}
}
