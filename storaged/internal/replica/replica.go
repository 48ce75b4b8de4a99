package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/partition"
	"chancery/storaged/internal/throttle"
)

// Key names a replica.
type Key struct {
	TopicID   uuid.UUID
	Partition int32
}

// Host is the node around the replicas. Its methods are called from the loops of replicas and must not wait for one.
type Host interface {
	// AlterPartition sends a proposal to the controller; the outcome goes to Altered or AlterFailed.
	AlterPartition(r *Replica, p *partition.AlterPartition)
	// StartFetching makes a follower copy from a leader, StopFetching ends it.
	StartFetching(r *Replica, from partition.FetchFrom)
	StopFetching(r *Replica)
	// PositionMoved says that a replica's log begins elsewhere, which its leader is to know if it follows.
	PositionMoved(r *Replica)
	// LogFailed says that a replica's log directory does not work.
	LogFailed(d *logdir.Dir, err error)
}

// Env is what all replicas of a node share.
type Env struct {
	Host    Host
	Machine partition.Config
	Codecs  *recordbatch.Codecs
	// HeaderOnly is record.validation=header.
	HeaderOnly bool
	// LeaderQuota bounds what followers take of throttled partitions (leader.replication.throttled.rate).
	LeaderQuota *throttle.Quota
	// Transactions is how the coordinators of transactions are asked.
	Transactions Transactions
	// Image is the newest metadata image that the node has applied.
	Image   func() metadata.Reader
	Metrics *Metrics
	Logger  *slog.Logger
	// Workers run the loops of replicas; nil makes a goroutine for each.
	Workers *Workers
	// Now is the node's clock; nil is the operating system's.
	Now func() time.Time
}

func (e *Env) now() time.Time {
	if e.Now == nil {
		return time.Now()
	}
	return e.Now()
}

// Replica is one replica.
type Replica struct {
	key   Key
	topic string
	env   *Env
	home  atomic.Pointer[home]
	// shards is the kind of shards whose state the topic holds; 0 for ordinary topics.
	shards metadata.ShardKind

	view    atomic.Pointer[View]
	waiters waitList
	box     mailbox
	reports fetchReports
	// flushMs is flush.ms, in milliseconds as in the config.
	flushMs atomic.Int64
	// leaderThrottled and followerThrottled say whether the topic's configs put this partition's copying under the quotas.
	leaderThrottled, followerThrottled atomic.Bool
	// tiered is remote.storage.enable.
	tiered atomic.Bool

	// The rest belongs to the loop.
	machine *partition.Partition
	config  *configdef.Topic
	rules   recordbatch.Rules
	failed  bool
	closed  bool
	staged  []stagedAppend
	batches []recordbatch.Batch
	acks    []waitingAck
	deletes []waitingDelete
	// verifications are the producers whose transaction is being asked about, by id.
	verifications map[int64]*verification
	vouched       vouched
}

// home is where a replica lives. It changes when the replica moves to another log directory of the node.
type home struct {
	// dir is nil when it is not known, log when the replica is out of reach, because its directory does not work.
	dir *logdir.Dir
	log *log.Log
}

// Options is what a replica is made of.
type Options struct {
	Key    Key
	Topic  string
	Dir    *logdir.Dir
	Config *configdef.Topic
	// Log is open; nil for a replica that is out of reach, because its directory does not work.
	Log           *log.Log
	HighWatermark int64
	// Shards is the kind of coordinator shards that the topic holds; 0 for ordinary topics.
	Shards metadata.ShardKind
}

// New makes a replica without a role.
func New(env *Env, o Options) *Replica {
	r := &Replica{key: o.Key, topic: o.Topic, env: env, shards: o.Shards, failed: o.Log == nil, vouched: noOneVouched}
	r.home.Store(&home{o.Dir, o.Log})
	var start, end int64
	if o.Log != nil {
		start, end = o.Log.LogStartOffset(), o.Log.LogEndOffset()
	}
	r.machine = partition.New(&env.Machine, start, o.HighWatermark, end)
	if o.Log != nil {
		o.Log.SetHighWatermark(r.machine.HighWatermark())
	}
	r.configure(o.Config)
	r.publish()
	return r
}

