package txn

import (
	"log/slog"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// Due is when Tick has something to do.
func (m *Machine) Due() time.Time {
	var due time.Time
	for _, at := range []time.Time{m.abortDue, m.expireDue, m.parkDue, m.completionDue, m.resumeDue} {
		if !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}

// Tick does what is due.
func (m *Machine) Tick(now time.Time, out *Effects) {
	if isDue(m.resumeDue, now) {
		m.resumeEnded(now, out)
	}
	if isDue(m.parkDue, now) {
		m.unpark(now, out)
	}
	if isDue(m.completionDue, now) {
		m.completeAgain(now, out)
	}
	if isDue(m.abortDue, now) {
		m.abortDue = now.Add(m.config.AbortInterval)
		m.abortTimedOut(now)
	}
	if isDue(m.expireDue, now) {
		m.expireDue = now.Add(m.config.ExpireInterval)
		m.expire(now, out)
	}
}

func isDue(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// resumeEnded carries out the commands whose transactions have ended.
func (m *Machine) resumeEnded(now time.Time, out *Effects) {
	ended := m.ended
	m.ended, m.resumeDue = nil, time.Time{}
	for _, id := range ended {
		m.resume(now, id, out)
	}
}

// unpark answers the commands that have waited long enough.
func (m *Machine) unpark(now time.Time, out *Effects) {
	m.parkDue = time.Time{}
	for id, waiting := range m.parked {
		for len(waiting) > 0 && !waiting[0].until.After(now) {
			out.Answer(waiting[0].ticket, concurrent(waiting[0].command))
			waiting = waiting[1:]
		}
		if len(waiting) == 0 {
			delete(m.parked, id)
			continue
		}
		m.parked[id] = waiting
		if m.parkDue.IsZero() || waiting[0].until.Before(m.parkDue) {
			m.parkDue = waiting[0].until
		}
	}
}

// concurrent is the answer to a command for which the transaction has not ended in time.
func concurrent(c Command) Reply {
	switch c.(type) {
	case *Init:
		return InitReply{Code: errcode.ConcurrentTransactions, Producer: noProducer}
	case *End:
		return EndReply{Code: errcode.ConcurrentTransactions, Producer: noProducer}
	}
	return errcode.ConcurrentTransactions
}

// completeAgain notes the end of transactions that could not be noted when their markers had been written.
func (m *Machine) completeAgain(now time.Time, out *Effects) {
	m.completionDue = time.Time{}
	out.Split()
	for id := range m.written {
		if t := m.newest(id); t != nil && t.State.ending() {
			m.complete(now, t, out)
		}
	}
}

// abortTimedOut looks for transactions whose time is over.
func (m *Machine) abortTimedOut(now time.Time) {
	var list []Abandon
	for id, s := range m.ids {
		t := s.newest
		if t == nil || t != s.durable || t.State != Ongoing || t.TimeoutMs == noTimeout || t.StartMs+int64(t.TimeoutMs) >= now.UnixMilli() {
			continue
		}
		list = append(list, Abandon{ID: id, Producer: Producer{t.ProducerID, t.Epoch}, NewProducerID: recordbatch.NoProducerID})
	}
	if len(list) > 0 {
		m.config.Host.Abandon(list)
	}
}

// expire forgets the transactional ids that nobody has used for long.
func (m *Machine) expire(now time.Time, out *Effects) {
	out.Split()
	oldest := now.Add(-m.config.Expiration).UnixMilli()
	before := len(out.Records())
	for id, s := range m.ids {
		if t := s.newest; t != nil && t == s.durable && t.State.expires() && t.UpdatedMs <= oldest && len(m.parked[id]) == 0 {
			out.Append(&Record{id: id})
		}
	}
	if n := len(out.Records()) - before; n > 0 {
		m.config.Logger.Info("forgetting transactional ids that nobody uses", slog.Int("ids", n))
	}
}
