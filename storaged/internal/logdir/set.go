package logdir

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"chancery/services/kafka/uuid"
	"chancery/storaged/internal/log"
)

// Set is the log directories of a node.
type Set struct {
	nodeID    int32
	clusterID string
	// dirs are in the order in which they were configured, the failed ones too.
	dirs   []*Dir
	logger *slog.Logger

	mu sync.Mutex
	// found are the replicas on disk that have not been claimed yet, futures those that were being copied to another
	// directory.
	found, futures map[Replica]foundIn
	// preferred is where replicas that do not exist yet were told to go.
	preferred map[Replica]*Dir
}

type foundIn struct {
	Found
	dir *Dir
}

// Open makes the directories ours. A directory that cannot be used is offline; it is an error when none is left, or when
// one belongs to another node, cluster or process.
func Open(paths []string, nodeID int32, clusterID string, logger *slog.Logger) (*Set, error) {
	s := &Set{nodeID: nodeID, clusterID: clusterID, logger: logger,
		found: map[Replica]foundIn{}, futures: map[Replica]foundIn{}, preferred: map[Replica]*Dir{}}
	for _, path := range paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		if slices.ContainsFunc(s.dirs, func(d *Dir) bool { return d.path == absolute }) {
			continue
		}
		d, m, err := openDir(absolute, nodeID)
		s.dirs = append(s.dirs, d)
		if err == nil {
			err = s.agree(absolute, m)
		}
		if identity := (*identityError)(nil); errors.As(err, &identity) {
			return nil, errors.Join(err, s.Close())
		}
		if err != nil {
			s.fail(d, err)
			continue
		}
		if err := s.find(d); err != nil {
			s.fail(d, err)
		}
	}
	if len(s.Online()) == 0 {
		return nil, errors.Join(errors.New("no log directory can be used"), s.failures(), s.Close())
	}
	return s, nil
}

// agree makes sure that all directories are of one cluster.
func (s *Set) agree(path string, m meta) error {
	switch {
	case m.clusterID == "" || m.clusterID == s.clusterID:
	case s.clusterID == "":
		s.clusterID = m.clusterID
	default:
		return &identityError{fmt.Errorf("log directory %s belongs to cluster %s, not to %s", path, m.clusterID, s.clusterID)}
	}
	return nil
}

