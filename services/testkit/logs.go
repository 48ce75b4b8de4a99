package testkit

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// logTailBytes is how much of a log is shown when a test fails.
const logTailBytes = 256 << 10

// Logger is a logger whose lines are shown when the test fails.
func Logger(t testing.TB) *slog.Logger {
	buffer := &logBuffer{}
	showOnFailure(t, "log of the test's own process", buffer.String)
	return slog.New(slog.NewTextHandler(buffer, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// logBuffer keeps the end of a log.
type logBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data.Len() > 2*logTailBytes {
		b.data.Next(b.data.Len() - logTailBytes)
	}
	return b.data.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return lastLines(b.data.Bytes())
}

// showOnFailure prints text when the test has failed, after everything that was registered later has been cleaned up.
func showOnFailure(t testing.TB, title string, text func() string) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", title, text())
		}
	})
}

// fileTail is the end of a log file.
func fileTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > logTailBytes {
		if _, err := f.Seek(-logTailBytes, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return lastLines(data)
}

// lastLines cuts data to a length that can be read, at the start of a line.
func lastLines(data []byte) string {
	if len(data) > logTailBytes {
		data = data[len(data)-logTailBytes:]
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
	}
	return strings.TrimSpace(string(data))
}

// showLogFiles prints the ends of the log files below a folder when the test has failed.
func showLogFiles(t testing.TB, dir string) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		paths, err := filepath.Glob(filepath.Join(dir, "*", "*.log"))
		if err != nil {
			t.Log(err)
		}
		for _, path := range paths {
			t.Logf("log %s:\n%s", filepath.Base(filepath.Dir(path)), fileTail(path))
		}
	})
}
