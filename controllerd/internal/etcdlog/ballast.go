package etcdlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"chancery/services/vfs"
)

const (
	ballastName = "ballast"
	// roomForBallast is how many times its own size must be free before a ballast is made.
	roomForBallast = 8
)

// keepBallast keeps a file that takes room and has no other use: when the disk is full, which ends a member, the next start
// gives it up, and the quorum has room to go on and to become smaller. It comes back when there is plenty of room again.
func keepBallast(dir string, bytes int64, logger *slog.Logger) error {
	if bytes <= 0 {
		return nil
	}
	free, err := freeBytes(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, ballastName)
	switch _, err := os.Stat(path); {
	case err == nil && free < bytes/2:
		logger.Warn("the disk of the metadata quorum is full; giving up the ballast, so that it can go on: make room", "dir", dir, "free_bytes", free)
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist) && free > roomForBallast*bytes:
		return makeBallast(path, bytes)
	case errors.Is(err, fs.ErrNotExist) || err == nil:
		return nil
	default:
		return err
	}
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("how much room %s has: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // Its type differs between systems.
}

func makeBallast(path string, bytes int64) error {
	f, err := vfs.OS{}.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Reserve(bytes), f.Truncate(bytes), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
