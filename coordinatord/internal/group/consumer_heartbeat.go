package group

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/uuid"
)

// consumerHeartbeat answers a ConsumerGroupHeartbeat: a member joins, goes on, or leaves.
func (m *Machine) consumerHeartbeat(now time.Time, c *ConsumerHeartbeat, out *Effects) *kmsg.ConsumerGroupHeartbeatResponse {
	var resp *kmsg.ConsumerGroupHeartbeatResponse
	var err error
	if c.Request.MemberEpoch < consumer.Joining {
		resp, err = m.consumerLeave(now, c.Request, out)
	} else {
		resp, err = m.memberHeartbeat(now, c, out)
	}
	if err != nil {
		text := errcode.Text(err)
		resp = kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode, resp.ErrorMessage = int16(errcode.Of(err)), &text
	}
	return resp
}

func (m *Machine) memberHeartbeat(now time.Time, c *ConsumerHeartbeat, out *Effects) (*kmsg.ConsumerGroupHeartbeatResponse, error) {
	req := c.Request
	joins := req.MemberEpoch == consumer.Joining
	r, err := m.openRound(now, req.Group, joins, out)
	if err != nil {
		return nil, err
	}
	if err := r.checkRoom(req.MemberID, req.InstanceID); err != nil {
		return nil, err
	}
	id := req.MemberID
	if id == "" {
		id = m.config.NewID()
	}
	reported := reportedBy(req)
	before, known, err := r.member(newcomer{id: id, instance: req.InstanceID, epoch: req.MemberEpoch, joins: joins, reported: reported})
	if err != nil {
		return nil, err
	}
	u := &update{before: before, after: described(before, c)}
	if !known {
		u.before = nil
	}
	r.describe(u)
	named := !slices.Equal(before.Topics, u.after.Topics)
	regex, err := r.updateRegex(before.Regex, u.after.Regex, u.counts)
	if err != nil {
		return nil, err
	}
	fallback := m.config.Consumer.Assignors[0]
	reassign := r.state.Counts.PreferredAssignor(r.state.Counts, fallback) != u.counts.PreferredAssignor(r.state.Counts, fallback)
	u.subscribed = named || regex != regexSame
	r.raiseEpoch(u, named || regex == regexResolvedAlready || reassign)
	epoch, target, err := r.plan(u)
	if err != nil {
		return nil, err
	}
	r.reconcile(u, epoch, target, reported)
	r.finish(out)
	settings := m.settingsOf(req.Group)
	m.alarms.set(&m.alarmsOf(r.g, id).session, now.Add(settings.SessionTimeout))
	if joins {
		m.config.Logger.Info("member joins the consumer group", slog.String("group", req.Group), slog.String("member", id))
	}
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &u.after.ID, u.after.Epoch, int32(settings.HeartbeatInterval.Milliseconds())
	full := req.RebalanceTimeoutMillis != -1 && (req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil) && reported != nil
	if joins || full || !before.Assigned.Equal(u.after.Assigned) {
		resp.Assignment = assignmentOf(u.after)
	}
	return resp, nil
}

// described is a member with what its heartbeat says; what the heartbeat leaves out stays as it is.
func described(before *consumer.Member, c *ConsumerHeartbeat) *consumer.Member {
	req := c.Request
	mem := *before
	if req.InstanceID != nil {
		mem.InstanceID = req.InstanceID
	}
	if req.RackID != nil {
		mem.RackID = req.RackID
	}
	if req.RebalanceTimeoutMillis != -1 {
		mem.RebalanceTimeoutMs = req.RebalanceTimeoutMillis
	}
	if req.ServerAssignor != nil {
		mem.Assignor = req.ServerAssignor
	}
	if req.SubscribedTopicNames != nil {
		mem.Topics = consumer.SortTopics(req.SubscribedTopicNames)
	}
	if req.SubscribedTopicRegex != nil {
		mem.Regex = *req.SubscribedTopicRegex
	}
	mem.ClientID, mem.ClientHost, mem.Classic = c.ClientID, c.ClientHost, nil
	return &mem
}

