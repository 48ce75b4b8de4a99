package metadata

import (
	"fmt"
	"maps"
	"slices"

	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
)

// replay changes the image under construction by one record, as Kafka's images do.
func (d *Delta) replay(r metarecord.Record) error {
	switch r := r.(type) {
	case *metarecord.TopicRecord:
		return d.replayTopic(r)
	case *metarecord.RemoveTopicRecord:
		return d.replayRemoveTopic(r)
	case *metarecord.PartitionRecord:
		return d.replayPartition(r)
	case *metarecord.PartitionChangeRecord:
		return d.replayPartitionChange(r)
	case *metarecord.ClearElrRecord:
		return d.replayClearElr(r)
	case *metarecord.ConfigRecord:
		d.replayConfig(r)
	case *metarecord.FeatureLevelRecord:
		d.replayFeatureLevel(r)
	case *metarecord.ProducerIDsRecord:
		d.next.nextProducerID = r.NextProducerID
	case *metarecord.NoOpRecord, *metarecord.ZkMigrationStateRecord:
	case *metarecord.BeginTransactionRecord, *metarecord.EndTransactionRecord, *metarecord.AbortTransactionRecord:
		// The loader gives these their meaning; here they only move the offset.
	default:
		if known, err := d.replayMember(r); known {
			return err
		}
		return d.replaySecurity(r)
	}
	return nil
}

// replayMember changes registrations and shards. It says false for other records.
func (d *Delta) replayMember(r metarecord.Record) (known bool, err error) {
	switch r := r.(type) {
	case *metarecord.RegisterBrokerRecord:
		d.replayRegisterBroker(r)
	case *metarecord.UnregisterBrokerRecord:
		if at, ok := searchBroker(d.next.brokers, r.BrokerID); ok {
			d.next.brokers = withoutElement(d.next.brokers, at)
		}
	case *metarecord.FenceBrokerRecord:
		return true, d.changeBroker(r.ID, r.Epoch, func(b *Broker) { b.Fenced = true })
	case *metarecord.UnfenceBrokerRecord:
		return true, d.changeBroker(r.ID, r.Epoch, func(b *Broker) { b.Fenced = false })
	case *metarecord.BrokerRegistrationChangeRecord:
		return true, d.replayBrokerRegistrationChange(r)
	case *metarecord.RegisterControllerRecord:
		at, found := searchController(d.next.controllers, r.ControllerID)
		d.next.controllers = withElement(d.next.controllers, at, found, &Controller{
			ID: r.ControllerID, IncarnationID: r.IncarnationID, Endpoints: endpoints(r.EndPoints),
			SupportedFeatures: features(r.Features),
		})
	case *metarecord.UnregisterControllerRecord:
		if at, ok := searchController(d.next.controllers, r.ControllerID); ok {
			d.next.controllers = withoutElement(d.next.controllers, at)
		}
	case *metarecord.RegisterServiceRecord:
		at, found := searchService(d.next.services, ServiceID{ServiceKind(r.Kind), r.ID})
		d.next.services = withElement(d.next.services, at, found, &Service{
			Kind: ServiceKind(r.Kind), ID: r.ID, Epoch: r.Epoch, IncarnationID: r.IncarnationID,
			Endpoints: endpoints(r.EndPoints), Rack: r.Rack, Fenced: r.Fenced, Version: r.Version,
		})
	case *metarecord.ServiceChangeRecord:
		return true, d.replayServiceChange(r)
	case *metarecord.UnregisterServiceRecord:
		if at, ok := searchService(d.next.services, ServiceID{ServiceKind(r.Kind), r.ID}); ok {
			d.next.services = withoutElement(d.next.services, at)
		}
	case *metarecord.ShardRecord:
		if !d.ownsShards {
			d.ownsShards = true
			d.next.shards = maps.Clone(d.next.shards)
			if d.next.shards == nil {
				d.next.shards = make(map[ShardID]Shard)
			}
		}
		d.next.shards[ShardID{ShardKind(r.Kind), r.Shard}] = Shard{Owner: r.Owner, Epoch: r.Epoch}
	default:
		return false, nil
	}
	return true, nil
}

