package controllerclient

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

const (
	// defaultHeartbeatInterval is Kafka's broker.heartbeat.interval.ms.
	defaultHeartbeatInterval = 2 * time.Second
	// eagerInterval is how often a member asks while it waits for something: to be let in, or to be let go.
	eagerInterval = 50 * time.Millisecond
	// registerRetry is the longest pause between attempts to register.
	registerRetry = time.Second
	// leaveTimeout bounds how long Stop waits to be let go when the controllers cannot be reached.
	leaveTimeout = 5 * time.Second
)

// MemberConfig describes a gateway, coordinator or tiering instance.
type MemberConfig struct {
	Kind      controllerv1.ServiceKind
	ID        int32
	ClusterID string
	Rack      string
	Endpoints []*controllerv1.Endpoint
	Version   string
	// AppliedOffset is the metadata offset that the instance has applied; it is let in once it is close to the log's end.
	AppliedOffset func() int64
	// HeartbeatInterval is 2 s when it is 0.
	HeartbeatInterval time.Duration
	Logger            *slog.Logger
}

// controller is what a member needs of a Client.
type controller interface {
	register(ctx context.Context, req *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error)
	heartbeat(ctx context.Context, req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error)
}

func (c *Client) register(ctx context.Context, req *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error) {
	var resp *controllerv1.RegisterServiceResponse
	err := c.call(ctx, true, func(ctx context.Context, cc controllerv1.ControllerClient) (err error) {
		resp, err = cc.RegisterService(ctx, req)
		return err
	})
	return resp, err
}

func (c *Client) heartbeat(ctx context.Context, req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
	var resp *controllerv1.ServiceHeartbeatResponse
	err := c.call(ctx, true, func(ctx context.Context, cc controllerv1.ControllerClient) (err error) {
		resp, err = cc.ServiceHeartbeat(ctx, req)
		return err
	})
	return resp, err
}

// Member keeps an instance registered: it registers, sends heartbeats, registers anew when the controller does not know
// it any more, and takes leave at the end. It is a lifecycle.Service, ready while the instance is registered and unfenced.
type Member struct {
	controller  controller
	config      MemberConfig
	incarnation uuid.UUID

	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu sync.Mutex
	// epoch is that of the registration; -1 while there is none.
	epoch        int64
	fenced       bool
	wantShutdown bool
	// released says that the controller has let the member go.
	released bool
	// changed is closed and replaced whenever one of the fields above changes.
	changed chan struct{}
}

// NewMember makes a member; Start registers it.
func NewMember(c *Client, config MemberConfig) *Member { return newMember(c, config) }

func newMember(c controller, config MemberConfig) *Member {
	if config.HeartbeatInterval == 0 {
		config.HeartbeatInterval = defaultHeartbeatInterval
	}
	return &Member{
		controller:  c,
		config:      config,
		incarnation: uuid.Random(),
		done:        make(chan struct{}),
		wake:        make(chan struct{}, 1),
		epoch:       -1,
		fenced:      true,
		changed:     make(chan struct{}),
	}
}

// Start begins to register and returns at once; Await and Ready tell how far it is.
func (m *Member) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel = cancel
	go m.run(ctx)
	return nil
}

// Stop takes leave, unless Leave has done so, and ends the heartbeats.
func (m *Member) Stop(ctx context.Context) error {
	leaveCtx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	err := m.Leave(leaveCtx)
	m.cancel()
	<-m.done
	return err
}

// Failed is nil: a member goes on trying.
func (m *Member) Failed() <-chan error { return nil }

// Ready is nil while the instance is registered and unfenced.
func (m *Member) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.wantShutdown:
		return errors.New("leaving the cluster")
	case m.epoch < 0:
		return errors.New("not registered with the controller yet")
	case m.fenced:
		return errors.New("fenced by the controller")
	}
	return nil
}

// Epoch is the epoch of the registration, -1 while there is none.
func (m *Member) Epoch() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// Await waits until the instance is registered and unfenced.
func (m *Member) Await(ctx context.Context) error {
	return m.await(ctx, func() bool { return m.epoch >= 0 && !m.fenced })
}

// Leave tells the controller that the instance is about to go, so that it gets no more work and what it owns moves on,
// and waits until the controller lets it go. Heartbeats go on until Stop.
func (m *Member) Leave(ctx context.Context) error {
	m.update(func() { m.wantShutdown = true })
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return m.await(ctx, func() bool { return m.released || m.epoch < 0 })
}

func (m *Member) await(ctx context.Context, met func() bool) error {
	for {
		m.mu.Lock()
		ok, changed := met(), m.changed
		m.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
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
	for ctx.Err() == nil {
		if m.Epoch() < 0 && !m.join(ctx) {
			return
		}
		m.pause(ctx, m.beat(ctx))
	}
}

// join registers, and says whether it did before the end or the wish to leave.
func (m *Member) join(ctx context.Context) bool {
	req := &controllerv1.RegisterServiceRequest{
		Kind:          m.config.Kind,
		Id:            m.config.ID,
		IncarnationId: m.incarnation[:],
		ClusterId:     m.config.ClusterID,
		Rack:          m.config.Rack,
		Endpoints:     m.config.Endpoints,
		Version:       m.config.Version,
	}
	lastCode := errcode.None
	for delay := eagerInterval; !m.leaving(); delay = min(2*delay, registerRetry) {
		resp, err := m.controller.register(ctx, req)
		if err == nil {
			m.update(func() { m.epoch, m.fenced, m.released = resp.GetEpoch(), true, false })
			m.config.Logger.Info("registered with the controller", "kind", m.config.Kind.String(), "id", m.config.ID, "epoch", resp.GetEpoch())
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if code := errcode.Of(err); code != lastCode {
			// Once for each kind of failure: an earlier incarnation's session, for one, lasts for seconds.
			m.config.Logger.Warn("cannot register with the controller yet", "kind", m.config.Kind.String(), "id", m.config.ID, "error", err)
			lastCode = code
		}
		if !sleep(ctx, delay) {
			return false
		}
	}
	return false
}

func (m *Member) leaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wantShutdown
}

// beat sends one heartbeat and says when the next is due.
func (m *Member) beat(ctx context.Context) time.Duration {
	m.mu.Lock()
	req := &controllerv1.ServiceHeartbeatRequest{
		Kind:          m.config.Kind,
		Id:            m.config.ID,
		Epoch:         m.epoch,
		WantShutdown:  m.wantShutdown,
		AppliedOffset: m.config.AppliedOffset(),
	}
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, max(m.config.HeartbeatInterval, attemptTimeout))
	defer cancel()
	resp, err := m.controller.heartbeat(ctx, req)
	switch code := errcode.Of(err); {
	case err == nil:
		m.update(func() { m.fenced, m.released = resp.GetFenced(), req.WantShutdown && resp.GetShouldShutdown() })
		if resp.GetFenced() || req.WantShutdown && !resp.GetShouldShutdown() {
			return eagerInterval
		}
	case code == errcode.StaleBrokerEpoch || code == errcode.BrokerIdNotRegistered:
		m.config.Logger.Warn("the controller does not know this instance any more", "kind", m.config.Kind.String(), "id", m.config.ID, "error", err)
		m.update(func() { m.epoch, m.fenced = -1, true })
		return 0
	default:
		m.config.Logger.Warn("heartbeat failed", "kind", m.config.Kind.String(), "id", m.config.ID, "error", err)
	}
	return m.config.HeartbeatInterval
}

// pause waits until the next heartbeat is due or the member has something to say.
func (m *Member) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.wake:
	case <-ctx.Done():
	}
}
