package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"chancery/controllerd"
	"chancery/coordinatord"
	"chancery/gateway"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/clients/coordinatorclient"
	"chancery/services/clients/instances"
	"chancery/services/clients/storageclient"
	"chancery/services/clients/tieringclient"
	"chancery/services/lifecycle"
	"chancery/services/metadata"
	"chancery/services/storagerpc"
	"chancery/services/telemetry"
	"chancery/services/transport"
	"chancery/storaged"
	"chancery/tiering"
)

// buildAdmin makes the HTTP port for operators, where one is wanted.
func buildAdmin(p *parts) (lifecycle.Service, error) {
	addresses := p.node.List("admin.listeners")
	if len(addresses) == 0 {
		return nil, nil
	}
	p.admin = telemetry.NewAdmin(telemetry.AdminConfig{Address: addresses[0], Ready: p.ready, Metrics: p.metrics, Logger: p.logger})
	return p.admin, nil
}

// buildServers makes the gRPC servers of a process whose services others dial. Services of one process need none.
func buildServers(p *parts) (lifecycle.Service, error) {
	if p.inOneProcess() {
		return nil, nil
	}
	var err error
	if p.grpcAddress, err = dialable(p.node); err != nil {
		return nil, err
	}
	servers := lifecycle.NewGroup(p.logger)
	for _, address := range p.node.List("grpc.listeners") {
		s, err := transport.NewServer(address, p.options, p.logger)
		if err != nil {
			return nil, err
		}
		p.registrars = append(p.registrars, s)
		servers.Add(address, s)
	}
	return servers, nil
}

// buildMetadata makes the client of the controllers and the follower of their metadata log.
func buildMetadata(p *parts) (lifecycle.Service, error) {
	targets := []string{transport.LocalAddress(localController)}
	if !p.inOneProcess() {
		var err error
		if targets, err = bootstrapControllers(p.node); err != nil {
			return nil, err
		}
	}
	var err error
	p.controllers, err = controllerclient.New(controllerclient.Config{Targets: targets, Dialer: p.dialer, Logger: p.logger})
	if err != nil {
		return nil, err
	}
	p.follower = metadata.NewFollower(metadata.Config{
		Kind:        p.memberKind(),
		ID:          p.id,
		ClusterID:   p.node.String("cluster.id"),
		Source:      p.controllers,
		Logger:      p.logger,
		MemberEpoch: p.memberEpoch,
	})
	p.follower.Subscribe(metadata.PublisherFunc(func(context.Context, *metadata.Delta, *metadata.Image) {
		p.controllers.SetActive(p.follower.ActiveController().Address)
	}))
	group := lifecycle.NewGroup(p.logger)
	group.Add("controller client", closer(p.controllers.Close))
	group.Add("follower", followed{p.follower})
	return group, nil
}

// memberKind is as what a process follows the metadata. In a process that runs everything it is the storage node, since
// controllers wait for acknowledgements of storage nodes.
func (p *parts) memberKind() controllerv1.ServiceKind {
	switch p.target {
	case Gateway:
		return controllerv1.ServiceKind_SERVICE_KIND_GATEWAY
	case Coordinatord:
		return controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR
	case Tiering:
		return controllerv1.ServiceKind_SERVICE_KIND_TIERING
	case Controllerd:
		return controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER
	case All, Storaged:
		return controllerv1.ServiceKind_SERVICE_KIND_STORAGE
	}
	return controllerv1.ServiceKind_SERVICE_KIND_UNSPECIFIED
}

// memberEpoch is the broker epoch of this process's storage node; -1 without one, or while it is not registered.
func (p *parts) memberEpoch() int64 {
	if p.storage == nil {
		return -1
	}
	return p.storage.BrokerEpoch()
}

// buildClients makes the ways to storage nodes, coordinators and tiering instances.
func buildClients(p *parts) (lifecycle.Service, error) {
	images := images{p.follower}
	p.nodes = storageclient.New(storageclient.Config{
		Image: images.Image,
		Connect: func(address string) (storageclient.RemoteNode, error) {
			return storagerpc.NewClient(address, storagerpc.ClientConfig{Dialer: p.dialer, Logger: p.logger})
		},
	})
	p.coordinators = coordinatorclient.New(instances.Config{Image: images.Image, Await: images.Await, Dialer: p.dialer})
	p.tiers = tieringclient.New(instances.Config{Image: images.Image, Await: images.Await, Dialer: storagerpc.TierDialer{Dialer: p.dialer}})
	p.follower.Subscribe(metadata.PublisherFunc(func(_ context.Context, _ *metadata.Delta, image *metadata.Image) {
		p.nodes.Update(image)
		p.coordinators.Update(image)
		p.tiers.Update(image)
	}))
	return closer(func() error { return errors.Join(p.tiers.Close(), p.coordinators.Close(), p.nodes.Close()) }), nil
}

// images is the follower as those see it who only read images.
type images struct{ follower *metadata.Follower }

// Image is the newest image.
func (i images) Image() metadata.Reader { return i.follower.Image() }

// Await waits until the image has reached an offset.
func (i images) Await(ctx context.Context, offset int64) error { return i.follower.Await(ctx, offset) }

// buildController makes a controller.
func buildController(p *parts) (lifecycle.Service, error) {
	c, err := controllerConfig(p)
	if err != nil {
		return nil, err
	}
	return controllerd.New(c, controllerd.Deps{
		Registrar: p.registrar(localController), Dialer: p.dialer,
		Meter: p.metrics.Meter("controllerd"), Registry: p.metrics.Registerer(), Logger: p.logger,
	})
}

