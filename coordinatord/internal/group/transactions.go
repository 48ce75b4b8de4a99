package group

import (
	"math"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/recordbatch"
)

// The first versions of TxnOffsetCommit whose clients are told that a group does not exist, and that a member's epoch is not
// the present one.
const (
	txnGroupNotFound    = 6
	txnStaleMemberEpoch = 6
)

// Guard names a question to a transaction's coordinator. It ends with the transaction: an answer that was given before a
// marker came says nothing of what comes after the marker.
type Guard uint64

// producer is a producer that commits offsets in transactions.
type producer struct {
	epoch            int16
	coordinatorEpoch int32
	// open says that a transaction with offsets has not ended, by the newest view.
	open bool
	// guard is that of the question which is under way; 0 for none.
	guard Guard
	// seen is when it last wrote something.
	seen time.Time
}

func (m *Machine) producerOf(id int64) *producer {
	p := m.producers[id]
	if p == nil {
		p = &producer{epoch: recordbatch.NoProducerEpoch, coordinatorEpoch: -1}
		m.producers[id] = p
	}
	return p
}

// commitInTransaction commits offsets in a transaction. As for any partition, the first write needs the word of the transaction's
// coordinator that the partition is in the transaction.
func (m *Machine) commitInTransaction(now time.Time, c *CommitInTransaction, out *Effects) TxnCommitReply {
	p := m.producerOf(c.ProducerID)
	if c.ProducerEpoch < p.epoch {
		return TxnCommitReply{CommitReply: CommitReply{Code: errcode.InvalidProducerEpoch}}
	}
	p.seen = now
	inTransaction := p.open && c.ProducerEpoch == p.epoch
	if !inTransaction && !c.Trusted && (c.Verified == 0 || c.Verified != p.guard) {
		if p.guard == 0 {
			m.lastGuard++
			p.guard = m.lastGuard
		}
		return TxnCommitReply{Guard: p.guard}
	}
	return TxnCommitReply{CommitReply: m.commitTransactional(now, c, out)}
}

// commitTransactional checks who commits and has the offsets written.
func (m *Machine) commitTransactional(now time.Time, c *CommitInTransaction, out *Effects) CommitReply {
	g := m.find(c.Group)
	if g == nil {
		if c.Generation >= 0 {
			if c.APIVersion >= txnGroupNotFound {
				return CommitReply{Code: errcode.GroupIdNotFound}
			}
			return CommitReply{Code: errcode.IllegalGeneration}
		}
		g = m.create(now, c.Group)
	}
	if code := m.validateTransactional(g, &c.CommitOffsets); code != errcode.None {
		return CommitReply{Code: code}
	}
	if batchOverhead+commitBytes(&c.CommitOffsets) > m.config.MaxBatchBytes {
		return CommitReply{Code: errcode.UnknownServerError}
	}
	like := Record{kind: offsetRecord, groupID: c.Group, producerID: c.ProducerID, producerEpoch: c.ProducerEpoch, group: g}
	return CommitReply{Codes: m.appendOffsets(now, &c.CommitOffsets, like, grouprecord.NoTimestamp, out)}
}

// validateTransactional checks who commits in a transaction. Older clients name neither member nor generation, and the
// group's state does not matter.
func (m *Machine) validateTransactional(g anyGroup, c *CommitOffsets) errcode.Code {
	if c.Generation < 0 && c.MemberID == "" && c.InstanceID == nil {
		return errcode.None
	}
	switch g := g.(type) {
	case *Group:
		return g.validateTransactional(c)
	case *consumerGroup:
		known := *c
		known.APIVersion = commitMemberEpoch // every version knows the members of consumer groups
		code := m.validateConsumerCommit(g, &known)
		if code == errcode.StaleMemberEpoch && c.APIVersion < txnStaleMemberEpoch {
			return errcode.IllegalGeneration
		}
		return code
	}
	return errcode.UnknownServerError
}

func (g *Group) validateTransactional(c *CommitOffsets) errcode.Code {
	if c.Generation < 0 && g.state == empty {
		return errcode.None
	}
	if _, code := g.validateMember(c.MemberID, c.InstanceID); code != errcode.None {
		return code
	}
	if c.Generation != g.generation {
		return errcode.IllegalGeneration
	}
	return errcode.None
}

// endTransaction writes a marker by the rules that hold for any partition: none from before what the producer has written, and
// none of a coordinator that has been replaced. From transaction version 2 on each transaction has an epoch of its own, so that
// a marker with the epoch of the data is late, but for one that comes again after it was written.
func (m *Machine) endTransaction(c *EndTransaction, out *Effects) errcode.Code {
	p := m.producerOf(c.ProducerID)
	late := c.ProducerEpoch < p.epoch
	if c.Version >= 2 && c.ProducerEpoch == p.epoch {
		late = p.open && c.ProducerEpoch != math.MaxInt16
	}
	switch {
	case late:
		return errcode.InvalidProducerEpoch
	case p.coordinatorEpoch > c.CoordinatorEpoch:
		return errcode.TransactionCoordinatorFenced
	}
	marker := recordbatch.EndTxnMarker{Type: recordbatch.Abort, CoordinatorEpoch: c.CoordinatorEpoch}
	if c.Commit {
		marker.Type = recordbatch.Commit
	}
	out.Append(&Record{kind: transactionRecord, producerID: c.ProducerID, producerEpoch: c.ProducerEpoch, marker: marker})
	return errcode.None
}

// applyPending takes in an offset of a transaction.
func (m *Machine) applyPending(r *Record) {
	r.replaced = m.offsets.AddPending(r.producerID, r.groupID, r.key, r.offset)
	p := m.producerOf(r.producerID)
	r.wasOpen = p.open
	p.epoch, p.open, p.guard = r.producerEpoch, true, 0
}

// applyMarker takes in the end of a transaction. What its offsets become is decided when the marker is durable.
func (m *Machine) applyMarker(r *Record) {
	r.ending = m.offsets.BeginEnd(r.producerID)
	p := m.producerOf(r.producerID)
	r.wasOpen = p.open
	p.epoch, p.coordinatorEpoch, p.open, p.guard = r.producerEpoch, r.marker.CoordinatorEpoch, false, 0
}

// takeBack takes back what a record has done to a transaction. A producer's newest epoch stays: its coordinator has given it.
func (m *Machine) takeBack(r *Record) {
	if r.producerID == noProducer {
		return
	}
	switch {
	case r.kind == transactionRecord:
		m.offsets.CancelEnd(r.ending)
	case r.offset != nil:
		m.offsets.RestorePending(r.producerID, r.groupID, r.key, r.replaced)
	}
	m.producerOf(r.producerID).open = r.wasOpen
}

// seen notes when a producer has written.
func (m *Machine) seen(now time.Time, id int64) { m.producerOf(id).seen = now }

// expireProducers forgets the producers that have been silent for long.
func (m *Machine) expireProducers(now time.Time) {
	for id, p := range m.producers {
		if !p.open && now.Sub(p.seen) >= m.config.ProducerIDExpiration {
			delete(m.producers, id)
		}
	}
}
