package playground

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFile is where commands find the supervisor of a folder.
const stateFile = "playground.json"

// stateOnDisk is the content of the state file: who supervises, how to reach it, and what ran when it was written.
type stateOnDisk struct {
	PID     int    `json:"pid"`
	Control string `json:"control"`
	// Secret must come with each command. The file is readable by its owner alone.
	Secret    string    `json:"secret"`
	Bootstrap []string  `json:"bootstrap"`
	Processes []Process `json:"processes"`
}

// write replaces the file as a whole, so that a reader never sees a half.
func (s stateOnDisk) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, stateFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func readState(dir string) (stateOnDisk, error) {
	var s stateOnDisk
	path := filepath.Join(dir, stateFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("no playground runs in %s: there is no %s", dir, stateFile)
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}
