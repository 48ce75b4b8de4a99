package keeper

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"chancery/services/kafka/remotelog"
	"chancery/services/objectstore"
	"chancery/tiering/internal/remotestate"
)

// Lag is how far the remote tier is behind a partition. It belongs to the partition's passes, which come one after the other.
type Lag struct {
	// CopySegments and CopyBytes are closed segments that are not remote yet; Reason is why, in one of a few words.
	CopySegments, CopyBytes int64
	Reason                  string
	// Failure is what the last copy failed with, in full; empty when it did not fail.
	Failure string
	// DeleteSegments and DeleteBytes are segments whose deletion has begun.
	DeleteSegments, DeleteBytes int64
	// RemoteSegments and RemoteBytes are the segments whose copy is finished.
	RemoteSegments, RemoteBytes int64
	// KnownSegments are all that the metadata knows. SizeBytes is what the remote tier has and is about to delete, as Kafka counts it.
	KnownSegments, SizeBytes int64
}

func (l *Lag) note(segments []Local, remoteEnd int64, reason string) {
	l.CopySegments, l.CopyBytes, l.Reason, l.Failure = 0, 0, "", ""
	for i, s := range segments {
		if s.EndOffset > remoteEnd && i+1 < len(segments) {
			l.CopySegments++
			l.CopyBytes += s.SizeBytes
		}
	}
	if l.CopySegments > 0 {
		l.Reason = reason
	}
}

// NoteRemote counts what the metadata knows.
func (l *Lag) NoteRemote(v *remotestate.View) {
	l.RemoteSegments, l.RemoteBytes, l.DeleteSegments, l.DeleteBytes = 0, 0, 0, 0
	for i := range v.Segments {
		switch e := &v.Segments[i]; e.State {
		case remotelog.CopyFinished:
			l.RemoteSegments++
			l.RemoteBytes += int64(e.SizeBytes)
		case remotelog.DeleteStarted:
			l.DeleteSegments++
			l.DeleteBytes += int64(e.SizeBytes)
		case remotelog.CopyStarted, remotelog.DeleteFinished:
		}
	}
	l.KnownSegments, l.SizeBytes = int64(len(v.Segments)), l.RemoteBytes+l.DeleteBytes
}

// note brings the lag up to date, and shows it while the pass goes on: to catch up may take hours.
func (p *Pass) note(lag *Lag, reason string) {
	lag.note(p.leader.segments, p.line.End, reason)
	lag.NoteRemote(p.view)
	if p.Report != nil {
		p.Report(*lag)
	}
}

// noteFailure says why a copy failed. The reason is one of a few: it is an attribute of metrics.
func (p *Pass) noteFailure(lag *Lag, err error) {
	reason := "the copy failed: " + objectstore.KindName(err)
	if errors.Is(err, ErrLeader) {
		reason = "the leader is another one"
	}
	lag.note(p.leader.segments, p.line.End, reason)
	lag.Failure = oneLine(err)
	if p.Report != nil {
		p.Report(*lag)
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Metrics counts what passes and reads do, by topic.
type Metrics struct {
	mu     sync.Mutex
	topics map[string]*Counters
}

// Counters are those of a topic.
type Counters struct {
	Copies, CopyBytes, CopyErrors    atomic.Int64
	Deletes, DeleteErrors, Expired   atomic.Int64
	Fetches, FetchBytes, FetchErrors atomic.Int64
}

// Of are the counters of a topic.
func (m *Metrics) Of(topic string) *Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.topics[topic]
	if c == nil {
		if m.topics == nil {
			m.topics = map[string]*Counters{}
		}
		c = &Counters{}
		m.topics[topic] = c
	}
	return c
}

// Keep drops the counters of topics that are not wanted any more, and gives the others.
func (m *Metrics) Keep(wanted func(topic string) bool) map[string]*Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.topics, func(topic string, _ *Counters) bool { return !wanted(topic) })
	return maps.Clone(m.topics)
}
