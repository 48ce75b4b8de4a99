package metadata

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

// ErrReplay says that a record does not fit the image: the log and the image have parted, which only a new snapshot
// cures.
var ErrReplay = errors.New("metadata record does not fit the image")

// Delta is what some records changed: the image before, the image after, and the differences.
//
// It belongs to one goroutine until Image or one of the differences is asked for; from then on it is immutable.
type Delta struct {
	base *Image
	next *Image

	topics  shardMapEditor[uuid.UUID, *Topic]
	names   shardMapEditor[string, uuid.UUID]
	configs shardMapEditor[ConfigResource, map[string]string]
	acls    shardMapEditor[uuid.UUID, *metarecord.AccessControlEntryRecord]
	scram   shardMapEditor[ScramID, *metarecord.UserScramCredentialRecord]
	tokens  shardMapEditor[string, *metarecord.DelegationTokenRecord]
	quotas  shardMapEditor[QuotaEntity, map[string]float64]

	// What was touched; whether it really changed is seen by comparing base and next.
	touchedTopics  map[uuid.UUID]struct{}
	touchedConfigs map[ConfigResource]struct{}
	touchedACLs    map[uuid.UUID]struct{}
	touchedScram   map[ScramID]struct{}
	touchedTokens  map[string]struct{}
	touchedQuotas  map[QuotaEntity]struct{}

	// ownedTopics are the topics whose structs this delta made and may change in place; likewise for the maps of configs
	// and quotas. An entry goes when the thing is deleted.
	ownedTopics  map[uuid.UUID]struct{}
	ownedConfigs map[ConfigResource]struct{}
	ownedQuotas  map[QuotaEntity]struct{}
	// The small maps of next are copied at their first change.
	ownsShards, ownsFeatures bool
	sealed                   bool
	// growth bounds how far beyond its end a topic's list of partitions may grow in one Apply, by the number of its
	// records, so that a broken partition number cannot claim memory.
	growth int
}

// NewDelta begins a delta that has changed nothing.
func NewDelta(base *Image) *Delta {
	next := *base
	d := &Delta{
		base: base, next: &next,
		touchedTopics:  make(map[uuid.UUID]struct{}),
		touchedConfigs: make(map[ConfigResource]struct{}),
	}
	d.topics.shardMap = base.topics
	d.names.shardMap = base.names
	d.configs.shardMap = base.configs
	d.acls.shardMap = base.acls
	d.scram.shardMap = base.scram
	d.tokens.shardMap = base.tokens
	d.quotas.shardMap = base.quotas
	return d
}

// Apply gives the delta from this image to the one after some records, the last of which is at offset.
func (i *Image) Apply(offset int64, epoch int32, records ...metarecord.Record) (*Delta, error) {
	d := NewDelta(i)
	if err := d.Apply(offset, epoch, records...); err != nil {
		return nil, err
	}
	d.Image()
	return d, nil
}

// Apply changes the image by the records of a batch, the last of which is at offset. After an error the delta is of no
// more use.
func (d *Delta) Apply(offset int64, epoch int32, records ...metarecord.Record) error {
	if d.sealed {
		return errors.New("metadata: a delta cannot change after its image was taken")
	}
	d.growth = len(records)
	for n, r := range records {
		if err := d.replay(r); err != nil {
			return fmt.Errorf("%w: %s, record %d of %d in the batch that ends at offset %d: %w",
				ErrReplay, r.RecordType(), n+1, len(records), offset, err)
		}
	}
	if err := d.checkPartitions(records); err != nil {
		return fmt.Errorf("%w: batch that ends at offset %d: %w", ErrReplay, offset, err)
	}
	d.next.offset, d.next.epoch = offset, epoch
	return nil
}

// checkPartitions makes sure that topics have partitions 0 to n-1 after a batch, in whatever order they came.
func (d *Delta) checkPartitions(records []metarecord.Record) error {
	for _, r := range records {
		p, ok := r.(*metarecord.PartitionRecord)
		if !ok {
			continue
		}
		t, ok := d.topics.get(p.TopicID)
		if !ok {
			continue // Created and deleted in one batch.
		}
		if n := slices.Index(t.Partitions, nil); n >= 0 {
			return fmt.Errorf("topic %s has partition %d but no partition %d", t.Name, p.PartitionID, n)
		}
	}
	return nil
}

// Image is the image after the changes. The delta cannot change any more after this call.
func (d *Delta) Image() *Image {
	if !d.sealed {
		d.sealed = true
		n := d.next
		n.topics, n.names, n.configs = d.topics.shardMap, d.names.shardMap, d.configs.shardMap
		n.acls, n.scram, n.tokens, n.quotas = d.acls.shardMap, d.scram.shardMap, d.tokens.shardMap, d.quotas.shardMap
	}
	return d.next
}

// Base is the image before the changes.
func (d *Delta) Base() *Image { return d.base }

// TopicChange is a topic that was created (Old is nil), deleted (New is nil) or changed.
type TopicChange struct {
	Old, New *Topic
}

// PartitionChange is a partition that was created (Old is nil), deleted (New is nil) or changed.
type PartitionChange struct {
	Partition int32
	Old, New  *Partition
}

// ID is the topic's id.
func (c TopicChange) ID() uuid.UUID {
	if c.New != nil {
		return c.New.ID
	}
	return c.Old.ID
}

// Name is the topic's name.
func (c TopicChange) Name() string {
	if c.New != nil {
		return c.New.Name
	}
	return c.Old.Name
}

