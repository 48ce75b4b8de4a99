package sim

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/storaged/simulation"
)

// fault is something that goes wrong, or that somebody asks for.
type fault struct {
	name string
	// weight is how often it happens beside the others.
	weight int
	// strike does it, and says whether it could.
	strike func(w *World) bool
}

// faults are all that can happen to a cluster.
func faults() []fault {
	return []fault{
		{"kill", 12, (*World).killNode},
		{"power loss", 8, (*World).losePower},
		{"pause", 10, (*World).pauseNode},
		{"partition", 14, (*World).isolate},
		{"one-way partition", 6, (*World).isolateOneWay},
		{"controlled shutdown", 8, (*World).shutDown},
		{"log directory failure", 5, (*World).breakDisk},
		{"log directory gone", 3, (*World).wipeDisk},
		{"slow disk", 6, (*World).slowDisk},
		{"clock jump", 5, (*World).jumpClock},
		{"controller failover", 6, (*World).failOver},
		{"controller kill", 5, (*World).killController},
		{"controller pause", 4, (*World).pauseController},
		{"reassignment", 8, (*World).reassign},
		{"cancelled reassignment", 3, (*World).cancelReassignment},
		{"election", 4, (*World).electLeader},
		{"deleted records", 3, (*World).deleteRecords},
	}
}

// strike lets one fault after the other happen, until the cluster is healed.
func (w *World) strike(all []fault, total int) {
	w.after(w.between(50*time.Millisecond, 1500*time.Millisecond), func() {
		if w.healed {
			return
		}
		at := w.draw(total)
		for _, f := range all {
			if at -= f.weight; at >= 0 {
				continue
			}
			if f.strike(w) {
				w.report.Faults[f.name]++
			}
			break
		}
		w.strike(all, total)
	})
}

// anyNode is a storage node that is up; nil when the one that was drawn is not.
func (w *World) anyNode() *node {
	if n := pick(w, w.nodes); n.up {
		return n
	}
	return nil
}

func (w *World) killNode() bool {
	n := w.anyNode()
	if n == nil {
		return false
	}
	w.note("FAULT: %s is killed", n.name)
	w.kill(n)
	w.after(w.between(50*time.Millisecond, 8*time.Second), func() { w.boot(n) })
	return true
}

func (w *World) losePower() bool {
	n := w.anyNode()
	if n == nil || !w.checker.maySafelyLose(w, n) {
		return false
	}
	w.note("FAULT: %s loses its power", n.name)
	w.kill(n)
	for _, d := range n.disks {
		d.memory.LosePower(w.draw)
	}
	w.checker.lost(n)
	w.after(w.between(50*time.Millisecond, 8*time.Second), func() { w.boot(n) })
	return true
}

func (w *World) pauseNode() bool {
	n := w.anyNode()
	if n == nil {
		return false
	}
	n.heldUntil = w.now + w.between(500*time.Millisecond, 10*time.Second)
	w.note("FAULT: %s is paused until %s", n.name, n.heldUntil)
	return true
}

// isolate takes some processes off from the others.
func (w *World) isolate() bool {
	some := map[*process]bool{}
	name := ""
	for range 1 + w.draw(2) {
		p := pick(w, w.processes)
		some[p] = true
		name += " " + p.name
	}
	w.note("FAULT: cut off are%s", name)
	for _, p := range w.processes {
		for _, q := range w.processes {
			if some[p] != some[q] {
				w.cutLink(p, q, true)
			}
		}
	}
	w.mendLater()
	return true
}

func (w *World) isolateOneWay() bool {
	p, q := pick(w, w.processes), pick(w, w.processes)
	w.note("FAULT: nothing comes from %s to %s", p.name, q.name)
	w.cutLink(p, q, false)
	w.mendLater()
	return true
}

// mendLater brings all connections back.
func (w *World) mendLater() {
	w.after(w.between(300*time.Millisecond, 9*time.Second), func() {
		w.note("all connections are mended")
		clear(w.cut)
	})
}

func (w *World) shutDown() bool {
	n := w.anyNode()
	if n == nil || n.leaving {
		return false
	}
	w.note("FAULT: %s is asked to stop", n.name)
	n.leaving = true
	// One that nobody lets go is killed in the end.
	incarnation := n.process.incarnation
	w.after(15*time.Second, func() {
		if n.up && n.process.incarnation == incarnation {
			w.kill(n)
			w.boot(n)
		}
	})
	return true
}

