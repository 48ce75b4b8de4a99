//go:build unix

package vfs

import (
	"math"

	"golang.org/x/sys/unix"
)

// MaxOpenFiles is how many files this process may have open.
func MaxOpenFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return unknownMaxOpenFiles
	}
	return int(min(limit.Cur, math.MaxInt32))
}
