package node

import (
	"context"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/storaged/internal/replica"
)

// defaultTimeout bounds requests that do not say how long they may take.
const defaultTimeout = 30 * time.Second

func timeoutOf(ms int32) time.Duration {
	if ms <= 0 {
		return defaultTimeout
	}
	return time.Duration(ms) * time.Millisecond
}

// stale says whether a refusal may come from knowing less than the sender.
func stale(code errcode.Code) bool {
	switch code {
	case errcode.UnknownTopicId, errcode.UnknownTopicOrPartition, errcode.NotLeaderOrFollower, errcode.UnknownLeaderEpoch:
		return true
	default:
		return false
	}
}

// ask runs a question, and once more when the answer may come from knowing less than the sender, after the image has
// caught up.
func (n *Node) ask(ctx context.Context, metadataOffset int64, timeout time.Duration, question func() errcode.Code) {
	behind := n.AppliedOffset() < metadataOffset
	if code := question(); behind && stale(code) && n.await(ctx, metadataOffset, timeout) {
		question()
	}
}

// ListOffsets is part of storage.Node.
func (n *Node) ListOffsets(ctx context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	resp := &storagev1.ListOffsetsResponse{}
	until := time.Now().Add(timeoutOf(req.GetTimeoutMs()))
	for _, q := range req.GetPartitions() {
		var found replica.Offset
		n.ask(ctx, req.GetMetadataOffset(), time.Until(until), func() errcode.Code {
			found = n.findOffset(req, q)
			return found.Code
		})
		resp.Partitions = append(resp.Partitions, &storagev1.ListOffsetsPartitionResult{
			TopicId: q.GetTopicId(), Partition: q.GetPartition(), ErrorCode: int32(found.Code),
			Timestamp: found.Timestamp, Offset: found.Offset, LeaderEpoch: found.LeaderEpoch,
			SearchTier: found.SearchTier, LogStartOffset: found.LogStart, LocalLogStartOffset: found.LocalStart,
			CurrentLeaderEpoch: found.CurrentLeaderEpoch,
		})
	}
	return resp, nil
}

func (n *Node) findOffset(req *storagev1.ListOffsetsRequest, q *storagev1.ListOffsetsPartition) replica.Offset {
	refusal := replica.Offset{Code: errcode.UnknownTopicId, Timestamp: -1, Offset: -1, LeaderEpoch: -1}
	k, ok := keyOf(q.GetTopicId(), q.GetPartition())
	if !ok {
		return refusal
	}
	// The end of a log counts for a coordinator only when the node knows of the coordinator's epoch.
	if q.GetLogEnd() && n.AppliedOffset() < req.GetMetadataOffset() {
		refusal.Code = errcode.NotLeaderOrFollower
		return refusal
	}
	r, code, _ := n.find(k)
	if r == nil {
		refusal.Code = code
		return refusal
	}
	return r.FindOffset(req, q)
}

// OffsetForLeaderEpoch is part of storage.Node.
func (n *Node) OffsetForLeaderEpoch(ctx context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	resp := &storagev1.OffsetForLeaderEpochResponse{}
	until := time.Now().Add(defaultTimeout)
	for _, q := range req.GetPartitions() {
		out := &storagev1.OffsetForLeaderEpochPartitionResult{TopicId: q.GetTopicId(), Partition: q.GetPartition()}
		n.ask(ctx, req.GetMetadataOffset(), time.Until(until), func() errcode.Code {
			out.LeaderEpoch, out.EndOffset = -1, -1
			code := n.epochEnd(q, out)
			out.ErrorCode = int32(code)
			return code
		})
		resp.Partitions = append(resp.Partitions, out)
	}
	return resp, nil
}

func (n *Node) epochEnd(q *storagev1.OffsetForLeaderEpochPartition, out *storagev1.OffsetForLeaderEpochPartitionResult) errcode.Code {
	k, ok := keyOf(q.GetTopicId(), q.GetPartition())
	if !ok {
		return errcode.UnknownTopicId
	}
	r, code, _ := n.find(k)
	if r == nil {
		return code
	}
	end, code := r.EpochEnd(q.GetCurrentLeaderEpoch(), q.GetLeaderEpoch())
	out.LeaderEpoch, out.EndOffset = end.Epoch, end.EndOffset
	return code
}

// deletion is a partition of DeleteRecords under way.
type deletion struct {
	replica *replica.Replica
	result  chan replica.Deleted
	out     *storagev1.DeleteRecordsPartitionResult
}

// DeleteRecords is part of storage.Node.
func (n *Node) DeleteRecords(ctx context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	resp := &storagev1.DeleteRecordsResponse{}
	timeout := timeoutOf(req.GetTimeoutMs())
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var under []deletion
	for _, q := range req.GetPartitions() {
		out := &storagev1.DeleteRecordsPartitionResult{TopicId: q.GetTopicId(), Partition: q.GetPartition(), LowWatermark: -1}
		resp.Partitions = append(resp.Partitions, out)
		var r *replica.Replica
		n.ask(ctx, req.GetMetadataOffset(), timeout, func() errcode.Code {
			var code errcode.Code
			r, code = n.leader(q.GetTopicId(), q.GetPartition())
			out.ErrorCode = int32(code)
			return code
		})
		if out.ErrorCode != 0 {
			continue
		}
		d := deletion{replica: r, result: make(chan replica.Deleted, 1), out: out}
		r.DeleteRecords(q.GetOffset(), d.result)
		under = append(under, d)
	}
	for _, d := range under {
		d.await(ctx)
	}
	return resp, nil
}

// leader finds a replica that leads.
func (n *Node) leader(topicID []byte, partition int32) (*replica.Replica, errcode.Code) {
	k, ok := keyOf(topicID, partition)
	if !ok {
		return nil, errcode.UnknownTopicId
	}
	r, code, _ := n.find(k)
	if r == nil {
		return nil, code
	}
	return r, r.View().Check(-1, true)
}

func (d *deletion) await(ctx context.Context) {
	var got replica.Deleted
	select {
	case got = <-d.result:
	case <-ctx.Done():
		d.replica.ForgetDelete(d.result)
		got = replica.Deleted{Code: errcode.RequestTimedOut, LowWatermark: -1}
	}
	d.out.ErrorCode, d.out.LowWatermark = int32(got.Code), got.LowWatermark
}
