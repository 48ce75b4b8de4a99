package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"chancery/services/testkit/ports"
)

// cluster is what is measured: where clients go, and the processes whose use counts.
type cluster struct {
	shape     string
	bootstrap []string
	pids      []int
	// server is the process to end after the measurement; nil for a cluster that was given.
	server *exec.Cmd
}

// usage is what processes have used: CPU time since their start, resident memory now.
type usage struct {
	cpuSeconds float64
	rssMiB     float64
}

// clockTicksPerSecond is the unit of the times in /proc, which is fixed for programs.
const clockTicksPerSecond = 100

func (c *cluster) usage() usage {
	var u usage
	for _, pid := range c.pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err == nil {
			// The fields after the name in brackets, which may hold spaces: state is the first.
			f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			for _, i := range []int{11, 12} {
				ticks, _ := strconv.ParseFloat(f[i], 64)
				u.cpuSeconds += ticks / clockTicksPerSecond
			}
		}
		if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil {
			for line := range strings.Lines(string(status)) {
				if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
					n, _ := strconv.ParseFloat(strings.Fields(kib)[0], 64)
					u.rssMiB += n / 1024
				}
			}
		}
	}
	return u
}

func parsePids(list string) ([]int, error) {
	var pids []int
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		pid, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("--pids: %q is no process id", s)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// splitPorts is more than a playground with one process of each service needs.
const splitPorts = 20

// startCluster starts the binary in a shape and waits until it says where Kafka clients go.
func startCluster(ctx context.Context, shape, binary, dir string) (*cluster, error) {
	port, err := ports.FreeRun(splitPorts)
	if err != nil {
		return nil, err
	}
	c := &cluster{shape: shape}
	var args []string
	if shape == "all" {
		args = []string{"all", "--data", dir, "--kafka-listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "--set", "admin.listeners=127.0.0.1:0"}
	} else {
		args = []string{"playground", "--storage", "1", "--gateways", "1", "--controllers", "1", "--coordinators", "1", "--tiering", "0",
			"--data", dir, "--base-port", strconv.Itoa(port)}
	}
	c.server = exec.CommandContext(ctx, binary, args...)
	c.server.Cancel = func() error { return c.server.Process.Signal(syscall.SIGTERM) }
	c.server.Stderr = os.Stderr
	out, err := c.server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.server.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if c.bootstrap = addressesIn(lines.Text()); len(c.bootstrap) > 0 {
			break
		}
	}
	if len(c.bootstrap) == 0 {
		return nil, fmt.Errorf("%s %s ended before it was ready: %w", binary, strings.Join(args, " "), c.server.Wait())
	}
	go func() {
		for lines.Scan() { // Drained, so that the server never blocks on its output.
		}
	}()
	c.pids = []int{c.server.Process.Pid}
	if shape != "all" {
		c.pids, err = playgroundPids(ctx, binary, dir)
	}
	return c, err
}

// addressesIn finds the Kafka addresses in the line that a server prints when it is ready: what follows "Kafka on".
func addressesIn(line string) []string {
	_, rest, ok := strings.Cut(line, "Kafka on ")
	if !ok {
		return nil
	}
	list, _, _ := strings.Cut(rest, " ")
	return strings.Split(strings.TrimRight(list, ",;."), ",")
}

func playgroundPids(ctx context.Context, binary, dir string) ([]int, error) {
	out, err := exec.CommandContext(ctx, binary, "playground", "status", "--json", "--data", dir).Output()
	if err != nil {
		return nil, fmt.Errorf("playground status: %w", err)
	}
	var processes []struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal(out, &processes); err != nil {
		return nil, fmt.Errorf("playground status: %w", err)
	}
	var pids []int
	for _, p := range processes {
		pids = append(pids, p.Pid)
	}
	return pids, nil
}

// stop ends the server and waits for it.
func (c *cluster) stop() error {
	if c.server == nil {
		return nil
	}
	if err := c.server.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.server.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(30 * time.Second):
		return c.server.Process.Kill()
	}
}
