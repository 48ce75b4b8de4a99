package group

import (
	"log/slog"
	"time"

	"chancery/coordinatord/internal/assignor"
	"chancery/coordinatord/internal/consumer"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/grouprecord"
)

// round is one change of a consumer group in the making. Nothing of it happens before finish, so that a request can still
// be refused.
type round struct {
	m   *Machine
	now time.Time
	g   *consumerGroup
	// state is what the change goes out from: the group's own, or for a group that is being converted what its first
	// records make of it.
	state *consumer.Group
	// converted is the classic group in whose place the group comes; nil when there is none.
	converted *Group
	records   []*Record
	then      []func(out *Effects)
}

// openRound begins a change of a group. With create the group is made when it is not there, or a classic group converted.
func (m *Machine) openRound(now time.Time, id string, create bool, out *Effects) (*round, error) {
	if !create {
		if m.find(id) == nil {
			return nil, errcode.GroupIdNotFound.Errorf("Consumer group %s not found.", id)
		}
		g, err := m.consumerGroupByID(id)
		if err != nil {
			return nil, err
		}
		return &round{m: m, now: now, g: g, state: g.Group}, nil
	}
	switch g := m.find(id).(type) {
	case *consumerGroup:
		return &round{m: m, now: now, g: g, state: g.Group}, nil
	case *Group:
		return m.upgrade(now, g, out)
	}
	g := newConsumerGroup(id)
	return &round{m: m, now: now, g: g, state: g.Group}, nil
}

// write adds a record to the change.
func (r *round) write(c *grouprecord.Consumer) {
	r.records = append(r.records, &Record{kind: consumerRecord, groupID: r.g.ID, producerID: noProducer, consumer: c, group: r.g})
}

// finish carries the change out.
func (r *round) finish(out *Effects) {
	if r.converted != nil {
		// The members that wait are told to join again, to the group as it is now.
		r.m.abandon(r.converted, errcode.RebalanceInProgress, out)
		r.m.config.Logger.Info("classic group is a consumer group now", slog.String("group", r.g.ID), slog.Int("members", len(r.state.Members)))
		for _, mem := range r.state.SortedMembers() {
			r.m.alarms.set(&r.m.alarmsOf(r.g, mem.ID).session, r.now.Add(sessionTimeout(mem, r.m.settingsOf(r.g.ID))))
		}
	}
	for _, record := range r.records {
		out.Append(record)
	}
	for _, f := range r.then {
		f(out)
	}
}

// newcomer is who wants to be, or to go on being, a member.
type newcomer struct {
	id       string
	instance *string
	epoch    int32
	// joins says that it may be new; classic that it speaks the classic protocol, which has other rules.
	joins, classic bool
	reported       consumer.Reported
}

// checkRoom refuses members beyond the most that a group may have.
func (r *round) checkRoom(id string, instance *string) error {
	if instance != nil && r.state.StaticMember(*instance) != nil {
		return nil
	}
	if limit := r.m.config.Consumer.MaxSize; len(r.state.Members) >= limit && r.state.Members[id] == nil {
		return errcode.GroupMaxSizeReached.Errorf("The consumer group has reached its maximum capacity of %d members.", limit)
	}
	return nil
}

// member finds the member, or makes it. Known says that the group counts it already, be it under another id.
func (r *round) member(n newcomer) (mem *consumer.Member, known bool, err error) {
	if n.instance != nil {
		return r.staticMember(n)
	}
	mem = r.state.Members[n.id]
	known = mem != nil
	switch {
	case known:
	case !n.joins:
		return nil, false, errcode.UnknownMemberId.Errorf("Member %s is not a member of group %s.", n.id, r.g.ID)
	default:
		mem = consumer.NewMember(n.id)
	}
	if !n.classic {
		err = checkEpoch(mem, n)
	}
	return mem, known, err
}

