package app

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"

	"chancery/gateway"
	"chancery/services/clients/controllerclient"
	"chancery/services/clients/coordinatorclient"
	"chancery/services/clients/storageclient"
	"chancery/services/clients/tieringclient"
	"chancery/services/config"
	"chancery/services/kafka/configdef"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/telemetry"
	"chancery/services/transport"
	"chancery/storaged"
)

// The names of the channels inside a process.
const (
	localController  = "controllerd"
	localStorage     = "storaged"
	localCoordinator = "coordinatord"
	localTiering     = "tiering"
)

// parts is what the components of one process hand to each other. A component may use what those that it needs have put
// here; the table of components says which these are.
type parts struct {
	target   Target
	version  string
	settings *config.Settings
	node     *configdef.Node
	id       int32
	logger   *slog.Logger
	logLevel *slog.LevelVar
	ready    func() error
	metrics  *telemetry.Metrics
	buffers  *transport.Pool
	local    *transport.Local
	dialer   *transport.Dialer
	options  transport.Options

	admin *telemetry.Admin
	// grpcAddress is where other services reach this process; registrars are the servers behind it.
	grpcAddress  string
	registrars   []grpc.ServiceRegistrar
	controllers  *controllerclient.Client
	follower     *metadata.Follower
	nodes        *storageclient.Pool
	coordinators *coordinatorclient.Client
	tiers        *tieringclient.Client
	storage      *storaged.Server
	gateway      *gateway.Gateway
}

func newParts(o Options, ready func() error) (*parts, error) {
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return nil, err
	}
	node := o.Settings.Node()
	buffers := transport.NewPool()
	p := &parts{
		target:   o.Target,
		version:  o.Version,
		settings: o.Settings,
		node:     node,
		id:       int32(node.Int("node.id")),
		logger:   o.Logger,
		logLevel: o.LogLevel,
		ready:    ready,
		metrics:  metrics,
		buffers:  buffers,
		local:    transport.NewLocal(buffers),
		options:  transport.Options{Pool: buffers, MaxRequestBytes: node.Int("socket.request.max.bytes")},
	}
	p.dialer = transport.NewDialer(p.options, p.local)
	return p, nil
}

// inOneProcess says whether the services of this process are the whole cluster, and so reach each other without a network.
func (p *parts) inOneProcess() bool { return p.target == All }

// address is where others reach a service of this process.
func (p *parts) address(local string) string {
	if p.inOneProcess() {
		return transport.LocalAddress(local)
	}
	return p.grpcAddress
}

// registrar is where a service registers what it offers to others.
func (p *parts) registrar(local string) grpc.ServiceRegistrar {
	if p.inOneProcess() {
		return p.local.Channel(local)
	}
	return registrars(p.registrars)
}

// registrars registers on each of several servers.
type registrars []grpc.ServiceRegistrar

// RegisterService makes registrars a grpc.ServiceRegistrar.
func (rs registrars) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, r := range rs {
		r.RegisterService(desc, impl)
	}
}

// closer is a part that works from its making on and only has to be closed.
type closer func() error

var _ lifecycle.Service = closer(nil)

// Start does nothing.
func (closer) Start(context.Context) error { return nil }

// Stop closes.
func (c closer) Stop(context.Context) error { return c() }

// Failed is nil.
func (closer) Failed() <-chan error { return nil }

// Ready is nil.
func (closer) Ready() error { return nil }

// followed is the metadata follower; it has started when the cluster's metadata is here, so that services begin with it.
type followed struct{ *metadata.Follower }

// Start waits for a controller as long as the context lives.
func (f followed) Start(ctx context.Context) error {
	if err := f.Follower.Start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-f.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err := f.AwaitReady(ctx)
	if err != nil {
		err = errors.Join(context.Cause(ctx), f.Stop(context.WithoutCancel(ctx)))
	}
	cancel(nil)
	<-watched
	return err
}
