package testkit

import (
	"bufio"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
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
	n := newNetwork(t, func(net.Addr) string { return "caller" })
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

func TestOwnersOfConnections(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inode, err := inodeOf(c.LocalAddr().(*net.TCPAddr).Port)
	if err != nil || !hasSocket(os.Getpid(), inode) || hasSocket(os.Getppid(), inode) {
		t.Errorf("socket %q: %v", inode, err)
	}
	if _, err := inodeOf(1); err == nil {
		t.Error("a socket that is not there was found")
	}
}
