package playground

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// stopTimeout is how long processes have for an orderly end before they are killed, for each kind of service.
	stopTimeout = 30 * time.Second
	// killTimeout is how long a killed process may take to be gone.
	killTimeout = 10 * time.Second
	// readyInterval is how often a starting process is asked whether it is ready.
	readyInterval = 25 * time.Millisecond
	// readyTimeout bounds one such question.
	readyTimeout = time.Second
	// logTailBytes is how much of a failed process's log is shown.
	logTailBytes = 2048
)

// supervisor owns the processes of a playground.
type supervisor struct {
	config   Config
	logger   *slog.Logger
	children []*child

	// downAsked is closed by the first command to end, downDone when every process has ended.
	askOnce   sync.Once
	downAsked chan struct{}
	downDone  chan struct{}

	// stateMu keeps writers of the state file apart; closed says that the file is gone for good.
	stateMu sync.Mutex
	state   stateOnDisk
	closed  bool
}

// Run starts a cluster, prints where clients go once it is ready, and keeps it until ctx ends or a command asks for the
// end. Everything that it started has ended when it returns.
func Run(ctx context.Context, c Config, out io.Writer, logger *slog.Logger) error {
	if err := c.Validate(); err != nil {
		return err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	c.Dir = dir
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()

	s, err := newSupervisor(c, logger)
	if err != nil {
		return err
	}
	server, err := s.listen()
	if err != nil {
		return err
	}
	defer server.Close()
	runErr := s.run(ctx, out)
	endErr := errors.Join(s.endAll(), s.forget())
	close(s.downDone)
	// Whoever asked for the end is told before the process is gone.
	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(runErr, endErr, server.Shutdown(shutdownCtx))
}

// newSupervisor writes what the processes need; none runs yet.
func newSupervisor(c Config, logger *slog.Logger) (*supervisor, error) {
	s := &supervisor{config: c, logger: logger, downAsked: make(chan struct{}), downDone: make(chan struct{})}
	spawn := newSpawner()
	for _, p := range plan(c) {
		child := newChild(p, c.Binary, spawn, s.save)
		if err := prepare(child); err != nil {
			return nil, err
		}
		s.children = append(s.children, child)
		if kafka, ok := p.addresses[addressKafka]; ok {
			s.state.Bootstrap = append(s.state.Bootstrap, kafka)
		}
	}
	return s, nil
}

// listen opens the port for commands.
func (s *supervisor) listen() (*http.Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for commands: %w", err)
	}
	s.state.PID, s.state.Control, s.state.Secret = os.Getpid(), l.Addr().String(), rand.Text()
	server := &http.Server{Handler: s.controlHandler(s.state.Secret), ReadHeaderTimeout: time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.logger.Error("commands are not served any more", "error", err)
		}
	}()
	return server, nil
}

// run is from the start of the processes to the wish to end them.
func (s *supervisor) run(ctx context.Context, out io.Writer) error {
	begin := time.Now()
	for _, c := range s.children {
		if err := c.start(); err != nil {
			return err
		}
	}
	s.save()
	if err := s.awaitReady(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	fmt.Fprintf(out, "chancery playground is ready: Kafka on %s (%d processes, data in %s)\n",
		strings.Join(s.state.Bootstrap, ","), len(s.children), s.config.Dir)
	s.logger.Info("playground is ready", "took", time.Since(begin).Round(time.Millisecond))
	select {
	case <-ctx.Done():
	case <-s.downAsked:
	}
	return nil
}

// prepare makes a process's folder and writes its properties.
func prepare(c *child) error {
	if err := os.MkdirAll(c.plan.dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(c.configPath, encodeProperties(c.plan.properties), 0o600)
}

// awaitReady waits until every process says that it is ready. One that ends meanwhile is the end of the start.
func (s *supervisor) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.downAsked:
			cancel()
		case <-ctx.Done():
		}
	}()
	g, groupCtx := errgroup.WithContext(ctx)
	for _, c := range s.children {
		g.Go(func() error { return c.awaitReady(groupCtx) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (c *child) awaitReady(ctx context.Context) error {
	c.mu.Lock()
	exited := c.exited
	c.mu.Unlock()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for !isReady(ctx, c.plan.addresses[addressAdmin]) {
		select {
		case <-tick.C:
		case <-exited:
			return fmt.Errorf("%s has ended instead of getting ready; its log %s ends with:\n%s", c.plan.name, c.logPath, tail(c.logPath))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func isReady(ctx context.Context, admin string) bool {
	// Whoever has the address instead of the process may take the connection and say nothing.
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// tail is the end of a log, in whole lines where it is longer.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > logTailBytes {
		data = data[len(data)-logTailBytes:]
		if i := slices.Index(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
	}
	return strings.TrimSpace(string(data))
}

func (s *supervisor) find(name string) (*child, error) {
	var names []string
	for _, c := range s.children {
		if c.plan.name == name {
			return c, nil
		}
		names = append(names, c.plan.name)
	}
	return nil, fmt.Errorf("no process is called %q; there are %s", name, strings.Join(names, ", "))
}

func (s *supervisor) processes() []Process {
	all := make([]Process, 0, len(s.children))
	for _, c := range s.children {
		all = append(all, c.info())
	}
	return all
}

// down asks for the end and waits for it.
func (s *supervisor) down(ctx context.Context) error {
	s.askOnce.Do(func() { close(s.downAsked) })
	select {
	case <-s.downDone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// save writes the state file anew. A state that cannot be written is told in the log: the processes go on.
func (s *supervisor) save() {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	if s.closed {
		return
	}
	s.state.Processes = s.processes()
	if err := s.state.write(s.config.Dir); err != nil {
		s.logger.Error("cannot write the state file", "error", err)
	}
}

// forget removes the state file: nothing runs any more.
func (s *supervisor) forget() error {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	s.closed = true
	err := os.Remove(filepath.Join(s.config.Dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// endAll ends the processes, one kind of service after the other: who depends on others goes first. What has not ended in
// time is killed.
func (s *supervisor) endAll() error {
	var errs []error
	for i := len(s.children); i > 0; {
		j := i
		for j > 0 && s.children[j-1].plan.service == s.children[i-1].plan.service {
			j--
		}
		var g errgroup.Group
		for _, c := range s.children[j:i] {
			g.Go(c.endSoon)
		}
		errs = append(errs, g.Wait())
		i = j
	}
	return errors.Join(errs...)
}

func (c *child) endSoon() error {
	c.mu.Lock()
	runs := c.runsLocked()
	c.mu.Unlock()
	if !runs {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := c.end(ctx, syscall.SIGTERM, Stopped)
	if err == nil || ctx.Err() == nil {
		return nil // It ended, or had ended by itself just before.
	}
	killCtx, cancelKill := context.WithTimeout(context.Background(), killTimeout)
	defer cancelKill()
	return errors.Join(err, c.end(killCtx, syscall.SIGKILL, Killed))
}