// Key names the replica.
func (r *Replica) Key() Key { return r.key }

// Topic is the topic's name.
func (r *Replica) Topic() string { return r.topic }

// Dir is the replica's log directory; nil when it is not known.
func (r *Replica) Dir() *logdir.Dir { return r.home.Load().dir }

// View is the present state.
func (r *Replica) View() *View { return r.view.Load() }

// Log is for readers, who must not change it; nil when the replica is out of reach. A replica that moves to another log
// directory has another log from then on, and the former one is closed.
func (r *Replica) Log() *log.Log { return r.home.Load().log }

// Producers are the producers that the log knows.
func (r *Replica) Producers() []log.Producer { return r.Log().ActiveProducers() }

func (r *Replica) String() string { return fmt.Sprintf("%s-%d", r.topic, r.key.Partition) }

// Apply takes a registration of the partition in. done is called when the replica has its role.
func (r *Replica) Apply(self int32, reg *metadata.Partition, done func()) {
	r.post(event{do: func() {
		defer done()
		if r.closed || r.failed {
			return
		}
		before := *r.View()
		var out partition.Effects
		now := r.env.now()
		if reg.Leader == self {
			out = r.machine.BecomeLeader(now, reg, r.config.MinInsyncReplicas)
		} else {
			out = r.machine.BecomeFollower(reg)
		}
		r.apply(out)
		if v := r.View(); v.LeaderEpoch != before.LeaderEpoch || v.Role != before.Role {
			r.forgetTier()
			r.env.Logger.Debug("replica has a new role", "partition", r.String(), "leader", v.Leader, "epoch", v.LeaderEpoch,
				"leads", v.Leads(), "log_end", v.LogEnd, "high_watermark", v.HighWatermark)
		}
	}})
}

func (r *Replica) configure(c *configdef.Topic) {
	r.config = c
	r.flushMs.Store(min(c.FlushMs, math.MaxInt64/int64(time.Millisecond)))
	r.leaderThrottled.Store(r.throttledBy(c.LeaderThrottledReplicas))
	r.followerThrottled.Store(r.throttledBy(c.FollowerThrottledReplicas))
	r.tiered.Store(c.RemoteStorageEnable)
	r.makeRules()
}

// throttledBy says whether a list of throttled replicas, which are partition:broker or * for all, has this one.
func (r *Replica) throttledBy(list []string) bool {
	if len(list) == 0 {
		return false
	}
	return list[0] == "*" || slices.Contains(list, fmt.Sprintf("%d:%d", r.key.Partition, r.env.Machine.Self))
}

// Configure changes the topic's configs.
func (r *Replica) Configure(c *configdef.Topic) {
	r.post(event{do: func() {
		r.configure(c)
		if r.usable() {
			r.Log().SetConfig(c)
			if !c.RemoteStorageEnable {
				// What is remote may be deleted now. Should the topic be tiered again, what is there then has to be told anew.
				r.forgetTier()
			}
			if moved, err := r.Log().DropRemote(); err != nil {
				r.fail(fmt.Errorf("leave the remote tier: %w", err))
				return
			} else if moved {
				r.startMoved()
			}
			now := r.env.now()
			r.apply(r.machine.SetMinISR(now, c.MinInsyncReplicas))
		}
	}})
}

// BrokersChanged says that the image has news about storage nodes.
func (r *Replica) BrokersChanged() {
	r.post(event{do: func() {
		now := r.env.now()
		r.apply(r.machine.BrokersChanged(now))
	}})
}

// Tick looks for followers that lag.
func (r *Replica) Tick() {
	r.post(event{do: func() {
		now := r.env.now()
		r.apply(r.machine.Tick(now))
	}})
}

