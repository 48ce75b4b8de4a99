// Package storageclient gives everyone the storage nodes by id: the node itself where it is in the same process,
// otherwise a client over the network.
//
// It owns those clients: one for each registered node, replaced when the node comes back as another incarnation or
// elsewhere, closed when it is gone. When the controller fences a node, what is under way there is given up: a node that is
// paused, or cut off, answers nothing, and whatever it led has another leader now. The package must never choose a node: the
// metadata image says who leads what.
package storageclient

import (
	"errors"
	"fmt"
	"sync"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/transport"
)

// RemoteNode is a node that is reached over the network.
type RemoteNode interface {
	storage.Node
	// Close breaks the connections; what is under way fails.
	Close() error
}

// Config is what a pool needs.
type Config struct {
	// Image gives the newest metadata image.
	Image func() metadata.Reader
	// Connect makes a client for a node's address; it does not wait for a connection.
	Connect func(address string) (RemoteNode, error)
}

// Pool is the storage nodes of the cluster. All methods may be called from any goroutine.
type Pool struct {
	config Config

	mu     sync.RWMutex
	closed bool
	local  map[int32]storage.Node
	remote map[int32]remote
}

// remote is the client for one incarnation of a node at one address.
type remote struct {
	node    RemoteNode
	address string
	epoch   int64
	// fenced says that the node was fenced when it was looked at last.
	fenced bool
}

// New makes an empty pool.
func New(c Config) *Pool {
	return &Pool{config: c, local: map[int32]storage.Node{}, remote: map[int32]remote{}}
}

// AddLocal makes the node with this id the given one of this process.
func (p *Pool) AddLocal(id int32, node storage.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.local[id] = node
}

// Node is the node with an id. The caller does not keep it: the next call may give another one for the same id. It
// fails with BrokerNotAvailable when the node is not registered.
func (p *Pool) Node(id int32) (storage.Node, error) {
	p.mu.RLock()
	local, known := p.local[id], p.remote[id]
	p.mu.RUnlock()
	if local != nil {
		return local, nil
	}
	at, err := locate(p.config.Image(), id)
	if err != nil {
		return nil, err
	}
	if known.node != nil && known.epoch == at.epoch && known.address == at.address {
		return known.node, nil
	}
	return p.replace(id, at)
}

// locate says where a node is and in which state, without a client for it.
func locate(image metadata.Reader, id int32) (remote, error) {
	broker := image.Broker(id)
	if broker == nil {
		return remote{}, errcode.BrokerNotAvailable.Wrap(fmt.Errorf("storage node %d is not registered", id))
	}
	endpoint, ok := broker.Endpoint(metadata.GRPCEndpoint)
	if !ok {
		return remote{}, errcode.BrokerNotAvailable.Wrap(fmt.Errorf("storage node %d has no endpoint for other services", id))
	}
	return remote{address: transport.JoinAddress(endpoint.Host, endpoint.Port), epoch: broker.Epoch, fenced: broker.Fenced}, nil
}

// replace connects to an incarnation of a node, unless someone did so meanwhile.
func (p *Pool) replace(id int32, at remote) (storage.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errcode.BrokerNotAvailable.Wrap(errors.New("storage client is closed"))
	}
	old := p.remote[id]
	if old.node != nil && (old.epoch > at.epoch || old.epoch == at.epoch && old.address == at.address) {
		return old.node, nil
	}
	node, err := p.config.Connect(at.address)
	if err != nil {
		return nil, fmt.Errorf("storage node %d: %w", id, err)
	}
	at.node = node
	p.remote[id] = at
	if old.node != nil {
		closeLater(old.node)
	}
	return node, nil
}

// Update closes the clients of nodes that the image does not have any more, has elsewhere, or has just fenced.
func (p *Pool) Update(image metadata.Reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, r := range p.remote {
		if r.epoch > image.Offset() {
			continue // this client was made from a newer image: an epoch is the offset of its registration
		}
		at, err := locate(image, id)
		if err != nil || at.address != r.address || at.epoch != r.epoch || at.fenced && !r.fenced {
			delete(p.remote, id)
			closeLater(r.node)
			continue
		}
		r.fenced = at.fenced
		p.remote[id] = r
	}
}

// Close closes every client.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, r := range p.remote {
		errs = append(errs, r.node.Close())
	}
	clear(p.remote)
	return errors.Join(errs...)
}

// closeLater closes a client without making the caller wait: it fails what is under way, whose callbacks may ask the pool
// for a node again.
func closeLater(node RemoteNode) {
	go func() { _ = node.Close() }()
}
