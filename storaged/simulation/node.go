package simulation

import (
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/vfs"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
)

// Key names a partition.
type Key struct {
	TopicID   uuid.UUID
	Partition int32
}

func (k Key) internal() replica.Key { return replica.Key{TopicID: k.TopicID, Partition: k.Partition} }

// Checkpoint is what a node remembers of a replica beside the log.
type Checkpoint struct {
	HighWatermark, RecoveryPoint, LogStart int64
}

// Directory is a log directory.
type Directory struct {
	Path string
	ID   uuid.UUID
	FS   vfs.FS
	// Failed says that it cannot be used from the start.
	Failed bool
}

// Options is what a node starts with.
type Options struct {
	ID          int32
	ClusterID   string
	Directories []Directory
	Static      *configdef.Node
	// Checkpoints are those of the last run, Clean says that it ended in order.
	Checkpoints map[Key]Checkpoint
	Clean       bool
	// Checkpoint takes new ones when they must be written at once.
	Checkpoint func(map[Key]Checkpoint)
	// SegmentBytes is the size of segments, smaller than a topic's config may ask for.
	SegmentBytes int
	Now          func() time.Time
	Logger       *slog.Logger
}

// Node is the replicas of a storage node.
type Node struct {
	o        Options
	env      *replica.Env
	pools    *log.Pools
	epoch    int64
	newest   *metadata.Image
	base     *metadata.Image
	replicas map[Key]*hosted
	failed   []bool

	// What follows collects what the replicas ask for until it is taken.
	proposals []Proposal
	moved     []Key
	broken    bool
	completed []func()
	removals  []func()
	rolled    []Key
}

// hosted is a replica and where it is.
type hosted struct {
	*replica.Replica
	key Key
	// dir is the index of its log directory; -1 when it is out of reach.
	dir int
	// from is whom it copies from; nil when it copies from nobody.
	from *partition.FetchFrom
}

// Proposal is an ISR that a leader asks the controller for.
type Proposal struct {
	Key            Key
	LeaderEpoch    int32
	PartitionEpoch int32
	ISR            []Member
	asked          *partition.AlterPartition
}

// Member is a replica in a proposed ISR; its epoch is -1 where the leader does not know it.
type Member struct {
	ID          int32
	BrokerEpoch int64
}

// New starts a node, which has no replicas before it has been registered and told the metadata.
func New(o Options) *Node {
	empty := metadata.Empty(o.ClusterID)
	n := &Node{o: o, epoch: -1, newest: empty, base: empty, pools: &log.Pools{}, replicas: map[Key]*hosted{}, failed: make([]bool, len(o.Directories))}
	for i, d := range o.Directories {
		n.failed[i] = d.Failed
	}
	n.env = &replica.Env{
		Host: (*host)(n),
		Machine: partition.Config{
			Self: o.ID, ReplicaLagTimeMax: o.Static.Duration("replica.lag.time.max.ms"),
			Broker: n.brokerState, SelfEpoch: func() int64 { return n.epoch },
		},
		Codecs:  recordbatch.NewCodecs(),
		Image:   func() metadata.Reader { return n.newest },
		Metrics: &replica.Metrics{},
		Logger:  o.Logger,
		Now:     o.Now,
	}
	return n
}

func (n *Node) brokerState(id int32) (partition.BrokerState, bool) {
	b := n.newest.Broker(id)
	if b == nil {
		return partition.BrokerState{}, false
	}
	return partition.BrokerState{Epoch: b.Epoch, Fenced: b.Fenced, ShuttingDown: b.InControlledShutdown}, true
}

// Registered says that the node has a broker epoch, or none any more.
func (n *Node) Registered(epoch int64) {
	n.epoch = epoch
	n.applyNewest()
}

// AppliedOffset is the metadata offset that the replicas have taken in.
func (n *Node) AppliedOffset() int64 { return n.base.Offset() }

// NewestOffset is the metadata offset that the node knows.
func (n *Node) NewestOffset() int64 { return n.newest.Offset() }

// Publish gives the node an image of the metadata.
func (n *Node) Publish(image *metadata.Image) {
	n.newest = image
	n.applyNewest()
}

