package control

import (
	"maps"
	"slices"
	"time"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// forgottenAfter is how many session time-outs a fenced service may be silent before its registration goes: instances come
// and go, and most never return under the same id.
const forgottenAfter = 10

// RegisterService makes a gateway, coordinator or tiering instance a member.
func (m *Manager) RegisterService(req *controllerv1.RegisterServiceRequest) (Decision, error) {
	kind := metadata.ServiceKind(req.GetKind())
	if !slices.Contains(serviceKinds(), kind) {
		return Decision{}, errcode.InvalidRequest.Errorf("no service of kind %d can register", req.GetKind())
	}
	incarnation, ok := uuid.FromBytes(req.GetIncarnationId())
	if !ok || incarnation.IsZero() {
		return Decision{}, errcode.InvalidRequest.Errorf("an incarnation id has 16 bytes")
	}
	if req.GetClusterId() != "" && req.GetClusterId() != m.image.ClusterID() {
		return Decision{}, errcode.InconsistentClusterId.Errorf("Expected cluster ID %s, but got cluster ID %s",
			m.image.ClusterID(), req.GetClusterId())
	}
	old := m.image.Service(kind, req.GetId())
	if old != nil && old.IncarnationID != incarnation && m.alive(memberKey{kind, old.ID}, old.Epoch) {
		return Decision{}, errcode.DuplicateBrokerRegistration.Errorf("another instance of this kind is registered with id %d", old.ID)
	}
	record := &metarecord.RegisterServiceRecord{
		Kind: int8(kind), ID: req.GetId(), Epoch: m.next, IncarnationID: incarnation, Version: req.GetVersion(), Fenced: true,
	}
	if req.GetRack() != "" {
		rack := req.GetRack()
		record.Rack = &rack
	}
	for _, e := range req.GetEndpoints() {
		if e.GetPort() > 65535 {
			return Decision{}, errcode.InvalidRequest.Errorf("%d is no port", e.GetPort())
		}
		record.EndPoints = append(record.EndPoints, metarecord.Endpoint{
			Name: e.GetName(), Host: e.GetHost(), Port: uint16(e.GetPort()), SecurityProtocol: securityProtocol(e.GetSecurityProtocol()),
		})
	}
	if old != nil && old.IncarnationID == incarnation {
		// The answer to an earlier attempt was lost, or its endpoints have changed: it stays the same member.
		record.Epoch, record.Fenced = old.Epoch, old.Fenced
		if s := m.sessions[memberKey{kind, old.ID}]; s != nil {
			s.heard, s.registered = m.now, m.next
		}
	}
	m.logger.Info("registering a service", "kind", req.GetKind().String(), "id", req.GetId(), "epoch", record.Epoch)
	records := []metarecord.Record{record}
	if old != nil && !old.Fenced && record.Fenced {
		records = append(records, m.moveShards(kind, old.ID)...)
	}
	return Decision{Records: records, Reply: &controllerv1.RegisterServiceResponse{Epoch: record.Epoch}}, nil
}

// securityProtocol is Kafka's number of a security protocol.
func securityProtocol(name string) int16 {
	return max(int16(slices.Index([]string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}, name)), 0)
}

// ServiceHeartbeat keeps a service alive, lets it in when it has caught up, and lets it go when it wants to.
func (m *Manager) ServiceHeartbeat(req *controllerv1.ServiceHeartbeatRequest) (Decision, error) {
	kind := metadata.ServiceKind(req.GetKind())
	service := m.image.Service(kind, req.GetId())
	if service == nil {
		return Decision{}, errcode.BrokerIdNotRegistered.Errorf("no instance of this kind is registered with id %d", req.GetId())
	}
	if service.Epoch != req.GetEpoch() {
		return Decision{}, errcode.StaleBrokerEpoch.Errorf("Expected epoch %d, but got epoch %d", service.Epoch, req.GetEpoch())
	}
	s := m.sessions[memberKey{kind, service.ID}]
	s.heard = m.now
	s.applied = max(s.applied, req.GetAppliedOffset())
	if req.GetWantShutdown() {
		return m.releaseService(service, s), nil
	}
	d := Decision{Reply: &controllerv1.ServiceHeartbeatResponse{Fenced: service.Fenced}}
	if service.Fenced && req.GetAppliedOffset() >= s.registered {
		m.logger.Info("unfencing a service", "kind", kind, "id", service.ID)
		d.Records = append(d.Records, &metarecord.ServiceChangeRecord{Kind: int8(kind), ID: service.ID, Epoch: service.Epoch})
		d.Reply = &controllerv1.ServiceHeartbeatResponse{}
	}
	return d, nil
}

// releaseService lets a service go: first its shards move to others, then its registration ends.
func (m *Manager) releaseService(service *metadata.Service, s *session) Decision {
	if !s.draining {
		s.draining = true
		m.logger.Info("a service is leaving", "kind", service.Kind, "id", service.ID)
		if records := m.moveShards(service.Kind, service.ID); len(records) > 0 {
			return Decision{Records: records, Reply: &controllerv1.ServiceHeartbeatResponse{Fenced: service.Fenced}}
		}
	}
	return Decision{
		Records: []metarecord.Record{&metarecord.UnregisterServiceRecord{Kind: int8(service.Kind), ID: service.ID, Epoch: service.Epoch}},
		Reply:   &controllerv1.ServiceHeartbeatResponse{Fenced: true, ShouldShutdown: true},
	}
}

