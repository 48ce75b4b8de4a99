package testkit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"chancery/services/testkit/ports"
)

// TestNetworkCutsProcessesOff sends lines to an echo while either end is cut off, and after that.
func TestNetworkCutsProcessesOff(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }() // It ends with the connection.
		}
	}()
	n := newNetwork(t, func(net.Conn) string { return "caller" })
	c, err := net.Dial("tcp", n.listen(t, "called", echo.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lines := bufio.NewReader(c)
	say := func() error {
		if _, err := c.Write([]byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		_, err := lines.ReadString('\n')
		return err
	}
	if err := say(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"caller", "called"} {
		n.Cut(name)
		if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if err := say(); err == nil {
			t.Fatalf("%s is reached though it is cut off", name)
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		n.Mend(name)
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("what was on its way to or from %s is lost: %v", name, err)
		}
	}
}

// TestOwnersOfConnections has one port connect to two servers, as kernels do it when many clients are at work.
func TestOwnersOfConnections(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	shared := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		outer := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) })
		return errors.Join(outer, err)
	}}
	own, err := ports.FreeRun(1) // one that the kernel gives to nobody else
	if err != nil {
		t.Fatal(err)
	}
	shared.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: own}
	inodes := map[string]bool{}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := shared.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		inode, err := inodeOf(c.LocalAddr(), c.RemoteAddr())
		if err != nil || inodes[inode] || !hasSocket(os.Getpid(), inode) || hasSocket(os.Getppid(), inode) {
			t.Errorf("socket %q: %v", inode, err)
		}
		inodes[inode] = true
		if _, err := inodeOf(c.LocalAddr(), c.LocalAddr()); err == nil {
			t.Error("a socket that is not there was found")
		}
	}
}
