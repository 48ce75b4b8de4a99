package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

// quickFencing lets a cluster notice a lost member sooner than after Kafka's nine seconds, so that tests take less time.
var quickFencing = map[string]string{"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}

// controllerIDs is what the playground adds to a controller's number to make its id.
const controllerIDs = 1000

// roundsOfFaults is how many times a fault test strikes.
func roundsOfFaults(t *testing.T) int {
	if testing.Short() {
		return 1
	}
	return number(t, "CHANCERY_E2E_ROUNDS", 5)
}

// TestKilledGateways kills one gateway of two after the other: clients go on through the other one.
func TestKilledGateways(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	l := startLoad(t, p, "killed-gateways")
	for round := range roundsOfFaults(t) {
		name := fmt.Sprintf("gateway-%d", round%2+1)
		p.Kill(name)
		l.awaitProgress("the kill of " + name)
		p.Restart(name)
		l.awaitProgress("the return of " + name)
	}
	l.finish(p.Bootstrap)
}

// TestStoppedGateways restarts gateways one after the other, as an upgrade does: no request is lost or answered with an
// error. With three of them a client always knows one that stays, even if it has not heard yet of the one that came back.
func TestStoppedGateways(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Gateways: 3, Properties: quickFencing})
	l := startLoad(t, p, "stopped-gateways")
	for round := range roundsOfFaults(t) {
		name := fmt.Sprintf("gateway-%d", round%3+1)
		p.Stop(name)
		l.awaitProgress("the stop of " + name)
		p.Restart(name)
	}
	l.finish(p.Bootstrap)
}

// TestKilledStorage kills one storage node of three after the other: nothing that was acknowledged is lost.
func TestKilledStorage(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	l := startLoad(t, p, "killed-storage")
	for round := range roundsOfFaults(t) {
		name := fmt.Sprintf("storage-%d", round%3+1)
		p.Kill(name)
		l.awaitProgress("the kill of " + name)
		p.Restart(name)
		awaitInSync(t, l.adm, l.topic)
	}
	l.finish(p.Bootstrap)
}

// TestStoppedStorage stops storage nodes in order: leaders move before the node goes.
func TestStoppedStorage(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	l := startLoad(t, p, "stopped-storage")
	for round := range roundsOfFaults(t) {
		name := fmt.Sprintf("storage-%d", round%3+1)
		p.Stop(name)
		l.awaitProgress("the stop of " + name)
		p.Restart(name)
		awaitInSync(t, l.adm, l.topic)
	}
	l.finish(p.Bootstrap)
}

// TestPausedStorage pauses a storage node until it has lost its leaderships, and then lets it go on as if it still had
// them.
func TestPausedStorage(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	l := startLoad(t, p, "paused-storage")
	for round := range roundsOfFaults(t) {
		id := int32(round%3 + 1)
		name := fmt.Sprintf("storage-%d", id)
		p.Pause(name)
		awaitNoLeader(t, l.adm, l.topic, id)
		l.awaitProgress("the pause of " + name)
		p.Resume(name)
		awaitInSync(t, l.adm, l.topic)
	}
	l.finish(p.Bootstrap)
}

