package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"chancery/services/config"
	"chancery/services/lifecycle"
)

// Options say what a process is to be.
type Options struct {
	Target   Target
	Settings *config.Settings
	// Version is the product's.
	Version string
	// Logger is the process's. LogLevel is the level that it heeds, for operators who change it; nil when it is fixed.
	Logger   *slog.Logger
	LogLevel *slog.LevelVar
}

// Process is the services of one target, wired and in order. It is a lifecycle.Service.
type Process struct {
	target Target
	parts  *parts
	group  *lifecycle.Group
}

// New puts a process together; nothing runs yet. An error says which setting is wrong or missing.
func New(o Options) (*Process, error) {
	components, err := componentsOf(o.Target)
	if err != nil {
		return nil, err
	}
	if err := checkSettings(o.Target, o.Settings); err != nil {
		return nil, err
	}
	group := lifecycle.NewGroup(o.Logger)
	p, err := newParts(o, group.Ready)
	if err != nil {
		return nil, err
	}
	for _, c := range components {
		s, err := c.build(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		if s != nil {
			group.Add(c.name, s)
		}
	}
	return &Process{target: o.Target, parts: p, group: group}, nil
}

// Start starts the services in order. The context bounds the start: a service that waits for others, such as controllers
// that are not there yet, waits as long as it lives.
func (p *Process) Start(ctx context.Context) error { return p.group.Start(ctx) }

// Stop stops the services in reverse order.
func (p *Process) Stop(ctx context.Context) error { return p.group.Stop(ctx) }

// Failed gives the first failure of a service.
func (p *Process) Failed() <-chan error { return p.group.Failed() }

// Ready is nil while every service can take work.
func (p *Process) Ready() error { return p.group.Ready() }

// AwaitReady waits until every service can take work.
func (p *Process) AwaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		err := p.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case failure := <-p.Failed():
			return failure
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// readyInterval is how often the services are asked whether they are ready. Asking is cheap.
const readyInterval = 2 * time.Millisecond

// KafkaAddresses are where the gateway listens for clients, with the real ports; none before Start, or without a gateway.
func (p *Process) KafkaAddresses() []string {
	if p.parts.gateway == nil {
		return nil
	}
	return slices.Sorted(maps.Values(p.parts.gateway.Addresses()))
}

// AdminAddress is where the admin port is; empty before Start, or without one.
func (p *Process) AdminAddress() string {
	if p.parts.admin == nil {
		return ""
	}
	return p.parts.admin.Address()
}

// GRPCAddress is where other services reach this process; empty where none does.
func (p *Process) GRPCAddress() string { return p.parts.grpcAddress }

// Run runs a process until ctx ends or a service fails, and calls ready once everything can take work.
func Run(ctx context.Context, o Options, ready func(*Process)) error {
	p, err := New(o)
	if err != nil {
		return err
	}
	logChanges(o)
	begin := time.Now()
	if err := p.Start(ctx); err != nil {
		if ctx.Err() != nil {
			o.Logger.Info("asked to end before the start was complete", "reason", err)
			return nil
		}
		return err
	}
	failure := p.AwaitReady(ctx)
	switch {
	case failure == nil:
		o.Logger.Info("ready", "target", string(o.Target), "took", time.Since(begin).Round(time.Millisecond))
		ready(p)
		select {
		case <-ctx.Done():
		case failure = <-p.Failed():
		}
	case ctx.Err() != nil:
		failure = nil
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Settings.Node().Duration("shutdown.timeout.ms"))
	defer cancel()
	stopErr := p.Stop(stopCtx)
	o.Logger.Info("ended", "target", string(o.Target))
	return errors.Join(failure, stopErr)
}

// logChanges writes how the settings differ from their defaults: the first thing to look at when a process surprises.
func logChanges(o Options) {
	var changed []string
	for _, s := range o.Settings.Changed() {
		changed = append(changed, s.Key+"="+s.Value)
	}
	o.Logger.Info("starting", "target", string(o.Target), "version", o.Version, "settings", strings.Join(changed, " "))
}
