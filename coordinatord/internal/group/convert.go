package group

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/assignor"
	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
)

var errCustomAssignor = errors.New("an unsupported custom assignor is in use. Please refer to the documentation or switch to a default " +
	"assignor before re-attempting the upgrade")

// upgrade begins a change that turns a classic group into a consumer group. An empty one is just replaced; the members of
// another one go on with the classic protocol, with what they have, at their generation as epoch. As in Apache Kafka, those who wait
// in a rebalance are told to come again also when it then turns out that the group cannot be converted.
func (m *Machine) upgrade(now time.Time, old *Group, out *Effects) (*round, error) {
	g := newConsumerGroup(old.id)
	r := &round{m: m, now: now, g: g, state: g.Group, converted: old}
	r.records = append(r.records, groupTombstone(old))
	if old.state == empty {
		return r, nil
	}
	if err := m.canUpgrade(old); err != nil {
		return nil, err
	}
	scratch := consumer.NewGroup(old.id)
	scratch.Epoch, scratch.TargetEpoch = old.generation, old.generation
	for _, mem := range old.order {
		converted, err := m.upgradeMember(old, mem)
		if err != nil {
			m.config.Logger.Warn("classic group cannot become a consumer group", slog.String("group", old.id), slog.Any("error", err))
			for _, mem := range old.order {
				m.answerJoin(old, mem, joinError(mem.id, errcode.RebalanceInProgress), out)
				m.answerSync(mem, syncError(errcode.RebalanceInProgress), out)
			}
			return nil, errcode.GroupIdNotFound.Errorf("Cannot upgrade classic group %s to consumer group because %s.", old.id, whyNot(err))
		}
		scratch.Apply(g.DescriptionRecord(converted))
		scratch.Apply(g.PlannedRecord(converted.ID, converted.Assigned.Partitions()))
		scratch.Apply(g.ProgressRecord(converted))
	}
	members := scratch.SortedMembers()
	for _, mem := range members {
		r.write(g.DescriptionRecord(mem))
	}
	scratch.MetadataHash = m.hashes.Of(m.image, scratch.Subscribed(scratch.Counts))
	r.write(g.EpochRecord(scratch.Epoch, scratch.MetadataHash))
	for _, mem := range members {
		r.write(g.PlannedRecord(mem.ID, scratch.Target[mem.ID]))
	}
	r.write(g.TargetRecord(scratch.TargetEpoch, 0))
	for _, mem := range members {
		r.write(g.ProgressRecord(mem))
	}
	r.state = scratch
	return r, nil
}

// whyNot is what clients are told about a member that cannot be taken over.
func whyNot(err error) string {
	if errors.Is(err, errCustomAssignor) {
		return errCustomAssignor.Error()
	}
	return errProtocol.Error()
}

// canUpgrade says why a classic group with members may not become a consumer group.
func (m *Machine) canUpgrade(g *Group) error {
	var reason string
	switch {
	case !m.config.Consumer.Upgrade:
		reason = "online upgrade is disabled"
	case g.protocolType != consumerProtocolType:
		reason = "the group does not use the consumer embedded protocol"
	case len(g.members) > m.config.Consumer.MaxSize:
		reason = "the group size exceeds the consumer group maximum size"
	default:
		return nil
	}
	m.config.Logger.Info("classic group cannot become a consumer group", slog.String("group", g.id), slog.String("reason", reason))
	return errcode.GroupIdNotFound.Errorf("Cannot upgrade classic group %s to consumer group because %s.", g.id, reason)
}

// upgradeMember is a member of a classic group as one of a consumer group.
func (m *Machine) upgradeMember(g *Group, mem *member) (*consumer.Member, error) {
	chosen := g.chosenProtocol()
	if g.protocol == nil {
		chosen = g.selectProtocol()
	}
	sub, err := readSubscription(mem.metadata(chosen))
	if err != nil {
		return nil, err
	}
	assigned, err := m.readAssignment(mem.assignment)
	if err != nil {
		return nil, err
	}
	n := &consumer.Member{
		ID: mem.id, Epoch: g.generation, PreviousEpoch: g.generation, InstanceID: mem.instanceID,
		ClientID: mem.clientID, ClientHost: mem.clientHost, RebalanceTimeoutMs: mem.rebalanceTimeoutMs,
		Topics: consumer.SortTopics(sub.Topics), Assigned: consumer.AtEpoch(assigned, g.generation),
		Classic: &grouprecord.ClassicMember{SessionTimeoutMs: mem.sessionTimeoutMs},
	}
	if sub.Rack != nil && *sub.Rack != "" {
		n.RackID = sub.Rack
	}
	for _, p := range mem.protocols {
		n.Classic.Protocols = append(n.Classic.Protocols, grouprecord.ClassicProtocol{Name: p.name, Metadata: p.metadata})
	}
	return n, nil
}

