package replica

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/vfs"
	"chancery/storaged/internal/partition"
)

// Check says whether a reader that knows an epoch (-1 for none) may be served by this replica.
func (v *View) Check(epoch int32, leaderOnly bool) errcode.Code {
	switch {
	case v.Failed:
		return errcode.KafkaStorageError
	case epoch >= 0 && epoch < v.LeaderEpoch:
		return errcode.FencedLeaderEpoch
	case epoch >= 0 && epoch > v.LeaderEpoch:
		return errcode.UnknownLeaderEpoch
	case v.Role == partition.Idle, leaderOnly && !v.Leads():
		return errcode.NotLeaderOrFollower
	}
	return errcode.None
}

// FailedFetch is the result of a fetch that reads nothing.
func FailedFetch(p *storage.FetchPartition, code errcode.Code, leader storage.CurrentLeader) storage.FetchPartitionResult {
	return storage.FetchPartitionResult{
		TopicID: p.TopicID, Partition: p.Partition, Error: code,
		HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1,
		PreferredReadReplica: -1, Diverging: storage.NoDivergence, Leader: leader,
	}
}

// Read reads from the replica for a fetch, at most maxBytes, but a whole batch at least when minOne is set.
//
// A follower's fetch must be told to the replica with Fetched when the result has neither an error nor divergence; view is
// what that goes by.
func (r *Replica) Read(req *storage.FetchRequest, p *storage.FetchPartition, maxBytes int, minOne bool) (res storage.FetchPartitionResult, view *View) {
	v := r.View()
	follower := req.ReplicaID >= 0
	// A consumer that names its rack may have been sent to a follower; any other one means the leader, and must not be
	// told by a follower that its offset is out of range.
	leaderOnly := follower || req.RackID == ""
	code := v.Check(p.CurrentLeaderEpoch, leaderOnly)
	if code == errcode.None && follower {
		code = r.checkFollower(req, p, v)
	}
	if code != errcode.None {
		return FailedFetch(p, code, v.CurrentLeader()), v
	}
	res = storage.FetchPartitionResult{
		TopicID: p.TopicID, Partition: p.Partition,
		HighWatermark: v.HighWatermark, LastStableOffset: v.LastStable, LogStartOffset: v.LogStart,
		PreferredReadReplica: -1, Diverging: storage.NoDivergence, Leader: storage.NoLeader, RemoteEndOffset: v.RemoteEnd,
	}
	if code := r.checkDivergence(p, v, &res); code != errcode.None {
		return r.outOfRange(p, v, code), v
	}
	if res.Diverging.Epoch >= 0 {
		return res, v
	}
	if p.FetchOffset < v.LogStart || p.FetchOffset > v.LogEnd {
		return r.outOfRange(p, v, errcode.OffsetOutOfRange), v
	}
	if p.FetchOffset < v.LocalStart {
		return r.movedToTier(req, p, v, &res), v
	}
	end := v.End(BoundOf(req))
	if p.FetchOffset >= end || maxBytes <= 0 && !minOne {
		return res, v
	}
	var err error
	if req.Isolation == storage.ReadCommitted && !follower {
		res.Records, res.AbortedTransactions, err = r.Log().ReadCommitted(p.FetchOffset, maxBytes, end, minOne)
		res.AbortedTransactions = abortedIn(&res, p.FetchOffset, end)
	} else {
		res.Records, err = r.Log().Read(p.FetchOffset, maxBytes, end, minOne)
	}
	if err != nil {
		res.Records.Release()
		res.Records = storage.Records{}
		if errcode.Of(err) == errcode.OffsetMovedToTieredStorage {
			return r.movedToTier(req, p, v, &res), v // it was deleted here since the view was made
		}
		return r.readFailed(p, v, err), v
	}
	return res, v
}

