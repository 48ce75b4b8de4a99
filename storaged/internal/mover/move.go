package mover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/services/kafka/recordbatch"
	"chancery/storaged/internal/log"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
)

const (
	// chunkBytes is how much is copied in a turn; flushBytes how much is copied between flushes, so that the last one, which
	// the replica waits for, is short.
	chunkBytes = 1 << 20
	flushBytes = 64 << 20
	// finishReads bounds how many chunks are copied while the replica waits.
	finishReads = 4
	// lookAgain is how soon a copy that the controller has not agreed to yet looks for more to copy.
	lookAgain = 100 * time.Millisecond
)

// stage says how far a move is with the controller.
type stage int8

const (
	// stageCopying has not asked yet: the copy has not caught up.
	stageCopying stage = iota
	// stageAsking has asked the controller to agree.
	stageAsking
	// stageAgreed may take the replica's place as soon as it has caught up again.
	stageAgreed
)

// move is one replica's move.
type move struct {
	set      *Set
	replica  *replica.Replica
	from, to *logdir.Dir
	name     string
	future   *log.Log
	// unflushed is how many bytes were copied since the last flush.
	unflushed int

	// The set's mutex guards what follows.
	stage stage
	// woken says that something happened during the turn that is under way.
	queued, atWork, woken, cancelled, finished bool
	// gone, if set, is closed when the move is over.
	gone chan struct{}
}

// next says what follows a turn: another one at once, or after a pause, or the end.
type next struct {
	again, over bool
	pause       time.Duration
}

// errPresent says that the present log could not be read: the trouble of its directory, not of the copy's.
var errPresent = errors.New("the present log cannot be read")

// turn does one step of a move.
func (m *move) turn(cancelled bool) next {
	if cancelled {
		m.giveUp()
		return next{over: true}
	}
	present := m.replica.Log()
	if present == nil || m.replica.View().Failed {
		m.giveUp()
		return next{over: true}
	}
	if wait := m.set.config.Quota.Wait(time.Now()); wait > 0 && m.future.LogEndOffset() < present.LogEndOffset() {
		return next{pause: wait}
	}
	n, err := m.copy(present)
	if err == nil && m.unflushed >= flushBytes {
		m.unflushed, err = 0, m.future.Flush()
	}
	if err != nil {
		return m.failed(err)
	}
	if n >= chunkBytes/2 && m.future.LogEndOffset() < present.LogEndOffset() {
		return next{again: true}
	}
	switch m.present() {
	case stageCopying:
		m.ask()
		return next{pause: lookAgain}
	case stageAsking:
		return next{pause: lookAgain}
	case stageAgreed:
	}
	return m.finish()
}

func (m *move) present() stage {
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	return m.stage
}

// ask has the controller agree that the replica is in the new directory. The present one goes on serving until then.
func (m *move) ask() {
	m.set.mu.Lock()
	m.stage = stageAsking
	m.set.mu.Unlock()
	m.set.config.Assign(m.replica.Key(), m.to.ID(), func() {
		m.set.mu.Lock()
		defer m.set.mu.Unlock()
		m.stage = stageAgreed
		m.set.enqueueLocked(m)
	})
}

// failed ends a move whose directory does not work any more.
func (m *move) failed(err error) next {
	d := m.to
	if errors.Is(err, errPresent) {
		d = m.from
	}
	m.set.config.Logger.Error("replica cannot move", "partition", m.replica.String(), "to", m.to.Path(), "error", err)
	m.set.config.DirFailed(d, err)
	m.giveUp()
	return next{over: true}
}

// giveUp removes the copy, and takes back what the controller was told, be it by this move or by one before a restart.
func (m *move) giveUp() {
	if err := m.future.Delete(); err != nil && m.to.Err() == nil {
		m.set.config.DirFailed(m.to, err)
	}
	m.set.config.Assign(m.replica.Key(), m.from.ID(), func() {})
	m.set.config.Logger.Info("replica does not move", "partition", m.replica.String(), "to", m.to.Path())
}

// copy brings the copy nearer to the present log by one read, and says how many bytes that were.
//
// Like a follower's, the copy is first cut to what the present log has: that may have been cut itself, and written to
// again, since the last turn.
func (m *move) copy(present *log.Log) (int, error) {
	if err := m.align(present); err != nil {
		return 0, err
	}
	from, end := m.future.LogEndOffset(), present.LogEndOffset()
	if from >= end {
		return 0, nil
	}
	records, err := present.Read(from, chunkBytes, end, true)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errPresent, err)
	}
	defer records.Release()
	n := records.Len()
	if n == 0 {
		return 0, nil
	}
	pool := mem.DefaultBufferPool()
	data := pool.Get(n)
	defer pool.Put(data)
	if err := records.ReadInto((*data)[:n]); err != nil {
		return 0, fmt.Errorf("%w: %w", errPresent, err)
	}
	if err := m.append(mem.BufferSlice{mem.SliceBuffer((*data)[:n])}, from); err != nil {
		return 0, err
	}
	m.unflushed += n
	m.set.config.Quota.Record(time.Now(), n)
	return n, nil
}

