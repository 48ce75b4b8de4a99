package control

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// lifeNodes is how many nodes a random life has.
const lifeNodes = 4

var someNode = rapid.Int32Range(1, lifeNodes)

// life is a cluster to which random things happen.
type life struct {
	*world
	// topics counts those that were made, also the deleted ones.
	topics int
	before *metadata.Image
}

// TestRandomLives plays random lives of nodes and topics. After each step every partition must make sense, its epochs must not
// go back, and the image must be the one that a snapshot of it gives.
func TestRandomLives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &life{world: newWorld(t, map[string]string{"min.insync.replicas": fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "min ISR"))})}
		w.before = w.m.Image()
		steps := map[string]func(*rapid.T){"": w.verify}
		maps.Copy(steps, w.nodeSteps())
		maps.Copy(steps, w.topicSteps())
		maps.Copy(steps, w.leaderSteps())
		t.Repeat(steps)
	})
}

func (w *life) verify(t *rapid.T) {
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
	checkEpochs(t, w.before, w.m.Image())
	w.before = w.m.Image()
	checkSnapshot(t, w.before)
}

func (w *life) someTopic(t *rapid.T) (string, int32) {
	if w.topics == 0 {
		t.Skip("no topics")
	}
	name := fmt.Sprintf("t%d", rapid.IntRange(0, w.topics-1).Draw(t, "topic"))
	topic := w.m.Image().TopicByName(name)
	if topic == nil {
		t.Skip("deleted")
	}
	return name, rapid.Int32Range(0, int32(len(topic.Partitions)-1)).Draw(t, "partition")
}

func (w *life) registered(t *rapid.T) int32 {
	id := someNode.Draw(t, "node")
	if w.m.Image().Broker(id) == nil {
		t.Skip("not registered")
	}
	return id
}

// nodeSteps are what happens to nodes and controllers.
func (w *life) nodeSteps() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"register": func(t *rapid.T) {
			id := someNode.Draw(t, "node")
			req := w.registration(id, "")
			if rapid.Bool().Draw(t, "clean") {
				req.PreviousBrokerEpoch = w.epochs[id]
			}
			if resp := w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse); resp.ErrorCode == 0 {
				w.epochs[id] = resp.BrokerEpoch
			}
		},
		"heartbeat": func(t *rapid.T) {
			w.beat(w.registered(t), func(r *kmsg.BrokerHeartbeatRequest) {
				r.WantFence, r.WantShutdown = rapid.IntRange(0, 9).Draw(t, "fence") == 0, rapid.IntRange(0, 9).Draw(t, "shutdown") == 0
			})
		},
		"applied": func(t *rapid.T) {
			id := w.registered(t)
			w.m.Applied(storageKind, id, w.epochs[id], w.m.Image().Offset())
		},
		"silence": func(t *rapid.T) {
			w.advance(time.Duration(rapid.IntRange(1, 6).Draw(t, "seconds")) * time.Second)
			w.fence()
		},
		"unregister": func(t *rapid.T) {
			if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
				t.Skip("rarely")
			}
			req := kmsg.NewPtrUnregisterBrokerRequest()
			req.BrokerID = w.registered(t)
			w.apply(w.m.UnregisterBroker(req))
		},
		"failover": func(*rapid.T) { w.m.Reset(w.m.Image(), w.loader.NextOffset(), w.now) },
	}
}

// topicSteps are what happens to topics.
func (w *life) topicSteps() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			topic := newTopic(fmt.Sprintf("t%d", w.topics), rapid.Int32Range(1, 4).Draw(t, "partitions"), int16(rapid.IntRange(1, lifeNodes).Draw(t, "factor")))
			if rapid.IntRange(0, 4).Draw(t, "unclean") == 0 {
				value := "true"
				topic.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "unclean.leader.election.enable", Value: &value}}
			}
			if w.create(topic)[0].ErrorCode == 0 {
				w.topics++
			}
		},
		"delete": func(t *rapid.T) {
			name, _ := w.someTopic(t)
			req := kmsg.NewPtrDeleteTopicsRequest()
			req.TopicNames = []string{name}
			w.apply(w.m.DeleteTopics(req))
		},
		"grow": func(t *rapid.T) {
			name, _ := w.someTopic(t)
			req := kmsg.NewPtrCreatePartitionsRequest()
			req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: rapid.Int32Range(1, 6).Draw(t, "count")}}
			w.apply(w.m.CreatePartitions(req))
		},
		"reassign": func(t *rapid.T) {
			name, partition := w.someTopic(t)
			in := kmsg.AlterPartitionAssignmentsRequestTopicPartition{Partition: partition}
			if rapid.IntRange(0, 3).Draw(t, "cancel") > 0 {
				in.Replicas = rapid.Permutation([]int32{1, 2, 3, 4}).Draw(t, "replicas")[:rapid.IntRange(1, 4).Draw(t, "factor")]
			}
			req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
			req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: name, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{in}}}
			w.apply(w.m.AlterPartitionReassignments(req))
		},
	}
}

