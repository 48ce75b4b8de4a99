package handler

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/statemachine"
)

func TestJoinGroupVersions(t *testing.T) {
	for v := int16(0); v <= 9; v++ {
		c := newCluster(t)
		r := send[*kmsg.JoinGroupResponse](c, v, joinRequest("g", ""))
		if v >= 4 {
			c.code("without an id", r.ErrorCode, errcode.MemberIdRequired)
			r = send[*kmsg.JoinGroupResponse](c, v, joinRequest("g", r.MemberID))
		}
		c.code("join", r.ErrorCode, errcode.None)
		if r.Generation != 1 || r.LeaderID != r.MemberID || r.MemberID != "kdiff-uuid1" || len(r.Members) != 1 || *r.Protocol != "range" ||
			(v >= 7) != (r.ProtocolType != nil) {
			t.Fatalf("v%d: %+v", v, r)
		}
		for name, tt := range map[string]struct {
			change func(r *kmsg.JoinGroupRequest)
			want   errcode.Code
		}{
			"unknown member": {func(r *kmsg.JoinGroupRequest) { r.MemberID = "nobody" }, errcode.UnknownMemberId},
			"empty group":    {func(r *kmsg.JoinGroupRequest) { r.Group = "" }, errcode.InvalidGroupId},
			"short session":  {func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 10 }, errcode.InvalidSessionTimeout},
			"long session":   {func(r *kmsg.JoinGroupRequest) { r.SessionTimeoutMillis = 2000000 }, errcode.InvalidSessionTimeout},
			"other type":     {func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "connect" }, errcode.InconsistentGroupProtocol},
			"no protocols":   {func(r *kmsg.JoinGroupRequest) { r.Protocols = nil }, errcode.InconsistentGroupProtocol},
			"empty type":     {func(r *kmsg.JoinGroupRequest) { r.ProtocolType = "" }, errcode.InconsistentGroupProtocol},
		} {
			req := joinRequest("g", "")
			tt.change(req)
			r := send[*kmsg.JoinGroupResponse](c, v, req)
			c.code(name, r.ErrorCode, tt.want)
			if r.Generation != -1 || r.MemberID != req.MemberID || v >= 7 && r.Protocol != nil || v < 7 && *r.Protocol != "" {
				t.Fatalf("v%d %s: %+v", v, name, r)
			}
		}
	}
}

func TestSyncGroupVersions(t *testing.T) {
	for v := int16(0); v <= 5; v++ {
		c := newCluster(t)
		id, generation := c.member("g")
		r := send[*kmsg.SyncGroupResponse](c, v, syncRequest("g", id, generation, ""))
		c.code("again", r.ErrorCode, errcode.None)
		if string(r.MemberAssignment) != "assigned" || v >= 5 && (*r.Protocol != "range" || *r.ProtocolType != "consumer") {
			t.Fatalf("v%d: %+v", v, r)
		}
		c.code("generation", send[*kmsg.SyncGroupResponse](c, v, syncRequest("g", id, generation+1, "")).ErrorCode, errcode.IllegalGeneration)
		c.code("member", send[*kmsg.SyncGroupResponse](c, v, syncRequest("g", "nobody", generation, "")).ErrorCode, errcode.UnknownMemberId)
		c.code("group", send[*kmsg.SyncGroupResponse](c, v, syncRequest("other", id, generation, "")).ErrorCode, errcode.UnknownMemberId)
		c.code("empty group", send[*kmsg.SyncGroupResponse](c, v, syncRequest("", id, generation, "")).ErrorCode, errcode.InvalidGroupId)
		if v >= 5 {
			req := syncRequest("", id, generation, "")
			req.Protocol = nil
			c.code("no protocol", send[*kmsg.SyncGroupResponse](c, v, req).ErrorCode, errcode.InconsistentGroupProtocol)
		}
	}
}

