// Package routing finds the ways of the gateway: which gateway's address a client is given for a storage node, and which
// topic and partition a request means.
//
// It owns no state but a reference to the metadata image; it must never call another service.
package routing

import (
	"strconv"

	"chancery/services/metadata"
)

// Client is who asks for addresses. The same client gets the same ones from every gateway.
type Client struct {
	ID   string
	Host string
}

// Node is a storage node with the address at which the client reaches it.
type Node struct {
	ID     int32
	Host   string
	Port   int32
	Rack   *string
	Fenced bool
}

// Address is the host and port that clients dial.
type Address struct {
	Host string
	Port int32
}

// Addresses gives storage nodes the addresses of gateways.
//
// Every live gateway serves every node, so any mapping is right; this one gives different nodes to different gateways
// where there are enough, those of the node's rack first, changes little when a gateway comes or goes, and
// spreads the clients. Where all gateways advertise the same address, that of a load balancer, every node has it.
type Addresses struct {
	own map[string]Address
}

// NewAddresses takes this gateway's own advertised address by listener name: they are given out while no gateway is
// registered, as in the first moments of a cluster.
func NewAddresses(own map[string]Address) *Addresses { return &Addresses{own: own} }

// candidate is a live gateway.
type candidate struct {
	service *metadata.Service // nil for this gateway while it is not registered
	address Address
	taken   int
}

// NodeEndpoint is the name of a gateway's endpoint that stands for one storage node (node.ports): clients who dial it mean
// that node.
func NodeEndpoint(listener string, node int32) string {
	return listener + "/" + strconv.Itoa(int(node))
}

// Nodes gives all storage nodes that are not fenced in the order of their ids, or the fenced ones too.
func (a *Addresses) Nodes(img metadata.Reader, listener string, client Client, fencedToo bool) []Node {
	candidates := a.candidates(img, listener)
	brokers := img.Brokers()
	nodes := make([]Node, 0, len(brokers))
	base := hashString(hashString(fnvOffset, client.ID), client.Host)
	for _, b := range brokers {
		if b.Fenced && !fencedToo {
			continue
		}
		n := Node{ID: b.ID, Rack: b.Rack, Fenced: b.Fenced}
		if c := choose(candidates, b, base); c != nil {
			address := c.addressFor(listener, b.ID)
			n.Host, n.Port = address.Host, address.Port
			if !b.Fenced {
				c.taken++
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Node gives one storage node; false when it is unknown or fenced.
func (a *Addresses) Node(img metadata.Reader, listener string, client Client, id int32) (Node, bool) {
	for _, n := range a.Nodes(img, listener, client, false) {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}

func (a *Addresses) candidates(img metadata.Reader, listener string) []candidate {
	services := img.Services(metadata.Gateway)
	out := make([]candidate, 0, len(services)+1)
	for _, s := range services {
		if e, ok := s.Endpoint(listener); ok && !s.Fenced {
			out = append(out, candidate{service: s, address: Address{Host: e.Host, Port: int32(e.Port)}})
		}
	}
	if len(out) == 0 {
		if own, ok := a.own[listener]; ok {
			out = append(out, candidate{address: own})
		}
	}
	return out
}

// addressFor is the gateway's own address for a node where it has one, otherwise that of the listener.
func (c *candidate) addressFor(listener string, node int32) Address {
	if c.service != nil && len(c.service.Endpoints) > 1 {
		if e, ok := c.service.Endpoint(NodeEndpoint(listener, node)); ok {
			return Address{Host: e.Host, Port: int32(e.Port)}
		}
	}
	return c.address
}

func (c *candidate) id() int32 {
	if c.service == nil {
		return -1
	}
	return c.service.ID
}

func (c *candidate) sameRack(b *metadata.Broker) bool {
	return b.Rack != nil && c.service != nil && c.service.Rack != nil && *b.Rack == *c.service.Rack
}

// choose finds the gateway for a node: of the node's rack before others, then the one that has the fewest nodes so far,
// then by rendezvous hashing.
func choose(candidates []candidate, b *metadata.Broker, base uint64) *candidate {
	var best *candidate
	var bestRack bool
	var bestScore uint64
	for i := range candidates {
		c := &candidates[i]
		rack := c.sameRack(b)
		score := mix(base ^ uint64(uint32(b.ID))<<32 ^ uint64(uint32(c.id())))
		if best == nil || better(rack, bestRack, c.taken, best.taken, score, bestScore) {
			best, bestRack, bestScore = c, rack, score
		}
	}
	return best
}

func better(rack, bestRack bool, taken, bestTaken int, score, bestScore uint64) bool {
	if rack != bestRack {
		return rack
	}
	if taken != bestTaken {
		return taken < bestTaken
	}
	return score > bestScore
}

const (
	fnvOffset uint64 = 14695981039346656037
	fnvPrime  uint64 = 1099511628211
)

// hashString is FNV-1a with an end mark, so that two strings do not run into each other.
func hashString(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return (h ^ 0xff) * fnvPrime
}

// mix spreads the bits of a hash over all of it (the finalizer of SplitMix64).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Spread picks one of n things for a client, always the same one.
func Spread(client Client, n int) int {
	return int(mix(hashString(hashString(fnvOffset, client.ID), client.Host)) % uint64(n))
}

// Brokers gives the ids of the storage nodes that are not fenced, in order.
func Brokers(img metadata.Reader) []int32 {
	var ids []int32
	for _, b := range img.Brokers() {
		if !b.Fenced {
			ids = append(ids, b.ID)
		}
	}
	return ids
}
