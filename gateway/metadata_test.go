package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/fake"
	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
)

func TestMetadataInAllVersions(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1, 2)
	c.AddTopic("__consumer_offsets", 2)
	k := dial(t, serve(t, c, map[string]string{"auto.create.topics.enable": "false"}))
	for v := int16(0); v <= 13; v++ {
		got := ask[*kmsg.MetadataResponse](k, metadataOf(v, "a", "a", "nope", "no/such", "__consumer_offsets"))
		if len(got.Brokers) != 2 || len(got.Topics) != 4 {
			t.Fatalf("version %d: %+v", v, got)
		}
		for i, want := range []errcode.Code{errcode.None, errcode.UnknownTopicOrPartition, errcode.InvalidTopicException, errcode.None} {
			if x := got.Topics[i]; x.ErrorCode != int16(want) || v >= 1 && x.IsInternal != (i == 3) {
				t.Errorf("version %d, %s: %+v", v, *x.Topic, x)
			}
		}
		if p := got.Topics[0].Partitions[1]; p.Leader != 2 || p.Partition != 1 || !slices.Equal(p.Replicas, []int32{2}) {
			t.Errorf("version %d: %+v", v, p)
		}
		if n := len(ask[*kmsg.MetadataResponse](k, metadataOf(v)).Topics); v == 0 && n < 2 || v > 0 && n != 0 {
			t.Errorf("version %d: an empty list gives %d topics", v, n)
		}
		all := metadataOf(v)
		all.Topics = nil
		if v > 0 {
			if n := len(ask[*kmsg.MetadataResponse](k, all).Topics); n < 2 {
				t.Errorf("version %d: null gives %d topics", v, n)
			}
		}
	}
}

func TestMetadataByID(t *testing.T) {
	c := fake.NewCluster(1)
	id := c.AddTopic("a", 1)
	k := dial(t, serve(t, c, nil))
	byID := func(v int16, ids ...[16]byte) *kmsg.MetadataRequest {
		req := metadataOf(v)
		for _, id := range ids {
			req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{TopicID: id})
		}
		return req
	}
	got := ask[*kmsg.MetadataResponse](k, byID(12, id, [16]byte{1}))
	if len(got.Topics) != 2 || got.Topics[0].ErrorCode != int16(errcode.UnknownTopicId) || got.Topics[0].Topic != nil || *got.Topics[1].Topic != "a" {
		t.Errorf("%+v", got.Topics)
	}
	got = ask[*kmsg.MetadataResponse](k, byID(10, id))
	if got.Topics[0].ErrorCode != int16(errcode.InvalidRequest) || *got.Topics[0].Topic != "" || len(got.Brokers) != 0 {
		t.Errorf("version 10: %+v", got)
	}
	got = ask[*kmsg.MetadataResponse](k, byID(13, [16]byte{}))
	if got.ErrorCode == 0 || got.Topics[0].ErrorCode == 0 {
		t.Errorf("neither name nor id: %+v", got)
	}
	mixed := byID(12, id)
	mixed.Topics = append(mixed.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr("nope")})
	if got = ask[*kmsg.MetadataResponse](k, mixed); len(got.Topics) != 1 {
		t.Errorf("mixed: %+v", got.Topics)
	}
}

func TestReplicasThatAreAway(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1)
	c.Lead("a", 0, 2)
	c.Apply(&metarecord.FenceBrokerRecord{ID: 1, Epoch: 1})
	k := dial(t, serve(t, c, nil))
	if p := ask[*kmsg.MetadataResponse](k, metadataOf(0, "a")).Topics[0].Partitions[0]; p.ErrorCode != int16(errcode.ReplicaNotAvailable) || !slices.Equal(p.Replicas, []int32{2}) {
		t.Errorf("version 0: %+v", p)
	}
	got := ask[*kmsg.MetadataResponse](k, metadataOf(13, "a"))
	if p := got.Topics[0].Partitions[0]; p.ErrorCode != 0 || !slices.Equal(p.Replicas, []int32{1, 2}) || !slices.Equal(p.OfflineReplicas, []int32{1}) {
		t.Errorf("version 13: %+v", p)
	}
	if len(got.Brokers) != 1 || got.Brokers[0].NodeID != 2 || got.ControllerID != 2 {
		t.Errorf("brokers: %+v", got.Brokers)
	}
	c.Lead("a", 0, -1)
	if p := ask[*kmsg.MetadataResponse](k, metadataOf(13, "a")).Topics[0].Partitions[0]; p.ErrorCode != int16(errcode.LeaderNotAvailable) || p.Leader != -1 {
		t.Errorf("no leader: %+v", p)
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.Version, req.IncludeFencedBrokers = 2, true
	if cluster := ask[*kmsg.DescribeClusterResponse](k, req); len(cluster.Brokers) != 2 || !cluster.Brokers[0].IsFenced || cluster.ControllerID != 2 {
		t.Errorf("%+v", cluster)
	}
}

