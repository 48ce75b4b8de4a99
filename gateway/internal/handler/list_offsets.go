package handler

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// ListOffsets (2), versions 1 to 11: offsets by timestamp or special position, from the leaders.
//
// Version 2 adds the isolation level, 4 leader epochs, 7 to 9 and 11 more special positions, 10 a time-out for look-ups
// in tiered storage. As in Kafka a partition that is named twice is an invalid request, for that partition, and topics
// without partitions are left out of the answer.

func (h *Handlers) listOffsets(ctx context.Context, r *Request, req *kmsg.ListOffsetsRequest) (kmsg.Response, error) {
	asked := collectListOffsets(req)
	timeoutMs := int32(leaderWait.Milliseconds())
	if req.Version >= 10 && req.TimeoutMillis > 0 {
		timeoutMs = min(timeoutMs, req.TimeoutMillis)
	}
	h.callLeaders(ctx, r, asked.calls, func(ctx context.Context, node storage.Node, offset int64, indexes []int) error {
		q := &storagev1.ListOffsetsRequest{ReplicaId: req.ReplicaID, Isolation: int32(req.IsolationLevel), MetadataOffset: offset, TimeoutMs: timeoutMs}
		for _, i := range indexes {
			q.Partitions = append(q.Partitions, &storagev1.ListOffsetsPartition{
				TopicId: asked.calls[i].topicID[:], Partition: asked.calls[i].partition,
				CurrentLeaderEpoch: asked.requests[i].CurrentLeaderEpoch, Timestamp: asked.requests[i].Timestamp,
			})
		}
		got, err := node.ListOffsets(ctx, q)
		if err == nil && len(got.GetPartitions()) != len(indexes) {
			err = errcode.UnknownServerError.Errorf("an answer to ListOffsets has %d partitions, not %d", len(got.GetPartitions()), len(indexes))
		}
		if err != nil {
			return err
		}
		for k, i := range indexes {
			asked.results[i] = got.GetPartitions()[k]
			asked.calls[i].answer(errcode.Code(got.GetPartitions()[k].GetErrorCode()))
		}
		return nil
	})
	h.searchTier(ctx, r, req, asked)
	return asked.response(req.Version), nil
}

// searchTier looks for records by time in the remote part of logs: what is found there comes before what the leader has found
// in its local part.
func (h *Handlers) searchTier(ctx context.Context, r *Request, req *kmsg.ListOffsetsRequest, asked *listOffsetsCalls) {
	var cold []int
	for i, res := range asked.results {
		if res.GetSearchTier() && (asked.calls[i].code == errcode.None || asked.calls[i].code == errcode.OffsetNotAvailable) {
			cold = append(cold, i)
		}
	}
	if len(cold) == 0 {
		return
	}
	timeout := h.nodeConfig(h.Image(), r).Duration("remote.list.offsets.request.timeout.ms")
	if req.Version >= 10 && req.TimeoutMillis > 0 {
		timeout = time.Duration(req.TimeoutMillis) * time.Millisecond
	}
	turn, began := h.remoteFetchMaxWait(r)/2, h.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, i := range cold {
		res := asked.results[i]
		wg.Go(func() {
			h.awaitTurn(ctx, turn)
			found, err := h.Tiering.FindOffset(ctx, &tieringv1.FindOffsetRequest{
				TopicId: res.GetTopicId(), Partition: res.GetPartition(), TimestampMs: asked.requests[i].Timestamp, LeaderEpoch: res.GetCurrentLeaderEpoch(),
				LogStartOffset: res.GetLogStartOffset(), LocalLogStartOffset: res.GetLocalLogStartOffset(),
			})
			switch {
			case err != nil:
				h.Logger.Warn("cannot search the remote tier", "topic", asked.calls[i].topic, "partition", asked.calls[i].partition, "error", err)
				code := errcode.Of(err)
				if ctx.Err() != nil {
					code = errcode.RequestTimedOut
				}
				asked.calls[i].answer(code)
			case found.GetFound():
				res.Offset, res.Timestamp, res.LeaderEpoch = found.GetOffset(), found.GetTimestampMs(), found.GetLeaderEpoch()
				asked.calls[i].answer(errcode.None)
			}
		})
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
}

// lookUpBytes is what a look-up by time counts for among cold reads: a block of its segment, as a rule.
const lookUpBytes = 1 << 20

// awaitTurn waits until a look-up in the remote tier may begin beside producers, or the context ends.
func (h *Handlers) awaitTurn(ctx context.Context, turn time.Duration) {
	for ctx.Err() == nil {
		if granted := h.Pacer.Wait(ctx, lookUpBytes, turn); granted > 0 {
			h.Pacer.Settle(granted, granted)
			return
		}
	}
}

// listOffsetsCalls are the partitions of a request, each once, in its order.
type listOffsetsCalls struct {
	calls    []leaderCall
	requests []kmsg.ListOffsetsRequestTopicPartition
	results  []*storagev1.ListOffsetsPartitionResult
}

func collectListOffsets(req *kmsg.ListOffsetsRequest) *listOffsetsCalls {
	asked := &listOffsetsCalls{}
	type key struct {
		topic     string
		partition int32
	}
	seen := make(map[key]int)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			if i, twice := seen[key{t.Topic, p.Partition}]; twice {
				asked.calls[i].answer(errcode.InvalidRequest)
				continue
			}
			seen[key{t.Topic, p.Partition}] = len(asked.calls)
			call := leaderCall{topic: t.Topic, partition: p.Partition, pending: true}
			if timestampUnsupported(p.Timestamp, req.Version) {
				call.answer(errcode.UnsupportedVersion)
			}
			asked.calls = append(asked.calls, call)
			asked.requests = append(asked.requests, p)
		}
	}
	asked.results = make([]*storagev1.ListOffsetsPartitionResult, len(asked.calls))
	return asked
}

// timestampUnsupported says whether a special position is unknown to a version.
func timestampUnsupported(timestamp int64, version int16) bool {
	switch timestamp {
	case -1, -2: // latest and earliest
		return false
	case -3: // of the maximum timestamp
		return version < 7
	case -4: // earliest local
		return version < 8
	case -5: // last tiered
		return version < 9
	case -6: // earliest that is not tiered yet
		return version < 11
	}
	return timestamp < 0
}

func (asked *listOffsetsCalls) response(version int16) *kmsg.ListOffsetsResponse {
	resp := kmsg.NewPtrListOffsetsResponse()
	topics := make(map[string]int)
	for i := range asked.calls {
		call := &asked.calls[i]
		at, known := topics[call.topic]
		if !known {
			at = len(resp.Topics)
			topics[call.topic] = at
			t := kmsg.NewListOffsetsResponseTopic()
			t.Topic = call.topic
			resp.Topics = append(resp.Topics, t)
		}
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.Partition, p.ErrorCode = call.partition, int16(call.code)
		p.Timestamp, p.Offset, p.LeaderEpoch = -1, -1, -1
		if res := asked.results[i]; res != nil && call.code == errcode.None {
			p.Timestamp, p.Offset = res.GetTimestamp(), res.GetOffset()
			if version >= 4 {
				p.LeaderEpoch = res.GetLeaderEpoch()
			}
		}
		resp.Topics[at].Partitions = append(resp.Topics[at].Partitions, p)
	}
	return resp
}
