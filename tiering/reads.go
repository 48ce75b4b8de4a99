package tiering

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/storagerpc"
	"chancery/tiering/internal/keeper"
	"chancery/tiering/internal/remotestate"
)

// reads is what cold reads need.
type reads struct {
	// waiting counts reads that want a place (remote.log.reader.threads).
	waiting atomic.Int64

	mu sync.Mutex
	// logs are the leaders' logs as the last passes or reads have learned them.
	logs map[remotelog.Partition]*history
}

// history is a partition's remote part in a leader's history. It is immutable.
type history struct {
	log   remotestate.Log
	epoch int32
	// view is what segments was made of.
	view     *remotestate.View
	segments []coldread.Segment
}

// learn keeps what a leader has said of its log, unless a later one has spoken already.
func (r *reads) learn(p remotelog.Partition, log remotestate.Log, epoch int32) *history {
	h := &history{log: log, epoch: epoch}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs == nil {
		r.logs = map[remotelog.Partition]*history{}
	}
	if known := r.logs[p]; known == nil || known.epoch <= epoch {
		r.logs[p] = h
	}
	return h
}

// keep drops what is known of all partitions but some. A read may have learned of one that was not ours any more by then.
func (r *reads) keep(ours map[remotelog.Partition]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.logs, func(p remotelog.Partition, _ *history) bool { return !ours[p] })
}

func (r *reads) known(p remotelog.Partition) *history {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logs[p]
}

