package log

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"chancery/services/kafka/uuid"
)

// The suffixes of a log's files, and the names of its other files.
const (
	logSuffix       = ".log"
	indexSuffix     = ".index"
	timeIndexSuffix = ".timeindex"
	txnIndexSuffix  = ".txnindex"
	snapshotSuffix  = ".snapshot"
	deletedSuffix   = ".deleted"
	cleanedSuffix   = ".cleaned"
	swapSuffix      = ".swap"

	epochCheckpointName   = "leader-epoch-checkpoint"
	partitionMetadataName = "partition.metadata"

	// deleteDirSuffix ends the name of a directory that is to be removed.
	deleteDirSuffix = "-delete"
	// futureDirSuffix ends the name of a directory that a replica is being copied to.
	futureDirSuffix = "-future"
	// maxNameBytes is the longest name that a directory may have.
	maxNameBytes = 255
)

// DirName is the name of a partition's directory.
func DirName(topic string, partition int32) string {
	return topic + "-" + strconv.Itoa(int(partition))
}

// ParseDirName takes a directory's name apart; false for names that are no partition's, also for directories that are
// being deleted.
func ParseDirName(name string) (topic string, partition int32, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 32)
	if err != nil || n < 0 || name[i+1:] != strconv.FormatInt(n, 10) {
		return "", 0, false
	}
	return name[:i], int32(n), true
}

// IsDeletedDir says whether a directory's name is that of a partition that has been deleted, and is left over.
func IsDeletedDir(name string) bool {
	i := strings.LastIndexByte(name, '.')
	if i < 0 || !strings.HasSuffix(name, deleteDirSuffix) {
		return false
	}
	_, _, ok := ParseDirName(name[:i])
	return ok
}

// FutureDirName is a new name for the directory that a replica is copied to; false when it would be longer than a name may be.
func FutureDirName(topic string, partition int32) (string, bool) {
	id := newDirID()
	name := fmt.Sprintf("%s.%x%s", DirName(topic, partition), id[:], futureDirSuffix)
	return name, len(name) <= maxNameBytes
}

// ParseFutureDirName takes the name of a directory that a replica is being copied to apart.
func ParseFutureDirName(name string) (topic string, partition int32, ok bool) {
	rest, ok := strings.CutSuffix(name, futureDirSuffix)
	i := strings.LastIndexByte(rest, '.')
	if !ok || i < 0 {
		return "", 0, false
	}
	return ParseDirName(rest[:i])
}

// deletedDirName is a new name for a directory that is to be removed, as Kafka makes it: the topic may be cut short.
func deletedDirName(topic string, partition int32, id uuid.UUID) string {
	end := fmt.Sprintf("-%d.%x%s", partition, id[:], deleteDirSuffix)
	return topic[:min(len(topic), maxNameBytes-len(end))] + end
}

func segmentPath(dir string, base int64, suffix string) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", base, suffix))
}

// SnapshotPath is where the producers at an offset are kept, in a partition's directory.
func SnapshotPath(dir string, offset int64) string { return segmentPath(dir, offset, snapshotSuffix) }

// parseSegmentName gives the offset and the suffix of a file named by an offset.
func parseSegmentName(name string) (base int64, suffix string, ok bool) {
	i := strings.IndexByte(name, '.')
	if i != 20 {
		return 0, "", false
	}
	base, err := strconv.ParseInt(name[:i], 10, 64)
	if err != nil || base < 0 {
		return 0, "", false
	}
	return base, name[i:], true
}