// applyNewest waits, as a storage node does, for the image to have the node's registration: before that it shows what the last
// incarnation was.
func (n *Node) applyNewest() {
	if n.newest == n.base || n.base.Offset() < 0 && (n.epoch < 0 || n.newest.Offset() < n.epoch) {
		return
	}
	delta := metadata.Diff(n.base, n.newest)
	for t := range delta.Topics() {
		for p := range t.Partitions() {
			n.change(Key{TopicID: t.ID(), Partition: p.Partition}, t.New, p.New)
		}
	}
	changed := map[int32]bool{}
	for b := range delta.Brokers() {
		if b.New != nil {
			changed[b.New.ID] = true
		} else {
			changed[b.Old.ID] = true
		}
	}
	if len(changed) > 0 {
		for _, r := range n.sorted() {
			if r.View().Leads() {
				r.BrokersChanged()
				n.settle(r)
			}
		}
	}
	n.base = n.newest
}

func (n *Node) change(k Key, topic *metadata.Topic, reg *metadata.Partition) {
	r := n.replicas[k]
	if reg == nil || !slices.Contains(reg.Replicas, n.o.ID) {
		if r != nil {
			n.remove(r)
		}
		return
	}
	if r == nil {
		r = n.open(k, topic, reg)
		n.replicas[k] = r
	}
	r.Apply(n.o.ID, reg, func() {})
	n.settle(r)
}

func (n *Node) remove(r *hosted) {
	delete(n.replicas, r.key)
	if err := r.Close(true); err != nil {
		n.broken = true
	}
	n.moved = append(n.moved, r.key)
	n.finishFailures()
	n.complete()
}

// open opens a replica's log where it is, or where it is to be made.
func (n *Node) open(k Key, topic *metadata.Topic, reg *metadata.Partition) *hosted {
	config, err := n.o.Static.WithDynamic(n.newest.Config(metadata.ResourceBroker, ""), nil).Topic(n.newest.Config(metadata.ResourceTopic, topic.Name))
	if err != nil {
		n.o.Logger.Warn("config", "error", err)
	}
	config.SegmentBytes = n.o.SegmentBytes
	options := replica.Options{Key: k.internal(), Topic: topic.Name, Config: &config}
	name := logdir.Replica{Topic: topic.Name, Partition: k.Partition}
	dir, isNew := n.place(name, n.assigned(reg))
	if dir < 0 {
		return &hosted{Replica: replica.New(n.env, options), key: k, dir: -1}
	}
	checkpoint := n.o.Checkpoints[k]
	if isNew {
		checkpoint = Checkpoint{}
	}
	d := &n.o.Directories[dir]
	opened, err := log.Open(log.Options{
		Dir: d.Path, Topic: topic.Name, Partition: k.Partition, TopicID: topic.ID, Config: &config,
		LogStartOffset: checkpoint.LogStart, RecoveryPoint: checkpoint.RecoveryPoint, CleanShutdown: n.o.Clean,
		Codecs: n.env.Codecs, Pools: n.pools, Logger: n.o.Logger, FS: d.FS, Now: n.o.Now,
		After:  func(_ time.Duration, f func()) { n.removals = append(n.removals, f) },
		Jitter: func(int64) int64 { return 0 },
		// The records of a simulation have timestamps by which nothing must expire.
		ProducerIDExpiration: math.MaxInt64,
		Rolled:               func() { n.rolled = append(n.rolled, k) },
		RecoveryPointFell:    n.recoveryPointFell,
	})
	if err != nil {
		n.o.Logger.Warn("a log cannot be opened", "dir", d.Path, "error", err)
		n.failDirectory(dir)
		return &hosted{Replica: replica.New(n.env, options), key: k, dir: -1}
	}
	options.Log, options.HighWatermark = opened, checkpoint.HighWatermark
	return &hosted{Replica: replica.New(n.env, options), key: k, dir: dir}
}

func (n *Node) assigned(reg *metadata.Partition) uuid.UUID {
	i := slices.Index(reg.Replicas, n.o.ID)
	if i < 0 || i >= len(reg.Directories) || reg.Directories[i] == uuid.MigratingDir {
		return uuid.UnassignedDir
	}
	return reg.Directories[i]
}

