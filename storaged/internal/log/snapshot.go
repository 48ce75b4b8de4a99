package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"chancery/services/vfs"
)

// A producer snapshot is: version int16 (1), CRC-32C uint32 of everything after it, number of entries int32, and per
// entry: producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64,
// coordinator epoch int32, first offset of the open transaction int64 (-1 for none).
const (
	snapshotVersion     = 1
	snapshotHeaderBytes = 10
	snapshotEntryBytes  = 46
)

var errSnapshot = errors.New("not a valid producer snapshot")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeSnapshot(list []producer) []byte {
	b := make([]byte, 6, snapshotHeaderBytes+len(list)*snapshotEntryBytes)
	binary.BigEndian.PutUint16(b, snapshotVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for i := range list {
		p := &list[i]
		lastOffset, delta := int64(-1), int32(0)
		if p.n > 0 {
			lastOffset, delta = p.batches[p.n-1].lastOffset, p.batches[p.n-1].offsetDelta
		}
		b = binary.BigEndian.AppendUint64(b, uint64(p.id))
		b = binary.BigEndian.AppendUint16(b, uint16(p.epoch))
		b = binary.BigEndian.AppendUint32(b, uint32(p.lastSequence()))
		b = binary.BigEndian.AppendUint64(b, uint64(lastOffset))
		b = binary.BigEndian.AppendUint32(b, uint32(delta))
		b = binary.BigEndian.AppendUint64(b, uint64(p.lastTimestamp))
		b = binary.BigEndian.AppendUint32(b, uint32(p.coordinatorEpoch))
		b = binary.BigEndian.AppendUint64(b, uint64(p.txnStart))
	}
	binary.BigEndian.PutUint32(b[2:], crc32.Checksum(b[6:], castagnoli))
	return b
}

func parseSnapshot(b []byte) ([]producer, error) {
	if len(b) < snapshotHeaderBytes || binary.BigEndian.Uint16(b) != snapshotVersion {
		return nil, fmt.Errorf("%w: version", errSnapshot)
	}
	if binary.BigEndian.Uint32(b[2:]) != crc32.Checksum(b[6:], castagnoli) {
		return nil, fmt.Errorf("%w: checksum", errSnapshot)
	}
	n := int(int32(binary.BigEndian.Uint32(b[6:])))
	b = b[snapshotHeaderBytes:]
	if n < 0 || n > len(b)/snapshotEntryBytes {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", errSnapshot, n, len(b))
	}
	out := make([]producer, n)
	for i := range out {
		e := b[i*snapshotEntryBytes:]
		p := newProducer(int64(binary.BigEndian.Uint64(e)))
		p.epoch = int16(binary.BigEndian.Uint16(e[8:]))
		p.lastTimestamp = int64(binary.BigEndian.Uint64(e[26:]))
		p.coordinatorEpoch = int32(binary.BigEndian.Uint32(e[34:]))
		p.txnStart = max(-1, int64(binary.BigEndian.Uint64(e[38:])))
		if last := int64(binary.BigEndian.Uint64(e[14:])); last >= 0 {
			p.batches[0] = batchInfo{
				lastSequence: int32(binary.BigEndian.Uint32(e[10:])), lastOffset: last,
				offsetDelta: int32(binary.BigEndian.Uint32(e[22:])), timestamp: p.lastTimestamp,
			}
			p.n = 1
		}
		out[i] = p
	}
	return out, nil
}

// takeSnapshot writes the producers as they are before the offset that the state reflects, unless there is such a
// snapshot. It is not synced: a crash costs only the time to build the state anew.
func (l *Log) takeSnapshot() error {
	s := &l.producers
	s.mu.Lock()
	end, list := s.end, s.list()
	s.mu.Unlock()
	if end <= s.snapshotEnd {
		return nil
	}
	path := segmentPath(l.dir, end, snapshotSuffix)
	f, err := l.fs.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(encodeSnapshot(list), 0)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.snapshotEnd = end
	if at, ok := slices.BinarySearch(l.snapshots, end); !ok {
		l.snapshots = slices.Insert(l.snapshots, at, end)
	}
	return nil
}

// removeSnapshots removes the snapshots that match.
func (l *Log) removeSnapshots(match func(offset int64) bool) error {
	keep := l.snapshots[:0]
	var errs []error
	for _, offset := range l.snapshots {
		if !match(offset) {
			keep = append(keep, offset)
			continue
		}
		errs = append(errs, removeIfThere(l.fs, segmentPath(l.dir, offset, snapshotSuffix)))
	}
	l.snapshots = keep
	l.producers.snapshotEnd = 0
	if n := len(keep); n > 0 {
		l.producers.snapshotEnd = keep[n-1]
	}
	return errors.Join(errs...)
}

// cutSnapshots removes the snapshots behind an offset for good: one that came back with a power loss, when the log has gone on past
// it, would tell of records that are not in the log any more.
func (l *Log) cutSnapshots(end int64) error {
	if n := len(l.snapshots); n == 0 || l.snapshots[n-1] <= end {
		return nil
	}
	if err := l.removeSnapshots(func(o int64) bool { return o > end }); err != nil {
		return err
	}
	return l.fs.SyncDir(l.dir)
}

// restoreProducers loads the newest good snapshot at or below an offset, and empties the state when there is none.
// Broken snapshots are removed.
func (l *Log) restoreProducers(upTo int64) error {
	s := &l.producers
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(l.snapshots) - 1; i >= 0; i-- {
		offset := l.snapshots[i]
		if offset > upTo {
			continue
		}
		data, err := l.fs.ReadFile(segmentPath(l.dir, offset, snapshotSuffix))
		if err != nil {
			return err
		}
		list, err := parseSnapshot(data)
		if err == nil {
			s.restore(list, offset, l.now())
			return nil
		}
		l.logger.Warn("producer snapshot is broken, it is removed", "offset", offset, "error", err)
		if err := l.removeSnapshots(func(o int64) bool { return o == offset }); err != nil {
			return err
		}
	}
	s.reset(l.segments[0].base)
	return nil
}

func removeIfThere(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