// TestLostDisks takes one of a storage node's two disks away: leaders on it move, the node goes on with the other, and everything is
// there when the disk comes back. Meanwhile the replicas of another node move from disk to disk.
func TestLostDisks(t *testing.T) {
	properties := map[string]string{"replica.high.watermark.checkpoint.interval.ms": "200"}
	maps.Copy(properties, quickFencing)
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{LogDirs: 2, Properties: properties})
	l := startLoad(t, p, "lost-disks")
	disk := func(id, n int) string {
		return filepath.Join(p.Dir(), fmt.Sprintf("storage-%d", id), []string{"data", "data-2"}[n])
	}
	for round := range min(2, roundsOfFaults(t)) {
		lost, moved := round%3+1, (round+1)%3+1
		moveReplicas(t, l.adm, int32(moved), l.topic, disk(moved, round%2))
		gone := disk(lost, 1)
		if err := os.Rename(gone, gone+"-lost"); err != nil {
			t.Fatal(err)
		}
		awaitDirs(t, l.adm, int32(lost), "a disk to count as lost", func(dirs kadm.DescribedLogDirs) bool {
			return errors.Is(dirs[gone].Err, kerr.KafkaStorageError) && dirs[disk(lost, 0)].Err == nil
		})
		l.awaitProgress("the loss of a disk")
		awaitDirs(t, l.adm, int32(moved), "the replicas to have moved", func(dirs kadm.DescribedLogDirs) bool {
			from, to := dirs[disk(moved, 1-round%2)].Topics[l.topic], dirs[disk(moved, round%2)].Topics[l.topic]
			for _, r := range to {
				if r.IsFuture {
					return false
				}
			}
			return len(from) == 0 && len(to) > 0
		})
		name := fmt.Sprintf("storage-%d", lost)
		p.Kill(name)
		if err := os.Rename(gone+"-lost", gone); err != nil {
			t.Fatal(err)
		}
		p.Restart(name)
		awaitInSync(t, l.adm, l.topic)
	}
	l.finish(p.Bootstrap)
}

// moveReplicas has a node move all its replicas of a topic to a log directory.
func moveReplicas(t *testing.T, adm *kadm.Client, node int32, topic, dir string) {
	t.Helper()
	details, err := adm.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var to kadm.AlterReplicaLogDirsReq
	to.Add(dir, details.TopicsSet())
	answers, err := adm.AlterBrokerReplicaLogDirs(t.Context(), node, to)
	if err != nil {
		t.Fatal(err)
	}
	answers.Each(func(r kadm.AlterReplicaLogDirsResponse) {
		if r.Err != nil {
			t.Errorf("%s-%d cannot move to %s: %v", r.Topic, r.Partition, dir, r.Err)
		}
	})
}

// awaitDirs waits until a node's log directories are as they should be.
func awaitDirs(t *testing.T, adm *kadm.Client, node int32, what string, met func(kadm.DescribedLogDirs) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
	defer cancel()
	await(ctx, t, what, func() (bool, error) {
		dirs, err := adm.DescribeBrokerLogDirs(ctx, node, nil)
		return err == nil && met(dirs), err
	})
}

// TestKilledController kills the active controller of three: the data path does not notice, and another one answers soon.
func TestKilledController(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{})
	l := startLoad(t, p, "killed-controller")
	for round := range roundsOfFaults(t) {
		ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
		name := fmt.Sprintf("controller-%d", activeController(ctx, t, p.Bootstrap)-controllerIDs)
		p.Kill(name)
		begin := time.Now()
		topic := fmt.Sprintf("after-round-%d", round)
		await(ctx, t, "a topic to be made", func() (bool, error) { return tryCreateTopic(ctx, l.adm, topic) })
		t.Logf("round %d: a topic is made %s after the kill of %s", round, time.Since(begin).Round(time.Millisecond), name)
		l.awaitProgress("the kill of " + name)
		p.Restart(name)
		cancel()
	}
	l.finish(p.Bootstrap)
}

// TestKilledCoordinators kills coordinators: groups move to the other one with all that was committed.
func TestKilledCoordinators(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	l := startLoad(t, p, "killed-coordinators")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Duration(roundsOfFaults(t))*recoveryTime)
	defer cancel()
	createTopics(ctx, t, l.adm, 1, 3, nil, "ledger")
	for round := range roundsOfFaults(t) {
		offsets := kadm.Offsets{}
		offsets.AddOffset("ledger", 0, int64(round+1), -1)
		for group := range 20 {
			if err := l.adm.CommitAllOffsets(ctx, fmt.Sprintf("ledger-%d", group), offsets); err != nil {
				t.Fatalf("commit: %v", err)
			}
		}
		name := fmt.Sprintf("coordinator-%d", round%2+1)
		p.Kill(name)
		begin := time.Now()
		for group := range 20 {
			await(ctx, t, "the offsets of a group", func() (bool, error) {
				got, err := l.adm.FetchOffsets(ctx, fmt.Sprintf("ledger-%d", group))
				if err != nil {
					return false, err
				}
				if o, ok := got.Lookup("ledger", 0); !ok || o.At != int64(round+1) {
					t.Fatalf("round %d: group ledger-%d had committed %d and has %d", round, group, round+1, o.At)
				}
				return true, nil
			})
		}
		t.Logf("round %d: all groups answer %s after the kill of %s", round, time.Since(begin).Round(time.Millisecond), name)
		l.awaitProgress("the kill of " + name)
		p.Restart(name)
	}
	l.finish(p.Bootstrap)
}