// Altered brings the controller's agreement.
func (r *Replica) Altered(p *partition.AlterPartition, a partition.Altered) {
	r.post(event{do: func() {
		now := r.env.now()
		r.apply(r.machine.AlterPartitionDone(now, p, a))
	}})
}

// AlterFailed brings the controller's refusal, or the failure to reach it.
func (r *Replica) AlterFailed(p *partition.AlterPartition, code errcode.Code) {
	r.env.Metrics.FailedISRUpdates.Add(1)
	r.post(event{do: func() {
		now := r.env.now()
		r.apply(r.machine.AlterPartitionFailed(now, p, code))
	}})
}

// usable says whether the log may be written to.
func (r *Replica) usable() bool { return r.Log() != nil && !r.failed && !r.closed }

// apply carries out what the machine asks for, in the order that partition.Effects gives.
func (r *Replica) apply(out partition.Effects) {
	if out.AssignEpoch != nil {
		if err := r.Log().AssignEpochStart(out.AssignEpoch.Epoch, out.AssignEpoch.Offset); err != nil {
			r.fail(fmt.Errorf("note leader epoch: %w", err))
			return
		}
	}
	if out.StopFetching {
		r.env.Host.StopFetching(r)
	}
	if out.Fetch != nil {
		r.env.Host.StartFetching(r, *out.Fetch)
	}
	if out.HighWatermarkMoved {
		r.Log().SetHighWatermark(r.machine.HighWatermark())
	}
	r.publish()
	if out.HighWatermarkMoved {
		r.acknowledge()
	}
	if out.FailAcks != errcode.None {
		r.failWaiting(out.FailAcks)
	}
	if out.ISRGrowth != 0 {
		r.noteISR(out.ISRGrowth)
	}
	if out.AlterPartition != nil {
		r.env.Host.AlterPartition(r, out.AlterPartition)
	}
	if out.LowWatermarkMoved || out.LookAgain {
		r.finishDeletes()
	}
}

// noteISR counts and logs a change of the ISR.
func (r *Replica) noteISR(growth int) {
	r.env.Metrics.ISRExpands.Add(int64(max(growth, 0)))
	r.env.Metrics.ISRShrinks.Add(int64(max(-growth, 0)))
	v := r.View()
	r.env.Logger.Info("in-sync replicas changed", "partition", r.String(), "isr", v.ISR, "partition_epoch", v.PartitionEpoch)
}

// fail takes the replica out of service because its log does not work.
func (r *Replica) fail(err error) {
	if r.failed {
		return
	}
	r.env.Host.LogFailed(r.Dir(), fmt.Errorf("replica %s: %w", r, err))
	r.goOffline()
}

// GoOffline says that a log directory has failed, which is the replica's unless it has moved meanwhile.
func (r *Replica) GoOffline(d *logdir.Dir) {
	r.post(event{do: func() {
		if r.Dir() == d {
			r.goOffline()
		}
	}})
}

func (r *Replica) goOffline() {
	if r.failed {
		return
	}
	r.failed = true
	out := r.machine.GoOffline(errcode.KafkaStorageError)
	r.apply(out)
	r.failWaiting(errcode.KafkaStorageError)
}

// Close ends the replica's work: waiting requests are answered, and the log is flushed and closed, or deleted.
func (r *Replica) Close(remove bool) error {
	var err error
	r.Do(func() {
		if r.closed {
			return
		}
		code := errcode.NotLeaderOrFollower
		if remove {
			code = errcode.UnknownTopicOrPartition
		}
		r.apply(r.machine.GoOffline(code))
		r.failWaiting(code)
		usable := r.usable()
		r.closed = true
		switch {
		case r.Log() == nil:
		case !usable:
			r.Log().Abandon()
		case remove:
			err = r.Log().Delete()
		default:
			err = r.Log().Close()
		}
	})
	return err
}

