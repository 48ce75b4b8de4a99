package replica

import (
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/storaged/internal/log"
)

// The special positions that ListOffsets knows.
const (
	latest                = -1
	earliest              = -2
	maxTimestamp          = -3
	earliestLocal         = -4
	latestTiered          = -5
	earliestPendingUpload = -6
)

// Replica ids of ListOffsets: ordinary clients, and debugging ones, which may ask followers and see everything.
const (
	clientReplicaID    = -1
	debuggingReplicaID = -2
)

// Offset is the answer to one question of ListOffsets.
type Offset struct {
	Code        errcode.Code
	Timestamp   int64
	Offset      int64
	LeaderEpoch int32
	// SearchTier says that records before the local log may be what was asked for: those from LogStart up to LocalStart are in the
	// remote tier, in the history of CurrentLeaderEpoch.
	SearchTier           bool
	LogStart, LocalStart int64
	CurrentLeaderEpoch   int32
}

func noOffset(code errcode.Code) Offset {
	return Offset{Code: code, Timestamp: -1, Offset: -1, LeaderEpoch: -1}
}

// FindOffset answers one question of ListOffsets.
func (r *Replica) FindOffset(req *storagev1.ListOffsetsRequest, q *storagev1.ListOffsetsPartition) Offset {
	if q.GetLogEnd() {
		return r.logEnd(q)
	}
	v := r.View()
	replica := req.GetReplicaId()
	if code := v.Check(q.GetCurrentLeaderEpoch(), replica != debuggingReplicaID); code != errcode.None {
		return noOffset(code)
	}
	bound, lagging := ToLogEnd, false
	if replica == clientReplicaID {
		bound = ToHighWatermark
		if int8(req.GetIsolation()) == storage.ReadCommitted {
			bound = ToLastStable
		}
		// A new leader does not know yet how much of what earlier leaders had is committed. An offset below what a client
		// has already seen would send it back in time.
		lagging = v.Leads() && v.EpochStart > v.HighWatermark
	}
	end := v.End(bound)
	switch t := q.GetTimestamp(); t {
	case latest:
		if lagging {
			return noOffset(errcode.OffsetNotAvailable)
		}
		return Offset{Timestamp: -1, Offset: end, LeaderEpoch: v.LeaderEpoch}
	case earliest:
		return r.positionAt(v.LogStart)
	case earliestLocal:
		return r.positionAt(v.LocalStart)
	case latestTiered, earliestPendingUpload:
		return r.tierPosition(v, t, end, lagging)
	case maxTimestamp:
		found, ok, err := r.Log().OffsetOfMaxTimestamp()
		return r.searched(found, ok, err, end, lagging)
	default:
		if t < 0 {
			return noOffset(errcode.UnsupportedVersion)
		}
		found, ok, err := r.Log().OffsetForTimestamp(t)
		out := r.searched(found, ok, err, end, lagging)
		out.SearchTier = v.LocalStart > v.LogStart && replica == clientReplicaID
		out.LogStart, out.LocalStart, out.CurrentLeaderEpoch = v.LogStart, v.LocalStart, v.LeaderEpoch
		return out
	}
}

// positionAt is the answer that names an offset of the log, with its epoch; of an empty log it is the one that begins there.
func (r *Replica) positionAt(offset int64) Offset {
	return Offset{Timestamp: -1, Offset: offset, LeaderEpoch: r.Log().EpochForOffset(offset)}
}

// tierPosition is the last offset in the remote tier, or the first that still has to come there; nothing for a log that is not
// tiered, and while a new leader has not been told what is there. As any other offset that is searched for, one that is not
// below the reader's bound does not exist: nothing is pending in a log that is remote up to its end.
func (r *Replica) tierPosition(v *View, position, end int64, lagging bool) Offset {
	if !r.tiered.Load() {
		return noOffset(errcode.None)
	}
	offset := v.RemoteEnd - 1
	switch {
	case position == latestTiered && v.RemoteEnd == 0:
		return noOffset(errcode.None)
	case position == latestTiered:
	case v.RemoteEnd == 0 && v.LocalStart > v.LogStart:
		return noOffset(errcode.None)
	default:
		offset = max(v.RemoteEnd, v.LogStart)
	}
	found := log.TimestampOffset{Timestamp: -1, Offset: offset, LeaderEpoch: r.Log().EpochForOffset(offset)}
	return r.searched(found, true, nil, end, lagging)
}

// searched is the answer of a search. What is found beyond the reader's bound does not exist for it.
func (r *Replica) searched(found log.TimestampOffset, ok bool, err error, end int64, lagging bool) Offset {
	switch {
	case err != nil:
		return noOffset(r.readError(err))
	case ok && found.Offset < end:
		return Offset{Timestamp: found.Timestamp, Offset: found.Offset, LeaderEpoch: found.LeaderEpoch}
	case lagging:
		return noOffset(errcode.OffsetNotAvailable)
	}
	return noOffset(errcode.None)
}

// logEnd is the end of the leader's log, in turn with the appends: when it is known, no append of an older shard epoch than
// that of the node's image can come before it any more.
func (r *Replica) logEnd(q *storagev1.ListOffsetsPartition) Offset {
	var out Offset
	r.Do(func() {
		v := r.View()
		if code := v.Check(q.GetCurrentLeaderEpoch(), true); code != errcode.None {
			out = noOffset(code)
			return
		}
		out = Offset{Timestamp: -1, Offset: r.machine.LogEnd(), LeaderEpoch: r.machine.LeaderEpoch()}
	})
	return out
}

// EpochEnd answers OffsetForLeaderEpoch.
func (r *Replica) EpochEnd(currentLeaderEpoch, epoch int32) (storage.EpochEndOffset, errcode.Code) {
	if code := r.View().Check(currentLeaderEpoch, true); code != errcode.None {
		return storage.NoDivergence, code
	}
	return r.Log().EndOffsetForEpoch(epoch), errcode.None
}
