package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/services/vfs/memfs"
	"chancery/storaged/simulation"
)

const (
	clusterID = "the-simulated-cluster"
	topicName = "t"
	// segmentBytes is small, so that logs have many segments.
	segmentBytes      = 1500
	heartbeatInterval = 500 * time.Millisecond
	replicaLagTime    = 3 * time.Second
	requestTimeout    = 3 * time.Second
)

func staticConfig() *configdef.Node {
	return configdef.NewNode(map[string]string{
		"replica.lag.time.max.ms": fmt.Sprint(replicaLagTime.Milliseconds()),
		"log.retention.ms":        "-1",
	})
}

// node is a storage node.
type node struct {
	process
	id    int32
	disks []*disk
	// core is what runs; nil while the process does not.
	core   *simulation.Node
	loader *metadata.Loader
	// image is the newest metadata that the node has.
	image       *metadata.Image
	incarnation uuid.UUID
	epoch       int64
	controller  int
	leaving     bool
	// cleanEpoch is the epoch of the last run when it ended in order; -1 otherwise.
	cleanEpoch int64
	// foundEpoch is the one that the present run has found, bootedClean says that there was one.
	foundEpoch  int64
	bootedClean bool
	checkpoints map[simulation.Key]simulation.Checkpoint
	// lostData says that the disks lost something that the controller does not know of yet.
	lostData bool
	// lostIn is the incarnation before the loss: a registration of it that is still on its way tells the controller nothing.
	lostIn uuid.UUID

	proposals map[simulation.Key]simulation.Proposal
	proposing bool
	copies    map[simulation.Key]int
	failures  int
	// slow is by how much each use of the disks may take longer.
	slow time.Duration
}

// disk is a log directory.
type disk struct {
	path   string
	id     uuid.UUID
	memory *memfs.Disk
	// broken makes all that changes files fail, once left more operations have succeeded.
	broken bool
	left   int
}

var errDisk = errors.New("input/output error")

func (d *disk) fs() vfs.FS {
	return vfs.Faulty{FS: d.memory, Inject: func(op vfs.Op, _ string) error {
		if !d.broken || op == vfs.OpRead || op == vfs.OpOpen {
			return nil
		}
		if d.left--; d.left >= 0 {
			return nil
		}
		return errDisk
	}}
}

func (w *World) newNode(id int32) *node {
	n := &node{process: w.newProcess("node %d", id), id: id, cleanEpoch: -1, checkpoints: map[simulation.Key]simulation.Checkpoint{}}
	n.repeats = true
	w.add(&n.process)
	for i := range 1 + w.draw(2) {
		n.disks = append(n.disks, &disk{path: fmt.Sprintf("/disk%d", i)})
	}
	for _, d := range n.disks {
		w.format(n, d)
	}
	return n
}

// format makes a log directory empty.
func (w *World) format(n *node, d *disk) {
	d.memory = memfs.New(func() time.Time { return w.clock(&n.process) })
	d.id, d.broken = w.newID(), false
	if err := errors.Join(d.memory.MkdirAll(d.path, 0o755), d.memory.SyncDir(d.path)); err != nil {
		w.fail("format: %w", err)
	}
}

func (w *World) newID() uuid.UUID {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(w.random.Uint32())
	}
	return id
}

// boot starts a storage node with what is on its disks.
func (w *World) boot(n *node) {
	if n.up {
		return
	}
	w.start(&n.process)
	o := simulation.Options{
		ID: n.id, ClusterID: clusterID, Static: staticConfig(), Checkpoints: n.checkpoints, Clean: n.cleanEpoch >= 0, SegmentBytes: segmentBytes,
		Now: func() time.Time { return w.clock(&n.process) }, Logger: w.logger(n),
		Checkpoint: func(c map[simulation.Key]simulation.Checkpoint) { n.checkpoints = c },
	}
	for _, d := range n.disks {
		o.Directories = append(o.Directories, simulation.Directory{Path: d.path, ID: d.id, FS: d.fs(), Failed: d.broken})
	}
	n.core = simulation.New(o)
	n.loader = metadata.NewLoader(metadata.Empty(clusterID))
	n.image = n.loader.Image()
	before := n.epoch
	n.incarnation, n.epoch, n.leaving, n.failures = w.newID(), -1, false, 0
	n.proposals, n.proposing, n.copies = map[simulation.Key]simulation.Proposal{}, false, map[simulation.Key]int{}
	previous := n.cleanEpoch
	n.foundEpoch, n.bootedClean, n.cleanEpoch = previous, previous >= 0, -1
	w.checker.booted(w, n)
	if w.o.Wrong.ClaimCleanStops {
		previous = before
	}
	w.register(n, previous)
	w.follow(n)
	w.maintain(n)
}

