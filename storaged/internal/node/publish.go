package node

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
)

// publishing is the state of applying images, one at a time.
type publishing struct {
	mu sync.Mutex
	// base is the image whose roles the replicas have; newer ones are held back until the node's registration is among them.
	base *metadata.Image
	// cleaned says that directories which the cluster does not know have been set aside.
	cleaned bool
	// stopped says that no image is applied any more.
	stopped bool
}

// Publish is part of metadata.Publisher. When it returns, the replicas have the roles of the image and serve.
//
// Until the node has been registered, the image shows what its former incarnation was: a leader, perhaps, with records
// that this one has lost. So nothing is applied before the image has the registration.
func (n *Node) Publish(_ context.Context, delta *metadata.Delta, image *metadata.Image) {
	n.publishing.mu.Lock()
	defer n.publishing.mu.Unlock()
	n.newest.Store(image)
	n.applyNewest(delta)
}

// Registered says that the node has an epoch: an image that has waited for it may now be applied.
func (n *Node) Registered() {
	n.publishing.mu.Lock()
	defer n.publishing.mu.Unlock()
	n.applyNewest(nil)
}

func (n *Node) applyNewest(delta *metadata.Delta) {
	image, base, epoch := n.newest.Load(), n.publishing.base, n.o.Epoch()
	if n.publishing.stopped || image == base || base.Offset() < 0 && (epoch < 0 || image.Offset() < epoch) {
		return
	}
	if delta == nil || delta.Base() != base {
		delta = metadata.Diff(base, image)
	}
	if err := n.o.Dirs.Stamp(image.ClusterID()); err != nil {
		n.o.Fatal(err)
		return
	}
	c := change{node: n, delta: delta, image: image}
	c.configs()
	c.topics()
	c.brokers()
	n.publishing.base = image
	n.applied.set(image)
	n.releaseHeld()
	if !n.publishing.cleaned {
		n.publishing.cleaned = true
		n.o.Dirs.Strays()
	}
	n.o.Applied()
}

// change is the step from one image to the next.
type change struct {
	node  *Node
	delta *metadata.Delta
	image *metadata.Image
}

// configs takes new settings of brokers and topics in.
func (c *change) configs() {
	n := c.node
	self := strconv.Itoa(int(n.o.ID))
	everywhere := false
	topics := map[string]bool{}
	for res := range c.delta.Configs() {
		switch {
		case res.Type == metadata.ResourceBroker && (res.Name == "" || res.Name == self):
			everywhere = true
		case res.Type == metadata.ResourceTopic:
			topics[res.Name] = true
		}
	}
	if everywhere {
		n.reconfigure(n.o.Static.WithDynamic(c.image.Config(metadata.ResourceBroker, ""), c.image.Config(metadata.ResourceBroker, self)))
	}
	if !everywhere && len(topics) == 0 {
		return
	}
	resolved := map[string]*configdef.Topic{}
	for _, r := range n.all() {
		if !everywhere && !topics[r.Topic()] || c.image.Topic(r.Key().TopicID) == nil {
			continue
		}
		if resolved[r.Topic()] == nil {
			resolved[r.Topic()] = c.topicConfig(r.Topic())
		}
		r.Configure(resolved[r.Topic()])
	}
}

// reconfigure takes new settings of the node itself.
func (n *Node) reconfigure(config *configdef.Node) {
	before := n.config.Load()
	n.config.Store(config)
	n.quotas.configure(config)
	n.fetchers.Reconfigure(config.Int("num.replica.fetchers"))
	n.reconfigureCleaner(before, config)
	for _, path := range config.List("cordoned.log.dirs") {
		known := func(d *logdir.Dir) bool { return sameDir(path, d.Path()) }
		if path != "*" && !slices.ContainsFunc(n.o.Dirs.All(), known) {
			n.o.Logger.Warn("cordoned.log.dirs names what is not among log.dirs", "dir", path)
		}
	}
}

func (c *change) topicConfig(topic string) *configdef.Topic {
	resolved, err := c.node.config.Load().Topic(c.image.Config(metadata.ResourceTopic, topic))
	if err != nil {
		c.node.o.Logger.Warn("topic has a config that cannot be used", "topic", topic, "error", err)
	}
	return &resolved
}

// opening is a replica that is to be opened.
type opening struct {
	topic     *metadata.Topic
	partition int32
	reg       *metadata.Partition
	// at is where the replica lives; there is no directory when it is out of reach.
	at logdir.Placement
}

