package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"chancery/gateway/internal/handler"
	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/server"
	"chancery/services/kafka/configdef"
)

// Config is the settings of a gateway.
type Config struct {
	// NodeID is the gateway's id among the gateways.
	NodeID int32
	// Properties are the settings by Kafka's names, as given at start; what is missing has its default. The gateway uses:
	// listeners, advertised.listeners, listener.security.protocol.map, controller.listener.names (whose listeners are not
	// the gateway's), node.ports, broker.rack, socket.request.max.bytes, queued.max.request.bytes, connections.max.idle.ms,
	// connection.max.age.ms, max.connections, max.connections.per.ip, max.connections.per.ip.overrides,
	// socket.send.buffer.bytes and socket.receive.buffer.bytes (left to the system where they are not set),
	// fetch.max.bytes, max.incremental.fetch.session.cache.slots, max.request.partition.size.limit, request.timeout.ms,
	// auto.create.topics.enable, num.partitions, default.replication.factor and the settings of internal topics.
	Properties map[string]string
	// Version is the product's version, which the gateway registers with.
	Version string
}

const (
	// defaultQueuedBytes bounds the requests in memory where queued.max.request.bytes does not; what clients have not read of
	// fetched records has the same bound.
	defaultQueuedBytes = 512 << 20
	// maxInFlight bounds the requests of one connection that run beside each other.
	maxInFlight = 256
	// plaintext is the security protocol that the gateway speaks.
	plaintext = "PLAINTEXT"
)

// endpoint is a parsed listener.
type endpoint struct {
	name string
	host string
	port uint16
	// node is the node that the port stands for (node.ports), or handler.UnknownNode.
	node int32
}

// settings are what a Config says, checked.
type settings struct {
	node      *configdef.Node
	rack      string
	listeners []endpoint
	// advertised is by listener name; nil where none is set, and then it is what the listener says.
	advertised      map[string]endpoint
	server          server.Config
	handler         handler.Config
	sessions        int
	sessionEviction time.Duration
}

func newSettings(c Config) (*settings, error) {
	node := configdef.NewNode(c.Properties)
	s := &settings{node: node, rack: node.String("broker.rack"), handler: handler.NewConfig(node)}
	s.sessions = node.Int("max.incremental.fetch.session.cache.slots")
	s.sessionEviction = node.Duration("min.incremental.fetch.session.eviction.ms")
	if err := s.readListeners(); err != nil {
		return nil, err
	}
	queued := node.Long("queued.max.request.bytes")
	if queued <= 0 {
		queued = max(defaultQueuedBytes, node.Long("socket.request.max.bytes"))
	}
	s.handler.AnswerBytes = queued
	overrides, err := perIPOverrides(node.String("max.connections.per.ip.overrides"))
	if err != nil {
		return nil, err
	}
	s.server = server.Config{
		MaxRequestBytes:     int32(node.Int("socket.request.max.bytes")),
		MaxQueuedBytes:      queued,
		MaxInFlight:         maxInFlight,
		IdleTimeout:         node.Duration("connections.max.idle.ms"),
		MaxAge:              node.Duration("connection.max.age.ms"),
		MaxConnections:      node.Int("max.connections"),
		MaxConnectionsPerIP: node.Int("max.connections.per.ip"),
		PerIPOverrides:      overrides,
		SendBufferBytes:     setOrSystem(node, "socket.send.buffer.bytes"),
		ReceiveBufferBytes:  setOrSystem(node, "socket.receive.buffer.bytes"),
	}
	return s, nil
}

// setOrSystem is the size of a socket's buffer. Kafka's default of 100 KiB is for systems that do not adapt it to the
// connection by themselves; those of today do unless a size is set.
func setOrSystem(node *configdef.Node, name string) int {
	if !node.IsSet(name) {
		return -1
	}
	return node.Int(name)
}

