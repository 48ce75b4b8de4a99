package kraftlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/metadata"

	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
)

const (
	// DirName is the directory of the metadata log below metadata.log.dir.
	DirName = "__cluster_metadata-0"
	// pause is how long a copy that has failed, for want of space or so, waits before it begins anew.
	pause = 10 * time.Second
	// upkeep is how often time alone is looked at.
	upkeep = time.Minute
	// noEpoch is the epoch before the first batch.
	noEpoch = -1
)

// Config says where the copy is and how much of the log it keeps.
type Config struct {
	// Dir is the copy's own directory.
	Dir string
	// SegmentBytes and SegmentAge are when a segment is closed (metadata.log.segment.bytes, metadata.log.segment.ms).
	SegmentBytes int64
	SegmentAge   time.Duration
	// SnapshotBytes and SnapshotInterval are when a snapshot is made
	// (metadata.log.max.record.bytes.between.snapshots, metadata.log.max.snapshot.interval.ms).
	SnapshotBytes    int64
	SnapshotInterval time.Duration
	// RetentionBytes and Retention are how much is kept (metadata.max.retention.bytes, metadata.max.retention.ms); a negative
	// one has no effect.
	RetentionBytes int64
	Retention      time.Duration
	// UnsafeNoFsync leaves the files to the kernel; for tests.
	UnsafeNoFsync bool
	Logger        *slog.Logger
}

// Copy is the copy in one controller. It belongs to the goroutine of Run.
type Copy struct {
	Config
	feed *feed.Feed

	segments  []segment
	snapshots []snapshot
	epochs    []epochStart
	// next is the offset after the last batch, lastTimestampMs that batch's time.
	next            int64
	lastTimestampMs int64
	// active is the file of the last segment; nil before the first batch.
	active *os.File
	// grown is how much was written since the last snapshot, snapshotted when that was.
	grown       int64
	snapshotted time.Time
	holder      metalog.Holder
}

// New makes a copy of what a feed has.
func New(c Config, f *feed.Feed) *Copy { return &Copy{Config: c, feed: f} }

// Run keeps the copy up until the context ends.
func (c *Copy) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.run(ctx)
		if closeErr := c.closeActive(); err == nil || ctx.Err() != nil {
			err = closeErr
		}
		if err == nil {
			continue
		}
		c.Logger.Warn("the copy of the metadata log in Kafka's format", "dir", c.Dir, "error", err)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// run opens what there is and follows the feed.
func (c *Copy) run(ctx context.Context) error {
	if _, err := c.feed.Await(ctx, func(s feed.State) bool { return s.Loaded }); err != nil {
		return err
	}
	if err := c.open(time.Now()); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	ticker := time.NewTicker(upkeep)
	defer ticker.Stop()
	begun := int64(noEpoch - 1)
	for {
		batches, state, ok, err := c.feed.Read(c.next, c.lastEpoch())
		switch {
		case err != nil:
			return err
		case !state.Loaded:
			return nil
		case !ok && begun == state.Image.Offset():
			// The log is within a transaction that began before the image; the next image is after it.
			if err := wait(ctx, state.Changed, nil); err != nil {
				return err
			}
			continue
		case !ok:
			begun = state.Image.Offset()
			if err := c.beginAnew(state.Image); err != nil {
				return fmt.Errorf("begin anew: %w", err)
			}
			continue
		}
		for i := range batches {
			if err := c.append(&batches[i]); err != nil {
				return err
			}
		}
		if err := c.noteHolder(state.Holder); err != nil {
			return err
		}
		if err := c.upkeep(state.Image, time.Now()); err != nil {
			return err
		}
		if len(batches) > 0 {
			continue
		}
		if err := wait(ctx, state.Changed, ticker.C); err != nil {
			return err
		}
	}
}

// wait waits for news, or for the time to look around.
func wait(ctx context.Context, news <-chan struct{}, tick <-chan time.Time) error {
	select {
	case <-news:
		return nil
	case <-tick:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Copy) lastEpoch() int32 {
	if len(c.epochs) > 0 {
		return c.epochs[len(c.epochs)-1].epoch
	}
	return noEpoch
}

// open takes over what an earlier run has left.
func (c *Copy) open(now time.Time) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	l, err := list(c.Dir)
	if err != nil {
		return err
	}
	c.segments, c.snapshots, c.epochs = l.segments, l.snapshots, nil
	c.next, c.grown, c.snapshotted, c.holder = 0, 0, now, metalog.Holder{}
	if n := len(c.snapshots); n > 0 {
		last := c.snapshots[n-1]
		c.next, c.snapshotted = last.end, last.made
		c.epochs = []epochStart{{last.epoch, last.end}}
	}
	if err := c.openSegments(); err != nil {
		return err
	}
	return replaceFile(filepath.Join(c.Dir, "partition.metadata"), "version: 0\ntopic_id: "+uuid.Metadata.String()+"\n")
}