// readAssignment reads what a member of a classic group has. Topics that do not exist any more are left out.
func (m *Machine) readAssignment(b []byte) (assignor.Partitions, error) {
	p := assignor.Partitions{}
	if len(b) == 0 {
		return p, nil // it has joined and not yet heard what it gets
	}
	a := kmsg.NewConsumerMemberAssignment()
	if err := a.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if len(a.UserData) > 0 {
		return nil, errCustomAssignor
	}
	for _, t := range a.Topics {
		if topic := m.image.TopicByName(t.Topic); topic != nil && len(t.Partitions) > 0 {
			p[topic.ID] = slices.Sorted(slices.Values(slices.Concat(p[topic.ID], t.Partitions)))
		}
	}
	return p, nil
}

// canDowngrade says whether a consumer group becomes a classic one when some members leave: when all others speak the
// classic protocol, of which there must be one.
func (m *Machine) canDowngrade(g *consumerGroup, leaving []*consumer.Member) bool {
	classic := g.Counts.Classic
	for _, mem := range leaving {
		if mem.Classic != nil {
			classic--
		}
	}
	left := len(g.Members) - len(leaving)
	if classic != left || left <= 0 {
		return false
	}
	var reason string
	switch {
	case !m.config.Consumer.Downgrade:
		reason = "online downgrade is disabled"
	case left > m.config.MaxSize:
		reason = "the group size exceeds the classic group maximum size"
	default:
		return true
	}
	m.config.Logger.Info("consumer group cannot become a classic group", slog.String("group", g.ID), slog.String("reason", reason))
	return false
}

// canReplaceLast says whether the group becomes a classic one when a member of the classic protocol takes the place of a static
// member: when that is the only one that does not speak it.
func (m *Machine) canReplaceLast(g *consumerGroup, owner *consumer.Member) bool {
	return owner != nil && owner.Classic == nil && g.Counts.Classic == len(g.Members)-1 &&
		m.config.Consumer.Downgrade && len(g.Members) <= m.config.MaxSize
}

// downgrade turns a consumer group into a classic one, without the members that leave. One of them may be replaced by a
// member that joins. The members go on with what they were to have, or join again if there is a reason for a rebalance.
func (m *Machine) downgrade(r *round, leaving []*consumer.Member, joining *consumer.Member, reason string, out *Effects) {
	g := r.g
	classic := newGroup(g.ID, r.now.UnixMilli())
	classic.state, classic.protocolType, classic.generation = stable, consumerProtocolType, g.Epoch
	for _, mem := range g.SortedMembers() {
		if !slices.Contains(leaving, mem) {
			classic.insert(downgradeMember(mem))
		}
	}
	old, replacement := "", ""
	if joining != nil {
		old, replacement = leaving[0].ID, joining.ID
		classic.insert(downgradeMember(joining))
	}
	chosen := classic.selectProtocol()
	classic.protocol = &chosen
	classic.subscribed = classic.subscriptions()
	for _, mem := range classic.order {
		from := mem.id
		if from == replacement {
			from = old
		}
		mem.assignment = writeAssignment(m.image, g.Target[from], mem.metadata(chosen))
	}
	for _, c := range g.Deletions(old, replacement) {
		r.write(c)
	}
	r.records = append(r.records, classic.record(classic.assignments()))
	r.finish(out)
	m.silence(g)
	m.prepareAlarms(classic)
	for _, mem := range classic.order {
		m.keepAlive(r.now, mem)
	}
	m.config.Logger.Info("consumer group is a classic group now", slog.String("group", g.ID), slog.Int("members", len(classic.members)))
	if reason != "" {
		m.prepareRebalance(r.now, classic, reason, out)
	}
}

// downgradeMember is a member of a consumer group that speaks the classic protocol as one of a classic group.
func downgradeMember(mem *consumer.Member) *member {
	n := &member{
		id: mem.ID, instanceID: mem.InstanceID, clientID: mem.ClientID, clientHost: mem.ClientHost,
		rebalanceTimeoutMs: mem.RebalanceTimeoutMs, sessionTimeoutMs: mem.Classic.SessionTimeoutMs,
	}
	for _, p := range mem.Classic.Protocols {
		n.protocols = append(n.protocols, protocol{name: p.Name, metadata: p.Metadata})
	}
	return n
}
