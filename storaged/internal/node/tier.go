package node

import (
	"context"
	"hash/crc32"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/storaged/internal/replica"
)

const (
	// maxSegmentRead bounds one ReadSegment.
	maxSegmentRead = 4 << 20
	// maxDescribing bounds the segments that are being checked at a time: each is read as a whole, and clients come first.
	maxDescribing = 2
)

// DescribeTier is part of storage.Node.
func (n *Node) DescribeTier(ctx context.Context, req *storagev1.DescribeTierRequest) (*storagev1.DescribeTierResponse, error) {
	resp := &storagev1.DescribeTierResponse{}
	until := time.Now().Add(defaultTimeout)
	for _, q := range req.GetPartitions() {
		var out *storagev1.TierDescription
		n.ask(ctx, req.GetMetadataOffset(), time.Until(until), func() errcode.Code {
			out = &storagev1.TierDescription{TopicId: q.GetTopicId(), Partition: q.GetPartition()}
			r, code := n.leader(q.GetTopicId(), q.GetPartition())
			if code == errcode.None {
				code = r.DescribeTier(q, out)
			}
			out.ErrorCode = int32(code)
			return code
		})
		resp.Partitions = append(resp.Partitions, out)
	}
	return resp, nil
}

// UpdateTier is part of storage.Node.
func (n *Node) UpdateTier(ctx context.Context, req *storagev1.UpdateTierRequest) (*storagev1.UpdateTierResponse, error) {
	resp := &storagev1.UpdateTierResponse{}
	until := time.Now().Add(defaultTimeout)
	for _, q := range req.GetPartitions() {
		out := &storagev1.UpdateTierPartitionResult{TopicId: q.GetTopicId(), Partition: q.GetPartition(), LogStartOffset: -1}
		n.ask(ctx, req.GetMetadataOffset(), time.Until(until), func() errcode.Code {
			r, code := n.leader(q.GetTopicId(), q.GetPartition())
			if code == errcode.None {
				out.LogStartOffset, code = r.UpdateTier(q)
			}
			out.ErrorCode = int32(code)
			return code
		})
		resp.Partitions = append(resp.Partitions, out)
	}
	return resp, nil
}

// DescribeSegment is part of storage.Node.
func (n *Node) DescribeSegment(ctx context.Context, req *storagev1.DescribeSegmentRequest) (*storagev1.DescribeSegmentResponse, error) {
	select {
	case n.describing <- struct{}{}:
		defer func() { <-n.describing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.stopping:
		return nil, errcode.NotLeaderOrFollower.Errorf("the storage node is stopping")
	}
	var resp *storagev1.DescribeSegmentResponse
	var failed errcode.Code
	n.ask(ctx, req.GetMetadataOffset(), defaultTimeout, func() errcode.Code {
		var r *replica.Replica
		if r, failed = n.leader(req.GetTopicId(), req.GetPartition()); failed == errcode.None {
			resp, failed = r.DescribeSegment(req)
		}
		return failed
	})
	if failed != errcode.None {
		return nil, failed.Err()
	}
	return resp, nil
}

// ReadSegment is part of storage.Node.
func (n *Node) ReadSegment(_ context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	if req.GetLength() <= 0 || req.GetLength() > maxSegmentRead {
		return nil, errcode.InvalidRequest.Errorf("%d bytes of a segment: want 1 to %d", req.GetLength(), maxSegmentRead)
	}
	r, code := n.leader(req.GetTopicId(), req.GetPartition())
	if code != errcode.None {
		return nil, code.Err()
	}
	data := make([]byte, req.GetLength())
	if code := r.ReadSegment(req, data); code != errcode.None {
		return nil, code.Err()
	}
	return &storagev1.ReadSegmentResponse{Data: data, Crc32C: crc32.Checksum(data, castagnoli)}, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
