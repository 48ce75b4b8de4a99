//go:build !linux

package playground

import (
	"os/exec"
	"syscall"
)

// bindLife keeps the terminal's signals away from a child, since the supervisor ends its children in order. Only Linux can
// also end a child when its parent is killed.
func bindLife(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
