package storaged

import (
	"context"
	"sync/atomic"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// facade is the node's data path for those who are wired to it before it starts.
type facade struct {
	node atomic.Pointer[storage.Node]
}

func (f *facade) open(n storage.Node) { f.node.Store(&n) }

// get gives the node once it has started.
func (f *facade) get() (storage.Node, error) {
	if n := f.node.Load(); n != nil {
		return *n, nil
	}
	return nil, errcode.NotLeaderOrFollower.Errorf("the storage node has not started")
}

// Append is part of storage.Node.
func (f *facade) Append(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	if n := f.node.Load(); n != nil {
		(*n).Append(req, done)
		return
	}
	res := &storage.AppendResult{}
	for i := range req.Partitions {
		p := &req.Partitions[i]
		p.Records.Free()
		res.Partitions = append(res.Partitions, storage.PartitionAppendResult{
			TopicID: p.TopicID, Partition: p.Partition, Error: errcode.NotLeaderOrFollower,
			BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: -1, Leader: storage.NoLeader,
		})
	}
	done(res)
}

// Fetch is part of storage.Node.
func (f *facade) Fetch(ctx context.Context, req *storage.FetchRequest) (*storage.FetchResult, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.Fetch(ctx, req)
}

// ListOffsets is part of storage.Node.
func (f *facade) ListOffsets(ctx context.Context, req *storagev1.ListOffsetsRequest) (*storagev1.ListOffsetsResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.ListOffsets(ctx, req)
}

// OffsetForLeaderEpoch is part of storage.Node.
func (f *facade) OffsetForLeaderEpoch(ctx context.Context, req *storagev1.OffsetForLeaderEpochRequest) (*storagev1.OffsetForLeaderEpochResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.OffsetForLeaderEpoch(ctx, req)
}

// DeleteRecords is part of storage.Node.
func (f *facade) DeleteRecords(ctx context.Context, req *storagev1.DeleteRecordsRequest) (*storagev1.DeleteRecordsResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.DeleteRecords(ctx, req)
}

// DescribeTier is part of storage.Node.
func (f *facade) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.DescribeTier(ctx, req)
}

// UpdateTier is part of storage.Node.
func (f *facade) UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.UpdateTier(ctx, req)
}

// DescribeSegment is part of storage.Node.
func (f *facade) DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.DescribeSegment(ctx, req)
}

// ReadSegment is part of storage.Node.
func (f *facade) ReadSegment(ctx context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.ReadSegment(ctx, req)
}

// Handle is part of storage.Node.
func (f *facade) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.Handle(ctx, req)
}