// topics gives replicas their roles: first those go that are not wanted any more, since a new topic may have the name of
// a deleted one, then new ones are opened, then all changed ones take their roles.
func (c *change) topics() {
	n := c.node
	var gone []*replica.Replica
	var opens []opening
	var roles []opening
	for t := range c.delta.Topics() {
		for p := range t.Partitions() {
			key := replica.Key{TopicID: t.ID(), Partition: p.Partition}
			r := n.lookup(key)
			if p.New == nil || !slices.Contains(p.New.Replicas, n.o.ID) {
				if r != nil {
					gone = append(gone, r)
				}
				continue
			}
			o := opening{topic: t.New, partition: p.Partition, reg: p.New}
			if r == nil {
				opens = append(opens, o)
			}
			roles = append(roles, o)
		}
	}
	c.remove(gone)
	c.open(opens)
	n.opened.Store(true)
	c.assign(roles)
}

// perDir works lists off, a list for each log directory, with num.recovery.threads.per.data.dir goroutines for each.
func perDir[T any](n *Node, lists map[*logdir.Dir][]T, do func(T)) {
	threads := n.config.Load().Int("num.recovery.threads.per.data.dir")
	var done sync.WaitGroup
	for _, list := range lists {
		done.Go(func() { inParallel(threads, list, do) })
	}
	done.Wait()
}

// waitingForDisks is how many goroutines may wait for disks at a time.
func waitingForDisks() int { return 4 * runtime.GOMAXPROCS(0) }

// inParallel works a list off with some goroutines.
func inParallel[T any](workers int, list []T, do func(T)) {
	workers = min(len(list), workers)
	if workers <= 1 {
		for _, x := range list {
			do(x)
		}
		return
	}
	work := make(chan T)
	var done sync.WaitGroup
	for range workers {
		done.Go(func() {
			for x := range work {
				do(x)
			}
		})
	}
	for _, x := range list {
		work <- x
	}
	close(work)
	done.Wait()
}

func (c *change) remove(gone []*replica.Replica) {
	n := c.node
	if len(gone) == 0 {
		return
	}
	n.mu.Lock()
	for _, r := range gone {
		delete(n.replicas, r.Key())
	}
	n.mu.Unlock()
	inParallel(waitingForDisks(), gone, func(r *replica.Replica) {
		n.fetchers.Stop(r.Key())
		n.moves.Cancel(r.Key())
		if err := r.Close(true); err != nil {
			n.LogFailed(r.Dir(), err)
		}
		if d := r.Dir(); d != nil {
			n.o.Dirs.Removed(d)
		}
	})
	n.o.Logger.Info("replicas removed", "count", len(gone))
}

func (c *change) open(opens []opening) {
	n := c.node
	if len(opens) == 0 {
		return
	}
	configs := map[string]*configdef.Topic{}
	for _, o := range opens {
		if configs[o.topic.Name] == nil {
			configs[o.topic.Name] = c.topicConfig(o.topic.Name)
		}
	}
	cordoned := n.cordoned()
	var fresh []opening
	onDisk := map[*logdir.Dir][]opening{}
	for _, o := range opens {
		name := logdir.Replica{Topic: o.topic.Name, Partition: o.partition}
		at, err := n.o.Dirs.Place(name, o.topic.ID, n.assignedDir(o.reg), cordoned)
		if err != nil {
			n.o.Logger.Error("replica is out of reach", "topic", name.Topic, "partition", name.Partition, "error", err)
		}
		o.at = at
		if err != nil || at.New {
			fresh = append(fresh, o)
		} else {
			onDisk[at.Dir] = append(onDisk[at.Dir], o)
		}
	}
	open := func(o opening) {
		r := n.openReplica(o, configs[o.topic.Name])
		n.mu.Lock()
		n.replicas[r.Key()] = r
		n.mu.Unlock()
		if r.Log() != nil {
			n.resumeMove(r, o.topic.ID)
		}
	}
	inParallel(waitingForDisks(), fresh, open)
	perDir(n, onDisk, open)
	n.o.Logger.Info("replicas opened", "count", len(opens))
}

