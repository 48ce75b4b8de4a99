//go:build jvm

package jvm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// toolTime is how long one call of a tool may take, the start of its JVM included.
const toolTime = 90 * time.Second

// tools runs main classes of Apache Kafka.
type tools struct {
	classPath string
	logging   string
}

// installTools fetches the jars, once for all runs of the tests on this machine.
func installTools(t *testing.T) *tools {
	t.Helper()
	for _, need := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Fatalf("these tests need %s on the PATH: %v", need, err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "chancery", "jvm-tests-4.4.0")
	complete := filepath.Join(dir, ".complete")
	if _, err := os.Stat(complete); errors.Is(err, os.ErrNotExist) {
		out, err := exec.Command("mvn", "-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies", "-DoutputDirectory="+dir, "-DincludeScope=runtime").CombinedOutput()
		if err != nil {
			t.Fatalf("fetch Kafka's tools: %v\n%s", err, out)
		}
		if err := os.WriteFile(complete, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	logging, err := filepath.Abs("log4j2.properties")
	if err != nil {
		t.Fatal(err)
	}
	return &tools{classPath: filepath.Join(dir, "*"), logging: logging}
}

// result is what a tool said.
type result struct {
	t      *testing.T
	call   string
	output string
	exit   int
}

// run calls a main class with arguments and standard input.
func (k *tools) run(t *testing.T, stdin, class string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolTime)
	defer cancel()
	all := append([]string{"-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
		"-Dlog4j2.configurationFile=" + k.logging, "-cp", k.classPath, class}, args...)
	cmd := exec.CommandContext(ctx, "java", all...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r := result{t: t, call: class + " " + strings.Join(args, " "), output: out.String()}
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		r.exit = failed.ExitCode()
	case err != nil:
		t.Fatalf("%s: %v", r.call, err)
	}
	return r
}

// ok fails the test unless the tool exited with 0.
func (r result) ok() result {
	r.t.Helper()
	if r.exit != 0 {
		r.t.Fatalf("%s: exit code %d\n%s", r.call, r.exit, r.output)
	}
	return r
}

// failed fails the test unless the tool exited with another code than 0.
func (r result) failed() result {
	r.t.Helper()
	if r.exit == 0 {
		r.t.Fatalf("%s: exit code 0, want a failure\n%s", r.call, r.output)
	}
	return r
}

// says fails the test unless the output matches each pattern.
func (r result) says(patterns ...string) result {
	r.t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(r.output) {
			r.t.Fatalf("%s: output does not match %q\n%s", r.call, p, r.output)
		}
	}
	return r
}

// never fails the test when the output matches a pattern.
func (r result) never(patterns ...string) result {
	r.t.Helper()
	for _, p := range patterns {
		if regexp.MustCompile("(?m)" + p).MatchString(r.output) {
			r.t.Fatalf("%s: output matches %q\n%s", r.call, p, r.output)
		}
	}
	return r
}

// counts fails the test unless a pattern is found n times.
func (r result) counts(n int, pattern string) result {
	r.t.Helper()
	if got := len(regexp.MustCompile("(?m)"+pattern).FindAllString(r.output, -1)); got != n {
		r.t.Fatalf("%s: %q found %d times, want %d\n%s", r.call, pattern, got, n, r.output)
	}
	return r
}
