package app

import (
	"path/filepath"
	"strings"
	"testing"

	"chancery/services/config"
)

// TestExamples loads every example of a properties file: all keys are known, all values good, and nothing is missing that
// the service needs.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../deploy/*.properties")
	if err != nil || len(files) != len(targets)-1 {
		t.Fatalf("%d examples for %d services: %v", len(files), len(targets)-1, err)
	}
	for _, file := range files {
		target := Target(strings.TrimSuffix(filepath.Base(file), ".properties"))
		t.Run(string(target), func(t *testing.T) {
			settings, err := config.Load(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			for key := range needed[target] {
				if v, ok := settings.Get(key); !ok || v == "" {
					t.Errorf("%s is missing", key)
				}
			}
			if _, err := componentsOf(target); err != nil {
				t.Error(err)
			}
		})
	}
}
