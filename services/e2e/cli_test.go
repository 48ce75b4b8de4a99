package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"chancery/services/testkit"
)

// TestReadyAndEnd starts the binary with everything in one process: it prints one line when it is ready, soon, and ends in
// order at SIGTERM.
func TestReadyAndEnd(t *testing.T) {
	dir, address := filepath.Join(t.TempDir(), "made", "when", "needed"), testkit.FreeAddress(t)
	cmd := exec.Command(testkit.Binary(t), "all", "--data", dir, "--kafka-listen", address, "--set", "admin.listeners="+testkit.FreeAddress(t))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	for _, want := range []string{"chancery is ready: ", "Kafka on " + address, "admin on http://127.0.0.1:", "data in " + dir} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %q", want, line)
		}
	}
	createTopics(t.Context(), t, admin(t, []string{address}), 1, 1, nil, "topic")
	refuseSecond(t, dir)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, _ := lines.ReadString(0)
	if err := cmd.Wait(); err != nil || rest != "" {
		t.Errorf("ended with %v after printing %q\n%s", err, rest, stderr.String())
	}
}

// refuseSecond starts a second process with the data of one that runs: it says so at once and ends.
func refuseSecond(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	second := exec.CommandContext(ctx, testkit.Binary(t), "all", "--data", dir, "--kafka-listen", testkit.FreeAddress(t), "--set", "admin.listeners="+testkit.FreeAddress(t))
	out, err := second.CombinedOutput()
	if want := filepath.Join(dir, "metadata", ".lock") + " is locked: another process uses the directory"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("a second process with the same data: %v, no %q in:\n%s", err, want, out)
	}
}

// TestPlaygroundCommands goes through the life of a playground on the command line.
func TestPlaygroundCommands(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Storage: 1, Gateways: 2, Controllers: 1, Coordinators: 1, Tiering: 1})
	run := func(args ...string) string {
		t.Helper()
		args = append([]string{"playground"}, append(args, "--data", p.Dir())...)
		out, err := exec.CommandContext(t.Context(), testkit.Binary(t), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	names := []string{"controller-1", "storage-1", "coordinator-1", "tiering-1", "gateway-1", "gateway-2"}
	lines := strings.Split(strings.TrimSpace(run("status")), "\n")
	for i, name := range names {
		if len(lines) != len(names) || !strings.HasPrefix(lines[i], name+" ") || !strings.HasSuffix(lines[i], "running") {
			t.Fatalf("status:\n%s", strings.Join(lines, "\n"))
		}
	}
	for _, step := range []struct{ command, state string }{
		{"pause", "paused"}, {"resume", "running"}, {"kill", "killed"}, {"start", "running"}, {"stop", "stopped"},
	} {
		run(step.command, "gateway-2")
		for _, process := range p.StatusJSON() {
			want := "running"
			if process.Name == "gateway-2" {
				want = step.state
			}
			if string(process.State) != want || process.Service == "" || process.Addresses["admin"] == "" {
				t.Errorf("after %s of gateway-2: %+v", step.command, process)
			}
		}
	}
	if kafka := p.Process("gateway-1").Addresses["kafka"]; !slices.Contains(p.Bootstrap, kafka) {
		t.Errorf("gateway-1 is at %s, printed were %v", kafka, p.Bootstrap)
	}
	run("down")
}