// reportedBy is what a member says it has; nil when it does not say.
func reportedBy(req *kmsg.ConsumerGroupHeartbeatRequest) consumer.Reported {
	if req.Topics == nil {
		return nil
	}
	reported := make(consumer.Reported, len(req.Topics))
	for _, t := range req.Topics {
		reported[t.TopicID] = append(reported[t.TopicID], t.Partitions...)
	}
	return reported
}

// assignmentOf is what a member has or may take now.
func assignmentOf(mem *consumer.Member) *kmsg.ConsumerGroupHeartbeatResponseAssignment {
	a := kmsg.NewConsumerGroupHeartbeatResponseAssignment()
	a.Topics = []kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{}
	for _, topic := range sortedTopics(mem.Assigned) {
		t := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
		t.TopicID, t.Partitions = topic, slices.Sorted(maps.Keys(mem.Assigned[topic]))
		a.Topics = append(a.Topics, t)
	}
	return &a
}

func sortedTopics[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
}

// consumerLeave lets a member go; a static one may say that it is going to come back, and then keeps what it has.
func (m *Machine) consumerLeave(now time.Time, req *kmsg.ConsumerGroupHeartbeatRequest, out *Effects) (*kmsg.ConsumerGroupHeartbeatResponse, error) {
	g, err := m.consumerGroupByID(req.Group)
	if err != nil {
		return nil, err
	}
	mem := g.Members[req.MemberID]
	if req.InstanceID != nil {
		mem = g.StaticMember(*req.InstanceID)
		if err := checkInstance(mem, req.MemberID, *req.InstanceID); err != nil {
			return nil, err
		}
	}
	if mem == nil {
		return nil, errcode.UnknownMemberId.Errorf("Member %s is not a member of group %s.", req.MemberID, req.Group)
	}
	m.config.Logger.Info("member leaves the consumer group", slog.String("group", g.ID), slog.String("member", mem.ID),
		slog.Bool("comes back", req.MemberEpoch == consumer.LeftForAWhile))
	if req.InstanceID != nil && req.MemberEpoch == consumer.LeftForAWhile {
		away := *mem
		away.Epoch, away.PendingRemoval, away.Assigned = consumer.LeftForAWhile, nil, mem.Assigned.Since(0)
		r := &round{m: m, now: now, g: g, state: g.Group}
		r.write(g.ProgressRecord(&away))
		r.finish(out)
	} else {
		m.fence(now, g, []*consumer.Member{mem}, out)
	}
	resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
	resp.MemberID, resp.MemberEpoch = &mem.ID, req.MemberEpoch
	return resp, nil
}

// fenceByAlarm takes a member out because of a time-out.
func (m *Machine) fenceByAlarm(now time.Time, g *consumerGroup, id, reason string, out *Effects) {
	mem := g.Members[id]
	if mem == nil || m.find(g.ID) != anyGroup(g) {
		return
	}
	m.config.Logger.Info("member is fenced from the consumer group", slog.String("group", g.ID), slog.String("member", id),
		slog.String("reason", reason))
	m.fence(now, g, []*consumer.Member{mem}, out)
}

// fence takes members out of a group. When only members that speak the classic protocol are left, the group becomes a
// classic one.
func (m *Machine) fence(now time.Time, g *consumerGroup, members []*consumer.Member, out *Effects) {
	if len(members) == 0 {
		return
	}
	r := &round{m: m, now: now, g: g, state: g.Group}
	if m.canDowngrade(g, members) {
		m.downgrade(r, members, nil, "members have left", out)
		return
	}
	slices.SortFunc(members, func(a, b *consumer.Member) int { return cmp.Compare(a.ID, b.ID) })
	counts := g.Counts
	for _, mem := range members {
		for _, c := range g.MemberDeletions(mem.ID) {
			r.write(c)
		}
		before := counts
		counts = counts.With(mem, nil)
		if mem.Regex != "" && before.Regexes[mem.Regex] == 1 {
			r.write(g.Deletion(grouprecord.TypeConsumerRegex, mem.Regex))
		}
	}
	epoch := g.Epoch + 1
	r.write(g.EpochRecord(epoch, m.hashes.Of(m.image, g.Subscribed(counts))))
	if counts.Members == 0 {
		// As for a new group: the first target assignment afterwards must not wait.
		r.write(g.TargetRecord(epoch, 0))
	}
	r.finish(out)
	for _, mem := range members {
		m.cancelAlarms(g, mem.ID)
	}
}
