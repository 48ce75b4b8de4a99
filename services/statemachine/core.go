package statemachine

import (
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// maxRecordOverhead is the most that a record takes beside its key and value: its length, attributes, two deltas, two
// lengths and the number of headers.
const maxRecordOverhead = 32

// The bounds of the batches that are appended together.
const (
	maxRunBatches = 64
	maxRunBytes   = 4 << 20
)

// outcome is what a caller is told.
type outcome[A any] struct {
	reply A
	err   error
}

// batch is records on their way into the log, and the answers that wait for them.
type batch[R, A any] struct {
	builder *recordbatch.Builder
	frame   Frame
	records []R
	answers []answer[A]
	// answerBy is when those answers are due, whatever becomes of the records.
	answerBy time.Time
}

// core carries out commands on a machine: it is what the loop of a shard does between two waits. It has no goroutine and
// does no IO.
type core[C, R, A any] struct {
	machine       Machine[C, R, A]
	codec         Codec[R]
	framer        Framer[R] // nil when all batches are plain
	batchOptions  recordbatch.BatchOptions
	codecs        *recordbatch.Codecs
	maxBatchBytes int
	answerTimeout time.Duration

	waiters map[Ticket]chan outcome[A]
	// batches are those that are not settled, oldest first; the first inFlight of them are being appended.
	batches     []*batch[R, A]
	inFlight    int
	queuedBytes int
	// end is where the log ends.
	end int64

	effects Effects[R, A]
	// scratch, spans and builders are memory that is used again.
	scratch  []byte
	spans    []span
	builders []*recordbatch.Builder
	last     Ticket
	stats    *Stats
}

// span is an encoded record in scratch.
type span struct {
	key, value, end int
	hasValue        bool
}

// decide carries out a command for a caller, who may be nobody.
func (c *core[C, R, A]) decide(now time.Time, command C, caller chan outcome[A]) {
	var t Ticket
	if caller != nil {
		c.last++
		t = c.last
		c.waiters[t] = caller
	}
	c.machine.Decide(now, t, command, &c.effects)
	c.carryOut(now)
}

// carryOut does what the machine has put into the effects.
func (c *core[C, R, A]) carryOut(now time.Time) {
	e := &c.effects
	if len(e.records) > 0 {
		for i := range e.after {
			e.after[i].wrote = true
		}
		c.enqueue(now, e.records, e.split)
		for _, r := range e.records {
			c.machine.Apply(r)
		}
		c.stats.Records.Add(int64(len(e.records)))
	}
	if n := len(c.batches); n > 0 {
		c.batches[n-1].answers = append(c.batches[n-1].answers, e.after...)
	} else {
		c.answer(e.after)
	}
	c.answer(e.now)
	e.Reset()
}

func (c *core[C, R, A]) answer(answers []answer[A]) {
	for i := range answers {
		a := &answers[i]
		if a.code != errcode.None {
			c.tell(a.ticket, outcome[A]{err: a.code.Err()})
		} else {
			c.tell(a.ticket, outcome[A]{reply: a.reply})
		}
	}
}

func (c *core[C, R, A]) tell(t Ticket, o outcome[A]) {
	if caller := c.waiters[t]; caller != nil {
		delete(c.waiters, t)
		caller <- o
	}
}

// enqueue puts records into the open batch, or into a new one where that is being appended or too full for them.
func (c *core[C, R, A]) enqueue(now time.Time, records []R, split bool) {
	c.scratch, c.spans = c.scratch[:0], c.spans[:0]
	for _, r := range records {
		at := len(c.scratch)
		var s span
		c.scratch, s.value, s.hasValue = c.codec.Encode(c.scratch, r)
		s.key, s.end = at, len(c.scratch)
		c.spans = append(c.spans, s)
	}
	whole := len(c.scratch) + len(records)*maxRecordOverhead
	for i, r := range records {
		s := c.spans[i]
		room := whole
		switch {
		case split:
			room = s.end - s.key + maxRecordOverhead
		case i > 0:
			room = 0
		}
		b := c.openBatch(now, room, c.frameOf(r))
		before := b.builder.Size()
		var key, value []byte
		if s.value > s.key {
			key = c.scratch[s.key:s.value] // records of a machine without keys have none, rather than an empty one
		}
		if s.hasValue {
			value = c.scratch[s.value:s.end]
		}
		b.builder.Append(now.UnixMilli(), key, value)
		b.records = append(b.records, r)
		c.queuedBytes += b.builder.Size() - before
	}
}

// frameOf is the frame of the batch that a record goes into.
func (c *core[C, R, A]) frameOf(r R) Frame {
	if c.framer == nil {
		return plainFrame
	}
	return c.framer.Frame(r)
}

// openBatch is the batch that takes records of a size and a frame. A control batch has one record.
func (c *core[C, R, A]) openBatch(now time.Time, room int, frame Frame) *batch[R, A] {
	if n := len(c.batches); n > c.inFlight {
		b := c.batches[n-1]
		if b.frame == frame && !frame.Control && b.builder.Size()+room <= c.maxBatchBytes {
			return b
		}
	}
	b := &batch[R, A]{builder: c.takeBuilder(frame), frame: frame, answerBy: now.Add(c.answerTimeout)}
	c.queuedBytes += b.builder.Size()
	c.batches = append(c.batches, b)
	return b
}

func (c *core[C, R, A]) takeBuilder(frame Frame) *recordbatch.Builder {
	options := c.batchOptions
	if frame != plainFrame {
		options.ProducerID, options.ProducerEpoch = frame.ProducerID, frame.ProducerEpoch
		options.Transactional, options.Control = true, frame.Control
		if frame.Control {
			options.Codec = recordbatch.None
		} else {
			options.BaseSequence = 0 // coordinators do not count; Kafka writes 0
		}
	}
	n := len(c.builders)
	if n == 0 {
		return recordbatch.NewBuilder(c.codecs, options)
	}
	b := c.builders[n-1]
	c.builders = c.builders[:n-1]
	b.Reset(options)
	return b
}

// flush gives the run of batches that is to be appended now, if there is one, and where the log has to end for it.
func (c *core[C, R, A]) flush(now time.Time) (run [][]byte, end int64, ok bool) {
	if c.inFlight > 0 || len(c.batches) == 0 {
		return nil, 0, false
	}
	size := 0
	for _, b := range c.batches {
		// One that may be too large for the log goes alone, so that the others are not refused with it.
		if len(run) == maxRunBatches || len(run) > 0 && (size+b.builder.Size() > maxRunBytes || c.tooLarge(b) || c.tooLarge(c.batches[0])) {
			break
		}
		bytes, err := b.builder.Build()
		if err != nil {
			c.refused(now, errcode.Of(err))
			return nil, 0, false
		}
		size += b.builder.Size()
		run = append(run, bytes)
	}
	c.inFlight = len(run)
	c.stats.Batches.Add(int64(len(run)))
	return run, c.end, true
}

// appended settles the batches in flight: they are in the log from base on, and durable.
func (c *core[C, R, A]) appended(now time.Time, base int64) {
	settled := c.batches[:c.inFlight]
	c.batches = c.batches[c.inFlight:]
	c.inFlight = 0
	c.end = base
	for _, b := range settled {
		c.queuedBytes -= b.builder.Size()
		c.builders = append(c.builders, b.builder)
		for i, r := range b.records {
			c.machine.Commit(now, c.end+int64(i), r, &c.effects)
		}
		c.end += int64(len(b.records))
		c.answer(b.answers)
	}
	clear(settled)
	c.carryOut(now)
}

// tooLarge says whether a batch is larger than the log is known to take: the batch of one command that has written so much.
func (c *core[C, R, A]) tooLarge(b *batch[R, A]) bool { return b.builder.Size() > c.maxBatchBytes }

// refused takes back everything that was decided and is not durable: the batch in flight is not in the log, and what came
// after it was decided in the belief that it would be. When one command has written too much, the others may come again.
func (c *core[C, R, A]) refused(now time.Time, reason errcode.Code) {
	code := clientCode(reason)
	others := code
	if isTooLarge(reason) && len(c.batches) > 0 && c.tooLarge(c.batches[0]) {
		others = errcode.CoordinatorNotAvailable
	}
	var records []R
	var reasons []errcode.Code
	for i, b := range c.batches {
		own := others
		if i == 0 {
			own = code
		}
		for range b.records {
			reasons = append(reasons, own)
		}
		records = append(records, b.records...)
		c.failAnswers(b, own, others)
		c.builders = append(c.builders, b.builder)
	}
	c.batches, c.inFlight, c.queuedBytes = nil, 0, 0
	c.stats.Rollbacks.Add(1)
	c.machine.Rollback(now, records, reasons, &c.effects)
	c.carryOut(now)
}

// failAnswers tells those who have written into a batch one code, and those who only waited for it another.
func (c *core[C, R, A]) failAnswers(b *batch[R, A], wrote, waited errcode.Code) {
	for i := range b.answers {
		code := waited
		if b.answers[i].wrote {
			code = wrote
		}
		c.tell(b.answers[i].ticket, outcome[A]{err: code.Err()})
	}
	b.answers = nil
}

// tick does what is due at a time.
func (c *core[C, R, A]) tick(now time.Time) {
	if due := c.machine.Due(); !due.IsZero() && !due.After(now) {
		c.machine.Tick(now, &c.effects)
		c.carryOut(now)
	}
	// The log does not answer. The callers are not kept waiting; their records stay on the way.
	for _, b := range c.batches {
		if len(b.answers) > 0 && !b.answerBy.After(now) {
			c.failAnswers(b, errcode.CoordinatorNotAvailable, errcode.CoordinatorNotAvailable)
		}
	}
}

// due is when tick has something to do; zero means never.
func (c *core[C, R, A]) due() time.Time {
	due := c.machine.Due()
	for _, b := range c.batches {
		if len(b.answers) > 0 && (due.IsZero() || b.answerBy.Before(due)) {
			due = b.answerBy
		}
	}
	return due
}

// abandon tells everyone who still waits that this is the end of the machine.
func (c *core[C, R, A]) abandon(code errcode.Code) {
	for t, caller := range c.waiters {
		delete(c.waiters, t)
		caller <- outcome[A]{err: code.Err()}
	}
}

// clientCode is what a failed append means for those who asked a coordinator.
func clientCode(reason errcode.Code) errcode.Code {
	switch reason {
	case errcode.UnknownTopicOrPartition, errcode.UnknownTopicId, errcode.NotEnoughReplicas, errcode.RequestTimedOut,
		errcode.NotLeaderOrFollower, errcode.LeaderNotAvailable, errcode.BrokerNotAvailable, errcode.NetworkException,
		errcode.KafkaStorageError, errcode.FencedLeaderEpoch, errcode.UnknownLeaderEpoch:
		return errcode.CoordinatorNotAvailable
	}
	if isTooLarge(reason) {
		return errcode.UnknownServerError
	}
	return reason
}

// isTooLarge says that an append was refused for its size.
func isTooLarge(reason errcode.Code) bool {
	return reason == errcode.MessageTooLarge || reason == errcode.RecordListTooLarge || reason == errcode.InvalidFetchSize
}
