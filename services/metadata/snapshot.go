package metadata

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

// Records are the records that make this image out of an empty one. Images with equal contents give equal records in
// the same order.
func (i *Image) Records() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		parts := []func() iter.Seq[metarecord.Record]{
			i.featureRecords, i.memberRecords, i.topicRecords, i.configRecords, i.quotaRecords, i.producerIDRecords,
			i.securityRecords, i.shardRecords,
		}
		for _, part := range parts {
			for r := range part() {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// metadataVersion is the feature that comes first in a snapshot, since it governs how the rest is read.
const metadataVersion = "metadata.version"

func (i *Image) featureRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		if level, ok := i.features[metadataVersion]; ok {
			if !yield(&metarecord.FeatureLevelRecord{Name: metadataVersion, FeatureLevel: level}) {
				return
			}
		}
		for _, name := range slices.Sorted(maps.Keys(i.features)) {
			if name != metadataVersion && !yield(&metarecord.FeatureLevelRecord{Name: name, FeatureLevel: i.features[name]}) {
				return
			}
		}
	}
}

func (i *Image) memberRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		for _, c := range i.controllers {
			r := &metarecord.RegisterControllerRecord{
				ControllerID: c.ID, IncarnationID: c.IncarnationID, EndPoints: recordEndpoints(c.Endpoints),
				Features: recordFeatures(c.SupportedFeatures),
			}
			if !yield(r) {
				return
			}
		}
		for _, b := range i.brokers {
			if !yield(b.record()) {
				return
			}
		}
		for _, s := range i.services {
			r := &metarecord.RegisterServiceRecord{
				Kind: int8(s.Kind), ID: s.ID, Epoch: s.Epoch, IncarnationID: s.IncarnationID,
				EndPoints: recordEndpoints(s.Endpoints), Rack: s.Rack, Version: s.Version, Fenced: s.Fenced,
			}
			if !yield(r) {
				return
			}
		}
	}
}

func recordEndpoints(es []Endpoint) []metarecord.Endpoint {
	if len(es) == 0 {
		return nil
	}
	out := make([]metarecord.Endpoint, len(es))
	for i, e := range es {
		out[i] = metarecord.Endpoint(e)
	}
	return out
}

func (b *Broker) record() *metarecord.RegisterBrokerRecord {
	return &metarecord.RegisterBrokerRecord{
		BrokerID: b.ID, IncarnationID: b.IncarnationID, BrokerEpoch: b.Epoch, EndPoints: recordEndpoints(b.Endpoints),
		Rack: b.Rack, Fenced: b.Fenced, InControlledShutdown: b.InControlledShutdown,
		LogDirs: b.Directories, CordonedLogDirs: b.CordonedDirectories,
		Features: recordFeatures(b.SupportedFeatures),
	}
}

func recordFeatures(ranges map[string]VersionRange) []metarecord.Feature {
	var features []metarecord.Feature
	for _, name := range slices.Sorted(maps.Keys(ranges)) {
		v := ranges[name]
		features = append(features, metarecord.Feature{Name: name, MinSupportedVersion: v.Min, MaxSupportedVersion: v.Max})
	}
	return features
}

func (i *Image) topicRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		topics := slices.SortedFunc(i.Topics(), func(a, b *Topic) int { return cmp.Compare(a.Name, b.Name) })
		for _, t := range topics {
			if !yield(&metarecord.TopicRecord{Name: t.Name, TopicID: t.ID}) {
				return
			}
			for n, p := range t.Partitions {
				if !yield(p.Record(t.ID, int32(n))) {
					return
				}
			}
		}
	}
}

// Record is the record that makes this partition. It shares the partition's lists.
func (p *Partition) Record(topic uuid.UUID, partition int32) *metarecord.PartitionRecord {
	r := &metarecord.PartitionRecord{
		PartitionID: partition, TopicID: topic, Replicas: p.Replicas, ISR: p.ISR, RemovingReplicas: p.RemovingReplicas,
		AddingReplicas: p.AddingReplicas, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Directories: p.Directories, EligibleLeaderReplicas: p.ELR, LastKnownELR: p.LastKnownELR,
	}
	if p.RecoveringUnclean {
		r.LeaderRecoveryState = metarecord.Recovering
	}
	return r
}

