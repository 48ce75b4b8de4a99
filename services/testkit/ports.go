package testkit

import (
	"net"
	"strconv"
	"testing"

	"chancery/services/testkit/ports"
)

// FreeAddress is an address of the loopback interface that nobody listens on.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePorts(t, 1)))
}

// FreePorts finds n ports in a row that nobody listens on, and gives the first.
func FreePorts(t testing.TB, n int) int {
	t.Helper()
	port, err := ports.FreeRun(n)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