func TestAutoCreation(t *testing.T) {
	c := fake.NewCluster(1)
	k := dial(t, serve(t, c, map[string]string{"num.partitions": "3"}))
	req := metadataOf(12, "a", "b", ".")
	if ask[*kmsg.MetadataResponse](k, req); len(c.Requests) != 0 {
		t.Error("topics were made against the client's will")
	}
	req.AllowAutoTopicCreation = true
	got := ask[*kmsg.MetadataResponse](k, req)
	if got.Topics[0].ErrorCode != int16(errcode.UnknownTopicOrPartition) || got.Topics[2].ErrorCode != int16(errcode.InvalidTopicException) {
		t.Errorf("at first: %+v", got.Topics)
	}
	waitForTopic(t, c, "b")
	if got = ask[*kmsg.MetadataResponse](k, req); got.Topics[0].ErrorCode != 0 {
		t.Errorf("then: %+v", got.Topics)
	}
	if n := len(c.Image().TopicByName("a").Partitions); n != 3 || len(c.Requests) != 1 {
		t.Errorf("%d partitions, %d requests", n, len(c.Requests))
	}
	ask[*kmsg.MetadataResponse](k, metadataOf(0, "__consumer_offsets"))
	waitForTopic(t, c, "__consumer_offsets")
	if n := len(c.Image().TopicByName("__consumer_offsets").Partitions); n != 50 {
		t.Errorf("%d partitions of the internal topic", n)
	}
}

// waitForTopic waits until the image has a topic.
func waitForTopic(t *testing.T, c *fake.Cluster, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for c.Image().TopicByName(name) == nil {
		if err := c.Await(ctx, c.Image().Offset()+1); err != nil {
			t.Fatalf("there is no topic %s: %v", name, err)
		}
	}
}

func TestAutoCreationIsOffWhereItIsSwitchedOff(t *testing.T) {
	c := fake.NewCluster(1)
	k := dial(t, serve(t, c, map[string]string{"auto.create.topics.enable": "false"}))
	if ask[*kmsg.MetadataResponse](k, metadataOf(1, "a")); len(c.Requests) != 0 {
		t.Error("a topic was made")
	}
}

func TestApiVersions(t *testing.T) {
	c := fake.NewCluster(1)
	c.Apply(&metarecord.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 33})
	g := serve(t, c, nil)
	for v := int16(0); v <= 5; v++ {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = v, "test", "1.0"
		got := ask[*kmsg.ApiVersionsResponse](dial(t, g), req)
		if got.ErrorCode != 0 || got.ApiKeys[0].ApiKey != 0 || got.ApiKeys[0].MinVersion != 0 || got.ApiKeys[0].MaxVersion != 13 {
			t.Errorf("version %d: %+v", v, got)
		}
		if want := map[int16]int{0: 0, 1: 0, 2: 0, 3: 1}[v]; v <= 3 && len(got.SupportedFeatures) != want || v > 3 && len(got.SupportedFeatures) != 7 {
			t.Errorf("version %d: %+v", v, got.SupportedFeatures)
		}
		if v >= 3 && (len(got.FinalizedFeatures) != 1 || got.FinalizedFeatures[0].MaxVersionLevel != 33) {
			t.Errorf("version %d: %+v", v, got.FinalizedFeatures)
		}
	}
	id := fake.ClusterID
	for _, x := range []struct {
		name, version string
		cluster       *string
		node          int32
		want          errcode.Code
	}{
		{"", "1", nil, -1, errcode.InvalidRequest},
		{"a", "", nil, -1, errcode.InvalidRequest},
		{"a b", "1", nil, -1, errcode.InvalidRequest},
		{".a", "1", nil, -1, errcode.InvalidRequest},
		{"a-", "1", nil, -1, errcode.InvalidRequest},
		{"a_b", "1", nil, -1, errcode.InvalidRequest},
		{"\u00fc", "1", nil, -1, errcode.InvalidRequest},
		{"a", "1/2", nil, -1, errcode.InvalidRequest},
		{"a.b-c", "1.2-3", nil, -1, errcode.None},
		{"a", "1", &id, -1, errcode.InvalidRequest},
		{"a", "1", nil, 1, errcode.InvalidRequest},
		{"a", "1", &id, 1, errcode.None},
		{"a", "1", &id, 999, errcode.RebootstrapRequired},
		{"a", "1", kmsg.StringPtr("other"), 1, errcode.RebootstrapRequired},
	} {
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion, req.ClusterID, req.NodeID = 5, x.name, x.version, x.cluster, x.node
		k := dial(t, g)
		if got := ask[*kmsg.ApiVersionsResponse](k, req); got.ErrorCode != int16(x.want) || x.want != 0 && len(got.ApiKeys) != 0 {
			t.Errorf("%+v: %s", x, errcode.Code(got.ErrorCode).Name())
		}
		ask[*kmsg.MetadataResponse](k, metadataOf(12))
	}
}

