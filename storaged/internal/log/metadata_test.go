package log

import (
	"testing"

	"chancery/services/kafka/uuid"
)

// TestTornTopicID: a power loss may leave any beginning of a file that was not made durable, or zeros in its place.
func TestTornTopicID(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	id, whole := f.TopicID(), readFile(t, f, partitionMetadataName)
	for n := range len(whole) + 1 {
		for _, content := range [][]byte{whole[:n], append(whole[:n:n], make([]byte, len(whole)-n)...)} {
			write(t, f.dir+"/"+partitionMetadataName, content)
			want := uuid.Zero
			if n == len(whole) {
				want = id
			}
			if got, err := ReadTopicID(f.fs, f.dir); err != nil || got != want {
				t.Fatalf("%q gives %s, %v", content, got, err)
			}
			f.reopen(true)
			if got := readFile(t, f, partitionMetadataName); string(got) != string(whole) {
				t.Fatalf("%q became %q", content, got)
			}
		}
	}
	for _, content := range []string{"version: 1\ntopic_id: " + id.String(), "something else altogether, and not short", "version: 0\ntopic_id: not an id, but long enough"} {
		write(t, f.dir+"/"+partitionMetadataName, []byte(content))
		if _, err := ReadTopicID(f.fs, f.dir); err == nil {
			t.Errorf("%q is taken for a topic id", content)
		}
	}
}

// TestRecoveryPointFallsFirst: a crash must find the lower recovery point on disk when it finds files that were cut.
func TestRecoveryPointFallsFirst(t *testing.T) {
	for name, c := range map[string]struct {
		cut func(*fixture) error
		max int64
	}{
		"truncate":                 {func(f *fixture) error { return f.TruncateTo(2) }, 2},
		"truncate to what is left": {func(f *fixture) error { return f.TruncateTo(0) }, 0},
		"start anew":               {func(f *fixture) error { return f.TruncateFullyAndStartAt(7) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var f *fixture
			calls := 0
			f = newFixture(t, t.TempDir(), func(o *Options) {
				o.Config.SegmentBytes = 200
				o.RecoveryPointFell = func() {
					calls++
					if f.RecoveryPoint() > c.max {
						t.Errorf("the recovery point is %d", f.RecoveryPoint())
					}
					if end := f.LogEndOffset(); end != 5 {
						t.Errorf("the log ends at %d already", end)
					}
				}
			})
			for range 5 {
				f.append(1, spec{bytes: 50})
			}
			if err := f.Flush(); err != nil || f.RecoveryPoint() != 5 || calls > 0 {
				t.Fatal(err, f.RecoveryPoint(), calls)
			}
			if err := c.cut(f); err != nil || calls != 1 {
				t.Fatal(err, calls)
			}
			// What was never durable may go without that.
			end := f.LogEndOffset()
			f.append(1, spec{bytes: 50}, spec{bytes: 50})
			if err := f.TruncateTo(end); err != nil || calls != 1 || f.LogEndOffset() != end {
				t.Fatal(err, calls)
			}
		})
	}
}
