package replica

import (
	"fmt"

	"chancery/services/kafka/errcode"
)

// highWatermark in a DeleteRecords request stands for the high watermark.
const highWatermark = -1

// Deleted is the outcome of a deletion.
type Deleted struct {
	Code         errcode.Code
	LowWatermark int64
}

// waitingDelete waits until every live replica begins at its offset.
type waitingDelete struct {
	offset int64
	result chan<- Deleted
}

// DeleteRecords moves the log start up. The outcome comes on the channel, which must have room for it, once every live
// replica has followed.
func (r *Replica) DeleteRecords(offset int64, result chan<- Deleted) {
	r.post(event{do: func() {
		offset, err := r.deleteBelow(offset)
		if err != nil {
			result <- Deleted{Code: errcode.Of(err), LowWatermark: -1}
			return
		}
		if low := r.machine.LowWatermark(); low >= offset {
			result <- Deleted{LowWatermark: low}
			return
		}
		r.env.Metrics.WaitingDeletes.Add(1)
		r.deletes = append(r.deletes, waitingDelete{offset, result})
	}})
}

func (r *Replica) deleteBelow(offset int64) (int64, error) {
	if r.failed {
		return 0, errcode.KafkaStorageError.Err()
	}
	if !r.View().Leads() {
		return 0, errcode.NotLeaderOrFollower.Err()
	}
	if r.shards != 0 {
		return 0, errcode.InvalidTopicException.Err()
	}
	if r.config.CleanupCompact && !r.config.CleanupDelete {
		return 0, errcode.PolicyViolation.Err()
	}
	if offset == highWatermark {
		offset = r.machine.HighWatermark()
	}
	if offset < 0 || offset > r.machine.HighWatermark() {
		return 0, errcode.OffsetOutOfRange.Err()
	}
	if offset > r.machine.LogStart() {
		if err := r.Log().SetLogStartOffset(offset); err != nil {
			r.fail(fmt.Errorf("delete records below %d: %w", offset, err))
			return 0, errcode.KafkaStorageError.Wrap(err)
		}
		r.startMoved()
	}
	return offset, nil
}

// ForgetDelete ends a wait whose time is over.
func (r *Replica) ForgetDelete(result chan<- Deleted) {
	r.post(event{do: func() {
		for i := range r.deletes {
			if r.deletes[i].result == result {
				r.dropDelete(i)
				return
			}
		}
	}})
}

// finishDeletes answers the deletions that every live replica has followed.
func (r *Replica) finishDeletes() {
	if len(r.deletes) == 0 {
		return
	}
	low := r.machine.LowWatermark()
	for i := len(r.deletes) - 1; i >= 0; i-- {
		if w := r.deletes[i]; w.offset <= low {
			w.result <- Deleted{LowWatermark: low}
			r.dropDelete(i)
		}
	}
}

func (r *Replica) failDeletes(code errcode.Code) {
	for i := len(r.deletes) - 1; i >= 0; i-- {
		r.deletes[i].result <- Deleted{Code: code, LowWatermark: -1}
		r.dropDelete(i)
	}
}

func (r *Replica) dropDelete(i int) {
	r.env.Metrics.WaitingDeletes.Add(-1)
	last := len(r.deletes) - 1
	r.deletes[i] = r.deletes[last]
	r.deletes[last] = waitingDelete{}
	r.deletes = r.deletes[:last]
}