// append writes to the copy. One that begins inside a batch, because the records before were deleted, begins with the whole batch and
// hides those.
func (m *move) append(records mem.BufferSlice, from int64) error {
	it := recordbatch.IterateBuffers(records)
	if !it.Next() || it.Header().BaseOffset() >= from || m.future.LocalLogStartOffset() < from {
		return m.future.AppendAsFollower(records)
	}
	if err := m.future.TruncateFullyAndStartAt(it.Header().BaseOffset()); err != nil {
		return err
	}
	if err := m.future.AppendAsFollower(records); err != nil {
		return err
	}
	return m.future.SetLogStartOffset(from)
}

// align cuts the copy where it differs from the present log, and lets it begin where that begins.
func (m *move) align(present *log.Log) error {
	start := present.LocalLogStartOffset()
	if m.future.LogEndOffset() < start {
		return m.restart(present, start)
	}
	if epoch := m.future.LatestEpoch(); epoch >= 0 {
		theirs := present.EndOffsetForEpoch(epoch)
		switch {
		case theirs.Epoch < 0:
			return m.restart(present, start)
		case theirs.Epoch < epoch || theirs.EndOffset < m.future.LogEndOffset():
			own := m.future.EndOffsetForEpoch(theirs.Epoch)
			to := min(theirs.EndOffset, own.EndOffset)
			if own.Epoch >= 0 && own.Epoch != theirs.Epoch {
				to = own.EndOffset
			}
			if own.Epoch < 0 || to < max(start, m.future.LocalLogStartOffset()) {
				return m.restart(present, start)
			}
			if err := m.future.TruncateTo(to); err != nil {
				return err
			}
		}
	}
	if start := present.LogStartOffset(); start > m.future.LogStartOffset() && start <= m.future.LogEndOffset() {
		return m.future.SetLogStartOffset(start)
	}
	return nil
}

// restart empties the copy and lets it begin where the present log does. What of a tiered log is only in the remote tier is
// not copied; who had written then is in the snapshot that was taken when the first local segment began.
func (m *move) restart(present *log.Log, start int64) error {
	logStart := present.LogStartOffset()
	if logStart == start {
		return m.future.TruncateFullyAndStartAt(start)
	}
	at := log.LocalStart{LogStart: logStart, LocalStart: start, Epochs: present.Epochs()}
	snapshot, err := m.set.config.FS.ReadFile(log.SnapshotPath(present.Dir(), start))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", errPresent, err)
	}
	at.Producers = snapshot
	return m.future.StartLocallyAt(at)
}

// finish lets the copy take the replica's place. What is still missing is copied while the replica waits, which is little.
func (m *move) finish() next {
	if err := m.future.Flush(); err != nil {
		return m.failed(err)
	}
	var err error
	swapped := m.replica.Move(func(present *log.Log) (replica.Home, bool) {
		for range finishReads {
			if _, err = m.copy(present); err != nil {
				return replica.Home{}, false
			}
		}
		if m.future.LogEndOffset() != present.LogEndOffset() {
			return replica.Home{}, false
		}
		var to replica.Home
		to, err = m.swap(present)
		return to, to.Dir != nil
	})
	switch {
	case !swapped && err != nil:
		return m.failed(err)
	case !swapped && m.replica.View().Failed:
		m.giveUp()
		return next{over: true}
	case !swapped:
		return next{again: true}
	}
	if err != nil {
		m.set.config.DirFailed(m.to, err)
	}
	m.set.config.Moved(m.replica, m.from, m.to)
	m.set.config.Logger.Info("replica has moved", "partition", m.replica.String(), "from", m.from.Path(), "to", m.to.Path())
	return next{over: true}
}

// swap gives the copy the name of the present log, which goes. The home is empty when everything is as it was; with an error
// otherwise the replica has lost its log.
func (m *move) swap(present *log.Log) (replica.Home, error) {
	c := &m.set.config
	if err := m.future.CopyEpochs(present); err != nil {
		return replica.Home{}, err
	}
	if err := m.future.Close(); err != nil {
		return replica.Home{}, err
	}
	err := present.Delete()
	if err == nil {
		// After a power loss the replica must not be in both directories, which nobody could choose from.
		err = c.FS.SyncDir(m.from.Path())
	}
	if err != nil {
		// The records are safe in the copy. The former directory is as good as lost.
		c.DirFailed(m.from, err)
	}
	r := m.replica
	name := log.DirName(r.Topic(), r.Key().Partition)
	err = c.FS.Rename(filepath.Join(m.to.Path(), m.name), filepath.Join(m.to.Path(), name))
	if err == nil {
		err = c.FS.SyncDir(m.to.Path())
	}
	if err != nil {
		return replica.Home{Dir: m.to}, fmt.Errorf("rename the copy of %s: %w", r, err)
	}
	opened, err := c.Open(r, m.to, name, OpenAs{LogStart: m.future.LogStartOffset(), Clean: true, InService: true})
	if err != nil {
		return replica.Home{Dir: m.to}, err
	}
	// A log that is opened forgets epochs without records, of which the present one of a leader can be one: followers that were
	// cut off in an older epoch would find none here that tells them where to go on.
	if err := opened.CopyEpochs(present); err != nil {
		return replica.Home{Dir: m.to}, err
	}
	return replica.Home{Dir: m.to, Log: opened}, nil
}
