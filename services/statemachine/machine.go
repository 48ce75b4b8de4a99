// Package statemachine is the runtime of coordinator shards: it keeps one pure state machine for each partition of an
// internal topic, whose log is the machine's only durable state.
//
// It owns the life of a shard: loading by replay, one command after the other, batches, appends, answers once they are
// durable, rolling back what was not written, and giving up when another instance owns the shard. It must never know
// what the commands mean; groups, transactions and share state are machines on it.
//
// # How a command is carried out
//
//	command -> Decide -> records -> Apply at once, in memory only
//	                             -> encoded into the open batch
//	one run of batches at a time -> append with acks=all -> Commit each record -> answers
//
// Records of transactions, and the markers that end them, have batches of their own; all others share one. Everything that
// is decided while an append is under way goes out together with the next one, so the size of batches follows the load by
// itself. A command sees the records of all commands before it, also of those whose append is still
// under way; its own answer waits for all of them. So a failed append takes back everything that was decided since, and
// nobody has seen any of it.
package statemachine

import (
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// Ticket names a caller that waits for an answer. The zero Ticket is nobody.
type Ticket uint64

// Machine is the state of one shard and the rules by which it changes. It is pure: no clock, file, network, goroutine or
// randomness of its own. It belongs to one goroutine.
//
// A machine has a durable part, which only records change, and may have a soft part (who waits for what, deadlines) that
// Decide, Tick, Commit and Rollback change at once and that is lost with the shard. Every record that is applied is
// settled exactly once, by Commit or by Rollback.
type Machine[C, R, A any] interface {
	// Decide carries out a command: it puts the records that it wants written into out, and the answer for the ticket.
	// It may keep the ticket and answer later. It must not change the durable part.
	Decide(now time.Time, t Ticket, command C, out *Effects[R, A])
	// Apply changes the newest, not yet durable, state by a record: by one that Decide, Tick or Commit has just put into
	// its effects, or by a replayed one.
	Apply(r R)
	// Commit makes a record durable: reads of committed state see it from now on. It follows Apply, in the order of the log.
	Commit(now time.Time, offset int64, r R, out *Effects[R, A])
	// Rollback takes back the records that were applied and not committed: all of them, oldest first. None of them is in
	// the log. The callers whose answers waited for them have been told. Reasons has for each record what is to be told.
	Rollback(now time.Time, records []R, reasons []errcode.Code, out *Effects[R, A])
	// Loaded is called once, when the machine has been brought to the end of the log and is about to serve.
	Loaded(now time.Time, out *Effects[R, A])
	Timers[R, A]
}

// Timers is the part of a machine that time drives.
type Timers[R, A any] interface {
	// Due is when Tick has to be called next; the zero time means never.
	Due() time.Time
	// Tick does what is due.
	Tick(now time.Time, out *Effects[R, A])
}

// Codec turns records into bytes and back. It keeps no state.
type Codec[R any] interface {
	// Encode appends the record's key and then its value to dst. valueAt is where the value begins; hasValue is false for
	// a tombstone.
	Encode(dst []byte, r R) (out []byte, valueAt int, hasValue bool)
	// Decode reads a record of a batch. It gives false for a record that is to be skipped. Control records come too.
	// The bytes belong to the caller.
	Decode(batch recordbatch.Header, record *recordbatch.Record) (R, bool, error)
}

// Frame is what the header of a batch says beside its records. Records of one frame share a batch.
type Frame struct {
	// ProducerID and ProducerEpoch are those of the transaction that the records belong to.
	ProducerID    int64
	ProducerEpoch int16
	// Control marks a record that ends the transaction; it has a batch for itself.
	Control bool
}

// plainFrame is the frame of records outside transactions.
var plainFrame = Frame{ProducerID: recordbatch.NoProducerID, ProducerEpoch: recordbatch.NoProducerEpoch}

// PlainFrame is the frame of records outside transactions.
func PlainFrame() Frame { return plainFrame }

// Framer is implemented by a Codec some of whose records belong to transactions.
type Framer[R any] interface {
	// Frame is the frame of a record's batch.
	Frame(r R) Frame
}

// Effects collects what a machine wants done.
type Effects[R, A any] struct {
	records []R
	split   bool
	after   []answer[A]
	now     []answer[A]
}

// answer is what a caller is told: a reply, or an error code when code is not None.
type answer[A any] struct {
	ticket Ticket
	reply  A
	code   errcode.Code
	// wrote says that it is the answer to a command that has written records.
	wrote bool
}

// Append wants a record written. The records of one call of the machine go into one batch.
func (e *Effects[R, A]) Append(r R) { e.records = append(e.records, r) }

// Split allows the records of this call to be spread over several batches: they need not become durable together.
func (e *Effects[R, A]) Split() { e.split = true }

// Answer answers a caller once everything that was decided so far, and the records of this call, are durable.
// An answer to a ticket that has its answer already is dropped.
func (e *Effects[R, A]) Answer(t Ticket, reply A) {
	if t != 0 {
		e.after = append(e.after, answer[A]{ticket: t, reply: reply})
	}
}

// AnswerNow answers a caller at once: the reply depends on nothing that may still be rolled back.
func (e *Effects[R, A]) AnswerNow(t Ticket, reply A) {
	if t != 0 {
		e.now = append(e.now, answer[A]{ticket: t, reply: reply})
	}
}

// Fail tells a caller at once that its command failed.
func (e *Effects[R, A]) Fail(t Ticket, code errcode.Code) {
	if t != 0 {
		e.now = append(e.now, answer[A]{ticket: t, code: code})
	}
}

// Records are the records that were appended, for tests of machines.
func (e *Effects[R, A]) Records() []R { return e.records }

// Answers calls f for each answer, for tests of machines: code is None for a reply, and durable tells whether the answer
// waits for the records.
func (e *Effects[R, A]) Answers(f func(t Ticket, reply A, code errcode.Code, durable bool)) {
	for _, a := range e.now {
		f(a.ticket, a.reply, a.code, false)
	}
	for _, a := range e.after {
		f(a.ticket, a.reply, a.code, true)
	}
}

// Reset forgets everything, so that the memory can be used again.
func (e *Effects[R, A]) Reset() {
	clear(e.records)
	clear(e.after)
	clear(e.now)
	e.records, e.after, e.now, e.split = e.records[:0], e.after[:0], e.now[:0], false
}
