package logdir

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"chancery/services/kafka/uuid"
	"chancery/services/vfs"
)

const (
	metaFile          = "meta.properties"
	cleanShutdownFile = ".kafka_cleanshutdown"
	lockFile          = ".lock"
)

// noEpoch is the broker epoch of a node whose last stop was not clean.
const noEpoch int64 = -1

// meta is the contents of meta.properties, version 1: whose directory this is.
type meta struct {
	clusterID string
	nodeID    int32
	directory uuid.UUID
}

// readMeta gives false for a directory that has no identity yet.
func readMeta(dir string) (meta, bool, error) {
	path := filepath.Join(dir, metaFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return meta{}, false, nil
	}
	if err != nil {
		return meta{}, false, err
	}
	m, err := parseMeta(data)
	if err != nil {
		return meta{}, false, fmt.Errorf("%s: %w", path, err)
	}
	return m, true, nil
}

func parseMeta(data []byte) (meta, error) {
	values := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		values[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	var m meta
	if err := lines.Err(); err != nil {
		return m, err
	}
	id := values["node.id"]
	switch v := values["version"]; v {
	case "1":
	case "0":
		id = values["broker.id"]
	default:
		return m, fmt.Errorf("version %q is not known", v)
	}
	n, err := strconv.ParseInt(id, 10, 32)
	if err != nil {
		return m, fmt.Errorf("node.id: %w", err)
	}
	m.nodeID, m.clusterID = int32(n), values["cluster.id"]
	if d := values["directory.id"]; d != "" {
		if m.directory, err = uuid.Parse(d); err != nil {
			return m, fmt.Errorf("directory.id: %w", err)
		}
	}
	return m, nil
}

func writeMeta(dir string, m meta) error {
	text := fmt.Sprintf("cluster.id=%s\ndirectory.id=%s\nnode.id=%d\nversion=1\n", m.clusterID, m.directory, m.nodeID)
	return vfs.WriteFileAtomically(vfs.OS{}, filepath.Join(dir, metaFile), []byte(text), true)
}

// cleanShutdown is the contents of the file that a clean stop leaves behind.
type cleanShutdown struct {
	Version     int   `json:"version"`
	BrokerEpoch int64 `json:"brokerEpoch"`
}

// takeCleanShutdown says whether the last stop was clean, and of which broker epoch. The file is removed: a crash while
// the logs are being opened is not a clean stop.
func takeCleanShutdown(dir string) (epoch int64, clean bool, err error) {
	path := filepath.Join(dir, cleanShutdownFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return noEpoch, false, nil
	}
	if err != nil {
		return noEpoch, false, err
	}
	c := cleanShutdown{BrokerEpoch: noEpoch}
	if json.Unmarshal(data, &c) != nil {
		// An empty file of an old version marks a clean stop as well, without saying of which epoch.
		c.BrokerEpoch = noEpoch
	}
	return c.BrokerEpoch, true, os.Remove(path)
}

func writeCleanShutdown(dir string, epoch int64) error {
	data, err := json.Marshal(cleanShutdown{BrokerEpoch: epoch})
	if err != nil {
		return err
	}
	return vfs.WriteFileAtomically(vfs.OS{}, filepath.Join(dir, cleanShutdownFile), data, true)
}
