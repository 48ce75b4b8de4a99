package replica

import (
	"errors"
	"fmt"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/internal/log"
)

// Tiered says whether the topic has remote.storage.enable.
func (r *Replica) Tiered() bool { return r.tiered.Load() }

// movedToTier answers a fetch of an offset that is not here any more: a consumer reads it from the remote tier, a follower
// begins where the local log does.
func (r *Replica) movedToTier(req *storage.FetchRequest, p *storage.FetchPartition, v *View, res *storage.FetchPartitionResult) storage.FetchPartitionResult {
	if req.ReplicaID >= 0 {
		return FailedFetch(p, errcode.OffsetMovedToTieredStorage, v.CurrentLeader())
	}
	res.Tiered, res.TieredEpoch, res.LocalLogStart = true, r.Log().EpochForOffset(p.FetchOffset), r.Log().LocalLogStartOffset()
	res.TieredLeaderEpoch = v.LeaderEpoch
	if req.Isolation == storage.ReadCommitted {
		list, err := r.Log().AbortedTransactions(res.LocalLogStart, res.LocalLogStart)
		if err != nil {
			return r.readFailed(p, v, err)
		}
		res.AbortedTransactions = list
	}
	return *res
}

// forgetTier waits for what the new leader says about the remote tier: what an earlier one said may be about records that are
// going to be cut off.
func (r *Replica) forgetTier() {
	if r.Log() != nil && r.Log().RemoteEndOffset() != 0 {
		r.Log().SetRemoteEndOffset(0)
		r.publish()
	}
}

// DescribeTier answers one partition of DescribeTier.
func (r *Replica) DescribeTier(q *storagev1.DescribeTierPartition, out *storagev1.TierDescription) errcode.Code {
	v := r.View()
	if code := v.Check(q.GetCurrentLeaderEpoch(), true); code != errcode.None {
		return code
	}
	segments, err := r.Log().TierSegments(q.GetFromOffset())
	if err != nil {
		return r.tierFailed(err)
	}
	for _, s := range segments {
		out.Segments = append(out.Segments, &storagev1.LocalSegment{
			BaseOffset: s.BaseOffset, EndOffset: s.EndOffset, SizeBytes: s.SizeBytes, MaxTimestampMs: s.MaxTimestampMs,
		})
	}
	out.LeaderEpoch, out.LogStartOffset, out.LocalLogStartOffset = v.LeaderEpoch, v.LogStart, v.LocalStart
	out.HighWatermark, out.LastStableOffset, out.LogEndOffset, out.RemoteEndOffset = v.HighWatermark, v.LastStable, v.LogEnd, v.RemoteEnd
	out.Epochs = protoEpochs(r.Log().Epochs())
	if q.GetBehindRemote() {
		out.LocalLogStartOffset = startBehind(segments, v)
	}
	if q.GetWithProducers() {
		if out.ProducerSnapshot, err = r.Log().ProducersAt(out.GetLocalLogStartOffset()); err != nil {
			return r.tierFailed(err)
		}
	}
	return errcode.None
}

// startBehind is the first offset of the last segment whose begin is remote, or where the local log begins.
func startBehind(segments []log.TierSegment, v *View) int64 {
	start := v.LocalStart
	for _, s := range segments {
		if s.BaseOffset > start && s.BaseOffset <= v.RemoteEnd {
			start = s.BaseOffset
		}
	}
	return start
}

func protoEpochs(list []storage.EpochStart) []*storagev1.EpochStart {
	out := make([]*storagev1.EpochStart, len(list))
	for i, e := range list {
		out[i] = &storagev1.EpochStart{Epoch: e.Epoch, StartOffset: e.StartOffset}
	}
	return out
}

// tierFailed turns an error of the log into a code.
func (r *Replica) tierFailed(err error) errcode.Code {
	code := errcode.Of(err)
	switch {
	case errors.Is(err, log.ErrNoSegment):
		return errcode.OffsetOutOfRange
	case code == errcode.UnknownServerError:
		code = errcode.KafkaStorageError
	}
	r.env.Logger.Error("cannot read a segment for the remote tier", "partition", r.String(), "error", err)
	return code
}

