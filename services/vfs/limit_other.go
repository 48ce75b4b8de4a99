//go:build !unix

package vfs

// MaxOpenFiles is how many files this process may have open.
func MaxOpenFiles() int { return unknownMaxOpenFiles }
