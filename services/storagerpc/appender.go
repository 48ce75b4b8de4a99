package storagerpc

import (
	"log/slog"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
)

// appender spreads appends over lanes so that the order of each partition holds; the package comment says how. Its mutex
// guards all its state and that of the lanes; nothing waits while holding it, and callbacks run outside of it.
type appender struct {
	logger    *slog.Logger
	bulkBytes int
	// lanes[0] is the small one; the others, if any, are for bulk.
	lanes []*appendLane
	// receivers are the receiving goroutines of all streams.
	receivers sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// pins has the partitions with unanswered appends.
	pins map[partitionKey]*pin
}

type partitionKey struct {
	topicID   uuid.UUID
	partition int32
}

// pin ties a partition to a lane while it has unanswered appends there. Invariant: every unanswered append of the
// partition that a lane has is on this lane; those in held are on none.
type pin struct {
	lane       *appendLane
	unanswered int
	// held are later appends, in order, that wait until none is unanswered to move to a bulk lane.
	held []*part
}

// part is what of an append goes to one lane: all of it, as a rule.
type part struct {
	req      *storage.AppendRequest
	bytes    int
	deadline time.Time
	// done takes the answer to a whole append; split is set instead when this is only a part of one.
	done  func(*storage.AppendResult)
	split *splitAppend
	// indexes are where the part's partitions are in the whole append.
	indexes []int
}

// splitAppend collects the answers to the parts of an append.
type splitAppend struct {
	result  *storage.AppendResult
	waiting int
	done    func(*storage.AppendResult)
}

// answer is a result for a part, to be given to its sender outside of the lock.
type answer struct {
	done   func(*storage.AppendResult)
	result *storage.AppendResult
}

func newAppender(lanes []*appendLane, bulkBytes int, logger *slog.Logger) *appender {
	a := &appender{logger: logger, bulkBytes: bulkBytes, lanes: lanes, pins: map[partitionKey]*pin{}}
	for _, lane := range lanes {
		lane.start(a)
	}
	return a
}

// submit takes over an append.
func (a *appender) submit(req *storage.AppendRequest, done func(*storage.AppendResult)) {
	bytes := recordBytes(req)
	deadline := time.Now().Add(time.Duration(max(0, req.TimeoutMs))*time.Millisecond + answerGrace)
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		releaseRecords(req)
		done(failed(req, errcode.NotLeaderOrFollower, false))
		return
	}
	whole := &part{req: req, bytes: bytes, deadline: deadline, done: done}
	if lane, together := a.commonLane(req, bytes); together {
		a.send(lane, whole)
	} else {
		a.sendSplit(whole)
	}
	a.mu.Unlock()
}

// commonLane finds the lane for all partitions of an append, if there is one.
func (a *appender) commonLane(req *storage.AppendRequest, bytes int) (lane *appendLane, together bool) {
	for i := range req.Partitions {
		p := a.pins[keyOf(&req.Partitions[i])]
		if p == nil {
			continue
		}
		if a.mustHold(p, bytes) || lane != nil && lane != p.lane {
			return nil, false
		}
		lane = p.lane
	}
	if lane == nil {
		lane = a.freeLane(bytes)
	}
	return lane, true
}

// mustHold says whether an append for a pinned partition has to wait for the partition to move: it is bulk and the
// partition is on the small lane, or others wait already.
func (a *appender) mustHold(p *pin, bytes int) bool {
	return len(p.held) > 0 || bytes > a.bulkBytes && p.lane == a.lanes[0] && len(a.lanes) > 1
}

// freeLane chooses a lane for partitions that are pinned to none: for bulk the one with the fewest bytes on it.
func (a *appender) freeLane(bytes int) *appendLane {
	if bytes <= a.bulkBytes || len(a.lanes) == 1 {
		return a.lanes[0]
	}
	best := a.lanes[1]
	for _, lane := range a.lanes[2:] {
		if lane.bytes < best.bytes {
			best = lane
		}
	}
	return best
}

// send pins the partitions of a part to a lane and puts it there.
func (a *appender) send(lane *appendLane, p *part) {
	for i := range p.req.Partitions {
		key := keyOf(&p.req.Partitions[i])
		if pinned := a.pins[key]; pinned != nil {
			pinned.unanswered++
			continue
		}
		a.pins[key] = &pin{lane: lane, unanswered: 1}
	}
	lane.enqueue(p)
}

