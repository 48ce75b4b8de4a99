package control

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

const (
	topicResource   = kmsg.ConfigResourceTypeTopic
	brokerResource  = kmsg.ConfigResourceTypeBroker
	groupResource   = kmsg.ConfigResourceTypeGroupConfig
	metricsResource = kmsg.ConfigResourceTypeClientMetrics
	loggerResource  = kmsg.ConfigResourceTypeBrokerLogger

	opSet      = kmsg.IncrementalAlterConfigOpSet
	opDelete   = kmsg.IncrementalAlterConfigOpDelete
	opAppend   = kmsg.IncrementalAlterConfigOpAppend
	opSubtract = kmsg.IncrementalAlterConfigOpSubtract
)

func alteration(name string, op kmsg.IncrementalAlterConfigOp, value string) kmsg.IncrementalAlterConfigsRequestResourceConfig {
	c := kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: name, Op: op, Value: &value}
	if op == opDelete {
		c.Value = nil
	}
	return c
}

func incremental(kind kmsg.ConfigResourceType, name string, configs ...kmsg.IncrementalAlterConfigsRequestResourceConfig) *kmsg.IncrementalAlterConfigsRequest {
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.Configs = kind, name, configs
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	req.Resources = append(req.Resources, r)
	return req
}

func (w *world) alter(req *kmsg.IncrementalAlterConfigsRequest) errcode.Code {
	w.t.Helper()
	resp := w.apply(w.m.IncrementalAlterConfigs(req)).(*kmsg.IncrementalAlterConfigsResponse)
	if len(resp.Resources) != len(req.Resources) {
		w.t.Fatalf("%d results for %d resources", len(resp.Resources), len(req.Resources))
	}
	return errcode.Code(resp.Resources[0].ErrorCode)
}

func TestIncrementalAlterConfigs(t *testing.T) {
	for name, c := range map[string]struct {
		kind     kmsg.ConfigResourceType
		resource string
		configs  []kmsg.IncrementalAlterConfigsRequestResourceConfig
		want     errcode.Code
		key, val string
	}{
		"set":                    {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opSet, "5")}, 0, "retention.ms", "5"},
		"append":                 {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("cleanup.policy", opAppend, "compact")}, 0, "cleanup.policy", "delete,compact"},
		"subtract":               {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("cleanup.policy", opSubtract, "delete")}, 0, "cleanup.policy", ""},
		"delete":                 {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("segment.ms", opDelete, "")}, 0, "segment.ms", ""},
		"nothing":                {topicResource, "a", nil, 0, "segment.ms", "7000"},
		"unknown topic":          {topicResource, "nope", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opSet, "5")}, errcode.UnknownTopicOrPartition, "", ""},
		"unknown key":            {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("no.such", opSet, "5")}, errcode.InvalidConfig, "no.such", ""},
		"bad value":              {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opSet, "x")}, errcode.InvalidConfig, "retention.ms", ""},
		"append to a number":     {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opAppend, "5")}, errcode.InvalidConfig, "retention.ms", ""},
		"key twice":              {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opSet, "5"), alteration("retention.ms", opSet, "6")}, errcode.InvalidRequest, "retention.ms", ""},
		"null value":             {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "retention.ms", Op: opSet}}, errcode.InvalidRequest, "retention.ms", ""},
		"unknown operation":      {topicResource, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", 77, "5")}, errcode.InvalidRequest, "retention.ms", ""},
		"unknown type":           {77, "a", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("retention.ms", opSet, "5")}, errcode.InvalidRequest, "", ""},
		"logger":                 {loggerResource, "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("root", opSet, "DEBUG")}, errcode.InvalidRequest, "", ""},
		"broker":                 {brokerResource, "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("log.cleaner.backoff.ms", opSet, "16000")}, 0, "log.cleaner.backoff.ms", "16000"},
		"broker, read-only":      {brokerResource, "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("log.dirs", opSet, "/x")}, errcode.InvalidRequest, "log.dirs", ""},
		"broker, bad value":      {brokerResource, "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("num.io.threads", opSet, "0")}, errcode.InvalidRequest, "num.io.threads", ""},
		"unknown broker":         {brokerResource, "999", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("num.io.threads", opSet, "9")}, errcode.InvalidRequest, "", ""},
		"bad broker id":          {brokerResource, "x", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("num.io.threads", opSet, "9")}, errcode.InvalidRequest, "", ""},
		"per-broker key for all": {brokerResource, "", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("listeners", opSet, "PLAINTEXT://:1")}, errcode.InvalidRequest, "listeners", ""},
		"broker, min ISR":        {brokerResource, "1", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration(minInsyncReplicas, opSet, "2")}, errcode.InvalidConfig, minInsyncReplicas, ""},
		"all, no min ISR":        {brokerResource, "", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration(minInsyncReplicas, opDelete, "")}, errcode.InvalidConfig, minInsyncReplicas, "1"},
		"all":                    {brokerResource, "", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("log.retention.bytes", opSet, "123456789")}, 0, "log.retention.bytes", "123456789"},
		"group":                  {groupResource, "g", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("consumer.session.timeout.ms", opSet, "50000")}, 0, "consumer.session.timeout.ms", "50000"},
		"group, below":           {groupResource, "g", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("consumer.session.timeout.ms", opSet, "1")}, errcode.InvalidConfig, "", ""},
		"group, unknown key":     {groupResource, "g", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("no.such", opSet, "1")}, errcode.InvalidConfig, "", ""},
		"group without a name":   {groupResource, "", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("consumer.session.timeout.ms", opSet, "50000")}, errcode.InvalidRequest, "", ""},
		"metrics":                {metricsResource, "m", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("interval.ms", opSet, "5000")}, 0, "interval.ms", "5000"},
		"metrics, bad interval":  {metricsResource, "m", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("interval.ms", opSet, "1")}, errcode.InvalidRequest, "", ""},
		"metrics, bad match":     {metricsResource, "m", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("match", opSet, "no_such_key=1")}, errcode.InvalidConfig, "", ""},
		"metrics, unknown key":   {metricsResource, "m", []kmsg.IncrementalAlterConfigsRequestResourceConfig{alteration("no.such", opSet, "1")}, errcode.InvalidRequest, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1)
			w.mustCreate(newTopic("a", 1, 1, "segment.ms", "7000"))
			if got := w.alter(incremental(c.kind, c.resource, c.configs...)); got != c.want {
				t.Fatalf("got %s, want %s", got.Name(), c.want.Name())
			}
			if got := w.m.Image().Config(metadata.ResourceType(c.kind), c.resource)[c.key]; got != c.val {
				t.Fatalf("%s is %q, want %q", c.key, got, c.val)
			}
		})
	}
}

