package server

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"chancery/services/storage"
)

// canSendfile says that this system sends regions of files without copying them.
const canSendfile = true

// maxSendfile is how much the kernel is asked to send at once.
const maxSendfile = 4 << 20

// writeMore writes what was collected and tells the kernel that more comes, so that it does not send a small packet for a
// header whose records follow.
func (w *responseWriter) writeMore() error {
	var err error
	rest := w.vector
	waitErr := w.raw.Write(func(fd uintptr) bool {
		for len(rest) > 0 {
			var n int
			n, err = unix.SendmsgBuffers(int(fd), rest, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return false
			case nil:
				rest = consume(rest, n)
			default:
				return true
			}
		}
		return true
	})
	if waitErr != nil {
		return waitErr
	}
	return err
}

// consume drops n written bytes of v, and pieces without bytes.
func consume(v [][]byte, n int) [][]byte {
	for len(v) > 0 && n >= len(v[0]) {
		n -= len(v[0])
		v = v[1:]
	}
	if n > 0 {
		v[0] = v[0][n:]
	}
	return v
}

// sendfile has the kernel send a region of a file. The offset is given with each call, so that many may send from
// the same open file.
func (w *responseWriter) sendfile(f *storage.FileRegion) error {
	offset, left := f.Offset, f.Length
	var err error
	waitErr := w.raw.Write(func(fd uintptr) bool {
		for left > 0 {
			var n int
			n, err = unix.Sendfile(int(fd), int(f.File.Fd()), &offset, min(left, maxSendfile))
			switch {
			case err == unix.EINTR:
				continue
			case err == unix.EAGAIN:
				return false
			case err != nil:
				return true
			case n == 0:
				err = io.ErrUnexpectedEOF
				return true
			}
			left -= n
			w.sent(n)
		}
		return true
	})
	if waitErr != nil {
		return waitErr
	}
	if err != nil {
		return fmt.Errorf("sendfile of %s at %d: %w", f.File.Name(), offset, err)
	}
	return nil
}
