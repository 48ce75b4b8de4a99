package partition

import (
	"slices"
	"time"

	"chancery/services/kafka/errcode"
)

// follower is what a leader knows of another replica.
type follower struct {
	id int32
	// epoch is the broker epoch that its fetches carry; known says whether it has fetched in this leader's time.
	epoch    int64
	known    bool
	logStart int64
	logEnd   int64
	// lastFetch is when it fetched last, and leaderEndThen where the leader's log ended at that moment.
	lastFetch     time.Time
	leaderEndThen int64
	// caughtUp is the newest moment at which the follower had everything that the leader had. A follower that always lags
	// by what arrives during one round trip still counts as caught up at the time of its previous fetch.
	caughtUp time.Time
}

// reset prepares a follower for a new leader epoch. One outside the ISR is not given credit for having been caught up, so
// that it does not hold the high watermark back.
func (f *follower) reset(now time.Time, leaderEnd int64, newLeader, inSync bool) {
	var credit time.Time
	if inSync {
		credit = now
	}
	f.caughtUp = credit
	if newLeader {
		*f = follower{id: f.id, logStart: UnknownOffset, logEnd: UnknownOffset, leaderEndThen: UnknownOffset, caughtUp: credit}
		return
	}
	f.lastFetch, f.leaderEndThen = credit, leaderEnd
}

func (f *follower) isCaughtUp(now time.Time, leaderEnd int64, lag time.Duration) bool {
	return f.logEnd == leaderEnd || now.Sub(f.caughtUp) <= lag
}

// assignFollowers keeps the state of followers that remain and begins with nothing for new ones.
func (p *Partition) assignFollowers(replicas []int32) {
	followers := make([]follower, 0, len(replicas))
	for _, id := range replicas {
		if id == p.config.Self {
			continue
		}
		if old := p.follower(id); old != nil {
			followers = append(followers, *old)
			continue
		}
		followers = append(followers, follower{id: id, logStart: UnknownOffset, logEnd: UnknownOffset, leaderEndThen: UnknownOffset})
	}
	p.followers = followers
}

func (p *Partition) follower(id int32) *follower {
	for i := range p.followers {
		if p.followers[i].id == id {
			return &p.followers[i]
		}
	}
	return nil
}

// CheckAppend says whether an append with these acks may be written; None means that it may.
func (p *Partition) CheckAppend(acksAll bool) errcode.Code {
	switch {
	case p.role != Leading:
		return errcode.NotLeaderOrFollower
	case acksAll && p.UnderMinISR():
		return errcode.NotEnoughReplicas
	}
	return errcode.None
}

// Appended says that the leader's log now ends at logEnd.
func (p *Partition) Appended(now time.Time, logEnd int64) Effects {
	if p.config.LastContact != nil {
		for i := range p.followers {
			if f := &p.followers[i]; f.known && f.logEnd == p.logEnd {
				f.caughtUp = later(f.caughtUp, p.config.LastContact(f.id))
			}
		}
	}
	p.logEnd = logEnd
	var out Effects
	p.advance(now, &out)
	return out
}

// SetMinISR says that min.insync.replicas has changed.
func (p *Partition) SetMinISR(now time.Time, minISR int) Effects {
	p.minISR = minISR
	var out Effects
	p.advance(now, &out)
	return out
}

// BrokersChanged says that the metadata image has news about storage nodes: a follower that was fenced no longer holds the
// high watermark or the low watermark back, and one that was unfenced may join the ISR.
func (p *Partition) BrokersChanged(now time.Time) Effects {
	var out Effects
	if p.role == Leading {
		out.LowWatermarkMoved = true
		p.advance(now, &out)
		p.expandISR(&out)
	}
	return out
}

