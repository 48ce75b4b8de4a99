package registry_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/contract"
	"chancery/services/objectstore/registry"
	"chancery/services/objectstore/segmentstore"
	"chancery/services/testkit/s3"
)

const prefix = "rsm.config."

func deps() segmentstore.Deps {
	return segmentstore.Deps{Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)}
}

// open makes a manager of settings.
func open(t *testing.T, name string, settings map[string]string) objectstore.RemoteStorageManager {
	t.Helper()
	values := make(map[string]string)
	for key, value := range settings {
		values[prefix+key] = value
	}
	config, err := registry.Parse(values, prefix, "cluster")
	if err != nil {
		t.Fatal(err)
	}
	m, err := registry.Stores().Open(t.Context(), name, config, deps())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Each store does what every store must do: with both clients, over HTTP and TLS, in one request and in parts, with and
// without the newer headers.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		name     string
		tls      bool
		settings map[string]string
	}{
		{"plain", false, nil},
		{"tls", true, nil},
		{"in parts", false, map[string]string{"put.max.bytes": "2097152", "part.size.bytes": "5242880", "prefix": "a/b"}},
		{"tls in parts", true, map[string]string{"put.max.bytes": "2097152", "part.size.bytes": "5242880"}},
		{"an old store", false, map[string]string{"put.max.bytes": "2097152", "part.size.bytes": "5242880", "checksum": "when_required", "if.none.match": "false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := s3.Start(t, c.tls)
			for _, client := range []string{"s3", "minio"} {
				t.Run(client, func(t *testing.T) {
					bucket := "segments-" + client
					server.CreateBucket(t, bucket)
					settings := map[string]string{
						"bucket": bucket, "endpoint": server.Endpoint, "region": s3.Region, "access.key": s3.AccessKey, "secret.key": s3.SecretKey,
						"tls.ca.file": server.CAFile,
					}
					for key, value := range c.settings {
						settings[key] = value
					}
					contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { return open(t, client, settings) })
				})
			}
		})
	}
}

// The store in memory, which benchmarks use, is one too.
func TestSimulatedStore(t *testing.T) {
	server := s3.NewSimulated(t, s3.Latency{})
	settings := map[string]string{
		"bucket": "bucket", "endpoint": server.Endpoint, "region": s3.Region, "access.key": "a", "secret.key": "b",
		"put.max.bytes": "2097152", "part.size.bytes": "5242880",
	}
	contract.Run(t, func(t *testing.T) objectstore.RemoteStorageManager { return open(t, "s3", settings) })
}

func TestDir(t *testing.T) {
	m := open(t, "dir", map[string]string{"dir.path": t.TempDir()})
	s, d, log := contract.Segment(uuid.Random(), 0, 100)
	contract.Copy(t, m, s, d)
	if got := contract.Read(t, m, s, 0, 100); !bytes.Equal(got, log) {
		t.Error("the bytes differ")
	}
}

func TestBadSettings(t *testing.T) {
	for _, c := range []struct{ name, value, message string }{
		{"buket", "x", "rsm.config.buket is not known"},
		{"part.size.bytes", "5242881", "whole MiB"},
		{"part.size.bytes", "1", "from 5242880"},
		{"request.concurrency", "many", "whole number"},
		{"checksum", "yes", "when_supported or when_required"},
		{"path.style", "maybe", "true or false"},
		{"sse", "DES", "one of AES256, aws:kms"},
		{"prefix", "/a", "prefix is \"/a\""},
		{"read.stall.timeout.ms", "0", "from 100"},
	} {
		_, err := registry.Parse(map[string]string{prefix + c.name: c.value}, prefix, "cluster")
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s=%s: %v, want %q in it", c.name, c.value, err, c.message)
		}
	}
	for _, c := range []struct {
		store, message string
		settings       map[string]string
	}{
		{"tape", "want one of dir, minio, s3", nil},
		{"dir", "rsm.config.dir.path is not set", nil},
		{"s3", "bucket is not set", nil},
		{"minio", "endpoint is not set", map[string]string{"bucket": "b"}},
		{"s3", "set both", map[string]string{"bucket": "b", "access.key": "a"}},
	} {
		values := make(map[string]string)
		for key, value := range c.settings {
			values[prefix+key] = value
		}
		config, err := registry.Parse(values, prefix, "cluster")
		if err == nil {
			_, err = registry.Stores().Open(t.Context(), c.store, config, deps())
		}
		if err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s %v: %v, want %q in it", c.store, c.settings, err, c.message)
		}
	}
}

// What is written for people says all that Parse does.
func TestSettingsAreDescribed(t *testing.T) {
	values := make(map[string]string)
	for _, s := range registry.Settings() {
		if s.Doc == "" {
			t.Errorf("%s has no description", s.Name)
		}
		if s.Default != "" {
			values[prefix+s.Name] = s.Default
		}
	}
	if _, err := registry.Parse(values, prefix, "cluster"); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

// The README has every setting with its default.
func TestSettingsAreInTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range registry.Settings() {
		initial := s.Default
		if initial == "" {
			initial = "empty"
		}
		if row := "| `" + s.Name + "` | " + initial + " | "; !strings.Contains(string(text), row) {
			t.Errorf("the README has no row that begins with %s", row)
		}
	}
}
