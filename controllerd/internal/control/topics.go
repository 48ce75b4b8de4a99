package control

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// doomed is what a DeleteTopics request says of one topic: by name, by id, or wrongly.
type doomed struct {
	name *string
	id   uuid.UUID
}

// DeleteTopics deletes topics, given by name or by id.
func (m *Manager) DeleteTopics(req *kmsg.DeleteTopicsRequest) Decision {
	resp := kmsg.NewPtrDeleteTopicsResponse()
	resp.Version = req.Version
	wanted := make([]doomed, 0, len(req.TopicNames)+len(req.Topics))
	for i := range req.TopicNames {
		wanted = append(wanted, doomed{name: &req.TopicNames[i]})
	}
	for i := range req.Topics {
		wanted = append(wanted, doomed{req.Topics[i].Topic, req.Topics[i].TopicID})
	}
	add := func(name *string, id uuid.UUID, err error) {
		t := kmsg.NewDeleteTopicsResponseTopic()
		t.Topic, t.TopicID = name, id
		t.ErrorCode, t.ErrorMessage = fail(err)
		resp.Topics = append(resp.Topics, t)
	}
	if !m.settings.Node.Bool("delete.topic.enable") {
		err := errcode.TopicDeletionDisabled.Err()
		if req.Version < 3 {
			err = errcode.InvalidRequest.Errorf("This version does not support topic deletion.")
		}
		for _, w := range wanted {
			add(w.name, w.id, err)
		}
		return Decision{Reply: resp}
	}
	d := Decision{Reply: resp, Atomic: true}
	for _, t := range m.resolveDoomed(wanted, add) {
		name := t.Name
		add(&name, t.ID, nil)
		d.Records = append(d.Records, &metarecord.RemoveTopicRecord{TopicID: t.ID})
		m.logger.Info("deleting a topic", "topic", t.Name, "id", t.ID.String(), "partitions", len(t.Partitions))
	}
	if err := tooMany(d.Records); err != nil {
		resp.Topics = nil
		for _, w := range wanted {
			add(w.name, w.id, err)
		}
		return Decision{Reply: resp}
	}
	return d
}

// resolveDoomed gives the topics to delete, and tells of those that cannot be.
func (m *Manager) resolveDoomed(wanted []doomed, refuse func(*string, uuid.UUID, error)) []*metadata.Topic {
	byName, byID := map[string]int{}, map[uuid.UUID]int{}
	for _, w := range wanted {
		switch {
		case w.name != nil && w.id.IsZero():
			byName[*w.name]++
		case w.name == nil && !w.id.IsZero():
			byID[w.id]++
		}
	}
	var topics []*metadata.Topic
	for _, w := range wanted {
		switch {
		case w.name == nil && w.id.IsZero():
			refuse(nil, uuid.Zero, errcode.InvalidRequest.Errorf("Neither topic name nor id were specified."))
		case w.name != nil && !w.id.IsZero():
			refuse(w.name, w.id, errcode.InvalidRequest.Errorf("You may not specify both topic name and topic id."))
		case w.name != nil && byName[*w.name] > 1:
			refuse(w.name, uuid.Zero, errcode.InvalidRequest.Errorf("Duplicate topic name."))
			byName[*w.name] = -1
		case w.name == nil && byID[w.id] > 1:
			refuse(nil, w.id, errcode.InvalidRequest.Errorf("Duplicate topic id."))
			byID[w.id] = -1
		case w.name != nil && byName[*w.name] < 0 || w.name == nil && byID[w.id] < 0:
			// It was told of once, which is enough.
		case w.name != nil:
			t := m.image.TopicByName(*w.name)
			if t == nil {
				refuse(w.name, uuid.Zero, errcode.UnknownTopicOrPartition.Err())
				continue
			}
			if byID[t.ID] != 0 {
				refuse(w.name, t.ID, errcode.InvalidRequest.Errorf("The provided topic name maps to an ID that was already supplied."))
				continue
			}
			topics = append(topics, t)
		default:
			t := m.image.Topic(w.id)
			switch {
			case t == nil:
				refuse(nil, w.id, errcode.UnknownTopicId.Err())
			case byName[t.Name] == 0:
				topics = append(topics, t)
			}
		}
	}
	return topics
}