func TestHeartbeatVersions(t *testing.T) {
	for v := int16(0); v <= 4; v++ {
		c := newCluster(t)
		id, generation := c.member("g")
		for _, tt := range []struct {
			req  *kmsg.HeartbeatRequest
			want errcode.Code
		}{
			{heartbeatRequest("g", id, generation), errcode.None},
			{heartbeatRequest("g", id, -1), errcode.IllegalGeneration},
			{heartbeatRequest("g", "", generation), errcode.UnknownMemberId},
			{heartbeatRequest("other", id, generation), errcode.UnknownMemberId},
			{heartbeatRequest("", id, generation), errcode.InvalidGroupId},
		} {
			c.code("heartbeat", send[*kmsg.HeartbeatResponse](c, v, tt.req).ErrorCode, tt.want)
		}
	}
}

func TestLeaveGroupVersions(t *testing.T) {
	for v := int16(0); v <= 5; v++ {
		c := newCluster(t)
		id, _ := c.member("g")
		if v < 3 {
			c.code("unknown member", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("g", "nobody")).ErrorCode, errcode.UnknownMemberId)
			c.code("unknown group", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("other", id)).ErrorCode, errcode.UnknownMemberId)
			c.code("empty group", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("", id)).ErrorCode, errcode.InvalidGroupId)
			c.code("leave", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("g", id)).ErrorCode, errcode.None)
			c.code("again", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("g", id)).ErrorCode, errcode.UnknownMemberId)
			continue
		}
		r := send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("other", id))
		c.code("unknown group", r.ErrorCode, errcode.None)
		c.code("unknown group", r.Members[0].ErrorCode, errcode.UnknownMemberId)
		c.code("empty group", send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("", id)).ErrorCode, errcode.InvalidGroupId)
		r = send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("g", "nobody", id))
		c.code("two", r.ErrorCode, errcode.None)
		if len(r.Members) != 2 || errcode.Code(r.Members[0].ErrorCode) != errcode.UnknownMemberId || r.Members[1].ErrorCode != 0 || r.Members[1].MemberID != id {
			t.Fatalf("v%d: %+v", v, r)
		}
		if r = send[*kmsg.LeaveGroupResponse](c, v, leaveRequest("g")); r.ErrorCode != 0 || len(r.Members) != 0 {
			t.Fatalf("v%d: %+v", v, r)
		}
		d := send[*kmsg.DescribeGroupsResponse](c, 5, describeRequest("g"))
		if d.Groups[0].State != "Empty" || d.Groups[0].ProtocolType != "consumer" {
			t.Fatalf("%+v", d)
		}
	}
}

