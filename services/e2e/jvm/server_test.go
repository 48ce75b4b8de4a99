//go:build jvm

package jvm

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"chancery/services/testkit"
)

// server is a cluster under test.
type server struct {
	bootstrap string
	// logDirs are the log directories of all storage nodes.
	logDirs []string
}

// binary is the file that make build makes.
func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("CHANCERY_BINARY")
	if path == "" {
		path = filepath.Join("..", "..", "..", "bin", "chancery")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no binary, run make build first: %v", err)
	}
	return path
}

// start runs the binary until the test ends. The first line with "Kafka on" says that it serves, and where.
func start(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v", args[0], err)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "Kafka on "); ok {
			addresses, _, _ := strings.Cut(rest, " ")
			go func() {
				for lines.Scan() { // Drained, so that the server never blocks on its output.
				}
			}()
			return strings.TrimRight(addresses, ",;.")
		}
	}
	t.Fatalf("%s ended before it was ready", strings.Join(args, " "))
	return ""
}

// startAll runs everything in one process.
func startAll(t *testing.T) server {
	dir := t.TempDir()
	addr := testkit.FreeAddress(t)
	boot := start(t, "all", "--data", dir, "--kafka-listen", addr, "--set", "admin.listeners=127.0.0.1:0", "--set", "group.initial.rebalance.delay.ms=0")
	return server{bootstrap: boot, logDirs: findLogDirs(t, dir)}
}

// playgroundPorts is more than the playground of these tests needs.
const playgroundPorts = 40

// startPlayground runs every service as processes of its own.
func startPlayground(t *testing.T) server {
	dir := t.TempDir()
	boot := start(t, "playground", "--storage", "3", "--gateways", "2", "--controllers", "3", "--coordinators", "2", "--tiering", "1",
		"--data", dir, "--base-port", strconv.Itoa(testkit.FreePorts(t, playgroundPorts)), "--set", "group.initial.rebalance.delay.ms=0")
	return server{bootstrap: boot, logDirs: findLogDirs(t, dir)}
}

// findLogDirs finds the storage nodes' log directories below dir: those with a meta.properties.
func findLogDirs(t *testing.T, dir string) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == "meta.properties" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no log directory below %s: %v", dir, err)
	}
	return dirs
}