// Partitions are the partitions that differ, in their order.
func (c TopicChange) Partitions() iter.Seq[PartitionChange] {
	return func(yield func(PartitionChange) bool) {
		n := 0
		if c.Old != nil {
			n = len(c.Old.Partitions)
		}
		if c.New != nil {
			n = max(n, len(c.New.Partitions))
		}
		for p := range int32(n) {
			before, after := c.Old.partition(p), c.New.partition(p)
			if before != after && !yield(PartitionChange{p, before, after}) {
				return
			}
		}
	}
}

// Topics are the topics that were created, deleted or changed; the deleted ones come first, since a new topic may have
// the name of a deleted one.
func (d *Delta) Topics() iter.Seq[TopicChange] {
	return func(yield func(TopicChange) bool) {
		for id := range d.touchedTopics {
			if before := d.base.Topic(id); before != nil && d.Image().Topic(id) == nil && !yield(TopicChange{Old: before}) {
				return
			}
		}
		for id := range d.touchedTopics {
			after := d.Image().Topic(id)
			if before := d.base.Topic(id); after != nil && after != before && !yield(TopicChange{before, after}) {
				return
			}
		}
	}
}

// Change is a thing that was created (Old is nil), deleted (New is nil) or changed.
type Change[T any] struct {
	Old, New *T
}

// Brokers are the storage nodes that were registered, unregistered or changed, in the order of their ids.
func (d *Delta) Brokers() iter.Seq[Change[Broker]] {
	return changes(d.base.brokers, d.Image().brokers, func(list []*Broker, b *Broker) (int, bool) { return searchBroker(list, b.ID) })
}

// Services are the members that Kafka does not know and that were registered, unregistered or changed.
func (d *Delta) Services() iter.Seq[Change[Service]] {
	return changes(d.base.services, d.Image().services, func(list []*Service, s *Service) (int, bool) {
		return searchService(list, ServiceID{s.Kind, s.ID})
	})
}

// Controllers are the controllers that were registered, unregistered or changed.
func (d *Delta) Controllers() iter.Seq[Change[Controller]] {
	return changes(d.base.controllers, d.Image().controllers, func(list []*Controller, c *Controller) (int, bool) {
		return searchController(list, c.ID)
	})
}

// changes compares two sorted lists by their pointers: first what is new or changed, then what is gone.
func changes[T any](before, after []*T, search func([]*T, *T) (int, bool)) iter.Seq[Change[T]] {
	return func(yield func(Change[T]) bool) {
		for _, n := range after {
			var old *T
			if at, ok := search(before, n); ok {
				old = before[at]
			}
			if old != n && !yield(Change[T]{old, n}) {
				return
			}
		}
		for _, old := range before {
			if _, ok := search(after, old); !ok && !yield(Change[T]{Old: old}) {
				return
			}
		}
	}
}

// Shards are the coordinator shards whose owner or epoch changed, with what they are now, in no order.
func (d *Delta) Shards() iter.Seq2[ShardID, Shard] {
	return func(yield func(ShardID, Shard) bool) {
		for id, s := range d.Image().shards {
			if before, ok := d.base.shards[id]; (!ok || before != s) && !yield(id, s) {
				return
			}
		}
		for id := range d.base.shards {
			if _, ok := d.Image().shards[id]; !ok && !yield(id, Shard{Owner: -1}) {
				return
			}
		}
	}
}

// Configs are the resources whose dynamic configs changed, in no order. Those of a deleted topic are among them.
func (d *Delta) Configs() iter.Seq[ConfigResource] {
	return func(yield func(ConfigResource) bool) {
		for r := range d.touchedConfigs {
			if !maps.Equal(d.base.Config(r.Type, r.Name), d.Image().Config(r.Type, r.Name)) && !yield(r) {
				return
			}
		}
	}
}

// FeaturesChanged says whether the level of a feature changed.
func (d *Delta) FeaturesChanged() bool { return !maps.Equal(d.base.features, d.Image().features) }

// ACLs are the access rules that were added, removed or changed, in no order.
func (d *Delta) ACLs() iter.Seq[Change[metarecord.AccessControlEntryRecord]] {
	return touchedChanges(d.touchedACLs, d.base.ACL, d.Image().ACL)
}

// ScramCredentials are the credentials that were added, removed or changed, in no order.
func (d *Delta) ScramCredentials() iter.Seq[Change[metarecord.UserScramCredentialRecord]] {
	in := func(i *Image) func(ScramID) *metarecord.UserScramCredentialRecord {
		return func(id ScramID) *metarecord.UserScramCredentialRecord {
			return i.ScramCredential(id.User, id.Mechanism)
		}
	}
	return touchedChanges(d.touchedScram, in(d.base), in(d.Image()))
}

// DelegationTokens are the tokens that were added, removed or changed, in no order.
func (d *Delta) DelegationTokens() iter.Seq[Change[metarecord.DelegationTokenRecord]] {
	return touchedChanges(d.touchedTokens, d.base.DelegationToken, d.Image().DelegationToken)
}

func touchedChanges[K comparable, T any](touched map[K]struct{}, before, after func(K) *T) iter.Seq[Change[T]] {
	return func(yield func(Change[T]) bool) {
		for k := range touched {
			if b, a := before(k), after(k); b != a && !yield(Change[T]{b, a}) {
				return
			}
		}
	}
}

// ClientQuotas are the entities whose quotas changed, in no order.
func (d *Delta) ClientQuotas() iter.Seq[QuotaEntity] {
	return func(yield func(QuotaEntity) bool) {
		for e := range d.touchedQuotas {
			if !maps.Equal(d.base.ClientQuota(e), d.Image().ClientQuota(e)) && !yield(e) {
				return
			}
		}
	}
}
