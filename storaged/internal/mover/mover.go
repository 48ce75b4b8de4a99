package mover

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/vfs"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
	"chancery/storaged/internal/throttle"
)

// Config is how a node moves replicas.
type Config struct {
	// Open opens the log of a replica in a directory under a name; after is the present log of a new copy, where it begins.
	Open func(r *replica.Replica, dir *logdir.Dir, name string, as OpenAs) (*log.Log, error)
	// Assign has the controller agree to a replica's directory, and then calls done; it goes on trying until then.
	Assign func(k replica.Key, dir uuid.UUID, done func())
	// Quota is that of replica.alter.log.dirs.io.max.bytes.per.second.
	Quota *throttle.Quota
	// Threads is how many replicas are copied at a time (num.replica.alter.log.dirs.threads).
	Threads int
	// DirFailed says that a log directory does not work.
	DirFailed func(d *logdir.Dir, err error)
	// Moved says that a replica has moved.
	Moved  func(r *replica.Replica, from, to *logdir.Dir)
	FS     vfs.FS
	Logger *slog.Logger
}

// OpenAs says how a log is to be opened.
type OpenAs struct {
	// LogStart is where the log begins.
	LogStart int64
	// Clean says that the log was closed a moment ago, so that nothing is to be recovered.
	Clean bool
	// InService lets the closed segments of the log be flushed in the background, as those of a replica in service.
	InService bool
}

// Set is the moves of a node. Its methods may be called from any goroutine.
type Set struct {
	config Config
	done   sync.WaitGroup

	mu    sync.Mutex
	moves map[replica.Key]*move
	// queue are the moves that have something to do, in the order of their turns.
	queue   []*move
	running int
	stopped bool
}

// New makes a set without moves.
func New(c Config) *Set {
	return &Set{config: c, moves: map[replica.Key]*move{}}
}

// Begin starts the move of a replica to a directory, or goes on with one whose copy has a name already. It does nothing when
// the replica is on its way there.
func (s *Set) Begin(r *replica.Replica, to *logdir.Dir, name string) error {
	s.mu.Lock()
	old := s.moves[r.Key()]
	if s.stopped || old != nil && old.to == to {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if old != nil {
		s.Cancel(r.Key())
	}
	present := r.Log()
	if name == "" {
		name, _ = log.FutureDirName(r.Topic(), r.Key().Partition)
	}
	future, err := s.config.Open(r, to, name, OpenAs{LogStart: present.LogStartOffset()})
	if err != nil {
		s.config.DirFailed(to, err)
		return fmt.Errorf("open the copy of %s in %s: %w", r, to.Path(), err)
	}
	m := &move{set: s, replica: r, from: r.Dir(), to: to, name: name, future: future}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.moves[r.Key()] != nil {
		future.Abandon()
		return nil
	}
	s.moves[r.Key()] = m
	s.config.Logger.Info("replica begins to move", "partition", r.String(), "from", m.from.Path(), "to", to.Path())
	s.enqueueLocked(m)
	return nil
}

// enqueueLocked gives a move a turn, after the one that it has. The caller holds mu.
func (s *Set) enqueueLocked(m *move) {
	if s.stopped || m.queued || m.finished {
		return
	}
	if m.atWork {
		m.woken = true
		return
	}
	m.queued = true
	s.queue = append(s.queue, m)
	if s.running < max(1, s.config.Threads) {
		s.running++
		s.done.Go(s.work)
	}
}

func (s *Set) enqueue(m *move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enqueueLocked(m)
}

// work takes turns until there is nothing left to do.
func (s *Set) work() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 || s.stopped {
			s.running--
			s.mu.Unlock()
			return
		}
		m := s.queue[0]
		s.queue = s.queue[1:]
		m.queued, m.woken, m.atWork = false, false, true
		cancelled := m.cancelled
		s.mu.Unlock()
		next := m.turn(cancelled)
		s.mu.Lock()
		m.atWork = false
		switch {
		case next.over:
			m.finished = true
			if s.moves[m.replica.Key()] == m {
				delete(s.moves, m.replica.Key())
			}
			if m.gone != nil {
				close(m.gone)
			}
		case next.again || m.woken:
			s.enqueueLocked(m)
		default:
			time.AfterFunc(next.pause, func() { s.enqueue(m) })
		}
		s.mu.Unlock()
	}
}

// Cancel ends a replica's move and waits until its copy is gone. It says whether there was one.
func (s *Set) Cancel(k replica.Key) bool {
	s.mu.Lock()
	m := s.moves[k]
	if m == nil || s.stopped {
		s.mu.Unlock()
		return false
	}
	m.cancelled = true
	if m.gone == nil {
		m.gone = make(chan struct{})
	}
	gone := m.gone
	s.enqueueLocked(m)
	s.mu.Unlock()
	<-gone
	return true
}

// DirFailed ends the moves from and to a directory that does not work any more. It does not wait.
func (s *Set) DirFailed(d *logdir.Dir) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.moves {
		if m.from == d || m.to == d {
			m.cancelled = true
			s.enqueueLocked(m)
		}
	}
}

// Copy describes a copy under way.
type Copy struct {
	Replica *replica.Replica
	Dir     *logdir.Dir
	Size    int64
	LogEnd  int64
}

// Copies are the copies under way.
func (s *Set) Copies() []Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Copy, 0, len(s.moves))
	for _, m := range s.moves {
		out = append(out, Copy{Replica: m.replica, Dir: m.to, Size: m.future.Size(), LogEnd: m.future.LogEndOffset()})
	}
	return out
}

// To is where a replica is on its way to; nil when it is not.
func (s *Set) To(k replica.Key) *logdir.Dir {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.moves[k]; m != nil && !m.cancelled {
		return m.to
	}
	return nil
}

// Close ends all work and closes the copies, with which the next start goes on.
func (s *Set) Close() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.done.Wait()
	s.mu.Lock()
	left := s.moves
	s.moves = map[replica.Key]*move{}
	for _, m := range left {
		if m.gone != nil {
			close(m.gone)
		}
	}
	s.mu.Unlock()
	for _, m := range left {
		if err := m.future.Close(); err != nil {
			s.config.DirFailed(m.to, err)
		}
	}
}
