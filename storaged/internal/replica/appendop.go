package replica

import (
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// AppendOp is an append request under way: it collects the outcomes of its partitions, in whatever order they come, and
// answers once all are there or the time is over.
//
// Each partition settles once. Until the batch is being written the time-out may settle it as never written; afterwards only
// as of unknown outcome.
type AppendOp struct {
	req  *storage.AppendRequest
	done func(*storage.AppendResult)

	mu      sync.Mutex
	result  storage.AppendResult
	stages  []stage
	pending int
	timer   *time.Timer
}

// stage says how far a partition of an append is.
type stage int8

const (
	// stageHeld waits for metadata: nothing has been decided.
	stageHeld stage = iota
	// stageQueued is in a replica's mailbox.
	stageQueued
	// stageWriting is being written or has been.
	stageWriting
	stageSettled
)

// NewAppendOp begins a request, which it takes over with its buffers.
func NewAppendOp(req *storage.AppendRequest, done func(*storage.AppendResult)) *AppendOp {
	n := len(req.Partitions)
	op := &AppendOp{req: req, done: done, pending: n, stages: make([]stage, n)}
	op.result.Partitions = make([]storage.PartitionAppendResult, n)
	for i := range req.Partitions {
		p := &req.Partitions[i]
		op.result.Partitions[i] = storage.PartitionAppendResult{
			TopicID: p.TopicID, Partition: p.Partition,
			BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: -1, Leader: storage.NoLeader,
		}
	}
	return op
}

// Request is the request.
func (op *AppendOp) Request() *storage.AppendRequest { return op.req }

// Watch bounds the time of what has not settled yet.
func (op *AppendOp) Watch(timeout time.Duration) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.pending > 0 && op.timer == nil {
		op.timer = time.AfterFunc(timeout, op.expire)
	}
}

// expire settles everything that is left.
func (op *AppendOp) expire() {
	for i := range op.stages {
		op.mu.Lock()
		written := op.stages[i] != stageHeld
		op.mu.Unlock()
		op.settle(i, func(r *storage.PartitionAppendResult) {
			r.Error, r.OutcomeUnknown = errcode.RequestTimedOut, written
			if !written {
				// The node did not learn in time that it leads the partition: that is its answer.
				r.Error = errcode.NotLeaderOrFollower
			}
		})
	}
}

// advance moves a partition to a later stage; false when it has settled meanwhile.
func (op *AppendOp) advance(i int, s stage) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	if op.stages[i] == stageSettled {
		return false
	}
	op.stages[i] = s
	return true
}

// settle gives a partition its outcome, unless it has one, and answers the request when it was the last.
func (op *AppendOp) settle(i int, set func(*storage.PartitionAppendResult)) {
	op.mu.Lock()
	if op.stages[i] == stageSettled {
		op.mu.Unlock()
		return
	}
	op.stages[i] = stageSettled
	set(&op.result.Partitions[i])
	op.pending--
	last := op.pending == 0
	timer := op.timer
	op.mu.Unlock()
	if last {
		if timer != nil {
			timer.Stop()
		}
		op.done(&op.result)
	}
}

// Refuse settles a partition whose batch no replica has taken, and frees its records.
func (op *AppendOp) Refuse(i int, code errcode.Code, leader storage.CurrentLeader) {
	op.free(i)
	op.settle(i, func(r *storage.PartitionAppendResult) { r.Error, r.Leader = code, leader })
}

// Settled says whether a partition has its outcome.
func (op *AppendOp) Settled(i int) bool {
	op.mu.Lock()
	defer op.mu.Unlock()
	return op.stages[i] == stageSettled
}

// Discard frees the records of a partition that has its outcome and that no replica has taken.
func (op *AppendOp) Discard(i int) { op.free(i) }

// free gives a partition's records back. Whoever holds the partition's turn calls it, once.
func (op *AppendOp) free(i int) {
	op.req.Partitions[i].Records.Free()
	op.req.Partitions[i].Records = nil
}
