package replica

import (
	"chancery/services/storage"
	"chancery/storaged/internal/partition"
)

// View is what readers may know of a replica, all of one moment. It is immutable.
type View struct {
	Role           partition.Role
	Leader         int32
	LeaderEpoch    int32
	PartitionEpoch int32
	// EpochStart is where the leader's epoch began; a leader's only.
	EpochStart int64
	LogStart   int64
	// LocalStart is where the log begins here; what is before it is in the remote tier. RemoteEnd is the offset after the last
	// record there, as far as is known; 0 for none.
	LocalStart    int64
	RemoteEnd     int64
	HighWatermark int64
	LastStable    int64
	LogEnd        int64
	// LastEpoch is the newest epoch in the log; -1 for none.
	LastEpoch int32
	// Failed says that the log cannot be used.
	Failed bool
	// ISR is known by leaders only.
	ISR      []int32
	Replicas []int32

	UnderReplicated, UnderMinISR, AtMinISR bool
}

// Leads says whether the replica leads.
func (v *View) Leads() bool { return v.Role == partition.Leading }

// CurrentLeader is the view in the form that clients are told.
func (v *View) CurrentLeader() storage.CurrentLeader {
	return storage.CurrentLeader{ID: v.Leader, Epoch: v.LeaderEpoch}
}

// Bound says up to where a reader may read.
type Bound int8

// The bounds: consumers see committed records, read_committed ones only those of transactions that have ended, followers
// everything.
const (
	ToHighWatermark Bound = iota
	ToLastStable
	ToLogEnd
)

// BoundOf is the bound of a fetch.
func BoundOf(req *storage.FetchRequest) Bound {
	switch {
	case req.ReplicaID >= 0:
		return ToLogEnd
	case req.Isolation == storage.ReadCommitted:
		return ToLastStable
	}
	return ToHighWatermark
}

// End is the offset that a reader may not reach.
func (v *View) End(b Bound) int64 {
	switch b {
	case ToLogEnd:
		return v.LogEnd
	case ToLastStable:
		return v.LastStable
	case ToHighWatermark:
	}
	return v.HighWatermark
}

// publish shows readers the present state and wakes those who wait for it.
func (r *Replica) publish() {
	m := r.machine
	v := &View{
		Role:            m.Role(),
		Leader:          m.Leader(),
		LeaderEpoch:     m.LeaderEpoch(),
		PartitionEpoch:  m.PartitionEpoch(),
		EpochStart:      m.EpochStart(),
		LogStart:        m.LogStart(),
		HighWatermark:   m.HighWatermark(),
		LogEnd:          m.LogEnd(),
		LastEpoch:       -1,
		Failed:          r.failed,
		ISR:             m.ISR(),
		Replicas:        m.Replicas(),
		UnderReplicated: m.UnderReplicated(),
		UnderMinISR:     m.UnderMinISR(),
		AtMinISR:        m.AtMinISR(),
	}
	v.LastStable = v.HighWatermark
	if r.Log() != nil {
		v.LastEpoch = r.Log().LatestEpoch()
		v.LocalStart = r.Log().LocalLogStartOffset()
		v.RemoteEnd = r.Log().RemoteEndOffset()
		v.LastStable = min(v.HighWatermark, r.Log().LastStableOffset())
	}
	old := r.view.Swap(v)
	r.waiters.wake(old, v)
}
