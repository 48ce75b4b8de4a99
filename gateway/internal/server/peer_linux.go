package server

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// The states of a TCP connection, as the kernel numbers them, in which the other side may still read.
const (
	tcpEstablished = 1
	tcpSynReceived = 3
)

// peerHasClosed says whether the client has closed its end, also when bytes that it sent before are still to be read.
func peerHasClosed(nc net.Conn) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State != tcpEstablished && info.State != tcpSynReceived
	})
	return err == nil && closed
}
