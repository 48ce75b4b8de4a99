package testkit

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"chancery/services/app/playground"
)

// Network stands between the storage nodes and controllers of a playground and everybody who calls them, and can cut single
// processes off. The quorum of the controllers does not go through it.
type Network struct {
	// source names the process that has made a connection.
	source func(net.Conn) string

	mu      sync.Mutex
	changed *sync.Cond
	cut     map[string]bool
	closed  bool
	conns   map[net.Conn]struct{}
}

// Intercept puts a network between the processes of a playground. It restarts the controllers and storage nodes, which are
// reached at other addresses from then on.
func Intercept(t testing.TB, p *Playground) *Network {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("who has made a connection is known on Linux only")
	}
	n := newNetwork(t, p.owner)
	var controllers, others []playground.Process
	bootstrap := map[string]string{}
	var addresses []string
	for _, process := range p.Processes() {
		if process.Service != "controllerd" && process.Service != "storaged" {
			continue
		}
		bootstrap[process.Name] = n.listen(t, process.Name, process.Addresses["grpc"])
		if process.Service == "controllerd" {
			controllers = append(controllers, process)
			addresses = append(addresses, bootstrap[process.Name])
		} else {
			others = append(others, process)
		}
	}
	for _, process := range append(controllers, others...) {
		p.Stop(process.Name)
		p.SetProperty(process, "advertised.grpc.listeners", bootstrap[process.Name])
		if process.Service == "storaged" {
			p.SetProperty(process, "controller.quorum.bootstrap.servers", strings.Join(addresses, ","))
		}
		p.Restart(process.Name)
	}
	return n
}

func newNetwork(t testing.TB, source func(net.Conn) string) *Network {
	n := &Network{source: source, cut: map[string]bool{}, conns: map[net.Conn]struct{}{}}
	n.changed = sync.NewCond(&n.mu)
	t.Cleanup(n.close)
	return n
}

// SetProperty changes a setting of one process, from its next start on.
func (p *Playground) SetProperty(process playground.Process, key, value string) {
	p.t.Helper()
	name := filepath.Join(p.dir, process.Name, process.Service+".properties")
	old, err := os.ReadFile(name)
	if err != nil {
		p.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(old)) {
		if k, _, _ := strings.Cut(line, "="); strings.TrimSpace(k) != key {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	lines = append(lines, key+"="+value, "")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// Cut stops all that goes to a process or comes from it. Connections stay, as they do when a cable is pulled.
func (n *Network) Cut(name string) { n.set(name, true) }

// Mend lets everything flow again, also what was on its way.
func (n *Network) Mend(name string) { n.set(name, false) }

func (n *Network) set(name string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[name] = cut
	n.changed.Broadcast()
}

func (n *Network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.changed.Broadcast()
	for c := range n.conns {
		_ = c.Close() // Whatever it says, it is not used any more.
	}
}

// listen takes connections for a process.
func (n *Network) listen(t testing.TB, name, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // It has no more to say.
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go n.serve(c, name, target)
		}
	}()
	return l.Addr().String()
}

// serve carries one connection.
func (n *Network) serve(from net.Conn, name, target string) {
	defer from.Close()
	source := n.source(from)
	if !n.pass(source, name) {
		return
	}
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	if !n.keep(from, to) {
		return
	}
	defer n.forget(from, to)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			n.carry(way[0], way[1], source, name)
			// Each end is to see that the other one is gone.
			_ = from.Close()
			_ = to.Close()
		})
	}
	both.Wait()
}

func (n *Network) keep(conns ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range conns {
		n.conns[c] = struct{}{}
	}
	return !n.closed
}

func (n *Network) forget(conns ...net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range conns {
		delete(n.conns, c)
	}
}

func (n *Network) carry(from io.Reader, to io.Writer, a, b string) {
	buf := make([]byte, 64<<10)
	for {
		read, err := from.Read(buf)
		if read > 0 {
			if !n.pass(a, b) {
				return
			}
			if _, err := to.Write(buf[:read]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until two processes can reach each other; false at the end.
func (n *Network) pass(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !n.closed && (n.cut[a] || n.cut[b]) {
		n.changed.Wait()
	}
	return !n.closed
}

// owner is the process that has made a connection; empty for one that is none of the playground.
func (p *Playground) owner(c net.Conn) string {
	inode, err := inodeOf(c.RemoteAddr(), c.LocalAddr())
	if err != nil {
		return ""
	}
	processes, err := p.processes()
	if err != nil {
		return ""
	}
	for _, process := range processes {
		if process.PID > 0 && hasSocket(process.PID, inode) {
			return process.Name
		}
	}
	return ""
}

// inodeOf finds the socket of a connection's end. Its own port is not enough: the kernel gives one port to several clients that
// connect to different servers.
func inodeOf(local, remote net.Addr) (string, error) {
	want := [2]string{procAddress(local), procAddress(remote)}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 9 && [2]string(fields[1:3]) == want && fields[9] != "0" {
			return fields[9], nil
		}
	}
	return "", errors.New("no such socket")
}

// procAddress is an IPv4 address as /proc/net/tcp shows it: the four bytes of the IP as a number of the machine's byte order.
func procAddress(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.To4() == nil {
		return ""
	}
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(tcp.IP.To4()), tcp.Port)
}

func hasSocket(pid int, inode string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if link, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && link == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
