package handler

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/coordinatord/internal/group"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/statemachine"
)

// cluster plays one shard, whose records are durable at once, and the metadata.
type cluster struct {
	t       *testing.T
	h       *Handler
	machine *group.Machine
	now     time.Time
	offset  int64
	last    statemachine.Ticket
	answers map[statemachine.Ticket]group.Reply
	// failure is what the shard answers instead of carrying commands out.
	failure error
	image   *metadata.Image
	// next is the image that Await brings.
	next *metadata.Image
}

var topicID = uuid.UUID{0: 7, 15: 7}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, now: time.UnixMilli(1_700_000_000_000), answers: map[statemachine.Ticket]group.Reply{}}
	n := 0
	c.machine = group.New(group.Config{
		InitialRebalanceDelay: 0, MaxSize: 1 << 30, OffsetMetadataMaxBytes: 4096, OffsetsRetention: time.Hour,
		OffsetsRetentionCheckInterval: time.Hour, MaxBatchBytes: 1 << 20,
		NewUUID: func() string { n++; return fmt.Sprintf("uuid%d", n) },
		NewID:   func() string { n++; return fmt.Sprintf("id%d", n) },
		Image:   metadata.Empty("c"),
		Consumer: group.ConsumerConfig{
			MaxSize: 1 << 30, Assignors: []string{"uniform", "range"}, Upgrade: true, Downgrade: true, RegexRefreshInterval: time.Hour,
			Settings: func(metadata.Reader, string) group.ConsumerSettings {
				return group.ConsumerSettings{SessionTimeout: 45 * time.Second, HeartbeatInterval: 5 * time.Second}
			},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	d := metadata.NewDelta(metadata.Empty("c"))
	err := d.Apply(10, 1, &metarecord.TopicRecord{Name: "a", TopicID: topicID},
		&metarecord.PartitionRecord{TopicID: topicID, PartitionID: 0, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1},
		&metarecord.PartitionRecord{TopicID: topicID, PartitionID: 1, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	if err != nil {
		t.Fatal(err)
	}
	c.image = d.Image()
	c.h = New(Config{MinSessionTimeout: 6 * time.Second, MaxSessionTimeout: 30 * time.Minute, ConsumerProtocol: true, Assignors: []string{"uniform", "range"}}, c, c)
	return c
}

func (c *cluster) Image() metadata.Reader { return c.image }

func (c *cluster) Await(_ context.Context, offset int64) error {
	if c.next != nil {
		c.image = c.next
	}
	if c.image.Offset() < offset {
		return context.DeadlineExceeded
	}
	return nil
}

func (c *cluster) Do(_ context.Context, _ int32, _ int64, command group.Command) (group.Reply, error) {
	if c.failure != nil {
		return nil, c.failure
	}
	c.last++
	t := c.last
	var out group.Effects
	c.machine.Decide(c.now, t, command, &out)
	c.carryOut(&out)
	c.tick()
	reply, ok := c.answers[t]
	if !ok {
		c.t.Fatalf("%T is not answered", command)
	}
	return reply, nil
}

func (c *cluster) DoEach(ctx context.Context, shard int32, offset int64, commands []group.Command) ([]group.Reply, []error) {
	replies, errs := make([]group.Reply, len(commands)), make([]error, len(commands))
	for i, command := range commands {
		replies[i], errs[i] = c.Do(ctx, shard, offset, command)
	}
	return replies, errs
}

func (c *cluster) DoAll(ctx context.Context, _ int64, command group.Command) ([]group.Reply, error) {
	reply, err := c.Do(ctx, 0, 0, command)
	return []group.Reply{reply}, err
}

func (c *cluster) tick() {
	for due := c.machine.Due(); !due.IsZero() && !due.After(c.now); due = c.machine.Due() {
		var out group.Effects
		c.machine.Tick(c.now, &out)
		c.carryOut(&out)
	}
}

func (c *cluster) carryOut(out *group.Effects) {
	for _, r := range out.Records() {
		c.machine.Apply(r)
		var more group.Effects
		c.machine.Commit(c.now, c.offset, r, &more)
		c.offset++
		c.carryOut(&more)
	}
	out.Answers(func(t statemachine.Ticket, reply group.Reply, _ errcode.Code, _ bool) {
		if _, ok := c.answers[t]; !ok {
			c.answers[t] = reply
		}
	})
}

// send sends a request in a version through bytes and gives the response.
func send[R kmsg.Response](c *cluster, version int16, req kmsg.Request) R {
	c.t.Helper()
	req.SetVersion(version)
	client := "kdiff"
	body, err := c.h.Handle(c.t.Context(), 0, &commonv1.Envelope{
		ApiKey: int32(req.Key()), ApiVersion: int32(version), ClientId: &client, ClientHost: "/1.2.3.4", Body: req.AppendTo(nil), MetadataOffset: 10,
	})
	if err != nil {
		c.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), version, err)
	}
	resp := kmsg.ResponseForKey(req.Key())
	resp.SetVersion(version)
	if err := resp.ReadFrom(body); err != nil {
		c.t.Fatalf("%s v%d: %v", kmsg.NameForKey(req.Key()), version, err)
	}
	return resp.(R)
}

func (c *cluster) code(what string, got int16, want errcode.Code) {
	c.t.Helper()
	if errcode.Code(got) != want {
		c.t.Fatalf("%s: %s, want %s", what, errcode.Code(got).Name(), want.Name())
	}
}

func joinRequest(groupID, member string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = groupID, member, "consumer", 30000, 30000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("subscription")}}
	return req
}

