package log

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/storage"
	"chancery/services/vfs"
)

// Errors that callers may want to tell apart.
var (
	// ErrTopicID says that the directory belongs to another topic of the same name.
	ErrTopicID = errors.New("the directory belongs to another topic id")
	// ErrClosed says that the log has been closed or deleted.
	ErrClosed = errors.New("the log is closed")

	errIndex = errors.New("index is broken")
	// errMoved tells a reader that the writer cut the log while it read.
	errMoved = errors.New("the log was cut during the read")
)

// Options is what a log is opened with.
type Options struct {
	// Dir is the log directory (an entry of log.dirs); the partition's own directory is in it.
	Dir       string
	Topic     string
	Partition int32
	// DirName is the name of the partition's directory; empty means DirName(Topic, Partition). A replica on its way to another
	// log directory has one of its own (FutureDirName).
	DirName string
	// TopicID is written to partition.metadata of a new log, and compared with that of an old one. Zero takes whatever is
	// there.
	TopicID uuid.UUID
	Config  *configdef.Topic
	// LogStartOffset and RecoveryPoint are from the checkpoints; 0 when there is none.
	LogStartOffset int64
	RecoveryPoint  int64
	// CleanedTo is from the cleaner's checkpoint; 0 when there is none.
	CleanedTo int64
	// CleanShutdown says that the log was closed: nothing has to be recovered.
	CleanShutdown bool
	// ProducerIDExpiration is producer.id.expiration.ms.
	ProducerIDExpiration time.Duration

	Logger *slog.Logger
	// Codecs are for looking into compressed batches.
	Codecs *recordbatch.Codecs
	// Pools, FS, Now, After and Jitter may be left out: a log of its own, the operating system, its clock and randomness.
	// After runs a function later, to remove files; Jitter gives a number from 0 to n-1.
	Pools *Pools
	// OpenFiles bounds the files that stay open; nil does not.
	OpenFiles *OpenFiles
	FS        vfs.FS
	Now       func() time.Time
	After     func(d time.Duration, f func())
	Jitter    func(n int64) int64
	// Rolled, if set, is called by the writer after it has begun a new segment: time to flush the one before, elsewhere.
	Rolled func()
	// RecoveryPointFell, if set, is called before files that were taken for durable are changed: the checkpoint of the recovery
	// point must be written by the time it returns. After a crash nothing below the checkpoint is looked at.
	RecoveryPointFell func()
}

func (o *Options) fill() {
	if o.DirName == "" {
		o.DirName = DirName(o.Topic, o.Partition)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Codecs == nil {
		o.Codecs = recordbatch.NewCodecs()
	}
	if o.Pools == nil {
		o.Pools = &Pools{}
	}
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Int64N
	}
	if o.ProducerIDExpiration <= 0 {
		o.ProducerIDExpiration = 24 * time.Hour
	}
}

// Log is one partition's log. See the package's documentation for who may call what.
type Log struct {
	dir       string
	topic     string
	partition int32
	topicID   uuid.UUID
	fs        vfs.FS
	logger    *slog.Logger
	codecs    *recordbatch.Codecs
	pools     *Pools
	openFiles *OpenFiles
	now       func() time.Time
	after     func(time.Duration, func())
	jitter    func(int64) int64
	rolled    func()
	// recoveryPointFell may be nil.
	recoveryPointFell func()

	// What follows up to mu belongs to the writer, which changes config under the lock, for the cleaner to read.
	config    *configdef.Topic
	producers producers
	// snapshots are the offsets of the snapshots on disk, sorted.
	snapshots []int64

	// failed is the first error of a write. After it nothing more is written, since the files may not be what memory
	// says they are.
	failed atomic.Pointer[error]
	closed atomic.Bool

	// ioMu lets only one of the writer's truncation and a flush work on the files.
	ioMu sync.Mutex

	// mu guards what readers see. The writer takes it to change things; readers take it to copy them.
	mu sync.RWMutex
	// segments is never empty; the last one is active. The slice is replaced, not changed, when segments come or go.
	segments      []*segment
	logStart      int64
	logEnd        int64
	highWatermark int64
	firstUnstable int64
	recoveryPoint int64
	// remoteEnd is the offset after the last record that the remote tier has; 0 for none.
	remoteEnd int64
	lastFlush time.Time
	// keepsFiles says that this is one of the logs that openFiles lets keep the files of their active segment open.
	keepsFiles bool
	epochs     epochs
	// epochsDirty, metadataDirty and dirDirty say what a flush has to make durable beside the segments.
	epochsDirty   bool
	metadataDirty bool
	dirDirty      bool
	// cleanedTo is the offset below which the cleaner has compared all keys; 0 before it has come.
	cleanedTo int64
	// cuts counts truncations, and changes those and the segments that the cleaner has put into others' places: so readers
	// can tell a file that was changed under them from a broken one.
	cuts    uint64
	changes uint64
	// names is held while files lose or change their names and the list of segments does not say so yet. Readers who meet a segment
	// that is leaving wait for that; it is taken before mu.
	names sync.RWMutex
	// recent are the newest batches of the active segment.
	recent recentBatches
}

