package metadata

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

// ConfigResource is what a dynamic config belongs to.
type ConfigResource struct {
	Type ResourceType
	// Name is a topic's or a group's name, a broker's id in decimal, or "" for the default of all brokers.
	Name string
}

// ServiceID names a member that Kafka does not know.
type ServiceID struct {
	Kind ServiceKind
	ID   int32
}

// ShardID names a coordinator shard.
type ShardID struct {
	Kind  ShardKind
	Shard int32
}

// ScramID names a SCRAM credential.
type ScramID struct {
	User      string
	Mechanism int8
}

// QuotaName is one part of whom a quota is for. The zero value says that the part does not matter.
type QuotaName struct {
	// Set says that the quota is for this part; Default that it is the default of all names, and Name is empty then.
	Set     bool
	Default bool
	Name    string
}

// QuotaEntity is whom a quota is for: a user, a client id, both, or an address.
type QuotaEntity struct {
	User     QuotaName
	ClientID QuotaName
	IP       QuotaName
}

// Image is the cluster's state at an offset of the metadata log. It is immutable and may be read by all goroutines;
// images that follow each other share what did not change.
type Image struct {
	clusterID string
	offset    int64
	epoch     int32

	topics  shardMap[uuid.UUID, *Topic]
	names   shardMap[string, uuid.UUID]
	configs shardMap[ConfigResource, map[string]string]
	acls    shardMap[uuid.UUID, *metarecord.AccessControlEntryRecord]
	scram   shardMap[ScramID, *metarecord.UserScramCredentialRecord]
	tokens  shardMap[string, *metarecord.DelegationTokenRecord]
	quotas  shardMap[QuotaEntity, map[string]float64]

	// The lists are in the order of their ids.
	brokers        []*Broker
	services       []*Service
	controllers    []*Controller
	shards         map[ShardID]Shard
	features       map[string]int16
	nextProducerID int64
}

var _ Reader = (*Image)(nil)

// Empty is the image before the first record.
func Empty(clusterID string) *Image {
	seed := maphash.MakeSeed()
	return &Image{
		clusterID: clusterID,
		offset:    -1,
		epoch:     -1,
		topics:    newShardMap[uuid.UUID, *Topic](seed),
		names:     newShardMap[string, uuid.UUID](seed),
		configs:   newShardMap[ConfigResource, map[string]string](seed),
		acls:      newShardMap[uuid.UUID, *metarecord.AccessControlEntryRecord](seed),
		scram:     newShardMap[ScramID, *metarecord.UserScramCredentialRecord](seed),
		tokens:    newShardMap[string, *metarecord.DelegationTokenRecord](seed),
		quotas:    newShardMap[QuotaEntity, map[string]float64](seed),
	}
}

// Offset is the offset of the last record applied; -1 for none.
func (i *Image) Offset() int64 { return i.offset }

// Epoch is the controller epoch of the last record applied; -1 for none.
func (i *Image) Epoch() int32 { return i.epoch }

// ClusterID is the cluster's id.
func (i *Image) ClusterID() string { return i.clusterID }

// Topic finds a topic by id; nil when there is none.
func (i *Image) Topic(id uuid.UUID) *Topic {
	t, _ := i.topics.get(id)
	return t
}

// TopicByName finds a topic by name; nil when there is none.
func (i *Image) TopicByName(name string) *Topic {
	id, ok := i.names.get(name)
	if !ok {
		return nil
	}
	return i.Topic(id)
}

// Topics are all topics, in no order.
func (i *Image) Topics() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		for _, t := range i.topics.all() {
			if !yield(t) {
				return
			}
		}
	}
}

// TopicCount is the number of topics.
func (i *Image) TopicCount() int { return i.topics.size }

// Partition is nil when the topic or the partition does not exist.
func (i *Image) Partition(id uuid.UUID, partition int32) *Partition {
	return i.Topic(id).partition(partition)
}

// partition is nil when t is nil or has no such partition.
func (t *Topic) partition(p int32) *Partition {
	if t == nil || p < 0 || int(p) >= len(t.Partitions) {
		return nil
	}
	return t.Partitions[p]
}

// Broker finds a storage node; nil when it is not registered.
func (i *Image) Broker(id int32) *Broker {
	at, ok := searchBroker(i.brokers, id)
	if !ok {
		return nil
	}
	return i.brokers[at]
}

// Brokers are the storage nodes in the order of their ids, the fenced ones too.
func (i *Image) Brokers() []*Broker { return i.brokers }

// Service finds a member that Kafka does not know; nil when it is not registered.
func (i *Image) Service(kind ServiceKind, id int32) *Service {
	at, ok := searchService(i.services, ServiceID{kind, id})
	if !ok {
		return nil
	}
	return i.services[at]
}

