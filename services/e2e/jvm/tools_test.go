//go:build jvm

package jvm

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// tools runs main classes of Apache Kafka.
type tools struct {
	t         *testing.T
	classPath string
	logging   string
	// runner is the JVM in which the tools run.
	runner *program
}

// installTools fetches the jars, once for all runs of the tests on this machine.
func installTools(t *testing.T) *tools {
	t.Helper()
	for _, need := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Fatalf("these tests need %s on the PATH: %v", need, err)
		}
	}
	pom, err := os.ReadFile("pom.xml")
	if err != nil {
		t.Fatal(err)
	}
	dir := cached(t, fmt.Sprintf("jvm-tests-%.6x", sha256.Sum256(pom)), func(dir string) *exec.Cmd {
		return exec.Command("mvn", "-q", "-B", "-f", "pom.xml", "dependency:copy-dependencies", "-DoutputDirectory="+dir, "-DincludeScope=runtime")
	})
	logging, err := filepath.Abs("log4j2.properties")
	if err != nil {
		t.Fatal(err)
	}
	return &tools{t: t, classPath: filepath.Join(dir, "*"), logging: logging}
}

// result is what a tool said.
type result struct {
	t      *testing.T
	call   string
	output string
	exit   int
}

// options are the arguments of a JVM that runs a main class. They make for quick starts.
func (k *tools) options(class string, args ...string) []string {
	return append([]string{"-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UseContainerSupport",
		"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + k.logging, "-cp", k.classPath, class}, args...)
}

// run calls a main class with arguments and standard input.
func (k *tools) run(t *testing.T, stdin, class string, args ...string) result {
	t.Helper()
	call := class + " " + strings.Join(args, " ")
	if k.runner == nil {
		k.runner = k.start(k.t, "ToolRunner")
	}
	words := []string{base64.StdEncoding.EncodeToString([]byte(stdin))}
	for _, word := range append([]string{class}, args...) {
		words = append(words, base64.StdEncoding.EncodeToString([]byte(word)))
	}
	results := len(k.runner.output())
	if _, err := io.WriteString(k.runner.stdin, strings.Join(words, " ")+"\n"); err != nil {
		t.Fatalf("%s: %v", call, err)
	}
	var said []string
	await(t, call, func() bool {
		said = k.runner.output()[results:]
		select {
		case <-k.runner.ended:
			t.Fatalf("%s has ended the JVM of the tools", call)
		default:
		}
		return len(said) > 0
	})
	code, output, _ := strings.Cut(said[0], " ")
	exit, err := strconv.Atoi(code)
	text, err2 := base64.StdEncoding.DecodeString(output)
	if err := errors.Join(err, err2); err != nil {
		t.Fatalf("%s: %v in %q", call, err, said[0])
	}
	return result{t: t, call: call, output: string(text), exit: exit}
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