// openReplica opens a replica's log where it is, or makes it. A replica whose directory does not work is there as well, but
// out of reach.
func (n *Node) openReplica(o opening, config *configdef.Topic) *replica.Replica {
	at := o.at
	options := replica.Options{
		Key:   replica.Key{TopicID: o.topic.ID, Partition: o.partition},
		Topic: o.topic.Name, Config: config, Shards: shardsOf(o.topic.Name), Dir: at.Dir,
	}
	if at.Dir == nil {
		return replica.New(n.env, options)
	}
	name := logdir.Replica{Topic: o.topic.Name, Partition: o.partition}
	highWatermark, recoveryPoint, logStart := at.Dir.Checkpointed(name)
	cleanedTo := at.Dir.CleanedTo(name)
	if at.New {
		// What was checkpointed belonged to an earlier replica of that name.
		highWatermark, recoveryPoint, logStart, cleanedTo = 0, 0, 0, 0
	}
	// The log tells of a new segment only when the replica writes to it, which it does not do before it has been made.
	var r *replica.Replica
	logOptions := n.logOptions(options.Key, name.Topic, at.Dir, config)
	logOptions.LogStartOffset, logOptions.RecoveryPoint, logOptions.CleanShutdown = logStart, recoveryPoint, at.Dir.Clean()
	logOptions.CleanedTo = cleanedTo
	logOptions.Rolled = func() { n.flushes.flush(r) }
	opened, err := n.o.OpenLog(logOptions)
	if err != nil {
		n.LogFailed(at.Dir, err)
		return replica.New(n.env, options)
	}
	options.Log, options.HighWatermark = opened, highWatermark
	r = replica.New(n.env, options)
	return r
}

// logOptions are what all logs of a node are opened with.
func (n *Node) logOptions(k replica.Key, topic string, dir *logdir.Dir, config *configdef.Topic) log.Options {
	return log.Options{
		Dir: dir.Path(), Topic: topic, Partition: k.Partition, TopicID: k.TopicID, Config: config,
		ProducerIDExpiration: n.config.Load().Duration("producer.id.expiration.ms"),
		Codecs:               n.env.Codecs, Pools: n.pools, OpenFiles: n.openFiles, Logger: n.o.Logger,
		RecoveryPointFell: n.recoveryPoints.recoveryPoints,
	}
}

// assignedDir is the log directory that the controller has for this node's replica.
func (n *Node) assignedDir(reg *metadata.Partition) uuid.UUID {
	i := slices.Index(reg.Replicas, n.o.ID)
	if i < 0 || i >= len(reg.Directories) {
		return uuid.UnassignedDir
	}
	if d := reg.Directories[i]; d != uuid.MigratingDir {
		return d
	}
	return uuid.UnassignedDir
}

// assign gives replicas their roles and waits until they have them.
func (c *change) assign(roles []opening) {
	n := c.node
	var done sync.WaitGroup
	for _, o := range roles {
		r := n.lookup(replica.Key{TopicID: o.topic.ID, Partition: o.partition})
		done.Add(1)
		r.Apply(n.o.ID, o.reg, done.Done)
		// The move of a replica tells the controller where it is, at its end at the latest; two voices would take back what
		// the other has said.
		if d := r.Dir(); d != nil && d.Err() == nil && n.moves.To(r.Key()) == nil {
			n.places.check(r.Key(), d.ID(), n.assignedDir(o.reg))
		}
	}
	done.Wait()
	if len(roles) > 0 {
		n.o.Logger.Info("replicas have their roles", "changed", len(roles), "metadata_offset", c.image.Offset())
	}
}

// brokers tells leaders that their followers' nodes have been fenced, unfenced or restarted.
func (c *change) brokers() {
	var changed []int32
	for b := range c.delta.Brokers() {
		if b.New != nil {
			changed = append(changed, b.New.ID)
		} else {
			changed = append(changed, b.Old.ID)
		}
	}
	if len(changed) == 0 {
		return
	}
	for _, r := range c.node.all() {
		v := r.View()
		if v.Leads() && slices.ContainsFunc(changed, func(id int32) bool { return slices.Contains(v.Replicas, id) }) {
			r.BrokersChanged()
		}
	}
}

// cordoned are the log directories that take no new replicas (cordoned.log.dirs).
func (n *Node) cordoned() []uuid.UUID {
	paths := n.config.Load().List("cordoned.log.dirs")
	var out []uuid.UUID
	for _, d := range n.o.Dirs.All() {
		if slices.Contains(paths, "*") || slices.ContainsFunc(paths, func(p string) bool { return sameDir(p, d.Path()) }) {
			out = append(out, d.ID())
		}
	}
	return out
}

// isCordoned says whether a log directory is among those that take no new replicas.
func isCordoned(cordoned []uuid.UUID, d *logdir.Dir) bool { return slices.Contains(cordoned, d.ID()) }

func sameDir(configured, path string) bool {
	return strings.TrimSuffix(configured, "/") == path
}

// Cordoned are the log directories that take no new replicas.
func (n *Node) Cordoned() []uuid.UUID { return n.cordoned() }

// ErrNoRole is why the node is not ready before it has applied its first image.
var ErrNoRole = errors.New("the node has not applied the cluster's metadata yet")

// Ready is nil once the replicas have had their roles for the first time.
func (n *Node) Ready() error {
	if n.AppliedOffset() < 0 {
		return ErrNoRole
	}
	return nil
}
