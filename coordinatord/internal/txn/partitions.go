package txn

import (
	"time"

	"chancery/services/kafka/errcode"
)

// The sizes that bound what a record takes in a batch beside its strings.
const (
	recordOverhead    = 160
	partitionOverhead = 12
)

// add adds partitions to a transaction.
func (m *Machine) add(now time.Time, c *Add, out *Effects) errcode.Code {
	t := m.newest(c.ID)
	switch {
	case t == nil:
		return errcode.InvalidProducerIdMapping
	case t.State.ending():
		// The producer may have the id and epoch of its next transaction already.
		return errcode.ConcurrentTransactions
	case t.ProducerID != c.Producer.ID:
		return errcode.InvalidProducerIdMapping
	case t.Epoch != c.Producer.Epoch:
		return errcode.ProducerFenced
	case t.State == Ongoing && t.has(c.Partitions):
		return errcode.None
	}
	next := t.added(c.Partitions, c.Version, now.UnixMilli())
	if next.bytes() > m.config.MaxBatchBytes {
		return errcode.UnknownServerError
	}
	m.write(next, out)
	return errcode.None
}

// bytes bounds the size of a state in the log.
func (t *Transaction) bytes() int {
	n := recordOverhead + 2*len(t.ID)
	for p := range t.Partitions {
		n += partitionOverhead + len(p.Topic)
	}
	return n
}

// verify says which partitions are in a transaction.
func (m *Machine) verify(c *Verify) VerifyReply {
	t := m.newest(c.ID)
	switch {
	case t == nil, t.ProducerID != c.Producer.ID:
		return VerifyReply{Code: errcode.InvalidProducerIdMapping}
	case t.Epoch != c.Producer.Epoch:
		return VerifyReply{Code: errcode.ProducerFenced}
	case t.State.ending():
		return VerifyReply{Code: errcode.ConcurrentTransactions}
	}
	codes := make([]errcode.Code, len(c.Partitions))
	for i, p := range c.Partitions {
		if _, ok := t.Partitions[p]; !ok {
			codes[i] = errcode.TransactionAbortable
		}
	}
	return VerifyReply{Codes: codes}
}
