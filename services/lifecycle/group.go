package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Group is several services that live and die together. It is a Service itself: Start starts them in the order in which
// they were added, Stop stops them in reverse, and the failure of one is the failure of the group.
type Group struct {
	logger  *slog.Logger
	members []member
	// started is how many of the members run; they are always the first ones.
	started int
	failed  chan error
	// stopping is closed when Stop begins, which ends the watchers.
	stopping chan struct{}
}

type member struct {
	name    string
	service Service
}

// NewGroup makes an empty group.
func NewGroup(logger *slog.Logger) *Group {
	return &Group{logger: logger, failed: make(chan error, 1), stopping: make(chan struct{})}
}

// Add puts a service behind those that are there. It is called before Start only.
func (g *Group) Add(name string, s Service) {
	g.members = append(g.members, member{name: name, service: s})
}

// Start starts the members one after the other. When one cannot start, those before it are stopped again.
func (g *Group) Start(ctx context.Context) error {
	for _, m := range g.members {
		begin := time.Now()
		if err := m.service.Start(ctx); err != nil {
			err = fmt.Errorf("start %s: %w", m.name, err)
			// The start's context may be what ended the start, and it must not keep the others from an orderly end.
			return errors.Join(err, g.Stop(context.WithoutCancel(ctx)))
		}
		g.started++
		g.logger.Debug("started", "service", m.name, "took", time.Since(begin))
		if failed := m.service.Failed(); failed != nil {
			go g.watch(m.name, failed)
		}
	}
	return nil
}

// watch passes the first failure on.
func (g *Group) watch(name string, failed <-chan error) {
	select {
	case err := <-failed:
		select {
		case g.failed <- fmt.Errorf("%s failed: %w", name, err):
		default: // Another one failed first; one failure is enough to end the group.
			g.logger.Error("service failed", "service", name, "error", err)
		}
	case <-g.stopping:
	}
}

// Stop stops the members that run, the last first. It goes on after an error, so that each has its chance to end in order.
func (g *Group) Stop(ctx context.Context) error {
	close(g.stopping)
	var errs []error
	for ; g.started > 0; g.started-- {
		m := g.members[g.started-1]
		begin := time.Now()
		if err := m.service.Stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", m.name, err))
		}
		g.logger.Debug("stopped", "service", m.name, "took", time.Since(begin))
	}
	return errors.Join(errs...)
}

// Failed gives the first failure of a member.
func (g *Group) Failed() <-chan error { return g.failed }

// Ready is nil while every member is ready; otherwise it says which ones are not, and why.
func (g *Group) Ready() error {
	var errs []error
	for _, m := range g.members {
		if err := m.service.Ready(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return errors.Join(errs...)
}
