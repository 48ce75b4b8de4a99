// Package consumer is the state of a consumer group (KIP-848) and the rules by which members are brought to what the group
// has planned for them.
//
// It owns members, epochs, the target assignment, what members have at the moment, and how records change all that. It must
// never decide when something happens, keep time-outs or talk to anyone: that is package group.
package consumer

import (
	"maps"
	"slices"

	"chancery/coordinatord/internal/assignor"
	"chancery/services/kafka/grouprecord"
	"chancery/services/kafka/uuid"
)

// The member epochs that stand for something else.
const (
	// Joining is the epoch of a member that joins.
	Joining int32 = 0
	// Left is that of a member that leaves, or has left.
	Left int32 = -1
	// LeftForAWhile is that of a static member that is going to come back.
	LeftForAWhile int32 = -2
)

// State is how far a member has come on its way to the target assignment; the numbers are those of the records.
type State int8

// The states of a member.
const (
	// Stable: it has what it is to have.
	Stable State = 0
	// Unrevoked: it must give up partitions before anything else.
	Unrevoked State = 1
	// Unreleased: others have not given up yet what it is to get.
	Unreleased State = 2
)

// Owned are partitions by topic, with the epoch at which the member was given each. It is immutable; no inner map is empty.
type Owned map[uuid.UUID]map[int32]int32

// Has says whether a partition is among them.
func (o Owned) Has(topic uuid.UUID, partition int32) bool {
	_, ok := o[topic][partition]
	return ok
}

// SamePartitions says whether the partitions are the same, at whatever epochs.
func (o Owned) SamePartitions(other Owned) bool {
	return maps.EqualFunc(o, other, func(a, b map[int32]int32) bool {
		if len(a) != len(b) {
			return false
		}
		for p := range a {
			if _, ok := b[p]; !ok {
				return false
			}
		}
		return true
	})
}

// Equal says whether partitions and epochs are the same.
func (o Owned) Equal(other Owned) bool {
	return maps.EqualFunc(o, other, func(a, b map[int32]int32) bool { return maps.Equal(a, b) })
}

// AtEpoch are the partitions of an assignment, given at an epoch.
func AtEpoch(p assignor.Partitions, epoch int32) Owned {
	o := make(Owned, len(p))
	for topic, list := range p {
		partitions := make(map[int32]int32, len(list))
		for _, n := range list {
			partitions[n] = epoch
		}
		o[topic] = partitions
	}
	return o
}

// Since are the partitions, all given at the same epoch.
func (o Owned) Since(epoch int32) Owned { return AtEpoch(o.Partitions(), epoch) }

// Partitions are the partitions without the epochs.
func (o Owned) Partitions() assignor.Partitions {
	p := make(assignor.Partitions, len(o))
	for topic, partitions := range o {
		p[topic] = slices.Sorted(maps.Keys(partitions))
	}
	return p
}

// Member is a member of a consumer group; immutable.
type Member struct {
	ID string
	// Epoch is that of the target assignment which the member has reached.
	Epoch, PreviousEpoch int32
	State                State

	InstanceID, RackID *string
	ClientID           string
	ClientHost         string
	RebalanceTimeoutMs int32
	// Topics are the names that it subscribes to, sorted and without doubles; Regex an expression beside them, or empty.
	Topics   []string
	Regex    string
	Assignor *string
	// Classic is set for a member that speaks the classic protocol.
	Classic *grouprecord.ClassicMember

	// Assigned is what it has, or is told to take; PendingRemoval what it has and must give up.
	Assigned, PendingRemoval Owned
}

// NewMember is a member that has only just come.
func NewMember(id string) *Member {
	return &Member{ID: id, PreviousEpoch: -1, RebalanceTimeoutMs: -1}
}

// ReconciledTo says whether the member has all of the target assignment of an epoch.
func (m *Member) ReconciledTo(epoch int32) bool { return m.State == Stable && m.Epoch == epoch }

// SameDescription says whether the member says the same about itself.
func (m *Member) SameDescription(o *Member) bool {
	return sameText(m.InstanceID, o.InstanceID) && sameText(m.RackID, o.RackID) && m.ClientID == o.ClientID &&
		m.ClientHost == o.ClientHost && m.RebalanceTimeoutMs == o.RebalanceTimeoutMs && slices.Equal(m.Topics, o.Topics) &&
		m.Regex == o.Regex && sameText(m.Assignor, o.Assignor) && sameClassic(m.Classic, o.Classic)
}

