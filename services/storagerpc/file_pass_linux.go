package storagerpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// channelName is the name of the socket, in the machine's (the network namespace's) list of abstract ones, that the node at an
// address listens on.
func channelName(address string) *net.UnixAddr {
	return &net.UnixAddr{Name: "@chancery/" + address, Net: "unixpacket"}
}

// unixPass is a passConn on a unix socket, which keeps messages apart.
type unixPass struct{ *net.UnixConn }

func (u unixPass) send(id uint64, files []passedFile) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := u.SetWriteDeadline(time.Now().Add(passTimeout)); err != nil {
		return err
	}
	_, _, err := u.WriteMsgUnix(binary.BigEndian.AppendUint64(nil, id), unix.UnixRights(fds...), nil)
	return err
}

func (u unixPass) receive() (id uint64, files []passedFile, err error) {
	var message [8]byte
	control := make([]byte, unix.CmsgSpace(4*maxPassedFiles))
	n, m, flags, _, err := u.ReadMsgUnix(message[:], control)
	if err != nil {
		return 0, nil, err
	}
	parsed, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil {
		return 0, nil, err
	}
	for i := range parsed {
		fds, err := unix.ParseUnixRights(&parsed[i])
		if err != nil {
			continue // other control messages mean nothing here
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "segment of another process"))
		}
	}
	if n != len(message) || flags&unix.MSG_CTRUNC != 0 {
		for _, f := range files {
			_ = f.Close() // only read from
		}
		return 0, nil, errors.New("a message with files was cut off")
	}
	return binary.BigEndian.Uint64(message[:]), files, nil
}

// samePeer makes sure that the process at the other end belongs to the same user.
func samePeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if peerErr != nil {
		return peerErr
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("the process at the other end belongs to user %d", peer.Uid)
	}
	return nil
}

// dialSamePeer connects to a socket of a process of the same user, and sends a new channel's name.
func dialSamePeer(address *net.UnixAddr) (*net.UnixConn, [channelTokenBytes]byte, error) {
	var token [channelTokenBytes]byte
	conn, err := net.DialUnix(address.Net, nil, address)
	if err != nil {
		return nil, token, err
	}
	_, _ = rand.Read(token[:]) // never fails
	if err := samePeer(conn); err != nil {
		return nil, token, errors.Join(err, conn.Close())
	}
	if _, err := conn.Write(token[:]); err != nil {
		return nil, token, errors.Join(err, conn.Close())
	}
	return conn, token, nil
}

// listenSamePeer serves channels of processes of the same user until the context ends, each on a goroutine of its own with
// the name that the client has sent.
func listenSamePeer(ctx context.Context, address *net.UnixAddr, serve func(conn *net.UnixConn, token [channelTokenBytes]byte)) error {
	l, err := net.ListenUnix(address.Net, address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // the listener has nothing to lose
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				token, err := tokenOf(conn)
				if err != nil {
					_ = conn.Close() // nothing was said on it
					return
				}
				serve(conn, token)
			}()
		}
	}()
	return nil
}

// tokenOf reads the name of a channel that a client has opened.
func tokenOf(conn *net.UnixConn) (token [channelTokenBytes]byte, err error) {
	if err := samePeer(conn); err != nil {
		return token, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(passTimeout)); err != nil {
		return token, err
	}
	// The client sends it with one write, so it comes with one read.
	n, err := conn.Read(token[:])
	if err != nil {
		return token, err
	}
	if n != len(token) {
		return token, errors.New("no token")
	}
	return token, conn.SetReadDeadline(time.Time{})
}

// dialFiles opens a channel to the node at an address, if it is on this machine.
func dialFiles(address string) (*fileChannel, error) {
	conn, token, err := dialSamePeer(channelName(address))
	if err != nil {
		return nil, err
	}
	return newFileChannel(token, unixPass{conn}), nil
}

// listenFiles takes clients' channels until the context ends.
func (c *fileChannels) listenFiles(ctx context.Context, address string) error {
	return listenSamePeer(ctx, channelName(address), func(conn *net.UnixConn, token [channelTokenBytes]byte) {
		if !c.add(token, unixPass{conn}) {
			_ = conn.Close() // nothing was said on it
			return
		}
		_, _ = conn.Read(token[:1]) // a client sends nothing more, so this ends with the channel
		c.remove(token)
	})
}
