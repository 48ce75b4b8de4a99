// Package ports finds ports of this machine that nobody listens on.
//
// It owns the choice only: another process may take a port before its finder does, which is rare enough for tests.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Runs of ports are taken from below the range from which kernels give ports to clients, so that no connection sits on a port
// that is about to be used.
const (
	first    = 12000
	last     = 31000
	attempts = 200
)

// FreeRun finds n ports in a row on which nobody listens, and gives the first.
func FreeRun(n int) (int, error) {
	for range attempts {
		base := first + rand.IntN(last-first-n)
		if free(base, n) {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row", n)
}

func free(base, n int) bool {
	for port := base; port < base+n; port++ {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		defer l.Close()
	}
	return true
}
