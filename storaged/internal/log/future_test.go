package log_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"chancery/storaged/internal/log"
)

// The name of a copy's directory leads back to its partition, and is no other directory's.
func TestNamesOfCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic := rapid.StringMatching(`[a-zA-Z0-9._-]{1,200}`).Draw(t, "topic")
		partition := rapid.Int32Range(0, 1<<30).Draw(t, "partition")
		name, ok := log.FutureDirName(topic, partition)
		if !ok {
			t.Fatalf("%s is too long", name)
		}
		if gotTopic, gotPartition, ok := log.ParseFutureDirName(name); !ok || gotTopic != topic || gotPartition != partition {
			t.Fatalf("%s is read as %s, %d, %v", name, gotTopic, gotPartition, ok)
		}
		if _, _, ok := log.ParseDirName(name); ok || log.IsDeletedDir(name) {
			t.Fatalf("%s is taken for another kind of directory", name)
		}
	})
	if _, ok := log.FutureDirName(strings.Repeat("t", 249), 0); ok {
		t.Error("a name that no file system takes")
	}
	for _, name := range []string{"", "-future", ".-future", "a-0", "a-0-future", "a.x-future", "a-0.x", "a-01.x-future"} {
		if topic, partition, ok := log.ParseFutureDirName(name); ok {
			t.Errorf("%q is read as %s, %d", name, topic, partition)
		}
	}
}