// FollowerFetch is a fetch of a follower that the leader has answered without finding divergence.
type FollowerFetch struct {
	Replica int32
	// BrokerEpoch is -1 for a follower that does not say.
	BrokerEpoch int64
	// LeaderEpoch is the epoch of the leader that answered; the fetch counts for no other.
	LeaderEpoch int32
	FetchOffset int64
	LogStart    int64
	// LeaderEnd is where the leader's log ended when it was read.
	LeaderEnd int64
	// At is when the fetch came in.
	At time.Time
}

// FollowerFetched takes in how far a follower is: a fetch of an offset acknowledges everything before.
func (p *Partition) FollowerFetched(now time.Time, fetch FollowerFetch) Effects {
	var out Effects
	f := p.follower(fetch.Replica)
	if f == nil || p.role != Leading || fetch.LeaderEpoch != p.leaderEpoch || p.staleEpoch(fetch.Replica, fetch.BrokerEpoch) {
		return out
	}
	lowBefore := p.LowWatermark()
	endBefore := f.logEnd
	switch {
	case fetch.FetchOffset >= fetch.LeaderEnd:
		f.caughtUp = later(f.caughtUp, fetch.At)
	case fetch.FetchOffset >= f.leaderEndThen:
		f.caughtUp = later(f.caughtUp, f.lastFetch)
	}
	f.epoch, f.known = fetch.BrokerEpoch, true
	f.logStart, f.logEnd = fetch.LogStart, fetch.FetchOffset
	f.lastFetch, f.leaderEndThen = fetch.At, max(f.leaderEndThen, fetch.LeaderEnd)

	out.LowWatermarkMoved = p.LowWatermark() > lowBefore
	p.maybeExpandISR(f, &out)
	if f.logEnd != endBefore {
		p.advance(now, &out)
	}
	return out
}

// staleEpoch says whether a follower's fetch comes from an earlier incarnation of its node.
func (p *Partition) staleEpoch(id int32, epoch int64) bool {
	if epoch < 0 {
		return false
	}
	b, ok := p.config.Broker(id)
	return ok && b.Epoch > epoch
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// advance moves the leader's high watermark as far as the replicas allow, and says which acknowledgements that frees.
//
// Followers that are caught up and may join the ISR count like members: otherwise a follower that comes back could chase
// a high watermark that the leader alone moves, and never catch it.
func (p *Partition) advance(now time.Time, out *Effects) {
	if p.role != Leading || p.UnderMinISR() {
		return
	}
	end := p.logEnd
	for i := range p.followers {
		f := &p.followers[i]
		if f.logEnd >= end {
			continue
		}
		if p.inMaximalISR(f.id) || f.isCaughtUp(now, p.logEnd, p.config.ReplicaLagTimeMax) && p.mayJoin(f) {
			end = f.logEnd
		}
	}
	if end <= p.highWatermark {
		return
	}
	p.highWatermark = end
	out.HighWatermarkMoved = true
}

// LowWatermark is the smallest log start of the live replicas: what DeleteRecords waits for. Only a leader knows it.
func (p *Partition) LowWatermark() int64 {
	low := p.logStart
	for i := range p.followers {
		f := &p.followers[i]
		if f.logStart >= low {
			continue
		}
		if b, ok := p.config.Broker(f.id); ok && !b.Fenced {
			low = f.logStart
		}
	}
	return low
}

// Follower tells what the leader knows of a replica's log; false when it is not a follower of this leader.
func (p *Partition) Follower(id int32) (logStart, logEnd int64, ok bool) {
	f := p.follower(id)
	if f == nil {
		return UnknownOffset, UnknownOffset, false
	}
	return f.logStart, f.logEnd, true
}

// Readable are the in-sync followers whose logs hold an offset, with how far they are: those that a consumer may be sent to.
func (p *Partition) Readable(offset int64, visit func(id int32, logEnd int64, caughtUp time.Time)) {
	if p.role != Leading {
		return
	}
	for i := range p.followers {
		f := &p.followers[i]
		if slices.Contains(p.isr, f.id) && f.logStart <= offset && offset <= f.logEnd {
			visit(f.id, f.logEnd, f.caughtUp)
		}
	}
}
