package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"chancery/services/testkit"
)

// TestReassignedWhileNodesDie moves replicas among five storage nodes, slowly, so that the moves are under way while nodes are killed, and
// some of the moves are called off. In the end one node is drained, stopped and unregistered.
func TestReassignedWhileNodesDie(t *testing.T) {
	const nodes = 5
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Storage: nodes, Properties: quickFencing})
	l := startLoad(t, p, "reassigned", loadOptions{perSecond: 500, plain: true, tail: true})
	r := &reassigner{t: t, load: l, random: rand.New(rand.NewPCG(uint64(number(t, "CHANCERY_E2E_SEED", 1)), 7))}
	for round := range roundsOfFaults(t) {
		name := fmt.Sprintf("storage-%d", 1+r.random.IntN(nodes))
		t.Logf("round %d: %s is killed", round, name)
		r.throttle("100000")
		r.assignAll(nodes)
		if round%2 == 1 {
			r.cancel(int32(r.random.IntN(loadTopicPartitions)))
		}
		p.Kill(name)
		l.awaitProgress("the kill of " + name)
		r.assignAll(nodes)
		p.Restart(name)
		r.throttle("")
		r.awaitMoved()
		l.awaitProgress("the moves")
	}
	r.assignAll(nodes - 1)
	r.awaitMoved()
	p.Stop(fmt.Sprintf("storage-%d", nodes))
	l.awaitProgress("the stop of the node that was drained")
	l.finish(p.Bootstrap)
}

// reassigner moves the replicas of a load's topics.
type reassigner struct {
	t      *testing.T
	load   *load
	random *rand.Rand
}

func (r *reassigner) topics() []string { return []string{r.load.topic, r.load.topic + "-plain"} }

// throttle sets how many bytes moves may take in a second; empty for as many as they can.
func (r *reassigner) throttle(rate string) {
	r.t.Helper()
	op := kadm.SetConfig
	if rate == "" {
		op = kadm.DeleteConfig
	}
	var rates, replicas []kadm.AlterConfig
	for _, side := range []string{"leader", "follower"} {
		rates = append(rates, kadm.AlterConfig{Op: op, Name: side + ".replication.throttled.rate", Value: &rate})
		replicas = append(replicas, kadm.AlterConfig{Op: op, Name: side + ".replication.throttled.replicas", Value: kadm.StringPtr("*")})
	}
	r.try("throttle", func(ctx context.Context) error {
		responses, err := r.load.adm.AlterBrokerConfigs(ctx, rates)
		if err != nil {
			return err
		}
		topics, err := r.load.adm.AlterTopicConfigs(ctx, replicas, r.topics()...)
		for _, one := range append(responses, topics...) {
			if err == nil {
				err = one.Err
			}
		}
		return err
	})
}

// assignAll gives each partition three other nodes of the first so many.
func (r *reassigner) assignAll(nodes int) {
	r.t.Helper()
	r.try("reassign", func(ctx context.Context) error {
		var req kadm.AlterPartitionAssignmentsReq
		for _, topic := range r.topics() {
			for i := range int32(loadTopicPartitions) {
				var replicas []int32
				for _, n := range r.random.Perm(nodes)[:3] {
					replicas = append(replicas, int32(n+1))
				}
				req.Assign(topic, i, replicas)
			}
		}
		responses, err := r.load.adm.AlterPartitionAssignments(ctx, req)
		if err != nil {
			return err
		}
		for _, one := range responses.Sorted() {
			if one.Err != nil {
				return one.Err
			}
		}
		return nil
	})
}

// cancel calls the move of a partition off. That there is none is as good.
func (r *reassigner) cancel(partition int32) {
	r.t.Helper()
	r.try("cancel", func(ctx context.Context) error {
		var req kadm.AlterPartitionAssignmentsReq
		req.CancelAssign(r.load.topic, partition)
		_, err := r.load.adm.AlterPartitionAssignments(ctx, req)
		return err
	})
}

func (r *reassigner) try(what string, do func(ctx context.Context) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), recoveryTime)
	defer cancel()
	await(ctx, r.t, what, func() (bool, error) {
		once, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := do(once)
		return err == nil, err
	})
}

// awaitMoved waits until nothing moves any more, and all replicas are in sync.
func (r *reassigner) awaitMoved() {
	r.t.Helper()
	for _, topic := range r.topics() {
		awaitPartitions(r.t, r.load.adm, topic, "three replicas in sync", func(p kadm.PartitionDetail) bool {
			return p.Leader >= 0 && len(p.Replicas) == 3 && len(p.ISR) == 3
		})
	}
}