// abortedIn leaves only those of the aborted transactions that a reader of the records has to skip. Where the records end is
// told by the batch behind them. They are given by their first offsets, as some clients need them.
func abortedIn(res *storage.FetchPartitionResult, from, limit int64) []storage.AbortedTransaction {
	list, files := res.AbortedTransactions, res.Records.Files
	slices.SortStableFunc(list, func(a, b storage.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	if len(list) == 0 || len(files) == 0 {
		return list
	}
	last := &files[len(files)-1]
	var base [8]byte
	if _, err := last.File.ReadAt(base[:], last.Offset+int64(last.Length)); err == nil {
		limit = min(limit, max(from+1, int64(binary.BigEndian.Uint64(base[:]))))
	}
	return slices.DeleteFunc(list, func(t storage.AbortedTransaction) bool { return t.FirstOffset >= limit })
}

// outOfRange tells a reader where the log begins, which followers start again from.
func (r *Replica) outOfRange(p *storage.FetchPartition, v *View, code errcode.Code) storage.FetchPartitionResult {
	return FailedFetch(p, code, v.CurrentLeader())
}

// readFailed turns an error of the log into an answer. An offset may have fallen out of the log since the view was made; every
// other error is the disk's.
func (r *Replica) readFailed(p *storage.FetchPartition, v *View, err error) storage.FetchPartitionResult {
	return FailedFetch(p, r.readError(err), v.CurrentLeader())
}

// readError gives the code for an error of the log. A disk that does not give back what was written takes the log directory
// offline.
func (r *Replica) readError(err error) errcode.Code {
	code := errcode.Of(err)
	switch code {
	case errcode.UnknownServerError:
		code = errcode.KafkaStorageError
	case errcode.KafkaStorageError:
	default:
		return code
	}
	r.env.Logger.Error("cannot read the log", "partition", r.String(), "error", err)
	if l := r.Log(); isDiskError(err, l.Dir()) {
		d := r.Dir()
		r.post(event{do: func() {
			if r.Dir() == d {
				r.fail(fmt.Errorf("read: %w", err))
			}
		}})
	}
	return code
}

// isDiskError says whether an error is the file system's, and not the process's, which has no file left to open. A file that
// is not there may just have been deleted by retention; it is the disk's fault when its directory is gone as well.
func isDiskError(err error, dir string) bool {
	var path *fs.PathError
	var errno syscall.Errno
	if vfs.OutOfFiles(err) || !errors.As(err, &path) && !errors.As(err, &errno) {
		return false
	}
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat(dir)
		return err != nil
	}
	return !errors.Is(err, fs.ErrClosed)
}

// checkFollower makes sure that a follower is one, and of the present incarnation.
func (r *Replica) checkFollower(req *storage.FetchRequest, p *storage.FetchPartition, v *View) errcode.Code {
	if req.ReplicaID == r.env.Machine.Self || !slices.Contains(v.Replicas, req.ReplicaID) {
		if p.CurrentLeaderEpoch >= 0 {
			// The follower knows of its assignment before this leader does: it will try again.
			return errcode.UnknownLeaderEpoch
		}
		return errcode.NotLeaderOrFollower
	}
	if b, ok := r.env.Machine.Broker(req.ReplicaID); ok && req.ReplicaEpoch >= 0 && b.Epoch > req.ReplicaEpoch {
		return errcode.NotLeaderOrFollower
	}
	return errcode.None
}

// checkDivergence compares the reader's last epoch with the log: when the epoch ended before the reader's offset here, the
// reader has records that this log does not have.
func (r *Replica) checkDivergence(p *storage.FetchPartition, v *View, res *storage.FetchPartitionResult) errcode.Code {
	if p.LastFetchedEpoch < 0 {
		return errcode.None
	}
	if p.LastFetchedEpoch == v.LastEpoch && p.FetchOffset >= v.LogStart && p.FetchOffset <= v.LogEnd {
		return errcode.None // the usual case: the newest epoch ends where the log does
	}
	end := r.Log().EndOffsetForEpoch(p.LastFetchedEpoch)
	if end.Epoch < 0 || end.EndOffset < 0 || p.FetchOffset < v.LogStart {
		return errcode.OffsetOutOfRange
	}
	if end.Epoch < p.LastFetchedEpoch || end.EndOffset < p.FetchOffset {
		res.Diverging = end
	}
	return errcode.None
}

// Position is where a follower goes on copying.
func (r *Replica) Position(leaderEpoch int32, maxBytes int32) storage.FetchPartition {
	v := r.View()
	return storage.FetchPartition{
		TopicID: r.key.TopicID, Partition: r.key.Partition,
		CurrentLeaderEpoch: leaderEpoch, FetchOffset: v.LogEnd, LastFetchedEpoch: v.LastEpoch,
		LogStartOffset: v.LogStart, MaxBytes: maxBytes,
	}
}

// Report tells the replica of a follower's fetch.
func (r *Replica) Report(req *storage.FetchRequest, p *storage.FetchPartition, v *View, at time.Time) {
	r.Fetched(partition.FollowerFetch{
		Replica: req.ReplicaID, BrokerEpoch: req.ReplicaEpoch, LeaderEpoch: v.LeaderEpoch,
		FetchOffset: p.FetchOffset, LogStart: p.LogStartOffset, LeaderEnd: v.LogEnd, At: at,
	})
}
