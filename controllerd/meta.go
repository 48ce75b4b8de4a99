package controllerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"chancery/services/kafka/uuid"
)

// lockFile is what keeps other processes out of a directory, Apache Kafka's too.
const lockFile = ".lock"

// metaFile is the file that says whom a directory belongs to, as Kafka writes it.
const metaFile = "meta.properties"

// metaProperties says whom a directory of the metadata log belongs to.
type metaProperties struct {
	clusterID   string
	nodeID      int32
	directoryID uuid.UUID
}

// loadMetaProperties reads what a directory says, or makes up what it will say after the first start.
func loadMetaProperties(dir string, nodeID int32) (metaProperties, error) {
	m := metaProperties{nodeID: nodeID, directoryID: uuid.Random()}
	path := filepath.Join(dir, metaFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return m, fmt.Errorf("metadata.log.dir: %w", err)
		}
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("metadata.log.dir: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		switch key {
		case "version":
			if value != "1" {
				return m, fmt.Errorf("%s: version %s is not known, want 1", path, value)
			}
		case "cluster.id":
			m.clusterID = value
		case "node.id":
			id, err := strconv.ParseInt(value, 10, 32)
			if err != nil || int32(id) != nodeID {
				return m, fmt.Errorf("%s belongs to node %s, but node.id is %d", dir, value, nodeID)
			}
		case "directory.id":
			if m.directoryID, err = uuid.Parse(value); err != nil {
				return m, fmt.Errorf("%s: directory.id: %w", path, err)
			}
		}
	}
	return m, nil
}

// store writes the file in one step.
func (m metaProperties) store(dir string) error {
	text := fmt.Sprintf("#\ncluster.id=%s\ndirectory.id=%s\nnode.id=%d\nversion=1\n", m.clusterID, m.directoryID, m.nodeID)
	path := filepath.Join(dir, metaFile)
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write down the cluster id: %w", err)
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("write down the cluster id: %w", err)
	}
	return nil
}