// leaderSteps are what happens to leaders and in-sync replicas.
func (w *life) leaderSteps() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"alter ISR": func(t *rapid.T) {
			name, partition := w.someTopic(t)
			p := w.partition(name, int(partition))
			if p.Leader == metadata.NoLeader {
				t.Skip("no leader")
			}
			isr := []int32{p.Leader}
			for _, n := range p.Replicas {
				if n != p.Leader && rapid.Bool().Draw(t, "in sync") {
					isr = append(isr, n)
				}
			}
			w.alterISR(name, partition, nil, isr...)
		},
		"elect": func(t *rapid.T) {
			name, partition := w.someTopic(t)
			req := kmsg.NewPtrElectLeadersRequest()
			req.Version, req.ElectionType = 2, rapid.Int8Range(0, 1).Draw(t, "type")
			req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: name, Partitions: []int32{partition}}}
			w.apply(w.m.ElectLeaders(req))
		},
		"balance": func(*rapid.T) {
			d, _ := w.m.BalanceLeaders()
			w.apply(d)
		},
		"unclean": func(*rapid.T) {
			d, _ := w.m.ElectUncleanLeaders()
			w.apply(d)
		},
	}
}

func checkEpochs(t *rapid.T, before, after *metadata.Image) {
	for topic := range before.Topics() {
		for i, p := range topic.Partitions {
			q := after.Partition(topic.ID, int32(i))
			if q == nil || p == q {
				continue
			}
			if q.PartitionEpoch < p.PartitionEpoch || q.LeaderEpoch < p.LeaderEpoch || q.Leader != p.Leader && q.LeaderEpoch == p.LeaderEpoch {
				t.Fatalf("%s-%d went from %+v to %+v", topic.Name, i, *p, *q)
			}
		}
	}
}

func checkSnapshot(t *rapid.T, image *metadata.Image) {
	var records []metarecord.Record
	for r := range image.Records() {
		records = append(records, r)
	}
	delta, err := metadata.Empty(testClusterID).Apply(image.Offset(), image.Epoch(), records...)
	if err != nil {
		t.Fatal(err)
	}
	again := slices.Collect(delta.Image().Records())
	if len(again) != len(records) || !reflect.DeepEqual(encoded(again), encoded(records)) {
		t.Fatal("a snapshot gives another image")
	}
}

func encoded(records []metarecord.Record) map[string]bool {
	all := map[string]bool{}
	for _, b := range metarecord.EncodeAll(records) {
		all[string(b)] = true
	}
	return all
}

// TestRandomOwners has coordinators come and go, and checks that every shard has a live owner as soon as there is one.
func TestRandomOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, nil)
		w.up(1)
		w.mustCreate(newTopic("__consumer_offsets", rapid.Int32Range(1, 50).Draw(t, "shards"), 1))
		epochs := map[int32]int64{}
		id := rapid.Int32Range(1, 5)
		member := func(t *rapid.T) int32 {
			n := id.Draw(t, "coordinator")
			if w.m.Image().Service(metadata.Coordinator, n) == nil {
				t.Skip("not registered")
			}
			return n
		}
		before := map[int32]metadata.Shard{}
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				n, incarnation := id.Draw(t, "coordinator"), uuid.Random()
				d, err := w.m.RegisterService(&controllerv1.RegisterServiceRequest{Kind: coordinatorKind, Id: n, IncarnationId: incarnation[:]})
				if err == nil {
					epochs[n] = w.apply(d).(*controllerv1.RegisterServiceResponse).GetEpoch()
				}
			},
			"heartbeat": func(t *rapid.T) { n := member(t); w.beatService(coordinatorKind, n, epochs[n], false) },
			"leave":     func(t *rapid.T) { n := member(t); w.beatService(coordinatorKind, n, epochs[n], true) },
			"silence": func(t *rapid.T) {
				w.advance(time.Duration(rapid.IntRange(1, 12).Draw(t, "seconds")) * time.Second)
				w.fence()
			},
			"": func(t *rapid.T) {
				w.assign()
				owners := w.owners(metadata.GroupShard, before)
				before = w.shards(metadata.GroupShard)
				live := w.m.liveOwners(metadata.Coordinator)
				least, most := 1<<30, 0
				for _, n := range live {
					least, most = min(least, owners[n]), max(most, owners[n])
					delete(owners, n)
				}
				if len(live) > 0 && (len(owners) > 0 || most-least > 1) {
					t.Fatalf("live are %v; others own %v; the shares are from %d to %d", live, owners, least, most)
				}
				if len(live) == 0 && len(owners) > 1 {
					t.Fatalf("nobody is live, and %v own shards", owners)
				}
			},
		})
	})
}
