package storaged

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// facade is the node's data path for those who are wired to it before it starts.
type facade struct {
	node     atomic.Pointer[storage.Node]
	produced meter
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
		if req.WriterEpoch == storage.NoWriterEpoch {
			bytes := 0
			for i := range req.Partitions {
				bytes += req.Partitions[i].Records.Len()
			}
			f.produced.add(time.Now(), bytes)
		}
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

// ReadSegment is part of storage.Node. It tells those who copy of producers, to whom they yield.
func (f *facade) ReadSegment(ctx context.Context, req *storagev1.ReadSegmentRequest) (*storagev1.ReadSegmentResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	resp, err := n.ReadSegment(ctx, req)
	if err == nil {
		resp.ProducedPerSecond = f.produced.perSecond(time.Now())
	}
	return resp, err
}

// meterWindow is over how long a meter counts: the present window and the one before.
const meterWindow = time.Second

// meter measures what clients produce. It may be used from any goroutine.
type meter struct {
	mu sync.Mutex
	// began is when the present window did, bytes what it has, before what the one before it had.
	began         time.Time
	bytes, before int64
}

func (m *meter) add(now time.Time, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	m.bytes += int64(bytes)
}

// perSecond is at least 1 while there was anything.
func (m *meter) perSecond(now time.Time) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(now)
	if m.bytes+m.before == 0 {
		return 0
	}
	return max(1, int64(float64(m.bytes+m.before)/(meterWindow+now.Sub(m.began)).Seconds()))
}

func (m *meter) turn(now time.Time) {
	switch passed := now.Sub(m.began); {
	case passed >= 2*meterWindow:
		m.began, m.bytes, m.before = now, 0, 0
	case passed >= meterWindow:
		m.began, m.bytes, m.before = m.began.Add(meterWindow), 0, m.bytes
	}
}

// Handle is part of storage.Node.
func (f *facade) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	n, err := f.get()
	if err != nil {
		return nil, err
	}
	return n.Handle(ctx, req)
}
