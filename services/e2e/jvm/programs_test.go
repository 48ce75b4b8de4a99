//go:build jvm

package jvm

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
)

// maxLine bounds a line that a program prints.
const maxLine = 16 << 20

// program is a running Java program of the folder programs.
type program struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// ended is closed when all output has been read.
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// compile makes classes of the programs, once for all runs of the tests with the same sources.
func (k *tools) compile(t *testing.T) string {
	t.Helper()
	sources := glob(t, "programs", "*.java")
	sum := sha256.New()
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(text)
	}
	return cached(t, fmt.Sprintf("jvm-programs-%.6x", sum.Sum(nil)), func(dir string) *exec.Cmd {
		return exec.Command("javac", append([]string{"-J-XX:TieredStopAtLevel=1", "-d", dir, "-cp", k.classPath}, sources...)...)
	})
}

// start runs a program, whose end is that of the test at the latest.
func (k *tools) start(t *testing.T, class string, args ...string) *program {
	t.Helper()
	with := &tools{classPath: k.classPath + string(os.PathListSeparator) + k.compile(t), logging: k.logging}
	p := &program{name: class + " " + fmt.Sprint(args), cmd: exec.Command("java", with.options(class, args...)...), ended: make(chan struct{})}
	var errs [3]error
	var out io.Reader
	p.stdin, errs[0] = p.cmd.StdinPipe()
	out, errs[1] = p.cmd.StdoutPipe()
	p.cmd.Stderr = os.Stderr
	errs[2] = p.cmd.Start()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.kill(t)
		}
		if t.Failed() {
			all := p.output()
			t.Logf("%s has said, at last: %q", p.name, all[max(0, len(all)-40):])
		}
	})
	return p
}

// output is what the program has printed so far.
func (p *program) output() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// count is how many lines match.
func (p *program) count(pattern string) int {
	match, n := regexp.MustCompile(pattern), 0
	for _, line := range p.output() {
		if match.MatchString(line) {
			n++
		}
	}
	return n
}

// awaitLine waits until the program has printed a line that matches.
func (p *program) awaitLine(t *testing.T, pattern string) {
	t.Helper()
	match := regexp.MustCompile(pattern)
	await(t, fmt.Sprintf("%q of %s", pattern, p.name), func() bool { return slices.ContainsFunc(p.output(), match.MatchString) })
}

// kill ends the program with SIGKILL.
func (p *program) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-p.ended
	_ = p.cmd.Wait() // It was killed.
}

// stop ends the program in order.
func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.stdin.Close(); err != nil {
		t.Error(err)
	}
	<-p.ended
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%s ended with %v", p.name, err)
	}
}

// cached is a folder in the user's cache that a command fills once.
func cached(t *testing.T, name string, fill func(dir string) *exec.Cmd) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "chancery", name)
	complete := filepath.Join(dir, ".complete")
	if _, err := os.Stat(complete); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := fill(dir).CombinedOutput(); err != nil {
		t.Fatalf("fill %s: %v\n%s", dir, err, out)
	}
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}