// logger traces what the node says, if anybody wants to know.
func (w *World) logger(n *node) *slog.Logger {
	if w.o.Trace == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w.o.Trace, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String(slog.TimeKey, w.now.String())
		}
		return a
	}})).With("node", n.id)
}

// register asks for an epoch until there is one, and then sends heartbeats.
func (w *World) register(n *node, previous int64) {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version, req.BrokerID, req.ClusterID, req.IncarnationID = 4, n.id, clusterID, n.incarnation
	req.PreviousBrokerEpoch = previous
	for _, d := range n.core.OnlineDirectories() {
		req.LogDirs = append(req.LogDirs, d)
	}
	slices.SortFunc(req.LogDirs, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	for name, level := range w.quorum.image.Features() {
		f := kmsg.NewBrokerRegistrationRequestFeature()
		f.Name, f.MaxSupportedVersion = name, level
		req.Features = append(req.Features, f)
	}
	slices.SortFunc(req.Features, func(a, b kmsg.BrokerRegistrationRequestFeature) int {
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	w.request(&n.process, &n.controller, req, func(resp kmsg.Response) {
		r, ok := resp.(*kmsg.BrokerRegistrationResponse)
		if !ok || r.ErrorCode != 0 {
			w.later(&n.process, w.between(50*time.Millisecond, 500*time.Millisecond), func() { w.register(n, previous) })
			return
		}
		n.epoch = r.BrokerEpoch
		w.note("%s has epoch %d", n.name, n.epoch)
		w.use(n, func() { n.core.Registered(n.epoch) })
		w.beat(n, n.epoch, previous)
	})
}

// beat sends heartbeats until the registration is not known any more.
func (w *World) beat(n *node, epoch, previous int64) {
	if n.epoch != epoch || !n.up {
		return
	}
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.Version, req.BrokerID, req.BrokerEpoch = 2, n.id, epoch
	req.CurrentMetadataOffset = n.core.AppliedOffset()
	req.WantFence, req.WantShutdown = req.CurrentMetadataOffset < epoch, n.leaving
	for _, d := range n.core.FailedDirectories() {
		req.OfflineLogDirs = append(req.OfflineLogDirs, d)
	}
	w.request(&n.process, &n.controller, req, func(resp kmsg.Response) {
		r, ok := resp.(*kmsg.BrokerHeartbeatResponse)
		switch code := codeOf(ok, codeOfHeartbeat(r)); {
		case code == errcode.StaleBrokerEpoch || code == errcode.BrokerIdNotRegistered:
			n.epoch = -1
			w.use(n, func() { n.core.Registered(-1) })
			w.register(n, previous)
			return
		case code == errcode.None && r.ShouldShutdown && n.leaving:
			w.stop(n)
			return
		}
		w.later(&n.process, heartbeatInterval, func() { w.beat(n, epoch, previous) })
	})
}

func codeOfHeartbeat(r *kmsg.BrokerHeartbeatResponse) int16 {
	if r == nil {
		return 0
	}
	return r.ErrorCode
}

// follow brings the node the metadata.
func (w *World) follow(n *node) {
	from := pick(w, w.controllers)
	again := func() {
		w.later(&n.process, w.between(5*time.Millisecond, 80*time.Millisecond), func() { w.follow(n) })
	}
	w.call(&n.process, &from.process, time.Second, func(answer func(func())) {
		batches := w.quorum.batches
		answer(func() {
			w.takeMetadata(n, batches)
			again()
		})
	}, again)
}

// takeMetadata applies batches that the node does not have yet: all of them as one when it has just started.
func (w *World) takeMetadata(n *node, batches []metadataBatch) {
	first := n.loader.NextOffset() == 0
	for _, b := range batches {
		if b.base < n.loader.NextOffset() {
			continue
		}
		if err := n.loader.Add(b.base, b.epoch, b.records); err != nil {
			w.fail("%s cannot apply the metadata: %w", n.name, err)
			return
		}
		if !first {
			w.publish(n)
		}
	}
	if first {
		w.publish(n)
	}
}

func (w *World) publish(n *node) {
	delta := n.loader.Take()
	if delta == nil {
		return
	}
	n.image = delta.Image()
	w.stamp(5, int64(n.id), n.image.Offset())
	w.use(n, func() { n.core.Publish(n.image) })
}

// maintain does what a node does from time to time.
func (w *World) maintain(n *node) {
	w.later(&n.process, w.between(100*time.Millisecond, 900*time.Millisecond), func() {
		w.use(n, func() {
			n.core.Tick()
			if w.chance(30) {
				n.checkpoints = n.core.Checkpoints()
			}
			if keys := n.core.Keys(); len(keys) > 0 && w.chance(10) {
				n.core.Flush(pick(w, keys))
			}
		})
		w.replace(n)
		w.maintain(n)
	})
}

// replace tells the controller where replicas are that it has elsewhere.
func (w *World) replace(n *node) {
	if !n.up || n.epoch < 0 {
		return
	}
	misplaced := n.core.Misplaced()
	for _, k := range n.core.Keys() {
		dir, ok := misplaced[k]
		if !ok {
			continue
		}
		req := kmsg.NewPtrAssignReplicasToDirsRequest()
		req.BrokerID, req.BrokerEpoch = n.id, n.epoch
		p := kmsg.NewAssignReplicasToDirsRequestDirectoryTopicPartition()
		p.Partition = k.Partition
		t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
		t.TopicID, t.Partitions = k.TopicID, append(t.Partitions, p)
		d := kmsg.NewAssignReplicasToDirsRequestDirectory()
		d.ID, d.Topics = dir, append(d.Topics, t)
		req.Directories = append(req.Directories, d)
		w.request(&n.process, &n.controller, req, func(kmsg.Response) {})
	}
}

// use lets the node's replicas do something, carries out what they ask for, and checks what has become of them.
func (w *World) use(n *node, do func()) {
	if !n.up {
		return // Something before this has ended it.
	}
	do()
	if !n.up {
		return
	}
	w.checker.look(w, n)
	if n.slow > 0 {
		n.heldUntil = max(n.heldUntil, w.now+w.between(0, n.slow))
	}
	for _, k := range n.core.TakeMoved() {
		w.startCopying(n, k)
	}
	for _, p := range n.core.TakeProposals() {
		n.proposals[p.Key] = p
		w.propose(n)
	}
	for _, k := range n.core.TakeRolled() {
		w.later(&n.process, w.between(0, 500*time.Millisecond), func() { w.use(n, func() { n.core.Flush(k) }) })
	}
	if failed := len(n.core.FailedDirectories()); failed > n.failures {
		n.failures = failed
		w.note("%s has %d failed directories", n.name, failed)
		if failed == len(n.disks) {
			w.kill(n)
		}
	}
}

// kill ends a node as SIGKILL does: what it wrote stays.
func (w *World) kill(n *node) {
	if !n.up {
		return
	}
	w.end(&n.process)
	n.core.Kill()
	n.core = nil
}

// stop ends a node in order.
func (w *World) stop(n *node) {
	w.note("%s stops in order", n.name)
	if n.core.AppliedOffset() < 0 {
		// No log was opened: what a crash has left is still to be recovered, and what was clean is still so.
		if n.cleanEpoch = n.foundEpoch; n.foundEpoch >= 0 {
			n.cleanEpoch = max(n.foundEpoch, n.epoch)
		}
	} else {
		n.checkpoints = n.core.Stop()
		w.checker.look(w, n)
		if len(n.core.FailedDirectories()) == 0 {
			n.cleanEpoch = n.epoch
		}
	}
	w.kill(n)
	w.after(w.between(100*time.Millisecond, 3*time.Second), func() { w.boot(n) })
}

// propose sends the newest proposals of the node's leaders to the controller, after a moment.
func (w *World) propose(n *node) {
	if n.proposing {
		return
	}
	n.proposing = true
	w.later(&n.process, w.between(time.Millisecond, 60*time.Millisecond), func() {
		n.proposing = false
		for _, k := range n.core.Keys() {
			if p, ok := n.proposals[k]; ok {
				delete(n.proposals, k)
				w.alterPartition(n, p)
			}
		}
	})
}

func (w *World) alterPartition(n *node, p simulation.Proposal) {
	in := kmsg.NewAlterPartitionRequestTopicPartition()
	in.Partition, in.LeaderEpoch, in.PartitionEpoch = p.Key.Partition, p.LeaderEpoch, p.PartitionEpoch
	for _, m := range p.ISR {
		e := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
		e.BrokerID, e.BrokerEpoch = m.ID, m.BrokerEpoch
		in.NewEpochISR = append(in.NewEpochISR, e)
	}
	t := kmsg.NewAlterPartitionRequestTopic()
	t.TopicID, t.Partitions = p.Key.TopicID, append(t.Partitions, in)
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version, req.BrokerID, req.BrokerEpoch = 3, n.id, n.epoch
	req.Topics = append(req.Topics, t)
	w.request(&n.process, &n.controller, req, func(resp kmsg.Response) {
		r, ok := resp.(*kmsg.AlterPartitionResponse)
		code := codeOf(ok, 0)
		if ok {
			code = errcode.Code(r.ErrorCode)
		}
		w.use(n, func() {
			if code != errcode.None {
				n.core.AlterFailed(p, code)
				return
			}
			out := r.Topics[0].Partitions[0]
			if out.ErrorCode != 0 {
				n.core.AlterFailed(p, errcode.Code(out.ErrorCode))
				return
			}
			n.core.Altered(p, out.LeaderEpoch, out.PartitionEpoch, out.ISR)
		})
	})
}

// startCopying begins a follower's round of fetches, unless it has stopped copying.
func (w *World) startCopying(n *node, k simulation.Key) {
	n.copies[k]++
	round := n.copies[k]
	if _, _, ok := n.core.Copies(k); !ok {
		return
	}
	if w.o.Wrong.TruncateToHighWatermark {
		w.truncateToHighWatermark(n, k)
	}
	w.later(&n.process, w.between(0, 5*time.Millisecond), func() { w.copyOnce(n, k, round) })
}

func (w *World) truncateToHighWatermark(n *node, k simulation.Key) {
	s, _ := n.core.State(k)
	_, epoch, _ := n.core.Copies(k)
	n.core.Take(k, epoch, s.LogEnd, &storage.FetchPartitionResult{Diverging: storage.EpochEndOffset{Epoch: -1, EndOffset: s.HighWatermark}})
	w.checker.look(w, n)
}

// copyOnce is one fetch of a follower.
func (w *World) copyOnce(n *node, k simulation.Key, round int) {
	id, epoch, ok := n.core.Copies(k)
	if n.copies[k] != round || !ok {
		return
	}
	leader := w.nodeOf(id)
	again := func(least, most time.Duration) {
		w.later(&n.process, w.between(least, most), func() { w.copyOnce(n, k, round) })
	}
	req := n.core.Position(k, epoch, int32(100+w.draw(2000)))
	if w.o.Wrong.SkipEpochs {
		req.Partitions[0].CurrentLeaderEpoch, req.Partitions[0].LastFetchedEpoch = -1, -1
	}
	at := req.Partitions[0].FetchOffset
	w.call(&n.process, &leader.process, requestTimeout, func(answer func(func())) {
		var res storage.FetchPartitionResult
		w.use(leader, func() { res = leader.core.Fetch(req) })
		answer(func() {
			if w.o.Wrong.SkipEpochs {
				_, epoch, _ = n.core.Copies(k)
			}
			switch res.Error {
			case errcode.None:
				news := res.Records.Len() > 0 || res.Diverging != storage.NoDivergence
				w.use(n, func() { n.core.Take(k, epoch, at, &res) })
				if news {
					again(0, 10*time.Millisecond)
				} else {
					again(20*time.Millisecond, 150*time.Millisecond)
				}
			case errcode.OffsetOutOfRange:
				w.rejoin(n, leader, k, epoch, func() { again(0, 20*time.Millisecond) })
			default:
				again(20*time.Millisecond, 300*time.Millisecond)
			}
		})
	}, func() { again(20*time.Millisecond, 300*time.Millisecond) })
}

func (w *World) rejoin(n, leader *node, k simulation.Key, epoch int32, done func()) {
	w.call(&n.process, &leader.process, requestTimeout, func(answer func(func())) {
		start, code := leader.core.FindOffset(k, n.id, epoch, simulation.Earliest)
		end, endCode := leader.core.FindOffset(k, n.id, epoch, simulation.Latest)
		answer(func() {
			if code == errcode.None && endCode == errcode.None {
				w.use(n, func() { n.core.Rejoin(k, epoch, start, end) })
			}
			done()
		})
	}, done)
}

func (w *World) nodeOf(id int32) *node { return w.nodes[id-1] }
