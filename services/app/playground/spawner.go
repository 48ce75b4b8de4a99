package playground

import (
	"os/exec"
	"runtime"
)

// spawner starts children on one thread that lives as long as the process. The kernel ends a child with the thread that
// started it, not with the process, so that thread must never end before the supervisor does.
type spawner struct{ requests chan spawnRequest }

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan spawnRequest)}
	go func() {
		runtime.LockOSThread()
		for r := range s.requests {
			r.done <- r.cmd.Start()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	bindLife(cmd)
	r := spawnRequest{cmd: cmd, done: make(chan error)}
	s.requests <- r
	return <-r.done
}
