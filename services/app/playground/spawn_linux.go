package playground

import (
	"os/exec"
	"syscall"
)

// bindLife makes the kernel kill a child when its parent dies, however that happens, and keeps the terminal's signals away
// from it, since the supervisor ends its children in order.
func bindLife(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
