package fetcher

import (
	"context"
	"math"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
)

// The positions of ListOffsets that a follower asks for.
const (
	latest   int64 = -1
	earliest int64 = -2
)

// rejoin brings replicas back whose offset the leader does not have: they have to know where its log begins and ends.
func (w *worker) rejoin(ctx context.Context, lost []*part) {
	c := w.config
	node, err := c.Nodes(w.leader)
	if err != nil {
		w.delayAll(lost)
		return
	}
	ask := &storagev1.ListOffsetsRequest{ReplicaId: c.Self, MetadataOffset: c.MetadataOffset(), TimeoutMs: int32(c.Timeout.Milliseconds())}
	for _, p := range lost {
		k := p.replica.Key()
		for _, position := range []int64{earliest, latest} {
			ask.Partitions = append(ask.Partitions, &storagev1.ListOffsetsPartition{
				TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: p.leaderEpoch, Timestamp: position,
			})
		}
	}
	resp, err := node.ListOffsets(ctx, ask)
	if err != nil || len(resp.GetPartitions()) != len(ask.Partitions) {
		w.delayAll(lost)
		return
	}
	for i, p := range lost {
		start, end := resp.GetPartitions()[2*i], resp.GetPartitions()[2*i+1]
		code := errcode.Code(start.GetErrorCode())
		if code == errcode.None {
			code = errcode.Code(end.GetErrorCode())
		}
		if code != errcode.None {
			w.delay(p, code)
			continue
		}
		if !p.replica.Rejoin(p.leaderEpoch, start.GetOffset(), end.GetOffset()) {
			// The leader refuses an offset that it has; what makes it do so may end.
			w.delay(p, errcode.OffsetOutOfRange)
		}
	}
}

// startLocally lets replicas go on where the leader's local log begins. The leader has all that they need to know of what is
// before that, in the remote tier.
func (w *worker) startLocally(ctx context.Context, tiered []*part) {
	c := w.config
	node, err := c.Nodes(w.leader)
	if err != nil {
		w.delayAll(tiered)
		return
	}
	ask := &storagev1.DescribeTierRequest{MetadataOffset: c.MetadataOffset()}
	for _, p := range tiered {
		k := p.replica.Key()
		q := &storagev1.DescribeTierPartition{
			TopicId: k.TopicID[:], Partition: k.Partition, CurrentLeaderEpoch: p.leaderEpoch, FromOffset: math.MaxInt64, WithProducers: true,
		}
		if c.BehindRemote() && p.replica.Empty() {
			// A new replica need not copy what the remote tier has, so it asks for all segments.
			q.BehindRemote, q.FromOffset = true, 0
		}
		ask.Partitions = append(ask.Partitions, q)
	}
	resp, err := node.DescribeTier(ctx, ask)
	if err != nil || len(resp.GetPartitions()) != len(tiered) {
		w.delayAll(tiered)
		return
	}
	for i, p := range tiered {
		d := resp.GetPartitions()[i]
		if code := errcode.Code(d.GetErrorCode()); code != errcode.None {
			w.delay(p, code)
			continue
		}
		p.replica.StartLocally(p.leaderEpoch, d)
	}
}

func (w *worker) delayAll(parts []*part) {
	for _, p := range parts {
		w.delay(p, errcode.NetworkException)
	}
}
