package e2e_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

// cluster is what a test runs against.
type cluster struct {
	bootstrap []string
	// replicas is the replication factor that the cluster can bear.
	replicas int16
}

// onEachShape runs a test against everything in one process and against a playground, or against the one cluster that the
// environment names.
func onEachShape(t *testing.T, test func(*testing.T, cluster)) {
	if given := os.Getenv("CHANCERY_E2E_BOOTSTRAP"); given != "" {
		t.Run("given", func(t *testing.T) { test(t, cluster{bootstrap: strings.Split(given, ","), replicas: 1}) })
		return
	}
	t.Run("all", func(t *testing.T) {
		a := testkit.StartAll(t, testkit.AllOptions{})
		test(t, cluster{bootstrap: []string{a.Bootstrap}, replicas: 1})
	})
	t.Run("playground", func(t *testing.T) {
		p := testkit.StartPlayground(t, testkit.PlaygroundOptions{})
		test(t, cluster{bootstrap: p.Bootstrap, replicas: 3})
	})
}

// number reads a count from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number above 0", name, s)
	}
	return n
}

// admin makes an admin client that lives as long as the test.
func admin(t *testing.T, bootstrap []string) *kadm.Client {
	t.Helper()
	return kadm.NewClient(newClient(t, bootstrap))
}

// newClient makes a client that lives as long as the test.
func newClient(t *testing.T, bootstrap []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// createTopics makes topics; those that are there already are an error.
func createTopics(ctx context.Context, t *testing.T, adm *kadm.Client, partitions int32, replicas int16, configs map[string]*string, topics ...string) {
	t.Helper()
	responses, err := adm.CreateTopics(ctx, partitions, replicas, configs, topics...)
	if err == nil {
		err = responses.Error()
	}
	if err != nil {
		t.Fatalf("create topics: %v", err)
	}
}

// endOffsets is the number of records that fit between start and end of each topic's partitions.
func endOffsets(ctx context.Context, t *testing.T, adm *kadm.Client, topics ...string) map[partition]int64 {
	t.Helper()
	listed, err := adm.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		t.Fatalf("list offsets: %v", err)
	}
	ends := map[partition]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[partition{o.Topic, o.Partition}] = o.Offset })
	return ends
}

// pollInterval is how often a test asks a cluster about what no answer announces.
const pollInterval = 20 * time.Millisecond

// await asks until the answer is yes, and fails the test when ctx ends before.
func await(ctx context.Context, t *testing.T, what string, met func() (bool, error)) {
	t.Helper()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error
	for {
		ok, err := met()
		if ok {
			return
		}
		last = cmpErr(err, last)
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s; last error: %v", what, last)
		}
	}
}

// awaitMembers waits until a group is stable and n members have partitions.
func awaitMembers(ctx context.Context, t *testing.T, adm *kadm.Client, group string, n int) {
	t.Helper()
	await(ctx, t, fmt.Sprintf("%d members of %s", n, group), func() (bool, error) {
		described, err := adm.DescribeGroups(ctx, group)
		if err != nil {
			return false, err
		}
		g := described[group]
		if g.Err != nil || g.State != "Stable" {
			return false, g.Err
		}
		assigned := 0
		for _, m := range g.Members {
			if c, ok := m.Assigned.AsConsumer(); ok && len(c.Topics) > 0 {
				assigned++
			}
		}
		return assigned == n, nil
	})
}