func (w *World) breakDisk() bool {
	n := w.anyNode()
	if n == nil {
		return false
	}
	d := pick(w, n.disks)
	d.broken, d.left = true, 0
	if w.chance(60) {
		// It breaks in the middle of something.
		d.left = 1 + w.draw(12)
	}
	w.note("FAULT: %s of %s is broken after %d operations", d.path, n.name, d.left)
	// It is repaired with a restart.
	w.after(w.between(time.Second, 10*time.Second), func() {
		d.broken = false
		w.kill(n)
		w.after(w.between(50*time.Millisecond, time.Second), func() { w.boot(n) })
	})
	return true
}

// wipeDisk has a node start again with an empty log directory.
func (w *World) wipeDisk() bool {
	n := w.anyNode()
	if n == nil || !w.checker.maySafelyLose(w, n) {
		return false
	}
	d := pick(w, n.disks)
	w.note("FAULT: %s of %s is lost", d.path, n.name)
	w.kill(n)
	w.checker.lost(n)
	w.format(n, d)
	w.after(w.between(50*time.Millisecond, 5*time.Second), func() { w.boot(n) })
	return true
}

func (w *World) slowDisk() bool {
	n := pick(w, w.nodes)
	n.slow = w.between(time.Millisecond, 200*time.Millisecond)
	w.note("FAULT: the disks of %s are slow by %s", n.name, n.slow)
	w.after(w.between(time.Second, 8*time.Second), func() { n.slow = 0 })
	return true
}

func (w *World) jumpClock() bool {
	p := pick(w, w.processes)
	p.skew += w.between(-time.Hour, time.Hour) / time.Duration(1+w.draw(3000))
	w.note("FAULT: the clock of %s jumps to %s from the right time", p.name, p.skew)
	return true
}

// live is a controller that runs; nil when the one that was drawn does not.
func (w *World) live() *controller {
	if c := pick(w, w.controllers); c.up {
		return c
	}
	return nil
}

func (w *World) failOver() bool {
	c := w.live()
	if c == nil {
		return false
	}
	w.note("FAULT: %s is elected", c.name)
	w.claim(c)
	return true
}

// killController ends a controller; another one takes over soon, if it was the active one.
func (w *World) killController() bool {
	c := w.live()
	if c == nil {
		return false
	}
	w.note("FAULT: %s is killed", c.name)
	wasActive := c.active && c.epoch == w.quorum.epoch
	w.end(&c.process)
	c.active = false
	w.after(w.between(100*time.Millisecond, 5*time.Second), func() {
		if !c.up {
			w.start(&c.process)
		}
	})
	if wasActive {
		w.after(w.between(200*time.Millisecond, 2*time.Second), w.takeOver)
	}
	return true
}

// takeOver makes some controller the active one when there is none.
func (w *World) takeOver() {
	for _, c := range w.controllers {
		if c.up && c.active && c.epoch == w.quorum.epoch {
			return
		}
	}
	if c := w.live(); c != nil {
		w.claim(c)
		return
	}
	w.after(200*time.Millisecond, w.takeOver)
}

func (w *World) pauseController() bool {
	c := w.live()
	if c == nil {
		return false
	}
	c.heldUntil = w.now + w.between(500*time.Millisecond, 8*time.Second)
	w.note("FAULT: %s is paused until %s", c.name, c.heldUntil)
	if c.active && w.chance(70) {
		epoch := c.epoch
		w.after(w.between(time.Second, 3*time.Second), func() {
			if other := w.live(); other != nil && other != c && w.quorum.epoch == epoch {
				w.claim(other)
			}
		})
	}
	return true
}

func (w *World) reassign() bool {
	in := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	in.Partition = int32(w.draw(w.shape.partitions))
	for _, i := range w.random.Perm(w.shape.nodes)[:replicationFactor] {
		in.Replicas = append(in.Replicas, int32(i+1))
	}
	return w.alterAssignment(in)
}

func (w *World) cancelReassignment() bool {
	in := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	in.Partition = int32(w.draw(w.shape.partitions))
	return w.alterAssignment(in)
}

func (w *World) alterAssignment(in kmsg.AlterPartitionAssignmentsRequestTopicPartition) bool {
	w.note("FAULT: partition %d is assigned to %v", in.Partition, in.Replicas)
	t := kmsg.NewAlterPartitionAssignmentsRequestTopic()
	t.Topic, t.Partitions = topicName, append(t.Partitions, in)
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	req.Topics = append(req.Topics, t)
	w.request(&w.admin.process, &w.admin.controller, req, func(kmsg.Response) {})
	return true
}

