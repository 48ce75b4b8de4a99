package replica

import (
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
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

	// marker says that the batches are transaction markers; nil for everything else.
	marker *Marker

	mu      sync.Mutex
	gather  *gather
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
	// stageAside waits for a transaction's coordinator: nothing has been written, and nothing will if the time is over.
	stageAside
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
	if req.TransactionalID != "" && n > 1 {
		op.gather = &gather{left: n, has: make([]bool, n)}
	}
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

// Marker is what is to be known of transaction markers beside their batches.
type Marker struct {
	recordbatch.EndTxnMarker
	// TransactionVersion is the transaction.version by which the coordinator ends the transaction.
	TransactionVersion int16
}

// NewMarkerOp begins a request whose batches are transaction markers, one for each partition.
func NewMarkerOp(req *storage.AppendRequest, m Marker, done func(*storage.AppendResult)) *AppendOp {
	op := NewAppendOp(req, done)
	op.marker = &m
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
		stage := op.stages[i]
		op.mu.Unlock()
		op.settle(i, func(r *storage.PartitionAppendResult) {
			r.Error, r.OutcomeUnknown = errcode.RequestTimedOut, stage >= stageQueued
			if stage == stageHeld {
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
	questions := op.gather.said(i)
	set(&op.result.Partitions[i])
	op.pending--
	last := op.pending == 0
	timer := op.timer
	op.mu.Unlock()
	questions.send()
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