func TestOffsetCommitVersions(t *testing.T) {
	a0, a1 := place{"a", topicID, 0, 5, "note"}, place{"a", topicID, 1, 0, ""}
	for v := int16(2); v <= 10; v++ {
		c := newCluster(t)
		id, generation := c.member("g")
		codes := func(req *kmsg.OffsetCommitRequest) (codes []errcode.Code) {
			r := send[*kmsg.OffsetCommitResponse](c, v, req)
			for _, topic := range r.Topics {
				for _, p := range topic.Partitions {
					codes = append(codes, errcode.Code(p.ErrorCode))
				}
			}
			return codes
		}
		unknownTopic := errcode.UnknownTopicOrPartition
		if v >= 10 {
			unknownTopic = errcode.UnknownTopicId
		}
		for _, tt := range []struct {
			name string
			req  *kmsg.OffsetCommitRequest
			want []errcode.Code
		}{
			{"member", commitRequest("g", id, generation, a0, a1), []errcode.Code{0, 0}},
			{"generation", commitRequest("g", id, generation+1, a0), []errcode.Code{errcode.IllegalGeneration}},
			{"unknown member", commitRequest("g", "nobody", generation, a0), []errcode.Code{errcode.UnknownMemberId}},
			{"from outside", commitRequest("g", "", -1, a0), []errcode.Code{errcode.UnknownMemberId}},
			{"unknown topic", commitRequest("g", id, generation, place{"nope", uuid.UUID{9}, 0, 6, ""}, a0), []errcode.Code{unknownTopic, 0}},
			{"unknown partition", commitRequest("g", id, generation, place{"a", topicID, 9, 6, ""}, a0), []errcode.Code{errcode.UnknownTopicOrPartition, 0}},
			{"long metadata", commitRequest("g", id, generation, place{"a", topicID, 0, 6, strings.Repeat("x", 4097)}), []errcode.Code{errcode.OffsetMetadataTooLarge}},
			{"none", commitRequest("g", id, generation), nil},
			{"outside an empty group", commitRequest("outside", "", -1, a0), []errcode.Code{0}},
			{"outside with a generation", commitRequest("outside", "", 5, a0), []errcode.Code{errcode.UnknownMemberId}},
			{"outside with a member", commitRequest("outside", "m", -1, a0), []errcode.Code{0}},
			{"the empty group", commitRequest("", "", -1, a0), []errcode.Code{0}},
			{"the empty group as a member", commitRequest("", "m", 1, a0), []errcode.Code{errcode.UnknownMemberId}},
		} {
			got := codes(tt.req)
			if len(got) != len(tt.want) {
				t.Fatalf("v%d %s: %v", v, tt.name, got)
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Fatalf("v%d %s: %s, want %s", v, tt.name, got[i].Name(), tt.want[i].Name())
				}
			}
		}
		p := fetched(c, 8, send[*kmsg.OffsetFetchResponse](c, 8, fetchRequest("g", a0)))
		epoch := int32(-1)
		if v >= 6 {
			epoch = 0
		}
		if p.Offset != 5 || *p.Metadata != "note" || p.LeaderEpoch != epoch {
			t.Fatalf("v%d: %+v", v, p)
		}
	}
}

func TestOffsetFetchVersions(t *testing.T) {
	a0 := place{"a", topicID, 0, 5, "note"}
	for v := int16(1); v <= 10; v++ {
		c := newCluster(t)
		send[*kmsg.OffsetCommitResponse](c, 9, commitRequest("g", "", -1, a0))
		fetch := func(groupID string, places ...place) *kmsg.OffsetFetchResponse {
			return send[*kmsg.OffsetFetchResponse](c, v, fetchRequest(groupID, places...))
		}
		check := func(name string, p kmsg.OffsetFetchResponseGroupTopicPartition, offset int64, metadata string, code errcode.Code) {
			t.Helper()
			if p.Offset != offset || *p.Metadata != metadata || errcode.Code(p.ErrorCode) != code {
				t.Fatalf("v%d %s: %+v", v, name, p)
			}
		}
		check("one", fetched(c, v, fetch("g", a0)), 5, "note", 0)
		check("no offset", fetched(c, v, fetch("g", place{"a", topicID, 1, 0, ""})), -1, "", 0)
		check("unknown partition", fetched(c, v, fetch("g", place{"a", topicID, 7, 0, ""})), -1, "", 0)
		check("unknown group", fetched(c, v, fetch("other", a0)), -1, "", 0)
		unknown := errcode.None
		if v >= 10 {
			unknown = errcode.UnknownTopicId
		}
		check("unknown topic", fetched(c, v, fetch("g", place{"nope", uuid.UUID{9}, 0, 0, ""})), -1, "", unknown)
		if v >= 2 {
			check("all", fetched(c, v, fetch("g")), 5, "note", 0)
		}
		if v >= 8 {
			req := fetchRequest("g", a0)
			req.Groups = append(req.Groups, fetchRequest("other", a0).Groups...)
			if r := send[*kmsg.OffsetFetchResponse](c, v, req); len(r.Groups) != 2 || r.Groups[1].Group != "other" {
				t.Fatalf("v%d: %+v", v, r)
			}
			req.Groups = nil
			if r := send[*kmsg.OffsetFetchResponse](c, v, req); len(r.Groups) != 0 || r.ErrorCode != 0 {
				t.Fatalf("v%d: %+v", v, r)
			}
			req = fetchRequest("g")
			req.Groups[0].Topics = []kmsg.OffsetFetchRequestGroupTopic{}
			if r := send[*kmsg.OffsetFetchResponse](c, v, req); len(r.Groups) != 1 || len(r.Groups[0].Topics) != 0 {
				t.Fatalf("v%d: no topics are not all topics: %+v", v, r)
			}
		}
		c.failure = errcode.CoordinatorLoadInProgress.Wrap(statemachine.ErrNotDecided)
		r := fetch("g", a0)
		switch {
		case v >= 8:
			c.code("loading", r.Groups[0].ErrorCode, errcode.CoordinatorLoadInProgress)
		case v >= 2:
			c.code("loading", r.ErrorCode, errcode.CoordinatorLoadInProgress)
		default:
			c.code("loading", r.Topics[0].Partitions[0].ErrorCode, errcode.CoordinatorLoadInProgress)
		}
	}
}

