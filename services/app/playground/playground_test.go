package playground

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"chancery/services/testkit/ports"
)

// envRole makes the test's own binary play a part: a service of the playground, or the playground itself.
const envRole = "PLAYGROUND_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "playground":
		port, _ := strconv.Atoi(os.Args[2])
		c := smallCluster(os.Args[1], port)
		os.Setenv(envRole, "service")
		if err := Run(context.Background(), c, os.Stdout, slog.New(slog.DiscardHandler)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	default:
		os.Exit(fakeService(os.Args[3]))
	}
}

// fakeService listens on the admin address of its properties and ends at SIGTERM.
func fakeService(config string) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	data, err := os.ReadFile(config)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for line := range strings.Lines(string(data)) {
		if address, ok := strings.CutPrefix(line, "admin.listeners="); ok {
			l, err := net.Listen("tcp", strings.TrimSpace(address))
			if err != nil {
				fmt.Println("cannot serve:", err)
				return 1
			}
			go func() { _ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
		}
	}
	<-terminated
	fmt.Println("an orderly end")
	return 0
}

func smallCluster(dir string, basePort int) Config {
	binary, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Config{Storage: 2, Gateways: 1, Controllers: 1, Coordinators: 1, Tiering: 0, Dir: dir, BasePort: basePort, Binary: binary}
}

// freeRun finds a run of free ports.
func freeRun(t *testing.T, n int) int {
	t.Helper()
	port, err := ports.FreeRun(n)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// running is a playground under test.
type running struct {
	dir   string
	ended chan error
	line  string
}

func start(t *testing.T, c Config) *running {
	t.Helper()
	t.Setenv(envRole, "service")
	r := &running{dir: c.Dir, ended: make(chan error, 1)}
	out, in := io.Pipe()
	go func() {
		r.ended <- Run(t.Context(), c, in, slog.New(slog.DiscardHandler))
		in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("not ready: %v", <-r.ended)
	}
	r.line = line
	return r
}

func (r *running) states(t *testing.T) string {
	t.Helper()
	processes, err := Status(t.Context(), r.dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, p := range processes {
		if (p.PID != 0) != (p.State == Running || p.State == Paused) {
			t.Errorf("%s is %s but has process id %d", p.Name, p.State, p.PID)
		}
		s = append(s, p.Name+" "+string(p.State))
	}
	return strings.Join(s, ", ")
}

func TestLifeOfAPlayground(t *testing.T) {
	c := smallCluster(t.TempDir(), 0)
	c.BasePort = freeRun(t, c.Ports())
	r := start(t, c)
	if want := fmt.Sprintf("Kafka on 127.0.0.1:%d ", c.BasePort); !strings.Contains(r.line, want) {
		t.Errorf("ready line %q, want %q in it", r.line, want)
	}
	steps := []struct{ command, name, want string }{
		{Kill, "storage-1", "controller-1 running, storage-1 killed, storage-2 running, coordinator-1 running, gateway-1 running"},
		{Start, "storage-1", "controller-1 running, storage-1 running, storage-2 running, coordinator-1 running, gateway-1 running"},
		{Pause, "controller-1", "controller-1 paused, storage-1 running, storage-2 running, coordinator-1 running, gateway-1 running"},
		{Stop, "gateway-1", "controller-1 paused, storage-1 running, storage-2 running, coordinator-1 running, gateway-1 stopped"},
		{Resume, "controller-1", "controller-1 running, storage-1 running, storage-2 running, coordinator-1 running, gateway-1 stopped"},
		{Pause, "storage-2", "controller-1 running, storage-1 running, storage-2 paused, coordinator-1 running, gateway-1 stopped"},
	}
	for _, s := range steps {
		if err := Command(t.Context(), r.dir, s.command, s.name); err != nil {
			t.Fatalf("%s %s: %v", s.command, s.name, err)
		}
		if got := r.states(t); got != s.want {
			t.Fatalf("after %s %s: %s, want %s", s.command, s.name, got, s.want)
		}
	}
	// A paused process ends in order too.
	if err := Down(t.Context(), r.dir); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(tail(filepath.Join(r.dir, "storage-2", "storaged.log")), "an orderly end") {
		t.Error("storage-2 did not end in order")
	}
	if _, err := Status(t.Context(), r.dir); err == nil || !strings.Contains(err.Error(), "no playground runs") {
		t.Errorf("status after the end: %v", err)
	}
}

func TestCommandsThatCannotBe(t *testing.T) {
	c := smallCluster(t.TempDir(), 0)
	c.BasePort = freeRun(t, c.Ports())
	r := start(t, c)
	for _, s := range []struct{ command, name, want string }{
		{Kill, "storage-9", `no process is called "storage-9"; there are controller-1, storage-1`},
		{Start, "storage-1", "storage-1 is running already"},
		{Resume, "storage-1", "storage-1 is running, not paused"},
		{"explode", "storage-1", `unknown command "explode"`},
	} {
		if err := Command(t.Context(), r.dir, s.command, s.name); err == nil || !strings.Contains(err.Error(), s.want) {
			t.Errorf("%s %s: %v, want %q", s.command, s.name, err, s.want)
		}
	}
	if err := Run(t.Context(), c, io.Discard, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second playground in the same folder: %v", err)
	}
	state, err := readState(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	state.Secret = "guess"
	if _, err := ask(t.Context(), r.dir, state, http.MethodPost, commandDown); err == nil || !strings.Contains(err.Error(), "not the owner") {
		t.Errorf("a command with a wrong secret: %v", err)
	}
	if err := Down(t.Context(), r.dir); err != nil {
		t.Fatal(err)
	}
	<-r.ended
}

func TestProcessThatEndsAtStart(t *testing.T) {
	c := smallCluster(t.TempDir(), 0)
	c.BasePort = freeRun(t, c.Ports())
	processes := plan(c)
	taken, err := net.Listen("tcp", processes[len(processes)-1].addresses[addressAdmin])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	t.Setenv(envRole, "service")
	err = Run(t.Context(), c, io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "gateway-1 has ended instead of getting ready") || !strings.Contains(err.Error(), "cannot serve") {
		t.Fatalf("got %v, want the name and the log of the process", err)
	}
}

// TestKilledSupervisor looks at what only the kernel can do: children end with a supervisor that had no time to end them.
func TestKilledSupervisor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	dir := t.TempDir()
	c := smallCluster(dir, 0)
	base := freeRun(t, c.Ports())
	cmd := exec.Command(c.Binary, dir, strconv.Itoa(base))
	cmd.Env = append(os.Environ(), envRole+"=playground")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "is ready") {
		t.Fatalf("not ready: %q, %v", line, err)
	}
	processes, err := Status(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(processes, func(p Process) bool { return alive(p.PID) }) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("children outlive their supervisor")
		}
	}
	if _, err := Status(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("status after the supervisor was killed: %v", err)
	}
}