func endpoints(es []metarecord.Endpoint) []Endpoint {
	if len(es) == 0 {
		return nil
	}
	out := make([]Endpoint, len(es))
	for i, e := range es {
		out[i] = Endpoint(e)
	}
	return out
}

func features(fs []metarecord.Feature) map[string]VersionRange {
	ranges := make(map[string]VersionRange, len(fs))
	for _, f := range fs {
		ranges[f.Name] = VersionRange{Min: f.MinSupportedVersion, Max: f.MaxSupportedVersion}
	}
	return ranges
}

func (d *Delta) replayRegisterBroker(r *metarecord.RegisterBrokerRecord) {
	b := &Broker{
		ID: r.BrokerID, Epoch: r.BrokerEpoch, IncarnationID: r.IncarnationID, Endpoints: endpoints(r.EndPoints),
		Rack: r.Rack, Fenced: r.Fenced, InControlledShutdown: r.InControlledShutdown,
		Directories: sortedIDs(r.LogDirs), CordonedDirectories: r.CordonedLogDirs, SupportedFeatures: features(r.Features),
	}
	at, found := searchBroker(d.next.brokers, b.ID)
	d.next.brokers = withElement(d.next.brokers, at, found, b)
}

// sortedIDs gives a sorted copy, so that registrations with the same directories are equal.
func sortedIDs(ids []uuid.UUID) []uuid.UUID {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

func (d *Delta) replayBrokerRegistrationChange(r *metarecord.BrokerRegistrationChangeRecord) error {
	if r.Fenced < metarecord.FencedUnfence || r.Fenced > metarecord.FencedFence {
		return fmt.Errorf("unknown value %d of fenced", r.Fenced)
	}
	if r.InControlledShutdown != metarecord.ControlledShutdownNoChange &&
		r.InControlledShutdown != metarecord.ControlledShutdownEnter {
		return fmt.Errorf("unknown value %d of in controlled shutdown", r.InControlledShutdown)
	}
	return d.changeBroker(r.BrokerID, r.BrokerEpoch, func(b *Broker) {
		if r.Fenced != metarecord.FencedNoChange {
			b.Fenced = r.Fenced == metarecord.FencedFence
		}
		if r.InControlledShutdown == metarecord.ControlledShutdownEnter {
			b.InControlledShutdown = true
		}
		if len(r.LogDirs) > 0 {
			b.Directories = sortedIDs(r.LogDirs)
		}
		if r.CordonedLogDirs != nil {
			b.CordonedDirectories = r.CordonedLogDirs
		}
	})
}

func (d *Delta) changeBroker(id int32, epoch int64, change func(*Broker)) error {
	at, found := searchBroker(d.next.brokers, id)
	if !found {
		return fmt.Errorf("broker %d is not registered", id)
	}
	b := *d.next.brokers[at]
	if b.Epoch != epoch {
		return fmt.Errorf("broker %d is registered with epoch %d, not %d", id, b.Epoch, epoch)
	}
	change(&b)
	d.next.brokers = withElement(d.next.brokers, at, true, &b)
	return nil
}

func (d *Delta) replayServiceChange(r *metarecord.ServiceChangeRecord) error {
	at, found := searchService(d.next.services, ServiceID{ServiceKind(r.Kind), r.ID})
	if !found {
		return fmt.Errorf("service %d of kind %d is not registered", r.ID, r.Kind)
	}
	s := *d.next.services[at]
	if s.Epoch != r.Epoch {
		return fmt.Errorf("service %d of kind %d is registered with epoch %d, not %d", r.ID, r.Kind, s.Epoch, r.Epoch)
	}
	s.Fenced = r.Fenced
	d.next.services = withElement(d.next.services, at, true, &s)
	return nil
}

func (d *Delta) replayConfig(r *metarecord.ConfigRecord) {
	resource := ConfigResource{ResourceType(r.ResourceType), r.ResourceName}
	config := d.ownConfig(resource)
	if r.Value == nil {
		delete(config, r.Name)
	} else {
		config[r.Name] = *r.Value
	}
	if len(config) == 0 {
		d.removeConfig(resource)
	}
}

// ownConfig gives the configs of a resource, which this delta may change.
func (d *Delta) ownConfig(r ConfigResource) map[string]string {
	config, _ := d.configs.get(r)
	if _, owned := d.ownedConfigs[r]; owned {
		return config
	}
	config = maps.Clone(config)
	if config == nil {
		config = make(map[string]string)
	}
	d.configs.set(r, config)
	mark(&d.ownedConfigs, r)
	d.touchedConfigs[r] = struct{}{}
	return config
}

func (d *Delta) removeConfig(r ConfigResource) {
	if _, ok := d.configs.get(r); !ok {
		return
	}
	d.configs.remove(r)
	delete(d.ownedConfigs, r)
	d.touchedConfigs[r] = struct{}{}
}

// mark adds to a set that is made at its first use.
func mark[K comparable](set *map[K]struct{}, k K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[k] = struct{}{}
}

func (d *Delta) replayFeatureLevel(r *metarecord.FeatureLevelRecord) {
	if !d.ownsFeatures {
		d.ownsFeatures = true
		d.next.features = maps.Clone(d.next.features)
		if d.next.features == nil {
			d.next.features = make(map[string]int16)
		}
	}
	if r.FeatureLevel == 0 {
		delete(d.next.features, r.Name)
	} else {
		d.next.features[r.Name] = r.FeatureLevel
	}
}

// replaySecurity changes access rules, credentials, tokens and quotas.
func (d *Delta) replaySecurity(r metarecord.Record) error {
	switch r := r.(type) {
	case *metarecord.AccessControlEntryRecord:
		d.acls.set(r.ID, r)
		mark(&d.touchedACLs, r.ID)
	case *metarecord.RemoveAccessControlEntryRecord:
		if _, ok := d.acls.get(r.ID); !ok {
			return fmt.Errorf("there is no access rule %s", r.ID)
		}
		d.acls.remove(r.ID)
		mark(&d.touchedACLs, r.ID)
	case *metarecord.UserScramCredentialRecord:
		id := ScramID{r.Name, r.Mechanism}
		d.scram.set(id, r)
		mark(&d.touchedScram, id)
	case *metarecord.RemoveUserScramCredentialRecord:
		id := ScramID{r.Name, r.Mechanism}
		if _, ok := d.scram.get(id); !ok {
			return fmt.Errorf("user %s has no credential for mechanism %d", r.Name, r.Mechanism)
		}
		d.scram.remove(id)
		mark(&d.touchedScram, id)
	case *metarecord.DelegationTokenRecord:
		d.tokens.set(r.TokenID, r)
		mark(&d.touchedTokens, r.TokenID)
	case *metarecord.RemoveDelegationTokenRecord:
		d.tokens.remove(r.TokenID)
		mark(&d.touchedTokens, r.TokenID)
	case *metarecord.ClientQuotaRecord:
		return d.replayClientQuota(r)
	default:
		return fmt.Errorf("no rule for this record")
	}
	return nil
}

func (d *Delta) replayClientQuota(r *metarecord.ClientQuotaRecord) error {
	entity, err := quotaEntity(r.Entity)
	if err != nil {
		return err
	}
	quotas, _ := d.quotas.get(entity)
	if _, owned := d.ownedQuotas[entity]; !owned {
		quotas = maps.Clone(quotas)
		if quotas == nil {
			quotas = make(map[string]float64)
		}
		d.quotas.set(entity, quotas)
		mark(&d.ownedQuotas, entity)
		mark(&d.touchedQuotas, entity)
	}
	if r.Remove {
		delete(quotas, r.Key)
	} else {
		quotas[r.Key] = r.Value
	}
	if len(quotas) == 0 {
		d.quotas.remove(entity)
		delete(d.ownedQuotas, entity)
	}
	return nil
}

// The types of quota entities.
const (
	quotaUser     = "user"
	quotaClientID = "client-id"
	quotaIP       = "ip"
)

func quotaEntity(parts []metarecord.QuotaEntity) (QuotaEntity, error) {
	var e QuotaEntity
	for _, p := range parts {
		name := QuotaName{Set: true, Default: p.Name == nil}
		if p.Name != nil {
			name.Name = *p.Name
		}
		switch p.Type {
		case quotaUser:
			e.User = name
		case quotaClientID:
			e.ClientID = name
		case quotaIP:
			e.IP = name
		default:
			return e, fmt.Errorf("unknown quota entity type %q", p.Type)
		}
	}
	return e, nil
}
