package testkit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"chancery/services/app/playground"
)

const (
	// commandTime bounds each command to a playground.
	commandTime = time.Minute
	// readyTime bounds how long a process may take to become ready.
	readyTime = time.Minute
	// pollInterval is how often a process is asked whether it is ready.
	pollInterval = 20 * time.Millisecond
)

// PlaygroundOptions is the shape of a playground. Zero numbers mean: three storage nodes, two gateways, three controllers,
// two coordinators; no tiering.
type PlaygroundOptions struct {
	Storage, Gateways, Controllers, Coordinators, Tiering int
	// LogDirs is how many log directories each storage node has; 0 means one.
	LogDirs int
	// Properties are given to every process.
	Properties map[string]string
}

// Playground is a cluster of real processes.
type Playground struct {
	t   testing.TB
	cmd *exec.Cmd
	dir string
	// Bootstrap is the Kafka address of each gateway.
	Bootstrap []string
}

// StartPlayground runs `chancery playground` until the test ends, and returns once clients can work.
func StartPlayground(t testing.TB, o PlaygroundOptions) *Playground {
	t.Helper()
	shape := playground.Config{
		Storage: orDefault(o.Storage, 3), Gateways: orDefault(o.Gateways, 2), Controllers: orDefault(o.Controllers, 3),
		Coordinators: orDefault(o.Coordinators, 2), Tiering: o.Tiering,
	}
	p := &Playground{t: t, dir: t.TempDir()}
	args := []string{"playground",
		"--storage", strconv.Itoa(shape.Storage), "--gateways", strconv.Itoa(shape.Gateways), "--controllers", strconv.Itoa(shape.Controllers),
		"--coordinators", strconv.Itoa(shape.Coordinators), "--tiering", strconv.Itoa(shape.Tiering),
		"--log-dirs", strconv.Itoa(orDefault(o.LogDirs, 1)), "--data", p.dir, "--base-port", strconv.Itoa(FreePorts(t, shape.Ports()))}
	args = append(args, setFlags(quickGroups, o.Properties)...)
	p.cmd = exec.Command(Binary(t), args...)
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	showLogFiles(t, p.dir)
	t.Cleanup(p.end)
	if p.Bootstrap, err = readyLine(out); err != nil {
		_ = p.cmd.Wait() // It fills stderr.
		p.cmd = nil
		t.Fatalf("playground: %v\n%s", err, stderr.String())
	}
	return p
}

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

// quickGroups makes a group of one member ready at once instead of after three seconds.
var quickGroups = map[string]string{"group.initial.rebalance.delay.ms": "0"}

// setFlags makes --set flags of properties, the later ones before the earlier.
func setFlags(layers ...map[string]string) []string {
	merged := map[string]string{}
	for _, l := range layers {
		maps.Copy(merged, l)
	}
	var flags []string
	for _, k := range slices.Sorted(maps.Keys(merged)) {
		flags = append(flags, "--set", k+"="+merged[k])
	}
	return flags
}

// readyLine waits for the line that says where Kafka clients go, and drains what comes after it.
func readyLine(out io.Reader) ([]string, error) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "Kafka on "); ok {
			go func() {
				for lines.Scan() {
				}
			}()
			list, _, _ := strings.Cut(rest, " ")
			return strings.Split(strings.TrimRight(list, ",;."), ","), nil
		}
	}
	return nil, errors.Join(errors.New("ended before it was ready"), lines.Err())
}

func (p *Playground) end() {
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("end the playground: %v", err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the playground ended with %v", err)
	}
}

// Dir is the folder of the playground.
func (p *Playground) Dir() string { return p.dir }

// Kill ends a process with SIGKILL.
func (p *Playground) Kill(name string) { p.command(playground.Kill, name) }

// Stop ends a process with SIGTERM and waits until it has ended.
func (p *Playground) Stop(name string) { p.command(playground.Stop, name) }

// Start starts a process that was killed or stopped.
func (p *Playground) Start(name string) { p.command(playground.Start, name) }

// Pause halts a process with SIGSTOP.
func (p *Playground) Pause(name string) { p.command(playground.Pause, name) }

// Resume lets a paused process go on.
func (p *Playground) Resume(name string) { p.command(playground.Resume, name) }

// Restart starts a process that was killed or stopped, and waits until it is ready.
func (p *Playground) Restart(name string) {
	p.t.Helper()
	p.Start(name)
	p.AwaitReady(name)
}

func (p *Playground) command(command, name string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), commandTime)
	defer cancel()
	if err := playground.Command(ctx, p.dir, command, name); err != nil {
		p.t.Fatal(err)
	}
}

// Processes are all processes of the playground.
func (p *Playground) Processes() []playground.Process {
	p.t.Helper()
	processes, err := p.processes()
	if err != nil {
		p.t.Fatal(err)
	}
	return processes
}

func (p *Playground) processes() ([]playground.Process, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), commandTime)
	defer cancel()
	return playground.Status(ctx, p.dir)
}

// Process is one process by name.
func (p *Playground) Process(name string) playground.Process {
	p.t.Helper()
	processes := p.Processes()
	i := slices.IndexFunc(processes, func(p playground.Process) bool { return p.Name == name })
	if i < 0 {
		p.t.Fatalf("no process %q", name)
	}
	return processes[i]
}

// HasFailed says whether a process has ended by itself.
func (p *Playground) HasFailed(name string) bool {
	p.t.Helper()
	return p.Process(name).State == playground.Failed
}

// AwaitReady waits until a process says that it is ready.
func (p *Playground) AwaitReady(name string) {
	p.t.Helper()
	url := "http://" + p.Process(name).Addresses["admin"] + "/readyz"
	var last error
	p.await(name+" to be ready", func(ctx context.Context) bool {
		last = get(ctx, url)
		return last == nil
	}, func() error { return last })
}

// await asks again and again until the answer is yes.
func (p *Playground) await(what string, met func(context.Context) bool, why func() error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), readyTime)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !met(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("waited %s for %s: %v", readyTime, what, why())
		}
	}
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return err
}

// StatusJSON is what `chancery playground status --json` prints, for tests of the command line itself.
func (p *Playground) StatusJSON() []playground.Process {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), Binary(p.t), "playground", "status", "--json", "--data", p.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	var processes []playground.Process
	if err := json.Unmarshal(out, &processes); err != nil {
		p.t.Fatalf("%v in %s", err, out)
	}
	return processes
}
