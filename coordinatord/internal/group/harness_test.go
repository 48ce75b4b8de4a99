package group

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/offsets"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// told is what a caller was told.
type told struct {
	reply Reply
	code  errcode.Code
}

// world plays the runtime for a machine: one batch at a time, and a log in memory.
type world struct {
	t       *testing.T
	config  Config
	m       *Machine
	now     time.Time
	out     Effects
	last    Ticket
	answers map[Ticket]told
	// waiting are the answers that wait for the records that are not settled.
	waiting []Ticket
	held    map[Ticket]told
	pending []*Record
	log     []*Record
	// manual leaves it to the test when records are settled.
	manual bool
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
	w := &world{t: t, now: time.UnixMilli(1_700_000_000_000), answers: map[Ticket]told{}, held: map[Ticket]told{}}
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
	w.m.Loaded(w.now, &w.out)
	w.carryOut()
	return w
}

func (w *world) carryOut() {
	records := append([]*Record(nil), w.out.Records()...)
	type late struct {
		t Ticket
		told
	}
	var after []late
	w.out.Answers(func(t Ticket, reply Reply, code errcode.Code, durable bool) {
		if durable {
			after = append(after, late{t, told{reply, code}})
			return
		}
		w.tell(t, told{reply, code})
	})
	w.out.Reset()
	for _, r := range records {
		w.m.Apply(r)
	}
	w.pending = append(w.pending, records...)
	for _, a := range after {
		if len(w.pending) == 0 {
			w.tell(a.t, a.told)
		} else {
			w.waiting = append(w.waiting, a.t)
			w.held[a.t] = a.told
		}
	}
	if !w.manual && len(w.pending) > 0 {
		w.commit()
	}
}

func (w *world) tell(t Ticket, a told) {
	if _, ok := w.answers[t]; !ok {
		w.answers[t] = a
	}
}

// commit makes everything durable that is on its way.
func (w *world) commit() {
	records, waiting := w.pending, w.waiting
	w.pending, w.waiting = nil, nil
	for _, r := range records {
		w.m.Commit(w.now, int64(len(w.log)), r, &w.out)
		w.log = append(w.log, r)
	}
	for _, t := range waiting {
		w.tell(t, w.held[t])
	}
	w.carryOut()
}

// fail takes everything back that is on its way.
func (w *world) fail(code errcode.Code) {
	records, waiting := w.pending, w.waiting
	w.pending, w.waiting = nil, nil
	for _, t := range waiting {
		w.tell(t, told{code: code})
	}
	w.m.Rollback(w.now, records, code, &w.out)
	w.carryOut()
}

// do carries out a command.
func (w *world) do(c Command) Ticket {
	w.last++
	t := w.last
	w.m.Decide(w.now, t, c, &w.out)
	w.carryOut()
	return t
}

// after lets time pass, alarm by alarm.
func (w *world) after(d time.Duration) {
	end := w.now.Add(d)
	for {
		due := w.m.Due()
		if due.IsZero() || due.After(end) {
			break
		}
		if due.After(w.now) {
			w.now = due
		}
		w.m.Tick(w.now, &w.out)
		w.carryOut()
	}
	w.now = end
	w.m.Tick(w.now, &w.out)
	w.carryOut()
}

// replay gives a machine that has been loaded from the log, through bytes.
func (w *world) replay() *Machine {
	w.t.Helper()
	m := New(w.config)
	var codec Codec
	for i, r := range w.log {
		o, frame := recordbatch.NewOptions(), codec.Frame(r)
		o.BaseOffset, o.ProducerID, o.ProducerEpoch = int64(i), frame.ProducerID, frame.ProducerEpoch
		o.Transactional, o.Control = frame.ProducerID != noProducer, frame.Control
		b := recordbatch.NewBuilder(nil, o)
		bytes, at, hasValue := codec.Encode(nil, r)
		var value []byte
		if hasValue {
			value = bytes[at:]
		}
		b.Append(w.now.UnixMilli(), bytes[:at], value)
		batch, err := b.Build()
		if err != nil {
			w.t.Fatal(err)
		}
		records := recordbatch.RecordsOf(batch)
		for records.Next() {
			r, ok, err := codec.Decode(recordbatch.Header(batch), records.Record())
			if err != nil || !ok {
				w.t.Fatalf("decode: %v %v", ok, err)
			}
			m.Apply(r)
			m.Commit(w.now, records.Record().Offset, r, &Effects{})
		}
		if err := records.Err(); err != nil {
			w.t.Fatal(err)
		}
	}
	return m
}

