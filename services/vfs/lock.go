package vfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock keeps other processes out of the directory that a file stands for, for as long as the file that it gives is open. Apache
// Kafka is kept out, too, and keeps out: both use POSIX record locks, which do not hold between the parts of one process. The
// error of a directory that is in use is a *LockedError.
func Lock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole); err != nil {
		return nil, &LockedError{Name: name, Err: errors.Join(err, f.Close())}
	}
	return f, nil
}

// LockedError says that another process has the lock.
type LockedError struct {
	Name string
	Err  error
}

// Error says what is locked.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is locked: another process uses the directory: %v", e.Name, e.Err)
}

// Unwrap is why the lock could not be taken.
func (e *LockedError) Unwrap() error { return e.Err }
