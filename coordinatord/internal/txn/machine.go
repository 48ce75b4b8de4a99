package txn

import (
	"log/slog"
	"slices"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/statemachine"
)

var _ statemachine.Machine[Command, *Record, Reply] = (*Machine)(nil)

// Effects is what the machine wants done.
type Effects = statemachine.Effects[*Record, Reply]

// Ticket is a caller that waits for an answer.
type Ticket = statemachine.Ticket

const (
	// parkTime is how long a command waits for the end of the transaction before it is answered with CONCURRENT_TRANSACTIONS.
	parkTime = 100 * time.Millisecond
	// completionPause is the time between attempts to note that a transaction has ended.
	completionPause = time.Second
)

// Host does what the machine wants done beside its log. Its methods must not block.
type Host interface {
	// WriteMarkers has the markers of a transaction that is being ended written, however long it takes; MarkersWritten follows. What is
	// on its way for the same transaction already goes on.
	WriteMarkers(t *Transaction, resumed bool)
	// Abandon has transactions aborted whose time is over, with an Abandon for each.
	Abandon(list []Abandon)
}

// Config is the settings of transactions, and what the machine cannot do by itself.
type Config struct {
	Host Host
	// Version is transaction.version, the level of the feature.
	Version func() int16
	// AbortInterval is how often transactions are looked for whose time is over.
	AbortInterval time.Duration
	// Expiration is how long a transactional id is kept after its last use, ExpireInterval how often such ids are looked for.
	Expiration, ExpireInterval time.Duration
	// MaxBatchBytes is the largest record batch that the log takes.
	MaxBatchBytes int
	Logger        *slog.Logger
}

// Machine is the transactions of one shard.
type Machine struct {
	config  Config
	ids     map[string]*slot
	serving bool

	// parked are the commands that wait for the end of a transaction, by its id.
	parked map[string][]parked
	// written are the transactions whose markers are written, and of which the log does not yet say so.
	written map[string]bool
	// ended are the ids with parked commands whose transaction's end has just been decided.
	ended []string

	abortDue, expireDue, parkDue, completionDue, resumeDue time.Time
}

// slot is a transactional id by both views: the newest one, by which commands are decided, and the durable one, which
// listings show.
type slot struct{ newest, durable *Transaction }

// parked is a command that waits.
type parked struct {
	ticket  Ticket
	command Command
	until   time.Time
}

// New makes an empty machine.
func New(c Config) *Machine {
	return &Machine{config: c, ids: map[string]*slot{}, parked: map[string][]parked{}, written: map[string]bool{}}
}

// Decide carries out a command.
func (m *Machine) Decide(now time.Time, t Ticket, c Command, out *Effects) {
	switch c := c.(type) {
	case *Init:
		m.decideOrPark(now, t, c.ID, c, out)
	case *Add:
		m.decideOrPark(now, t, c.ID, c, out)
	case *End:
		m.decideOrPark(now, t, c.ID, c, out)
	case *Verify:
		out.Answer(t, m.verify(c))
	case *Abandon:
		out.Answer(t, m.abandon(now, c, out))
	case *MarkersWritten:
		m.markersWritten(now, c, out)
		out.Answer(t, nil)
	case *List:
		out.AnswerNow(t, m.list(now, c))
	case *Describe:
		var found *Transaction
		if s := m.ids[c.ID]; s != nil {
			found = s.durable
		}
		out.AnswerNow(t, found)
	case *Count:
		out.AnswerNow(t, m.count())
	}
}

// decideOrPark carries out a command of a producer, or lets it wait while its transaction is being ended.
func (m *Machine) decideOrPark(now time.Time, t Ticket, id string, c Command, out *Effects) {
	reply := m.decide(now, c, out)
	s := m.newest(id)
	if s == nil || !s.State.ending() || !isConcurrent(reply) {
		out.Answer(t, reply)
		return
	}
	until := now.Add(parkTime)
	m.parked[id] = append(m.parked[id], parked{t, c, until})
	if m.parkDue.IsZero() {
		m.parkDue = until
	}
}

// isConcurrent says whether a reply tells the producer to come again when its transaction has ended.
func isConcurrent(reply Reply) bool {
	switch r := reply.(type) {
	case InitReply:
		return r.Code == errcode.ConcurrentTransactions
	case EndReply:
		return r.Code == errcode.ConcurrentTransactions
	case errcode.Code:
		return r == errcode.ConcurrentTransactions
	}
	return false
}

