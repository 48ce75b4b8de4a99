package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/clients/transactionclient"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/storaged/internal/cleaner"
	"chancery/storaged/internal/fetcher"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/mover"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/replica"
)

// Controller sends requests to the active controller.
type Controller interface {
	Request(ctx context.Context, req kmsg.Request, from controllerclient.Sender) (kmsg.Response, error)
}

// Options is what a node is made of.
type Options struct {
	ID     int32
	Dirs   *logdir.Set
	Static *configdef.Node
	// Epoch is the node's broker epoch; -1 while it is not registered.
	Epoch      func() int64
	Nodes      func(id int32) (storage.Node, error)
	Controller Controller
	// FS is what logs are moved on; nil means the operating system's.
	FS vfs.FS
	// Coordinators are where transactions are verified; nil verifies none, and refuses what would have to be.
	Coordinators transactionclient.Coordinators
	// OpenLog opens a replica's log; nil opens the one on disk.
	OpenLog func(log.Options) (*log.Log, error)
	// DirectoryFailed is told when a log directory has gone offline, Fatal when there is none left.
	DirectoryFailed func()
	Fatal           func(error)
	// Applied is told when an image has been applied.
	Applied func()
	// LogLevel is what the broker-logger resource shows and alters; nil when the level cannot be changed.
	LogLevel *slog.LevelVar
	Logger   *slog.Logger
}

// Node is the replicas of a storage node. It is a storage.Node, a metadata.Publisher and the replicas' Host.
type Node struct {
	o       Options
	env     *replica.Env
	metrics *replica.Metrics
	config  atomic.Pointer[configdef.Node]
	// rackAware says that consumers are sent to replicas in their own rack.
	rackAware bool

	newest  atomic.Pointer[metadata.Image]
	applied appliedImage
	held    heldAppends

	mu       sync.RWMutex
	replicas map[replica.Key]*replica.Replica

	publishing publishing
	fetchers   *fetcher.Set
	sessions   sessions
	flushes    *flusher
	isr        *isrSender
	places     *placeSender
	moves      *mover.Set
	quotas     quotas
	verifier   *transactionclient.Client
	waiting    waitingCounts
	pools      *log.Pools
	openFiles  *log.OpenFiles
	// describing has a place for each segment that may be checked at a time.
	describing chan struct{}
	cleaner    *cleaner.Cleaner
	// cleaning says that the cleaner has been started.
	cleaning atomic.Bool
	// checkpoints writes the cleaner's offsets, from several of its threads.
	checkpoints *checkpointWriter
	// recoveryPoints writes those of all logs, also when one of them has fallen.
	recoveryPoints *checkpointWriter
	// opened says that all replicas which the first image had have been opened.
	opened atomic.Bool

	stopping chan struct{}
	tasks    sync.WaitGroup
	cancel   context.CancelFunc
}

// waitingCounts is how many requests wait, by what they wait for.
type waitingCounts struct {
	fetches, metadata atomic.Int64
}

var (
	_ storage.Node       = (*Node)(nil)
	_ metadata.Publisher = (*Node)(nil)
	_ replica.Host       = (*Node)(nil)
)

// keptLoops is how many goroutines wait for the next replica that has something to do.
const keptLoops = 32

// rackAwareSelector is the replica.selector.class that Kafka comes with.
const rackAwareSelector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

// A log that keeps its files open has up to three, so that logs take three quarters of what the process may open, and the
// rest is for connections, reads and the moment when segments change.
const (
	filesPerLog   = 4
	leastKeptLogs = 16
)

