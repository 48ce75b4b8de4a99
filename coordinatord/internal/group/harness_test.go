package group

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine/machinetest"
)

// world is a machine, and what it has given away.
type world struct {
	*machinetest.Player[Command, *Record, Reply]
	config Config
	m      *Machine
	ids    int
	// background is work that the machine has given away.
	background         []func() Command
	assignmentInterval time.Duration
	image              *metadata.Image
}

// classic finds a classic group by the newest view.
func (w *world) classic(id string) *Group { return classicOf(w.m, id) }

func classicOf(m *Machine, id string) *Group {
	g, _ := m.find(id).(*Group)
	return g
}

func newWorld(t *testing.T) *world {
	w := &world{}
	w.config = Config{
		InitialRebalanceDelay:         3 * time.Second,
		MaxSize:                       1 << 30,
		OffsetMetadataMaxBytes:        4096,
		OffsetsRetention:              time.Hour,
		OffsetsRetentionCheckInterval: 10 * time.Minute,
		MaxBatchBytes:                 1 << 20,
		NewUUID: func() string {
			w.ids++
			return fmt.Sprintf("uuid%d", w.ids)
		},
		NewID: func() string {
			w.ids++
			return fmt.Sprintf("id%d", w.ids)
		},
		Image:      metadata.Empty("c"),
		Background: func(work func() Command) { w.background = append(w.background, work) },
		Consumer: ConsumerConfig{
			MaxSize: 1 << 30, Assignors: []string{"uniform", "range"}, Upgrade: true, Downgrade: true, RegexRefreshInterval: 10 * time.Minute,
			Settings: func(metadata.Reader, string) ConsumerSettings {
				return ConsumerSettings{SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second, AssignmentInterval: w.assignmentInterval}
			},
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	w.m = New(w.config)
	w.Player = machinetest.Start(t, w.m, time.UnixMilli(1_700_000_000_000))
	return w
}

// replay gives a machine that has been loaded from the log.
func (w *world) replay() *Machine {
	w.T.Helper()
	m := New(w.config)
	w.Replay(Codec{}, m)
	return m
}

// reload goes on with a machine that has been loaded from the log.
func (w *world) reload() {
	w.m = w.replay()
	w.Restart(w.m)
}

func reply[T any](w *world, t Ticket) T {
	w.T.Helper()
	return machinetest.Reply[T](w.Player, t)
}

func (w *world) code(what string, got int16, want errcode.Code) {
	w.T.Helper()
	if errcode.Code(got) != want {
		w.T.Fatalf("%s: %s, want %s", what, errcode.Code(got).Name(), want.Name())
	}
}

// client is a member as its client sees it.
type client struct {
	w          *world
	group      string
	id         string
	instance   *string
	version    int16
	session    int32
	rebalance  int32
	protocols  []string
	kind       string
	generation int32
	leader     bool
	members    int
	ticket     Ticket
}

func (w *world) client(group string) *client {
	return &client{w: w, group: group, version: 9, session: 10000, rebalance: 60000, protocols: []string{"range"}, kind: "consumer"}
}

func (c *client) static(instance string) *client {
	c.instance = &instance
	return c
}

func subscription(topics ...string) []byte {
	b := []byte{0, 1, 0, 0, 0, byte(len(topics))}
	for _, t := range topics {
		b = append(append(b, 0, byte(len(t))), t...)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
}

// sendJoin sends JoinGroup, and again with the id when it is told to.
func (c *client) sendJoin() Ticket {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = c.version, c.group, c.id, c.instance, c.kind
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = c.session, c.rebalance
	for _, p := range c.protocols {
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: subscription("t")})
	}
	c.ticket = c.w.Do(&Join{Request: req, ClientID: "client", ClientHost: "/127.0.0.1"})
	if a, ok := c.w.Answers[c.ticket]; ok {
		if r, ok := a.Reply.(*kmsg.JoinGroupResponse); ok && errcode.Code(r.ErrorCode) == errcode.MemberIdRequired {
			c.id = r.MemberID
			return c.sendJoin()
		}
	}
	return c.ticket
}

// joined takes in the answer to the last JoinGroup.
func (c *client) joined() *kmsg.JoinGroupResponse {
	c.w.T.Helper()
	r := reply[*kmsg.JoinGroupResponse](c.w, c.ticket)
	c.w.code("JoinGroup", r.ErrorCode, errcode.None)
	c.id, c.generation, c.leader, c.members = r.MemberID, r.Generation, r.LeaderID == r.MemberID, len(r.Members)
	return r
}

func (c *client) sendSync(assignments map[string]string) Ticket {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 5, c.group, c.id, c.instance, c.generation
	for id, a := range assignments {
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: id, MemberAssignment: []byte(a)})
	}
	c.ticket = c.w.Do(&Sync{Request: req})
	return c.ticket
}

