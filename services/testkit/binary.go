package testkit

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// BinaryEnv names a binary to test instead of one that is built for the tests.
const BinaryEnv = "CHANCERY_BINARY"

// buildBinary builds at most once in a test process.
var buildBinary = sync.OnceValues(build)

// Binary is the path of the program under test.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Root is the module's folder.
func Root(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// build puts the binary into a folder that all test processes of a user with one copy of the sources share: processes that a test
// starts later must be of the same sources. Go's build cache makes the second build cheap, and a rename at the end keeps a running
// test's binary whole.
func build() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		return filepath.Abs(path)
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("chancery-testkit-%d", os.Getuid()), fmt.Sprintf("%x", sha256.Sum256([]byte(root)))[:16])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	building := filepath.Join(dir, fmt.Sprintf("building-%d", os.Getpid()))
	cmd := exec.Command("go", "build", "-o", building, "./services/cmd/chancery")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build chancery: %w\n%s", err, out)
	}
	path := filepath.Join(dir, "chancery")
	return path, os.Rename(building, path)
}
