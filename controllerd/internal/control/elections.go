package control

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

const (
	// maxElections is how many elections a periodic look at the partitions leads to; the rest has its turn right after.
	maxElections = 1000

	electionTypePreferred = 0
	electionTypeUnclean   = 1
)

// removal is why partitions change together: a node goes, comes, or has lost what the page cache held.
type removal struct {
	// gone leaves all ISRs, back may lead again although the image does not say so yet, unclean leaves ISRs and ELRs.
	// Each is a node or NoLeader.
	gone, back, unclean int32
}

// changes makes the changes of partitions that a removal calls for. Partitions are judged with the image as it is: the
// record that fences or unfences the node comes beside these.
type changes struct {
	m       *Manager
	removal removal
	records []metarecord.Record
	// seen are the configs of the topic visited last.
	topic  *metadata.Topic
	config configdef.Topic
}

func (m *Manager) newChanges(r removal) *changes { return &changes{m: m, removal: r} }

func (c *changes) canLead(node int32) bool {
	if node == c.removal.gone || node == c.removal.unclean {
		return false
	}
	return node == c.removal.back || c.m.isActive(node)
}

// visit adds the record of one partition, if it changes.
func (c *changes) visit(t *metadata.Topic, partition int32) {
	if t != c.topic {
		c.topic, c.config = t, c.m.topicConfig(t.Name)
	}
	p := c.m.newChange(t, partition, c.canLead, c.m.minISR(t, c.config))
	if c.config.UncleanLeaderElectionEnable {
		p.election = electUnclean
	}
	p.unclean = c.removal.unclean
	p.isr = without(p.isr, []int32{c.removal.gone, c.removal.unclean})
	if r := p.record(); r != nil {
		c.records = append(c.records, r)
	}
}

func inISR(node int32) func(*metadata.Partition) bool {
	return func(p *metadata.Partition) bool { return slices.Contains(p.ISR, node) }
}

func inISROrELR(node int32) func(*metadata.Partition) bool {
	return func(p *metadata.Partition) bool { return slices.Contains(p.ISR, node) || slices.Contains(p.ELR, node) }
}

func leaderless(p *metadata.Partition) bool { return p.Leader == metadata.NoLeader }

// withoutNode gives the records by which a node leaves the ISRs it is in.
func (m *Manager) withoutNode(node int32) []metarecord.Record {
	c := m.newChanges(removal{gone: node, back: metadata.NoLeader, unclean: metadata.NoLeader})
	m.partitionsWhere(inISR(node), c.visit)
	return c.records
}

// withNode gives the records by which a node that is back leads partitions that have no leader.
func (m *Manager) withNode(node int32) []metarecord.Record {
	c := m.newChanges(removal{gone: metadata.NoLeader, back: node, unclean: metadata.NoLeader})
	m.partitionsWhere(leaderless, c.visit)
	return c.records
}

// afterUncleanShutdown gives the records by which a node that may have lost records leaves ISRs and ELRs.
func (m *Manager) afterUncleanShutdown(node int32) []metarecord.Record {
	c := m.newChanges(removal{gone: metadata.NoLeader, back: metadata.NoLeader, unclean: node})
	m.partitionsWhere(inISROrELR(node), c.visit)
	return c.records
}