// fenceService gives the records for a service that is silent: it is fenced first, and forgotten much later.
func (m *Manager) fenceService(key memberKey, s *session, silent time.Duration) []metarecord.Record {
	service := m.image.Service(key.kind, key.id)
	switch {
	case service == nil || service.Epoch != s.epoch:
		return nil
	case !service.Fenced:
		m.logger.Warn("fencing a service that is silent", "kind", key.kind, "id", key.id, "silent", silent)
		fence := &metarecord.ServiceChangeRecord{Kind: int8(key.kind), ID: key.id, Epoch: service.Epoch, Fenced: true}
		return append([]metarecord.Record{fence}, m.moveShards(key.kind, key.id)...)
	case silent > forgottenAfter*m.settings.SessionTimeout:
		return []metarecord.Record{&metarecord.UnregisterServiceRecord{Kind: int8(key.kind), ID: key.id, Epoch: service.Epoch}}
	}
	return nil
}

// liveOwners are the instances of a kind that can own shards.
func (m *Manager) liveOwners(kind metadata.ServiceKind) []int32 {
	var live []int32
	for _, c := range m.image.Services(kind) {
		if s := m.sessions[memberKey{c.Kind, c.ID}]; !c.Fenced && (s == nil || !s.draining) {
			live = append(live, c.ID)
		}
	}
	return live
}

// moveShards gives the records by which the shards of an instance that goes find other owners.
func (m *Manager) moveShards(kind metadata.ServiceKind, id int32) []metarecord.Record {
	live := slices.DeleteFunc(m.liveOwners(kind), func(c int32) bool { return c == id })
	return m.assignShards(kind, live)
}

// ShardsChanged says whether members or topics have changed since AssignShards, so that it has work.
func (m *Manager) ShardsChanged() bool { return m.shardsChanged }

// AssignShards gives every shard an owner that is alive, and every owner its share.
func (m *Manager) AssignShards() Decision {
	m.shardsChanged = false
	var records []metarecord.Record
	for _, kind := range []metadata.ServiceKind{metadata.Coordinator, metadata.Tiering} {
		records = append(records, m.assignShards(kind, m.liveOwners(kind))...)
	}
	return Decision{Records: records}
}

func isShardTopic(name string) bool {
	for _, topic := range shardTopics() {
		if topic == name {
			return true
		}
	}
	return false
}

// shardTopics are the topics whose partitions are shards.
func shardTopics() map[metadata.ShardKind]string {
	return map[metadata.ShardKind]string{
		metadata.GroupShard:       "__consumer_offsets",
		metadata.TransactionShard: "__transaction_state",
		metadata.ShareShard:       "__share_group_state",
		metadata.RemoteLogShard:   "__remote_log_metadata",
	}
}

// assignShards shares out the shards that services of a kind own.
func (m *Manager) assignShards(owners metadata.ServiceKind, live []int32) []metarecord.Record {
	var records []metarecord.Record
	topics := shardTopics()
	for _, kind := range slices.Sorted(maps.Keys(topics)) {
		if kind.Owner() == owners {
			records = append(records, m.assignKind(kind, m.image.TopicByName(topics[kind]), live)...)
		}
	}
	return records
}

// assignKind shares out the shards of one kind: those without a live owner go to who has the fewest, then as few as possible
// move until nobody has two more than another. The shards of a topic that is gone lose their owners.
func (m *Manager) assignKind(kind metadata.ShardKind, topic *metadata.Topic, live []int32) []metarecord.Record {
	owners := map[int32]int32{}
	held := map[int32][]int32{}
	for _, id := range live {
		held[id] = nil
	}
	count := 0
	if topic != nil {
		count = len(topic.Partitions)
	}
	var orphans []int32
	for shard := range int32(count) {
		owner := m.image.Shard(kind, shard).Owner
		if _, ok := held[owner]; ok {
			held[owner] = append(held[owner], shard)
		} else {
			orphans = append(orphans, shard)
		}
	}
	give := func(shard, to int32) {
		owners[shard] = to
		held[to] = append(held[to], shard)
	}
	for _, shard := range orphans {
		if len(live) == 0 {
			owners[shard] = -1
			continue
		}
		give(shard, fewest(live, held))
	}
	for len(live) > 1 {
		from, to := most(live, held), fewest(live, held)
		if len(held[from])-len(held[to]) < 2 {
			break
		}
		last := len(held[from]) - 1
		shard := held[from][last]
		held[from] = held[from][:last]
		give(shard, to)
	}
	return m.shardRecords(kind, int32(count), owners)
}

func fewest(live []int32, held map[int32][]int32) int32 {
	return slices.MinFunc(live, func(a, b int32) int { return len(held[a]) - len(held[b]) })
}

func most(live []int32, held map[int32][]int32) int32 {
	return slices.MaxFunc(live, func(a, b int32) int { return len(held[a]) - len(held[b]) })
}

// shardRecords gives the records for new owners. Each change of the owner raises the epoch, by which storage nodes know the
// old owner's writes.
func (m *Manager) shardRecords(kind metadata.ShardKind, count int32, owners map[int32]int32) []metarecord.Record {
	var records []metarecord.Record
	for shard := range count {
		owner, ok := owners[shard]
		now := m.image.Shard(kind, shard)
		if !ok || owner == now.Owner {
			continue
		}
		records = append(records, &metarecord.ShardRecord{Kind: int8(kind), Shard: shard, Owner: owner, Epoch: now.Epoch + 1})
	}
	// A topic that was deleted, or made again with fewer partitions, leaves shards behind.
	for id, s := range m.image.Shards() {
		if id.Kind == kind && id.Shard >= count && s.Owner >= 0 {
			records = append(records, &metarecord.ShardRecord{Kind: int8(kind), Shard: id.Shard, Owner: -1, Epoch: s.Epoch + 1})
		}
	}
	return records
}
