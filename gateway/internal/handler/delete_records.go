package handler

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// DeleteRecords (21), versions 0 to 2: moves log start offsets up (KIP-107), at the leaders, which wait for their live
// replicas.
//
// A partition that is named twice counts with its last offset, as in Kafka.

func (h *Handlers) deleteRecords(ctx context.Context, r *Request, req *kmsg.DeleteRecordsRequest) (kmsg.Response, error) {
	var calls []leaderCall
	var offsets []int64
	type key struct {
		topic     string
		partition int32
	}
	seen := make(map[key]int)
	img := h.Image()
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if i, twice := seen[key{t.Topic, p.Partition}]; twice {
				offsets[i] = p.Offset
				continue
			}
			seen[key{t.Topic, p.Partition}] = len(calls)
			call := leaderCall{topic: t.Topic, partition: p.Partition, pending: true}
			if _, known := partitionOf(img, uuid.Zero, t.Topic, p.Partition); known != nil && internaltopic.Is(t.Topic) {
				call.answer(errcode.InvalidTopicException)
			}
			calls = append(calls, call)
			offsets = append(offsets, p.Offset)
		}
	}
	lows := make([]int64, len(calls))
	deadline := r.Arrived.Add(time.Duration(max(0, req.TimeoutMillis)) * time.Millisecond)
	h.callLeaders(ctx, r, calls, func(ctx context.Context, node storage.Node, offset int64, indexes []int) error {
		// The leader waits as long as the client does, which may be longer than a look-up.
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(forwardSlack))
		defer cancel()
		q := &storagev1.DeleteRecordsRequest{MetadataOffset: offset, TimeoutMs: int32(max(0, deadline.Sub(h.Now()).Milliseconds()))}
		for _, i := range indexes {
			q.Partitions = append(q.Partitions, &storagev1.DeleteRecordsPartition{TopicId: calls[i].topicID[:], Partition: calls[i].partition, Offset: offsets[i]})
		}
		got, err := node.DeleteRecords(ctx, q)
		if err == nil && len(got.GetPartitions()) != len(indexes) {
			err = errcode.UnknownServerError.Errorf("an answer to DeleteRecords has %d partitions, not %d", len(got.GetPartitions()), len(indexes))
		}
		if err != nil {
			return err
		}
		for k, i := range indexes {
			lows[i] = got.GetPartitions()[k].GetLowWatermark()
			calls[i].answer(errcode.Code(got.GetPartitions()[k].GetErrorCode()))
		}
		return nil
	})
	return deleteRecordsResponse(calls, lows), nil
}

func deleteRecordsResponse(calls []leaderCall, lows []int64) *kmsg.DeleteRecordsResponse {
	resp := kmsg.NewPtrDeleteRecordsResponse()
	topics := make(map[string]int)
	for i := range calls {
		at, known := topics[calls[i].topic]
		if !known {
			at = len(resp.Topics)
			topics[calls[i].topic] = at
			t := kmsg.NewDeleteRecordsResponseTopic()
			t.Topic = calls[i].topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewDeleteRecordsResponseTopicPartition()
		p.Partition, p.ErrorCode, p.LowWatermark = calls[i].partition, int16(calls[i].code), -1
		if calls[i].code == errcode.None {
			p.LowWatermark = lows[i]
		}
		resp.Topics[at].Partitions = append(resp.Topics[at].Partitions, p)
	}
	return resp
}