// Retain deletes what the topic's retention allows, and forgets verifications that are over.
func (r *Replica) Retain(now time.Time) {
	r.Do(func() {
		if !r.usable() {
			return
		}
		r.expireVerifications(now)
		r.deleteRetired(now)
	})
}

func (r *Replica) deleteRetired(now time.Time) {
	moved, err := r.Log().DeleteRetired(now)
	switch {
	case err != nil:
		r.fail(fmt.Errorf("retention: %w", err))
	case moved:
		r.startMoved()
	case r.Log().LocalLogStartOffset() != r.View().LocalStart:
		r.publish()
	}
}

// startMoved takes in that the log begins at a later offset.
func (r *Replica) startMoved() {
	r.machine.LogStartMoved(r.Log().LogStartOffset())
	r.apply(partition.Effects{LowWatermarkMoved: true})
	r.env.Host.PositionMoved(r)
}

// FlushDue makes the log durable when flush.ms have passed since the last time. Appends go on meanwhile.
func (r *Replica) FlushDue(now time.Time) {
	if r.Log() != nil && now.Sub(r.Log().LastFlush()) >= time.Duration(r.flushMs.Load())*time.Millisecond {
		r.Flush()
	}
}

// Flush makes the log durable. Appends go on meanwhile.
func (r *Replica) Flush() {
	if r.Log() == nil || r.View().Failed {
		return
	}
	if err := r.Log().Flush(); err != nil && !errors.Is(err, log.ErrClosed) {
		r.post(event{do: func() { r.fail(fmt.Errorf("flush: %w", err)) }})
	}
}

// Readable gives the in-sync replicas that hold an offset, with their log ends; this one is among them.
func (r *Replica) Readable(offset int64) map[int32]int64 {
	out := map[int32]int64{}
	r.Do(func() {
		if r.machine.Role() != partition.Leading {
			return
		}
		r.machine.Readable(offset, func(id int32, end int64, _ time.Time) { out[id] = end })
		out[r.env.Machine.Self] = r.machine.LogEnd()
	})
	return out
}

// forget drops what the loop keeps between events, so that an idle replica is small. It runs while the mailbox is locked.
func (r *Replica) forget() {
	r.staged, r.batches = nil, nil
	if len(r.acks) == 0 {
		r.acks = nil
	}
}

// fetchReports are the newest fetches of followers that the loop has been told of, so that fetches that say nothing new
// need no event.
type fetchReports struct {
	mu      sync.Mutex
	entries []fetchReport
}

type fetchReport struct {
	replica     int32
	brokerEpoch int64
	leaderEpoch int32
	offset      int64
	logStart    int64
	caughtUp    bool
	at          time.Time
}

// reportEvery bounds how old the time of a follower's last fetch may be, which its lag is measured from.
const reportEvery = time.Second

// Fetched says that a follower has fetched.
func (r *Replica) Fetched(f partition.FollowerFetch) {
	n := fetchReport{f.Replica, f.BrokerEpoch, f.LeaderEpoch, f.FetchOffset, f.LogStart, f.FetchOffset >= f.LeaderEnd, f.At}
	l := &r.reports
	l.mu.Lock()
	i := slices.IndexFunc(l.entries, func(e fetchReport) bool { return e.replica == f.Replica })
	if i < 0 {
		l.entries = append(l.entries, n)
	} else {
		old := l.entries[i]
		sameBut := n
		sameBut.at = old.at
		if old == sameBut && n.caughtUp && f.At.Sub(old.at) < reportEvery {
			l.mu.Unlock()
			return
		}
		l.entries[i] = n
	}
	l.mu.Unlock()
	r.post(event{fetched: f, hasFetched: true})
}

func (r *Replica) followerFetched(f partition.FollowerFetch) {
	now := r.env.now()
	before := r.machine.HighWatermark()
	out := r.machine.FollowerFetched(now, f)
	if !out.HighWatermarkMoved && out.AlterPartition == nil && !out.LowWatermarkMoved && before == r.machine.HighWatermark() {
		return
	}
	r.apply(out)
}