// UpdateTier takes in what the owner of the partition's remote segments says.
func (r *Replica) UpdateTier(q *storagev1.UpdateTierPartition) (logStart int64, code errcode.Code) {
	logStart = -1
	r.Do(func() {
		if code = r.admitTier(q); code != errcode.None {
			return
		}
		// A pass that began before the topic ceased to be tiered may still be under way.
		if end := min(q.GetRemoteEndOffset(), r.machine.LogEnd()); r.tiered.Load() && end != r.Log().RemoteEndOffset() {
			r.Log().SetRemoteEndOffset(end)
			r.publish()
		}
		if start := q.GetLogStartOffset(); start > r.machine.LogStart() && start <= r.machine.HighWatermark() {
			if err := r.Log().SetLogStartOffset(start); err != nil {
				r.fail(fmt.Errorf("move log start to %d: %w", start, err))
				code = errcode.KafkaStorageError
				return
			}
			r.startMoved()
		}
		r.deleteRetired(r.env.now())
		logStart = r.machine.LogStart()
	})
	return logStart, code
}

// admitTier fences owners that have lost their shard, and words that are about another leader's log.
func (r *Replica) admitTier(q *storagev1.UpdateTierPartition) errcode.Code {
	v := r.View()
	if !r.usable() {
		return errcode.KafkaStorageError
	}
	if code := v.Check(q.GetLeaderEpoch(), true); code != errcode.None {
		return code
	}
	switch epoch := r.env.Image().Shard(metadata.RemoteLogShard, q.GetShard()).Epoch; {
	case q.GetShardEpoch() < epoch:
		return errcode.NotCoordinator
	case q.GetShardEpoch() > epoch:
		return errcode.NotLeaderOrFollower
	}
	return errcode.None
}

// DescribeSegment checks a closed segment and gives what lies beside its records. Broken indexes are made anew first.
func (r *Replica) DescribeSegment(q *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, errcode.Code) {
	if code := r.View().Check(q.GetLeaderEpoch(), true); code != errcode.None {
		return nil, code
	}
	s, err := r.Log().DescribeClosed(q.GetBaseOffset())
	if errors.Is(err, log.ErrIndex) {
		r.Do(func() {
			if r.usable() {
				err = r.Log().RepairIndexes(q.GetBaseOffset())
			}
		})
		if err == nil {
			s, err = r.Log().DescribeClosed(q.GetBaseOffset())
		}
	}
	if err != nil {
		return nil, r.tierFailed(err)
	}
	return &storagev1.DescribeSegmentResponse{
		EndOffset: s.EndOffset, SizeBytes: s.SizeBytes, MaxTimestampMs: s.MaxTimestampMs, Crc32C: s.CRC32C,
		OffsetIndex: s.OffsetIndex, TimeIndex: s.TimeIndex, TransactionIndex: s.TransactionIndex, ProducerSnapshot: s.ProducerSnapshot,
		Epochs: protoEpochs(s.Epochs),
	}, errcode.None
}

// ReadSegment fills p with bytes of a closed segment's records.
func (r *Replica) ReadSegment(q *storagev1.ReadSegmentRequest, p []byte) errcode.Code {
	if code := r.View().Check(q.GetLeaderEpoch(), true); code != errcode.None {
		return code
	}
	if err := r.Log().ReadClosed(q.GetBaseOffset(), q.GetPosition(), p); err != nil {
		return r.tierFailed(err)
	}
	return errcode.None
}

// Empty says whether there is no record here.
func (r *Replica) Empty() bool {
	v := r.View()
	return v.LogEnd == v.LocalStart
}

// StartLocally lets a follower begin where the leader's local log does: what it would need next is in the remote tier. It returns
// when that is done.
func (r *Replica) StartLocally(leaderEpoch int32, d *storagev1.TierDescription) {
	r.Do(func() {
		if !r.usable() || !r.machine.FollowsIn(leaderEpoch) || d.GetLocalLogStartOffset() <= r.machine.LogEnd() {
			return
		}
		at := log.LocalStart{LogStart: d.GetLogStartOffset(), LocalStart: d.GetLocalLogStartOffset(), Producers: d.GetProducerSnapshot()}
		for _, e := range d.GetEpochs() {
			at.Epochs = append(at.Epochs, storage.EpochStart{Epoch: e.GetEpoch(), StartOffset: e.GetStartOffset()})
		}
		r.env.Logger.Info("log goes on where the leader's local log begins", "partition", r.String(), "own_end", r.machine.LogEnd(),
			"start", at.LogStart, "local_start", at.LocalStart)
		if err := r.Log().StartLocallyAt(at); err != nil {
			r.fail(fmt.Errorf("start at %d, behind the remote tier: %w", at.LocalStart, err))
			return
		}
		out := r.machine.Restarted(r.Log().LogStartOffset(), at.LocalStart)
		r.Log().SetHighWatermark(r.machine.HighWatermark())
		r.apply(out)
	})
}