// ElectLeaders elects leaders as a client asks.
func (m *Manager) ElectLeaders(req *kmsg.ElectLeadersRequest) Decision {
	resp := kmsg.NewPtrElectLeadersResponse()
	resp.Version = req.Version
	if req.ElectionType != electionTypePreferred && req.ElectionType != electionTypeUnclean {
		return refuseElections(req, resp, errcode.InvalidRequest.Errorf("Unknown election type %d", req.ElectionType))
	}
	d := Decision{Reply: resp}
	elect := func(topic *kmsg.ElectLeadersResponseTopic, partition int32, all bool) {
		record, err := m.electLeader(topic.Topic, partition, req.ElectionType == electionTypeUnclean)
		if all && errcode.Of(err) == errcode.ElectionNotNeeded {
			return
		}
		if record != nil {
			d.Records = append(d.Records, record)
		}
		p := kmsg.NewElectLeadersResponseTopicPartition()
		p.Partition = partition
		p.ErrorCode, p.ErrorMessage = fail(err)
		topic.Partitions = append(topic.Partitions, p)
	}
	if req.Topics == nil {
		for t := range m.image.Topics() {
			topic := kmsg.NewElectLeadersResponseTopic()
			topic.Topic = t.Name
			for i := range t.Partitions {
				elect(&topic, int32(i), true)
			}
			if len(topic.Partitions) > 0 {
				resp.Topics = append(resp.Topics, topic)
			}
		}
	}
	for i := range req.Topics {
		topic := kmsg.NewElectLeadersResponseTopic()
		topic.Topic = req.Topics[i].Topic
		for _, partition := range req.Topics[i].Partitions {
			elect(&topic, partition, false)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	if err := tooMany(d.Records); err != nil {
		return refuseElections(req, resp, err)
	}
	return d
}

func refuseElections(req *kmsg.ElectLeadersRequest, resp *kmsg.ElectLeadersResponse, err error) Decision {
	code, message := fail(err)
	resp.ErrorCode, resp.Topics = code, nil
	for i := range req.Topics {
		topic := kmsg.NewElectLeadersResponseTopic()
		topic.Topic = req.Topics[i].Topic
		for _, partition := range req.Topics[i].Partitions {
			p := kmsg.NewElectLeadersResponseTopicPartition()
			p.Partition, p.ErrorCode, p.ErrorMessage = partition, code, message
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return Decision{Reply: resp}
}

func (m *Manager) electLeader(topic string, partition int32, unclean bool) (metarecord.Record, error) {
	t := m.image.TopicByName(topic)
	switch {
	case t == nil:
		return nil, errcode.UnknownTopicOrPartition.Errorf("No such topic as %s", topic)
	case partition < 0 || int(partition) >= len(t.Partitions):
		return nil, errcode.UnknownTopicOrPartition.Errorf("No such partition as %s-%d", topic, partition)
	}
	p := t.Partitions[partition]
	if !unclean && p.Leader == p.Replicas[0] || unclean && p.Leader != metadata.NoLeader {
		return nil, errcode.ElectionNotNeeded.Err()
	}
	c := m.newChange(t, partition, m.isActive, m.minISR(t, m.topicConfig(t.Name)))
	c.election = electPreferred
	if unclean {
		c.election = electUnclean
	}
	r := c.record()
	switch {
	case r != nil:
		return r, nil
	case unclean:
		return nil, errcode.EligibleLeadersNotAvailable.Err()
	}
	return nil, errcode.PreferredLeaderNotAvailable.Err()
}

// BalanceLeaders moves leaders back to the preferred replicas; more says that there are more to move.
func (m *Manager) BalanceLeaders() (d Decision, more bool) {
	c := m.newChanges(removal{metadata.NoLeader, metadata.NoLeader, metadata.NoLeader})
	m.partitionsWhere(func(p *metadata.Partition) bool { return p.Leader != p.Replicas[0] }, func(t *metadata.Topic, partition int32) {
		if len(c.records) >= maxElections {
			more = true
			return
		}
		if t != c.topic {
			c.topic, c.config = t, m.topicConfig(t.Name)
		}
		p := m.newChange(t, partition, m.isActive, m.minISR(t, c.config))
		p.election = electPreferred
		if r := p.record(); r != nil {
			c.records = append(c.records, r)
		}
	})
	return Decision{Records: c.records}, more
}

// ElectUncleanLeaders gives leaders to partitions without one whose topics prefer lost records to none; more says that
// there are more of them.
func (m *Manager) ElectUncleanLeaders() (d Decision, more bool) {
	m.partitionsWhere(leaderless, func(t *metadata.Topic, partition int32) {
		if len(d.Records) >= maxElections {
			more = true
			return
		}
		if !m.topicConfig(t.Name).UncleanLeaderElectionEnable {
			return
		}
		if r, err := m.electLeader(t.Name, partition, true); err == nil {
			m.logger.Warn("electing a leader out of sync; records may be lost", "topic", t.Name, "partition", partition)
			d.Records = append(d.Records, r)
		}
	})
	return d, more
}