// CreatePartitions adds partitions to topics.
func (m *Manager) CreatePartitions(req *kmsg.CreatePartitionsRequest) Decision {
	resp := kmsg.NewPtrCreatePartitionsResponse()
	resp.Version = req.Version
	add := func(name string, err error) {
		t := kmsg.NewCreatePartitionsResponseTopic()
		t.Topic = name
		t.ErrorCode, t.ErrorMessage = fail(err)
		resp.Topics = append(resp.Topics, t)
	}
	counts := map[string]int{}
	for i := range req.Topics {
		counts[req.Topics[i].Topic]++
	}
	d := Decision{Reply: resp, Atomic: true}
	for i := range req.Topics {
		t := &req.Topics[i]
		if counts[t.Topic] > 1 {
			add(t.Topic, errcode.InvalidRequest.Errorf("Duplicate topic name."))
			counts[t.Topic] = -1
		}
		if counts[t.Topic] < 0 {
			continue
		}
		records, err := m.createPartitions(t, maxRecordsPerOperation-len(d.Records))
		add(t.Topic, err)
		d.Records = append(d.Records, records...)
	}
	if req.ValidateOnly {
		d.Records = nil
	}
	d.Leaders = leadersOf(d.Records)
	return d
}

// createPartitions gives the records of a topic's new partitions, at most limit of them.
func (m *Manager) createPartitions(req *kmsg.CreatePartitionsRequestTopic, limit int) ([]metarecord.Record, error) {
	t := m.image.TopicByName(req.Topic)
	if t == nil {
		return nil, errcode.UnknownTopicOrPartition.Err()
	}
	have := len(t.Partitions)
	switch {
	case int(req.Count) == have:
		return nil, errcode.InvalidPartitions.Errorf("Topic already has %d partition(s).", have)
	case int(req.Count) < have:
		return nil, errcode.InvalidPartitions.Errorf("The topic %s currently has %d partition(s); %d would not be an increase.",
			req.Topic, have, req.Count)
	}
	additional := int(req.Count) - have
	if additional > limit {
		return nil, errcode.PolicyViolation.Errorf("Unable to perform excessively large batch operation.")
	}
	if req.Assignment != nil && len(req.Assignment) != additional {
		return nil, errcode.InvalidReplicaAssignment.Errorf("Attempted to add %d additional partition(s), but only %d assignment(s) "+
			"were specified.", additional, len(req.Assignment))
	}
	factor := int16(len(t.Partitions[0].Replicas))
	var placer *placer
	if req.Assignment == nil {
		placer = m.newPlacer()
		if err := placer.check(factor); err != nil {
			return nil, err
		}
	}
	records := make([]metarecord.Record, 0, additional)
	for i := range additional {
		index := int32(have + i)
		var p *metadata.Partition
		if placer != nil {
			if p = m.newPartition(placer.place(factor)); p == nil {
				return nil, allFenced(factor)
			}
		} else {
			replicas := req.Assignment[i].Replicas
			if err := m.checkAssignment(replicas, int(factor)); err != nil {
				return nil, err
			}
			if p = m.newPartition(replicas); p == nil {
				return nil, assignedFenced(index)
			}
		}
		records = append(records, p.Record(t.ID, index))
	}
	return records, nil
}

// partitionsWhere calls visit for each partition that a condition holds for, topic by topic.
func (m *Manager) partitionsWhere(condition func(*metadata.Partition) bool, visit func(t *metadata.Topic, partition int32)) {
	for t := range m.image.Topics() {
		for i, p := range t.Partitions {
			if condition(p) {
				visit(t, int32(i))
			}
		}
	}
}

// hasLeaderships says whether a node leads any partition.
func (m *Manager) hasLeaderships(node int32) bool {
	for t := range m.image.Topics() {
		if slices.ContainsFunc(t.Partitions, func(p *metadata.Partition) bool { return p.Leader == node }) {
			return true
		}
	}
	return false
}
