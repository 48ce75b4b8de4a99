package control

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// maxPartitionsPerRequest is how many partitions one request may make.
const maxPartitionsPerRequest = 10_000

// CreateTopics makes topics. Each topic has its own result; those that can be made are made together.
func (m *Manager) CreateTopics(req *kmsg.CreateTopicsRequest) Decision {
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.Version = req.Version
	if err := m.checkPartitionCount(req); err != nil {
		return m.refuseTopics(req, resp, err)
	}
	var d Decision
	counts := map[string]int{}
	for i := range req.Topics {
		counts[req.Topics[i].Topic]++
	}
	planned := map[string]string{}
	for i := range req.Topics {
		t := &req.Topics[i]
		if counts[t.Topic] > 1 || t.Topic == clusterMetadata {
			continue
		}
		result, records, err := m.createTopic(t, planned)
		if err != nil {
			resp.Topics = append(resp.Topics, failedTopic(t.Topic, err))
			continue
		}
		resp.Topics = append(resp.Topics, result)
		d.Records = append(d.Records, records...)
	}
	resp.Topics = append(resp.Topics, refusedNames(req, counts)...)
	if err := tooMany(d.Records); err != nil {
		return m.refuseTopics(req, resp, err)
	}
	d.Reply, d.Atomic = resp, true
	if req.ValidateOnly {
		d.Records = nil
	}
	d.Leaders = leadersOf(d.Records)
	return d
}

// refusedNames are the results of topics that are named twice or that nobody can make.
func refusedNames(req *kmsg.CreateTopicsRequest, counts map[string]int) []kmsg.CreateTopicsResponseTopic {
	var results []kmsg.CreateTopicsResponseTopic
	told := map[string]bool{}
	for i := range req.Topics {
		name := req.Topics[i].Topic
		var err error
		switch {
		case told[name]:
			continue
		case counts[name] > 1:
			err = errcode.InvalidRequest.Errorf("Duplicate topic name.")
		case name == clusterMetadata:
			err = errcode.InvalidRequest.Errorf("Creation of internal topic %s is prohibited.", clusterMetadata)
		default:
			continue
		}
		told[name] = true
		results = append(results, failedTopic(name, err))
	}
	return results
}

func (m *Manager) refuseTopics(req *kmsg.CreateTopicsRequest, resp *kmsg.CreateTopicsResponse, err error) Decision {
	resp.Topics = nil
	for i := range req.Topics {
		resp.Topics = append(resp.Topics, failedTopic(req.Topics[i].Topic, err))
	}
	return Decision{Reply: resp}
}

func failedTopic(name string, err error) kmsg.CreateTopicsResponseTopic {
	t := kmsg.NewCreateTopicsResponseTopic()
	t.Topic = name
	t.ErrorCode, t.ErrorMessage = fail(err)
	t.Configs = []kmsg.CreateTopicsResponseTopicConfig{}
	return t
}

// checkPartitionCount refuses a request that would make too many partitions.
func (m *Manager) checkPartitionCount(req *kmsg.CreateTopicsRequest) error {
	var total int64
	for i := range req.Topics {
		t := &req.Topics[i]
		switch {
		case len(t.ReplicaAssignment) > 0:
			total += int64(len(t.ReplicaAssignment))
		case t.NumPartitions == -1:
			total += int64(m.defaultPartitions())
		case t.NumPartitions > 0:
			total += int64(t.NumPartitions)
		}
	}
	if total > maxPartitionsPerRequest {
		return errcode.PolicyViolation.Errorf("Excessively large number of partitions per request.")
	}
	return nil
}

func (m *Manager) defaultPartitions() int32 { return int32(m.settings.Node.Int("num.partitions")) }

func (m *Manager) defaultReplicationFactor() int16 {
	return int16(m.settings.Node.Int("default.replication.factor"))
}

