package replica

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
)

// Copied is what a follower's fetch brought.
type Copied struct {
	// LeaderEpoch and FetchOffset are those of the fetch: what was asked in another epoch, or from elsewhere than the log's
	// end, is out of date.
	LeaderEpoch int32
	FetchOffset int64
	// Result has no error. The replica takes its records over.
	Result *storage.FetchPartitionResult
	// Done is called when the log has taken everything in, or, with a code, when it could not take what the leader sent.
	Done func(errcode.Code)
}

// News says whether a fetch brought anything that the replica does not have: most partitions of most fetches have not.
func (r *Replica) News(res *storage.FetchPartitionResult) bool {
	v := r.View()
	return res.Records.Len() > 0 || res.Diverging != storage.NoDivergence ||
		min(res.HighWatermark, v.LogEnd) > v.HighWatermark || res.LogStartOffset > v.LogStart ||
		res.RemoteEndOffset != v.RemoteEnd
}

// errLeaderFile says that a leader on this machine could not be read from: its trouble, not the follower's.
var errLeaderFile = errors.New("the leader's file cannot be read")

// TakeCopied gives a follower what its fetch brought.
func (r *Replica) TakeCopied(c *Copied) { r.post(event{copied: c}) }

func (r *Replica) takeCopied(c *Copied) {
	code := errcode.None
	defer func() { c.Done(code) }()
	defer c.Result.Records.Release()
	if !r.usable() || !r.machine.FollowsIn(c.LeaderEpoch) || c.FetchOffset != r.machine.LogEnd() {
		return
	}
	err := r.copyIn(c)
	switch code = errcode.Of(err); {
	case err == nil:
	case errors.Is(err, errLeaderFile), code == errcode.CorruptMessage, code == errcode.InvalidRecord:
		// The own disk is as good as before.
		r.env.Logger.Warn("cannot take what the leader gave", "partition", r.String(), "error", err)
	default:
		r.fail(err)
	}
}

func (r *Replica) copyIn(c *Copied) error {
	res := c.Result
	if res.Diverging != storage.NoDivergence {
		return r.cut(res.Diverging)
	}
	// What is here may all lie before the leader's start, inside the batch that comes: then the log is as good as empty.
	if res.LogStartOffset == r.machine.LogEnd() {
		if err := r.followStart(res.LogStartOffset); err != nil {
			return err
		}
	}
	if err := r.appendCopied(c); err != nil {
		return err
	}
	if end := r.Log().LogEndOffset(); end != r.machine.LogEnd() || res.HighWatermark > r.machine.HighWatermark() {
		r.apply(r.machine.Followed(end, res.HighWatermark))
	}
	if err := r.followStart(max(res.LogStartOffset, r.Log().LogStartOffset())); err != nil {
		return err
	}
	if res.RemoteEndOffset != r.Log().RemoteEndOffset() {
		r.Log().SetRemoteEndOffset(res.RemoteEndOffset)
		r.publish()
	}
	return nil
}

// followStart lets the log begin where the leader's does, if that is not behind its end.
func (r *Replica) followStart(start int64) error {
	if start <= r.machine.LogStart() || start > r.machine.LogEnd() {
		return nil
	}
	if err := r.Log().SetLogStartOffset(start); err != nil {
		return fmt.Errorf("move log start: %w", err)
	}
	r.startMoved()
	return nil
}

// appendCopied writes records as they came. Those of a leader on the same machine are regions of its files.
func (r *Replica) appendCopied(c *Copied) error {
	records := &c.Result.Records
	n := records.Len()
	if n == 0 {
		return nil
	}
	buffers := records.Buffers
	if len(records.Files) > 0 {
		pool := mem.DefaultBufferPool()
		data := pool.Get(n)
		defer pool.Put(data)
		if err := records.ReadInto((*data)[:n]); err != nil {
			return fmt.Errorf("%w: %w", errLeaderFile, err)
		}
		buffers = mem.BufferSlice{mem.SliceBuffer((*data)[:n])}
	}
	if err := r.appendFrom(buffers, c.LeaderEpoch); err != nil {
		return fmt.Errorf("append copied records: %w", err)
	}
	r.env.Metrics.ReplicationBytesIn.Add(int64(n))
	return nil
}

