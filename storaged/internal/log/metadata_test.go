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