// Services are the members of a kind in the order of their ids, the fenced ones too.
func (i *Image) Services(kind ServiceKind) []*Service {
	from, _ := slices.BinarySearchFunc(i.services, kind, func(s *Service, k ServiceKind) int { return cmp.Compare(s.Kind, k) })
	to, _ := slices.BinarySearchFunc(i.services, kind+1, func(s *Service, k ServiceKind) int { return cmp.Compare(s.Kind, k) })
	return i.services[from:to:to]
}

// Controllers are the registered controllers in the order of their ids.
func (i *Image) Controllers() []*Controller { return i.controllers }

// Shard says who owns a coordinator shard: nobody, with epoch 0, when it never had an owner.
func (i *Image) Shard(kind ShardKind, shard int32) Shard {
	s, ok := i.shards[ShardID{kind, shard}]
	if !ok {
		return Shard{Owner: -1}
	}
	return s
}

// Shards are the shards that have or had an owner, in no order.
func (i *Image) Shards() iter.Seq2[ShardID, Shard] { return maps.All(i.shards) }

// Config gives the dynamic configs of a resource; broker "" is the default of all brokers. Nil when there are none.
func (i *Image) Config(t ResourceType, name string) map[string]string {
	c, _ := i.configs.get(ConfigResource{t, name})
	return c
}

// ConfigResources are the names of the resources of a type that have dynamic configs, sorted.
func (i *Image) ConfigResources(t ResourceType) []string {
	var names []string
	for r := range i.configs.all() {
		if r.Type == t {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// FeatureLevel is the finalized level of a feature, 0 when it is off.
func (i *Image) FeatureLevel(name string) int16 { return i.features[name] }

// Features are the finalized levels of the features that are on.
func (i *Image) Features() map[string]int16 { return i.features }

// NextProducerID is the first id of the next block to give out.
func (i *Image) NextProducerID() int64 { return i.nextProducerID }

// ACLs are the access rules, in no order. They are shared and must not be changed.
func (i *Image) ACLs() iter.Seq[*metarecord.AccessControlEntryRecord] {
	return func(yield func(*metarecord.AccessControlEntryRecord) bool) {
		for _, a := range i.acls.all() {
			if !yield(a) {
				return
			}
		}
	}
}

// ACL finds an access rule; nil when there is none.
func (i *Image) ACL(id uuid.UUID) *metarecord.AccessControlEntryRecord {
	a, _ := i.acls.get(id)
	return a
}

// ScramCredential finds a user's credential for a mechanism; nil when there is none.
func (i *Image) ScramCredential(user string, mechanism int8) *metarecord.UserScramCredentialRecord {
	c, _ := i.scram.get(ScramID{user, mechanism})
	return c
}

// ScramCredentials are all SCRAM credentials, in no order.
func (i *Image) ScramCredentials() iter.Seq2[ScramID, *metarecord.UserScramCredentialRecord] {
	return i.scram.all()
}

// DelegationToken finds a token by its id; nil when there is none.
func (i *Image) DelegationToken(id string) *metarecord.DelegationTokenRecord {
	t, _ := i.tokens.get(id)
	return t
}

// DelegationTokens are all tokens by id, in no order.
func (i *Image) DelegationTokens() iter.Seq2[string, *metarecord.DelegationTokenRecord] {
	return i.tokens.all()
}

// ClientQuota gives the quotas of an entity by their keys; nil when there are none.
func (i *Image) ClientQuota(e QuotaEntity) map[string]float64 {
	q, _ := i.quotas.get(e)
	return q
}

// ClientQuotas are the quotas of all entities, in no order.
func (i *Image) ClientQuotas() iter.Seq2[QuotaEntity, map[string]float64] { return i.quotas.all() }

func searchBroker(brokers []*Broker, id int32) (int, bool) {
	return slices.BinarySearchFunc(brokers, id, func(b *Broker, id int32) int { return cmp.Compare(b.ID, id) })
}

func searchService(services []*Service, id ServiceID) (int, bool) {
	return slices.BinarySearchFunc(services, id, func(s *Service, id ServiceID) int {
		return cmp.Or(cmp.Compare(s.Kind, id.Kind), cmp.Compare(s.ID, id.ID))
	})
}

func searchController(controllers []*Controller, id int32) (int, bool) {
	return slices.BinarySearchFunc(controllers, id, func(c *Controller, id int32) int { return cmp.Compare(c.ID, id) })
}

// withElement gives a new sorted list in which e stands at the place that a search found, replacing what was there.
func withElement[E any](list []E, at int, found bool, e E) []E {
	if found {
		list = slices.Clone(list)
		list[at] = e
		return list
	}
	return slices.Insert(slices.Clip(list), at, e)
}

// withoutElement gives a new list without the element at a place that a search found.
func withoutElement[E any](list []E, at int) []E {
	return slices.Concat(list[:at], list[at+1:])
}
