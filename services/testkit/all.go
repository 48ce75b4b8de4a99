package testkit

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"chancery/services/app"
	"chancery/services/config"
)

// stopTime bounds the orderly end of a process in a test.
const stopTime = 30 * time.Second

// AllOptions say how everything in one process runs.
type AllOptions struct {
	// Properties are settings by Kafka's names.
	Properties map[string]string
}

// All is a cluster in the test's own process, which listens on real sockets.
type All struct {
	t       testing.TB
	options AllOptions
	dir     string
	process *app.Process
	// Bootstrap is the address for Kafka clients.
	Bootstrap string
	// Admin is the address of the admin port.
	Admin string
}

// StartAll runs everything in the test's process until the test ends, and returns once clients can work.
func StartAll(t testing.TB, o AllOptions) *All {
	t.Helper()
	a := &All{t: t, options: o, dir: t.TempDir(), Bootstrap: FreeAddress(t), Admin: FreeAddress(t)}
	t.Cleanup(a.Stop)
	a.Start()
	return a
}

// Dir is the folder with all data.
func (a *All) Dir() string { return a.dir }

// Start starts the process again after Stop, with the same data and addresses.
func (a *All) Start() {
	a.t.Helper()
	var sets []string
	properties := map[string]string{"admin.listeners": a.Admin}
	maps.Copy(properties, quickGroups)
	maps.Copy(properties, a.options.Properties)
	for _, k := range slices.Sorted(maps.Keys(properties)) {
		sets = append(sets, k+"="+properties[k])
	}
	settings, err := config.Load("", sets)
	if err != nil {
		a.t.Fatal(err)
	}
	flags := app.AllFlags{Dir: a.dir, DirGiven: true, KafkaListen: a.Bootstrap, KafkaListenGiven: true}
	if err := app.CompleteAll(settings, flags); err != nil {
		a.t.Fatal(err)
	}
	p, err := app.New(app.Options{Target: app.All, Settings: settings, Version: "test", Logger: Logger(a.t)})
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), readyTime)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		a.t.Fatal(err)
	}
	a.process = p
	if err := p.AwaitReady(ctx); err != nil {
		a.t.Fatal(err)
	}
}

// Stop ends the process in order. It does nothing when it has ended already.
func (a *All) Stop() {
	a.t.Helper()
	if a.process == nil {
		return
	}
	// The context of a test ends before its clean-up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), stopTime)
	defer cancel()
	if err := a.process.Stop(ctx); err != nil {
		a.t.Errorf("stop: %v", err)
	}
	a.process = nil
}