func TestDescribeTopicPartitions(t *testing.T) {
	c := fake.NewCluster(1)
	c.AddTopic("b", 1, 1)
	c.AddTopic("a", 1, 1, 1)
	k := dial(t, serve(t, c, nil))
	describe := func(limit int32, cursor *kmsg.DescribeTopicPartitionsRequestCursor, names ...string) string {
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit, req.Cursor = limit, cursor
		for _, n := range names {
			req.Topics = append(req.Topics, kmsg.DescribeTopicPartitionsRequestTopic{Topic: n})
		}
		got := ask[*kmsg.DescribeTopicPartitionsResponse](k, req)
		s := ""
		for _, x := range got.Topics {
			s += fmt.Sprintf("%s:%d", *x.Topic, x.ErrorCode)
			for _, p := range x.Partitions {
				s += fmt.Sprintf(" %d", p.Partition)
			}
			s += ";"
		}
		if n := got.NextCursor; n != nil {
			s += fmt.Sprintf(" next %s/%d", n.Topic, n.Partition)
		}
		return s
	}
	at := func(topic string, p int32) *kmsg.DescribeTopicPartitionsRequestCursor {
		return &kmsg.DescribeTopicPartitionsRequestCursor{Topic: topic, Partition: p}
	}
	for _, x := range []struct{ got, want string }{
		{describe(2000, nil, "b", "a", "a"), "a:0 0 1 2;b:0 0 1;"},
		{describe(2000, nil), "a:0 0 1 2;b:0 0 1;"},
		{describe(2000, nil, "nope", "a"), "a:0 0 1 2;nope:3;"},
		{describe(2, nil, "a", "b"), "a:0 0 1; next a/2"},
		{describe(2, at("a", 2), "a", "b"), "a:0 2;b:0 0; next b/1"},
		{describe(2, at("b", 1), "a", "b"), "b:0 1;"},
		{describe(3, nil, "a", "b"), "a:0 0 1 2; next b/0"},
		{describe(0, nil, "a"), "a:0 0; next a/1"},
		{describe(-1, nil, "a"), "a:0 0; next a/1"},
		{describe(10, at("a", 9), "a"), "a:0;"},
		{describe(10, at("zz", 0), "a"), "a:42;"},
		{describe(10, at("a", -1), "a"), "a:42;"},
	} {
		if x.got != x.want {
			t.Errorf("got %q, want %q", x.got, x.want)
		}
	}
}

func TestForwardedRequestsAreAnsweredWhenTheGatewayHasSeenWhatTheyDid(t *testing.T) {
	c := fake.NewCluster(1)
	k := dial(t, serve(t, c, nil))
	target := c.Image().Offset() + 2
	c.Controller = func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		resp := kmsg.NewPtrCreateTopicsResponse()
		resp.Version = 7
		return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil), MetadataOffset: target}, nil
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 5000
	req.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: "a", NumPartitions: 1, ReplicationFactor: 1}}
	k.send(req)
	k.silent()
	c.AddTopic("a", 1)
	k.recv()
	c.Controller = func(context.Context, *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		return nil, errcode.NotController.Err()
	}
	if got := ask[*kmsg.CreateTopicsResponse](k, req); len(got.Topics) != 1 || got.Topics[0].ErrorCode != int16(errcode.RequestTimedOut) {
		t.Errorf("%+v", got)
	}
}

