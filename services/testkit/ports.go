package testkit

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Runs of ports are taken from below the range from which kernels give ports to clients, so that no connection of a test
// sits on a port that is about to be used.
const (
	firstRunPort = 12000
	lastRunPort  = 31000
	runAttempts  = 200
)

// FreeAddress is an address of the loopback interface that nobody listens on.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePorts(t, 1)))
}

// FreePorts finds n ports in a row that nobody listens on, and gives the first.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
	for range runAttempts {
		base := firstRunPort + rand.IntN(lastRunPort-firstRunPort-n)
		if free(base, n) {
			return base
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
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