func (c *client) synced(want string) {
	c.w.T.Helper()
	r := reply[*kmsg.SyncGroupResponse](c.w, c.ticket)
	c.w.code("SyncGroup", r.ErrorCode, errcode.None)
	if string(r.MemberAssignment) != want {
		c.w.T.Fatalf("assignment is %q, want %q", r.MemberAssignment, want)
	}
}

func (c *client) heartbeat() errcode.Code {
	c.w.T.Helper()
	return reply[errcode.Code](c.w, c.w.Do(&Heartbeat{Group: c.group, MemberID: c.id, InstanceID: c.instance, Generation: c.generation}))
}

func (c *client) leave() errcode.Code {
	c.w.T.Helper()
	r := reply[LeaveReply](c.w, c.w.Do(&Leave{Group: c.group, Members: []LeavingMember{{ID: c.id}}}))
	return r.Codes[0]
}

func (c *client) commit(topic string, partition int32, offset int64) errcode.Code {
	c.w.T.Helper()
	r := reply[CommitReply](c.w, c.w.Do(c.commitCommand(topic, partition, offset)))
	if r.Code != errcode.None {
		return r.Code
	}
	return r.Codes[0]
}

func (c *client) commitCommand(topic string, partition int32, offset int64) *CommitOffsets {
	return &CommitOffsets{
		Group: c.group, MemberID: c.id, InstanceID: c.instance, Generation: c.generation, APIVersion: 9, RetentionMs: -1,
		Offsets: []OffsetToCommit{{Key: offsets.Key{Topic: topic, Partition: partition}, TopicID: uuid.UUID{1}, Offset: offset, LeaderEpoch: -1}},
	}
}

// commitOutside commits without being a member.
func (w *world) commitOutside(group, topic string, partition int32, offset int64) errcode.Code {
	w.T.Helper()
	c := &client{w: w, group: group, generation: -1}
	return c.commit(topic, partition, offset)
}

func (w *world) fetch(group, topic string, partition int32, stable bool) FetchedOffset {
	w.T.Helper()
	r := reply[FetchReply](w, w.Do(&FetchOffsets{Group: group, RequireStable: stable, MemberEpoch: -1,
		Partitions: []PartitionToFetch{{Key: offsets.Key{Topic: topic, Partition: partition}}}}))
	return r.Offsets[0]
}

func (w *world) describe(id string) DescribedGroup {
	w.T.Helper()
	return reply[[]DescribedGroup](w, w.Do(&DescribeGroups{IDs: []string{id}}))[0]
}

func (w *world) state(id, want string) {
	w.T.Helper()
	if got := w.describe(id).State; got != want {
		w.T.Fatalf("group %s is %s, want %s", id, got, want)
	}
}

// alone makes a stable group of one member.
func (c *client) alone(assignment string) *client {
	c.w.T.Helper()
	c.sendJoin()
	c.w.After(3 * time.Second)
	c.joined()
	c.sendSync(map[string]string{c.id: assignment})
	c.synced(assignment)
	return c
}

// joinBoth has two clients join a new group, and neither sync.
func joinBoth(a, b *client) {
	a.w.T.Helper()
	a.sendJoin()
	b.sendJoin()
	a.w.After(6 * time.Second)
	a.joined()
	b.joined()
}

// both makes two members a stable group; the first leads.
func both(a, b *client) {
	a.w.T.Helper()
	joinBoth(a, b)
	b.sendSync(nil)
	a.sendSync(map[string]string{a.id: "half", b.id: "other half"})
	a.synced("half")
}
