// Package keeper keeps the remote part of a partition in order: it copies closed segments, tells the leader what is remote,
// and deletes what has expired.
//
// It owns the order of these steps, which makes each of them safe to be broken off: a segment is announced before it is
// copied, and counts when its copy is finished; the log's start moves before segments go; a segment is no reader's any more
// before its object is deleted. It must never hold state that is not in the shard's log: every pass begins from what is there.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/remotelog"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/quota"
	"chancery/services/storage"
	"chancery/tiering/internal/remotestate"
)

// Metadata is the shard that keeps a partition's records.
type Metadata interface {
	// View is what is known of a partition; nil for nothing.
	View(ctx context.Context, p remotelog.Partition) (*remotestate.View, error)
	// Write returns when the record is durable.
	Write(ctx context.Context, r remotelog.Record) error
}

// Env is what all passes share.
type Env struct {
	Store objectstore.RemoteStorageManager
	// BrokerID is written into records.
	BrokerID int32
	// Copying bounds the bytes copied in a second.
	Copying *quota.Limiter
	// Pace lets copies yield to producers.
	Pace Pace
	// MaxCustom is the largest custom metadata of a segment, remote.log.metadata.custom.metadata.max.bytes.
	MaxCustom int
	// Forget is told of segments that nobody reads any more.
	Forget  func(segments ...*objectstore.SegmentMetadata)
	Metrics *Metrics
	Now     func() time.Time
	NewID   func() uuid.UUID
	Logger  *slog.Logger
}

// Pass is one look after one partition.
type Pass struct {
	Env       *Env
	Metadata  Metadata
	Partition remotelog.Partition
	Topic     string
	Config    *configdef.Topic
	// Shard and ShardEpoch are what the leader knows the owner by.
	Shard, ShardEpoch int32
	// Node is the node of the leader, and MetadataOffset what it has to know before it refuses.
	Node           storage.Tier
	MetadataOffset int64
	// Report, unless it is nil, is told of the lag while the pass copies.
	Report func(Lag)
	// Outdated says that the topic, its configs or the leader have changed since the pass began, which ends it before the next copy;
	// nil for never.
	Outdated func() bool

	leader leader
	view   *remotestate.View
	line   remotestate.Lineage
}

// ErrLeader marks failures that come from another leader, or none: the next pass will find the right one.
var ErrLeader = errors.New("the partition's leader")

// errOutdated ends a pass that another one has to follow at once.
var errOutdated = errors.New("the topic, its configs or its leader have changed")

// Run looks after the partition: it copies what is due, tells the leader, and deletes what has expired. What it learns goes
// into lag, also when it fails.
func (p *Pass) Run(ctx context.Context, lag *Lag) error {
	if err := p.look(ctx); err != nil {
		return err
	}
	if err := p.abandon(ctx); err != nil {
		return err
	}
	copyErr := p.copyAll(ctx, lag)
	if errors.Is(copyErr, errOutdated) {
		return nil
	}
	if ctx.Err() != nil || errors.Is(copyErr, ErrLeader) {
		return copyErr
	}
	err := p.tell(ctx, -1)
	if err == nil {
		err = p.expire(ctx, lag)
	}
	err = errors.Join(copyErr, err, p.deleteStarted(ctx, lag))
	if p.reload(ctx) == nil {
		lag.NoteRemote(p.view)
	}
	return err
}

// look asks the leader and the shard what there is.
func (p *Pass) look(ctx context.Context) error {
	var err error
	if p.view, err = p.Metadata.View(ctx, p.Partition); err != nil {
		return err
	}
	if p.view == nil {
		p.view = &remotestate.View{Topic: p.Topic, Partition: p.Partition}
	}
	p.leader = leader{pass: p}
	// The first question is for the leader's history, which says from where on its segments are wanted.
	if err := p.leader.describe(ctx, beyondAll); err != nil {
		return err
	}
	p.line = remotestate.LineageOf(p.view.Segments, &p.leader.log)
	return p.leader.describe(ctx, p.line.End)
}