// New makes a node without replicas.
func New(o Options) *Node {
	if o.OpenLog == nil {
		o.OpenLog = log.Open
	}
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	n := &Node{
		o: o, metrics: &replica.Metrics{}, replicas: map[replica.Key]*replica.Replica{}, stopping: make(chan struct{}), pools: &log.Pools{},
		openFiles:  log.NewOpenFiles(max(leastKeptLogs, vfs.MaxOpenFiles()/filesPerLog)),
		describing: make(chan struct{}, maxDescribing),
		rackAware:  o.Static.String("replica.selector.class") == rackAwareSelector,
	}
	empty := metadata.Empty(o.Dirs.ClusterID())
	n.newest.Store(empty)
	n.applied.init(empty)
	n.publishing.base = empty
	n.config.Store(o.Static)
	n.quotas = newQuotas(o.Static)
	n.verifier = transactionclient.New(transactionclient.Config{
		Image:           func() metadata.Reader { return n.newest.Load() },
		Coordinators:    coordinatorsOf(o),
		Timeout:         o.Static.Duration("request.timeout.ms"),
		RetryBackoff:    o.Static.Duration("add.partitions.to.txn.retry.backoff.ms"),
		RetryBackoffMax: o.Static.Duration("add.partitions.to.txn.retry.backoff.max.ms"),
		Logger:          o.Logger,
	})
	n.env = &replica.Env{
		Transactions: replica.Transactions{
			Ask:    n.verifier.Ask,
			Verify: func() bool { return n.config.Load().Bool("transaction.partition.verification.enable") },
		},
		Host: n,
		Machine: partition.Config{
			Self:              o.ID,
			ReplicaLagTimeMax: o.Static.Duration("replica.lag.time.max.ms"),
			Broker:            n.brokerState,
			LastContact:       n.sessions.lastContact,
			SelfEpoch:         o.Epoch,
		},
		Codecs:      recordbatch.NewCodecs(),
		LeaderQuota: n.quotas.leader,
		HeaderOnly:  o.Static.String("record.validation") == "header",
		Image:       func() metadata.Reader { return n.newest.Load() },
		Metrics:     n.metrics,
		Logger:      o.Logger,
		Workers:     replica.NewWorkers(keptLoops),
	}
	n.fetchers = fetcher.New(fetcher.Config{
		Self:         o.ID,
		Epoch:        o.Epoch,
		Nodes:        o.Nodes,
		BehindRemote: func() bool { return n.config.Load().Bool("follower.fetch.last.tiered.offset.enable") },
		// A follower's role comes out of the newest image, so that is what its leader has to know.
		MetadataOffset:    func() int64 { return n.newest.Load().Offset() },
		Fetchers:          o.Static.Int("num.replica.fetchers"),
		MaxWait:           o.Static.Duration("replica.fetch.wait.max.ms"),
		MinBytes:          o.Static.Int("replica.fetch.min.bytes"),
		ResponseMaxBytes:  o.Static.Int("replica.fetch.response.max.bytes"),
		PartitionMaxBytes: o.Static.Int("replica.fetch.max.bytes"),
		Backoff:           o.Static.Duration("replica.fetch.backoff.ms"),
		Timeout:           o.Static.Duration("replica.socket.timeout.ms"),
		Quota:             n.quotas.follower,
		Metrics:           n.metrics,
		Logger:            o.Logger,
	})
	n.flushes = newFlusher()
	n.checkpoints = &checkpointWriter{node: n}
	n.recoveryPoints = &checkpointWriter{node: n}
	n.cleaner = newCleaner(n)
	n.isr = newISRSender(n)
	n.places = newPlaceSender(n)
	n.moves = newMoves(n)
	return n
}

func coordinatorsOf(o Options) transactionclient.Coordinators {
	if o.Coordinators == nil {
		return noCoordinators{}
	}
	return o.Coordinators
}

// noCoordinators cannot be asked.
type noCoordinators struct{}

// Handle is part of transactionclient.Coordinators.
func (noCoordinators) Handle(context.Context, metadata.ShardKind, int32, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	return nil, errcode.CoordinatorNotAvailable.Errorf("this node knows no coordinators")
}

// Start begins the work that is done from time to time.
func (n *Node) Start(ctx context.Context) {
	// The context bounds the start only.
	ctx, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	n.startTasks(ctx)
}

// Stop ends the copying, answers what waits, closes the logs and writes the checkpoints. The node must not lead any more, or
// not be able to help it.
func (n *Node) Stop() {
	close(n.stopping)
	n.publishing.mu.Lock()
	n.publishing.stopped = true
	n.publishing.mu.Unlock()
	n.cancel()
	n.tasks.Wait()
	n.cleaner.Stop()
	n.fetchers.Close()
	n.moves.Close()
	n.isr.close()
	n.places.close()
	n.verifier.Close()
	n.flushes.close()
	all := n.all()
	// The high watermarks go first: they are what a crash in the middle of closing would miss most.
	n.checkpointHighWatermarks()
	byDir := map[*logdir.Dir][]*replica.Replica{}
	for _, r := range all {
		byDir[r.Dir()] = append(byDir[r.Dir()], r)
	}
	perDir(n, byDir, func(r *replica.Replica) {
		if err := r.Close(false); err != nil {
			n.LogFailed(r.Dir(), err)
		}
	})
	n.checkpointLogs()
	n.env.Workers.Close()
}

