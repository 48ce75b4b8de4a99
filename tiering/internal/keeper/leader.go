package keeper

import (
	"context"
	"fmt"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/storage"
	"chancery/tiering/internal/remotestate"
)

// leader is what a pass knows of the partition's leader.
type leader struct {
	pass *Pass
	// epoch is the leader's; what is asked later is refused by another one.
	epoch     int32
	log       remotestate.Log
	remoteEnd int64
	// lastStable is the offset below which segments may be copied.
	lastStable int64
	segments   []Local
}

// Local is a segment of the leader's local log.
type Local struct {
	BaseOffset     int64
	EndOffset      int64
	SizeBytes      int64
	MaxTimestampMs int64
}

// describe asks for the log and its segments that end behind an offset.
func (l *leader) describe(ctx context.Context, from int64) error {
	p := l.pass
	id := p.Partition.TopicID
	resp, err := p.Node.DescribeTier(ctx, &storagev1.DescribeTierRequest{
		MetadataOffset: p.MetadataOffset,
		Partitions: []*storagev1.DescribeTierPartition{{
			TopicId: id[:], Partition: p.Partition.Partition, CurrentLeaderEpoch: -1, FromOffset: from,
		}},
	})
	if err != nil {
		return fmt.Errorf("%w of %s has not answered: %w", ErrLeader, p.name(), err)
	}
	if len(resp.GetPartitions()) != 1 {
		return fmt.Errorf("%w of %s described %d partitions", ErrLeader, p.name(), len(resp.GetPartitions()))
	}
	d := resp.GetPartitions()[0]
	if err := leaderCode(errcode.Code(d.GetErrorCode()), "describe "+p.name()); err != nil {
		return err
	}
	l.epoch, l.remoteEnd, l.lastStable = d.GetLeaderEpoch(), d.GetRemoteEndOffset(), d.GetLastStableOffset()
	l.log = remotestate.Log{Start: d.GetLogStartOffset(), LocalStart: d.GetLocalLogStartOffset(), End: d.GetLogEndOffset(), Epochs: epochs(d.GetEpochs())}
	l.segments = l.segments[:0]
	for _, s := range d.GetSegments() {
		l.segments = append(l.segments, Local{s.GetBaseOffset(), s.GetEndOffset(), s.GetSizeBytes(), s.GetMaxTimestampMs()})
	}
	return nil
}

func epochs(list []*storagev1.EpochStart) []remotelog.EpochStart {
	out := make([]remotelog.EpochStart, len(list))
	for i, e := range list {
		out[i] = remotelog.EpochStart{Epoch: e.GetEpoch(), StartOffset: e.GetStartOffset()}
	}
	return out
}

// Leader is what the pass has learned of the leader's log, and its epoch; false when it has learned nothing.
func (p *Pass) Leader() (remotestate.Log, int32, bool) {
	return p.leader.log, p.leader.epoch, p.leader.pass != nil && len(p.leader.log.Epochs) > 0
}

// Describe asks a partition's leader for its log alone.
func Describe(ctx context.Context, node storage.Tier, metadataOffset int64, of remotelog.Partition) (remotestate.Log, int32, error) {
	p := &Pass{Partition: of, Topic: of.TopicID.String(), Node: node, MetadataOffset: metadataOffset}
	l := leader{pass: p}
	err := l.describe(ctx, beyondAll)
	return l.log, l.epoch, err
}

// beyondAll is an offset behind every log: asked from there on, a leader names its active segment only.
const beyondAll = int64(1) << 62

// update tells the leader what is remote and where its log is to begin, and gives where it does.
func (l *leader) update(ctx context.Context, remoteEnd, logStart int64) (int64, error) {
	p := l.pass
	id := p.Partition.TopicID
	resp, err := p.Node.UpdateTier(ctx, &storagev1.UpdateTierRequest{
		MetadataOffset: p.MetadataOffset,
		Partitions: []*storagev1.UpdateTierPartition{{
			TopicId: id[:], Partition: p.Partition.Partition, LeaderEpoch: l.epoch, Shard: p.Shard, ShardEpoch: p.ShardEpoch,
			RemoteEndOffset: remoteEnd, LogStartOffset: logStart,
		}},
	})
	if err != nil {
		return 0, fmt.Errorf("%w of %s has not answered: %w", ErrLeader, p.name(), err)
	}
	if len(resp.GetPartitions()) != 1 {
		return 0, fmt.Errorf("%w of %s answered for %d partitions", ErrLeader, p.name(), len(resp.GetPartitions()))
	}
	r := resp.GetPartitions()[0]
	return r.GetLogStartOffset(), leaderCode(errcode.Code(r.GetErrorCode()), "update "+p.name())
}
