// Package ports finds ports of this machine that nobody listens on.
//
// It owns the choice only, and gives no port to two test processes: each has a block of its own as long as it lives, so that the
// port of a server that a test has ended, or has yet to start, is not another one's meanwhile. It must never give out a port that the
// kernel may give to a client.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Blocks of ports are below the range from which kernels give ports to clients, so that no connection sits on a port that is about
// to be used.
const (
	first     = 12000
	last      = 31000
	blockSize = 500
)

// block is a row of ports that one process has for itself while it listens on the first.
type block struct {
	guard net.Listener
	base  int

	mu sync.Mutex
	// next is the port after those that were given out last; a port comes again only after all others.
	next int
}

// own takes this process's block.
var own = sync.OnceValues(take)

func take() (*block, error) {
	for _, i := range rand.Perm((last - first) / blockSize) {
		base := first + i*blockSize
		if l, err := listen(base); err == nil {
			return &block{guard: l, base: base, next: base + 1}, nil
		}
	}
	return nil, errors.New("no free block of ports")
}

// FreeRun finds n ports in a row on which nobody listens, and gives the first.
func FreeRun(n int) (int, error) {
	b, err := own()
	if err != nil {
		return 0, err
	}
	return b.run(n)
}

func (b *block) run(n int) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range blockSize {
		if b.next+n > b.base+blockSize {
			b.next = b.base + 1
		}
		port := b.next
		b.next++
		if n < blockSize && free(port, n) {
			b.next = port + n
			return port, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row from %d to %d", n, b.base+1, b.base+blockSize-1)
}

func free(base, n int) bool {
	for port := base; port < base+n; port++ {
		l, err := listen(port)
		if err != nil {
			return false
		}
		defer l.Close()
	}
	return true
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// FreeAddresses are n addresses of the loopback interface on which nobody listens.
func FreeAddresses(n int) ([]string, error) {
	port, err := FreeRun(n)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for i := range n {
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)))
	}
	return addresses, nil
}
