package group

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
)

// consumerProtocolType is the protocol type of consumers, whose subscriptions the coordinator can read.
const consumerProtocolType = "consumer"

// state is the state of a classic group.
//
//	Empty -> PreparingRebalance -> CompletingRebalance -> Stable
//	  ^            |  ^  ^                 |                 |
//	  +------------+  |  +-----------------+                 |
//	                  +--------------------------------------+
type state int8

const (
	// empty: no members; there may be offsets.
	empty state = iota
	// preparingRebalance: waits for the members to join.
	preparingRebalance
	// completingRebalance: everyone has joined; waits for the leader's assignment.
	completingRebalance
	// stable: everyone has its assignment.
	stable
)

// stateDead is what is told about a group that does not exist.
const stateDead = "Dead"

func (s state) String() string {
	switch s {
	case empty:
		return "Empty"
	case preparingRebalance:
		return "PreparingRebalance"
	case completingRebalance:
		return "CompletingRebalance"
	case stable:
		return "Stable"
	}
	return stateDead
}

// protocol is a way to assign partitions that a member can take part in, with what its client says about it.
type protocol struct {
	name     string
	metadata []byte
}

// member is a member of a classic group.
type member struct {
	id         string
	instanceID *string
	clientID   string
	clientHost string
	// The time-outs are in milliseconds, as the client gave them and as they are stored.
	rebalanceTimeoutMs int32
	sessionTimeoutMs   int32
	protocols          []protocol
	assignment         []byte

	// join and sync are the requests that wait; zero when there is none.
	join, sync Ticket
	// isNew says that the member waits in its first JoinGroup, so that waiting does not keep it alive for ever.
	isNew bool
	// session is when the member is taken for dead.
	session alarm
}

func (m *member) isStatic() bool { return m.instanceID != nil }

// metadata is what the member's client says for a protocol; nil when it does not support it.
func (m *member) metadata(protocol string) []byte {
	for _, p := range m.protocols {
		if p.name == protocol {
			return p.metadata
		}
	}
	return nil
}

// matches says whether the client still says the same.
func (m *member) matches(protocols []protocol) bool {
	return slices.EqualFunc(m.protocols, protocols, func(a, b protocol) bool {
		return a.name == b.name && string(a.metadata) == string(b.metadata)
	})
}

// vote is the member's favourite among candidates.
func (m *member) vote(candidates map[string]bool) string {
	for _, p := range m.protocols {
		if candidates[p.name] {
			return p.name
		}
	}
	return ""
}

// Group is a classic group: a consumer group, a Connect cluster, or only a name under which offsets are committed.
type Group struct {
	id       string
	state    state
	previous state
	// sinceMs is when the state began, -1 when that is not known.
	sinceMs int64

	// protocolType is empty for a group that never had members.
	protocolType string
	// protocol is the one that was chosen for the generation; nil when there is none.
	protocol   *string
	generation int32
	// assigning is the generation whose assignment the leader has given; it is given once.
	assigning int32
	// leader is a member's id; empty when there are no members.
	leader string

	members map[string]*member
	// order is the members in the order in which they came.
	order []*member
	// static gives the member of an instance id.
	static map[string]*member
	// pendingJoin are the ids that were given out and not yet joined with, and when they lapse.
	pendingJoin map[string]*alarm
	// pendingSync are the members that have not asked for their assignment in this generation.
	pendingSync map[string]struct{}
	// awaitingJoin counts the members that wait in JoinGroup.
	awaitingJoin int
	// supported counts for each protocol the members that support it.
	supported map[string]int
	// subscribed are the topics of a consumer group's members; nil when it is not known.
	subscribed map[string]struct{}
	// newMemberAdded says that the initial rebalance may wait longer for more members.
	newMemberAdded bool

	joinAlarm alarm
	syncAlarm alarm
}

func newGroup(id string, nowMs int64) *Group {
	return &Group{
		id:          id,
		assigning:   -1,
		sinceMs:     nowMs,
		members:     map[string]*member{},
		static:      map[string]*member{},
		pendingJoin: map[string]*alarm{},
		pendingSync: map[string]struct{}{},
		supported:   map[string]int{},
	}
}

