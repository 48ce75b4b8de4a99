package memfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// anonymousFile is a file without a name, in memory.
func anonymousFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("memfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "memfs"), nil
}