// createTopic gives the result and the records of one new topic. Planned are the names that this request has made so far,
// by what they have in common with names that collide.
func (m *Manager) createTopic(t *kmsg.CreateTopicsRequestTopic, planned map[string]string) (kmsg.CreateTopicsResponseTopic, []metarecord.Record, error) {
	result := kmsg.NewCreateTopicsResponseTopic()
	if err := m.checkNewTopicName(t.Topic); err != nil {
		return result, nil, err
	}
	key, collides := unified(t.Topic)
	if other, ok := planned[key]; ok && collides {
		return result, nil, errcode.InvalidTopicException.Errorf("Topic '%s' collides with existing topic: %s", t.Topic, other)
	}
	configs, err := m.creationConfigs(t)
	if err != nil {
		return result, nil, err
	}
	partitions, err := m.newPartitions(t)
	if err != nil {
		return result, nil, err
	}
	id := m.newID()
	records := make([]metarecord.Record, 0, 1+len(configs)+len(partitions))
	records = append(records, &metarecord.TopicRecord{Name: t.Topic, TopicID: id})
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		value := configs[name]
		records = append(records, &metarecord.ConfigRecord{
			ResourceType: int8(metadata.ResourceTopic), ResourceName: t.Topic, Name: name, Value: &value,
		})
	}
	records = append(records, m.clearELR(records)...)
	for i, p := range partitions {
		records = append(records, p.Record(id, int32(i)))
	}
	result.Topic, result.TopicID = t.Topic, id
	result.NumPartitions = int32(len(partitions))
	result.ReplicationFactor = int16(len(partitions[0].Replicas))
	result.Configs = m.effectiveConfigs(configs)
	if collides {
		planned[key] = t.Topic
	}
	return result, records, nil
}

// creationConfigs gives the configs of a new topic, which are all valid.
func (m *Manager) creationConfigs(t *kmsg.CreateTopicsRequestTopic) (map[string]string, error) {
	configs := make(map[string]string, len(t.Configs))
	var nulls []string
	for _, c := range t.Configs {
		if c.Value == nil {
			nulls = append(nulls, c.Name)
			continue
		}
		configs[c.Name] = *c.Value
	}
	if len(nulls) > 0 {
		return nil, configdef.NullValues(nulls...)
	}
	if len(configs) == 0 {
		return nil, nil
	}
	if _, err := configdef.Replace(configdef.TopicResource, nil, configs); err != nil {
		return nil, err
	}
	return configs, m.node().CheckTopic(configs, nil)
}

// effectiveConfigs describes all configs of a new topic, for the answer.
func (m *Manager) effectiveConfigs(configs map[string]string) []kmsg.CreateTopicsResponseTopicConfig {
	entries := m.node().Layers(configs).Describe(configdef.TopicResource, nil)
	described := make([]kmsg.CreateTopicsResponseTopicConfig, 0, len(entries))
	for _, e := range entries {
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.ReadOnly, c.Source, c.IsSensitive = e.Name, e.Value, e.ReadOnly, int8(e.Source), e.Sensitive
		described = append(described, c)
	}
	return described
}

// newPartitions gives the partitions of a new topic: as assigned by the request, or placed.
func (m *Manager) newPartitions(t *kmsg.CreateTopicsRequestTopic) ([]*metadata.Partition, error) {
	switch {
	case len(t.ReplicaAssignment) > 0:
		return m.assignedPartitions(t)
	case t.ReplicationFactor < -1 || t.ReplicationFactor == 0:
		return nil, errcode.InvalidReplicationFactor.Errorf("Replication factor must be larger than 0, or -1 to use the default value.")
	case t.NumPartitions < -1 || t.NumPartitions == 0:
		return nil, errcode.InvalidPartitions.Errorf("Number of partitions was set to an invalid non-positive value.")
	}
	count, factor := t.NumPartitions, t.ReplicationFactor
	if count == -1 {
		count = m.defaultPartitions()
	}
	if factor == -1 {
		factor = m.defaultReplicationFactor()
	}
	placer := m.newPlacer()
	if err := placer.check(factor); err != nil {
		return nil, errcode.InvalidReplicationFactor.Errorf("Unable to replicate the partition %d time(s): %s", factor, errcode.Text(err))
	}
	partitions := make([]*metadata.Partition, count)
	for i := range partitions {
		if partitions[i] = m.newPartition(placer.place(factor)); partitions[i] == nil {
			return nil, allFenced(factor)
		}
	}
	return partitions, nil
}