// of gives the history with the segments of a view.
func (r *reads) of(p remotelog.Partition, h *history, view *remotestate.View) *history {
	if h.view == view {
		return h
	}
	next := &history{log: h.log, epoch: h.epoch, view: view}
	line := remotestate.LineageOf(view.Segments, &h.log)
	for i := range line.Spans {
		s := &line.Spans[i]
		next.segments = append(next.segments, coldread.Segment{SegmentMetadata: keeper.SegmentMetadata(&s.Entry), FirstOffset: s.First, LastOffset: s.Last})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs[p] == h {
		r.logs[p] = next
	}
	return next
}

// usable gives what is known of a partition, if it is of a leader not before the one of an epoch and fits; otherwise nil.
func (r *reads) usable(p remotelog.Partition, view *remotestate.View, leaderEpoch int32, fits func(*history) bool) *history {
	h := r.known(p)
	if h == nil || h.epoch < leaderEpoch {
		return nil
	}
	if h = r.of(p, h, view); !fits(h) {
		return nil
	}
	return h
}

// holds says whether an offset is in the history's segments, in the epoch that the reader's leader has there.
func (h *history) holds(offset int64, epoch int32) bool {
	for _, s := range h.segments {
		if offset >= s.FirstOffset && offset <= s.LastOffset {
			return epoch < 0 || epochAt(s.LeaderEpochs, offset) == epoch
		}
	}
	return false
}

func epochAt(epochs []objectstore.EpochStart, offset int64) int32 {
	epoch := int32(-1)
	for _, e := range epochs {
		if e.StartOffset <= offset {
			epoch = e.Epoch
		}
	}
	return epoch
}

// service is the gRPC side of a Server.
type service struct{ s *Server }

// history finds the remote part of a partition, and asks the leader anew where what is known does not fit.
func (s *Server) history(ctx context.Context, o ownedShard, p remotelog.Partition, leaderEpoch int32, fits func(*history) bool) (*history, error) {
	view, err := o.View(ctx, p)
	if err != nil {
		return nil, err
	}
	if view == nil {
		view = &remotestate.View{Partition: p}
	}
	if h := s.reads.usable(p, view, leaderEpoch, fits); h != nil {
		return h, nil
	}
	log, epoch, err := s.lookup(ctx, p)
	if err != nil {
		return nil, errcode.LeaderNotAvailable.Wrap(err)
	}
	return s.reads.of(p, s.reads.learn(p, log, epoch), view), nil
}

// begin finds the shard of a request and takes a place for it.
func (s *Server) begin(ctx context.Context, topicID []byte, partition int32, metadataOffset int64) (ownedShard, remotelog.Partition, error) {
	id, ok := uuid.FromBytes(topicID)
	if !ok {
		return ownedShard{}, remotelog.Partition{}, errcode.InvalidRequest.Errorf("a topic id has 16 bytes")
	}
	if !s.settings.enabled {
		return ownedShard{}, remotelog.Partition{}, errcode.NotCoordinator.Errorf("remote.log.storage.system.enable is not set here")
	}
	if s.deps.Metadata.Image().Offset() < metadataOffset {
		if err := s.deps.Metadata.Await(ctx, metadataOffset); err != nil {
			return ownedShard{}, remotelog.Partition{}, err
		}
	}
	p := remotelog.Partition{TopicID: id, Partition: partition}
	o, err := s.find(p)
	if err != nil {
		return ownedShard{}, p, err
	}
	if s.reads.waiting.Add(1) > int64(s.settings.pending) {
		s.reads.waiting.Add(-1)
		return ownedShard{}, p, errcode.ThrottlingQuotaExceeded.Errorf("remote.log.reader.max.pending.tasks reads wait already")
	}
	defer s.reads.waiting.Add(-1)
	if err := s.settings.limits.readers.enter(ctx); err != nil {
		return ownedShard{}, p, err
	}
	return o, p, nil
}

// Read is part of the Tiering service.
func (g service) Read(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
	s := g.s
	o, p, err := s.begin(ctx, req.GetTopicId(), req.GetPartition(), req.GetMetadataOffset())
	if err != nil {
		return nil, err
	}
	defer s.settings.limits.readers.leave()
	counters := s.countersOf(p)
	counters.Fetches.Add(1)
	resp, err := s.read(ctx, o, p, req)
	switch {
	case err == nil:
		counters.FetchBytes.Add(int64(resp.Records.Len()))
	case ctx.Err() == nil && errcode.Of(err) != errcode.OffsetOutOfRange:
		counters.FetchErrors.Add(1)
	}
	return resp, err
}

// countersOf are the counters of a partition's topic.
func (s *Server) countersOf(p remotelog.Partition) *keeper.Counters {
	if topic := s.image.Load().Topic(p.TopicID); topic != nil {
		return s.env.Metrics.Of(topic.Name)
	}
	return &keeper.Counters{} // it has just been deleted
}

func (s *Server) read(ctx context.Context, o ownedShard, p remotelog.Partition, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
	// Beyond an offset that two leaders have alike, their histories may differ: only that of the leader that was asked counts.
	h, err := s.history(ctx, o, p, req.GetLeaderEpoch(), func(h *history) bool { return h.holds(req.GetFetchOffset(), req.GetEpoch()) })
	if err != nil {
		return nil, err
	}
	if !h.holds(req.GetFetchOffset(), req.GetEpoch()) {
		return nil, errcode.OffsetOutOfRange.Errorf("The remote tier has no record at offset %d of epoch %d.", req.GetFetchOffset(), req.GetEpoch())
	}
	got, err := s.reader.Read(ctx, coldread.ReadRequest{
		Segments: h.segments, Offset: req.GetFetchOffset(), MaxBytes: int(req.GetMaxBytes()), MinOneBatch: req.GetMinOne(), ReadCommitted: req.GetReadCommitted(),
	})
	if err != nil {
		return nil, s.readFailed(ctx, o, p, req.GetFetchOffset(), err)
	}
	return &storagerpc.TierRead{Records: got.Records, AbortedTransactions: got.AbortedTransactions, EndOffset: got.NextOffset}, nil
}

// readFailed tells a segment that has expired meanwhile from one that should be there.
func (s *Server) readFailed(ctx context.Context, o ownedShard, p remotelog.Partition, offset int64, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if errors.Is(err, objectstore.ErrNotFound) {
		h, again := s.history(ctx, o, p, -1, func(*history) bool { return false })
		if again == nil && !h.holds(offset, -1) {
			return errcode.OffsetOutOfRange.Wrap(err)
		}
	}
	s.deps.Logger.Warn("cannot read from the remote tier", "topic_id", p.TopicID, "partition", p.Partition, "offset", offset, "error", err)
	return errcode.KafkaStorageError.Wrap(err)
}

// FindOffset is part of the Tiering service.
func (g service) FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	s := g.s
	o, p, err := s.begin(ctx, req.GetTopicId(), req.GetPartition(), req.GetMetadataOffset())
	if err != nil {
		return nil, err
	}
	defer s.settings.limits.readers.leave()
	h, err := s.history(ctx, o, p, req.GetLeaderEpoch(), func(h *history) bool {
		n := len(h.segments)
		return n > 0 && h.segments[n-1].LastOffset+1 >= req.GetLocalLogStartOffset()
	})
	if err != nil {
		return nil, err
	}
	segments := h.segments
	for len(segments) > 0 && segments[len(segments)-1].FirstOffset >= req.GetLocalLogStartOffset() {
		segments = segments[:len(segments)-1]
	}
	found, ok, err := s.reader.OffsetForTimestamp(ctx, segments, req.GetTimestampMs(), req.GetLogStartOffset())
	if err != nil {
		return nil, s.readFailed(ctx, o, p, req.GetLogStartOffset(), err)
	}
	if !ok || found.Offset >= req.GetLocalLogStartOffset() {
		return &tieringv1.FindOffsetResponse{}, nil
	}
	return &tieringv1.FindOffsetResponse{Found: true, Offset: found.Offset, TimestampMs: found.TimestampMs, LeaderEpoch: found.LeaderEpoch}, nil
}
