// Package gateway is the service that speaks Kafka's protocol with clients.
//
// It owns the connections of clients and the state of their fetch sessions, and nothing that outlives the process. It
// must never keep a copy of what storage nodes, controllers or coordinators own, but for the metadata image that it follows.
//
// A gateway accepts connections before it registers, so that nobody is sent to a port that is not open yet, and takes its
// registration back before it stops, so that clients are sent elsewhere while what is in flight ends. Metrics:
// see gateway/internal/server.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/handler"
	"chancery/gateway/internal/pacer"
	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/server"
	"chancery/gateway/internal/session"
	"chancery/gateway/internal/wire"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// The services behind the gateway, as its handlers ask them.
type (
	// Controller takes requests to the active controller; *controllerclient.Client is one.
	Controller = handler.Controller
	// Coordinator takes requests to the owners of coordinator shards; *coordinatorclient.Client is one.
	Coordinator = handler.Coordinator
	// Tiering reads what is in the remote tier only; *tieringclient.Client is one.
	Tiering = handler.Tiering
)

// Deps are what a gateway works with.
type Deps struct {
	// Image is the newest metadata image that is known here, and Await waits until it is at least at an offset: those of a
	// *metadata.Follower.
	Image func() metadata.Reader
	Await func(ctx context.Context, offset int64) error
	// Storage finds storage nodes; Node of a *storageclient.Pool.
	Storage     func(nodeID int32) (storage.Node, error)
	Controller  Controller
	Coordinator Coordinator
	Tiering     Tiering
	// NewMember makes the gateway's membership; controllerclient.NewMember with a client is it. Nil leaves the gateway
	// unregistered.
	NewMember func(controllerclient.MemberConfig) lifecycle.Service
	// Buffers lends the buffers of produce requests; a *transport.Pool is one.
	Buffers mem.BufferPool
	// Metrics takes the gateway's metrics; nil leaves them unseen.
	Metrics prometheus.Registerer
	Logger  *slog.Logger
	// Listen opens sockets; nil means TCP.
	Listen func(address string) (net.Listener, error)
	// Now is the clock; nil means the system's.
	Now func() time.Time
}

// Gateway is the service.
type Gateway struct {
	config   Config
	settings *settings
	deps     Deps
	own      map[string]routing.Address
	sessions *session.Cache
	pacer    *pacer.Pacer
	server   *server.Server
	member   lifecycle.Service
}

var _ lifecycle.Service = (*Gateway)(nil)