// Open opens a log, or makes one where there is none. After an unclean shutdown it first recovers what the crash has
// left: everything from the recovery point on is checked, a torn tail is cut off, indexes and producers are rebuilt.
func Open(o Options) (*Log, error) {
	o.fill()
	l := &Log{
		dir: filepath.Join(o.Dir, o.DirName), topic: o.Topic, partition: o.Partition, topicID: o.TopicID,
		fs: o.FS, logger: o.Logger.With("topic", o.Topic, "partition", o.Partition), codecs: o.Codecs, pools: o.Pools, openFiles: o.OpenFiles,
		now: o.Now, after: o.After, jitter: o.Jitter, rolled: o.Rolled, config: o.Config,
		logStart: o.LogStartOffset, recoveryPoint: o.RecoveryPoint, cleanedTo: o.CleanedTo, firstUnstable: -1,
	}
	l.producers.expiration = o.ProducerIDExpiration
	l.lastFlush = o.Now()
	err := l.load(o.CleanShutdown)
	if err == nil {
		l.recoveryPointFell = o.RecoveryPointFell
		l.mu.Lock()
		for _, s := range l.segments {
			s.closeFiles()
		}
		l.mu.Unlock()
		return l, nil
	}
	for _, s := range l.segments {
		s.release()
	}
	if errors.Is(err, ErrTopicID) {
		return nil, err
	}
	return nil, errcode.KafkaStorageError.Wrap(fmt.Errorf("open log %s: %w", l.dir, err))
}

// loadMetadata reads partition.metadata, or writes it.
func (l *Log) loadMetadata() error {
	id, err := ReadTopicID(l.fs, l.dir)
	if err == nil && !id.IsZero() {
		if !l.topicID.IsZero() && id != l.topicID {
			return fmt.Errorf("%w: %s is of %s, not %s", ErrTopicID, l.dir, id, l.topicID)
		}
		l.topicID = id
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if l.topicID.IsZero() {
		return nil
	}
	l.metadataDirty = true
	return vfs.WriteFileAtomically(l.fs, filepath.Join(l.dir, partitionMetadataName), encodeTopicID(l.topicID), false)
}

func encodeTopicID(id uuid.UUID) []byte { return []byte("version: 0\ntopic_id: " + id.String()) }

// isTorn says whether a partition.metadata is what a power loss leaves of a file that was never made durable: only its
// beginning, or zeros in place of the bytes.
func isTorn(data []byte) bool {
	whole := encodeTopicID(uuid.Zero)
	id := bytes.LastIndexByte(whole, ' ') + 1
	return bytes.IndexByte(data, 0) >= 0 || len(data) < len(whole) && bytes.HasPrefix(whole[:id], data[:min(id, len(data))])
}

// ReadTopicID reads the topic id in the partition.metadata of a partition's directory. A file of which a crash has not left
// everything gives the zero id.
func ReadTopicID(fsys vfs.FS, partitionDir string) (uuid.UUID, error) {
	path := filepath.Join(partitionDir, partitionMetadataName)
	data, err := fsys.ReadFile(path)
	if err != nil || isTorn(data) {
		return uuid.Zero, err
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "version":
			if value != "0" {
				return uuid.Zero, fmt.Errorf("%s: version %s, want 0", path, value)
			}
		case "topic_id":
			return uuid.Parse(value)
		}
	}
	return uuid.Zero, fmt.Errorf("%s has no topic_id", path)
}

// fail notes a failed write and makes it the error of everything after it.
func (l *Log) fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := errcode.KafkaStorageError.Wrap(fmt.Errorf("%s in %s: %w", doing, l.dir, err))
	if l.failed.CompareAndSwap(nil, &wrapped) {
		l.logger.Error("the log cannot be written any more", "error", wrapped)
	}
	return wrapped
}

// writable is the error of an earlier write, or that the log is closed.
func (l *Log) writable() error {
	if e := l.failed.Load(); e != nil {
		return *e
	}
	if l.closed.Load() {
		return errcode.KafkaStorageError.Wrap(fmt.Errorf("%w: %s", ErrClosed, l.dir))
	}
	return nil
}

