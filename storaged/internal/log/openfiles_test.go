package log

import "testing"

func (l *Log) filesOpen() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.active().file != nil
}

// TestOpenFilesAreBounded: of three logs that are written to, two keep their files; another may when one of them rests or goes.
func TestOpenFilesAreBounded(t *testing.T) {
	files := NewOpenFiles(2)
	logs := make([]*fixture, 3)
	for i := range logs {
		logs[i] = newFixture(t, t.TempDir(), func(o *Options) { o.OpenFiles = files })
		logs[i].append(1, spec{bytes: 10})
		logs[i].append(1, spec{bytes: 5000})
	}
	check := func(want ...bool) {
		t.Helper()
		kept := int64(0)
		for i, f := range logs {
			f.append(1, spec{bytes: 10})
			if f.filesOpen() != want[i] {
				t.Errorf("log %d keeps its files open: %v", i, !want[i])
			}
			if want[i] {
				kept++
			}
			if got := f.all(0); len(got) == 0 {
				t.Errorf("log %d cannot be read", i)
			}
			f.mu.Lock()
			if !want[i] {
				f.active().closeFiles()
			}
			f.mu.Unlock()
		}
		if files.kept.Load() != kept {
			t.Errorf("%d logs keep files, want %d", files.kept.Load(), kept)
		}
	}
	check(true, true, false)
	logs[0].unloadIdle()
	logs[0].unloadIdle()
	if logs[0].filesOpen() || files.kept.Load() != 1 {
		t.Fatalf("an idle log keeps its files open, %d", files.kept.Load())
	}
	logs[2].append(1, spec{bytes: 10})
	check(false, true, true)
	if err := logs[1].Close(); err != nil {
		t.Fatal(err)
	}
	if files.kept.Load() != 1 {
		t.Fatalf("%d logs keep files after one was closed, want 1", files.kept.Load())
	}
	logs = []*fixture{logs[0], logs[2]}
	check(true, true)
}