// alive says whether a process runs; one that has ended and waits for its parent does not.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestPlan(t *testing.T) {
	c := Config{Storage: 3, Gateways: 2, Controllers: 3, Coordinators: 2, Tiering: 1, Dir: "/data", BasePort: 9000,
		Properties: map[string]string{"offsets.topic.replication.factor": "2", "log.retention.ms": "1000"},
		Overrides:  map[string]string{"log.retention.ms": "2000"}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, p := range plan(c) {
		addresses := slices.Collect(maps.Values(p.addresses))
		if list := p.properties["node.ports"]; list != "" {
			for i, text := range strings.Split(list, ",") {
				id, port, _ := strings.Cut(text, ":")
				if id != strconv.Itoa(i+1) {
					t.Errorf("%s: node.ports=%s", p.name, list)
				}
				addresses = append(addresses, net.JoinHostPort("127.0.0.1", port))
			}
		}
		for _, a := range addresses {
			_, port, _ := net.SplitHostPort(a)
			n, _ := strconv.Atoi(port)
			if used[a] || n < c.BasePort || n >= c.BasePort+c.Ports() {
				t.Errorf("%s: address %s is used twice or out of range", p.name, a)
			}
			used[a] = true
		}
		for key, want := range map[string]string{
			"offsets.topic.replication.factor": "2", "log.retention.ms": "2000", "transaction.state.log.replication.factor": "3",
			"controller.quorum.voters": "1001@127.0.0.1:9002,1002@127.0.0.1:9003,1003@127.0.0.1:9004",
		} {
			if p.properties[key] != want {
				t.Errorf("%s: %s=%s, want %s", p.name, key, p.properties[key], want)
			}
		}
	}
	c.LogDirs = 2
	for _, p := range plan(c) {
		if got := p.properties["log.dirs"]; p.name == "storage-2" && got != "/data/storage-2/data,/data/storage-2/data-2" {
			t.Errorf("log.dirs=%s", got)
		}
	}
	if len(used) != c.Ports() {
		t.Errorf("%d ports used, %d promised", len(used), c.Ports())
	}
}

func TestValidate(t *testing.T) {
	good := Config{Storage: 1, Gateways: 1, Controllers: 1, Coordinators: 1, Dir: "d", BasePort: 9000}
	for name, change := range map[string]func(*Config){
		"--storage":     func(c *Config) { c.Storage = 0 },
		"--gateways":    func(c *Config) { c.Gateways = -1 },
		"--controllers": func(c *Config) { c.Controllers = 2 },
		"--tiering":     func(c *Config) { c.Tiering = -1 },
		"--log-dirs":    func(c *Config) { c.LogDirs = -1 },
		"--data":        func(c *Config) { c.Dir = "" },
		"--base-port":   func(c *Config) { c.BasePort = 65530 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestStateFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	if err := (stateOnDisk{PID: 1, Secret: "s"}).write(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, stateFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	data, _ := json.Marshal(Process{Name: "n", State: Killed})
	if string(data) != `{"name":"n","service":"","pid":0,"addresses":null,"state":"killed"}` {
		t.Errorf("got %s", data)
	}
	if _, err := readState(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
}
