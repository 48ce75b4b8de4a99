// Package config reads the settings of a process: a .properties file and --set key=value on the command line.
//
// It owns the syntax of the file and what is said about keys and values that are wrong. What keys there are is in
// services/kafka/configdef; this package must never know what a key is for, nor take a wrong setting for its default.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
)

// commandLine is where settings of the command line come from, for messages.
const commandLine = "--set"

// Settings are the settings of a process, and where each comes from.
type Settings struct {
	values map[string]string
	// where is "file:line" or "--set".
	where map[string]string
}

// Load reads a properties file, unless path is empty, and lays the key=value pairs of the command line over it. When a
// key comes twice, the last one counts, as in Java. The error names each unknown key and each bad value, with where
// it stands and what would be right.
func Load(path string, sets []string) (*Settings, error) {
	s := &Settings{values: make(map[string]string), where: make(map[string]string)}
	if path != "" {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no properties file %s", path)
		}
		if err != nil {
			return nil, fmt.Errorf("read properties file: %w", err)
		}
		if err := s.addFile(path, data); err != nil {
			return nil, err
		}
	}
	for _, set := range sets {
		key, value, ok := strings.Cut(set, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return nil, fmt.Errorf("%s %s: want key=value", commandLine, set)
		}
		s.Set(key, value, commandLine)
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Settings) addFile(name string, data []byte) error {
	properties, err := parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, p := range properties {
		s.Set(p.key, p.value, fmt.Sprintf("%s:%d", name, p.line))
	}
	return nil
}

// Set sets a key, in place of what it was. Where is shown when the value turns out to be wrong.
func (s *Settings) Set(key, value, where string) {
	s.values[key] = value
	s.where[key] = where
}

// SetDefault sets a key that is not set yet.
func (s *Settings) SetDefault(key, value, where string) {
	if _, ok := s.values[key]; !ok {
		s.Set(key, value, where)
	}
}

// Get gives the text of a key; false when it is not set.
func (s *Settings) Get(key string) (string, bool) {
	v, ok := s.values[key]
	return v, ok
}

// Where says where a key was set, as "file:line" or "--set"; empty when it was not.
func (s *Settings) Where(key string) string { return s.where[key] }

// Map gives a copy of all settings.
func (s *Settings) Map() map[string]string { return maps.Clone(s.values) }

// Node gives the settings as the configuration of a process.
func (s *Settings) Node() *configdef.Node { return configdef.NewNode(s.values) }

// Check says what is wrong with the settings: unknown keys, bad values, and values that do not fit together. Load has
// called it; it is for settings that were changed afterwards.
func (s *Settings) Check() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if err := s.checkKey(key, s.values[key]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.where[key], err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := s.Node().CheckTogether(); err != nil {
		return fmt.Errorf("settings that do not fit together: %s", errcode.Text(err))
	}
	return nil
}

func (s *Settings) checkKey(key, value string) error {
	d := configdef.Lookup(configdef.BrokerResource, key)
	if d == nil {
		if configdef.KnownBrokerName(key) {
			return nil
		}
		if near := nearest(key); near != "" {
			return fmt.Errorf("unknown key %s, did you mean %s?", key, near)
		}
		return fmt.Errorf("unknown key %s", key)
	}
	if _, err := d.Parse(value); err != nil {
		return fmt.Errorf("%s; %s", errcode.Text(err), hint(d))
	}
	return nil
}

// hint says what a right value looks like.
func hint(d *configdef.Def) string {
	var kind string
	switch d.Type {
	case configdef.Boolean:
		kind = "true or false"
	case configdef.Int, configdef.Short, configdef.Long:
		kind = "a whole number"
	case configdef.Double:
		kind = "a number"
	case configdef.List:
		kind = "a list with commas between its entries"
	case configdef.String, configdef.Class, configdef.Password, configdef.Unknown:
		kind = "a text"
	}
	text := "want " + kind
	if d.DefaultKind == configdef.HasDefault && d.Default != "" && !d.Sensitive() {
		text += ", such as the default " + d.Default
	}
	return text
}

// nearest finds the known key that looks most like an unknown one; empty when none looks like it.
func nearest(key string) string {
	all := configdef.All(configdef.BrokerResource)
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	return Nearest(key, names)
}

// Nearest is the one of some names that a key was most likely meant to be; empty when none is near.
func Nearest(key string, names []string) string {
	best, bestDistance := "", max(2, len(key)/4)+1
	for _, name := range names {
		if distance := editDistance(key, name, bestDistance); distance < bestDistance {
			best, bestDistance = name, distance
		}
	}
	return best
}

// editDistance is how many characters must be added, removed or replaced to get from a to b; limit when it is at least
// that.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return min(limit, row[len(b)])
}

// Setting is one setting that differs from the default, for a log line at the start.
type Setting struct {
	Key, Value, Default, Where string
}

// Changed are the settings that differ from their defaults, in the order of their keys. Secrets are hidden.
func (s *Settings) Changed() []Setting {
	var changed []Setting
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		set := Setting{Key: key, Value: s.values[key], Where: s.where[key]}
		d := configdef.Lookup(configdef.BrokerResource, key)
		switch {
		case d == nil || d.Sensitive():
			set.Value = "[hidden]"
		case set.Value == d.Default && d.DefaultKind == configdef.HasDefault:
			continue
		default:
			set.Default = d.Default
		}
		changed = append(changed, set)
	}
	return changed
}
