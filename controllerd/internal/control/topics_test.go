package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

func TestCreateTopicsRefused(t *testing.T) {
	null := newTopic("n", 1, 1)
	null.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "retention.ms"}}
	hole := assigned("n", []int32{1}, []int32{1})
	hole.ReplicaAssignment[1].Partition = 5
	counted := assigned("n", []int32{1})
	counted.NumPartitions = 1
	factored := assigned("n", []int32{1})
	factored.ReplicationFactor = 1
	repeated := assigned("n", []int32{1}, []int32{1})
	repeated.ReplicaAssignment[1].Partition = 0
	for name, c := range map[string]struct {
		topic kmsg.CreateTopicsRequestTopic
		want  errcode.Code
	}{
		"no partitions":           {newTopic("n", 0, 1), errcode.InvalidPartitions},
		"negative partitions":     {newTopic("n", -2, 1), errcode.InvalidPartitions},
		"no replicas":             {newTopic("n", 1, 0), errcode.InvalidReplicationFactor},
		"negative replicas":       {newTopic("n", 1, -2), errcode.InvalidReplicationFactor},
		"too many replicas":       {newTopic("n", 1, 9), errcode.InvalidReplicationFactor},
		"empty name":              {newTopic("", 1, 1), errcode.InvalidTopicException},
		"dot":                     {newTopic(".", 1, 1), errcode.InvalidTopicException},
		"two dots":                {newTopic("..", 1, 1), errcode.InvalidTopicException},
		"slash":                   {newTopic("a/b", 1, 1), errcode.InvalidTopicException},
		"no ASCII":                {newTopic("ä", 1, 1), errcode.InvalidTopicException},
		"250 letters":             {newTopic(strings.Repeat("x", 250), 1, 1), errcode.InvalidTopicException},
		"unknown config":          {newTopic("n", 1, 1, "no.such.config", "1"), errcode.InvalidConfig},
		"bad config value":        {newTopic("n", 1, 1, "retention.ms", "abc"), errcode.InvalidConfig},
		"config out of range":     {newTopic("n", 1, 1, "min.insync.replicas", "0"), errcode.InvalidConfig},
		"null config value":       {null, errcode.InvalidConfig},
		"exists":                  {newTopic("a.b", 1, 1), errcode.TopicAlreadyExists},
		"collides":                {newTopic("a_b", 1, 1), errcode.InvalidTopicException},
		"the metadata log":        {newTopic("__cluster_metadata", 1, 1), errcode.InvalidRequest},
		"unknown broker":          {assigned("n", []int32{999}), errcode.InvalidReplicaAssignment},
		"same broker twice":       {assigned("n", []int32{1, 1}), errcode.InvalidReplicaAssignment},
		"no replicas assigned":    {assigned("n", []int32{}), errcode.InvalidReplicaAssignment},
		"hole in the assignment":  {hole, errcode.InvalidReplicaAssignment},
		"partition twice":         {repeated, errcode.InvalidReplicaAssignment},
		"different factors":       {assigned("n", []int32{1}, []int32{1, 2}), errcode.InvalidReplicaAssignment},
		"only fenced replicas":    {assigned("n", []int32{3}), errcode.InvalidReplicaAssignment},
		"assignment and count":    {counted, errcode.InvalidRequest},
		"assignment and factor":   {factored, errcode.InvalidRequest},
		"very many partitions":    {newTopic("n", 10_001, 1), errcode.PolicyViolation},
		"too many for one change": {newTopic("n", 10_000, 1), errcode.PolicyViolation},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1, 2)
			w.register(3, "")
			w.mustCreate(newTopic("a.b", 1, 1))
			before := w.m.Image()
			r := w.create(c.topic)
			if len(r) != 1 || errcode.Code(r[0].ErrorCode) != c.want {
				t.Fatalf("got %+v, want %s", r, c.want.Name())
			}
			if r[0].ErrorMessage == nil || *r[0].ErrorMessage == "" || r[0].Configs == nil || r[0].NumPartitions != -1 {
				t.Fatalf("got %+v", r[0])
			}
			if w.m.Image() != before {
				t.Fatal("a refused topic changed something")
			}
		})
	}
}

