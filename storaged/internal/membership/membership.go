// Package membership keeps a storage node registered with the controller: it registers the node's incarnation, sends
// heartbeats, and takes leave in an orderly way.
//
// It owns the node's epoch. It must never decide when the node is fit to serve: the node says so, and the controller
// unfences it.
package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

const (
	registrationVersion = 4
	heartbeatVersion    = 2
	// retryBase and retryMax are the pauses after failures.
	retryBase = 50 * time.Millisecond
	retryMax  = 2 * time.Second
	// leavePause is the pause between heartbeats while the controller moves leaders away. A controller that has not answered
	// for leavePatience is not waited for: the whole cluster may be stopping.
	leavePause    = 100 * time.Millisecond
	leavePatience = 5 * time.Second
)

// Controller sends requests to the active controller.
type Controller interface {
	Request(ctx context.Context, req kmsg.Request, from controllerclient.Sender) (kmsg.Response, error)
}

// Config describes the node.
type Config struct {
	NodeID int32
	// ClusterID gives the cluster's id; empty while it is not known, which a new node learns from the metadata log.
	ClusterID   func() string
	Incarnation uuid.UUID
	Endpoints   []metadata.Endpoint
	Features    map[string]metadata.VersionRange
	// Rack is empty for none.
	Rack string
	// LogDirs and OfflineDirs are the directories that work and those that have failed; Cordoned those that take no new
	// replicas.
	LogDirs     func() []uuid.UUID
	OfflineDirs func() []uuid.UUID
	Cordoned    func() []uuid.UUID
	// PreviousEpoch is that of the last run when it ended cleanly; -1 otherwise.
	PreviousEpoch int64
	// Applied is the metadata offset that the node has applied.
	Applied func() int64
	// Registered is called with each new epoch, Fatal when the controller will never take this node.
	Registered func(epoch int64)
	Fatal      func(error)
	// Interval is that of heartbeats (broker.heartbeat.interval.ms).
	Interval time.Duration
	Logger   *slog.Logger
}

// Member keeps the node registered. Its methods may be called from any goroutine.
type Member struct {
	config     Config
	controller Controller
	// nudge asks for a heartbeat at once.
	nudge chan struct{}
	stop  context.CancelFunc
	done  chan struct{}
	// silentSince is since when the controller has not answered a node that wants to leave; run's.
	silentSince time.Time

	mu       sync.Mutex
	epoch    int64
	fenced   bool
	leaving  bool
	released bool
	// changed is closed and made anew when any of the above changes.
	changed chan struct{}
}

// New makes a member that does nothing until it is started.
func New(c Config, controller Controller) *Member {
	return &Member{
		config: c, controller: controller, nudge: make(chan struct{}, 1), done: make(chan struct{}),
		epoch: -1, fenced: true, changed: make(chan struct{}),
	}
}

// Start begins to register and returns at once.
func (m *Member) Start(ctx context.Context) {
	// The context bounds the start only.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = cancel
	go m.run(ctx)
}

// Stop ends the heartbeats.
func (m *Member) Stop() {
	m.stop()
	<-m.done
}

// Epoch is the node's epoch; -1 while it is not registered.
func (m *Member) Epoch() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// Ready is nil while the node is registered and unfenced.
func (m *Member) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.epoch < 0:
		return errors.New("the node is not registered yet")
	case m.fenced:
		return errors.New("the controller has fenced the node")
	case m.leaving:
		return errors.New("the node is about to stop")
	}
	return nil
}

// Nudge asks for a heartbeat at once when there is something to gain: the node is fenced, or wants to leave.
func (m *Member) Nudge() {
	m.mu.Lock()
	worth := m.fenced || m.leaving
	m.mu.Unlock()
	if worth {
		m.poke()
	}
}

// DirectoryFailed tells the controller at once that a log directory has gone offline.
func (m *Member) DirectoryFailed() { m.poke() }

func (m *Member) poke() {
	select {
	case m.nudge <- struct{}{}:
	default: // a heartbeat is due already
	}
}

// Leave asks the controller to move what this node leads elsewhere, and waits until it lets the node go or the context
// ends.
func (m *Member) Leave(ctx context.Context) error {
	m.update(func() { m.leaving = true })
	m.poke()
	for {
		m.mu.Lock()
		released, changed := m.released || m.epoch < 0, m.changed
		m.mu.Unlock()
		if released {
			return nil
		}
		select {
		case <-changed:
		case <-m.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("controlled shutdown: %w", ctx.Err())
		}
	}
}

func (m *Member) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Member) run(ctx context.Context) {
	defer close(m.done)
	for m.register(ctx) {
		for m.beat(ctx) {
		}
	}
}

