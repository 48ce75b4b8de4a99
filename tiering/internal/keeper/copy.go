package keeper

import (
	"context"
	"errors"
	"fmt"
	"math"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/objectstore"
	"chancery/tiering/internal/remotestate"
)

// Candidates are the segments that are to be copied now, the oldest first: closed ones that end at or below the last stable
// offset, from the one that holds an offset on. remote.copy.lag.ms and remote.copy.lag.bytes (KIP-1241) hold segments
// back that are young, and those that so much has not yet been written behind; none of the two holds back alone when
// the other one is reached. Zero for either means that nothing waits.
func Candidates(segments []Local, from, lastStable int64, config *configdef.Topic, nowMs int64) []Local {
	total := int64(0)
	for _, s := range segments {
		if s.EndOffset > from {
			total += s.SizeBytes
		}
	}
	lagMs, lagBytes := config.CopyLag()
	waits := lagMs != 0 && lagBytes != 0
	var out []Local
	for i, s := range segments {
		if s.EndOffset <= from {
			continue
		}
		total -= s.SizeBytes
		if i+1 == len(segments) || s.EndOffset > lastStable {
			break
		}
		age := nowMs - s.MaxTimestampMs
		oldEnough := lagMs > 0 && (age < 0 || age >= lagMs)
		farEnough := lagBytes > 0 && total >= lagBytes
		if waits && !oldEnough && !farEnough {
			break
		}
		out = append(out, s)
	}
	return out
}

// copyAll copies what is due, one segment after the other.
func (p *Pass) copyAll(ctx context.Context, lag *Lag) error {
	if !p.Config.RemoteStorageEnable || p.Config.RemoteLogCopyDisable || p.view.Deleting {
		p.note(lag, "copying is switched off")
		return nil
	}
	due := Candidates(p.leader.segments, p.line.End, p.leader.lastStable, p.Config, p.Env.Now().UnixMilli())
	p.note(lag, p.waitReason(due))
	for _, s := range due {
		if p.Outdated != nil && p.Outdated() {
			return errOutdated
		}
		if err := p.settle(ctx, s, lag); err != nil {
			p.noteFailure(lag, err)
			return fmt.Errorf("copy segment %d of %s: %w", s.BaseOffset, p.name(), err)
		}
		if p.Env.Copying.ThrottleTime() > 0 {
			p.note(lag, "waits for remote.log.manager.copy.max.bytes.per.second")
		}
		if err := p.Env.Copying.Wait(ctx, s.SizeBytes); err != nil {
			return err
		}
		p.note(lag, p.waitReason(due))
		if err := p.copySegment(ctx, s); err != nil {
			p.noteFailure(lag, err)
			p.Env.Metrics.Of(p.Topic).CopyErrors.Add(1)
			return fmt.Errorf("copy segment %d of %s: %w", s.BaseOffset, p.name(), err)
		}
		before := p.line.End
		if err := p.reload(ctx); err != nil {
			return err
		}
		if p.line.End == before {
			return fmt.Errorf("segment %d of %s was copied, but is not in the history of its leader", s.BaseOffset, p.name())
		}
		if err := p.tell(ctx, -1); err != nil {
			return err
		}
		p.note(lag, p.waitReason(due))
	}
	return nil
}

// maxFailedCopies is how many failed copies of a segment may have left something in the store before another one begins. There
// are fewer before file.delete.delay.ms, as Kafka has it by default, has passed for the first.
const maxFailedCopies = 10

// settle lets no more copies of a segment begin while the store takes none and deletes none: each one leaves a record that has to be
// kept, and an object that may have to be deleted.
func (p *Pass) settle(ctx context.Context, s Local, lag *Lag) error {
	if p.failedCopies(s) < maxFailedCopies {
		return nil
	}
	err := p.deleteStarted(ctx, lag)
	if again := p.reload(ctx); again != nil {
		return errors.Join(err, again)
	}
	if n := p.failedCopies(s); n >= maxFailedCopies {
		return errors.Join(fmt.Errorf("what %d failed copies may have left is to be deleted first", n), err)
	}
	return nil
}

func (p *Pass) failedCopies(s Local) int {
	n := 0
	for i := range p.view.Segments {
		if e := &p.view.Segments[i]; e.State == remotelog.DeleteStarted && e.StartOffset == s.BaseOffset {
			n++
		}
	}
	return n
}

// waitReason is why closed segments are not remote yet.
func (p *Pass) waitReason(due []Local) string {
	switch n := len(p.leader.segments); {
	case len(due) > 0:
		return "being copied"
	case n > 1 && p.leader.segments[0].EndOffset > p.leader.lastStable:
		return "waits for the last stable offset"
	case n > 1:
		return "waits for remote.copy.lag.ms or remote.copy.lag.bytes"
	}
	return ""
}

