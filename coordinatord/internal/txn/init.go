package txn

import (
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// noProducer is the producer in answers that have none.
var noProducer = Producer{ID: recordbatch.NoProducerID, Epoch: recordbatch.NoProducerEpoch}

// init gives a producer its id and epoch. An ongoing transaction of the one before is aborted first; the producer comes again.
func (m *Machine) init(now time.Time, c *Init, out *Effects) InitReply {
	t := m.newest(c.ID)
	if t == nil {
		if c.NewProducerID == recordbatch.NoProducerID {
			return InitReply{NeedsID: true}
		}
		t = created(c.ID, c.NewProducerID, c.TimeoutMs, now.UnixMilli())
	}
	if t.State.ending() {
		return failedInit(errcode.ConcurrentTransactions)
	}
	if c.Expected != nil && !t.mayBe(*c.Expected) {
		return failedInit(errcode.ProducerFenced)
	}
	if t.State == Ongoing {
		reply := m.fence(now, t, c.NewProducerID, out)
		if reply.NeedsID {
			return InitReply{NeedsID: true}
		}
		return failedInit(errcode.ConcurrentTransactions)
	}
	next, reply := m.initialize(now, t, c)
	if next != nil {
		m.write(next, out)
		reply.Producer = Producer{next.ProducerID, next.Epoch}
	}
	return reply
}

func failedInit(code errcode.Code) InitReply { return InitReply{Code: code, Producer: noProducer} }

// mayBe says whether a producer that names its id can be the one that has the transactional id: it names the present id, or the one
// before when its epochs are used up, so that this may be the repetition of a request whose answer was lost.
func (t *Transaction) mayBe(p Producer) bool {
	return t.Epoch == recordbatch.NoProducerEpoch || p.ID == t.ProducerID || p.ID == t.PrevProducerID && exhausted(p.Epoch)
}

// initialize is the next state of an id without an open transaction: the next epoch, the next producer id where there is no
// epoch left, or the present one for a producer that repeats its request.
func (m *Machine) initialize(now time.Time, t *Transaction, c *Init) (*Transaction, InitReply) {
	nowMs := now.UnixMilli()
	if exhausted(t.Epoch) && (c.Expected == nil || c.Expected.Epoch == t.Epoch) {
		if c.NewProducerID == recordbatch.NoProducerID {
			return nil, InitReply{NeedsID: true}
		}
		last := recordbatch.NoProducerEpoch
		if c.Expected != nil {
			last = t.Epoch
		}
		return t.initialized(c.NewProducerID, 0, last, c.TimeoutMs, nowMs), InitReply{}
	}
	switch {
	case c.Expected == nil:
		return t.initialized(t.ProducerID, t.Epoch+1, recordbatch.NoProducerEpoch, c.TimeoutMs, nowMs), InitReply{}
	case t.Epoch == recordbatch.NoProducerEpoch, c.Expected.Epoch == t.Epoch:
		return t.initialized(t.ProducerID, t.Epoch+1, t.Epoch, c.TimeoutMs, nowMs), InitReply{}
	case c.Expected.Epoch == t.LastEpoch:
		return t.initialized(t.ProducerID, t.Epoch, t.LastEpoch, c.TimeoutMs, nowMs), InitReply{}
	}
	return nil, failedInit(errcode.ProducerFenced)
}

// fence aborts the ongoing transaction of a producer that is not to go on.
func (m *Machine) fence(now time.Time, t *Transaction, newProducerID int64, out *Effects) EndReply {
	version := m.config.Version()
	next := recordbatch.NoProducerID
	if version >= epochBumps && exhausted(t.Epoch) {
		if newProducerID == recordbatch.NoProducerID {
			return EndReply{NeedsID: true}
		}
		next = newProducerID
	}
	m.write(t.fenced(version, next, now.UnixMilli()), out)
	return EndReply{Producer: noProducer}
}

// abandon aborts a transaction whose time is over, if it is still the same.
func (m *Machine) abandon(now time.Time, c *Abandon, out *Effects) EndReply {
	t := m.newest(c.ID)
	if t == nil || t.State != Ongoing || t.ProducerID != c.Producer.ID || t.Epoch != c.Producer.Epoch {
		return EndReply{Code: errcode.ConcurrentTransactions, Producer: noProducer}
	}
	if t.StartMs+int64(t.TimeoutMs) >= now.UnixMilli() {
		return EndReply{Code: errcode.ConcurrentTransactions, Producer: noProducer} // another one has begun
	}
	return m.fence(now, t, c.NewProducerID, out)
}
