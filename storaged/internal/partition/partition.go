package partition

import (
	"slices"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// Role is what a replica does for its partition.
type Role int8

// The roles.
const (
	// Idle holds a log but neither leads nor follows: no leader is known, or the log is offline.
	Idle Role = iota
	// Leading takes appends and serves followers.
	Leading
	// Following copies from the leader.
	Following
)

// UnknownOffset is the end or start of a follower's log before its first fetch.
const UnknownOffset int64 = -1

// BrokerState is what the metadata image says about a storage node.
type BrokerState struct {
	Epoch        int64
	Fenced       bool
	ShuttingDown bool
}

// Config is what a replica's machine is made with.
type Config struct {
	// Self is the id of the node that holds the replica.
	Self int32
	// ReplicaLagTimeMax is how long a follower may lag before it leaves the ISR (replica.lag.time.max.ms).
	ReplicaLagTimeMax time.Duration
	// Broker looks a storage node up in the newest metadata image; false when it is not registered.
	Broker func(id int32) (BrokerState, bool)
	// LastContact is when a node last fetched anything from this one; zero for never. A follower that has everything says so once,
	// and from then on counts as caught up at each of its node's fetches. Without the function it counts only when it fetches.
	LastContact func(id int32) time.Time
	// SelfEpoch is the broker epoch of this node, which the controller checks in ISR changes.
	SelfEpoch func() int64
}

// Partition is the machine. It belongs to one caller at a time.
type Partition struct {
	config *Config

	role           Role
	leader         int32
	leaderEpoch    int32
	partitionEpoch int32
	// epochStart is the log end at the moment when this replica became leader in its epoch: a follower that has not reached
	// it may lack committed records of earlier epochs.
	epochStart int64
	minISR     int

	replicas  []int32
	isr       []int32
	adding    []int32
	pending   *AlterPartition
	followers []follower

	logStart      int64
	highWatermark int64
	logEnd        int64
}

// New makes the machine of a replica whose log has been opened. The high watermark is the checkpointed one, which is
// brought into the bounds of the log. The config is shared and must not change.
func New(config *Config, logStart, highWatermark, logEnd int64) *Partition {
	return &Partition{
		config:         config,
		leader:         metadata.NoLeader,
		leaderEpoch:    -1,
		partitionEpoch: -1,
		logStart:       logStart,
		highWatermark:  min(max(highWatermark, logStart), logEnd),
		logEnd:         logEnd,
		minISR:         1,
	}
}

// Role is what the replica does at present.
func (p *Partition) Role() Role { return p.role }

// Leader is the id of the leader, or metadata.NoLeader.
func (p *Partition) Leader() int32 { return p.leader }

// LeaderEpoch is the epoch of the leader; -1 before the first.
func (p *Partition) LeaderEpoch() int32 { return p.leaderEpoch }

// PartitionEpoch is the epoch of the newest registration known; -1 before the first.
func (p *Partition) PartitionEpoch() int32 { return p.partitionEpoch }

// EpochStart is the end of the leader's log when its epoch began; only a leader has one.
func (p *Partition) EpochStart() int64 { return p.epochStart }

// HighWatermark is the offset below which records are committed, as far as is known here.
func (p *Partition) HighWatermark() int64 { return p.highWatermark }

// LogEnd is the offset of the next record.
func (p *Partition) LogEnd() int64 { return p.logEnd }

// LogStart is the offset of the first record that may be read.
func (p *Partition) LogStart() int64 { return p.logStart }

// ISR are the committed in-sync replicas; only a leader knows them. The slice is never changed in place.
func (p *Partition) ISR() []int32 { return p.isr }

// Replicas are the assigned replicas. The slice is never changed in place.
func (p *Partition) Replicas() []int32 { return p.replicas }

// IsAdding says whether a replica is being added by a reassignment.
func (p *Partition) IsAdding(replica int32) bool { return slices.Contains(p.adding, replica) }

// UnderReplicated says whether a leader has replicas outside its ISR.
func (p *Partition) UnderReplicated() bool {
	return p.role == Leading && len(p.isr) < len(p.replicas)
}

// UnderMinISR says whether a leader has fewer replicas in sync than acks=all asks for.
func (p *Partition) UnderMinISR() bool {
	return p.role == Leading && len(p.isr) < p.effectiveMinISR()
}

// AtMinISR says whether losing one more in-sync replica would stop writes with acks=all.
func (p *Partition) AtMinISR() bool {
	return p.role == Leading && len(p.isr) == p.effectiveMinISR()
}

// effectiveMinISR does not ask for more replicas than there are: min.insync.replicas above the replication factor would
// otherwise block a topic for ever.
func (p *Partition) effectiveMinISR() int { return min(p.minISR, len(p.followers)+1) }

// BecomeLeader makes the replica the leader, or tells a leader of a newer registration of its partition.
func (p *Partition) BecomeLeader(now time.Time, reg *metadata.Partition, minISR int) Effects {
	if reg.PartitionEpoch < p.partitionEpoch {
		// The answer to an AlterPartition overtook the metadata log.
		return Effects{}
	}
	var out Effects
	wasLeading := p.role == Leading
	newEpoch := reg.LeaderEpoch > p.leaderEpoch
	if p.role == Following {
		out.StopFetching = true
	}
	if wasLeading {
		// The metadata log may be faster than the controller's answer to this leader's own proposal.
		out.ISRGrowth = len(reg.ISR) - len(p.isr)
	}
	p.role, p.leader = Leading, p.config.Self
	p.minISR = minISR
	if !wasLeading || newEpoch || reg.PartitionEpoch > p.partitionEpoch {
		// A registration that an answer of the controller has told before says nothing about what was proposed since, which may
		// have been agreed to already.
		p.pending = nil
	}
	p.partitionEpoch = reg.PartitionEpoch
	p.replicas, p.isr, p.adding = reg.Replicas, reg.ISR, reg.AddingReplicas
	p.assignFollowers(reg.Replicas)
	if newEpoch || !wasLeading {
		p.leaderEpoch, p.epochStart = reg.LeaderEpoch, p.logEnd
		// Followers may have records of epochs that this log has never seen. They can find where to cut only if the new
		// epoch and its start are known before the first fetch.
		out.AssignEpoch = &EpochStart{Epoch: p.leaderEpoch, Offset: p.epochStart}
		for i := range p.followers {
			p.followers[i].reset(now, p.logEnd, !wasLeading, slices.Contains(p.isr, p.followers[i].id))
		}
		// Appends of an earlier epoch of this same leader go on waiting: the log was not cut.
		out.LookAgain = true
	}
	p.advance(now, &out)
	return out
}

// BecomeFollower makes the replica follow the registration's leader; without a leader, or with this node named as one
// that is not to lead, it stands idle.
func (p *Partition) BecomeFollower(reg *metadata.Partition) Effects {
	if reg.PartitionEpoch < p.partitionEpoch {
		return Effects{}
	}
	var out Effects
	newEpoch := reg.LeaderEpoch > p.leaderEpoch
	if p.role == Leading {
		out.FailAcks = errcode.NotLeaderOrFollower
	}
	before, leaderBefore := p.role, p.leader
	p.role, p.leader = Following, reg.Leader
	if reg.Leader == metadata.NoLeader {
		p.role = Idle
	}
	p.leaderEpoch, p.partitionEpoch = reg.LeaderEpoch, reg.PartitionEpoch
	p.replicas, p.adding = reg.Replicas, reg.AddingReplicas
	p.isr, p.pending, p.followers = nil, nil, nil
	out.LookAgain = newEpoch || before != p.role || leaderBefore != p.leader
	switch {
	case p.role == Following && out.LookAgain:
		// The fetcher starts anew with each epoch, so that no answer from an earlier one is appended.
		out.Fetch = &FetchFrom{Leader: p.leader, LeaderEpoch: p.leaderEpoch}
	case p.role == Idle && before == Following:
		out.StopFetching = true
	}
	return out
}

// GoOffline ends the replica's role, because its log can no longer be used or is going to be deleted. Waiting
// acknowledgements fail with why.
func (p *Partition) GoOffline(why errcode.Code) Effects {
	var out Effects
	if p.role == Leading {
		out.FailAcks = why
	}
	if p.role == Following {
		out.StopFetching = true
	}
	p.role, p.leader = Idle, metadata.NoLeader
	p.isr, p.pending, p.followers = nil, nil, nil
	out.LookAgain = true
	return out
}

// LogStartMoved says that the log now begins at an offset: records were deleted.
func (p *Partition) LogStartMoved(logStart int64) {
	p.logStart = min(max(p.logStart, logStart), p.logEnd)
	p.highWatermark = max(p.highWatermark, p.logStart)
}
