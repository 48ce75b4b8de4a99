package coldread

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/segmentobject"
)

const (
	blockSuffix     = ".block"
	temporarySuffix = ".tmp"
	// diskQueue is how many blocks wait to be written; more are dropped.
	diskQueue = 8
	// diskPause is how long nothing is written after the disk was full.
	diskPause = 30 * time.Second
)

// disk keeps the blocks that leave the memory as files: <segment id>-<index>-<CRC>.block. The files of an earlier process
// are found again by their names; a file whose bytes are not what its name says is dropped when it is read, so nothing has to
// be synced.
type disk struct {
	dir      string
	capacity int64
	logger   *slog.Logger

	queue   chan *block
	done    chan struct{}
	stopped chan struct{}

	mu     sync.Mutex
	blocks map[blockKey]*list.Element
	// recent is the files, the most recently used first.
	recent *list.List
	used   int64
	// pausedUntil is set when the disk was full.
	pausedUntil time.Time
}

type diskBlock struct {
	key   blockKey
	crc   uint32
	bytes int64
}

func (b *diskBlock) name() string {
	return fmt.Sprintf("%s-%d-%08x%s", b.key.segment, b.key.index, b.crc, blockSuffix)
}

// parseName reads a file's name; an id may have minus signs in it, so it is read from the end.
func parseName(name string) (*diskBlock, bool) {
	rest, ok := strings.CutSuffix(name, blockSuffix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i < 0 {
		return nil, false
	}
	crc, err1 := strconv.ParseUint(rest[i+1:], 16, 32)
	rest = rest[:i]
	if i = strings.LastIndexByte(rest, '-'); i < 0 {
		return nil, false
	}
	index, err2 := strconv.ParseInt(rest[i+1:], 10, 32)
	segment, err3 := uuid.Parse(rest[:i])
	b := &diskBlock{key: blockKey{segment, int32(index)}, crc: uint32(crc)}
	return b, err1 == nil && err2 == nil && err3 == nil && index >= 0 && b.name() == name
}

// diskOf gives the cache on disk, or nil where there is none. A cache that cannot be used is no reason to copy and read nothing.
func diskOf(config Config, logger *slog.Logger) *disk {
	if config.DiskPath == "" {
		return nil
	}
	d, err := openDisk(config.DiskPath, config.DiskBytes, logger)
	if err != nil {
		logger.Warn("there is no cache on disk until the next start: its directory cannot be used", "dir", config.DiskPath, "error", err)
		return nil
	}
	return d
}

// openDisk finds what an earlier process has left.
func openDisk(dir string, capacity int64, logger *slog.Logger) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory of the block cache: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the block cache: %w", err)
	}
	d := &disk{
		dir: dir, capacity: capacity, logger: logger, blocks: make(map[blockKey]*list.Element), recent: list.New(),
		queue: make(chan *block, diskQueue), done: make(chan struct{}), stopped: make(chan struct{}),
	}
	type found struct {
		block *diskBlock
		used  time.Time
	}
	var all []found
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), temporarySuffix) {
			os.Remove(filepath.Join(dir, e.Name()))
			continue
		}
		b, ok := parseName(e.Name())
		info, err := e.Info()
		if !ok || err != nil {
			continue
		}
		b.bytes = info.Size()
		all = append(all, found{b, info.ModTime()})
	}
	slices.SortFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	for _, f := range all {
		d.blocks[f.block.key] = d.recent.PushFront(f.block)
		d.used += f.block.bytes
	}
	d.mu.Lock()
	d.trim()
	d.mu.Unlock()
	go d.write()
	return d, nil
}

func (d *disk) close() {
	close(d.done)
	<-d.stopped
}

// offer hands a block over to be written, unless there is no time for it.
func (d *disk) offer(b *block) {
	b.data.Ref()
	select {
	case d.queue <- b:
	default:
		b.data.Free()
	}
}

func (d *disk) write() {
	defer close(d.stopped)
	for {
		select {
		case <-d.done:
			return
		case b := <-d.queue:
			d.store(b)
			b.data.Free()
		}
	}
}

func (d *disk) store(b *block) {
	d.mu.Lock()
	_, there := d.blocks[b.key]
	paused := time.Now().Before(d.pausedUntil)
	d.mu.Unlock()
	if there || paused {
		return
	}
	entry := &diskBlock{key: b.key, crc: b.crc, bytes: int64(b.data.Len())}
	name := filepath.Join(d.dir, entry.name())
	err := os.WriteFile(name+temporarySuffix, b.data.ReadOnlyData(), 0o644)
	if err == nil {
		err = os.Rename(name+temporarySuffix, name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		os.Remove(name + temporarySuffix)
		d.pausedUntil = time.Now().Add(diskPause)
		if errors.Is(err, syscall.ENOSPC) {
			// Others need the space more than a cache does.
			d.trimTo(d.used / 2)
		}
		d.logger.Warn("a block could not be written to the cache on disk, which takes none for a while", "file", name, "pause", diskPause, "error", err)
		return
	}
	d.blocks[b.key] = d.recent.PushFront(entry)
	d.used += entry.bytes
	d.trim()
}

// trim lets the oldest blocks go when 90 % of the space is used, until it is 80 %. The caller holds the lock.
func (d *disk) trim() {
	if d.used > d.capacity/10*9 {
		d.trimTo(d.capacity / 10 * 8)
	}
}

func (d *disk) trimTo(bytes int64) {
	for d.used > bytes && d.recent.Len() > 0 {
		d.drop(d.recent.Back())
	}
}

func (d *disk) drop(e *list.Element) {
	b := e.Value.(*diskBlock)
	d.recent.Remove(e)
	delete(d.blocks, b.key)
	d.used -= b.bytes
	if err := os.Remove(filepath.Join(d.dir, b.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.logger.Warn("a block stays in the cache on disk", "file", b.name(), "error", err)
	}
}

// has says whether a block is there.
func (d *disk) has(key blockKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.blocks[key]
	return ok
}

// get reads a block and checks it.
func (d *disk) get(key blockKey, want []byte, crc uint32) bool {
	d.mu.Lock()
	e, ok := d.blocks[key]
	if !ok {
		d.mu.Unlock()
		return false
	}
	b := e.Value.(*diskBlock)
	d.recent.MoveToFront(e)
	d.mu.Unlock()
	name := filepath.Join(d.dir, b.name())
	if b.crc == crc && b.bytes == int64(len(want)) && readInto(name, want) == nil && segmentobject.Checksum(want) == crc {
		now := time.Now()
		if err := os.Chtimes(name, now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.logger.Debug("when a block was used is not noted", "file", name, "error", err)
		}
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, ok := d.blocks[key]; ok && now == e {
		d.drop(e)
	}
	return false
}

func readInto(name string, p []byte) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := f.ReadAt(p, 0); n < len(p) {
		return errors.Join(err, objectstore.ErrCorrupt)
	}
	return nil
}

// forget drops the blocks of a segment.
func (d *disk) forget(segment uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, e := range d.blocks {
		if key.segment == segment {
			d.drop(e)
		}
	}
}

// bytes is how much space is used.
func (d *disk) bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}