// appendFrom appends the leader's batches to the log. An empty log that begins inside the first of them, because the leader
// has deleted the records before, begins with that batch; its records before the start stay hidden.
func (r *Replica) appendFrom(records mem.BufferSlice, leaderEpoch int32) error {
	l := r.Log()
	start := l.LogStartOffset()
	it := recordbatch.IterateBuffers(records)
	if start < l.LogEndOffset() || !it.Next() || it.Header().BaseOffset() >= start || it.Header().LastOffset() < start {
		return l.AppendAsFollowerOf(records, leaderEpoch)
	}
	base := it.Header().BaseOffset()
	if err := l.TruncateFullyAndStartAt(base); err != nil {
		return err
	}
	// Should the append fail, the log is empty at an earlier offset, from where the leader is asked again.
	r.machine.Restarted(base, base)
	if err := l.AppendAsFollowerOf(records, leaderEpoch); err != nil {
		return err
	}
	return l.SetLogStartOffset(start)
}

// cut removes what the leader does not have.
func (r *Replica) cut(leader storage.EpochEndOffset) error {
	local := r.Log().EndOffsetForEpoch(leader.Epoch)
	to := r.machine.TruncateTo(leader, local, local.Epoch >= 0)
	r.env.Logger.Info("cut the log to what the leader has", "partition", r.String(), "from", r.machine.LogEnd(), "to", to,
		"leader_epoch", leader.Epoch, "leader_end", leader.EndOffset)
	r.env.Metrics.Truncations.Add(1)
	if to < r.Log().LogStartOffset() {
		return r.restartAt(to)
	}
	if err := r.Log().TruncateTo(to); err != nil {
		return fmt.Errorf("truncate to %d: %w", to, err)
	}
	if l := r.Log(); len(l.Epochs()) == 0 && l.LogStartOffset() < l.LogEndOffset() {
		// What is left was deleted once, and is back since a crash took the mark of that. Without its epochs nobody can compare it
		// with what the leader has there.
		return r.restartAt(l.LogStartOffset())
	}
	r.Log().SetRemoteEndOffset(0)
	out := r.machine.Truncated(r.Log().LogEndOffset())
	r.Log().SetHighWatermark(r.machine.HighWatermark())
	r.apply(out)
	return nil
}

// restartAt empties the log: it has nothing in common with the leader's.
func (r *Replica) restartAt(offset int64) error {
	if err := r.Log().TruncateFullyAndStartAt(offset); err != nil {
		return fmt.Errorf("start anew at %d: %w", offset, err)
	}
	r.Log().SetRemoteEndOffset(0)
	out := r.machine.Restarted(offset, offset)
	r.Log().SetHighWatermark(offset)
	r.apply(out)
	return nil
}

// Rejoin brings a follower whose offset the leader does not have back to the leader's log, of which start and end are
// given. It returns when that is done, and says whether the follower asks for something else now.
//
// A leader that ends earlier was elected out of the ISR: what is beyond goes. A leader that begins later has deleted what
// this follower would need next, so there is nothing to keep.
func (r *Replica) Rejoin(leaderEpoch int32, start, end int64) (moved bool) {
	r.Do(func() {
		if !r.usable() || !r.machine.FollowsIn(leaderEpoch) {
			return
		}
		var err error
		own := r.machine.LogEnd()
		switch {
		case end < own && end >= r.machine.LogStart():
			err = r.cut(storage.EpochEndOffset{Epoch: -1, EndOffset: end})
		case start > own || end < own:
			r.env.Logger.Info("log starts anew where the leader's begins", "partition", r.String(), "own_end", own, "start", start)
			err = r.restartAt(start)
		}
		if err != nil {
			r.fail(err)
		}
		moved = r.machine.LogEnd() != own
	})
	return moved
}
