package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"chancery/services/testkit"
)

const (
	// smallDiskMB is the size of the file system that is filled up.
	smallDiskMB = 400
	// aMoment is how long a fault lasts that nobody is to notice.
	aMoment = time.Second
	// longerFault is how long a controller is away from everybody: longer than sessions last.
	longerFault = 5 * time.Second
)

// rounds is a cluster on which one fault follows the other.
type rounds struct {
	t       *testing.T
	p       *testkit.Playground
	network *testkit.Network
	l       *load
	random  *rand.Rand
	// smallDisk is the node whose log directory has a file system of its own; empty where that cannot be had.
	smallDisk string
}

// faultKind is a kind of fault. strike does it, waits until work goes on where it can, and takes it back.
type faultKind struct {
	name   string
	strike func(r *rounds)
}

func faultKinds() []faultKind {
	return []faultKind{
		{"storage node killed", (*rounds).killStorage},
		{"storage node paused, fenced", (*rounds).pauseStorage},
		{"storage node cut off, fenced", (*rounds).cutStorage},
		{"controller killed", (*rounds).killController},
		{"log directory gone", (*rounds).loseDirectory},
		{"storage node stopped", (*rounds).stopStorage},
		{"controller paused", (*rounds).pauseController},
		{"disk full", (*rounds).fillDisk},
		{"storage node paused for a moment", (*rounds).pauseStorageBriefly},
		{"storage node cut off for a moment", (*rounds).cutStorageBriefly},
		{"controller cut off", (*rounds).cutController},
	}
}

// TestFaults strikes a cluster under load with CHANCERY_E2E_ROUNDS faults, one after the other, on nodes that CHANCERY_E2E_SEED
// chooses. In the end nothing that was acknowledged may be missing, and no reader may have gone back: FAULTS.md has the table.
func TestFaults(t *testing.T) {
	kinds := faultKinds()
	count := number(t, "CHANCERY_E2E_ROUNDS", len(kinds))
	if testing.Short() {
		count = 3
	}
	properties := map[string]string{"replica.lag.time.max.ms": "3000"}
	for k, v := range quickFencing {
		properties[k] = v
	}
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: properties})
	r := &rounds{t: t, p: p, network: testkit.Intercept(t, p)}
	seed := number(t, "CHANCERY_E2E_SEED", 1)
	r.random = rand.New(rand.NewPCG(uint64(seed), 0))
	r.mountSmallDisk("storage-3")
	r.l = startLoad(t, p, "faults", loadOptions{perSecond: 200, plain: true, tail: true})
	awaitInSync(t, r.l.adm, r.l.topic)
	struck, skipped := map[string]int{}, 0
	for round := range count {
		kind := kinds[round%len(kinds)]
		if kind.name == "disk full" && r.smallDisk == "" {
			skipped++
			continue
		}
		t.Logf("round %d: %s", round+1, kind.name)
		kind.strike(r)
		awaitInSync(t, r.l.adm, r.l.topic)
		struck[kind.name]++
	}
	r.l.finish(p.Bootstrap)
	for _, kind := range kinds {
		t.Logf("%d rounds of: %s", struck[kind.name], kind.name)
	}
	t.Logf("%d rounds skipped", skipped)
}

// node draws a storage node.
func (r *rounds) node() (id int32, name string) {
	id = 1 + r.random.Int32N(3)
	return id, fmt.Sprintf("storage-%d", id)
}

func (r *rounds) killStorage() {
	_, name := r.node()
	r.p.Kill(name)
	r.l.awaitProgress("the kill of " + name)
	r.p.Restart(name)
}

func (r *rounds) stopStorage() {
	_, name := r.node()
	r.p.Stop(name)
	r.l.awaitProgress("the stop of " + name)
	r.p.Restart(name)
}

func (r *rounds) pauseStorage() {
	id, name := r.node()
	r.p.Pause(name)
	awaitNoLeader(r.t, r.l.adm, r.l.topic, id)
	r.l.awaitProgress("the pause of " + name)
	r.p.Resume(name)
}

func (r *rounds) pauseStorageBriefly() {
	_, name := r.node()
	r.p.Pause(name)
	r.hold(aMoment)
	r.p.Resume(name)
	r.l.awaitProgress("a moment's pause of " + name)
}

func (r *rounds) cutStorage() {
	id, name := r.node()
	r.network.Cut(name)
	awaitNoLeader(r.t, r.l.adm, r.l.topic, id)
	r.l.awaitProgress("the cut of " + name)
	r.network.Mend(name)
}

func (r *rounds) cutStorageBriefly() {
	_, name := r.node()
	r.network.Cut(name)
	r.hold(aMoment)
	r.network.Mend(name)
	r.l.awaitProgress("a moment's cut of " + name)
}

// loseDirectory has a node come back with an empty log directory: everything comes from the others.
func (r *rounds) loseDirectory() {
	id, name := r.node()
	r.p.Kill(name)
	awaitNoLeader(r.t, r.l.adm, r.l.topic, id)
	data := filepath.Join(r.p.Dir(), name, "data")
	remove := []string{data}
	if name == r.smallDisk {
		// The directory itself is where the file system is mounted.
		entries, err := filepath.Glob(filepath.Join(data, "*"))
		if err != nil {
			r.t.Fatal(err)
		}
		remove = entries
	}
	for _, path := range remove {
		if err := os.RemoveAll(path); err != nil {
			r.t.Fatal(err)
		}
	}
	r.l.awaitProgress("the loss of the log directory of " + name)
	r.p.Restart(name)
}