// New checks the settings and makes a gateway.
func New(config Config, deps Deps) (*Gateway, error) {
	s, err := newSettings(config)
	if err != nil {
		return nil, err
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	g := &Gateway{config: config, settings: s, deps: deps, own: make(map[string]routing.Address), sessions: session.NewCache(s.sessions, s.sessionEviction), pacer: pacer.New(deps.Now)}
	handlers := handler.New(s.handler, handler.Deps{
		Image: deps.Image, Await: deps.Await, Storage: deps.Storage, Controller: deps.Controller, Coordinator: deps.Coordinator, Tiering: deps.Tiering, Pacer: g.pacer,
		Addresses: routing.NewAddresses(g.own), Sessions: g.sessions, Messages: new(wire.Pool), Now: deps.Now, Logger: deps.Logger,
	})
	for _, l := range s.listeners {
		s.server.Listeners = append(s.server.Listeners, server.Listener{
			Name: l.name, Address: net.JoinHostPort(l.host, strconv.Itoa(int(l.port))), NodeID: l.node, Listen: deps.Listen,
		})
	}
	g.server = server.New(s.server, server.Deps{Handlers: handlers, Buffers: deps.Buffers, Now: deps.Now, Logger: deps.Logger})
	return g, nil
}

// Start opens the listeners and then registers the gateway. It does not wait until the registration is accepted: Ready
// tells.
func (g *Gateway) Start(ctx context.Context) error {
	if g.deps.Metrics != nil {
		for _, c := range []prometheus.Collector{g.server.Collector(), newSessionCollector(g.sessions), newPacerCollector(g.pacer)} {
			if err := g.deps.Metrics.Register(c); err != nil {
				return fmt.Errorf("metrics of the gateway: %w", err)
			}
		}
	}
	if err := g.server.Listen(ctx); err != nil {
		return err
	}
	endpoints, err := g.endpoints()
	if err != nil {
		return errors.Join(err, g.server.Stop(ctx))
	}
	g.server.Serve() //nolint:contextcheck // what is served outlives the start
	if g.deps.NewMember == nil {
		return nil
	}
	g.member = g.deps.NewMember(controllerclient.MemberConfig{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, ID: g.config.NodeID, ClusterID: g.deps.Image().ClusterID(),
		Rack: g.settings.rack, Endpoints: endpoints, Version: g.config.Version,
		AppliedOffset: func() int64 { return g.deps.Image().Offset() }, Logger: g.deps.Logger,
	})
	if err := g.member.Start(ctx); err != nil {
		g.member = nil
		return errors.Join(err, g.server.Stop(ctx))
	}
	return nil
}

// endpoints are the addresses that the gateway registers, now that its ports are open.
func (g *Gateway) endpoints() ([]*controllerv1.Endpoint, error) {
	var out []*controllerv1.Endpoint
	for i, l := range g.settings.listeners {
		port := l.port
		if tcp, ok := g.server.ListenerAddr(i).(*net.TCPAddr); ok {
			port = uint16(tcp.Port)
		}
		a, err := g.settings.advertise(l, port)
		if err != nil {
			return nil, err
		}
		name := l.name
		if l.node == handler.UnknownNode {
			g.own[name] = a
		} else {
			name = routing.NodeEndpoint(name, l.node)
		}
		out = append(out, &controllerv1.Endpoint{Name: name, Host: a.Host, Port: uint32(a.Port), SecurityProtocol: plaintext})
	}
	return out, nil
}

// Addresses are the addresses at which clients reach this gateway, by listener name, once it is started.
func (g *Gateway) Addresses() map[string]string {
	out := make(map[string]string, len(g.own))
	for name, a := range g.own {
		out[name] = net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
	}
	return out
}

// Stop takes the registration back, lets what is in flight end, and closes all connections.
func (g *Gateway) Stop(ctx context.Context) error {
	var left error
	if g.member != nil {
		left = g.member.Stop(ctx)
	}
	return errors.Join(left, g.server.Stop(ctx))
}

// Failed tells when a listener broke.
func (g *Gateway) Failed() <-chan error { return g.server.Failed() }

// Ready is nil while the gateway is registered and has an image to work with.
func (g *Gateway) Ready() error {
	if g.deps.Image().Offset() < 0 {
		return errors.New("no metadata yet")
	}
	if g.member == nil {
		return nil
	}
	return g.member.Ready()
}

// sessionCollector shows the numbers of the fetch session cache.
type sessionCollector struct {
	cache                           *session.Cache
	sessions, partitions, evictions *prometheus.Desc
}

func newSessionCollector(cache *session.Cache) *sessionCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("chancery_gateway_fetch_session"+name, help, nil, nil)
	}
	return &sessionCollector{
		cache:      cache,
		sessions:   desc("s", "Fetch sessions in the cache."),
		partitions: desc("_partitions", "Partitions of the fetch sessions in the cache."),
		evictions:  desc("_evictions_total", "Fetch sessions that had to make room for others."),
	}
}

// Describe is part of prometheus.Collector.
func (c *sessionCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.sessions
	descs <- c.partitions
	descs <- c.evictions
}

// Collect is part of prometheus.Collector.
func (c *sessionCollector) Collect(out chan<- prometheus.Metric) {
	sessions, partitions, evictions := c.cache.Stats()
	out <- prometheus.MustNewConstMetric(c.sessions, prometheus.GaugeValue, float64(sessions))
	out <- prometheus.MustNewConstMetric(c.partitions, prometheus.GaugeValue, float64(partitions))
	out <- prometheus.MustNewConstMetric(c.evictions, prometheus.CounterValue, float64(evictions))
}

// pacerCollector shows how reads from the remote tier yield to producers.
type pacerCollector struct {
	pacer                         *pacer.Pacer
	limit, bytes, waited, refused *prometheus.Desc
}

func newPacerCollector(p *pacer.Pacer) *pacerCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("chancery_gateway_cold_read"+name, help, nil, nil)
	}
	return &pacerCollector{
		pacer:   p,
		limit:   desc("_limit_bytes_per_second", "What all cold reads of this gateway may bring beside producers; 0 while nobody produces."),
		bytes:   desc("_bytes_total", "Records that cold reads have brought."),
		waited:  desc("_wait_seconds_total", "Time that cold reads have waited for producers."),
		refused: desc("s_refused_total", "Cold reads that were answered as empty because their turn was too far away."),
	}
}

// Describe is part of prometheus.Collector.
func (c *pacerCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.limit
	descs <- c.bytes
	descs <- c.waited
	descs <- c.refused
}

// Collect is part of prometheus.Collector.
func (c *pacerCollector) Collect(out chan<- prometheus.Metric) {
	s := c.pacer.Stats()
	out <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, s.Limit)
	out <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(s.Passed))
	out <- prometheus.MustNewConstMetric(c.waited, prometheus.CounterValue, s.Waited.Seconds())
	out <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(s.Refused))
}
