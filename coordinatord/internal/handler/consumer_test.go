package handler

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

// withConsumers is a cluster whose group.version lets consumer groups be.
func withConsumers(t *testing.T) *cluster {
	c := newCluster(t)
	d := metadata.NewDelta(c.image)
	if err := d.Apply(11, 1, &metarecord.FeatureLevelRecord{Name: groupFeature, FeatureLevel: 1}); err != nil {
		t.Fatal(err)
	}
	c.image = d.Image()
	return c
}

func joinConsumers(id string) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.RebalanceTimeoutMillis = "g", id, 60000
	req.SubscribedTopicNames, req.Topics = []string{"a"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}

func TestConsumerGroupHeartbeatVersions(t *testing.T) {
	c := withConsumers(t)
	r := send[*kmsg.ConsumerGroupHeartbeatResponse](c, 0, joinConsumers(""))
	c.code("v0 without an id", r.ErrorCode, errcode.None)
	if r.MemberID == nil || *r.MemberID != "id1" || r.MemberEpoch != 2 || r.HeartbeatIntervalMillis != 5000 || len(r.Assignment.Topics) != 1 {
		t.Fatalf("%+v", r)
	}
	c.code("v1 without an id", send[*kmsg.ConsumerGroupHeartbeatResponse](c, 1, joinConsumers("")).ErrorCode, errcode.InvalidRequest)
	c.code("v1", send[*kmsg.ConsumerGroupHeartbeatResponse](c, 1, joinConsumers("m")).ErrorCode, errcode.None)
}

func TestConsumerGroupHeartbeatChecks(t *testing.T) {
	blank, other := "  ", "sticky"
	for name, tt := range map[string]struct {
		change func(*kmsg.ConsumerGroupHeartbeatRequest)
		want   errcode.Code
	}{
		"blank group":           {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "" }, errcode.InvalidRequest},
		"blank instance":        {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = &blank }, errcode.InvalidRequest},
		"blank rack":            {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RackID = &blank }, errcode.InvalidRequest},
		"no rebalance time-out": {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.RebalanceTimeoutMillis = -1 }, errcode.InvalidRequest},
		"partitions unknown":    {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Topics = nil }, errcode.InvalidRequest},
		"partitions of an earlier life": {func(r *kmsg.ConsumerGroupHeartbeatRequest) {
			r.Topics = make([]kmsg.ConsumerGroupHeartbeatRequestTopic, 1)
		}, errcode.InvalidRequest},
		"no subscription":                {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicNames = nil }, errcode.InvalidRequest},
		"unknown assignor":               {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.ServerAssignor = &other }, errcode.UnsupportedAssignor},
		"epoch below all":                {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -3 }, errcode.InvalidRequest},
		"leaves for a while, nobody":     {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -2 }, errcode.InvalidRequest},
		"leaves a group that is unknown": {func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 }, errcode.GroupIdNotFound},
	} {
		c := withConsumers(t)
		req := joinConsumers("m")
		tt.change(req)
		r := send[*kmsg.ConsumerGroupHeartbeatResponse](c, 1, req)
		c.code(name, r.ErrorCode, tt.want)
		if r.ErrorMessage == nil || *r.ErrorMessage == "" {
			t.Errorf("%s: no message", name)
		}
	}
}

func TestConsumerGroupsCanBeOff(t *testing.T) {
	off := func(c *cluster) {
		t.Helper()
		c.code("heartbeat", send[*kmsg.ConsumerGroupHeartbeatResponse](c, 1, joinConsumers("m")).ErrorCode, errcode.UnsupportedVersion)
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups = []string{"g"}
		c.code("describe", send[*kmsg.ConsumerGroupDescribeResponse](c, 1, req).Groups[0].ErrorCode, errcode.UnsupportedVersion)
	}
	off(newCluster(t)) // group.version is 0
	c := withConsumers(t)
	c.h.config.ConsumerProtocol = false
	off(c)
}

func TestConsumerGroupDescribeVersions(t *testing.T) {
	for v := int16(0); v <= 1; v++ {
		c := withConsumers(t)
		c.code("join", send[*kmsg.ConsumerGroupHeartbeatResponse](c, 1, joinConsumers("m")).ErrorCode, errcode.None)
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups, req.IncludeAuthorizedOperations = []string{"g", "", "none"}, true
		r := send[*kmsg.ConsumerGroupDescribeResponse](c, v, req)
		codes := map[string]errcode.Code{}
		for _, g := range r.Groups {
			codes[g.Group] = errcode.Code(g.ErrorCode)
			if g.Group == "g" && (len(g.Members) != 1 || g.State != "Stable" || g.AssignorName != "uniform" || g.AuthorizedOperations != allGroupOperations ||
				g.Members[0].ClientID != "kdiff" || g.Members[0].ClientHost != "/1.2.3.4" || (v >= 1) != (g.Members[0].MemberType == 1) ||
				g.Members[0].Assignment.TopicPartitions[0].Topic != "a") {
				t.Fatalf("v%d: %+v", v, g)
			}
		}
		if codes["g"] != errcode.None || codes[""] != errcode.InvalidGroupId || codes["none"] != errcode.GroupIdNotFound {
			t.Fatalf("v%d: %v", v, codes)
		}
	}
}
