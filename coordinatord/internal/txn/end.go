package txn

import (
	"math"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

func failedEnd(code errcode.Code) EndReply { return EndReply{Code: code, Producer: noProducer} }

// end commits or aborts a transaction.
func (m *Machine) end(now time.Time, c *End, out *Effects) EndReply {
	t := m.newest(c.ID)
	switch {
	case t == nil:
		return failedEnd(errcode.InvalidProducerIdMapping)
	case c.Version < epochBumps:
		return m.endByEpoch(now, t, c, out)
	}
	return m.endWithBump(now, t, c, out)
}

// endByEpoch ends a transaction of a producer that keeps its epoch. A repeated request gets the same answer, for the other outcome
// it is an error.
func (m *Machine) endByEpoch(now time.Time, t *Transaction, c *End, out *Effects) EndReply {
	switch {
	case t.ProducerID != c.Producer.ID:
		return failedEnd(errcode.InvalidProducerIdMapping)
	case t.Epoch != c.Producer.Epoch:
		return failedEnd(errcode.ProducerFenced)
	case t.State.ending():
		return failedEnd(errcode.ConcurrentTransactions)
	case t.State == Ongoing:
		m.write(t.prepared(c.Commit, 0, recordbatch.NoProducerID, now.UnixMilli()), out)
		return EndReply{Producer: noProducer}
	case t.State == CompleteCommit && c.Commit, t.State == CompleteAbort && !c.Commit:
		return EndReply{Producer: noProducer}
	}
	return failedEnd(errcode.InvalidTxnState)
}

// endWithBump ends a transaction of a producer that gets another epoch with each. A request with the epoch before the present one
// repeats one whose answer was lost. One with the present epoch is about the transaction that begins: since its producer cannot
// know whether anything was added to it, an abort is always right.
//
//	                 abort           commit
//	                 repeated  now   repeated  now
//	Empty            fenced    bump  fenced    invalid
//	CompleteAbort    none      bump  invalid   invalid
//	CompleteCommit   invalid   bump  none      invalid
func (m *Machine) endWithBump(now time.Time, t *Transaction, c *End, out *Effects) EndReply {
	if t.State.ending() {
		// The producer may have the id and epoch of its next transaction already.
		return failedEnd(errcode.ConcurrentTransactions)
	}
	overflow := t.PrevProducerID == c.Producer.ID && c.Producer.Epoch == math.MaxInt16-1 && t.Epoch == 0
	repeated := overflow || int(t.Epoch) == int(c.Producer.Epoch)+1
	complete := t.State == CompleteCommit || t.State == CompleteAbort
	switch {
	case t.ProducerID != c.Producer.ID && !overflow:
		return failedEnd(errcode.InvalidProducerIdMapping)
	case t.Epoch != c.Producer.Epoch && (!complete || !repeated):
		return failedEnd(errcode.ProducerFenced)
	case complete && repeated:
		if c.Commit == (t.State == CompleteCommit) {
			return EndReply{Producer: Producer{t.ProducerID, t.Epoch}}
		}
		return failedEnd(errcode.InvalidTxnState)
	case t.State != Ongoing && c.Commit:
		return failedEnd(errcode.InvalidTxnState)
	}
	next := recordbatch.NoProducerID
	if exhausted(t.Epoch) {
		if c.NewProducerID == recordbatch.NoProducerID {
			return EndReply{NeedsID: true}
		}
		next = c.NewProducerID
	}
	prepared := t.prepared(c.Commit, c.Version, next, now.UnixMilli())
	m.write(prepared, out)
	goesOn := prepared.completed(now.UnixMilli())
	return EndReply{Producer: Producer{goesOn.ProducerID, goesOn.Epoch}}
}
