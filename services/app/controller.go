package app

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"chancery/controllerd"
	"chancery/services/kafka/configdef"
	"chancery/services/transport"
)

// controllerConfig is what the settings say about a controller.
func controllerConfig(p *parts) (controllerd.Config, error) {
	n := p.node
	c := controllerd.DefaultConfig()
	c.NodeID = p.id
	c.ClusterID = n.String("cluster.id")
	c.Dir = n.String("metadata.log.dir")
	c.Address = p.address(localController)
	c.EtcdEndpoints = n.List("controller.etcd.endpoints")
	c.EtcdPrefix = n.String("controller.etcd.prefix")
	c.SessionTimeout = n.Duration("broker.session.timeout.ms")
	c.SnapshotBytes = n.Long("metadata.log.max.record.bytes.between.snapshots")
	c.SnapshotInterval = n.Duration("metadata.log.max.snapshot.interval.ms")
	c.LogSegmentBytes = n.Long("metadata.log.segment.bytes")
	c.LogSegmentAge = n.Duration("metadata.log.segment.ms")
	c.RetentionBytes = n.Long("metadata.max.retention.bytes")
	c.Retention = n.Duration("metadata.max.retention.ms")
	c.UncleanElectionCheckInterval = n.Duration("unclean.leader.election.interval.ms")
	c.LeaderImbalanceCheckInterval = 0
	if n.Bool("auto.leader.rebalance.enable") {
		c.LeaderImbalanceCheckInterval = time.Duration(n.Long("leader.imbalance.check.interval.seconds")) * time.Second
	}
	c.NumPartitions = int32(n.Int("num.partitions"))
	c.DefaultReplicationFactor = int16(n.Int("default.replication.factor"))
	c.DeleteTopicEnable = n.Bool("delete.topic.enable")
	c.Properties = p.settings.Map()
	if n.IsSet("controller.quorum.election.timeout.ms") {
		// Kafka's default is made for its own quorum; this one's finds out by itself what suits it.
		c.ElectionTimeout = n.Duration("controller.quorum.election.timeout.ms")
	}
	var err error
	if c.Listener, err = controllerListener(n); err != nil {
		return c, err
	}
	// A process that runs everything is a quorum of one, which needs no port, whatever a shared file says of others.
	if p.inOneProcess() {
		return c, nil
	}
	for _, text := range n.List("controller.quorum.voters") {
		v, err := parseVoter(text)
		if err != nil {
			return c, fmt.Errorf("controller.quorum.voters: %w", err)
		}
		c.Voters = append(c.Voters, v)
	}
	if len(c.Voters) == 0 && len(c.EtcdEndpoints) == 0 {
		targets, err := bootstrapControllers(n)
		if err != nil {
			return c, err
		}
		c.JoinTargets = slices.DeleteFunc(targets, func(a string) bool { return a == c.Address })
		c.QuorumAddress = n.String("controller.quorum.listener")
	}
	return c, nil
}

// parseVoter reads "id@host:port".
func parseVoter(text string) (controllerd.Voter, error) {
	id, address, ok := strings.Cut(text, "@")
	n, err := strconv.ParseInt(id, 10, 32)
	if !ok || err != nil || n < 0 {
		return controllerd.Voter{}, fmt.Errorf("%q is not id@host:port, such as 1@ctl1:9093", text)
	}
	if _, _, err := transport.SplitAddress(address); err != nil {
		return controllerd.Voter{}, fmt.Errorf("voter %d: %w", n, err)
	}
	return controllerd.Voter{ID: int32(n), Address: address}, nil
}

// controllerListener is the listener for clients that ask controllers directly: the one of listeners that
// controller.listener.names names. Nil means that there is none.
func controllerListener(n *configdef.Node) (*controllerd.Listener, error) {
	names := n.List("controller.listener.names")
	l := &controllerd.Listener{MaxRequestBytes: n.Int("socket.request.max.bytes"), IdleTimeout: n.Duration("connections.max.idle.ms")}
	for _, text := range n.List("listeners") {
		name, address, ok := strings.Cut(text, "://")
		if name = strings.ToUpper(name); !ok || !slices.Contains(names, name) {
			continue
		}
		if l.Name != "" {
			return nil, fmt.Errorf("listeners: there are two listeners for clients of controllers, %s and %s; want one", l.Name, name)
		}
		host, port, err := listenerAddress(address)
		if err != nil {
			return nil, fmt.Errorf("listeners: %w", err)
		}
		l.Name, l.Address, l.AdvertisedHost, l.AdvertisedPort = name, address, host, port
	}
	if l.Name == "" {
		return nil, nil
	}
	if err := checkPlaintext(n, l.Name); err != nil {
		return nil, err
	}
	for _, text := range n.List("advertised.listeners") {
		name, address, _ := strings.Cut(text, "://")
		if strings.ToUpper(name) != l.Name {
			continue
		}
		host, port, err := listenerAddress(address)
		if err != nil {
			return nil, fmt.Errorf("advertised.listeners: %w", err)
		}
		l.AdvertisedHost, l.AdvertisedPort = host, port
	}
	if ip := net.ParseIP(l.AdvertisedHost); l.AdvertisedHost == "" || ip != nil && ip.IsUnspecified() {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("the address of listener %s for clients: %w; set advertised.listeners", l.Name, err)
		}
		l.AdvertisedHost = host
	}
	return l, nil
}

func listenerAddress(address string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port: %w", address, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q has no port between 0 and 65535", address)
	}
	return host, uint16(n), nil
}

// checkPlaintext refuses a controllers' listener with a security protocol that is not served. As in Kafka, such a listener is
// PLAINTEXT unless the map is set.
func checkPlaintext(n *configdef.Node, name string) error {
	if !n.IsSet("listener.security.protocol.map") {
		return nil
	}
	for pair := range strings.SplitSeq(n.String("listener.security.protocol.map"), ",") {
		of, protocol, _ := strings.Cut(strings.TrimSpace(pair), ":")
		if strings.ToUpper(of) != name {
			continue
		}
		if strings.ToUpper(strings.TrimSpace(protocol)) != "PLAINTEXT" {
			return fmt.Errorf("listeners: listener %s has the security protocol %s; controllers serve PLAINTEXT", name, protocol)
		}
		return nil
	}
	return fmt.Errorf("listeners: listener %s has no security protocol; add it to listener.security.protocol.map", name)
}