// storageSettings are the settings that a storage node shows as its own. Where the metadata log of a controller in the same process
// is by default is not among them; what holds in such a process without being set is: where clients find it, and its one controller.
func storageSettings(p *parts) map[string]string {
	out := p.settings.Map()
	if w := p.settings.Where("metadata.log.dir"); w == dataFlag || w == allDefault {
		delete(out, "metadata.log.dir")
	}
	if !p.inOneProcess() {
		return out
	}
	listeners := out["listeners"]
	if _, ok := out["advertised.listeners"]; !ok {
		out["advertised.listeners"] = listeners
	}
	if _, ok := out["controller.quorum.voters"]; !ok {
		first, _, _ := strings.Cut(listeners, ",")
		_, address, _ := strings.Cut(first, "://")
		out["controller.quorum.voters"] = fmt.Sprintf("%d@%s", p.id, address)
	}
	return out
}

// buildStorage makes a storage node. Others in this process call it directly.
func buildStorage(p *parts) (lifecycle.Service, error) {
	endpoint, err := grpcEndpoint(p.address(localStorage))
	if err != nil {
		return nil, err
	}
	p.storage, err = storaged.New(storaged.Config{
		NodeID:     p.id,
		ClusterID:  p.node.String("cluster.id"),
		LogDirs:    p.node.List("log.dirs"),
		Rack:       p.node.String("broker.rack"),
		Endpoints:  []metadata.Endpoint{endpoint},
		Properties: storageSettings(p),
	}, storaged.Deps{
		Metadata:     p.follower,
		Controller:   p.controllers,
		Nodes:        p.nodes.Node,
		Coordinators: p.coordinators,
		Meter:        p.metrics.Meter("storaged"),
		LogLevel:     p.logLevel,
		Logger:       p.logger,
	})
	if err != nil {
		return nil, err
	}
	p.nodes.AddLocal(p.id, p.storage.Node())
	if p.inOneProcess() {
		return p.storage, nil
	}
	streams := storagerpc.Register(p.registrar(localStorage), p.storage.Node(), storagerpc.ServerConfig{
		Pool: p.buffers, Address: transport.JoinAddress(endpoint.Host, endpoint.Port), Logger: p.logger,
	})
	return servedStorage{p.storage, streams}, nil
}

// servedStorage is a storage node that others reach over streams, which end after it.
type servedStorage struct {
	*storaged.Server
	streams *storagerpc.Server
}

// Stop stops the node, which answers what it has taken, and then lets go of the streams.
func (s servedStorage) Stop(ctx context.Context) error {
	defer s.streams.Close()
	return s.Server.Stop(ctx)
}

// buildCoordinator makes a coordinator.
func buildCoordinator(p *parts) (lifecycle.Service, error) {
	endpoint, err := grpcEndpoint(p.address(localCoordinator))
	if err != nil {
		return nil, err
	}
	c, err := coordinatord.New(coordinatord.Config{
		NodeID:     p.id,
		ClusterID:  p.node.String("cluster.id"),
		Rack:       p.node.String("broker.rack"),
		Endpoints:  []metadata.Endpoint{endpoint},
		Version:    p.version,
		Properties: p.settings.Map(),
	}, coordinatord.Deps{
		Metadata:     p.follower,
		Nodes:        p.nodes.Node,
		Coordinators: p.coordinators,
		Controller:   p.controllers,
		Meter:        p.metrics.Meter("coordinatord"),
		Logger:       p.logger,
	})
	if err != nil {
		return nil, err
	}
	c.Register(p.registrar(localCoordinator))
	if p.inOneProcess() {
		p.coordinators.AddLocal(p.id, p.local.Channel(localCoordinator))
	}
	return c, nil
}

func buildTiering(p *parts) (lifecycle.Service, error) {
	endpoint, err := grpcEndpoint(p.address(localTiering))
	if err != nil {
		return nil, err
	}
	t, err := tiering.New(tiering.Config{
		NodeID:     p.id,
		ClusterID:  p.node.String("cluster.id"),
		Rack:       p.node.String("broker.rack"),
		Endpoints:  []metadata.Endpoint{endpoint},
		Version:    p.version,
		Properties: p.settings.Map(),
	}, tiering.Deps{
		Metadata: p.follower, Controller: p.controllers, Nodes: p.nodes.Node, Meter: p.metrics.Meter("tiering"), Logger: p.logger,
	})
	if err != nil {
		return nil, err
	}
	address := transport.JoinAddress(endpoint.Host, endpoint.Port)
	if p.inOneProcess() {
		address = ""
	}
	t.Register(p.registrar(localTiering), address)
	if p.admin != nil && p.node.Bool("remote.log.storage.system.enable") {
		t.Offer(p.admin)
	}
	if p.inOneProcess() {
		p.tiers.AddLocal(p.id, p.local.Channel(localTiering))
	}
	return t, nil
}

// grpcEndpoint is how a member registers the address that other services dial.
func grpcEndpoint(address string) (metadata.Endpoint, error) {
	host, port, err := transport.SplitAddress(address)
	return metadata.Endpoint{Name: metadata.GRPCEndpoint, Host: host, Port: port}, err
}

func buildGateway(p *parts) (lifecycle.Service, error) {
	images := images{p.follower}
	g, err := gateway.New(gateway.Config{NodeID: p.id, Properties: p.settings.Map(), Version: p.version}, gateway.Deps{
		Image:       images.Image,
		Await:       images.Await,
		Storage:     p.nodes.Node,
		Controller:  p.controllers,
		Coordinator: p.coordinators,
		Tiering:     p.tiers,
		NewMember: func(c controllerclient.MemberConfig) lifecycle.Service {
			return controllerclient.NewMember(p.controllers, c)
		},
		Buffers: p.buffers,
		Metrics: p.metrics.Registerer(),
		Logger:  p.logger,
	})
	if err != nil {
		return nil, err
	}
	p.gateway = g
	return g, nil
}
