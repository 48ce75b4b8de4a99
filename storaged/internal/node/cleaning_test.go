package node_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/logdir"
)

// TestCompaction: leader and follower clean their logs by themselves, with settings that change at run time, and know after a
// restart what is clean.
func TestCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		for name, value := range map[string]string{"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0"} {
			c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceTopic), ResourceName: "a", Name: name, Value: &value})
		}
		topic := c.topic("a", 1, 1, 2)
		for i := range 5 {
			if r := produce(c.node(1), appendRequest(topic, storage.AcksAll, batch(fmt.Sprint(i)))); r.Error != errcode.None {
				t.Fatalf("%+v", r)
			}
			pass(2 * time.Second)
		}
		// All records have one key, and the last one is in the active segment, so two remain.
		remaining := func() []string { return values(t, fetch(t, c.node(1), fetchRequest(topic, 0))) }
		backoff := "100"
		c.commit(&metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceBroker), Name: "log.cleaner.backoff.ms", Value: &backoff})
		for id := range int32(2) {
			log := c.node(id + 1).Replicas()[0].Log()
			eventually(t, "the log is clean", func() bool { return log.CleanedTo() == 4 && len(log.Segments()) == 2 })
			synctest.Wait()
			offsets, err := logdir.ReadOffsets(filepath.Join(c.dirs[id+1], logdir.CleanerFile))
			if want := (logdir.Offsets{{Topic: "a"}: 4}); err != nil || !maps.Equal(offsets, want) {
				t.Fatal(offsets, err)
			}
		}
		if got := remaining(); !slices.Equal(got, []string{"3"}) {
			t.Fatalf("before the active segment there is %q", got)
		}
		if m := c.node(1).CleanerMetrics(); m.UncleanablePartitions[c.dirs[1]] != 0 || m.CleanerRecopyPercent == 0 {
			t.Fatalf("%+v", m)
		}
		c.stop(2)
		n := c.start(2)
		eventually(t, "the node is back", func() bool { return len(n.Replicas()) == 1 && n.Replicas()[0].Log() != nil })
		if got := n.Replicas()[0].Log().CleanedTo(); got != 4 {
			t.Fatalf("clean up to %d after the restart", got)
		}
		if _, err := os.Stat(filepath.Join(c.dirs[2], "a-0", "00000000000000000004.log")); err != nil {
			t.Fatal(err)
		}
	})
}
