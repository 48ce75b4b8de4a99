package logdir

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"chancery/services/vfs"
)

// The names of the offset checkpoints at the root of a log directory.
const (
	HighWatermarkFile = "replication-offset-checkpoint"
	RecoveryPointFile = "recovery-point-offset-checkpoint"
	LogStartFile      = "log-start-offset-checkpoint"
	CleanerFile       = "cleaner-offset-checkpoint"
)

// checkpointVersion is the first line of every checkpoint.
const checkpointVersion = "0"

// Replica names a replica in a log directory.
type Replica struct {
	Topic     string
	Partition int32
}

// Offsets is the contents of an offset checkpoint.
type Offsets map[Replica]int64

// ReadOffsets reads a checkpoint; a file that does not exist is an empty one.
func ReadOffsets(path string) (Offsets, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Offsets{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint: %w", err)
	}
	offsets, err := parseOffsets(data)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return offsets, nil
}

// parseOffsets reads lines: the version, the number of entries, and "topic partition offset" for each. Apache Kafka makes all of
// its checkpoints as empty files, and leaves them so until there is something to write.
func parseOffsets(data []byte) (Offsets, error) {
	if len(data) == 0 || string(bytes.TrimSpace(data)) == checkpointVersion {
		return Offsets{}, nil
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	next := func() string {
		if !lines.Scan() {
			return ""
		}
		return lines.Text()
	}
	if v := next(); v != checkpointVersion {
		return nil, fmt.Errorf("version %q, want %q", v, checkpointVersion)
	}
	count, err := strconv.Atoi(next())
	if err != nil || count < 0 {
		return nil, fmt.Errorf("the second line is not a number of entries: %w", err)
	}
	offsets := make(Offsets, min(count, len(data)))
	for range count {
		line := next()
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %q is not topic, partition and offset", line)
		}
		partition, err := strconv.ParseInt(fields[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("partition in line %q: %w", line, err)
		}
		offset, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("offset in line %q: %w", line, err)
		}
		offsets[Replica{Topic: fields[0], Partition: int32(partition)}] = offset
	}
	if lines.Scan() || lines.Err() != nil {
		return nil, errors.New("more lines than entries")
	}
	return offsets, nil
}

// WriteOffsets replaces a checkpoint as a whole: a crash leaves the old or the new one.
func WriteOffsets(path string, offsets Offsets) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%d\n", checkpointVersion, len(offsets))
	for r, offset := range offsets {
		fmt.Fprintf(&b, "%s %d %d\n", r.Topic, r.Partition, offset)
	}
	if err := vfs.WriteFileAtomically(vfs.OS{}, path, b.Bytes(), true); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}