func TestDescribeGroupsVersions(t *testing.T) {
	for v := int16(0); v <= 6; v++ {
		c := newCluster(t)
		id, _ := c.member("g")
		req := describeRequest("g", "other")
		req.IncludeAuthorizedOperations = true
		r := send[*kmsg.DescribeGroupsResponse](c, v, req)
		g, other := r.Groups[0], r.Groups[1]
		m := g.Members[0]
		if g.State != "Stable" || g.Protocol != "range" || g.ProtocolType != "consumer" || m.MemberID != id || m.ClientID != "kdiff" ||
			m.ClientHost != "/1.2.3.4" || string(m.ProtocolMetadata) != "subscription" || string(m.MemberAssignment) != "assigned" ||
			v >= 3 && g.AuthorizedOperations != 3400 {
			t.Fatalf("v%d: %+v", v, g)
		}
		want := errcode.None
		if v >= 6 {
			want = errcode.GroupIdNotFound
			if *other.ErrorMessage != "Group other not found." || other.AuthorizedOperations != -2147483648 {
				t.Fatalf("%+v", other)
			}
		}
		c.code("unknown group", other.ErrorCode, want)
		if other.State != "Dead" {
			t.Fatalf("v%d: %+v", v, other)
		}
		if r := send[*kmsg.DescribeGroupsResponse](c, v, describeRequest()); len(r.Groups) != 0 {
			t.Fatalf("v%d: %+v", v, r)
		}
		c.failure = errcode.CoordinatorLoadInProgress.Err()
		c.code("loading", send[*kmsg.DescribeGroupsResponse](c, v, describeRequest("g")).Groups[0].ErrorCode, errcode.CoordinatorLoadInProgress)
	}
}

func TestListGroupsVersions(t *testing.T) {
	for v := int16(0); v <= 5; v++ {
		c := newCluster(t)
		c.member("g")
		c.member("f")
		r := send[*kmsg.ListGroupsResponse](c, v, kmsg.NewPtrListGroupsRequest())
		if r.ErrorCode != 0 || len(r.Groups) != 2 || r.Groups[0].Group != "f" || r.Groups[0].ProtocolType != "consumer" ||
			v >= 4 && r.Groups[0].GroupState != "Stable" || v >= 5 && r.Groups[0].GroupType != "classic" {
			t.Fatalf("v%d: %+v", v, r)
		}
		c.failure = errcode.CoordinatorLoadInProgress.Err()
		c.code("loading", send[*kmsg.ListGroupsResponse](c, v, kmsg.NewPtrListGroupsRequest()).ErrorCode, errcode.CoordinatorLoadInProgress)
	}
}

