package consumer

import (
	"maps"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/uuid"
)

// Reconciliation is one step of a member towards its target assignment:
//
//	Stable ──► Unrevoked: gives up what it is not to have any more, at its old epoch
//	       ──► Unreleased: is at the new epoch, and waits for what others still have
//	       ──► Stable: has everything
type Reconciliation struct {
	Member *Member
	// TargetEpoch and Target are what the member is to reach.
	TargetEpoch int32
	Target      assignor.Partitions
	// Subscribed are the topics that the member subscribes to: what it has of others is taken away at once, even
	// before a target assignment without them is made.
	Subscribed map[uuid.UUID]struct{}
	// SubscriptionChanged says that they are not those of the last step.
	SubscriptionChanged bool
	// Owned says whether a partition is anyone's at the moment.
	Owned func(topic uuid.UUID, partition int32) bool
	// Reported is what the member says it has; nil when it does not say.
	Reported Reported
}

// Reported is what a member says it has.
type Reported map[uuid.UUID][]int32

// Within says whether all of it is part of what the member has by the books.
func (r Reported) Within(o Owned) bool {
	for topic, partitions := range r {
		for _, p := range partitions {
			if !o.Has(topic, p) {
				return false
			}
		}
		if o[topic] == nil {
			return false
		}
	}
	return true
}

// Step gives the member after the step; the same pointer when nothing is to be done.
func (r *Reconciliation) Step() *Member {
	m := r.Member
	switch m.State {
	case Stable:
		switch {
		case m.Epoch != r.TargetEpoch:
			return r.advance()
		case r.SubscriptionChanged:
			return r.dropUnsubscribed()
		}
		return m
	case Unreleased:
		return r.advance()
	default:
		// Unrevoked, or a state that is not known, of which the safe side is taken: the member has given partitions up when it
		// does not report them any more.
		if !r.stillHas(m.PendingRemoval) {
			return r.advance()
		}
		if r.SubscriptionChanged {
			return r.dropUnsubscribed()
		}
		return m
	}
}

// stillHas says whether the member reports, or may have, any of the partitions.
func (r *Reconciliation) stillHas(o Owned) bool {
	if r.Reported == nil {
		return true
	}
	for topic, partitions := range r.Reported {
		for _, p := range partitions {
			if o.Has(topic, p) {
				return true
			}
		}
	}
	return false
}

// at is the member at an epoch, with what it has then.
func (r *Reconciliation) at(epoch int32, s State, assigned, pending Owned) *Member {
	m := *r.Member
	m.PreviousEpoch, m.Epoch, m.State, m.Assigned, m.PendingRemoval = m.Epoch, epoch, s, assigned, pending
	return &m
}

// dropUnsubscribed takes away what the member does not subscribe to any more, without moving it on.
func (r *Reconciliation) dropUnsubscribed() *Member {
	m := r.Member
	assigned, pending := maps.Clone(m.Assigned), maps.Clone(m.PendingRemoval)
	dropped := false
	for topic, partitions := range m.Assigned {
		if _, ok := r.Subscribed[topic]; ok {
			continue
		}
		dropped = true
		delete(assigned, topic)
		if pending == nil {
			pending = Owned{}
		}
		pending[topic] = union(pending[topic], partitions)
	}
	switch {
	case !dropped:
		return m
	case r.stillHas(pending):
		return r.at(m.Epoch, Unrevoked, assigned, pending)
	}
	// It has given them up already.
	return r.at(m.Epoch, m.State, assigned, m.PendingRemoval)
}

func union(a, b map[int32]int32) map[int32]int32 {
	u := maps.Clone(b)
	maps.Copy(u, a)
	return u
}

// advance brings the member as far towards the target as it can go: first it gives up, then it takes.
func (r *Reconciliation) advance() *Member {
	m := r.Member
	kept, pending := r.divide()
	added, waits := r.additions(kept)
	switch {
	case len(pending) > 0 && r.stillHas(pending):
		return r.at(m.Epoch, Unrevoked, kept, pending)
	case waits:
		return r.at(r.TargetEpoch, Unreleased, added, nil)
	}
	return r.at(r.TargetEpoch, Stable, added, nil)
}

// divide parts what the member has into what it keeps and what it must give up.
func (r *Reconciliation) divide() (kept, pending Owned) {
	kept, pending = Owned{}, Owned{}
	for topic, partitions := range r.Member.Assigned {
		wanted := r.wanted(topic)
		for p, epoch := range partitions {
			to := pending
			if wanted[p] {
				to = kept
			}
			put(to, topic, p, epoch)
		}
	}
	return kept, pending
}

// wanted are the partitions of a topic that the member is to have.
func (r *Reconciliation) wanted(topic uuid.UUID) map[int32]bool {
	if _, ok := r.Subscribed[topic]; !ok {
		return nil
	}
	set := make(map[int32]bool, len(r.Target[topic]))
	for _, p := range r.Target[topic] {
		set[p] = true
	}
	return set
}

// additions adds what is free to what the member keeps, and says whether something is not free yet. What the member itself
// was about to give up counts as free.
func (r *Reconciliation) additions(kept Owned) (all Owned, waits bool) {
	all = make(Owned, len(kept))
	for topic, partitions := range kept {
		all[topic] = maps.Clone(partitions)
	}
	for topic := range r.Target {
		for p := range r.wanted(topic) {
			switch {
			case kept.Has(topic, p):
			case r.Owned(topic, p) && !r.Member.PendingRemoval.Has(topic, p):
				waits = true
			default:
				put(all, topic, p, r.TargetEpoch)
			}
		}
	}
	return all, waits
}

func put(o Owned, topic uuid.UUID, partition, epoch int32) {
	if o[topic] == nil {
		o[topic] = map[int32]int32{}
	}
	o[topic][partition] = epoch
}