func TestCreateTopics(t *testing.T) {
	w := newWorld(t, map[string]string{"num.partitions": "3", "default.replication.factor": "2"})
	w.up(1, 2, 3)
	got := w.create(newTopic("a", -1, -1, "retention.ms", "1000"), newTopic("b", 0, 1), newTopic("c", 1, 1), newTopic("c", 1, 1),
		newTopic("d.e", 1, 1), newTopic("d_e", 1, 1))
	var codes []string
	for _, r := range got {
		codes = append(codes, fmt.Sprintf("%s %s", r.Topic, errcode.Code(r.ErrorCode).Name()))
	}
	want := []string{"a NONE", "b INVALID_PARTITIONS", "d.e NONE", "d_e INVALID_TOPIC_EXCEPTION", "c INVALID_REQUEST"}
	if !slices.Equal(codes, want) {
		t.Fatalf("got %v, want %v", codes, want)
	}
	a := got[0]
	if a.NumPartitions != 3 || a.ReplicationFactor != 2 {
		t.Fatalf("%+v", a)
	}
	sources := map[string]string{}
	for _, c := range a.Configs {
		sources[c.Name] = fmt.Sprintf("%s %d", *c.Value, c.Source)
	}
	for name, want := range map[string]string{"retention.ms": "1000 1", "segment.bytes": "1073741824 5", "min.insync.replicas": "1 3"} {
		if sources[name] != want {
			t.Errorf("%s is %q, want %q", name, sources[name], want)
		}
	}
	if !slices.IsSortedFunc(a.Configs, func(x, y kmsg.CreateTopicsResponseTopicConfig) int { return strings.Compare(x.Name, y.Name) }) {
		t.Error("configs are not in the order of their names")
	}
	topic := w.m.Image().TopicByName("a")
	if topic.ID != uuid.UUID(a.TopicID) || len(topic.Partitions) != 3 {
		t.Fatalf("%+v", topic)
	}
	if w.m.Image().Config(metadata.ResourceTopic, "a")["retention.ms"] != "1000" {
		t.Fatal("the config is lost")
	}
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
	if w.m.Image().TopicByName("c") != nil {
		t.Fatal("a topic that was named twice was made")
	}
}

func TestValidateOnlyChangesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(newTopic("a", 1, 1))
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version, create.ValidateOnly = 7, true
	create.Topics = append(create.Topics, newTopic("b", 1, 1))
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.ValidateOnly = true
	grow.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: "a", Count: 5}}
	alter := incremental(topicResource, "a", alteration("retention.ms", kmsg.IncrementalAlterConfigOpSet, "1"))
	alter.ValidateOnly = true
	for _, d := range []Decision{w.m.CreateTopics(create), w.m.CreatePartitions(grow), w.m.IncrementalAlterConfigs(alter)} {
		if len(d.Records) != 0 || len(d.Leaders) != 0 {
			t.Fatalf("%T has records", d.Reply)
		}
	}
}

func TestCreationNamesTheLeaders(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2, 3)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 7
	req.Topics = append(req.Topics, assigned("a", []int32{2, 1}, []int32{3, 1}, []int32{2, 3}))
	if d := w.m.CreateTopics(req); !slices.Equal(d.Leaders, []int32{2, 3}) {
		t.Fatalf("leaders %v", d.Leaders)
	}
}