func TestDeleteGroupsVersions(t *testing.T) {
	for v := int16(0); v <= 3; v++ {
		c := newCluster(t)
		id, _ := c.member("g")
		del := func(groups ...string) (codes []errcode.Code) {
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Groups = groups
			for _, g := range send[*kmsg.DeleteGroupsResponse](c, v, req).Groups {
				codes = append(codes, errcode.Code(g.ErrorCode))
			}
			return codes
		}
		if got := del("g", "other", "g"); len(got) != 2 || got[0] != errcode.NonEmptyGroup || got[1] != errcode.GroupIdNotFound {
			t.Fatal(got)
		}
		send[*kmsg.LeaveGroupResponse](c, 3, leaveRequest("g", id))
		if got := del("g"); got[0] != errcode.None {
			t.Fatal(got)
		}
		if got := del("g"); got[0] != errcode.GroupIdNotFound {
			t.Fatal(got)
		}
		if got := del(); len(got) != 0 {
			t.Fatal(got)
		}
	}
}

func TestOffsetDelete(t *testing.T) {
	c := newCluster(t)
	del := func(groupID, topic string, partitions ...int32) *kmsg.OffsetDeleteResponse {
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = groupID
		x := kmsg.OffsetDeleteRequestTopic{Topic: topic}
		for _, p := range partitions {
			x.Partitions = append(x.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: p})
		}
		req.Topics = []kmsg.OffsetDeleteRequestTopic{x}
		return send[*kmsg.OffsetDeleteResponse](c, 0, req)
	}
	c.code("unknown group", del("g", "a", 0).ErrorCode, errcode.GroupIdNotFound)
	c.code("empty group", del("", "a", 0).ErrorCode, errcode.InvalidGroupId)
	send[*kmsg.OffsetCommitResponse](c, 9, commitRequest("g", "", -1, place{"a", topicID, 0, 5, ""}, place{"a", topicID, 1, 6, ""}))
	r := del("g", "a", 0, 9)
	if p := r.Topics[0].Partitions; r.ErrorCode != 0 || p[1].ErrorCode != 0 || errcode.Code(p[0].ErrorCode) != errcode.UnknownTopicOrPartition {
		t.Fatalf("%+v", r)
	}
	c.code("unknown topic", del("g", "nope", 0).Topics[0].Partitions[0].ErrorCode, errcode.UnknownTopicOrPartition)
	if p := fetched(c, 8, send[*kmsg.OffsetFetchResponse](c, 8, fetchRequest("g", place{"a", topicID, 0, 0, ""}))); p.Offset != -1 {
		t.Fatalf("%+v", p)
	}
	if p := fetched(c, 8, send[*kmsg.OffsetFetchResponse](c, 8, fetchRequest("g", place{"a", topicID, 1, 0, ""}))); p.Offset != 6 {
		t.Fatalf("%+v", p)
	}
}

func TestLoadingIsToldByEachAPI(t *testing.T) {
	c := newCluster(t)
	c.failure = errcode.CoordinatorLoadInProgress.Wrap(statemachine.ErrNotDecided)
	want := errcode.CoordinatorLoadInProgress
	c.code("join", send[*kmsg.JoinGroupResponse](c, 9, joinRequest("g", "")).ErrorCode, want)
	c.code("sync", send[*kmsg.SyncGroupResponse](c, 5, syncRequest("g", "m", 1, "")).ErrorCode, want)
	c.code("heartbeat", send[*kmsg.HeartbeatResponse](c, 4, heartbeatRequest("g", "m", 1)).ErrorCode, errcode.None)
	c.code("leave", send[*kmsg.LeaveGroupResponse](c, 5, leaveRequest("g", "m")).ErrorCode, want)
	commit := send[*kmsg.OffsetCommitResponse](c, 9, commitRequest("g", "", -1, place{"a", topicID, 0, 5, ""}))
	c.code("commit", commit.Topics[0].Partitions[0].ErrorCode, want)
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{"g"}
	c.code("delete", send[*kmsg.DeleteGroupsResponse](c, 3, del).Groups[0].ErrorCode, want)
}