func (s *settings) readListeners() error {
	protocols, err := protocolMap(s.node.String("listener.security.protocol.map"))
	if err != nil {
		return err
	}
	ofController := s.node.List("controller.listener.names")
	if s.listeners, err = parseListeners("listeners", s.node.List("listeners"), ofController); err != nil {
		return err
	}
	if len(s.listeners) == 0 {
		return errors.New("listeners: there is no listener for clients; want one such as PLAINTEXT://:9092")
	}
	for _, l := range s.listeners {
		protocol, ok := protocols[l.name]
		if !ok {
			return fmt.Errorf("listeners: listener %s has no security protocol; add it to listener.security.protocol.map", l.name)
		}
		if protocol != plaintext {
			return fmt.Errorf("listeners: listener %s has the security protocol %s; the gateway serves %s", l.name, protocol, plaintext)
		}
	}
	advertised, err := parseListeners("advertised.listeners", s.node.List("advertised.listeners"), ofController)
	if err != nil {
		return err
	}
	s.advertised = make(map[string]endpoint, len(advertised))
	for _, a := range advertised {
		if !slices.ContainsFunc(s.listeners, func(l endpoint) bool { return l.name == a.name }) {
			return fmt.Errorf("advertised.listeners: there is no listener %s in listeners", a.name)
		}
		if unroutable(a.host) {
			return fmt.Errorf("advertised.listeners: clients cannot dial %q; want a host name or an address", a.host)
		}
		s.advertised[a.name] = a
	}
	return s.readNodePorts()
}

// readNodePorts adds the listeners that stand for one node each, beside the first one.
func (s *settings) readNodePorts() error {
	first := s.listeners[0]
	for _, text := range s.node.List("node.ports") {
		id, port, ok := strings.Cut(text, ":")
		n, err1 := strconv.ParseInt(id, 10, 32)
		p, err2 := strconv.ParseUint(port, 10, 16)
		if !ok || err1 != nil || err2 != nil || n < 0 {
			return fmt.Errorf("node.ports: %q is not node.id:port, such as 1:9192", text)
		}
		s.listeners = append(s.listeners, endpoint{name: first.name, host: first.host, port: uint16(p), node: int32(n)})
	}
	return nil
}

// parseListeners reads NAME://host:port entries and leaves out those of controllers.
func parseListeners(config string, texts, ofController []string) ([]endpoint, error) {
	var out []endpoint
	for _, text := range texts {
		name, address, ok := strings.Cut(text, "://")
		if !ok || name == "" {
			return nil, fmt.Errorf("%s: %q is not NAME://host:port", config, text)
		}
		name = strings.ToUpper(name)
		if slices.Contains(ofController, name) {
			continue
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not NAME://host:port: %w", config, text, err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s: %q has no port between 0 and 65535", config, text)
		}
		if slices.ContainsFunc(out, func(e endpoint) bool { return e.name == name }) {
			return nil, fmt.Errorf("%s: there are two listeners %s", config, name)
		}
		out = append(out, endpoint{name: name, host: host, port: uint16(n), node: handler.UnknownNode})
	}
	return out, nil
}

func protocolMap(text string) (map[string]string, error) {
	out := make(map[string]string)
	for _, pair := range splitList(text) {
		name, protocol, ok := strings.Cut(pair, ":")
		if !ok {
			return nil, fmt.Errorf("listener.security.protocol.map: %q is not NAME:PROTOCOL", pair)
		}
		out[strings.ToUpper(strings.TrimSpace(name))] = strings.ToUpper(strings.TrimSpace(protocol))
	}
	return out, nil
}

// perIPOverrides reads address:count pairs; a host name stands for all its addresses.
func perIPOverrides(text string) (map[string]int, error) {
	out := make(map[string]int)
	for _, pair := range splitList(text) {
		at := strings.LastIndexByte(pair, ':')
		if at < 0 {
			return nil, fmt.Errorf("max.connections.per.ip.overrides: %q is not host:count", pair)
		}
		n, err := strconv.Atoi(strings.TrimSpace(pair[at+1:]))
		if err != nil || n < 0 {
			return nil, fmt.Errorf("max.connections.per.ip.overrides: %q is not host:count", pair)
		}
		addresses, err := net.LookupHost(strings.Trim(strings.TrimSpace(pair[:at]), "[]"))
		if err != nil {
			return nil, fmt.Errorf("max.connections.per.ip.overrides: %w", err)
		}
		for _, a := range addresses {
			out[a] = n
		}
	}
	return out, nil
}

func splitList(text string) []string {
	var out []string
	for _, s := range strings.Split(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// unroutable says whether a host means "all addresses of this machine", or nothing.
func unroutable(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// advertise gives the address of a listener that is bound to a port, as clients should dial it.
func (s *settings) advertise(l endpoint, port uint16) (routing.Address, error) {
	out := routing.Address{Host: l.host, Port: int32(port)}
	if a, ok := s.advertised[l.name]; ok {
		out.Host = a.host
		if l.node == handler.UnknownNode {
			out.Port = int32(a.port)
		}
	}
	if unroutable(out.Host) {
		host, err := os.Hostname()
		if err != nil {
			return out, fmt.Errorf("the address of listener %s for clients: %w; set advertised.listeners", l.name, err)
		}
		out.Host = host
	}
	return out, nil
}