func TestDeleteTopics(t *testing.T) {
	type want struct {
		name string
		id   bool
		code errcode.Code
	}
	name := func(s string) *string { return &s }
	for test, c := range map[string]struct {
		version    int16
		names      []string
		topics     func(a, b *metadata.Topic) []kmsg.DeleteTopicsRequestTopic
		properties map[string]string
		want       []want
		left       []string
	}{
		"by name":     {version: 5, names: []string{"a", "nope"}, want: []want{{"nope", false, errcode.UnknownTopicOrPartition}, {"a", true, 0}}, left: []string{"b"}},
		"twice":       {version: 5, names: []string{"a", "a", "a", "b"}, want: []want{{"a", false, errcode.InvalidRequest}, {"b", true, 0}}, left: []string{"a"}},
		"not allowed": {version: 5, names: []string{"a"}, properties: map[string]string{"delete.topic.enable": "false"}, want: []want{{"a", false, errcode.TopicDeletionDisabled}}, left: []string{"a", "b"}},
		"not in v2":   {version: 2, names: []string{"a"}, properties: map[string]string{"delete.topic.enable": "false"}, want: []want{{"a", false, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"by id": {version: 6, topics: func(a, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{TopicID: a.ID}}
		}, want: []want{{"a", true, 0}}, left: []string{"b"}},
		"unknown id": {version: 6, topics: func(_, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{TopicID: [16]byte{9}}}
		}, want: []want{{"", true, errcode.UnknownTopicId}}, left: []string{"a", "b"}},
		"id twice": {version: 6, topics: func(a, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{TopicID: a.ID}, {TopicID: a.ID}}
		}, want: []want{{"", true, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"neither": {version: 6, topics: func(_, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic { return []kmsg.DeleteTopicsRequestTopic{{}} }, want: []want{{"", false, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"both": {version: 6, topics: func(a, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{Topic: name("a"), TopicID: a.ID}}
		}, want: []want{{"a", true, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"name and id": {version: 6, topics: func(a, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{Topic: name("a")}, {TopicID: a.ID}}
		}, want: []want{{"a", true, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"id, then name": {version: 6, topics: func(a, _ *metadata.Topic) []kmsg.DeleteTopicsRequestTopic {
			return []kmsg.DeleteTopicsRequestTopic{{TopicID: a.ID}, {Topic: name("a")}}
		}, want: []want{{"a", true, errcode.InvalidRequest}}, left: []string{"a", "b"}},
		"nothing": {version: 6, left: []string{"a", "b"}},
	} {
		t.Run(test, func(t *testing.T) {
			w := newWorld(t, c.properties)
			w.up(1)
			a, b := w.mustCreate(newTopic("a", 1, 1, "retention.ms", "1")), w.mustCreate(newTopic("b", 1, 1))
			req := kmsg.NewPtrDeleteTopicsRequest()
			req.Version, req.TopicNames = c.version, c.names
			if c.topics != nil {
				req.Topics = c.topics(a, b)
			}
			resp := w.apply(w.m.DeleteTopics(req)).(*kmsg.DeleteTopicsResponse)
			var got []want
			for _, r := range resp.Topics {
				g := want{id: r.TopicID != [16]byte{}, code: errcode.Code(r.ErrorCode)}
				if r.Topic != nil {
					g.name = *r.Topic
				}
				got = append(got, g)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			var left []string
			for topic := range w.m.Image().Topics() {
				left = append(left, topic.Name)
			}
			slices.Sort(left)
			if !slices.Equal(left, c.left) {
				t.Fatalf("left are %v, want %v", left, c.left)
			}
		})
	}
}

func TestNamesAreFreeAfterDeletion(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	for _, name := range []string{"a.b", "a_b", "a.b"} {
		w.mustCreate(newTopic(name, 1, 1))
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TopicNames = []string{name}
		w.apply(w.m.DeleteTopics(req))
	}
}

func TestCreatePartitions(t *testing.T) {
	assignment := func(replicas ...[]int32) []kmsg.CreatePartitionsRequestTopicAssignment {
		list := []kmsg.CreatePartitionsRequestTopicAssignment{}
		for _, r := range replicas {
			list = append(list, kmsg.CreatePartitionsRequestTopicAssignment{Replicas: r})
		}
		return list
	}
	for name, c := range map[string]struct {
		topic kmsg.CreatePartitionsRequestTopic
		want  errcode.Code
		have  int
	}{
		"grow":                     {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 5}, 0, 5},
		"assigned":                 {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 3, Assignment: assignment([]int32{2, 1})}, 0, 3},
		"same":                     {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 2}, errcode.InvalidPartitions, 2},
		"shrink":                   {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 1}, errcode.InvalidPartitions, 2},
		"zero":                     {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 0}, errcode.InvalidPartitions, 2},
		"negative":                 {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: -1}, errcode.InvalidPartitions, 2},
		"very many":                {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 1 << 30}, errcode.PolicyViolation, 2},
		"unknown topic":            {kmsg.CreatePartitionsRequestTopic{Topic: "nope", Count: 2}, errcode.UnknownTopicOrPartition, 2},
		"assignment too short":     {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 5, Assignment: assignment([]int32{1, 2})}, errcode.InvalidReplicaAssignment, 2},
		"empty assignment":         {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 5, Assignment: assignment()}, errcode.InvalidReplicaAssignment, 2},
		"unknown broker":           {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 3, Assignment: assignment([]int32{1, 999})}, errcode.InvalidReplicaAssignment, 2},
		"another factor":           {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 3, Assignment: assignment([]int32{1})}, errcode.InvalidReplicaAssignment, 2},
		"assignment to one fenced": {kmsg.CreatePartitionsRequestTopic{Topic: "a", Count: 3, Assignment: assignment([]int32{3, 1})}, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1, 2)
			w.register(3, "")
			w.mustCreate(newTopic("a", 2, 2))
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.Topics = append(req.Topics, c.topic)
			resp := w.apply(w.m.CreatePartitions(req)).(*kmsg.CreatePartitionsResponse)
			if len(resp.Topics) != 1 || errcode.Code(resp.Topics[0].ErrorCode) != c.want {
				t.Fatalf("got %+v, want %s", resp.Topics, c.want.Name())
			}
			if n := len(w.m.Image().TopicByName("a").Partitions); n != c.have {
				t.Fatalf("%d partitions, want %d", n, c.have)
			}
			if err := w.check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPlacementSpreads(t *testing.T) {
	w := newWorld(t, nil)
	racks := map[int32]string{1: "x", 2: "x", 3: "y", 4: "y", 5: "z", 6: "z"}
	for id := range int32(6) {
		w.register(id+1, racks[id+1])
		w.beat(id+1, nil)
	}
	topic := w.mustCreate(newTopic("a", 60, 3))
	leaders, replicas := map[int32]int{}, map[int32]int{}
	for i, p := range topic.Partitions {
		leaders[p.Leader]++
		seen := map[string]bool{}
		for _, n := range p.Replicas {
			replicas[n]++
			seen[racks[n]] = true
		}
		if len(seen) != 3 {
			t.Fatalf("partition %d has replicas %v on %d racks", i, p.Replicas, len(seen))
		}
		if p.Leader != p.Replicas[0] {
			t.Fatalf("partition %d is not led by its first replica", i)
		}
	}
	for id := range int32(6) {
		if leaders[id+1] != 10 || replicas[id+1] != 30 {
			t.Fatalf("leaders %v, replicas %v", leaders, replicas)
		}
	}
}

func TestPlacementAvoidsFencedLeaders(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.register(3, "")
	topic := w.mustCreate(newTopic("a", 30, 3))
	for i, p := range topic.Partitions {
		if p.Replicas[0] == 3 || p.Leader == 3 || slices.Contains(p.ISR, 3) || !slices.Contains(p.Replicas, 3) {
			t.Fatalf("partition %d: %+v", i, p)
		}
	}
	one := w.mustCreate(newTopic("b", 10, 2))
	for i, p := range one.Partitions {
		if slices.Contains(p.Replicas, 3) {
			t.Fatalf("partition %d has a replica on a fenced node for no need: %v", i, p.Replicas)
		}
	}
}

func TestAllFenced(t *testing.T) {
	w := newWorld(t, nil)
	w.register(1, "")
	if r := w.create(newTopic("a", 1, 1)); errcode.Code(r[0].ErrorCode) != errcode.InvalidReplicationFactor {
		t.Fatalf("%+v", r)
	}
}

func TestCordonedNodeGetsNoReplicas(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.beat(2, func(r *kmsg.BrokerHeartbeatRequest) { r.CordonedLogDirs = [][16]byte{w.dirs[2]} })
	for i, p := range w.mustCreate(newTopic("a", 10, 1)).Partitions {
		if p.Leader != 1 {
			t.Fatalf("partition %d is led by %d", i, p.Leader)
		}
	}
	if r := w.create(assigned("b", []int32{2})); errcode.Code(r[0].ErrorCode) != errcode.InvalidReplicaAssignment {
		t.Fatalf("%+v", r)
	}
	w.beat(2, func(r *kmsg.BrokerHeartbeatRequest) { r.CordonedLogDirs = [][16]byte{} })
	w.mustCreate(assigned("b", []int32{2}))
}

func TestDirectoriesOfNewPartitions(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	if got := w.mustCreate(newTopic("a", 1, 1)).Partitions[0].Directories; !slices.Equal(got, []uuid.UUID{w.dirs[1]}) {
		t.Fatalf("directories %v", got)
	}
	two := w.registration(2, "")
	two.LogDirs = append(two.LogDirs, uuid.Random())
	w.epochs[2] = w.apply(w.m.RegisterBroker(two)).(*kmsg.BrokerRegistrationResponse).BrokerEpoch
	w.beat(2, nil)
	p := w.mustCreate(assigned("b", []int32{2})).Partitions[0]
	if !slices.Equal(p.Directories, []uuid.UUID{uuid.UnassignedDir}) {
		t.Fatalf("directories %v", p.Directories)
	}
}