// sendSplit sends the partitions of an append to where each of them has to go.
func (a *appender) sendSplit(whole *part) {
	req := whole.req
	split := &splitAppend{
		result: &storage.AppendResult{Partitions: make([]storage.PartitionAppendResult, len(req.Partitions))},
		done:   whole.done,
	}
	free := a.freeLane(whole.bytes)
	indexes := map[*appendLane][]int{}
	for i := range req.Partitions {
		key := keyOf(&req.Partitions[i])
		p := a.pins[key]
		switch {
		case p == nil:
			a.pins[key] = &pin{lane: free, unanswered: 1}
			indexes[free] = append(indexes[free], i)
		case a.mustHold(p, whole.bytes):
			p.held = append(p.held, split.part(whole, []int{i}))
		default:
			p.unanswered++
			indexes[p.lane] = append(indexes[p.lane], i)
		}
	}
	for lane, list := range indexes {
		lane.enqueue(split.part(whole, list))
	}
}

// part makes a part of an append out of some of its partitions.
func (s *splitAppend) part(whole *part, indexes []int) *part {
	req := *whole.req
	req.Partitions = make([]storage.PartitionAppend, len(indexes))
	for j, i := range indexes {
		req.Partitions[j] = whole.req.Partitions[i]
	}
	s.waiting++
	return &part{req: &req, bytes: recordBytes(&req), deadline: whole.deadline, split: s, indexes: indexes}
}

// finish notes that a part is answered, lets its partitions go, and gives what its sender is owed, if anything yet.
func (a *appender) finish(lane *appendLane, p *part, result *storage.AppendResult) (answer, bool) {
	lane.bytes -= p.bytes
	for i := range p.req.Partitions {
		a.unpin(keyOf(&p.req.Partitions[i]))
	}
	if p.split == nil {
		return answer{done: p.done, result: result}, true
	}
	for j, i := range p.indexes {
		p.split.result.Partitions[i] = result.Partitions[j]
	}
	p.split.waiting--
	return answer{done: p.split.done, result: p.split.result}, p.split.waiting == 0
}

// unpin notes an answer for a partition. With the last one the appends that were held move to a bulk lane.
func (a *appender) unpin(key partitionKey) {
	p := a.pins[key]
	if p.unanswered--; p.unanswered > 0 {
		return
	}
	if len(p.held) == 0 {
		delete(a.pins, key)
		return
	}
	held := p.held
	p.held = nil
	p.lane = a.freeLane(a.bulkBytes + 1)
	p.unanswered = len(held)
	for _, h := range held {
		p.lane.enqueue(h)
	}
}

// answered takes the node's results from a lane.
func (a *appender) answered(s *appendStream, results []numberedResult) {
	answers := make([]answer, 0, len(results))
	a.mu.Lock()
	for _, r := range results {
		p := s.unanswered[r.id]
		if p == nil {
			continue
		}
		delete(s.unanswered, r.id)
		if len(r.result.Partitions) != len(p.req.Partitions) {
			r.result = failed(p.req, errcode.UnknownServerError, true)
		}
		if done, ok := a.finish(s.lane, p, r.result); ok {
			answers = append(answers, done)
		}
	}
	a.mu.Unlock()
	deliver(answers)
}

// fail answers parts that the node will not.
func (a *appender) fail(lane *appendLane, parts []*part, code errcode.Code, outcomeUnknown bool) {
	answers := make([]answer, 0, len(parts))
	a.mu.Lock()
	for _, p := range parts {
		releaseRecords(p.req)
		if done, ok := a.finish(lane, p, failed(p.req, code, outcomeUnknown)); ok {
			answers = append(answers, done)
		}
	}
	a.mu.Unlock()
	deliver(answers)
}

func deliver(answers []answer) {
	for _, a := range answers {
		a.done(a.result)
	}
}

// expire breaks the streams on which an answer is overdue, since a node that does not keep the time it was given is as good
// as lost, and fails what has waited too long to be sent.
func (a *appender) expire(now time.Time) {
	for _, lane := range a.lanes {
		a.mu.Lock()
		stream, overdue := lane.stream, false
		if stream != nil {
			for _, p := range stream.unanswered {
				overdue = overdue || now.After(p.deadline)
			}
		}
		stale := lane.takeStale(now)
		a.mu.Unlock()
		if overdue {
			a.logger.Warn("storage node does not answer in time, giving the connection's stream up")
			stream.cancel()
		}
		a.fail(lane, stale, errcode.RequestTimedOut, false)
	}
}

// close fails everything and refuses what comes later.
func (a *appender) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	for _, lane := range a.lanes {
		<-lane.ended
	}
	a.receivers.Wait()
	for {
		// Answers move held appends to other lanes, so the queues are emptied until nothing comes any more.
		idle := true
		for _, lane := range a.lanes {
			a.mu.Lock()
			queued := lane.takeQueue()
			a.mu.Unlock()
			idle = idle && len(queued) == 0
			a.fail(lane, queued, errcode.NotLeaderOrFollower, false)
		}
		if idle {
			return
		}
	}
}

func keyOf(p *storage.PartitionAppend) partitionKey {
	return partitionKey{topicID: p.TopicID, partition: p.Partition}
}
