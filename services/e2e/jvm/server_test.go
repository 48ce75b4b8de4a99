//go:build jvm

package jvm

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

const (
	// stateTime bounds how long a test waits for a state, on a machine that is busy with other things too.
	stateTime = 3 * time.Minute
	// stateInterval is how often it looks.
	stateInterval = 50 * time.Millisecond
)

// server is a cluster under test.
type server struct {
	bootstrap string
	// logDirs are the log directories of all storage nodes.
	logDirs []string
}

// startAll runs everything in one process.
func startAll(t *testing.T) server {
	a := testkit.StartAll(t, testkit.AllOptions{})
	return server{bootstrap: a.Bootstrap, logDirs: findLogDirs(t, a.Dir())}
}

// startPlayground runs every service as processes of its own.
func startPlayground(t *testing.T) server {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Tiering: 1})
	return server{bootstrap: p.Bootstrap[0], logDirs: findLogDirs(t, p.Dir())}
}

// findLogDirs finds the storage nodes' log directories below dir: those with a meta.properties.
func findLogDirs(t *testing.T, dir string) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Name() == "meta.properties" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no log directory below %s: %v", dir, err)
	}
	return dirs
}

// glob finds files by a pattern of path elements, in order.
func glob(t *testing.T, elements ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// await looks again and again until a state is there.
func await(t *testing.T, what string, there func() bool) {
	t.Helper()
	limit, tick := time.NewTimer(stateTime), time.NewTicker(stateInterval)
	defer limit.Stop()
	defer tick.Stop()
	for !there() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %s for %s", stateTime, what)
		}
	}
}

// awaitLeaders waits until a cluster serves clients and all its partitions have leaders.
func awaitLeaders(t *testing.T, bootstrap string) {
	t.Helper()
	await(t, bootstrap+" to serve", func() bool {
		client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(t.Context(), stateTime)
		defer cancel()
		metadata, err := kadm.NewClient(client).Metadata(ctx)
		if err != nil || len(metadata.Brokers) == 0 {
			return false
		}
		led := true
		metadata.Topics.EachPartition(func(p kadm.PartitionDetail) { led = led && p.Err == nil && p.Leader >= 0 })
		return led
	})
}

// admin is a client for what a test prepares without Kafka's tools.
func admin(t *testing.T, bootstrap ...string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

// makeTopic makes a topic without the start of a JVM.
func makeTopic(t *testing.T, bootstrap, topic string, partitions int32, replicas int16, configs map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	values := map[string]*string{}
	for key, value := range configs {
		values[key] = &value
	}
	created, err := admin(t, bootstrap).CreateTopic(ctx, partitions, replicas, values, topic)
	if err != nil {
		t.Fatalf("create %s: %v %s", topic, err, created.ErrMessage)
	}
}

// produceAll writes records and waits for the acknowledgements.
func produceAll(t *testing.T, bootstrap string, records []*kgo.Record, options ...kgo.Opt) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stateTime)
	defer cancel()
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("produce to %s: %v", records[0].Topic, err)
	}
}