// TestEverythingRestarts stops the whole cluster's processes and starts them again with their data.
func TestEverythingRestarts(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{})
	h := newHistory()
	ctx, cancel := context.WithTimeout(t.Context(), 2*recoveryTime)
	defer cancel()
	adm := admin(t, []string{a.Bootstrap})
	createTopics(ctx, t, adm, 3, 1, nil, "kept")
	const perRound = 1000
	for round := range roundsOfFaults(t) {
		s := source{topic: "kept", producer: round, keys: 7}
		h.add(s)
		h.sending(s, perRound)
		err := franz{}.produce(ctx, produceJob{bootstrap: []string{a.Bootstrap}, source: s, n: perRound, codec: "lz4", acks: -1,
			acked: func(seq int, at position) { h.acked(s, seq, at) }})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		a.Stop()
		a.Start()
	}
	reads, total := 0, roundsOfFaults(t)*perRound
	err := franz{}.readAll(ctx, []string{a.Bootstrap}, []string{"kept"}, 3, func(r consumed) bool {
		h.read(r)
		reads++
		return reads < total
	})
	if err != nil {
		t.Fatal(err)
	}
	h.mustHold(t, rules{})
}

// awaitInSync waits until every partition of a topic has all its replicas in sync.
func awaitInSync(t *testing.T, adm *kadm.Client, topic string) {
	t.Helper()
	awaitPartitions(t, adm, topic, "all replicas in sync", func(p kadm.PartitionDetail) bool { return len(p.ISR) == len(p.Replicas) && p.Leader >= 0 })
}

// awaitNoLeader waits until a node leads nothing of a topic.
func awaitNoLeader(t *testing.T, adm *kadm.Client, topic string, node int32) {
	t.Helper()
	awaitPartitions(t, adm, topic, fmt.Sprintf("node %d to lead nothing", node), func(p kadm.PartitionDetail) bool { return p.Leader >= 0 && p.Leader != node })
}

func awaitPartitions(t *testing.T, adm *kadm.Client, topic, what string, met func(kadm.PartitionDetail) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
	defer cancel()
	await(ctx, t, what, func() (bool, error) {
		topics, err := adm.ListTopics(ctx, topic)
		if err != nil {
			return false, err
		}
		for _, p := range topics[topic].Partitions {
			if !met(p) {
				return false, fmt.Errorf("partition %d has the leader %d and in sync %v of %v", p.Partition, p.Leader, p.ISR, p.Replicas)
			}
		}
		return len(topics[topic].Partitions) > 0, topics[topic].Err
	})
}

// activeController asks the quorum who leads it.
func activeController(ctx context.Context, t *testing.T, bootstrap []string) int32 {
	t.Helper()
	cl := newClient(t, bootstrap)
	leader := int32(-1)
	await(ctx, t, "an active controller", func() (bool, error) {
		req := kmsg.NewPtrDescribeQuorumRequest()
		topic := kmsg.NewDescribeQuorumRequestTopic()
		topic.Topic = "__cluster_metadata"
		topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return false, err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return false, fmt.Errorf("quorum described with %d topics and the error %d", len(resp.Topics), resp.ErrorCode)
		}
		leader = resp.Topics[0].Partitions[0].LeaderID
		return leader >= 0, nil
	})
	return leader
}

// tryCreateTopic makes a topic; one that an earlier try has made counts as made.
func tryCreateTopic(ctx context.Context, adm *kadm.Client, topic string) (bool, error) {
	tryCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := adm.CreateTopic(tryCtx, 1, 3, nil, topic)
	if err == nil {
		return true, nil
	}
	topics, listErr := adm.ListTopics(tryCtx, topic)
	return listErr == nil && topics.Has(topic), errors.Join(err, listErr)
}
