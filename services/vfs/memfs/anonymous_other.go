//go:build !linux

package memfs

import "os"

// anonymousFile is a file whose name is gone already.
func anonymousFile() (*os.File, error) {
	f, err := os.CreateTemp("", "memfs")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