// register goes on until the controller has given an epoch; false when there is no point any more.
func (m *Member) register(ctx context.Context) bool {
	for delay := retryBase; ctx.Err() == nil; delay = min(2*delay, retryMax) {
		epoch, err := m.tryRegister(ctx)
		switch {
		case err == nil:
			m.config.Logger.Info("registered", "epoch", epoch)
			m.update(func() { m.epoch, m.fenced = epoch, true })
			m.config.Registered(epoch)
			return true
		case errcode.Of(err) == errcode.InconsistentClusterId:
			m.config.Fatal(fmt.Errorf("register storage node %d: %w", m.config.NodeID, err))
			return false
		case ctx.Err() == nil:
			m.config.Logger.Warn("cannot register yet", "error", err)
		}
		m.mu.Lock()
		leaving := m.leaving
		m.mu.Unlock()
		if leaving {
			return false
		}
		m.pause(ctx, delay/2+rand.N(delay/2+1))
	}
	return false
}

func (m *Member) tryRegister(ctx context.Context) (int64, error) {
	cluster := m.config.ClusterID()
	if cluster == "" {
		return -1, errors.New("the cluster's id is not known yet")
	}
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version = registrationVersion
	req.BrokerID, req.ClusterID, req.IncarnationID = m.config.NodeID, cluster, m.config.Incarnation
	for _, e := range m.config.Endpoints {
		l := kmsg.NewBrokerRegistrationRequestListener()
		l.Name, l.Host, l.Port, l.SecurityProtocol = e.Name, e.Host, e.Port, e.SecurityProtocol
		req.Listeners = append(req.Listeners, l)
	}
	for name, r := range m.config.Features {
		f := kmsg.NewBrokerRegistrationRequestFeature()
		f.Name, f.MinSupportedVersion, f.MaxSupportedVersion = name, r.Min, r.Max
		req.Features = append(req.Features, f)
	}
	if m.config.Rack != "" {
		req.Rack = &m.config.Rack
	}
	req.LogDirs = sorted(m.config.LogDirs())
	req.PreviousBrokerEpoch = m.config.PreviousEpoch
	resp, err := m.request(ctx, req)
	if err != nil {
		return -1, err
	}
	r, ok := resp.(*kmsg.BrokerRegistrationResponse)
	if !ok {
		return -1, fmt.Errorf("answer of type %T", resp)
	}
	return r.BrokerEpoch, errcode.Code(r.ErrorCode).Err()
}

// sorted are directory ids in the order that the controller expects.
func sorted(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	slices.SortFunc(out, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })
	return out
}

func (m *Member) request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, max(m.config.Interval, time.Second))
	defer cancel()
	return m.controller.Request(ctx, req, controllerclient.Sender{Principal: "User:ANONYMOUS", Trusted: true})
}

// beat sends a heartbeat and waits for the next; false when the node must register anew or the end has come.
func (m *Member) beat(ctx context.Context) bool {
	m.mu.Lock()
	epoch, leaving := m.epoch, m.leaving
	m.mu.Unlock()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.Version = heartbeatVersion
	req.BrokerID, req.BrokerEpoch = m.config.NodeID, epoch
	req.CurrentMetadataOffset = m.config.Applied()
	// A node that has not yet seen its own registration has not seen what it leads either.
	req.WantFence = req.CurrentMetadataOffset < epoch
	req.WantShutdown = leaving
	req.OfflineLogDirs = sorted(m.config.OfflineDirs())
	req.CordonedLogDirs = sorted(m.config.Cordoned())

	resp, err := m.request(ctx, req)
	if ctx.Err() != nil {
		return false
	}
	r, ok := resp.(*kmsg.BrokerHeartbeatResponse)
	if err == nil && !ok {
		err = fmt.Errorf("answer of type %T", resp)
	}
	if err == nil {
		err = errcode.Code(r.ErrorCode).Err()
	}
	switch code := errcode.Of(err); {
	case err == nil:
		m.heard(r)
	case code == errcode.StaleBrokerEpoch || code == errcode.BrokerIdNotRegistered:
		m.config.Logger.Warn("the controller does not know this registration any more", "error", err)
		m.update(func() { m.epoch, m.fenced = -1, true })
		return false
	default:
		m.config.Logger.Warn("heartbeat failed", "error", err)
	}
	wait := m.config.Interval
	if leaving {
		wait = leavePause
		m.giveUp(err)
	} else if err != nil {
		wait = min(retryMax, m.config.Interval)
	}
	m.pause(ctx, wait)
	return ctx.Err() == nil
}

// giveUp ends the wish to leave in order when the controller has been silent for long. It is run's.
func (m *Member) giveUp(err error) {
	switch {
	case err == nil:
		m.silentSince = time.Time{}
	case m.silentSince.IsZero():
		m.silentSince = time.Now()
	case time.Since(m.silentSince) >= leavePatience:
		m.config.Logger.Warn("leaving without the controller, which does not answer", "error", err)
		m.update(func() { m.released = true })
	}
}

func (m *Member) heard(r *kmsg.BrokerHeartbeatResponse) {
	m.update(func() {
		if m.fenced != r.IsFenced {
			m.config.Logger.Info("fenced by the controller", "fenced", r.IsFenced)
		}
		m.fenced = r.IsFenced
		m.released = m.released || m.leaving && r.ShouldShutdown
	})
}

// pause waits until the time is over, someone has something to say, or the end.
func (m *Member) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.nudge:
	case <-ctx.Done():
	}
}
