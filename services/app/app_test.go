package app_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"chancery/services/app"
	"chancery/services/config"
)

// allSettings are those of a process that runs everything in a folder, on free ports.
func allSettings(t *testing.T, dir string) *config.Settings {
	t.Helper()
	settings, err := config.Load("", []string{"admin.listeners=127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := app.CompleteAll(settings, app.AllFlags{Dir: dir, DirGiven: true, KafkaListen: "127.0.0.1:0", KafkaListenGiven: true}); err != nil {
		t.Fatal(err)
	}
	return settings
}

func options(target app.Target, settings *config.Settings) app.Options {
	return app.Options{Target: target, Settings: settings, Version: "test", Logger: slog.New(slog.DiscardHandler)}
}

func TestRunUntilTheContextEnds(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // The second time with the data of the first.
		ctx, cancel := context.WithCancel(t.Context())
		ready := false
		err := app.Run(ctx, options(app.All, allSettings(t, dir)), func(p *app.Process) {
			ready = true
			if err := p.Ready(); err != nil {
				t.Errorf("told to be ready, but: %v", err)
			}
			if kafka := p.KafkaAddresses(); len(kafka) != 1 || strings.HasSuffix(kafka[0], ":0") {
				t.Errorf("Kafka on %v", kafka)
			}
			if p.AdminAddress() == "" || p.GRPCAddress() != "" {
				t.Errorf("admin on %q, other services on %q", p.AdminAddress(), p.GRPCAddress())
			}
			cancel()
		})
		if err != nil || !ready {
			t.Fatalf("ready %v, ended with %v", ready, err)
		}
		cancel()
	}
}

// TestAskedToEndWhileItWaits ends a process whose controllers are not there: that is no failure.
func TestAskedToEndWhileItWaits(t *testing.T) {
	settings, err := config.Load("", []string{"node.id=1", "controller.quorum.bootstrap.servers=127.0.0.1:1", "listeners=PLAINTEXT://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, options(app.Gateway, settings), func(*app.Process) { t.Error("ready without controllers") })
	}()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestUnknownTarget(t *testing.T) {
	settings, err := config.Load("", []string{"node.id=1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = app.New(options("broker", settings))
	if err == nil || err.Error() != `no target "broker"; there are all, controllerd, coordinatord, gateway, storaged, tiering` {
		t.Fatalf("got %v", err)
	}
}

// TestExamples puts a process together from each example of settings.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("../../deploy/*.properties")
	if err != nil {
		t.Fatal(err)
	}
	targets := []app.Target{app.Gateway, app.Storaged, app.Controllerd, app.Coordinatord, app.Tiering}
	if len(examples) != len(targets) {
		t.Errorf("%d examples for %d services", len(examples), len(targets))
	}
	for _, target := range targets {
		t.Run(string(target), func(t *testing.T) {
			settings, err := config.Load(filepath.Join("../../deploy", string(target)+".properties"), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"log.dirs", "metadata.log.dir"} {
				if _, ok := settings.Get(key); ok {
					settings.Set(key, t.TempDir(), "the test's own folder")
				}
			}
			if _, err := app.New(options(target, settings)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestFlagsFileAndSets(t *testing.T) {
	for _, c := range []struct {
		name  string
		sets  []string
		flags app.AllFlags
		want  map[string]string
	}{
		{"defaults", nil, app.AllFlags{Dir: "d", KafkaListen: "h:1"},
			map[string]string{"log.dirs": "d/data", "metadata.log.dir": "d/metadata", "listeners": "PLAINTEXT://h:1", "node.id": "1", "offsets.topic.replication.factor": "1"}},
		{"a set wins over a flag", []string{"log.dirs=x", "node.id=7"}, app.AllFlags{Dir: "d", DirGiven: true, KafkaListen: "h:1"},
			map[string]string{"log.dirs": "x", "metadata.log.dir": "d/metadata", "node.id": "7"}},
	} {
		settings, err := config.Load("", c.sets)
		if err != nil {
			t.Fatal(err)
		}
		if err := app.CompleteAll(settings, c.flags); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for key, want := range c.want {
			if got, _ := settings.Get(key); got != want {
				t.Errorf("%s: %s=%s, want %s", c.name, key, got, want)
			}
		}
	}
}

func TestGivenFlagWinsOverTheFile(t *testing.T) {
	settings, err := config.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	settings.Set("log.dirs", "/from/the/file", "node.properties:1")
	settings.Set("listeners", "PLAINTEXT://file:1", "node.properties:2")
	if err := app.CompleteAll(settings, app.AllFlags{Dir: "d", DirGiven: true, KafkaListen: "h:1"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := settings.Get("log.dirs"); got != "d/data" {
		t.Errorf("log.dirs=%s", got)
	}
	if got, _ := settings.Get("listeners"); got != "PLAINTEXT://file:1" {
		t.Errorf("listeners=%s", got)
	}
}
