package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// OffsetForLeaderEpoch (23), versions 2 to 4: where leader epochs end, from the leaders, by which a consumer sees that the
// log was cut (KIP-320).
//
// Version 3 adds the replica id, 4 is flexible.

func (h *Handlers) offsetForLeaderEpoch(ctx context.Context, r *Request, req *kmsg.OffsetForLeaderEpochRequest) (kmsg.Response, error) {
	var calls []leaderCall
	var epochs []kmsg.OffsetForLeaderEpochRequestTopicPartition
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			calls = append(calls, leaderCall{topic: t.Topic, partition: p.Partition, pending: true})
			epochs = append(epochs, p)
		}
	}
	results := make([]*storagev1.OffsetForLeaderEpochPartitionResult, len(calls))
	h.callLeaders(ctx, r, calls, func(ctx context.Context, node storage.Node, offset int64, indexes []int) error {
		q := &storagev1.OffsetForLeaderEpochRequest{ReplicaId: req.ReplicaID, MetadataOffset: offset}
		for _, i := range indexes {
			q.Partitions = append(q.Partitions, &storagev1.OffsetForLeaderEpochPartition{
				TopicId: calls[i].topicID[:], Partition: calls[i].partition,
				CurrentLeaderEpoch: epochs[i].CurrentLeaderEpoch, LeaderEpoch: epochs[i].LeaderEpoch,
			})
		}
		got, err := node.OffsetForLeaderEpoch(ctx, q)
		if err == nil && len(got.GetPartitions()) != len(indexes) {
			err = errcode.UnknownServerError.Errorf("an answer to OffsetForLeaderEpoch has %d partitions, not %d", len(got.GetPartitions()), len(indexes))
		}
		if err != nil {
			return err
		}
		for k, i := range indexes {
			results[i] = got.GetPartitions()[k]
			calls[i].answer(errcode.Code(results[i].GetErrorCode()))
		}
		return nil
	})
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	i := 0
	for _, t := range req.Topics {
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = t.Topic
		for range t.Partitions {
			p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			p.Partition, p.ErrorCode = calls[i].partition, int16(calls[i].code)
			p.LeaderEpoch, p.EndOffset = -1, -1
			if calls[i].code == errcode.None && results[i] != nil {
				p.LeaderEpoch, p.EndOffset = results[i].GetLeaderEpoch(), results[i].GetEndOffset()
			}
			out.Partitions = append(out.Partitions, p)
			i++
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp, nil
}