// find notes the replicas of a directory, and removes what a deletion left half done.
func (s *Set) find(d *Dir) error {
	list, err := d.list()
	if err != nil {
		return err
	}
	for _, f := range list.futures {
		if _, ok := s.futures[f.Replica]; ok {
			// A replica goes to one directory at a time; which of the two it was is not known.
			list.deleted = append(list.deleted, f.Path)
			continue
		}
		s.futures[f.Replica] = foundIn{Found: f, dir: d}
	}
	for _, path := range list.deleted {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	for _, f := range list.replicas {
		if other, ok := s.found[f.Replica]; ok {
			return fmt.Errorf("replica %s-%d is in %s as well as in %s", f.Replica.Topic, f.Replica.Partition, f.Path, other.Path)
		}
		s.found[f.Replica] = foundIn{Found: f, dir: d}
		d.replicas.Add(1)
	}
	return nil
}

func (s *Set) fail(d *Dir, err error) {
	if d.Fail(err) {
		s.logger.Error("log directory is offline", "dir", d.path, "error", err)
	}
}

func (s *Set) failures() error {
	var errs []error
	for _, d := range s.dirs {
		errs = append(errs, d.Err())
	}
	return errors.Join(errs...)
}

// ClusterID is the cluster that the directories belong to; empty while they are all new.
func (s *Set) ClusterID() string { return s.clusterID }

// Stamp writes the identity of the node and its cluster into directories that are new.
func (s *Set) Stamp(clusterID string) error {
	if s.clusterID != "" && s.clusterID != clusterID {
		return fmt.Errorf("the log directories belong to cluster %s, not to %s", s.clusterID, clusterID)
	}
	s.clusterID = clusterID
	for _, d := range s.Online() {
		if d.known {
			continue
		}
		if err := writeMeta(d.path, meta{clusterID: clusterID, nodeID: s.nodeID, directory: d.id}); err != nil {
			s.fail(d, err)
			continue
		}
		d.known = true
	}
	if len(s.Online()) == 0 {
		return fmt.Errorf("no log directory can be used: %w", s.failures())
	}
	return nil
}

// PreviousEpoch is the broker epoch of the last run when it ended cleanly in every directory, otherwise -1. The controller
// keeps the replicas of such a node in the ELR (KIP-966).
func (s *Set) PreviousEpoch() int64 {
	epoch := noEpoch
	for i, d := range s.dirs {
		if d.Err() != nil || i > 0 && d.epoch != epoch {
			return noEpoch
		}
		epoch = d.epoch
	}
	return epoch
}

// All are the directories in the order in which they were configured, the failed ones too.
func (s *Set) All() []*Dir { return s.dirs }

// Online are the directories that work.
func (s *Set) Online() []*Dir {
	var out []*Dir
	for _, d := range s.dirs {
		if d.Err() == nil {
			out = append(out, d)
		}
	}
	return out
}

// Offline are the ids of the directories that have failed, as far as they were ever known.
func (s *Set) Offline() []uuid.UUID {
	var out []uuid.UUID
	for _, d := range s.dirs {
		if d.Err() != nil && d.known {
			out = append(out, d.id)
		}
	}
	return out
}

// Placement is where a replica lives.
type Placement struct {
	Dir *Dir
	// New says that there is nothing on disk yet.
	New bool
}

// ErrOffline says that a replica may be in a directory that does not work.
var ErrOffline = errors.New("the replica's log directory is offline")

// Place finds the directory of a replica: where it is on disk, else the one it is assigned to, else the one with the
// fewest replicas that is not cordoned. When all that work are cordoned it is the first of them: the controller placed the replica
// here before it had heard of that, and a replica out of reach would be worse.
//
// A replica that is assigned to a directory which does not work is not made again elsewhere: it would come back empty.
func (s *Set) Place(r Replica, topic, assigned uuid.UUID, cordoned []uuid.UUID) (Placement, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.found[r]; ok {
		delete(s.found, r)
		if err := f.dir.Err(); err != nil {
			if at, ok, err := s.promote(r, topic, assigned); ok {
				return at, err
			}
			return Placement{}, fmt.Errorf("%w: %w", ErrOffline, err)
		}
		if f.TopicID.IsZero() || f.TopicID == topic {
			return Placement{Dir: f.dir}, nil
		}
		// A topic of this name was deleted and made anew while this node was away.
		if err := s.setAside(f); err != nil {
			return Placement{}, err
		}
	}
	if at, ok, err := s.promote(r, topic, assigned); ok {
		return at, err
	}
	preferred := s.preferred[r]
	delete(s.preferred, r)
	online := s.Online()
	for _, d := range online {
		if d.id == assigned {
			d.replicas.Add(1)
			return Placement{Dir: d, New: true}, nil
		}
	}
	if assigned != uuid.UnassignedDir && len(online) < len(s.dirs) {
		return Placement{}, ErrOffline
	}
	if preferred != nil && preferred.Err() == nil {
		preferred.replicas.Add(1)
		return Placement{Dir: preferred, New: true}, nil
	}
	var best *Dir
	for _, d := range online {
		if slices.Contains(cordoned, d.id) {
			continue
		}
		if best == nil || d.replicas.Load() < best.replicas.Load() {
			best = d
		}
	}
	switch {
	case best != nil:
	case len(online) > 0:
		best = online[0]
	default:
		return Placement{}, fmt.Errorf("%w: no directory works", ErrOffline)
	}
	best.replicas.Add(1)
	return Placement{Dir: best, New: true}, nil
}

// promote takes a copy for the replica that there is no other of: the controller had agreed to the move, and the former
// directory does not have the replica any more, or does not work.
func (s *Set) promote(r Replica, topic, assigned uuid.UUID) (Placement, bool, error) {
	f, ok := s.futures[r]
	if !ok || f.dir.id != assigned || f.TopicID != topic || !f.dir.works() {
		return Placement{}, false, nil
	}
	delete(s.futures, r)
	s.logger.Info("a copied replica takes its place", "topic", r.Topic, "partition", r.Partition, "dir", f.dir.path)
	if err := os.Rename(f.Path, filepath.Join(f.dir.path, log.DirName(r.Topic, r.Partition))); err != nil {
		s.fail(f.dir, err)
		return Placement{}, true, fmt.Errorf("%w: %w", ErrOffline, err)
	}
	f.dir.replicas.Add(1)
	return Placement{Dir: f.dir}, true, nil
}

// Future gives the copy of a replica that was found in another directory, once, with the name of its directory. One of another
// topic of that name, or in a directory that does not work, is not given.
func (s *Set) Future(r Replica, topic uuid.UUID) (dir *Dir, name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.futures[r]
	if !ok || f.TopicID != topic || !f.dir.works() {
		return nil, "", false
	}
	delete(s.futures, r)
	return f.dir, filepath.Base(f.Path), true
}

// ByPath finds a directory by its absolute path.
func (s *Set) ByPath(path string) (*Dir, bool) {
	i := slices.IndexFunc(s.dirs, func(d *Dir) bool { return d.path == path })
	if i < 0 {
		return nil, false
	}
	return s.dirs[i], true
}

// maxPreferred bounds what is remembered about replicas that may never come.
const maxPreferred = 10_000

// Prefer says where a replica that does not exist yet is to be made, if the controller does not say otherwise.
func (s *Set) Prefer(r Replica, d *Dir) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.preferred[r]; ok || len(s.preferred) < maxPreferred {
		s.preferred[r] = d
	}
}