// decide carries out a command of a producer.
func (m *Machine) decide(now time.Time, c Command, out *Effects) Reply {
	switch c := c.(type) {
	case *Init:
		return m.init(now, c, out)
	case *Add:
		return m.add(now, c, out)
	case *End:
		return m.end(now, c, out)
	}
	return nil
}

// resume carries out the commands that have waited for a transaction's end, one at a time: each must see what the one before
// has written.
func (m *Machine) resume(now time.Time, id string, out *Effects) {
	waiting := m.parked[id]
	for len(waiting) > 0 && !writes(out, id) {
		if t := m.newest(id); t != nil && t.State.ending() {
			break
		}
		p := waiting[0]
		waiting = waiting[1:]
		out.Answer(p.ticket, m.decide(now, p.command, out))
	}
	if len(waiting) == 0 {
		delete(m.parked, id)
		return
	}
	m.parked[id] = waiting
}

// writes says whether the effects have a record of an id, which is not applied yet.
func writes(out *Effects, id string) bool {
	return slices.ContainsFunc(out.Records(), func(r *Record) bool { return r.id == id })
}

// Apply changes the newest view.
func (m *Machine) Apply(r *Record) {
	s := m.ids[r.id]
	if s == nil {
		s = &slot{}
		m.ids[r.id] = s
	}
	s.newest = r.state
}

// Commit changes the durable view, and has done what the new state asks for.
func (m *Machine) Commit(now time.Time, _ int64, r *Record, out *Effects) {
	s := m.ids[r.id]
	s.durable = r.state
	if s.newest == nil && s.durable == nil {
		delete(m.ids, r.id)
	}
	if !m.serving {
		return
	}
	if r.state != nil && r.state.State.ending() {
		m.finish(now, r.state, false, out)
	} else {
		delete(m.written, r.id)
	}
	m.resume(now, r.id, out)
}

// finish has the markers of a transaction written, or notes its end where there are none to write.
func (m *Machine) finish(now time.Time, t *Transaction, resumed bool, out *Effects) {
	if len(t.Partitions) > 0 {
		m.config.Host.WriteMarkers(t, resumed)
		return
	}
	m.complete(now, t, out)
}

// complete notes the end of a transaction whose markers are written. What has waited for it goes on as soon as that is applied: it need
// not be durable, since the answers wait for the log.
func (m *Machine) complete(now time.Time, t *Transaction, out *Effects) {
	m.written[t.ID] = true
	m.write(t.completed(now.UnixMilli()), out)
	if len(m.parked[t.ID]) > 0 {
		m.ended, m.resumeDue = append(m.ended, t.ID), now
	}
}

// Rollback takes back what was applied and not committed.
func (m *Machine) Rollback(now time.Time, records []*Record, _ []errcode.Code, _ *Effects) {
	for _, r := range records {
		s := m.ids[r.id]
		if s == nil {
			continue
		}
		s.newest = s.durable
		if s.newest == nil {
			delete(m.ids, r.id)
		}
		if m.written[r.id] && m.completionDue.IsZero() {
			m.completionDue = now.Add(completionPause)
		}
	}
}

// Loaded goes on with the transactions that were being ended.
func (m *Machine) Loaded(now time.Time, out *Effects) {
	m.serving = true
	m.abortDue, m.expireDue = now.Add(m.config.AbortInterval), now.Add(m.config.ExpireInterval)
	out.Split()
	for _, s := range m.ids {
		if s.durable.State.ending() {
			m.finish(now, s.durable, true, out)
		}
	}
}

// newest is the newest view of a transactional id; nil when it is not known.
func (m *Machine) newest(id string) *Transaction {
	if s := m.ids[id]; s != nil {
		return s.newest
	}
	return nil
}

// write has a state written.
func (m *Machine) write(t *Transaction, out *Effects) {
	r := &Record{id: t.ID, state: t}
	if m.config.Version() >= 1 {
		r.version = 1
	}
	out.Append(r)
}

// markersWritten notes the end of a transaction.
func (m *Machine) markersWritten(now time.Time, c *MarkersWritten, out *Effects) {
	t := m.newest(c.ID)
	if t == nil || !t.State.ending() || t.ProducerID != c.Producer.ID || t.Epoch != c.Producer.Epoch {
		return
	}
	m.complete(now, t, out)
}

func (m *Machine) count() Counts {
	c := Counts{IDs: len(m.ids)}
	for _, s := range m.ids {
		switch {
		case s.durable == nil:
		case s.durable.State == Ongoing:
			c.Ongoing++
		case s.durable.State.ending():
			c.Ending++
		}
	}
	return c
}