// SameProgress says whether the member is at the same point of its way.
func (m *Member) SameProgress(o *Member) bool {
	return m.Epoch == o.Epoch && m.PreviousEpoch == o.PreviousEpoch && m.State == o.State &&
		m.Assigned.Equal(o.Assigned) && m.PendingRemoval.Equal(o.PendingRemoval)
}

func sameText(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameClassic(a, b *grouprecord.ClassicMember) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SessionTimeoutMs == b.SessionTimeoutMs && slices.EqualFunc(a.Protocols, b.Protocols, func(x, y grouprecord.ClassicProtocol) bool {
		return x.Name == y.Name && string(x.Metadata) == string(y.Metadata)
	})
}

// SortTopics gives topic names the form in which members keep them.
func SortTopics(names []string) []string {
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// description is the record of what the member says about itself.
func (m *Member) description() *grouprecord.ConsumerMember {
	regex := m.Regex
	return &grouprecord.ConsumerMember{
		InstanceID: m.InstanceID, RackID: m.RackID, ClientID: m.ClientID, ClientHost: m.ClientHost, Topics: m.Topics, Regex: &regex,
		RebalanceTimeoutMs: m.RebalanceTimeoutMs, Assignor: m.Assignor, Classic: m.Classic,
	}
}

// describedBy is the member with another description.
func (m *Member) describedBy(r *grouprecord.ConsumerMember) *Member {
	n := *m
	n.InstanceID, n.RackID, n.ClientID, n.ClientHost = r.InstanceID, r.RackID, r.ClientID, r.ClientHost
	n.Topics, n.Regex, n.RebalanceTimeoutMs, n.Assignor, n.Classic = SortTopics(r.Topics), "", r.RebalanceTimeoutMs, r.Assignor, r.Classic
	if r.Regex != nil {
		n.Regex = *r.Regex
	}
	return &n
}

// progress is the record of how far the member has come.
func (m *Member) progress() *grouprecord.ConsumerCurrent {
	return &grouprecord.ConsumerCurrent{
		Epoch: m.Epoch, PreviousEpoch: m.PreviousEpoch, State: int8(m.State),
		Assigned: ownedTopics(m.Assigned), PendingRemoval: ownedTopics(m.PendingRemoval),
	}
}

// at is the member at another point of its way.
func (m *Member) at(r *grouprecord.ConsumerCurrent) *Member {
	n := *m
	n.Epoch, n.PreviousEpoch, n.State = r.Epoch, r.PreviousEpoch, State(r.State)
	n.Assigned, n.PendingRemoval = ownedOf(r.Assigned, r.Epoch), ownedOf(r.PendingRemoval, r.Epoch)
	return &n
}

// gone is the member that has left, until its description goes, too.
func (m *Member) gone() *Member {
	n := *m
	n.Epoch, n.PreviousEpoch, n.Assigned, n.PendingRemoval = Left, Left, nil, nil
	return &n
}

func ownedTopics(o Owned) []grouprecord.TopicPartitions {
	list := make([]grouprecord.TopicPartitions, 0, len(o))
	for _, topic := range slices.SortedFunc(maps.Keys(o), compareIDs) {
		t := grouprecord.TopicPartitions{TopicID: topic, Partitions: slices.Sorted(maps.Keys(o[topic]))}
		for _, p := range t.Partitions {
			t.Epochs = append(t.Epochs, o[topic][p])
		}
		list = append(list, t)
	}
	return list
}

// ownedOf reads partitions; older records have no epochs, which then are the member's.
func ownedOf(list []grouprecord.TopicPartitions, memberEpoch int32) Owned {
	o := make(Owned, len(list))
	for _, t := range list {
		if len(t.Partitions) == 0 {
			continue
		}
		partitions := make(map[int32]int32, len(t.Partitions))
		for i, p := range t.Partitions {
			partitions[p] = max(memberEpoch, 0)
			if t.Epochs != nil {
				partitions[p] = t.Epochs[i]
			}
		}
		o[t.TopicID] = partitions
	}
	return o
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