func allFenced(factor int16) error {
	return errcode.InvalidReplicationFactor.Errorf("Unable to replicate the partition %d time(s): All brokers are currently "+
		"fenced or in controlled shutdown.", factor)
}

func (m *Manager) assignedPartitions(t *kmsg.CreateTopicsRequestTopic) ([]*metadata.Partition, error) {
	if t.ReplicationFactor != -1 {
		return nil, errcode.InvalidRequest.Errorf("A manual partition assignment was specified, but replication factor was not set to -1.")
	}
	if t.NumPartitions != -1 {
		return nil, errcode.InvalidRequest.Errorf("A manual partition assignment was specified, but numPartitions was not set to -1.")
	}
	byIndex := map[int32]*metadata.Partition{}
	factor := -1
	for _, a := range t.ReplicaAssignment {
		if byIndex[a.Partition] != nil {
			return nil, errcode.InvalidReplicaAssignment.Errorf("Found multiple manual partition assignments for partition %d", a.Partition)
		}
		if err := m.checkAssignment(a.Replicas, factor); err != nil {
			return nil, err
		}
		factor = len(a.Replicas)
		p := m.newPartition(a.Replicas)
		if p == nil {
			return nil, assignedFenced(a.Partition)
		}
		byIndex[a.Partition] = p
	}
	partitions := make([]*metadata.Partition, len(byIndex))
	for i := range partitions {
		if partitions[i] = byIndex[int32(i)]; partitions[i] == nil {
			return nil, errcode.InvalidReplicaAssignment.Errorf("partitions should be a consecutive 0-based integer sequence")
		}
	}
	return partitions, nil
}

func assignedFenced(partition int32) error {
	return errcode.InvalidReplicaAssignment.Errorf("All brokers specified in the manual partition assignment for partition %d "+
		"are fenced or in controlled shutdown.", partition)
}

// newPartition gives a partition on some replicas, led by the first of them that is up; nil when none is.
func (m *Manager) newPartition(replicas []int32) *metadata.Partition {
	isr := slices.DeleteFunc(slices.Clone(replicas), func(n int32) bool { return !m.isActive(n) })
	if len(isr) == 0 {
		return nil
	}
	directories := make([]uuid.UUID, len(replicas))
	for i, n := range replicas {
		directories[i] = m.defaultDirectory(n)
	}
	return &metadata.Partition{Replicas: slices.Clone(replicas), ISR: isr, Directories: directories, Leader: isr[0]}
}

// checkAssignment says whether a partition can have the replicas that a client chose; factor is how many it must be, or -1.
func (m *Manager) checkAssignment(replicas []int32, factor int) error {
	if len(replicas) == 0 {
		return errcode.InvalidReplicaAssignment.Errorf("The manual partition assignment includes an empty replica list.")
	}
	sorted := slices.Sorted(slices.Values(replicas))
	for i, n := range sorted {
		b := m.image.Broker(n)
		switch {
		case b == nil:
			return errcode.InvalidReplicaAssignment.Errorf("The manual partition assignment includes broker %d, but no such broker is "+
				"registered.", n)
		case !hasUncordonedDirectory(b):
			return errcode.InvalidReplicaAssignment.Errorf("The manual partition assignment includes broker %d, but all its log "+
				"directories are cordoned.", n)
		case i > 0 && sorted[i-1] == n:
			return errcode.InvalidReplicaAssignment.Errorf("The manual partition assignment includes the broker %d more than once.", n)
		}
	}
	if factor >= 0 && len(replicas) != factor {
		return errcode.InvalidReplicaAssignment.Errorf("The manual partition assignment includes a partition with %d replica(s), but "+
			"this is not consistent with previous partitions, which have %d replica(s).", len(replicas), factor)
	}
	return nil
}

// leadersOf are the nodes that lead the partitions which records make.
func leadersOf(records []metarecord.Record) []int32 {
	var leaders []int32
	for _, r := range records {
		if p, ok := r.(*metarecord.PartitionRecord); ok && !slices.Contains(leaders, p.Leader) {
			leaders = append(leaders, p.Leader)
		}
	}
	return leaders
}