// groupFromRecord is the group that a metadata record describes.
func groupFromRecord(id string, v *kmsg.GroupMetadataValue) *Group {
	g := newGroup(id, v.CurrentStateTimestamp)
	g.protocolType, g.protocol, g.generation = v.ProtocolType, v.Protocol, v.Generation
	if v.Leader != nil {
		g.leader = *v.Leader
	}
	chosen := ""
	if v.Protocol != nil {
		chosen = *v.Protocol
	}
	for i := range v.Members {
		from := &v.Members[i]
		m := &member{
			id:                 from.MemberID,
			instanceID:         from.InstanceID,
			clientID:           from.ClientID,
			clientHost:         from.ClientHost,
			rebalanceTimeoutMs: from.RebalanceTimeoutMillis,
			sessionTimeoutMs:   from.SessionTimeoutMillis,
			protocols:          []protocol{{name: chosen, metadata: from.Subscription}},
			assignment:         from.Assignment,
		}
		if m.rebalanceTimeoutMs == -1 {
			m.rebalanceTimeoutMs = m.sessionTimeoutMs
		}
		g.insert(m)
		g.state = stable
	}
	g.subscribed = g.subscriptions()
	return g
}

// record is the metadata record of the group as it is, with the given assignments by member.
func (g *Group) record(assignments map[string][]byte) *Record {
	v := kmsg.NewGroupMetadataValue()
	v.ProtocolType, v.Generation, v.Protocol, v.CurrentStateTimestamp = g.protocolType, g.generation, g.protocol, g.sinceMs
	if g.leader != "" {
		leader := g.leader
		v.Leader = &leader
	}
	chosen := g.chosenProtocol()
	for _, m := range g.order {
		to := kmsg.NewGroupMetadataValueMember()
		to.MemberID, to.InstanceID, to.ClientID, to.ClientHost = m.id, m.instanceID, m.clientID, m.clientHost
		to.RebalanceTimeoutMillis, to.SessionTimeoutMillis = m.rebalanceTimeoutMs, m.sessionTimeoutMs
		to.Subscription, to.Assignment = m.metadata(chosen), assignments[m.id]
		v.Members = append(v.Members, to)
	}
	return &Record{kind: groupRecord, groupID: g.id, producerID: noProducer, metadata: &v, group: g}
}

// creationRecord says that the group exists and has no members yet, whatever has been going on since.
func (g *Group) creationRecord() *Record {
	v := kmsg.NewGroupMetadataValue()
	v.CurrentStateTimestamp = g.sinceMs
	return &Record{kind: groupRecord, groupID: g.id, producerID: noProducer, metadata: &v, group: g}
}

func (g *Group) chosenProtocol() string {
	if g.protocol == nil {
		return ""
	}
	return *g.protocol
}

func (g *Group) transition(to state, nowMs int64) {
	g.previous, g.state, g.sinceMs = g.state, to, nowMs
}

// insert adds a member. The first one leads.
func (g *Group) insert(m *member) {
	if g.leader == "" {
		g.leader = m.id
	}
	g.members[m.id] = m
	g.order = append(g.order, m)
	if m.instanceID != nil {
		g.static[*m.instanceID] = m
	}
	g.countProtocols(m, 1)
	if m.join != 0 {
		g.awaitingJoin++
	}
}

func (g *Group) countProtocols(m *member, by int) {
	for _, p := range m.protocols {
		if g.supported[p.name] += by; g.supported[p.name] == 0 {
			delete(g.supported, p.name)
		}
	}
}

// drop takes a member out of the lists and gives the lead to the one that has been there longest.
func (g *Group) drop(m *member) {
	delete(g.members, m.id)
	g.order = slices.DeleteFunc(g.order, func(o *member) bool { return o == m })
	if m.instanceID != nil && g.static[*m.instanceID] == m {
		delete(g.static, *m.instanceID)
	}
	delete(g.pendingSync, m.id)
	g.countProtocols(m, -1)
	if m.join != 0 {
		g.awaitingJoin--
	}
	if g.leader == m.id {
		g.leader = ""
		if len(g.order) > 0 {
			g.leader = g.order[0].id
		}
	}
}

// allJoined says whether nobody is missing in the join phase.
func (g *Group) allJoined() bool {
	return len(g.members) == g.awaitingJoin && len(g.pendingJoin) == 0
}