func (r *rounds) killController() {
	name := r.activeController()
	r.p.Kill(name)
	r.l.awaitProgress("the kill of " + name)
	r.awaitOtherController(name)
	r.p.Restart(name)
}

func (r *rounds) pauseController() {
	name := r.activeController()
	r.p.Pause(name)
	r.awaitOtherController(name)
	r.l.awaitProgress("the pause of " + name)
	r.p.Resume(name)
}

// cutController takes the active controller away from everybody but the other controllers, so that it stays the active one, and
// takes all storage nodes for silent.
func (r *rounds) cutController() {
	name := r.activeController()
	r.network.Cut(name)
	r.hold(longerFault)
	r.network.Mend(name)
	r.l.awaitProgress("the cut of " + name)
}

func (r *rounds) activeController() string {
	ctx, cancel := context.WithTimeout(r.t.Context(), recoveryTime)
	defer cancel()
	return fmt.Sprintf("controller-%d", activeController(ctx, r.t, r.p.Bootstrap)-controllerIDs)
}

// awaitOtherController waits until another controller can make topics.
func (r *rounds) awaitOtherController(than string) {
	ctx, cancel := context.WithTimeout(r.t.Context(), recoveryTime)
	defer cancel()
	topic := fmt.Sprintf("made-without-%s-%d", than, time.Now().UnixNano())
	await(ctx, r.t, "a topic to be made without "+than, func() (bool, error) { return tryCreateTopic(ctx, r.l.adm, topic) })
}

// hold lets a fault last.
func (r *rounds) hold(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.t.Context().Done():
	}
}

// mountSmallDisk gives a node's log directory a file system of its own, where the system and its rights allow it.
func (r *rounds) mountSmallDisk(name string) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		return
	}
	r.p.Stop(name)
	data := filepath.Join(r.p.Dir(), name, "data")
	out, err := exec.CommandContext(r.t.Context(), "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", smallDiskMB), "tmpfs", data).CombinedOutput()
	if err != nil {
		r.t.Logf("no disk will be full: mount: %v: %s", err, out)
	} else {
		r.smallDisk = name
		r.t.Cleanup(func() {
			// The processes are still there; what they have open goes with them.
			if out, err := exec.CommandContext(context.WithoutCancel(r.t.Context()), "umount", "-l", data).CombinedOutput(); err != nil {
				r.t.Errorf("umount: %v: %s", err, out)
			}
		})
	}
	r.p.Restart(name)
}

// fillDisk leaves no room on a node's only log directory, and makes room again.
func (r *rounds) fillDisk() {
	name := r.smallDisk
	filler := filepath.Join(r.p.Dir(), name, "data", "filler")
	if err := fillUp(filler); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), recoveryTime)
	defer cancel()
	await(ctx, r.t, name+" to give up", func() (bool, error) { return r.p.HasFailed(name), nil })
	r.l.awaitProgress("the disk of " + name + " is full")
	if err := os.Remove(filler); err != nil {
		r.t.Fatal(err)
	}
	r.p.Restart(name)
}

// fillUp writes a file until there is no more room.
func fillUp(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(block)
	}
	// The rest of the room is less than a block.
	for err = nil; err == nil; {
		_, err = f.Write(block[:512])
	}
	return f.Close()
}

// TestCheckerFindsLoss sees to it that the checker finds what a topic loses that prefers lost records to none: it acknowledges what
// one replica has, and elects any other one.
func TestCheckerFindsLoss(t *testing.T) {
	properties := map[string]string{"replica.lag.time.max.ms": "1500"}
	for k, v := range quickFencing {
		properties[k] = v
	}
	p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Storage: 2, Gateways: 1, Controllers: 1, Coordinators: 1, Properties: properties})
	adm := admin(t, p.Bootstrap)
	ctx, cancel := context.WithTimeout(t.Context(), 3*recoveryTime)
	defer cancel()
	createTopics(ctx, t, adm, 1, 2, map[string]*string{"min.insync.replicas": kadm.StringPtr("1"), "unclean.leader.election.enable": kadm.StringPtr("true")}, "lossy")
	topics, err := adm.ListTopics(ctx, "lossy")
	if err != nil {
		t.Fatal(err)
	}
	leader := topics["lossy"].Partitions[0].Leader
	other := 3 - leader
	h, s := newHistory(), source{topic: "lossy", producer: 1}
	h.add(s)
	write := func(from, to int) {
		h.sending(s, to)
		cl := newClient(t, p.Bootstrap, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
		for seq := from; seq < to; seq++ {
			record, err := cl.ProduceSync(ctx, &kgo.Record{Topic: s.topic, Value: s.value(seq)}).First()
			if err != nil {
				t.Fatal(err)
			}
			h.acked(s, seq, position{record.Partition, record.Offset})
		}
	}
	write(0, 5)
	p.Kill(fmt.Sprintf("storage-%d", other))
	write(5, 10)
	p.Kill(fmt.Sprintf("storage-%d", leader))
	p.Restart(fmt.Sprintf("storage-%d", other))
	awaitPartitions(t, adm, "lossy", "a leader that was out of sync", func(d kadm.PartitionDetail) bool { return d.Leader == other })
	write(10, 12)
	reads := int64(0)
	total := endOffsets(ctx, t, adm, "lossy")[partition{"lossy", 0}]
	if err := (franz{}).readAll(ctx, p.Bootstrap, []string{"lossy"}, 1, func(c consumed) bool {
		h.read(c)
		reads++
		return reads < total
	}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	complaints := h.check(rules{})
	if len(complaints) == 0 {
		t.Fatalf("%d records are in the log, and nothing is missing", total)
	}
	t.Logf("as it should be: %v", complaints)
}