func TestShardsOfOthers(t *testing.T) {
	c := newCluster(t)
	req := heartbeatRequest("g", "m", 1)
	req.Version = 4
	e := &commonv1.Envelope{ApiKey: int32(req.Key()), ApiVersion: 4, Body: req.AppendTo(nil)}
	c.failure = errcode.NotCoordinator.Wrap(statemachine.ErrNotDecided)
	if _, err := c.h.Handle(t.Context(), 0, e); errcode.Of(err) != errcode.NotCoordinator {
		t.Fatal(err)
	}
	// What was carried out in part must not be sent again without the client's will.
	c.failure = errcode.NotCoordinator.Err()
	c.code("heartbeat", send[*kmsg.HeartbeatResponse](c, 4, req).ErrorCode, errcode.NotCoordinator)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.failure = context.Canceled
	if _, err := c.h.Handle(ctx, 0, e); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestMetadataIsWaitedFor(t *testing.T) {
	c := newCluster(t)
	other := uuid.UUID{3}
	d, err := c.image.Apply(20, 1, &metarecord.TopicRecord{Name: "new", TopicID: other},
		&metarecord.PartitionRecord{TopicID: other, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range []int64{10, 20} {
		c.next = d.Image()
		req := commitRequest("g", "", -1, place{"new", other, 0, 1, ""})
		req.Version = 10
		body, err := c.h.Handle(t.Context(), 0, &commonv1.Envelope{ApiKey: int32(req.Key()), ApiVersion: 10, Body: req.AppendTo(nil), MetadataOffset: known})
		if err != nil {
			t.Fatal(err)
		}
		r := kmsg.NewPtrOffsetCommitResponse()
		r.Version = 10
		if err := r.ReadFrom(body); err != nil {
			t.Fatal(err)
		}
		want := errcode.UnknownTopicId
		if known == 20 {
			want = errcode.None
		}
		c.code("commit", r.Topics[0].Partitions[0].ErrorCode, want)
	}
}

func TestBadRequests(t *testing.T) {
	c := newCluster(t)
	for _, tt := range []struct {
		e    *commonv1.Envelope
		want errcode.Code
	}{
		{&commonv1.Envelope{ApiKey: 0}, errcode.UnsupportedVersion},
		{&commonv1.Envelope{ApiKey: 999}, errcode.UnsupportedVersion},
		{&commonv1.Envelope{ApiKey: 11, ApiVersion: 10}, errcode.UnsupportedVersion},
		{&commonv1.Envelope{ApiKey: 8, ApiVersion: 1}, errcode.UnsupportedVersion},
		{&commonv1.Envelope{ApiKey: 11, ApiVersion: 9, Body: []byte{1}}, errcode.InvalidRequest},
	} {
		if _, err := c.h.Handle(t.Context(), 0, tt.e); errcode.Of(err) != tt.want {
			t.Errorf("%d v%d: %v", tt.e.GetApiKey(), tt.e.GetApiVersion(), err)
		}
	}
}

// FuzzHandle makes sure that no body can do harm.
func FuzzHandle(f *testing.F) {
	for _, req := range []kmsg.Request{
		joinRequest("g", ""), syncRequest("g", "m", 1, "x"), heartbeatRequest("g", "m", 1), leaveRequest("g", "m"),
		commitRequest("g", "", -1, place{"a", topicID, 0, 5, ""}), fetchRequest("g", place{"a", topicID, 0, 5, ""}), describeRequest("g"),
	} {
		f.Add(req.Key(), int16(3), req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		switch kmsg.Key(key) {
		case kmsg.JoinGroup, kmsg.SyncGroup: // they may wait, which the cluster of this test does not
			version, body = 99, nil
		}
		c := newCluster(t)
		_, _ = c.h.Handle(t.Context(), 0, &commonv1.Envelope{ApiKey: int32(key), ApiVersion: int32(version), Body: body})
	})
}