func (r *round) staticMember(n newcomer) (*consumer.Member, bool, error) {
	owner := r.state.StaticMember(*n.instance)
	if !n.joins {
		if err := checkInstance(owner, n.id, *n.instance); err != nil {
			return nil, false, err
		}
		if n.classic {
			return owner, true, nil
		}
		return owner, true, checkEpoch(owner, n)
	}
	if owner == nil {
		if mem := r.state.Members[n.id]; mem != nil {
			return mem, true, nil
		}
		return consumer.NewMember(n.id), false, nil
	}
	if !n.classic && owner.Classic == nil && owner.Epoch != consumer.LeftForAWhile {
		return nil, false, errcode.UnreleasedInstanceId.Errorf(
			"Static member %s with instance id %s cannot join the group because the instance id is owned by %s member.", n.id, *n.instance, owner.ID)
	}
	mem := *owner
	mem.ID, mem.Epoch, mem.PreviousEpoch = n.id, consumer.Joining, 0
	r.replace(owner, &mem)
	return &mem, true, nil
}

// checkInstance makes sure that a static member is who it says.
func checkInstance(owner *consumer.Member, id, instance string) error {
	switch {
	case owner == nil:
		return errcode.UnknownMemberId.Errorf("Instance id %s is unknown.", instance)
	case owner.ID != id:
		return errcode.FencedInstanceId.Errorf("Static member %s with instance id %s was fenced by member %s.", id, instance, owner.ID)
	}
	return nil
}

// checkEpoch fences a member whose epoch is not the one of the books. One that has not heard of its last step may still come
// with the epoch before it, as long as it has nothing beyond.
func checkEpoch(mem *consumer.Member, n newcomer) error {
	switch {
	case n.epoch == consumer.Joining, n.epoch == mem.Epoch:
		return nil
	case n.epoch > mem.Epoch:
		return errcode.FencedMemberEpoch.Errorf("The consumer group member has a greater member epoch (%d) than the one known by "+
			"the group coordinator (%d). The member must abandon all its partitions and rejoin.", n.epoch, mem.Epoch)
	case n.epoch == mem.PreviousEpoch && n.reported != nil && n.reported.Within(mem.Assigned):
		return nil
	}
	return errcode.FencedMemberEpoch.Errorf("The consumer group member has a smaller member epoch (%d) than the one known by "+
		"the group coordinator (%d). The member must abandon all its partitions and rejoin.", n.epoch, mem.Epoch)
}

// replace puts a member in the place of a static one, with all that it has.
func (r *round) replace(old, mem *consumer.Member) {
	for _, c := range r.g.MemberDeletions(old.ID) {
		r.write(c)
	}
	r.write(r.g.DescriptionRecord(mem))
	r.write(r.g.PlannedRecord(mem.ID, r.state.Target[old.ID]))
	r.write(r.g.ProgressRecord(mem))
	if old.ID != mem.ID {
		r.then = append(r.then, func(*Effects) { r.m.cancelAlarms(r.g, old.ID) })
	}
}

// update is a member before and after a request. Before is nil for a member that the group does not count yet.
type update struct {
	before, after *consumer.Member
	// subscribed says that it subscribes to other topics than before.
	subscribed bool
	counts     consumer.Counts
	// epoch is the group's after the request.
	epoch int32
}

// describe writes what a member says about itself if that is new.
func (r *round) describe(u *update) {
	u.counts = r.state.Counts.With(u.before, u.after)
	u.epoch = r.state.Epoch
	if u.before == nil || !u.before.SameDescription(u.after) {
		r.write(r.g.DescriptionRecord(u.after))
	}
}

// raiseEpoch raises the group's epoch when asked to, or when the subscribed topics do not look as they did. That is
// looked at only when the metadata or the subscriptions have changed.
func (r *round) raiseEpoch(u *update, raise bool) {
	g, m := r.g, r.m
	if !raise && g.seen == m.image && g.Epoch >= g.seenEpoch {
		return
	}
	hash := m.hashes.Of(m.image, r.state.Subscribed(u.counts))
	if raise || hash != r.state.MetadataHash {
		u.epoch++
		r.write(g.EpochRecord(u.epoch, hash))
		m.config.Logger.Debug("consumer group has a new epoch", slog.String("group", g.ID), slog.Int("epoch", int(u.epoch)))
	}
	image, epoch := m.image, u.epoch
	r.then = append(r.then, func(*Effects) { g.seen, g.seenEpoch = image, epoch })
	if r.state.OutdatedPartitions {
		r.write(g.Deletion(grouprecord.TypeConsumerPartitions, ""))
	}
}

