package logdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"chancery/services/kafka/uuid"
	"chancery/services/vfs"
	"chancery/storaged/internal/log"
)

// Dir is one log directory. Its methods may be called from any goroutine.
type Dir struct {
	path  string
	id    uuid.UUID
	known bool // whether it has a meta.properties
	lock  *os.File
	clean bool
	epoch int64

	// failure is the first error that made the directory useless; nil while it works.
	failure atomic.Pointer[error]
	// replicas is how many replicas live here, for placement.
	replicas atomic.Int64

	highWatermarks, recoveryPoints, logStarts, cleaned Offsets
}

// openDir makes a directory ours and reads what is at its root.
func openDir(path string, nodeID int32) (*Dir, meta, error) {
	d := &Dir{path: path, epoch: noEpoch}
	m, err := d.open(nodeID)
	if err != nil {
		d.unlock()
		return d, m, fmt.Errorf("log directory %s: %w", path, err)
	}
	return d, m, nil
}

func (d *Dir) open(nodeID int32) (meta, error) {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return meta{}, err
	}
	if err := d.takeLock(); err != nil {
		return meta{}, err
	}
	m, known, err := readMeta(d.path)
	if err != nil {
		return m, err
	}
	if known && m.nodeID != nodeID {
		return m, &identityError{fmt.Errorf("log directory %s belongs to node %d, not to node %d", d.path, m.nodeID, nodeID)}
	}
	d.known, d.id = known && !m.directory.IsZero(), m.directory
	if d.id.IsZero() {
		d.id = uuid.Random()
	}
	if d.epoch, d.clean, err = takeCleanShutdown(d.path); err != nil {
		return m, err
	}
	if d.highWatermarks, err = ReadOffsets(d.file(HighWatermarkFile)); err != nil {
		return m, err
	}
	if d.recoveryPoints, err = ReadOffsets(d.file(RecoveryPointFile)); err != nil {
		return m, err
	}
	if d.logStarts, err = ReadOffsets(d.file(LogStartFile)); err != nil {
		return m, err
	}
	d.cleaned, err = ReadOffsets(d.file(CleanerFile))
	return m, err
}

// identityError says that a directory belongs to someone else, which no other directory makes up for.
type identityError struct{ error }

func (e *identityError) Unwrap() error { return e.error }

// takeLock keeps other processes out, Apache Kafka's too.
func (d *Dir) takeLock() error {
	f, err := vfs.Lock(d.file(lockFile))
	if locked, ok := errors.AsType[*vfs.LockedError](err); ok {
		return &identityError{locked}
	}
	d.lock = f
	return err
}

func (d *Dir) unlock() {
	if d.lock != nil {
		_ = d.lock.Close() // closing gives the lock back; there is nothing to lose
		d.lock = nil
	}
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// Path is where the directory is.
func (d *Dir) Path() string { return d.path }

// ID is the directory's id (KIP-858).
func (d *Dir) ID() uuid.UUID { return d.id }

// Clean says whether the last stop was a clean one, so that logs need no recovery.
func (d *Dir) Clean() bool { return d.clean }

// Err is nil while the directory works.
func (d *Dir) Err() error {
	if err := d.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (d *Dir) works() bool { return d.failure.Load() == nil }

// Fail takes the directory offline and says whether this was the first failure.
func (d *Dir) Fail(err error) bool { return d.failure.CompareAndSwap(nil, &err) }

// Checkpointed gives what was checkpointed for a replica when the directory was opened; 0 where nothing was.
func (d *Dir) Checkpointed(r Replica) (highWatermark, recoveryPoint, logStart int64) {
	return d.highWatermarks[r], d.recoveryPoints[r], d.logStarts[r]
}

// CleanedTo is the offset up to which a replica's log was clean when the directory was opened; 0 when it never was.
func (d *Dir) CleanedTo(r Replica) int64 { return d.cleaned[r] }

// Write replaces a checkpoint. The caller takes the directory offline when that fails.
func (d *Dir) Write(name string, offsets Offsets) error {
	if err := d.Err(); err != nil {
		return err
	}
	return WriteOffsets(d.file(name), offsets)
}

// Check says whether the directory is still there.
func (d *Dir) Check() error {
	_, err := os.Stat(d.file(metaFile))
	return err
}

// Space is the size of the volume and what is free on it for ordinary users.
func (d *Dir) Space() (total, usable int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// Found is a replica's directory on disk.
type Found struct {
	Replica Replica
	// TopicID is zero when the directory does not say.
	TopicID uuid.UUID
	Path    string
}

// straySuffix ends the names of directories that were set aside.
const straySuffix = "-stray"

// metadataDir is the metadata log's directory, which a controller may keep beside the partitions.
const metadataDir = "__cluster_metadata-0"

// listing is what is in a log directory: replicas, those that were on their way here, and directories that are waiting for
// their deletion.
type listing struct {
	replicas, futures []Found
	deleted           []string
}

// list finds what is on disk.
func (d *Dir) list() (out listing, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return out, err
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case !e.IsDir() || strings.HasSuffix(name, straySuffix) || name == metadataDir:
			continue
		case log.IsDeletedDir(name):
			out.deleted = append(out.deleted, d.file(name))
			continue
		}
		topic, partition, future := log.ParseFutureDirName(name)
		if !future {
			var ok bool
			if topic, partition, ok = log.ParseDirName(name); !ok {
				continue // something that is not ours, such as lost+found
			}
		}
		id, err := log.ReadTopicID(vfs.OS{}, d.file(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
		f := Found{Replica: Replica{Topic: topic, Partition: partition}, TopicID: id, Path: d.file(name)}
		if future {
			out.futures = append(out.futures, f)
		} else {
			out.replicas = append(out.replicas, f)
		}
	}
	return out, nil
}