// supports says whether a member with these protocols can take part together with the others.
func (g *Group) supports(protocolType string, protocols []protocol) bool {
	if g.state == empty {
		return protocolType != "" && len(protocols) > 0
	}
	return g.protocolType == protocolType && slices.ContainsFunc(protocols, func(p protocol) bool {
		return g.supported[p.name] == len(g.members)
	})
}

// selectProtocol is the protocol that most members like best among those that all support. Of equally liked ones it is the
// one that Apache Kafka takes, which is the first in the order of its table of votes.
func (g *Group) selectProtocol() string {
	candidates := map[string]bool{}
	for name, n := range g.supported {
		if n == len(g.members) {
			candidates[name] = true
		}
	}
	votes := map[string]int{}
	best := ""
	for _, m := range g.order {
		votes[m.vote(candidates)]++
	}
	for _, m := range g.order {
		v := m.vote(candidates)
		if best == "" || votes[v] > votes[best] || votes[v] == votes[best] && hash.TableSlot(v, len(votes)) < hash.TableSlot(best, len(votes)) {
			best = v
		}
	}
	return best
}

// nextGeneration begins a generation with the members that are there.
func (g *Group) nextGeneration(nowMs int64) {
	g.generation++
	if len(g.members) == 0 {
		g.protocol = nil
		g.transition(empty, nowMs)
	} else {
		chosen := g.selectProtocol()
		g.protocol = &chosen
		g.transition(completingRebalance, nowMs)
	}
	g.subscribed = g.subscriptions()
	clear(g.pendingSync)
}

// rebalanceTimeout is the longest that a member asks for.
func (g *Group) rebalanceTimeout() time.Duration {
	longest := int32(0)
	for _, m := range g.order {
		longest = max(longest, m.rebalanceTimeoutMs)
	}
	return time.Duration(longest) * time.Millisecond
}

// validateMember finds who asks: a member by its id, which for a static member must be the one of its instance.
func (g *Group) validateMember(memberID string, instanceID *string) (*member, errcode.Code) {
	if instanceID != nil {
		owner := g.static[*instanceID]
		if owner == nil {
			return nil, errcode.UnknownMemberId
		}
		if owner.id != memberID {
			return nil, errcode.FencedInstanceId
		}
	}
	m := g.members[memberID]
	if m == nil {
		return nil, errcode.UnknownMemberId
	}
	return m, errcode.None
}

// subscribedTo says whether members consume a topic; when their subscriptions cannot be read, consumers may.
func (g *Group) subscribedTo(topic string) bool {
	if g.subscribed == nil {
		return g.protocolType == consumerProtocolType
	}
	_, ok := g.subscribed[topic]
	return ok
}

// subscriptions collects the topics that the members subscribe to; nil when that cannot be known.
func (g *Group) subscriptions() map[string]struct{} {
	if g.protocolType != consumerProtocolType {
		return nil
	}
	topics := map[string]struct{}{}
	if len(g.members) == 0 {
		return topics
	}
	if g.protocol == nil {
		return nil
	}
	for _, m := range g.order {
		names, err := subscribedTopics(m.metadata(*g.protocol))
		if err != nil {
			return nil
		}
		for _, name := range names {
			topics[name] = struct{}{}
		}
	}
	return topics
}

var errSubscription = errors.New("not a consumer's subscription")

// subscribedTopics reads the topics of a ConsumerProtocolSubscription. They come first in every version: int16 version,
// int32 count, strings with int16 lengths.
func subscribedTopics(b []byte) ([]string, error) {
	if len(b) < 6 || int16(binary.BigEndian.Uint16(b)) < 0 {
		return nil, errSubscription
	}
	count := int64(int32(binary.BigEndian.Uint32(b[2:])))
	b = b[6:]
	if count < 0 || count*2 > int64(len(b)) {
		return nil, errSubscription
	}
	topics := make([]string, 0, count)
	for range count {
		if len(b) < 2 {
			return nil, errSubscription
		}
		n := int(int16(binary.BigEndian.Uint16(b)))
		if b = b[2:]; n < 0 || n > len(b) {
			return nil, errSubscription
		}
		topics = append(topics, string(b[:n]))
		b = b[n:]
	}
	return topics, nil
}
