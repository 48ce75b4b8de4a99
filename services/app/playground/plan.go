package playground

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// Config is the shape of a cluster.
type Config struct {
	// How many processes of each service there are.
	Storage, Gateways, Controllers, Coordinators, Tiering int
	// LogDirs is how many log directories each storage node has; 0 means one.
	LogDirs int
	// Dir holds everything that the cluster writes: a folder for each process, and the state file.
	Dir string
	// BasePort is the first of a run of ports: those of the Kafka listeners come first, in the order of the gateways.
	BasePort int
	// Binary is the program whose subcommands are the services.
	Binary string
	// Properties are given to every process, under what the shape itself asks for.
	Properties map[string]string
	// Overrides are given to every process and win over everything else.
	Overrides map[string]string
}

// Validate says what is wrong with the shape.
func (c Config) Validate() error {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"--storage", c.Storage, 1}, {"--gateways", c.Gateways, 1}, {"--controllers", c.Controllers, 1},
		{"--coordinators", c.Coordinators, 1}, {"--tiering", c.Tiering, 0}, {"--log-dirs", c.LogDirs, 0},
	} {
		if n.value < n.min {
			return fmt.Errorf("%s %d: must be at least %d", n.flag, n.value, n.min)
		}
	}
	if c.Controllers%2 == 0 {
		return fmt.Errorf("--controllers %d: must be odd, since an even one more survives no more failures", c.Controllers)
	}
	if c.Dir == "" {
		return errors.New("--data: must name a folder")
	}
	if last := c.BasePort + c.Ports() - 1; c.BasePort < 1 || last > 65535 {
		return fmt.Errorf("--base-port %d: the cluster needs %d ports in a row between 1 and 65535", c.BasePort, c.Ports())
	}
	return nil
}

// Ports is how many ports in a row the cluster uses.
func (c Config) Ports() int {
	// Each process has an address for other services and one for administrators; gateways have a Kafka listener instead
	// of the former and a listener for each storage node, and controllers two more: for their quorum and for clients.
	return 2*(c.Storage+c.Gateways+c.Coordinators+c.Tiering) + 4*c.Controllers + c.Storage*c.Gateways
}

// The services, by the subcommands that run them.
const (
	serviceController  = "controllerd"
	serviceStorage     = "storaged"
	serviceCoordinator = "coordinatord"
	serviceTiering     = "tiering"
	serviceGateway     = "gateway"
)

// The keys of a process's addresses.
const (
	addressKafka  = "kafka"
	addressGRPC   = "grpc"
	addressAdmin  = "admin"
	addressQuorum = "quorum"
	// addressController is that of a controller's listener for clients.
	addressController = "controller"
)

// controllerIDBase keeps the ids of controllers apart from those of storage nodes, which are the brokers that clients see.
const controllerIDBase = 1000

// processPlan is one process before it runs.
type processPlan struct {
	name       string
	service    string
	dir        string
	addresses  map[string]string
	properties map[string]string
}

// plan lays the cluster out. Processes are in the order in which an orderly end stops them, the last first.
func plan(c Config) []processPlan {
	port := c.BasePort
	next := func() string {
		port++
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port-1))
	}
	build := func(service, prefix string, n, idBase int) []processPlan {
		plans := make([]processPlan, n)
		for i := range plans {
			name := fmt.Sprintf("%s-%d", prefix, i+1)
			plans[i] = processPlan{name: name, service: service, dir: filepath.Join(c.Dir, name), addresses: map[string]string{},
				properties: map[string]string{"node.id": strconv.Itoa(idBase + i + 1)}}
		}
		return plans
	}
	gateways := build(serviceGateway, "gateway", c.Gateways, 0)
	for _, p := range gateways {
		p.addresses[addressKafka] = next()
		p.properties["listeners"] = "PLAINTEXT://" + p.addresses[addressKafka]
	}
	controllers := build(serviceController, "controller", c.Controllers, controllerIDBase)
	for _, p := range controllers {
		p.addresses[addressQuorum] = next()
		p.properties["metadata.log.dir"] = filepath.Join(p.dir, "data")
	}
	storage := build(serviceStorage, "storage", c.Storage, 0)
	for _, p := range storage {
		dirs := []string{filepath.Join(p.dir, "data")}
		for i := 2; i <= c.LogDirs; i++ {
			dirs = append(dirs, filepath.Join(p.dir, fmt.Sprintf("data-%d", i)))
		}
		p.properties["log.dirs"] = strings.Join(dirs, ",")
	}
	coordinators := build(serviceCoordinator, "coordinator", c.Coordinators, 0)
	tiering := build(serviceTiering, "tiering", c.Tiering, 0)

	var all []processPlan
	for _, group := range [][]processPlan{controllers, storage, coordinators, tiering} {
		for _, p := range group {
			p.addresses[addressGRPC] = next()
			p.properties["grpc.listeners"] = p.addresses[addressGRPC]
		}
		all = append(all, group...)
	}
	all = append(all, gateways...)
	for _, p := range controllers {
		p.addresses[addressController] = next()
		p.properties["listeners"] = "CONTROLLER://" + p.addresses[addressController]
	}
	for _, p := range all {
		p.addresses[addressAdmin] = next()
		p.properties["admin.listeners"] = p.addresses[addressAdmin]
	}
	// Most clients do not say which node they mean when they ask one about itself, so the port says it.
	for _, p := range gateways {
		var ports []string
		for _, node := range storage {
			_, port, _ := net.SplitHostPort(next())
			ports = append(ports, node.properties["node.id"]+":"+port)
		}
		p.properties["node.ports"] = strings.Join(ports, ",")
	}
	common := sharedProperties(c, controllers)
	for i := range all {
		p := &all[i]
		merged := maps.Clone(c.Properties)
		if merged == nil {
			merged = map[string]string{}
		}
		for _, layer := range []map[string]string{common, p.properties, c.Overrides} {
			maps.Copy(merged, layer)
		}
		p.properties = merged
	}
	return all
}

// sharedProperties are those that every process of the cluster must have alike. What the user's own file says about the
// replication of internal topics stands.
func sharedProperties(c Config, controllers []processPlan) map[string]string {
	var voters, bootstrap []string
	for _, p := range controllers {
		voters = append(voters, p.properties["node.id"]+"@"+p.addresses[addressQuorum])
		bootstrap = append(bootstrap, p.addresses[addressGRPC])
	}
	shared := map[string]string{
		"controller.quorum.voters":            strings.Join(voters, ","),
		"controller.quorum.bootstrap.servers": strings.Join(bootstrap, ","),
		"controller.listener.names":           "CONTROLLER",
	}
	replicas, minISR := strconv.Itoa(min(3, c.Storage)), strconv.Itoa(min(2, c.Storage))
	for key, value := range map[string]string{
		"offsets.topic.replication.factor":                 replicas,
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    minISR,
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            minISR,

		"rlmm.config.remote.log.metadata.topic.replication.factor": replicas,
		"rlmm.config.remote.log.metadata.topic.min.isr":            minISR,
	} {
		if _, ok := c.Properties[key]; !ok {
			shared[key] = value
		}
	}
	return shared
}