// plan makes a new target assignment when the group's epoch asks for one and the last one is old enough. It gives the epoch
// and the assignment that hold for the member then.
func (r *round) plan(u *update) (int32, assignor.Partitions, error) {
	last := r.targetOf(u.after)
	if r.state.TargetEpoch >= u.epoch || !r.mayPlan() {
		return r.state.TargetEpoch, last, nil
	}
	members := make([]*consumer.Member, 0, len(r.state.Members)+1)
	placed := false
	for _, mem := range r.state.SortedMembers() {
		if mem.ID != u.after.ID && mem.InstanceID != nil && u.after.InstanceID != nil && *mem.InstanceID == *u.after.InstanceID {
			continue // it is being replaced
		}
		if !placed && mem.ID >= u.after.ID {
			members = append(members, u.after)
			placed = true
		}
		if mem.ID != u.after.ID {
			members = append(members, mem)
		}
	}
	if !placed {
		members = append(members, u.after)
	}
	name := u.counts.PreferredAssignor(r.state.Counts, r.m.config.Consumer.Assignors[0])
	planned, err := r.state.Plan(r.m.image, members, u.counts.Homogeneous(), assignor.ByName(name), r.targetOf)
	if err != nil {
		return 0, nil, errcode.UnknownServerError.Errorf("Failed to compute a new target assignment for epoch %d: %v", u.epoch, err)
	}
	for _, mem := range members {
		if old := r.targetOf(mem); old == nil || !old.Equal(planned[mem.ID]) {
			r.write(r.g.PlannedRecord(mem.ID, planned[mem.ID]))
		}
	}
	r.write(r.g.TargetRecord(u.epoch, r.now.UnixMilli()))
	r.m.config.Logger.Info("consumer group has a new target assignment", slog.String("group", r.g.ID), slog.Int("epoch", int(u.epoch)),
		slog.String("assignor", name), slog.Int("members", len(members)))
	return u.epoch, planned[u.after.ID], nil
}

// mayPlan says whether the last target assignment is old enough for a new one.
func (r *round) mayPlan() bool {
	at, interval := r.state.TargetTimestampMs, r.m.settingsOf(r.g.ID).AssignmentInterval
	return at == 0 || interval == 0 || r.now.UnixMilli() >= at+interval.Milliseconds()
}

// targetOf is what a member is to have; for a static one, what its instance is to have. Nil when nothing has been planned.
func (r *round) targetOf(mem *consumer.Member) assignor.Partitions {
	if mem.InstanceID != nil {
		return r.state.Target[r.state.Static[*mem.InstanceID]]
	}
	return r.state.Target[mem.ID]
}

// reconcile takes a member a step towards its target.
func (r *round) reconcile(u *update, epoch int32, target assignor.Partitions, reported consumer.Reported) {
	if !u.subscribed && u.after.ReconciledTo(epoch) {
		return
	}
	step := consumer.Reconciliation{
		Member: u.after, TargetEpoch: epoch, Target: target, Subscribed: consumer.IDs(r.m.image, r.state.TopicsOf(u.after)),
		SubscriptionChanged: u.subscribed, Owned: r.state.Owned, Reported: reported,
	}
	mem := step.Step()
	if mem.SameProgress(u.after) {
		return
	}
	u.after = mem
	r.write(r.g.ProgressRecord(mem))
	if mem.Classic != nil {
		return
	}
	r.then = append(r.then, func(*Effects) {
		if mem.State == consumer.Unrevoked {
			r.m.awaitRevocation(r.now, r.g, mem)
		} else {
			r.m.alarms.cancel(&r.m.alarmsOf(r.g, mem.ID).revoke)
		}
	})
}
