package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"chancery/services/kafka/remotelog"
	"chancery/services/objectstore"
	"chancery/tiering/internal/remotestate"
)

// maxDelete is how many segments are deleted at a time: as many as S3 takes with one request.
const maxDelete = 1000

// abandon begins the deletion of what copies have left that were never finished. Passes over a partition come one after the
// other, and an earlier owner of the shard can finish nothing any more: whatever is only announced is nobody's copy now. An
// earlier owner that was paused may still be sending, so the object goes with those of expired segments, after
// file.delete.delay.ms.
func (p *Pass) abandon(ctx context.Context) error {
	found := false
	for _, e := range p.view.Segments {
		if e.State != remotelog.CopyStarted {
			continue
		}
		if err := p.update(ctx, e.ID, remotelog.DeleteStarted, nil); err != nil {
			return err
		}
		found = true
		p.Env.Logger.Info("a copy that was never finished is to be deleted", "partition", p.name(), "segment", e.ID)
	}
	if !found {
		return nil
	}
	return p.reload(ctx)
}

// deleteStarted deletes the segments whose deletion has begun, when those who may still be reading them have had
// file.delete.delay.ms.
func (p *Pass) deleteStarted(ctx context.Context, lag *Lag) error {
	lag.NoteRemote(p.view)
	now := p.Env.Now()
	grace := time.Duration(p.Config.FileDeleteDelayMs) * time.Millisecond
	var due []remotestate.Entry
	for _, e := range p.view.Segments {
		if e.State != remotelog.DeleteStarted {
			continue
		}
		if now.Sub(time.UnixMilli(e.EventTimestampMs)) >= grace {
			due = append(due, e)
		}
	}
	return p.deleteNow(ctx, due)
}

// deleteNow deletes segments in the store and then says so. Those that cannot be deleted are left for the next pass.
func (p *Pass) deleteNow(ctx context.Context, due []remotestate.Entry) error {
	var failed []error
	for len(due) > 0 {
		n := min(len(due), maxDelete)
		list := make([]*objectstore.SegmentMetadata, n)
		for i := range n {
			list[i] = SegmentMetadata(&due[i])
		}
		p.Env.Forget(list...)
		p.Env.Metrics.Of(p.Topic).Deletes.Add(int64(n))
		errs := p.Env.Store.DeleteLogSegmentData(ctx, list)
		for i := range n {
			if errs != nil && errs[i] != nil {
				p.Env.Metrics.Of(p.Topic).DeleteErrors.Add(1)
				failed = append(failed, fmt.Errorf("delete segment %s of %s: %w", list[i].ID, p.name(), errs[i]))
				continue
			}
			if err := p.update(ctx, list[i].ID, remotelog.DeleteFinished, nil); err != nil {
				return errors.Join(append(failed, err)...)
			}
		}
		due = due[n:]
	}
	return errors.Join(failed...)
}

// Remove deletes everything remote of a partition that is gone, or not tiered any more. Broken off, it goes on where it was. What it
// could not delete is in lag.
func (p *Pass) Remove(ctx context.Context, lag *Lag) error {
	*lag = Lag{}
	err := p.remove(ctx)
	if err != nil && p.reload(ctx) == nil {
		lag.NoteRemote(p.view)
		lag.Failure = oneLine(err)
	}
	return err
}

func (p *Pass) remove(ctx context.Context) error {
	var err error
	if p.view, err = p.Metadata.View(ctx, p.Partition); err != nil || p.view == nil {
		return err
	}
	begin := remotelog.PartitionMarked
	if p.view.Deleting {
		begin = p.view.Delete + 1
	}
	for state := begin; state <= remotelog.PartitionStarted; state++ {
		if err := p.mark(ctx, state); err != nil {
			return err
		}
	}
	for _, e := range p.view.Segments {
		if e.State != remotelog.DeleteStarted {
			if err := p.update(ctx, e.ID, remotelog.DeleteStarted, nil); err != nil {
				return err
			}
		}
	}
	if err := p.deleteNow(ctx, p.view.Segments); err != nil {
		return err
	}
	p.Env.Logger.Info("everything remote of a partition is deleted", "partition", p.name(), "topic_id", p.Partition.TopicID, "segments", len(p.view.Segments))
	return p.mark(ctx, remotelog.PartitionFinished)
}

func (p *Pass) mark(ctx context.Context, state remotelog.DeleteState) error {
	return p.Metadata.Write(ctx, &remotelog.PartitionDelete{
		Topic: p.Topic, Partition: p.Partition, BrokerID: p.Env.BrokerID, EventTimestampMs: p.Env.Now().UnixMilli(), State: state,
	})
}
