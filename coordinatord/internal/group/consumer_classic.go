package group

import (
	"cmp"
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
	"chancery/services/metadata"
)

// Members of a consumer group that speak the classic protocol: JoinGroup is a heartbeat that takes a step towards the target,
// the generation is the member's epoch, SyncGroup gives the assignment, and Heartbeat tells when the next step is due.

// joinConsumer is the JoinGroup of a member of a consumer group.
func (m *Machine) joinConsumer(now time.Time, t Ticket, g *consumerGroup, c *Join, out *Effects) {
	resp, err := m.classicStep(now, g, c, out)
	if err != nil {
		resp = joinError("", errcode.Of(err))
	}
	out.Answer(t, resp)
}

func (m *Machine) classicStep(now time.Time, g *consumerGroup, c *Join, out *Effects) (*kmsg.JoinGroupResponse, error) {
	req := c.Request
	if policy := m.config.Consumer; !policy.Upgrade && !policy.Downgrade {
		return nil, errcode.InconsistentGroupProtocol.Errorf("group %s takes no members of the classic protocol", g.ID)
	}
	id, isNew := req.MemberID, req.MemberID == ""
	if isNew {
		id = m.config.NewID()
	}
	r := &round{m: m, now: now, g: g, state: g.Group}
	if err := r.checkRoom(id, req.InstanceID); err != nil {
		return nil, err
	}
	protocols := protocolsOf(req)
	if !g.takesProtocols(req.ProtocolType, protocols) {
		return nil, errcode.InconsistentGroupProtocol.Errorf("member %s knows no assignor that the others know", id)
	}
	if isNew && req.InstanceID == nil && req.Version >= joinMemberIDRequired {
		return joinError(id, errcode.MemberIdRequired), nil
	}
	before, known, err := r.member(newcomer{id: id, instance: req.InstanceID, joins: req.InstanceID == nil || isNew, classic: true})
	if err != nil {
		return nil, err
	}
	sub, err := readSubscription(protocols[0].metadata)
	if err != nil {
		return nil, errcode.InconsistentGroupProtocol.Wrap(err)
	}
	u := &update{before: before, after: classicMember(before, c, sub, protocols)}
	if !known {
		u.before = nil
	}
	if err := m.stepClassic(r, before, u, sub, out); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrJoinGroupResponse()
	protocolType := consumerProtocolType
	resp.MemberID, resp.Generation, resp.ProtocolType, resp.Protocol = id, u.after.Epoch, &protocolType, &protocols[0].name
	return resp, nil
}

// stepClassic takes a member that has joined a step further, or turns the group into a classic one if the member comes in
// the place of the last one that does not speak the classic protocol.
func (m *Machine) stepClassic(r *round, before *consumer.Member, u *update, sub *kmsg.ConsumerMemberMetadata, out *Effects) error {
	var owner *consumer.Member
	if u.after.InstanceID != nil {
		owner = r.g.StaticMember(*u.after.InstanceID)
	}
	r.describe(u)
	regex, err := r.updateRegex(before.Regex, u.after.Regex, u.counts)
	if err != nil {
		return err
	}
	u.subscribed = !slices.Equal(before.Topics, u.after.Topics) || regex != regexSame
	r.raiseEpoch(u, u.subscribed)
	reported := m.reportedByName(sub.OwnedPartitions)
	if m.canReplaceLast(r.g, owner) {
		reason := ""
		if r.state.TargetEpoch < u.epoch {
			reason = "the consumer group had not made a new assignment yet"
		} else {
			r.reconcile(u, r.state.TargetEpoch, r.targetOf(u.after), reported)
		}
		m.downgrade(r, []*consumer.Member{owner}, u.after, reason, out)
		return nil
	}
	epoch, target, err := r.plan(u)
	if err != nil {
		return err
	}
	r.reconcile(u, epoch, target, reported)
	r.finish(out)
	a := m.alarmsOf(r.g, u.after.ID)
	m.alarms.cancel(&a.join)
	m.alarms.cancel(&a.revoke)
	m.alarms.set(&a.session, r.now.Add(millis(u.after.Classic.SessionTimeoutMs)))
	m.alarms.set(&a.sync, r.now.Add(millis(u.after.RebalanceTimeoutMs)))
	return nil
}

// takesProtocols says whether a member with these assignors can take part together with the others of the classic protocol.
func (g *consumerGroup) takesProtocols(protocolType string, protocols []protocol) bool {
	return protocolType == consumerProtocolType && slices.ContainsFunc(protocols, func(p protocol) bool {
		return len(g.Members) == 0 || g.Counts.Protocols[p.name] == g.Counts.Classic
	})
}

// classicMember is a member with what its JoinGroup says.
func classicMember(before *consumer.Member, c *Join, sub *kmsg.ConsumerMemberMetadata, protocols []protocol) *consumer.Member {
	req := c.Request
	mem := *before
	if req.InstanceID != nil {
		mem.InstanceID = req.InstanceID
	}
	if sub.Rack != nil && *sub.Rack != "" {
		mem.RackID = sub.Rack
	}
	if ms := rebalanceTimeoutMs(req); ms != -1 {
		mem.RebalanceTimeoutMs = ms
	}
	mem.Topics, mem.Regex, mem.ClientID, mem.ClientHost = consumer.SortTopics(sub.Topics), "", c.ClientID, c.ClientHost
	mem.Classic = &grouprecord.ClassicMember{SessionTimeoutMs: req.SessionTimeoutMillis}
	for _, p := range protocols {
		mem.Classic.Protocols = append(mem.Classic.Protocols, grouprecord.ClassicProtocol{Name: p.name, Metadata: p.metadata})
	}
	return &mem
}