// Moved says that a replica has gone from one directory to another.
func (s *Set) Moved(from, to *Dir) {
	from.replicas.Add(-1)
	to.replicas.Add(1)
}

// Removed says that a replica was deleted from a directory.
func (s *Set) Removed(d *Dir) { d.replicas.Add(-1) }

// Strays sets aside the replicas on disk that no one has claimed: the cluster does not know them here. They are renamed,
// not deleted, so that an operator can look. Copies that no replica has claimed are only that, and go.
func (s *Set) Strays() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, f := range s.found {
		delete(s.found, r)
		if f.dir.Err() != nil {
			continue
		}
		if err := s.setAside(f); err != nil {
			s.fail(f.dir, err)
		}
	}
	for r, f := range s.futures {
		delete(s.futures, r)
		if f.dir.Err() != nil {
			continue
		}
		if err := os.RemoveAll(f.Path); err != nil {
			s.fail(f.dir, err)
		}
	}
}

func (s *Set) setAside(f foundIn) error {
	name := fmt.Sprintf("%s-%d.%s%s", f.Replica.Topic, f.Replica.Partition, strings.ReplaceAll(uuid.Random().String(), "-", "_"), straySuffix)
	s.logger.Warn("set aside a replica that the cluster does not have here", "from", f.Path, "to", name, "topic_id", f.TopicID)
	f.dir.replicas.Add(-1)
	return os.Rename(f.Path, filepath.Join(f.dir.path, name))
}

// MarkClean leaves the mark of a clean stop in the directories that work. The logs must have been flushed and closed.
func (s *Set) MarkClean(brokerEpoch int64) error {
	var errs []error
	for _, d := range s.Online() {
		errs = append(errs, writeCleanShutdown(d.path, brokerEpoch))
	}
	return errors.Join(errs...)
}

// MarkAsFound leaves the marks as they were found, for a stop before any log was opened: what a crash has left is still to be
// recovered. What was clean is so after this run as well, whose epoch is the one that the controller will compare; it is below 0 for
// a run that was never registered.
func (s *Set) MarkAsFound(brokerEpoch int64) error {
	var errs []error
	for _, d := range s.Online() {
		if d.clean {
			errs = append(errs, writeCleanShutdown(d.path, max(d.epoch, brokerEpoch)))
		}
	}
	return errors.Join(errs...)
}

// Close gives the directories back.
func (s *Set) Close() error {
	for _, d := range s.dirs {
		d.unlock()
	}
	return nil
}
