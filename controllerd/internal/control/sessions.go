package control

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"chancery/services/metadata"
)

// storageKind is the kind of storage nodes among the members; the others have metadata's kinds.
const storageKind metadata.ServiceKind = 4

// memberKey names a member: a storage node or a service.
type memberKey struct {
	kind metadata.ServiceKind
	id   int32
}

func storageNode(id int32) memberKey { return memberKey{storageKind, id} }

// session is what is known of a member beside the log.
type session struct {
	// epoch is that of the registration which the session belongs to.
	epoch int64
	// heard is when the member was heard last, zero for never.
	heard time.Time
	// applied is the offset up to which it has applied the log, -1 while unknown.
	applied int64
	// registered is the offset of its registration.
	registered int64
	// shutdown is the offset of the records that moved its leaderships away, -1 while it is not leaving.
	shutdown int64
	// draining says that a service is about to leave.
	draining bool
	// connection is the one on which the member was heard last, nil when that is not known; disconnected is when it ended,
	// zero while it has not.
	connection   any
	disconnected time.Time
}

// reconnectTime is how long a service may be silent after its connection has ended. That of a process that was killed ends at
// once, long before its session would.
const reconnectTime = time.Second

// end is when a session ends if the member stays silent.
func (m *Manager) end(s *session) time.Time {
	end := s.heard.Add(m.settings.SessionTimeout)
	if !s.disconnected.IsZero() {
		if early := s.disconnected.Add(reconnectTime); early.Before(end) {
			return early
		}
	}
	return end
}

// Connected takes note of the connection on which a service has just been heard.
func (m *Manager) Connected(kind metadata.ServiceKind, id int32, connection any) {
	if s := m.sessions[memberKey{kind, id}]; s != nil {
		s.connection, s.disconnected = connection, time.Time{}
	}
}

// Disconnected takes note that a connection has ended on which a service was heard.
func (m *Manager) Disconnected(kind metadata.ServiceKind, id int32, connection any) {
	if s := m.sessions[memberKey{kind, id}]; s != nil && s.connection == connection {
		s.disconnected = m.now
	}
}

// alive says whether a session still counts.
func (m *Manager) alive(key memberKey, epoch int64) bool {
	s := m.sessions[key]
	return s != nil && s.epoch == epoch && !s.heard.IsZero() && !m.now.After(m.end(s))
}

// resetSessions makes a session for each registration; the unfenced ones count as heard now.
func (m *Manager) resetSessions() {
	m.sessions = map[memberKey]*session{}
	add := func(key memberKey, epoch int64, fenced bool) {
		s := newSession(epoch)
		if !fenced {
			s.heard = m.now
		}
		m.sessions[key] = s
	}
	for _, b := range m.image.Brokers() {
		add(storageNode(b.ID), b.Epoch, b.Fenced)
	}
	for _, kind := range serviceKinds() {
		for _, s := range m.image.Services(kind) {
			add(memberKey{kind, s.ID}, s.Epoch, s.Fenced)
		}
	}
}

func newSession(epoch int64) *session {
	return &session{epoch: epoch, applied: -1, registered: epoch, shutdown: -1}
}

func serviceKinds() []metadata.ServiceKind {
	return []metadata.ServiceKind{metadata.Gateway, metadata.Coordinator, metadata.Tiering}
}

// applySessions follows registrations that come and go, and ends what fencing ends.
func (m *Manager) applySessions(delta *metadata.Delta) {
	follow := func(key memberKey, epoch int64, fenced bool) {
		s := m.sessions[key]
		if s == nil || s.epoch != epoch {
			s = newSession(epoch)
			m.sessions[key] = s
		}
		if fenced {
			s.shutdown, s.draining = -1, false
		}
	}
	for c := range delta.Brokers() {
		if c.New == nil {
			delete(m.sessions, storageNode(c.Old.ID))
			continue
		}
		follow(storageNode(c.New.ID), c.New.Epoch, c.New.Fenced)
	}
	for c := range delta.Services() {
		if c.New == nil {
			delete(m.sessions, memberKey{c.Old.Kind, c.Old.ID})
			continue
		}
		follow(memberKey{c.New.Kind, c.New.ID}, c.New.Epoch, c.New.Fenced)
	}
}

// isLeaving says whether a storage node gives its leaderships away.
func (m *Manager) isLeaving(b *metadata.Broker) bool {
	s := m.sessions[storageNode(b.ID)]
	return b.InControlledShutdown && !b.Fenced || s != nil && s.epoch == b.Epoch && s.shutdown >= 0
}

// Applied takes note that a member has applied the log up to an offset, as its stream of the log tells sooner than its
// heartbeats do.
func (m *Manager) Applied(kind metadata.ServiceKind, id int32, epoch, offset int64) {
	if s := m.sessions[memberKey{kind, id}]; s != nil && s.epoch == epoch && offset > s.applied {
		s.applied = offset
	}
}

// lowestActiveOffset is the lowest offset that the storage nodes in service have applied.
func (m *Manager) lowestActiveOffset() int64 {
	lowest := int64(1<<63 - 1)
	for _, b := range m.image.Brokers() {
		if b.Fenced || m.isLeaving(b) {
			continue
		}
		if s := m.sessions[storageNode(b.ID)]; s != nil {
			lowest = min(lowest, s.applied)
		}
	}
	return lowest
}

// NextExpiry is when the next session ends if its member stays silent; zero when there is none.
func (m *Manager) NextExpiry() time.Time {
	var next time.Time
	for key, s := range m.sessions {
		if s.heard.IsZero() || m.isFenced(key) {
			continue
		}
		if end := m.end(s); next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return next
}

func (m *Manager) isFenced(key memberKey) bool {
	if key.kind == storageKind {
		b := m.image.Broker(key.id)
		return b == nil || b.Fenced
	}
	s := m.image.Service(key.kind, key.id)
	return s == nil || s.Fenced
}

// FenceSilent fences one member whose session has ended, or removes a service that has been silent for long. False says
// that there is none.
func (m *Manager) FenceSilent() (Decision, bool) {
	for _, key := range slices.SortedFunc(maps.Keys(m.sessions), compareMembers) {
		s := m.sessions[key]
		silent := m.now.Sub(s.heard)
		if s.heard.IsZero() || !m.now.After(m.end(s)) {
			continue
		}
		if key.kind == storageKind {
			b := m.image.Broker(key.id)
			if b == nil || b.Epoch != s.epoch || b.Fenced {
				continue
			}
			m.logger.Warn("fencing a storage node that is silent", "node", key.id, "epoch", s.epoch, "silent", silent)
			return Decision{Records: m.fenceBroker(b)}, true
		}
		if records := m.fenceService(key, s, silent); len(records) > 0 {
			return Decision{Records: records}, true
		}
	}
	return Decision{}, false
}

func compareMembers(a, b memberKey) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id))
}