// brokerState is what the newest image says about a storage node.
func (n *Node) brokerState(id int32) (partition.BrokerState, bool) {
	b := n.newest.Load().Broker(id)
	if b == nil {
		return partition.BrokerState{}, false
	}
	return partition.BrokerState{Epoch: b.Epoch, Fenced: b.Fenced, ShuttingDown: b.InControlledShutdown}, true
}

// AppliedOffset is the metadata offset that every replica has taken in; -1 for none.
func (n *Node) AppliedOffset() int64 { return n.applied.load().Offset() }

// Metrics are the counters of the node's replicas.
func (n *Node) Metrics() *replica.Metrics { return n.metrics }

// Waiting is how many fetches wait for records, and how many requests for the metadata image.
func (n *Node) Waiting() (fetches, metadata int64) {
	return n.waiting.fetches.Load(), n.waiting.metadata.Load() + n.held.count.Load()
}

// Replicas are all replicas of the node, in no order.
func (n *Node) Replicas() []*replica.Replica { return n.all() }

func (n *Node) all() []*replica.Replica {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]*replica.Replica, 0, len(n.replicas))
	for _, r := range n.replicas {
		out = append(out, r)
	}
	return out
}

func (n *Node) lookup(k replica.Key) *replica.Replica {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.replicas[k]
}

// find gives the replica of a partition, or why there is none, with who leads as far as the image tells.
func (n *Node) find(k replica.Key) (*replica.Replica, errcode.Code, storage.CurrentLeader) {
	if r := n.lookup(k); r != nil {
		return r, errcode.None, storage.NoLeader
	}
	image := n.applied.load()
	if image.Topic(k.TopicID) == nil {
		return nil, errcode.UnknownTopicId, storage.NoLeader
	}
	p := image.Partition(k.TopicID, k.Partition)
	if p == nil {
		return nil, errcode.UnknownTopicOrPartition, storage.NoLeader
	}
	return nil, errcode.NotLeaderOrFollower, storage.CurrentLeader{ID: p.Leader, Epoch: p.LeaderEpoch}
}

// AlterPartition is part of replica.Host.
func (n *Node) AlterPartition(r *replica.Replica, p *partition.AlterPartition) { n.isr.add(r, p) }

// StartFetching is part of replica.Host.
func (n *Node) StartFetching(r *replica.Replica, from partition.FetchFrom) { n.fetchers.Start(r, from) }

// StopFetching is part of replica.Host.
func (n *Node) StopFetching(r *replica.Replica) { n.fetchers.Stop(r.Key()) }

// PositionMoved is part of replica.Host.
func (n *Node) PositionMoved(r *replica.Replica) { n.fetchers.Touch(r.Key()) }

// LogFailed is part of replica.Host: a log directory that has failed once is not used again.
func (n *Node) LogFailed(d *logdir.Dir, err error) {
	if !d.Fail(err) {
		return
	}
	n.o.Logger.Error("log directory is offline", "dir", d.Path(), "error", err)
	for _, r := range n.all() {
		if r.Dir() == d {
			r.GoOffline(d)
		}
	}
	n.moves.DirFailed(d)
	n.o.DirectoryFailed()
	if len(n.o.Dirs.Online()) == 0 {
		n.o.Fatal(errors.New("no log directory can be used any more"))
	}
}

// appliedImage is the image that every replica has taken in, and those who wait for a later one.
type appliedImage struct {
	image atomic.Pointer[metadata.Image]
	mu    sync.Mutex
	next  chan struct{}
}

func (a *appliedImage) init(i *metadata.Image) {
	a.image.Store(i)
	a.next = make(chan struct{})
}

func (a *appliedImage) load() *metadata.Image { return a.image.Load() }

func (a *appliedImage) set(i *metadata.Image) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.image.Store(i)
	close(a.next)
	a.next = make(chan struct{})
}

// await waits until the image is at an offset; false when the context or the time ended before.
func (n *Node) await(ctx context.Context, offset int64, timeout time.Duration) bool {
	if n.applied.load().Offset() >= offset {
		return true
	}
	n.waiting.metadata.Add(1)
	defer n.waiting.metadata.Add(-1)
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		n.applied.mu.Lock()
		reached, next := n.applied.load().Offset() >= offset, n.applied.next
		n.applied.mu.Unlock()
		if reached {
			return true
		}
		select {
		case <-next:
		case <-t.C:
			return false
		case <-ctx.Done():
			return false
		case <-n.stopping:
			return false
		}
	}
}

func keyOf(topicID []byte, partition int32) (replica.Key, bool) {
	id, ok := uuid.FromBytes(topicID)
	return replica.Key{TopicID: id, Partition: partition}, ok
}
