package server

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/metalog"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
)

func TestDecode(t *testing.T) {
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version = 7
	create.Topics = append(create.Topics, kmsg.NewCreateTopicsRequestTopic())
	body := create.AppendTo(nil)
	for name, c := range map[string]struct {
		envelope *commonv1.Envelope
		want     errcode.Code
	}{
		"good":        {&commonv1.Envelope{ApiKey: 19, ApiVersion: 7, Body: body}, errcode.None},
		"no such API": {&commonv1.Envelope{ApiKey: 30000, Body: body}, errcode.UnsupportedVersion},
		"negative":    {&commonv1.Envelope{ApiKey: -1, Body: body}, errcode.UnsupportedVersion},
		"wraps":       {&commonv1.Envelope{ApiKey: 1<<16 + 19, ApiVersion: 7, Body: body}, errcode.UnsupportedVersion},
		"new version": {&commonv1.Envelope{ApiKey: 19, ApiVersion: 99, Body: body}, errcode.UnsupportedVersion},
		"cut short":   {&commonv1.Envelope{ApiKey: 19, ApiVersion: 7, Body: body[:3]}, errcode.InvalidRequest},
		"nothing":     {&commonv1.Envelope{ApiKey: 19, ApiVersion: 7}, errcode.InvalidRequest},
	} {
		if _, err := decode(c.envelope); errcode.Of(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want.Name())
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(int32(19), int32(7), []byte{2, 2, 'a', 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0})
	f.Add(int32(63), int32(1), []byte{})
	f.Fuzz(func(t *testing.T, key, version int32, body []byte) {
		req, err := decode(&commonv1.Envelope{ApiKey: key, ApiVersion: version, Body: body})
		if err == nil && req == nil {
			t.Fatal("neither a request nor an error")
		}
	})
}

func TestDescribeCluster(t *testing.T) {
	delta, err := metadata.Empty("the-cluster").Apply(1, 1,
		&metarecord.RegisterControllerRecord{ControllerID: 1, EndPoints: []metarecord.Endpoint{{Name: "GRPC", Host: "a", Port: 5}}},
		&metarecord.RegisterControllerRecord{ControllerID: 2},
		&metarecord.RegisterControllerRecord{ControllerID: 3, EndPoints: []metarecord.Endpoint{
			{Name: "GRPC", Host: "c", Port: 5}, {Name: "CONTROLLER", Host: "d", Port: 6},
		}})
	if err != nil {
		t.Fatal(err)
	}
	state := feed.State{Image: delta.Image(), Holder: metalog.Holder{ID: 1, Epoch: 1}}
	describe := func(version int16, kind int8) *kmsg.DescribeClusterResponse {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.Version, req.EndpointType = version, kind
		return DescribeCluster(req, state)
	}
	for _, c := range []struct {
		version int16
		kind    int8
		want    errcode.Code
	}{{0, 1, errcode.InvalidRequest}, {1, 1, errcode.MismatchedEndpointType}, {1, 2, errcode.None}, {1, 3, errcode.UnsupportedEndpointType}} {
		if resp := describe(c.version, c.kind); errcode.Code(resp.ErrorCode) != c.want {
			t.Errorf("version %d, type %d: got %s", c.version, c.kind, errcode.Code(resp.ErrorCode).Name())
		}
	}
	resp := describe(2, 2)
	if resp.ClusterID != "the-cluster" || resp.ControllerID != 1 || len(resp.Brokers) != 2 || resp.Brokers[0].Host != "a" ||
		resp.Brokers[0].Port != 5 || resp.Brokers[1].Host != "d" || resp.Brokers[1].Port != 6 {
		t.Fatalf("%+v", resp)
	}
}