// reportedByName is what a member says it has, by ids; topics that do not exist are left out.
func (m *Machine) reportedByName(owned []kmsg.ConsumerMemberMetadataOwnedPartition) consumer.Reported {
	reported := consumer.Reported{}
	for _, o := range owned {
		if t := m.image.TopicByName(o.Topic); t != nil {
			reported[t.ID] = append(reported[t.ID], o.Partitions...)
		}
	}
	return reported
}

// classicMemberOf finds who asks in the classic protocol at a generation.
func (g *consumerGroup) classicMemberOf(id string, instance *string, generation int32) (*consumer.Member, errcode.Code) {
	mem := g.Members[id]
	if instance != nil {
		mem = g.StaticMember(*instance)
		if err := checkInstance(mem, id, *instance); err != nil {
			return nil, errcode.Of(err)
		}
	}
	switch {
	case mem == nil || mem.Classic == nil:
		return nil, errcode.UnknownMemberId
	case mem.Epoch != generation:
		return nil, errcode.IllegalGeneration
	}
	return mem, errcode.None
}

// syncConsumer gives a member that speaks the classic protocol what it has.
func (m *Machine) syncConsumer(now time.Time, g *consumerGroup, req *kmsg.SyncGroupRequest) *kmsg.SyncGroupResponse {
	mem, code := g.classicMemberOf(req.MemberID, req.InstanceID, req.Generation)
	if code != errcode.None {
		return syncError(code)
	}
	name := mem.Classic.Protocols[0].Name
	if req.ProtocolType != nil && *req.ProtocolType != consumerProtocolType || req.Protocol != nil && *req.Protocol != name {
		return syncError(errcode.InconsistentGroupProtocol)
	}
	if g.TargetEpoch > mem.Epoch && mem.State != consumer.Unrevoked {
		m.awaitJoin(now, g, mem)
		return syncError(errcode.RebalanceInProgress)
	}
	a := m.alarmsOf(g, mem.ID)
	m.alarms.cancel(&a.sync)
	m.alarms.set(&a.session, now.Add(millis(mem.Classic.SessionTimeoutMs)))
	resp := kmsg.NewPtrSyncGroupResponse()
	resp.ProtocolType, resp.Protocol = req.ProtocolType, req.Protocol
	resp.MemberAssignment = writeAssignment(m.image, mem.Assigned.Partitions(), mem.Classic.Protocols[0].Metadata)
	return resp
}

// awaitJoin bounds the time in which a member must join again.
func (m *Machine) awaitJoin(now time.Time, g *consumerGroup, mem *consumer.Member) {
	if a := m.alarmsOf(g, mem.ID); a.join.due.IsZero() {
		m.alarms.set(&a.join, now.Add(millis(mem.RebalanceTimeoutMs)))
	}
}

// heartbeatConsumer keeps a member that speaks the classic protocol alive, and tells it to join again when there is a step to
// take: a new target, partitions to give up, or others that have become free.
func (m *Machine) heartbeatConsumer(now time.Time, g *consumerGroup, c *Heartbeat) errcode.Code {
	mem, code := g.classicMemberOf(c.MemberID, c.InstanceID, c.Generation)
	if code != errcode.None {
		return code
	}
	m.alarms.set(&m.alarmsOf(g, mem.ID).session, now.Add(millis(mem.Classic.SessionTimeoutMs)))
	if mem.Epoch < g.TargetEpoch || mem.State == consumer.Unrevoked || mem.State == consumer.Unreleased && !g.WaitsForOthers(mem) {
		m.awaitJoin(now, g, mem)
		return errcode.RebalanceInProgress
	}
	return errcode.None
}

// leaveConsumer removes members of a consumer group by LeaveGroup.
func (m *Machine) leaveConsumer(now time.Time, g *consumerGroup, c *Leave, out *Effects) LeaveReply {
	reply := LeaveReply{Found: true, Codes: make([]errcode.Code, len(c.Members))}
	var leaving []*consumer.Member
	for i, who := range c.Members {
		mem := g.Members[who.ID]
		if who.InstanceID != nil {
			mem = g.StaticMember(*who.InstanceID)
			if who.ID != "" {
				reply.Codes[i] = errcode.Of(checkInstance(mem, who.ID, *who.InstanceID))
			}
		}
		if mem == nil {
			reply.Codes[i] = errcode.UnknownMemberId
		}
		if reply.Codes[i] == errcode.None && !slices.Contains(leaving, mem) {
			leaving = append(leaving, mem)
			m.config.Logger.Info("member leaves", slog.String("group", g.ID), slog.String("member", mem.ID), slog.String("reason", who.Reason))
		}
	}
	m.fence(now, g, leaving, out)
	return reply
}

var errProtocol = errors.New("the embedded consumer protocol is malformed")

// readSubscription reads what a member of the classic protocol subscribes to.
func readSubscription(b []byte) (*kmsg.ConsumerMemberMetadata, error) {
	sub := kmsg.NewConsumerMemberMetadata()
	if len(b) < 2 {
		return nil, errProtocol
	}
	if err := sub.ReadFrom(b); err != nil {
		return nil, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return &sub, nil
}

// writeAssignment writes what a member gets, in the version in which it subscribes.
func writeAssignment(image metadata.Reader, p assignor.Partitions, subscription []byte) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	if sub, err := readSubscription(subscription); err == nil {
		a.Version = sub.Version
	}
	for topic, partitions := range p {
		if t := image.Topic(topic); t != nil {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: t.Name, Partitions: partitions})
		}
	}
	slices.SortFunc(a.Topics, func(x, y kmsg.ConsumerMemberAssignmentTopic) int { return cmp.Compare(x.Topic, y.Topic) })
	return a.AppendTo(nil)
}
