package partition

import (
	"slices"
	"time"

	"chancery/services/kafka/errcode"
)

// inMaximalISR says whether a replica is in the ISR or on its way into it.
func (p *Partition) inMaximalISR(id int32) bool {
	return slices.Contains(p.isr, id) || p.pending != nil && p.pending.Added == id
}

// mayJoin says whether the controller would take a follower into the ISR: its node is registered, unfenced, not about to
// stop, and the same incarnation as the one that fetched.
func (p *Partition) mayJoin(f *follower) bool {
	b, ok := p.config.Broker(f.id)
	return ok && !b.Fenced && !b.ShuttingDown && f.known && (f.epoch == -1 || f.epoch == b.Epoch)
}

// maybeExpandISR asks for a follower to be taken in once it has every record that may be committed: those below the
// high watermark and those from before this leader's epoch, which earlier leaders may have committed.
func (p *Partition) maybeExpandISR(f *follower, out *Effects) {
	if p.pending != nil || slices.Contains(p.isr, f.id) {
		return
	}
	if f.logEnd < p.highWatermark || f.logEnd < p.epochStart || !p.mayJoin(f) {
		return
	}
	p.propose(append(slices.Clone(p.isr), f.id), f.id, out)
}

// expandISR looks for a follower that has been ready to join for a while: one proposal had to end first, or the controller
// had to unfence the follower's node.
func (p *Partition) expandISR(out *Effects) {
	for i := range p.followers {
		if f := &p.followers[i]; f.known {
			p.maybeExpandISR(f, out)
		}
	}
}

// Tick looks for followers that have lagged for too long and asks for their removal from the ISR. If there are none, it looks for
// one that may join: an earlier proposal may have come to nothing, and a follower that has everything does not fetch anew.
func (p *Partition) Tick(now time.Time) Effects {
	var out Effects
	// A follower that is not in the ISR holds the high watermark back only until it lags; followers that have everything
	// already do not fetch anew to make that seen.
	p.advance(now, &out)
	if p.role != Leading || p.pending != nil {
		return out
	}
	var keep []int32
	for _, id := range p.isr {
		if id == p.config.Self {
			keep = append(keep, id)
			continue
		}
		if f := p.follower(id); f != nil && f.isCaughtUp(now, p.logEnd, p.config.ReplicaLagTimeMax) {
			keep = append(keep, id)
		}
	}
	if len(keep) < len(p.isr) {
		p.propose(keep, -1, &out)
		return out
	}
	p.expandISR(&out)
	return out
}

func (p *Partition) propose(isr []int32, added int32, out *Effects) {
	members := make([]Member, len(isr))
	for i, id := range isr {
		members[i] = Member{ID: id, BrokerEpoch: -1}
		if id == p.config.Self {
			members[i].BrokerEpoch = p.config.SelfEpoch()
		} else if f := p.follower(id); f != nil && f.known {
			members[i].BrokerEpoch = f.epoch
		}
	}
	p.pending = &AlterPartition{LeaderEpoch: p.leaderEpoch, PartitionEpoch: p.partitionEpoch, ISR: members, Added: added}
	out.AlterPartition = p.pending
}

// Altered is the controller's answer to an AlterPartition that it has carried out.
type Altered struct {
	LeaderEpoch    int32
	PartitionEpoch int32
	ISR            []int32
}

// AlterPartitionDone takes the controller's agreement in. The answer to a proposal that is not the present one says
// nothing: a newer registration has come meanwhile.
func (p *Partition) AlterPartitionDone(now time.Time, proposal *AlterPartition, answer Altered) Effects {
	var out Effects
	if p.role != Leading || p.pending != proposal {
		return out
	}
	if answer.LeaderEpoch != p.leaderEpoch || answer.PartitionEpoch < p.partitionEpoch {
		return out
	}
	out.ISRGrowth = len(answer.ISR) - len(p.isr)
	p.isr, p.pending = answer.ISR, nil
	p.partitionEpoch = answer.PartitionEpoch
	p.advance(now, &out)
	p.expandISR(&out)
	return out
}

// AlterPartitionFailed takes the controller's refusal, or the failure to reach it, in.
func (p *Partition) AlterPartitionFailed(now time.Time, proposal *AlterPartition, code errcode.Code) Effects {
	var out Effects
	if p.role != Leading || p.pending != proposal {
		return out
	}
	switch code {
	case errcode.OperationNotAttempted, errcode.IneligibleReplica:
		// The controller says that the partition epoch is right and nothing was changed, so nobody else can have changed
		// it on behalf of this proposal either: the committed state stands. The high watermark may have waited for the replica
		// that would have joined, which may be gone for good, while the others have nothing new to fetch.
		p.pending = nil
		p.advance(now, &out)
	case errcode.UnknownTopicOrPartition, errcode.UnknownTopicId, errcode.FencedLeaderEpoch,
		errcode.InvalidUpdateVersion, errcode.InvalidRequest, errcode.NewLeaderElected:
		// The controller knows better than this replica, which waits, with the stricter of both states, for the
		// metadata log to tell.
	default:
		// Whether it was carried out is unknown. Asking again with the same partition epoch is harmless.
		out.AlterPartition = proposal
	}
	return out
}