func TestDescribeConfigs(t *testing.T) {
	c := fake.NewCluster(1, 2)
	c.AddTopic("a", 1)
	value := "12345"
	c.Apply(&metarecord.ConfigRecord{ResourceType: 2, ResourceName: "a", Name: "retention.ms", Value: &value})
	for id := int32(1); id <= 2; id++ {
		c.Node(id).HandleFunc = func(_ context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
			q, resp := kmsg.NewPtrDescribeConfigsRequest(), kmsg.NewPtrDescribeConfigsResponse()
			q.Version = int16(req.GetEnvelope().GetApiVersion())
			resp.Version = q.Version
			if err := q.ReadFrom(req.GetEnvelope().GetBody()); err != nil {
				return nil, err
			}
			for _, x := range q.Resources {
				resp.Resources = append(resp.Resources, kmsg.DescribeConfigsResponseResource{
					ResourceType: x.ResourceType, ResourceName: x.ResourceName,
					Configs: []kmsg.DescribeConfigsResponseResourceConfig{{Name: fmt.Sprintf("of node %d", id)}},
				})
			}
			return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
		}
	}
	k := dial(t, serve(t, c, nil))
	describe := func(v int16, kind kmsg.ConfigResourceType, name string, keys ...string) kmsg.DescribeConfigsResponseResource {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Version, req.IncludeSynonyms = v, true
		req.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kind, ResourceName: name, ConfigNames: keys}}
		return ask[*kmsg.DescribeConfigsResponse](k, req).Resources[0]
	}
	for v := int16(1); v <= 4; v++ {
		got := describe(v, kmsg.ConfigResourceTypeTopic, "a", "retention.ms", "no.such")
		if len(got.Configs) != 1 || *got.Configs[0].Value != value || got.Configs[0].Source != kmsg.ConfigSourceDynamicTopicConfig {
			t.Errorf("version %d: %+v", v, got)
		}
	}
	if got := describe(4, kmsg.ConfigResourceTypeBroker, "2"); got.ErrorCode != 0 || got.Configs[0].Name != "of node 2" {
		t.Errorf("node 2: %+v", got)
	}
	for _, x := range []struct {
		kind kmsg.ConfigResourceType
		name string
		want errcode.Code
	}{
		{kmsg.ConfigResourceTypeTopic, "nope", errcode.UnknownTopicOrPartition},
		{kmsg.ConfigResourceTypeTopic, "no/such", errcode.InvalidTopicException},
		{kmsg.ConfigResourceTypeBroker, "999", errcode.InvalidRequest},
		{kmsg.ConfigResourceTypeBroker, "x", errcode.InvalidRequest},
		{kmsg.ConfigResourceTypeBroker, "", errcode.None},
		{kmsg.ConfigResourceTypeBrokerLogger, "", errcode.InvalidRequest},
		{kmsg.ConfigResourceTypeGroupConfig, "", errcode.InvalidRequest},
		{kmsg.ConfigResourceTypeGroupConfig, "g", errcode.None},
		{kmsg.ConfigResourceTypeClientMetrics, "m", errcode.None},
		{kmsg.ConfigResourceType(99), "x", errcode.InvalidRequest},
	} {
		if got := describe(4, x.kind, x.name); got.ErrorCode != int16(x.want) || got.ResourceName != x.name || got.ResourceType != x.kind {
			t.Errorf("%v %q: %s", x.kind, x.name, errcode.Code(got.ErrorCode).Name())
		}
	}
}