func (i *Image) configRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		resources := make([]ConfigResource, 0, i.configs.size)
		for r := range i.configs.all() {
			resources = append(resources, r)
		}
		slices.SortFunc(resources, func(a, b ConfigResource) int {
			return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
		})
		for _, r := range resources {
			config := i.Config(r.Type, r.Name)
			for _, name := range slices.Sorted(maps.Keys(config)) {
				value := config[name]
				record := &metarecord.ConfigRecord{ResourceType: int8(r.Type), ResourceName: r.Name, Name: name, Value: &value}
				if !yield(record) {
					return
				}
			}
		}
	}
}

func (i *Image) producerIDRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		if i.nextProducerID > 0 {
			yield(&metarecord.ProducerIDsRecord{BrokerID: -1, BrokerEpoch: -1, NextProducerID: i.nextProducerID})
		}
	}
}

func (i *Image) quotaRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		entities := make([]QuotaEntity, 0, i.quotas.size)
		for e := range i.quotas.all() {
			entities = append(entities, e)
		}
		slices.SortFunc(entities, compareEntities)
		for _, e := range entities {
			quotas := i.ClientQuota(e)
			for _, key := range slices.Sorted(maps.Keys(quotas)) {
				if !yield(&metarecord.ClientQuotaRecord{Entity: e.parts(), Key: key, Value: quotas[key]}) {
					return
				}
			}
		}
	}
}

func compareEntities(a, b QuotaEntity) int {
	name := func(a, b QuotaName) int {
		rank := func(n QuotaName) int {
			switch {
			case !n.Set:
				return 0
			case n.Default:
				return 1
			}
			return 2
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	}
	return cmp.Or(name(a.User, b.User), name(a.ClientID, b.ClientID), name(a.IP, b.IP))
}

// parts gives the entity as records and requests have it.
func (e QuotaEntity) parts() []metarecord.QuotaEntity {
	var parts []metarecord.QuotaEntity
	add := func(kind string, n QuotaName) {
		if !n.Set {
			return
		}
		p := metarecord.QuotaEntity{Type: kind}
		if !n.Default {
			p.Name = &n.Name
		}
		parts = append(parts, p)
	}
	add(quotaUser, e.User)
	add(quotaClientID, e.ClientID)
	add(quotaIP, e.IP)
	return parts
}

func (i *Image) securityRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		byID := func(a, b *metarecord.AccessControlEntryRecord) int { return slices.Compare(a.ID[:], b.ID[:]) }
		for _, a := range slices.SortedFunc(i.ACLs(), byID) {
			if !yield(a) {
				return
			}
		}
		credentials := make([]*metarecord.UserScramCredentialRecord, 0, i.scram.size)
		for _, c := range i.scram.all() {
			credentials = append(credentials, c)
		}
		slices.SortFunc(credentials, func(a, b *metarecord.UserScramCredentialRecord) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Mechanism, b.Mechanism))
		})
		for _, c := range credentials {
			if !yield(c) {
				return
			}
		}
		tokens := make([]*metarecord.DelegationTokenRecord, 0, i.tokens.size)
		for _, t := range i.tokens.all() {
			tokens = append(tokens, t)
		}
		slices.SortFunc(tokens, func(a, b *metarecord.DelegationTokenRecord) int { return cmp.Compare(a.TokenID, b.TokenID) })
		for _, t := range tokens {
			if !yield(t) {
				return
			}
		}
	}
}

func (i *Image) shardRecords() iter.Seq[metarecord.Record] {
	return func(yield func(metarecord.Record) bool) {
		ids := slices.SortedFunc(maps.Keys(i.shards), func(a, b ShardID) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Shard, b.Shard))
		})
		for _, id := range ids {
			s := i.shards[id]
			if !yield(&metarecord.ShardRecord{Kind: int8(id.Kind), Shard: id.Shard, Owner: s.Owner, Epoch: s.Epoch}) {
				return
			}
		}
	}
}
