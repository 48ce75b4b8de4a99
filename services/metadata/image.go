// Package metadata is the cluster's state as every service sees it: an immutable image that a follower keeps up with the
// metadata log.
//
// It owns the image, how records change it (Delta), and the follower that streams the log from a controller. It must never
// decide anything: records come from the active controller alone.
package metadata

import (
	"fmt"
	"iter"

	"chancery/services/kafka/uuid"
)

// ResourceType is the kind of thing that a config belongs to, with Kafka's numbers.
type ResourceType int8

// The resource types that have configs.
const (
	ResourceTopic         ResourceType = 2
	ResourceBroker        ResourceType = 4
	ResourceBrokerLogger  ResourceType = 8
	ResourceClientMetrics ResourceType = 16
	ResourceGroup         ResourceType = 32
)

// ServiceKind is the kind of a member that Kafka does not know; the numbers are those of proto/controller/v1.
type ServiceKind int8

// The kinds of services that register beside storage nodes.
const (
	Gateway     ServiceKind = 1
	Coordinator ServiceKind = 2
	Tiering     ServiceKind = 3
)

// String names the kind for people.
func (k ServiceKind) String() string {
	switch k {
	case Gateway:
		return "gateway"
	case Coordinator:
		return "coordinator"
	case Tiering:
		return "tiering instance"
	}
	return fmt.Sprintf("service of kind %d", int8(k))
}

// ShardKind is the internal topic whose partitions are shards; the numbers are those of proto/coordinator/v1.
type ShardKind int8

// The kinds of shards. Coordinators own the first three, tiering instances the last.
const (
	GroupShard       ShardKind = 1
	TransactionShard ShardKind = 2
	ShareShard       ShardKind = 3
	RemoteLogShard   ShardKind = 4
)

// Owner is the kind of the services that own shards of a kind.
func (k ShardKind) Owner() ServiceKind {
	if k == RemoteLogShard {
		return Tiering
	}
	return Coordinator
}

// NoLeader is the leader of a partition without one.
const NoLeader int32 = -1

// Topic is a topic with its partitions; immutable.
type Topic struct {
	ID   uuid.UUID
	Name string
	// Partitions is indexed by partition; a topic always has partitions 0 to n-1.
	Partitions []*Partition
}

// Partition is one partition's registration; immutable.
type Partition struct {
	Replicas         []int32
	ISR              []int32
	AddingReplicas   []int32
	RemovingReplicas []int32
	// ELR are replicas out of the ISR that still have every acknowledged record; LastKnownELR are those that lost that
	// standing by an unclean shutdown (KIP-966).
	ELR          []int32
	LastKnownELR []int32
	// Directories is the log directory of each replica, by index of Replicas (KIP-858).
	Directories []uuid.UUID
	// Leader is a node id or NoLeader. LeaderEpoch grows with each change of the leader or of the replicas' roles,
	// PartitionEpoch with each change at all.
	Leader         int32
	LeaderEpoch    int32
	PartitionEpoch int32
	// RecoveringUnclean says that the leader was elected out of the ISR and must say when it has recovered.
	RecoveringUnclean bool
}

// Endpoint is an address of a member.
type Endpoint struct {
	// Name is a listener's name: "GRPC" for the address that other services dial, otherwise a Kafka listener.
	Name             string
	Host             string
	Port             uint16
	SecurityProtocol int16
}

// GRPCEndpoint is the name of the endpoint that other services dial.
const GRPCEndpoint = "GRPC"

// Broker is a storage node's registration; immutable.
type Broker struct {
	ID            int32
	Epoch         int64
	IncarnationID uuid.UUID
	Endpoints     []Endpoint
	// Rack is nil where none is configured.
	Rack                 *string
	Fenced               bool
	InControlledShutdown bool
	Directories          []uuid.UUID
	CordonedDirectories  []uuid.UUID
	SupportedFeatures    map[string]VersionRange
}

// VersionRange is the levels of a feature that a member supports.
type VersionRange struct{ Min, Max int16 }

// Endpoint finds an endpoint by name.
func (b *Broker) Endpoint(name string) (Endpoint, bool) { return findEndpoint(b.Endpoints, name) }

// Service is the registration of a gateway, coordinator or tiering instance; immutable.
type Service struct {
	Kind          ServiceKind
	ID            int32
	Epoch         int64
	IncarnationID uuid.UUID
	Endpoints     []Endpoint
	Rack          *string
	Fenced        bool
	Version       string
}

// Endpoint finds an endpoint by name.
func (s *Service) Endpoint(name string) (Endpoint, bool) { return findEndpoint(s.Endpoints, name) }

func findEndpoint(es []Endpoint, name string) (Endpoint, bool) {
	for _, e := range es {
		if e.Name == name {
			return e, true
		}
	}
	return Endpoint{}, false
}

// Controller is a controller's registration; immutable.
type Controller struct {
	ID                int32
	IncarnationID     uuid.UUID
	Endpoints         []Endpoint
	SupportedFeatures map[string]VersionRange
}

// Endpoint finds an endpoint by name.
func (c *Controller) Endpoint(name string) (Endpoint, bool) { return findEndpoint(c.Endpoints, name) }

// Shard says who owns a shard. Each change of the owner raises the epoch; Owner is -1 for nobody.
type Shard struct {
	Owner int32
	Epoch int32
}

// Reader is what the rest of the code may ask of an image. *Image implements it; nothing else should, but in tests.
//
// Maps and slices that it gives out are shared and must not be changed.
type Reader interface {
	// Offset is the offset of the last record applied; -1 for none. Epoch is the controller epoch of that record.
	Offset() int64
	Epoch() int32
	ClusterID() string

	Topic(id uuid.UUID) *Topic
	TopicByName(name string) *Topic
	// Topics are in no order.
	Topics() iter.Seq[*Topic]
	// Partition is nil when the topic or the partition does not exist.
	Partition(id uuid.UUID, partition int32) *Partition

	Broker(id int32) *Broker
	// Brokers are in the order of their ids, the fenced ones too.
	Brokers() []*Broker
	Service(kind ServiceKind, id int32) *Service
	// Services are in the order of their ids, the fenced ones too.
	Services(kind ServiceKind) []*Service
	Controllers() []*Controller
	Shard(kind ShardKind, shard int32) Shard

	// Config gives the dynamic configs of a resource; broker "" is the default of all brokers. Nil when there are none.
	Config(t ResourceType, name string) map[string]string
	// ConfigResources are the names of the resources of a type that have dynamic configs, sorted.
	ConfigResources(t ResourceType) []string
	// FeatureLevel is the finalized level of a feature, 0 when it is off.
	FeatureLevel(name string) int16
	Features() map[string]int16
	// NextProducerID is the first id of the next block to give out.
	NextProducerID() int64
}