// reload takes in what the shard has made of this pass's records.
func (p *Pass) reload(ctx context.Context) error {
	view, err := p.Metadata.View(ctx, p.Partition)
	if err != nil {
		return err
	}
	if view == nil {
		view = &remotestate.View{Topic: p.Topic, Partition: p.Partition}
	}
	p.view = view
	p.line = remotestate.LineageOf(view.Segments, &p.leader.log)
	return nil
}

// tell tells the leader what is remote, and where the log is to begin; -1 leaves that as it is.
//
// The end of what is remote stays when all of that has expired: it is the last offset that was tiered, which ListOffsets
// names as long as this leader leads.
func (p *Pass) tell(ctx context.Context, logStart int64) error {
	remoteEnd := max(p.line.RemoteEnd(), min(p.leader.remoteEnd, p.leader.log.Start))
	if logStart <= p.leader.log.Start && remoteEnd == p.leader.remoteEnd {
		return nil
	}
	start, err := p.leader.update(ctx, remoteEnd, logStart)
	if err != nil {
		return err
	}
	p.leader.remoteEnd, p.leader.log.Start = remoteEnd, max(p.leader.log.Start, start)
	return nil
}

// expire moves the log's start and begins the deletion of what has expired.
func (p *Pass) expire(ctx context.Context, lag *Lag) error {
	localBytes := int64(0)
	for _, s := range p.leader.segments {
		if s.EndOffset > p.line.End {
			localBytes += s.SizeBytes
		}
	}
	limits := remotestate.Limits{Ms: p.Config.RetentionMs, Bytes: p.Config.RetentionBytes}
	gone := remotestate.Expire(p.view.Segments, &p.line, &p.leader.log, limits, localBytes, p.Env.Now().UnixMilli())
	lag.NoteRemote(p.view)
	if gone.LogStart > p.leader.log.Start {
		if err := p.tell(ctx, gone.LogStart); err != nil {
			return err
		}
		if p.leader.log.Start < gone.LogStart {
			return fmt.Errorf("%w of %s has not moved its start from %d to %d", ErrLeader, p.name(), p.leader.log.Start, gone.LogStart)
		}
	}
	for _, e := range gone.Segments {
		if err := p.update(ctx, e.ID, remotelog.DeleteStarted, nil); err != nil {
			return err
		}
		p.Env.Metrics.Of(p.Topic).Expired.Add(1)
		p.Env.Logger.Info("remote segment has expired", "partition", p.name(), "segment", e.ID, "offsets", fmt.Sprintf("%d-%d", e.StartOffset, e.EndOffset))
	}
	if len(gone.Segments) == 0 {
		return nil
	}
	return p.reload(ctx)
}

// name is the partition in logs and errors.
func (p *Pass) name() string { return fmt.Sprintf("%s-%d", p.Topic, p.Partition.Partition) }

// update writes the next state of a segment.
func (p *Pass) update(ctx context.Context, id uuid.UUID, state remotelog.SegmentState, custom []byte) error {
	return p.Metadata.Write(ctx, &remotelog.SegmentUpdate{
		Topic: p.Topic, Partition: p.Partition, ID: id, BrokerID: p.Env.BrokerID,
		EventTimestampMs: p.Env.Now().UnixMilli(), CustomMetadata: custom, State: state,
	})
}

// SegmentMetadata is an entry in the words of stores.
func SegmentMetadata(e *remotestate.Entry) *objectstore.SegmentMetadata {
	m := &objectstore.SegmentMetadata{
		TopicID: e.Partition.TopicID, Topic: e.Topic, Partition: e.Partition.Partition, ID: e.ID, BaseOffset: e.StartOffset, EndOffset: e.EndOffset,
		MaxTimestampMs: e.MaxTimestampMs, SizeBytes: int64(e.SizeBytes), TxnIndexEmpty: e.TxnIndexEmpty, Custom: e.CustomMetadata,
	}
	for _, s := range e.LeaderEpochs {
		m.LeaderEpochs = append(m.LeaderEpochs, objectstore.EpochStart{Epoch: s.Epoch, StartOffset: s.StartOffset})
	}
	return m
}

// leaderCode turns a leader's refusal into an error.
func leaderCode(code errcode.Code, what string) error {
	if code == errcode.None {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrLeader, what, code.Err())
}