func syncRequest(groupID, member string, generation int32, assignment string) *kmsg.SyncGroupRequest {
	kind, protocol := "consumer", "range"
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation, req.ProtocolType, req.Protocol = groupID, member, generation, &kind, &protocol
	req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: member, MemberAssignment: []byte(assignment)}}
	return req
}

// member makes a stable group of one member.
func (c *cluster) member(groupID string) (id string, generation int32) {
	c.t.Helper()
	r := send[*kmsg.JoinGroupResponse](c, 3, joinRequest(groupID, ""))
	c.code("join", r.ErrorCode, errcode.None)
	s := send[*kmsg.SyncGroupResponse](c, 3, syncRequest(groupID, r.MemberID, r.Generation, "assigned"))
	c.code("sync", s.ErrorCode, errcode.None)
	return r.MemberID, r.Generation
}

func heartbeatRequest(groupID, member string, generation int32) *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = groupID, member, generation
	return req
}

func leaveRequest(groupID string, members ...string) *kmsg.LeaveGroupRequest {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = groupID
	for _, m := range members {
		req.MemberID = m
		req.Members = append(req.Members, kmsg.LeaveGroupRequestMember{MemberID: m})
	}
	return req
}

func describeRequest(groups ...string) *kmsg.DescribeGroupsRequest {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = groups
	return req
}

// place is a partition with what is to be committed.
type place struct {
	topic     string
	id        uuid.UUID
	partition int32
	offset    int64
	metadata  string
}

func commitRequest(groupID, member string, generation int32, places ...place) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = groupID, member, generation
	for i, p := range places {
		if i == 0 || places[i-1].topic != p.topic {
			req.Topics = append(req.Topics, kmsg.OffsetCommitRequestTopic{Topic: p.topic, TopicID: p.id})
		}
		x := kmsg.NewOffsetCommitRequestTopicPartition()
		x.Partition, x.Offset, x.LeaderEpoch, x.Metadata = p.partition, p.offset, 0, &p.metadata
		last := &req.Topics[len(req.Topics)-1]
		last.Partitions = append(last.Partitions, x)
	}
	return req
}

// fetchRequest is OffsetFetch in the form of any version; no places means all.
func fetchRequest(groupID string, places ...place) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	g := kmsg.NewOffsetFetchRequestGroup()
	req.Group, g.Group = groupID, groupID
	for _, p := range places {
		req.Topics = append(req.Topics, kmsg.OffsetFetchRequestTopic{Topic: p.topic, Partitions: []int32{p.partition}})
		g.Topics = append(g.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: p.topic, TopicID: p.id, Partitions: []int32{p.partition}})
	}
	req.Groups = []kmsg.OffsetFetchRequestGroup{g}
	return req
}

// fetched is the one partition of an answer, in either form.
func fetched(c *cluster, version int16, r *kmsg.OffsetFetchResponse) kmsg.OffsetFetchResponseGroupTopicPartition {
	c.t.Helper()
	if version >= fetchSeveralGroups {
		if len(r.Groups) != 1 || len(r.Groups[0].Topics) != 1 || len(r.Groups[0].Topics[0].Partitions) != 1 {
			c.t.Fatalf("v%d: %+v", version, r)
		}
		c.code("group", r.Groups[0].ErrorCode, errcode.None)
		return r.Groups[0].Topics[0].Partitions[0]
	}
	c.code("group", r.ErrorCode, errcode.None)
	if len(r.Topics) != 1 || len(r.Topics[0].Partitions) != 1 {
		c.t.Fatalf("v%d: %+v", version, r)
	}
	p := r.Topics[0].Partitions[0]
	return kmsg.OffsetFetchResponseGroupTopicPartition{Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: p.Metadata, ErrorCode: p.ErrorCode}
}