// copySegment announces a segment, copies it and says that it is there.
func (p *Pass) copySegment(ctx context.Context, s Local) error {
	id := p.Partition.TopicID
	d, err := p.Node.DescribeSegment(ctx, &storagev1.DescribeSegmentRequest{
		MetadataOffset: p.MetadataOffset, TopicId: id[:], Partition: p.Partition.Partition, LeaderEpoch: p.leader.epoch, BaseOffset: s.BaseOffset,
	})
	if err != nil {
		return asLeaders(err)
	}
	if d.GetSizeBytes() > math.MaxInt32 || d.GetEndOffset() != s.EndOffset || d.GetEndOffset() <= s.BaseOffset {
		return fmt.Errorf("%w has another segment at %d now: up to %d, %d bytes", ErrLeader, s.BaseOffset, d.GetEndOffset(), d.GetSizeBytes())
	}
	segment := &remotelog.Segment{
		Topic: p.Topic, Partition: p.Partition, ID: p.Env.NewID(), StartOffset: s.BaseOffset, EndOffset: d.GetEndOffset() - 1, BrokerID: p.Env.BrokerID,
		MaxTimestampMs: d.GetMaxTimestampMs(), EventTimestampMs: p.Env.Now().UnixMilli(), LeaderEpochs: p.segmentEpochs(d), SizeBytes: int32(d.GetSizeBytes()),
		State: remotelog.CopyStarted, TxnIndexEmpty: len(d.GetTransactionIndex()) == 0,
	}
	if !p.leader.log.Holds(segment) {
		return fmt.Errorf("%w has a segment at %d that is not in its own history", ErrLeader, s.BaseOffset)
	}
	if err := p.Metadata.Write(ctx, segment); err != nil {
		return err
	}
	custom, err := p.store(ctx, segment, d)
	if err == nil && len(custom) > p.Env.MaxCustom {
		err = fmt.Errorf("the store wants %d bytes of custom metadata kept, remote.log.metadata.custom.metadata.max.bytes allows %d", len(custom), p.Env.MaxCustom)
	}
	if err != nil {
		return givenUp(err, p.giveUp(ctx, segment))
	}
	if err := p.update(ctx, segment.ID, remotelog.CopyFinished, custom); err != nil {
		return err
	}
	p.Env.Metrics.Of(p.Topic).CopyBytes.Add(d.GetSizeBytes())
	p.Env.Metrics.Of(p.Topic).Copies.Add(1)
	p.Env.Logger.Info("segment is remote", "partition", p.name(), "segment", segment.ID, "offsets", fmt.Sprintf("%d-%d", segment.StartOffset, segment.EndOffset),
		"bytes", d.GetSizeBytes())
	return nil
}

// segmentEpochs are the epochs of the segment's records. A segment without any, which transactions and retention can leave, has
// that of its offset.
func (p *Pass) segmentEpochs(d *storagev1.DescribeSegmentResponse) []remotelog.EpochStart {
	list := epochs(d.GetEpochs())
	if len(list) > 0 {
		return list
	}
	last := remotelog.EpochStart{}
	for _, e := range p.leader.log.Epochs {
		if e.StartOffset < d.GetEndOffset() {
			last = e
		}
	}
	return []remotelog.EpochStart{last}
}

// store copies a segment's bytes from the leader into the store.
func (p *Pass) store(ctx context.Context, s *remotelog.Segment, d *storagev1.DescribeSegmentResponse) ([]byte, error) {
	entry := remotestate.Entry{Segment: s}
	source := newSource(ctx, p, s.StartOffset, d.GetSizeBytes())
	data := &objectstore.SegmentData{
		Log: source, CRC32C: d.GetCrc32C(), HasCRC: true,
		Indexes: objectstore.Indexes{
			Offset: d.GetOffsetIndex(), Time: d.GetTimeIndex(), ProducerSnapshot: d.GetProducerSnapshot(), Transaction: d.GetTransactionIndex(),
		},
	}
	for _, e := range p.leader.log.Epochs {
		if e.StartOffset <= s.EndOffset {
			data.Indexes.LeaderEpochs = append(data.Indexes.LeaderEpochs, objectstore.EpochStart{Epoch: e.Epoch, StartOffset: e.StartOffset})
		}
	}
	custom, err := p.Env.Store.CopyLogSegmentData(ctx, SegmentMetadata(&entry), data)
	if refused := source.refused(); refused != nil {
		return nil, asLeaders(refused)
	}
	return custom, err
}

// givenUp is the error of a failed copy. That what it may have left could not be deleted, for the same reason, is no news.
func givenUp(failed, left error) error {
	if kind := objectstore.KindName(left); kind != "none" && kind != "other" && kind == objectstore.KindName(failed) {
		return failed
	}
	return errors.Join(failed, left)
}

// giveUp takes an announcement back, and what may be in the store.
func (p *Pass) giveUp(ctx context.Context, s *remotelog.Segment) error {
	if err := ctx.Err(); err != nil {
		return err // the next owner finds what is left
	}
	if err := p.update(ctx, s.ID, remotelog.DeleteStarted, nil); err != nil {
		return err
	}
	return p.deleteNow(ctx, []remotestate.Entry{{Segment: s}})
}

// asLeaders marks refusals that mean that the leader, or its log, is another one now.
func asLeaders(err error) error {
	switch errcode.Of(err) {
	case errcode.NotLeaderOrFollower, errcode.FencedLeaderEpoch, errcode.UnknownLeaderEpoch, errcode.OffsetOutOfRange, errcode.UnknownTopicId,
		errcode.UnknownTopicOrPartition, errcode.NetworkException, errcode.BrokerNotAvailable:
		return fmt.Errorf("%w: %w", ErrLeader, err)
	}
	return err
}
