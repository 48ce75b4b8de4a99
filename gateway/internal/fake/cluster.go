// Package fake is a cluster in memory for the gateway's tests: an image that tests change record by record, storage nodes
// that keep batches, and a controller that makes topics.
//
// It owns nothing real; only tests may use it.
package fake

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/storagerpc"
)

// ClusterID is the id of every cluster of this package.
const ClusterID = "fake-cluster-id-000000"

// Cluster is the cluster.
type Cluster struct {
	// ReadTier and FindInTier are what the remote tier answers; set before the cluster is used.
	ReadTier   func(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error)
	FindInTier func(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error)

	mu      sync.Mutex
	image   *metadata.Image
	changed chan struct{}
	nodes   map[int32]*Node
	// Controller answers requests to the controller; nil makes the topics of CreateTopics.
	Controller func(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	// Requests are the API keys that came to the controller.
	Requests []int16
}

// NewCluster makes a cluster of storage nodes with these ids.
func NewCluster(nodes ...int32) *Cluster {
	c := &Cluster{image: metadata.Empty(ClusterID), changed: make(chan struct{}), nodes: make(map[int32]*Node)}
	for _, id := range nodes {
		c.nodes[id] = newNode(c, id)
		c.Apply(&metarecord.RegisterBrokerRecord{BrokerID: id, BrokerEpoch: int64(id), IncarnationID: uuid.Random()})
	}
	return c
}

// Apply changes the image.
func (c *Cluster) Apply(records ...metarecord.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delta, err := c.image.Apply(c.image.Offset()+int64(len(records)), 1, records...)
	if err != nil {
		panic(err) //nolint:forbidigo // a mistake in a test ends that test
	}
	c.image = delta.Image()
	close(c.changed)
	c.changed = make(chan struct{})
}

// AddTopic makes a topic with one partition for each leader; replicas are the leader alone.
func (c *Cluster) AddTopic(name string, leaders ...int32) uuid.UUID {
	id := uuid.Random()
	records := []metarecord.Record{&metarecord.TopicRecord{Name: name, TopicID: id}}
	for p, leader := range leaders {
		records = append(records, &metarecord.PartitionRecord{
			PartitionID: int32(p), TopicID: id, Replicas: []int32{leader}, ISR: []int32{leader}, Leader: leader,
		})
	}
	c.Apply(records...)
	return id
}

// Lead gives a partition another leader, or none with -1. Replicas are all nodes that ever led it.
func (c *Cluster) Lead(name string, partition, leader int32) {
	t := c.Image().TopicByName(name)
	p := t.Partitions[partition]
	replicas := p.Replicas
	if leader >= 0 && replicas[len(replicas)-1] != leader {
		replicas = append(append([]int32{}, replicas...), leader)
	}
	c.Apply(&metarecord.PartitionRecord{
		PartitionID: partition, TopicID: t.ID, Replicas: replicas, ISR: replicas, Leader: leader,
		LeaderEpoch: p.LeaderEpoch + 1, PartitionEpoch: p.PartitionEpoch + 1,
	})
}

// AddGateway registers a gateway.
func (c *Cluster) AddGateway(id int32, rack string, endpoints ...metarecord.Endpoint) {
	r := &metarecord.RegisterServiceRecord{Kind: int8(metadata.Gateway), ID: id, Epoch: int64(id), EndPoints: endpoints}
	if rack != "" {
		r.Rack = &rack
	}
	c.Apply(r)
}

// Image is the newest image.
func (c *Cluster) Image() metadata.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.image
}

// Await waits for an image.
func (c *Cluster) Await(ctx context.Context, offset int64) error {
	for {
		c.mu.Lock()
		at, changed := c.image.Offset(), c.changed
		c.mu.Unlock()
		if at >= offset {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Node is a storage node.
func (c *Cluster) Node(id int32) *Node { return c.nodes[id] }

// Storage finds a storage node.
func (c *Cluster) Storage(id int32) (storage.Node, error) {
	n := c.nodes[id]
	if n == nil {
		return nil, fmt.Errorf("there is no node %d", id)
	}
	return n, nil
}

// Handle is the controller.
func (c *Cluster) Handle(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	c.mu.Lock()
	c.Requests = append(c.Requests, int16(e.GetApiKey()))
	handle := c.Controller
	c.mu.Unlock()
	if handle != nil {
		return handle(ctx, e)
	}
	q := kmsg.NewPtrCreateTopicsRequest()
	q.SetVersion(int16(e.GetApiVersion()))
	if int16(e.GetApiKey()) != q.Key() {
		return nil, errcode.UnsupportedVersion.Err()
	}
	if err := q.ReadFrom(e.GetBody()); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.SetVersion(q.Version)
	for _, t := range q.Topics {
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic = t.Topic
		leaders := make([]int32, max(t.NumPartitions, 1))
		for i := range leaders {
			leaders[i] = 1
		}
		out.TopicID = c.AddTopic(t.Topic, leaders...)
		resp.Topics = append(resp.Topics, out)
	}
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil), MetadataOffset: c.Image().Offset()}, nil
}

// Read answers reads from the remote tier with ReadTier.
func (c *Cluster) Read(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
	return c.ReadTier(ctx, req)
}

// FindOffset answers searches of the remote tier with FindInTier.
func (c *Cluster) FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error) {
	return c.FindInTier(ctx, req)
}