// TestStepsOfPools doubles a pool of one broker step by step: each counts from what that broker has, not from what all have.
func TestStepsOfPools(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	for _, c := range []struct {
		broker, size string
		want         errcode.Code
	}{
		{"1", "40", errcode.InvalidRequest}, {"1", "20", 0}, {"1", "40", 0}, {"1", "19", errcode.InvalidRequest}, {"", "21", errcode.InvalidRequest},
		{"", "20", 0}, {"", "40", 0},
	} {
		if got := w.alter(incremental(brokerResource, c.broker, alteration("remote.log.reader.threads", opSet, c.size))); got != c.want {
			t.Errorf("%s for broker %q: got %s, want %s", c.size, c.broker, got.Name(), c.want.Name())
		}
	}
}

func TestResourceTwice(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(newTopic("a", 1, 1))
	req := incremental(topicResource, "a", alteration("retention.ms", opSet, "1"))
	req.Resources = append(req.Resources, req.Resources...)
	resp := w.apply(w.m.IncrementalAlterConfigs(req)).(*kmsg.IncrementalAlterConfigsResponse)
	for _, r := range resp.Resources {
		if errcode.Code(r.ErrorCode) != errcode.InvalidRequest {
			t.Fatalf("%+v", r)
		}
	}
	if len(resp.Resources) != 2 || w.m.Image().Config(metadata.ResourceTopic, "a") != nil {
		t.Fatal("a resource that is named twice was changed")
	}
	legacy := kmsg.NewPtrAlterConfigsRequest()
	legacy.Resources = []kmsg.AlterConfigsRequestResource{{ResourceType: topicResource, ResourceName: "a"}, {ResourceType: topicResource, ResourceName: "a"}}
	for _, r := range w.apply(w.m.AlterConfigs(legacy)).(*kmsg.AlterConfigsResponse).Resources {
		if errcode.Code(r.ErrorCode) != errcode.InvalidRequest {
			t.Fatalf("%+v", r)
		}
	}
}

func TestAlterConfigsReplaces(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(newTopic("a", 1, 1, "max.message.bytes", "5000"))
	alter := func(kind kmsg.ConfigResourceType, name string, configs ...string) errcode.Code {
		r := kmsg.AlterConfigsRequestResource{ResourceType: kind, ResourceName: name}
		for i := 0; i < len(configs); i += 2 {
			r.Configs = append(r.Configs, kmsg.AlterConfigsRequestResourceConfig{Name: configs[i], Value: &configs[i+1]})
		}
		req := kmsg.NewPtrAlterConfigsRequest()
		req.Resources = append(req.Resources, r)
		return errcode.Code(w.apply(w.m.AlterConfigs(req)).(*kmsg.AlterConfigsResponse).Resources[0].ErrorCode)
	}
	if code := alter(topicResource, "a", "retention.ms", "1000", "retention.bytes", "7"); code != 0 {
		t.Fatal(code.Name())
	}
	configs := w.m.Image().Config(metadata.ResourceTopic, "a")
	if len(configs) != 2 || configs["retention.ms"] != "1000" || configs["retention.bytes"] != "7" {
		t.Fatalf("configs %v", configs)
	}
	for name, c := range map[string]struct {
		got, want errcode.Code
	}{
		"unknown topic": {alter(topicResource, "nope", "retention.ms", "1"), errcode.UnknownTopicOrPartition},
		"unknown key":   {alter(topicResource, "a", "no.such", "1"), errcode.InvalidConfig},
		"bad value":     {alter(topicResource, "a", "retention.ms", "x"), errcode.InvalidConfig},
		"unknown type":  {alter(77, "x", "a", "1"), errcode.InvalidRequest},
		"logger":        {alter(loggerResource, "1", "root", "DEBUG"), errcode.InvalidRequest},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", name, c.got.Name(), c.want.Name())
		}
	}
	if code := alter(topicResource, "a"); code != 0 || w.m.Image().Config(metadata.ResourceTopic, "a") != nil {
		t.Fatalf("%s, configs %v", code.Name(), w.m.Image().Config(metadata.ResourceTopic, "a"))
	}
}

