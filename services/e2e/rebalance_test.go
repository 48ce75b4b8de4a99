package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/testkit"
)

// rebalanceTime bounds how long a group may take until all partitions have an owner again.
const rebalanceTime = 2 * time.Minute

// ownership is who owns which partition, by the members' own words: from when a member is given a partition until it has
// given it up.
type ownership struct {
	mu      sync.Mutex
	owners  map[partition]string
	twice   []string
	changed chan struct{}
}

func newOwnership() *ownership {
	return &ownership{owners: map[partition]string{}, changed: make(chan struct{})}
}

func (o *ownership) change(member string, partitions map[string][]int32, gets bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, list := range partitions {
		for _, p := range list {
			at := partition{topic, p}
			owner, owned := o.owners[at]
			switch {
			case gets && owned && owner != member:
				o.twice = append(o.twice, fmt.Sprintf("%s: %s was given it while %s had it", at, member, owner))
				o.owners[at] = member
			case gets:
				o.owners[at] = member
			case owner == member:
				delete(o.owners, at)
			}
		}
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

// loads are the numbers of partitions by member.
func (o *ownership) loads() (loads map[string]int, total int, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	loads = map[string]int{}
	for _, m := range o.owners {
		loads[m]++
	}
	return loads, len(o.owners), o.changed
}

// rebalancing is a group whose members come and go.
type rebalancing struct {
	t          *testing.T
	bootstrap  []string
	topic      string
	partitions int
	owned      *ownership
	members    map[string]*kgo.Client
	// balancers are those of classic members.
	balancers []kgo.GroupBalancer
	// others counts the members of other client libraries.
	others int
	next   int
}

// join adds a member of the consumer protocol, or of the classic one.
func (r *rebalancing) join(classic bool) {
	r.t.Helper()
	r.next++
	name := fmt.Sprintf("member-%d", r.next)
	opts := []kgo.Opt{
		kgo.SeedBrokers(r.bootstrap...), kgo.ConsumerGroup(r.topic), kgo.ConsumeTopics(r.topic), kgo.ClientID(name),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) { r.owned.change(name, got, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { r.owned.change(name, lost, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { r.owned.change(name, lost, false) }),
		kgo.HeartbeatInterval(200 * time.Millisecond), kgo.SessionTimeout(10 * time.Second), kgo.MetadataMinAge(quickMetadata),
	}
	if classic {
		opts = append(opts, kgo.Balancers(r.balancers...))
	} else {
		opts = append(opts, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.members[name] = cl
	ctx := r.t.Context()
	go func() {
		for ctx.Err() == nil {
			if f := cl.PollFetches(ctx); f.IsClientClosed() {
				return
			}
		}
	}()
}

// leave takes members out in order.
func (r *rebalancing) leave(names ...string) {
	for _, name := range names {
		r.members[name].Close()
		delete(r.members, name)
	}
}

// some are names of n members.
func (r *rebalancing) some(n int) []string {
	var names []string
	for name := range r.members {
		names = append(names, name)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:n]
}

// await waits until all partitions have owners, each member as many as its share.
func (r *rebalancing) await(what string) {
	r.t.Helper()
	begin := time.Now()
	timer := time.NewTimer(rebalanceTime)
	defer timer.Stop()
	for {
		loads, total, changed := r.owned.loads()
		count := len(r.members) + r.others
		even := total == r.partitions && len(loads) == min(count, r.partitions)
		for _, n := range loads {
			share := r.partitions / count
			even = even && n >= share && n <= share+1
		}
		if even {
			r.t.Logf("%s: %d members have all %d partitions after %s", what, count, total, time.Since(begin).Round(time.Millisecond))
			break
		}
		select {
		case <-changed:
		case <-timer.C:
			r.t.Fatalf("%s: %d of %d partitions have owners: %v", what, total, r.partitions, loads)
		}
	}
	r.owned.mu.Lock()
	defer r.owned.mu.Unlock()
	for _, twice := range r.owned.twice {
		r.t.Error(twice)
	}
}

// is waits until the group is of a type.
func (r *rebalancing) is(adm *kadm.Client, groupType string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), rebalanceTime)
	defer cancel()
	await(ctx, r.t, "a group of type "+groupType, func() (bool, error) {
		req := kmsg.NewPtrListGroupsRequest()
		req.TypesFilter = []string{groupType}
		for _, shard := range r.anyone().RequestSharded(ctx, req) {
			if shard.Err != nil {
				return false, shard.Err
			}
			for _, g := range shard.Resp.(*kmsg.ListGroupsResponse).Groups {
				if g.Group == r.topic {
					return true, nil
				}
			}
		}
		return false, nil
	})
}

func (r *rebalancing) anyone() *kgo.Client {
	for _, cl := range r.members {
		return cl
	}
	r.t.Fatal("there is no member")
	return nil
}

// withConfluent lets a member of librdkafka come and go, where the build has it.
func (r *rebalancing) withConfluent() {
	r.t.Helper()
	const name = "confluent"
	leave, err := joinWithConfluent(r.t.Context(), r.bootstrap, r.topic, func(p map[string][]int32, gets bool) { r.owned.change(name, p, gets) })
	if err != nil {
		r.t.Log(err)
		return
	}
	r.others++
	r.await("a member of librdkafka joins")
	if err := leave(); err != nil {
		r.t.Error(err)
	}
	r.others--
	r.await("it has left")
}

// TestRebalances lets members of both protocols come and go, so that the group is converted while it works. No partition is
// owned by two members at any time. CHANCERY_E2E_MEMBERS says how many members there are.
func TestRebalances(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{Properties: map[string]string{
		"group.consumer.min.heartbeat.interval.ms": "200", "group.consumer.heartbeat.interval.ms": "200", "group.consumer.assignment.interval.ms": "200",
	}})
	members := number(t, "CHANCERY_E2E_MEMBERS", 6)
	r := &rebalancing{
		t: t, bootstrap: []string{a.Bootstrap}, topic: "rebalances", partitions: 4 * members, owned: newOwnership(), members: map[string]*kgo.Client{},
		balancers: []kgo.GroupBalancer{kgo.CooperativeStickyBalancer(), kgo.StickyBalancer(), kgo.RangeBalancer()},
	}
	adm := admin(t, r.bootstrap)
	createTopics(t.Context(), t, adm, int32(r.partitions), 1, nil, r.topic)
	for range members / 2 {
		r.join(true)
	}
	r.await("classic members only")
	r.is(adm, "classic")
	classics := r.some(len(r.members))
	for range members - members/2 {
		r.join(false)
	}
	r.await("members of the consumer protocol join")
	r.is(adm, "consumer")
	r.leave(classics...)
	r.await("the classic members have left")
	for range members / 2 {
		r.join(true)
	}
	r.await("classic members are back")
	r.withConfluent()
	for round := range 3 {
		r.leave(r.some(max(1, len(r.members)/4))...)
		for range max(1, members/4) {
			r.join(rand.IntN(2) == 0)
		}
		r.await(fmt.Sprintf("round %d of comings and goings", round))
	}
	r.leave(r.some(len(r.members))...)
	if loads, total, _ := r.owned.loads(); total != 0 {
		t.Errorf("members that have left own partitions: %v", loads)
	}
}

// TestRebalancesWhileCoordinatorsDie kills the group's coordinator in the middle of rebalances, of each protocol. All partitions get
// their owners, and none is owned by two members at any time.
func TestRebalancesWhileCoordinatorsDie(t *testing.T) {
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: quickFencing})
	adm := admin(t, p.Bootstrap)
	members := number(t, "CHANCERY_E2E_MEMBERS", 6)
	for _, way := range []struct {
		name      string
		classic   bool
		balancers []kgo.GroupBalancer
	}{
		{"eager", true, []kgo.GroupBalancer{kgo.RangeBalancer()}},
		{"cooperative", true, []kgo.GroupBalancer{kgo.CooperativeStickyBalancer()}},
		{"consumer", false, nil},
	} {
		t.Run(way.name, func(t *testing.T) {
			r := &rebalancing{
				t: t, bootstrap: p.Bootstrap, topic: "dying-" + way.name, partitions: 4 * members, owned: newOwnership(),
				members: map[string]*kgo.Client{}, balancers: way.balancers,
			}
			createTopics(t.Context(), t, adm, int32(r.partitions), 3, nil, r.topic)
			for range members / 2 {
				r.join(way.classic)
			}
			r.await("the first members")
			for _, coordinator := range []string{"coordinator-1", "coordinator-2"} {
				for range members / 4 {
					r.join(way.classic)
				}
				p.Kill(coordinator)
				r.await("after the kill of " + coordinator)
				p.Restart(coordinator)
			}
			r.leave(r.some(len(r.members))...)
		})
	}
}
