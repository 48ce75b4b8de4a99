package vfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxIovecs is the most buffers that the kernel takes in one call.
const maxIovecs = 1024

func (f osFile) WriteBuffers(buffers [][]byte, offset int64) (int64, error) {
	var written int64
	for len(buffers) > 0 {
		if len(buffers) == 1 {
			n, err := f.WriteAt(buffers[0], offset)
			return written + int64(n), err
		}
		n, err := unix.Pwritev(int(f.Fd()), buffers[:min(len(buffers), maxIovecs)], offset)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return written, err
		}
		if n == 0 {
			return written, errShortWrite
		}
		written += int64(n)
		offset += int64(n)
		for len(buffers) > 0 && n >= len(buffers[0]) {
			n -= len(buffers[0])
			buffers = buffers[1:]
		}
		if n > 0 {
			// The rest of a buffer that was cut goes alone, so that the caller's slice need not be changed.
			m, err := f.WriteAt(buffers[0][n:], offset)
			written += int64(m)
			if err != nil {
				return written, err
			}
			offset += int64(m)
			buffers = buffers[1:]
		}
	}
	return written, nil
}

func (f osFile) Reserve(size int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