// place finds the directory of a replica as a storage node does; -1 when it must not be made anew.
func (n *Node) place(name logdir.Replica, assigned uuid.UUID) (dir int, isNew bool) {
	path := log.DirName(name.Topic, name.Partition)
	fewest, online := -1, 0
	counts := make([]int, len(n.failed))
	for _, r := range n.replicas {
		if r.dir >= 0 {
			counts[r.dir]++
		}
	}
	for i := range n.o.Directories {
		d := &n.o.Directories[i]
		if n.failed[i] {
			continue
		}
		online++
		if _, err := d.FS.Stat(filepath.Join(d.Path, path)); err == nil {
			return i, false
		}
		if fewest < 0 || counts[i] < counts[fewest] {
			fewest = i
		}
	}
	for i := range n.o.Directories {
		if !n.failed[i] && n.o.Directories[i].ID == assigned {
			return i, true
		}
	}
	if assigned != uuid.UnassignedDir && online < len(n.failed) {
		return -1, false
	}
	return fewest, true
}

// recoveryPointFell writes the recovery points down, and leaves the rest of the checkpoints as it is.
func (n *Node) recoveryPointFell() {
	if n.o.Checkpoint == nil {
		return
	}
	out := maps.Clone(n.o.Checkpoints)
	for k, c := range n.look() {
		old := out[k]
		old.RecoveryPoint = c.RecoveryPoint
		out[k] = old
	}
	n.o.Checkpoints = out
	n.o.Checkpoint(out)
}

// sorted are the replicas in the order of their partitions.
func (n *Node) sorted() []*hosted {
	return slices.SortedFunc(maps.Values(n.replicas), func(a, b *hosted) int {
		if c := slices.Compare(a.key.TopicID[:], b.key.TopicID[:]); c != 0 {
			return c
		}
		return int(a.key.Partition - b.key.Partition)
	})
}

// settle waits until a replica's mailbox is empty, and lets a failure of its log take its course.
func (n *Node) settle(r *hosted) {
	r.Do(func() {})
	n.finishFailures()
	n.complete()
}

func (n *Node) finishFailures() {
	if !n.broken {
		return
	}
	n.broken = false
	for _, r := range n.sorted() {
		if r.dir >= 0 && r.View().Failed && !n.failed[r.dir] {
			n.failDirectory(r.dir)
		}
	}
}

// failDirectory takes a directory out of service with all that is in it.
func (n *Node) failDirectory(dir int) {
	n.failed[dir] = true
	for _, r := range n.sorted() {
		if r.dir == dir {
			r.GoOffline(nil)
			r.Do(func() {})
		}
	}
}

func (n *Node) complete() {
	for len(n.completed) > 0 {
		f := n.completed[0]
		n.completed = n.completed[1:]
		f()
	}
}

// host is the node as its replicas see it. It is called from their loops, for which the node's goroutine waits.
type host Node

var _ replica.Host = (*host)(nil)

func (h *host) keyOf(r *replica.Replica) Key {
	return Key{TopicID: r.Key().TopicID, Partition: r.Key().Partition}
}

// AlterPartition is part of replica.Host.
func (h *host) AlterPartition(r *replica.Replica, p *partition.AlterPartition) {
	out := Proposal{Key: h.keyOf(r), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, asked: p}
	for _, m := range p.ISR {
		out.ISR = append(out.ISR, Member(m))
	}
	h.proposals = append(h.proposals, out)
}

// StartFetching is part of replica.Host.
func (h *host) StartFetching(r *replica.Replica, from partition.FetchFrom) {
	h.replicas[h.keyOf(r)].from = &from
	h.moved = append(h.moved, h.keyOf(r))
}

// StopFetching is part of replica.Host.
func (h *host) StopFetching(r *replica.Replica) {
	if hosted := h.replicas[h.keyOf(r)]; hosted != nil {
		hosted.from = nil
	}
	h.moved = append(h.moved, h.keyOf(r))
}

// PositionMoved is part of replica.Host. Each fetch of the simulation tells the follower's position, so there is nothing to do.
func (h *host) PositionMoved(*replica.Replica) {}

// LogFailed is part of replica.Host.
func (h *host) LogFailed(_ *logdir.Dir, err error) {
	h.o.Logger.Error("a log has failed", "error", err)
	h.broken = true
}
