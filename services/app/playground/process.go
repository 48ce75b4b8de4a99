package playground

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// State is what a process of the playground does.
type State string

// The states. A process is stopped or killed when it was asked to end, and failed when it ended by itself.
const (
	Running State = "running"
	Stopped State = "stopped"
	Killed  State = "killed"
	Paused  State = "paused"
	Failed  State = "failed"
)

// Process is what is told of a process.
type Process struct {
	Name    string `json:"name"`
	Service string `json:"service"`
	// PID is 0 while the process does not run.
	PID int `json:"pid"`
	// Addresses are where the process listens, by what for: kafka, grpc, quorum, admin.
	Addresses map[string]string `json:"addresses"`
	State     State             `json:"state"`
}

// child is one process over all its runs.
type child struct {
	plan       processPlan
	binary     string
	configPath string
	logPath    string
	spawner    *spawner
	// changed is called after each change of the state, without the lock.
	changed func()

	mu    sync.Mutex
	state State
	cmd   *exec.Cmd
	// exited is closed when the present run has ended; nil before the first.
	exited chan struct{}
}

func newChild(p processPlan, binary string, s *spawner, changed func()) *child {
	return &child{
		plan:       p,
		binary:     binary,
		configPath: filepath.Join(p.dir, p.service+".properties"),
		logPath:    filepath.Join(p.dir, p.service+".log"),
		spawner:    s,
		changed:    changed,
		state:      Stopped,
	}
}

func (c *child) info() Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := Process{Name: c.plan.name, Service: c.plan.service, Addresses: c.plan.addresses, State: c.state}
	if c.runsLocked() {
		p.PID = c.cmd.Process.Pid
	}
	return p
}

func (c *child) runsLocked() bool { return c.state == Running || c.state == Paused }

// start runs the process anew, with the data that it left behind.
func (c *child) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runsLocked() {
		return fmt.Errorf("%s is %s already", c.plan.name, c.state)
	}
	if c.exited != nil && !isClosed(c.exited) {
		return fmt.Errorf("%s is still ending", c.plan.name)
	}
	log, err := os.OpenFile(c.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // The child has its own copy.
	cmd := exec.Command(c.binary, c.plan.service, "--config", c.configPath)
	cmd.Stdout, cmd.Stderr = log, log
	if err := c.spawner.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", c.plan.name, err)
	}
	exited := make(chan struct{})
	c.cmd, c.exited, c.state = cmd, exited, Running
	go c.wait(cmd, exited)
	go c.changed()
	return nil
}

// wait notes the end of a run. A process that was asked to end has its state already.
func (c *child) wait(cmd *exec.Cmd, exited chan struct{}) {
	// How it ended is told by who asked it to; an end that nobody asked for is a failure whatever the exit code.
	_ = cmd.Wait()
	c.mu.Lock()
	if c.runsLocked() {
		c.state = Failed
	}
	c.mu.Unlock()
	close(exited)
	c.changed()
}

// end sends a signal that ends the process, and waits until it is gone.
func (c *child) end(ctx context.Context, signal syscall.Signal, state State) error {
	c.mu.Lock()
	if c.exited == nil || !c.runsLocked() && isClosed(c.exited) {
		defer c.mu.Unlock()
		return fmt.Errorf("%s does not run: it is %s", c.plan.name, c.state)
	}
	paused, process, exited := c.state == Paused, c.cmd.Process, c.exited
	c.state = state
	c.mu.Unlock()
	if paused && signal != syscall.SIGKILL {
		// A paused process sees no signal before it is resumed.
		_ = process.Signal(syscall.SIGCONT)
	}
	_ = process.Signal(signal) // An error means that it has ended just now, which is what is wanted.
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s (process %d) has not ended yet: %w", c.plan.name, process.Pid, ctx.Err())
	}
}

func (c *child) pause() error  { return c.signal(Running, syscall.SIGSTOP, Paused) }
func (c *child) resume() error { return c.signal(Paused, syscall.SIGCONT, Running) }

// signal sends a signal that takes the process from one state to another.
func (c *child) signal(from State, signal syscall.Signal, to State) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != from {
		return fmt.Errorf("%s is %s, not %s", c.plan.name, c.state, from)
	}
	if err := c.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("%s: %w", c.plan.name, err)
	}
	c.state = to
	go c.changed()
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