// electLeader asks for the preferred leader, or, where that is allowed, for any.
func (w *World) electLeader() bool {
	t := kmsg.NewElectLeadersRequestTopic()
	t.Topic, t.Partitions = topicName, []int32{int32(w.draw(w.shape.partitions))}
	req := kmsg.NewPtrElectLeadersRequest()
	req.Version = 2
	if w.shape.unclean && w.chance(30) {
		req.ElectionType = 1
	}
	req.Topics = append(req.Topics, t)
	w.note("FAULT: an election of type %d is asked for", req.ElectionType)
	w.request(&w.admin.process, &w.admin.controller, req, func(kmsg.Response) {})
	return true
}

// deleteRecords has a leader delete its oldest records.
func (w *World) deleteRecords() bool {
	k := pick(w, w.keys())
	to, _ := w.leader(w.admin, k)
	if to == nil || !to.up || w.now < to.heldUntil {
		return false
	}
	w.use(to, func() {
		s, ok := to.core.State(k)
		if !ok || !s.Leads || s.HighWatermark <= s.LogStart {
			return
		}
		offset := s.LogStart + 1 + int64(w.draw(int(s.HighWatermark-s.LogStart)))
		w.note("FAULT: %s deletes records of partition %d below %d", to.name, k.Partition, offset)
		t := w.checker.truth(k)
		t.deleted = max(t.deleted, offset)
		if code := to.core.DeleteRecords(k, offset); code != errcode.None && code != errcode.KafkaStorageError {
			w.fail("%s refuses to delete records below %d with %s", to.name, offset, code.Name())
		}
	})
	return true
}

// heal ends all faults for good.
func (w *World) heal() {
	w.note("everything is healed")
	w.healed = true
	clear(w.cut)
	for _, p := range w.processes {
		p.heldUntil, p.skew = 0, 0
	}
	for _, c := range w.controllers {
		if !c.up {
			w.start(&c.process)
		}
	}
	w.claim(w.controllers[0])
	for _, n := range w.nodes {
		n.slow, n.leaving = 0, false
		broken := false
		for _, d := range n.disks {
			broken = broken || d.broken
			d.broken = false
		}
		if n.up && (broken || n.failures > 0 || w.isStopping(n)) {
			w.kill(n)
		}
		w.boot(n)
	}
}

// isStopping says whether a node has begun to stop in the eyes of the controller, which only a new start takes back.
func (w *World) isStopping(n *node) bool {
	b := w.quorum.image.Broker(n.id)
	return b != nil && b.InControlledShutdown
}

// together says what is still missing until the cluster has come together; empty for nothing.
func (w *World) together() string {
	for _, k := range w.keys() {
		if missing := w.missing(k); missing != "" {
			return fmt.Sprintf("partition %d: %s", k.Partition, missing)
		}
	}
	for _, p := range w.producers {
		if len(p.queue) > 0 {
			return fmt.Sprintf("%s still has %d batches", p.name, len(p.queue))
		}
	}
	for _, c := range w.consumers {
		if end := int64(len(w.checker.truth(c.key).committed)); c.position != end {
			return fmt.Sprintf("%s is at %d of %d", c.name, c.position, end)
		}
	}
	return ""
}

func (w *World) missing(k simulation.Key) string {
	p := w.quorum.image.Partition(k.TopicID, k.Partition)
	if p.Leader == metadata.NoLeader || len(p.ISR) != len(p.Replicas) || len(p.AddingReplicas)+len(p.RemovingReplicas) > 0 {
		return fmt.Sprintf("leader %d, ISR %v of %v, ELR %v, last known %v, adding %v, removing %v", p.Leader, p.ISR, p.Replicas, p.ELR,
			p.LastKnownELR, p.AddingReplicas, p.RemovingReplicas)
	}
	committed := int64(len(w.checker.truth(k).committed))
	for _, id := range p.Replicas {
		n := w.nodeOf(id)
		if !n.up {
			return n.name + " is down"
		}
		s, ok := n.core.State(k)
		w.checker.look(w, n)
		if !ok || s.LogEnd != committed || s.HighWatermark != committed || w.checker.copyOf(id, k).agrees != committed {
			return fmt.Sprintf("%s has records up to %d and the high watermark %d of %d", n.name, s.LogEnd, s.HighWatermark, committed)
		}
	}
	return ""
}