func reply[A any](w *world, t Ticket) A {
	w.t.Helper()
	a, ok := w.answers[t]
	if !ok {
		w.t.Fatalf("ticket %d has no answer", t)
	}
	r, ok := a.reply.(A)
	if !ok {
		w.t.Fatalf("ticket %d: answer is %T %v (code %s)", t, a.reply, a.reply, a.code.Name())
	}
	return r
}

func (w *world) silent(t Ticket) {
	w.t.Helper()
	if a, ok := w.answers[t]; ok {
		w.t.Fatalf("ticket %d is answered: %+v", t, a)
	}
}

func (w *world) code(what string, got int16, want errcode.Code) {
	w.t.Helper()
	if errcode.Code(got) != want {
		w.t.Fatalf("%s: %s, want %s", what, errcode.Code(got).Name(), want.Name())
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
	c.ticket = c.w.do(&Join{Request: req, ClientID: "client", ClientHost: "/127.0.0.1"})
	if a, ok := c.w.answers[c.ticket]; ok {
		if r, ok := a.reply.(*kmsg.JoinGroupResponse); ok && errcode.Code(r.ErrorCode) == errcode.MemberIdRequired {
			c.id = r.MemberID
			return c.sendJoin()
		}
	}
	return c.ticket
}

// joined takes in the answer to the last JoinGroup.
func (c *client) joined() *kmsg.JoinGroupResponse {
	c.w.t.Helper()
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
	c.ticket = c.w.do(&Sync{Request: req})
	return c.ticket
}

func (c *client) synced(want string) {
	c.w.t.Helper()
	r := reply[*kmsg.SyncGroupResponse](c.w, c.ticket)
	c.w.code("SyncGroup", r.ErrorCode, errcode.None)
	if string(r.MemberAssignment) != want {
		c.w.t.Fatalf("assignment is %q, want %q", r.MemberAssignment, want)
	}
}

func (c *client) heartbeat() errcode.Code {
	c.w.t.Helper()
	return reply[errcode.Code](c.w, c.w.do(&Heartbeat{Group: c.group, MemberID: c.id, InstanceID: c.instance, Generation: c.generation}))
}

func (c *client) leave() errcode.Code {
	c.w.t.Helper()
	r := reply[LeaveReply](c.w, c.w.do(&Leave{Group: c.group, Members: []LeavingMember{{ID: c.id}}}))
	return r.Codes[0]
}

func (c *client) commit(topic string, partition int32, offset int64) errcode.Code {
	c.w.t.Helper()
	r := reply[CommitReply](c.w, c.w.do(c.commitCommand(topic, partition, offset)))
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
	w.t.Helper()
	c := &client{w: w, group: group, generation: -1}
	return c.commit(topic, partition, offset)
}

func (w *world) fetch(group, topic string, partition int32, stable bool) FetchedOffset {
	w.t.Helper()
	r := reply[FetchReply](w, w.do(&FetchOffsets{Group: group, RequireStable: stable, MemberEpoch: -1,
		Partitions: []PartitionToFetch{{Key: offsets.Key{Topic: topic, Partition: partition}}}}))
	return r.Offsets[0]
}

func (w *world) describe(id string) DescribedGroup {
	w.t.Helper()
	return reply[[]DescribedGroup](w, w.do(&DescribeGroups{IDs: []string{id}}))[0]
}

func (w *world) state(id, want string) {
	w.t.Helper()
	if got := w.describe(id).State; got != want {
		w.t.Fatalf("group %s is %s, want %s", id, got, want)
	}
}

// alone makes a stable group of one member.
func (c *client) alone(assignment string) *client {
	c.w.t.Helper()
	c.sendJoin()
	c.w.after(3 * time.Second)
	c.joined()
	c.sendSync(map[string]string{c.id: assignment})
	c.synced(assignment)
	return c
}

// both makes two members a stable group; the first leads.
func both(a, b *client) {
	a.w.t.Helper()
	a.sendJoin()
	b.sendJoin()
	a.w.after(6 * time.Second)
	a.joined()
	b.joined()
	b.sendSync(nil)
	a.sendSync(map[string]string{a.id: "half", b.id: "other half"})
	a.synced("half")
}