// openSegments checks the segments, and gives up all of them if they do not follow each other: a new copy costs little.
func (c *Copy) openSegments() error {
	if len(c.segments) == 0 {
		return nil
	}
	if c.segments[0].base > 0 && (len(c.snapshots) == 0 || c.segments[0].base > c.snapshots[len(c.snapshots)-1].end) {
		return c.giveUp("the log begins after its snapshots")
	}
	var epochs []epochStart
	next := c.segments[0].base
	for i := range c.segments {
		s := &c.segments[i]
		path := filepath.Join(c.Dir, segmentName(s.base))
		found, err := scan(path, s.base)
		switch {
		case err != nil:
			return err
		case s.base != next:
			return c.giveUp("there is a gap between segments")
		case i < len(c.segments)-1 && found.bytes < s.bytes:
			return c.giveUp("a closed segment is broken")
		case found.bytes < s.bytes:
			if err := os.Truncate(path, found.bytes); err != nil {
				return err
			}
		}
		s.bytes, next = found.bytes, found.next
		if found.bytes > 0 {
			s.began = found.began
		}
		for _, e := range found.epochs {
			if n := len(epochs); n == 0 || epochs[n-1].epoch != e.epoch {
				epochs = append(epochs, e)
			}
		}
	}
	if next < c.next {
		return c.giveUp("the log ends before its snapshot")
	}
	c.next = next
	if len(epochs) > 0 {
		c.epochs = epochs
	}
	return c.openActive()
}

func (c *Copy) openActive() error {
	f, err := os.OpenFile(filepath.Join(c.Dir, segmentName(c.segments[len(c.segments)-1].base)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	c.active = f
	return err
}

// giveUp removes everything, so that the copy begins anew.
func (c *Copy) giveUp(why string) error {
	c.Logger.Info("the copy of the metadata log begins anew", "dir", c.Dir, "reason", why)
	if err := c.closeActive(); err != nil {
		return err
	}
	c.segments, c.snapshots, c.epochs, c.next = nil, nil, nil, 0
	return clearAll(c.Dir)
}

// beginAnew starts with a snapshot, from which the feed goes on.
func (c *Copy) beginAnew(image *metadata.Image) error {
	if len(c.segments) > 0 || len(c.snapshots) > 0 {
		if err := c.giveUp("this controller's log does not go on from it"); err != nil {
			return err
		}
	}
	return c.snapshot(image, time.Now())
}

// append writes a batch, in a new segment if the present one is full or old.
func (c *Copy) append(b *metalog.Batch) error {
	raw, err := kafkaBatch(b)
	if err != nil {
		return fmt.Errorf("batch at offset %d: %w", b.BaseOffset, err)
	}
	began := time.UnixMilli(b.TimestampMs)
	if err := c.roll(b.BaseOffset, int64(len(raw)), began); err != nil {
		return err
	}
	s := &c.segments[len(c.segments)-1]
	if n, err := c.active.Write(raw); err != nil {
		// What is half written would be taken for a torn end at the next start; now it must not come before other batches.
		return errors.Join(err, c.active.Truncate(s.bytes), notWhole(n, len(raw)))
	}
	if s.bytes == 0 {
		s.began = began
	}
	s.bytes += int64(len(raw))
	c.grown += int64(len(raw))
	c.next, c.lastTimestampMs = b.EndOffset(), b.TimestampMs
	if b.Epoch != c.lastEpoch() || len(c.epochs) == 0 {
		c.epochs = append(c.epochs, epochStart{b.Epoch, b.BaseOffset})
		return c.storeEpochs()
	}
	return nil
}

func notWhole(n, of int) error { return fmt.Errorf("wrote %d of %d bytes", n, of) }

// roll makes sure that there is a segment for a batch.
func (c *Copy) roll(base, bytes int64, began time.Time) error {
	if c.active != nil {
		s := c.segments[len(c.segments)-1]
		full := s.bytes > 0 && s.bytes+bytes > c.SegmentBytes
		old := s.bytes > 0 && c.SegmentAge > 0 && began.Sub(s.began) > c.SegmentAge
		if !full && !old {
			return nil
		}
		if err := c.closeActive(); err != nil {
			return err
		}
	}
	c.segments = append(c.segments, segment{base: base, began: began})
	return c.openActive()
}

func (c *Copy) closeActive() error {
	if c.active == nil {
		return nil
	}
	err := errors.Join(c.sync(c.active), c.active.Close())
	c.active = nil
	return err
}

// sync makes a file durable.
func (c *Copy) sync(f *os.File) error {
	if c.UnsafeNoFsync {
		return nil
	}
	return f.Sync()
}

// storeEpochs writes down where the epochs began.
func (c *Copy) storeEpochs() error {
	var b strings.Builder
	fmt.Fprintf(&b, "0\n%d\n", len(c.epochs))
	for _, e := range c.epochs {
		fmt.Fprintf(&b, "%d %d\n", e.epoch, e.start)
	}
	return replaceFile(filepath.Join(c.Dir, "leader-epoch-checkpoint"), b.String())
}

// noteHolder writes down who leads the quorum, as Kafka's voters do.
func (c *Copy) noteHolder(h metalog.Holder) error {
	if h.Epoch == c.holder.Epoch {
		return nil
	}
	text := fmt.Sprintf(`{"leaderId":%d,"leaderEpoch":%d,"votedId":-1,"votedDirectoryId":"%s","data_version":1}`, h.ID, h.Epoch, uuid.UUID{})
	if err := replaceFile(filepath.Join(c.Dir, "quorum-state"), text); err != nil {
		return err
	}
	c.holder = h
	return nil
}