func TestMinISRChangeClearsELR(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2, 3)
	w.mustCreate(assigned("a", []int32{1, 2, 3}))
	w.mustCreate(assigned("b", []int32{1, 2, 3}))
	if code := w.alter(incremental(brokerResource, "", alteration(minInsyncReplicas, opSet, "3"))); code != 0 {
		t.Fatal(code.Name())
	}
	w.silence(3)
	for _, topic := range []string{"a", "b"} {
		w.wantPartition(topic, 0, 1, []int32{1, 2}, []int32{3})
	}
	if code := w.alter(incremental(topicResource, "a", alteration(minInsyncReplicas, opSet, "2"))); code != 0 {
		t.Fatal(code.Name())
	}
	w.wantPartition("a", 0, 1, []int32{1, 2}, nil)
	w.wantPartition("b", 0, 1, []int32{1, 2}, []int32{3})
	if code := w.alter(incremental(brokerResource, "", alteration(minInsyncReplicas, opSet, "2"))); code != 0 {
		t.Fatal(code.Name())
	}
	w.wantPartition("b", 0, 1, []int32{1, 2}, nil)
}

func TestUpdateFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		feature string
		level   int16
		kind    int8
		want    errcode.Code
	}{
		"as it is":              {"metadata.version", 33, 1, 0},
		"unknown feature":       {"no.such", 1, 1, errcode.InvalidUpdateVersion},
		"unknown level":         {"group.version", 9, 1, errcode.InvalidUpdateVersion},
		"negative level":        {"group.version", -1, 1, errcode.InvalidUpdateVersion},
		"downgrade not allowed": {"group.version", 0, 1, errcode.InvalidUpdateVersion},
		"downgrade":             {"group.version", 0, 2, 0},
		"metadata.version down": {"metadata.version", 25, 2, errcode.InvalidUpdateVersion},
		"no upgrade":            {"group.version", 1, 0, errcode.InvalidUpdateVersion},
		"empty name":            {"", 1, 1, errcode.InvalidUpdateVersion},
		"kraft.version":         {"kraft.version", 1, 1, 0},
		"kraft.version beyond":  {"kraft.version", 2, 1, errcode.InvalidUpdateVersion},
		"share.version alone":   {"share.version", 1, 3, 0},
		"unsafe downgrade":      {"metadata.version", 20, 3, errcode.InvalidUpdateVersion},
		"down upwards":          {"kraft.version", 1, 2, errcode.InvalidUpdateVersion},
		"unknown feature off":   {"no.such", 0, 2, errcode.InvalidUpdateVersion},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1)
			req := kmsg.NewPtrUpdateFeaturesRequest()
			req.Version = 2
			req.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: c.feature, MaxVersionLevel: c.level, UpgradeType: c.kind}}
			resp := w.apply(w.m.UpdateFeatures(req)).(*kmsg.UpdateFeaturesResponse)
			if errcode.Code(resp.ErrorCode) != c.want {
				t.Fatalf("got %s, want %s", errcode.Code(resp.ErrorCode).Name(), c.want.Name())
			}
			if c.want == 0 && w.m.Image().FeatureLevel(c.feature) != c.level {
				t.Fatalf("level %d", w.m.Image().FeatureLevel(c.feature))
			}
		})
	}
}

func TestOperationsOrderOfResources(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(newTopic("b", 1, 1))
	req := incremental(topicResource, "nope", alteration("retention.ms", opSet, "1"))
	req.Resources = append(req.Resources, incremental(topicResource, "b", alteration("retention.ms", opSet, "1")).Resources...)
	resp := w.apply(w.m.IncrementalAlterConfigs(req)).(*kmsg.IncrementalAlterConfigsResponse)
	var names []string
	for _, r := range resp.Resources {
		names = append(names, r.ResourceName)
	}
	if !slices.Equal(names, []string{"nope", "b"}) || resp.Resources[0].ErrorCode == 0 || resp.Resources[1].ErrorCode != 0 {
		t.Fatalf("%+v", resp.Resources)
	}
}