// Dir is the partition's directory.
func (l *Log) Dir() string { return l.dir }

// TopicID is the topic's id; zero when the log has none.
func (l *Log) TopicID() uuid.UUID { return l.topicID }

// LogStartOffset is the first offset that readers may see.
func (l *Log) LogStartOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.logStart
}

// LogEndOffset is the offset that the next record gets.
func (l *Log) LogEndOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.logEnd
}

// LastStableOffset is the offset below which no transaction is open, bounded by the high watermark.
func (l *Log) LastStableOffset() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.firstUnstable >= 0 && l.firstUnstable < l.highWatermark {
		return max(l.firstUnstable, min(l.logStart, l.highWatermark))
	}
	return l.highWatermark
}

// RecoveryPoint is the offset below which everything is durable.
func (l *Log) RecoveryPoint() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.recoveryPoint
}

// changesNow is how often what readers may be looking at has been replaced.
func (l *Log) changesNow() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.changes
}

// LastFlush is when Flush last made everything durable, or when the log was opened.
func (l *Log) LastFlush() time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lastFlush
}

// LatestEpoch is the newest leader epoch in the log; -1 for none.
func (l *Log) LatestEpoch() int32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.epochs.latest()
}

// EndOffsetForEpoch gives the largest epoch that is not above the given one, and its end; NoDivergence when unknown.
func (l *Log) EndOffsetForEpoch(epoch int32) storage.EpochEndOffset {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.epochs.endOffsetFor(epoch, l.logEnd)
}

// EpochForOffset gives the epoch of the record at an offset; -1 when unknown.
func (l *Log) EpochForOffset(offset int64) int32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.epochs.forOffset(offset)
}

// Size is the size of the segments in bytes.
func (l *Log) Size() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var n int64
	for _, s := range l.segments {
		n += s.size
	}
	return n
}

// SegmentInfo describes a segment.
type SegmentInfo struct {
	BaseOffset int64
	SizeBytes  int64
}

// Segments describes all segments, the oldest first.
func (l *Log) Segments() []SegmentInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]SegmentInfo, len(l.segments))
	for i, s := range l.segments {
		out[i] = SegmentInfo{BaseOffset: s.base, SizeBytes: s.size}
	}
	return out
}

// SetConfig changes the topic's configs. Writer only.
func (l *Log) SetConfig(c *configdef.Topic) {
	l.mu.Lock()
	l.config = c
	l.mu.Unlock()
}

// SetHighWatermark tells how far records are committed: transactions whose markers lie below are done, and retention
// deletes nothing above. Writer only.
func (l *Log) SetHighWatermark(offset int64) {
	l.producers.mu.Lock()
	l.producers.committed(offset)
	unstable := l.producers.firstUnstable()
	l.producers.mu.Unlock()
	l.mu.Lock()
	l.highWatermark, l.firstUnstable = offset, unstable
	l.mu.Unlock()
}

// AssignEpochStart notes where a leader epoch begins. Writer only.
func (l *Log) AssignEpochStart(epoch int32, offset int64) error {
	if err := l.writable(); err != nil {
		return err
	}
	l.mu.Lock()
	changed := l.epochs.assign(epoch, offset)
	l.mu.Unlock()
	if !changed {
		return nil
	}
	return l.fail("write leader epochs", l.writeEpochs())
}

// CopyEpochs takes over the leader epochs of another log with the same records, also those that have no records yet. Writer
// only.
func (l *Log) CopyEpochs(from *Log) error {
	if err := l.writable(); err != nil {
		return err
	}
	from.mu.RLock()
	copied := slices.Clone(from.epochs)
	from.mu.RUnlock()
	l.mu.Lock()
	l.epochs = copied
	l.mu.Unlock()
	return l.fail("write leader epochs", l.writeEpochs())
}

// writeEpochs writes the checkpoint. It is made durable by the next flush, before the recovery point moves: epochs of
// records above that are found again in the records.
func (l *Log) writeEpochs() error {
	l.mu.Lock()
	data := l.epochs.encode()
	l.epochsDirty = true
	// What is known of records that are here can be read from them again; what is known of those in the remote tier cannot.
	remote := l.logStart < l.segments[0].base
	l.mu.Unlock()
	return vfs.WriteFileAtomically(l.fs, filepath.Join(l.dir, epochCheckpointName), data, remote)
}

// active is the segment that is written to. Writer only.
func (l *Log) active() *segment { return l.segments[len(l.segments)-1] }