func TestAlterConfigs(t *testing.T) {
	c := fake.NewCluster(1)
	k := dial(t, serve(t, c, nil))
	var seen []string
	c.Controller = func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		q, resp := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewPtrIncrementalAlterConfigsResponse()
		q.Version, resp.Version = int16(e.GetApiVersion()), int16(e.GetApiVersion())
		if err := q.ReadFrom(e.GetBody()); err != nil {
			return nil, err
		}
		// The answers come in another order.
		for i := len(q.Resources) - 1; i >= 0; i-- {
			x := q.Resources[i]
			seen = append(seen, x.ResourceName)
			out := kmsg.NewIncrementalAlterConfigsResponseResource()
			out.ResourceType, out.ResourceName = x.ResourceType, x.ResourceName
			if x.ResourceName == "bad" {
				out.ErrorCode, out.ErrorMessage = int16(errcode.InvalidConfig), kmsg.StringPtr("why")
			}
			resp.Resources = append(resp.Resources, out)
		}
		return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
	}
	set := func(kind kmsg.ConfigResourceType, name string, keys ...string) kmsg.IncrementalAlterConfigsRequestResource {
		r := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kind, ResourceName: name}
		for _, key := range keys {
			c := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: key, Value: kmsg.StringPtr("1")}
			if key == "null" {
				c.Value = nil
			}
			r.Configs = append(r.Configs, c)
		}
		return r
	}
	topic, broker := kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{
		set(topic, "good", "k"), set(topic, "twice", "k"), set(topic, "bad", "k"), set(topic, "twice", "k"), set(topic, "keys", "k", "k"),
		set(topic, "nulls", "null"), set(broker, "1", "k"), set(broker, "", "k"), set(broker, "9", "k"), set(99, "x", "k"),
	}
	bad := int16(errcode.InvalidRequest)
	got := ask[*kmsg.IncrementalAlterConfigsResponse](k, req)
	for i, want := range []int16{0, bad, int16(errcode.InvalidConfig), bad, bad, bad, 0, 0, bad, bad} {
		if x := got.Resources[i]; x.ErrorCode != want || x.ResourceName != req.Resources[i].ResourceName || (x.ErrorMessage == nil) != (want == 0) {
			t.Errorf("resource %d: %+v", i, x)
		}
	}
	if !slices.Equal(seen, []string{"", "1", "bad", "good"}) {
		t.Errorf("the controller saw %q", seen)
	}
}

// TestCordonedDirectories: a node is asked whether it has the log directories that it is told to cordon, as far as it answers.
func TestCordonedDirectories(t *testing.T) {
	c := fake.NewCluster(1, 2)
	k := dial(t, serve(t, c, nil))
	c.Controller = func(_ context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
		q, resp := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewPtrIncrementalAlterConfigsResponse()
		q.Version, resp.Version = int16(e.GetApiVersion()), int16(e.GetApiVersion())
		if err := q.ReadFrom(e.GetBody()); err != nil {
			return nil, err
		}
		for _, x := range q.Resources {
			resp.Resources = append(resp.Resources, kmsg.IncrementalAlterConfigsResponseResource{ResourceType: x.ResourceType, ResourceName: x.ResourceName})
		}
		return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
	}
	c.Node(1).HandleFunc = func(_ context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
		resp := kmsg.NewPtrDescribeLogDirsResponse()
		resp.Version = int16(req.GetEnvelope().GetApiVersion())
		resp.Dirs = []kmsg.DescribeLogDirsResponseDir{{Dir: "/data/1"}, {Dir: "/data/2"}}
		return &storagev1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}}, nil
	}
	for _, x := range []struct {
		node, value string
		op          kmsg.IncrementalAlterConfigOp
		want        errcode.Code
	}{
		{"1", "/data/1, /data/2/", kmsg.IncrementalAlterConfigOpSet, errcode.None},
		{"1", "*", kmsg.IncrementalAlterConfigOpSet, errcode.None},
		{"1", "", kmsg.IncrementalAlterConfigOpSet, errcode.None},
		{"1", "/data/1,/data/3", kmsg.IncrementalAlterConfigOpSet, errcode.InvalidRequest},
		{"1", "/dta/1", kmsg.IncrementalAlterConfigOpAppend, errcode.InvalidRequest},
		{"1", "/data/3", kmsg.IncrementalAlterConfigOpSubtract, errcode.None},
		{"2", "/data/3", kmsg.IncrementalAlterConfigOpSet, errcode.None}, // does not answer
	} {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Version = 1
		req.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: x.node,
			Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "cordoned.log.dirs", Op: x.op, Value: &x.value}}}}
		if got := ask[*kmsg.IncrementalAlterConfigsResponse](k, req).Resources[0]; got.ErrorCode != int16(x.want) {
			t.Errorf("%+v: %+v", x, got)
		}
	}
}
