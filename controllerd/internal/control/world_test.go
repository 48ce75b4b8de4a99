package control

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

const testClusterID = "the-cluster"

// tester is the part of testing.T that rapid.T has too.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// world is a manager with the log it would have.
type world struct {
	t      tester
	m      *Manager
	loader *metadata.Loader
	now    time.Time
	nextID byte
	epochs map[int32]int64
	dirs   map[int32][16]byte
}

func newWorld(t tester, properties map[string]string) *world {
	t.Helper()
	w := &world{t: t, now: time.UnixMilli(1_700_000_000_000), epochs: map[int32]int64{}, dirs: map[int32][16]byte{}}
	newID := func() uuid.UUID {
		w.nextID++
		return uuid.UUID{0: 7, 15: w.nextID}
	}
	settings := Settings{Node: configdef.NewNode(properties), SessionTimeout: 9 * time.Second, ControllerID: 1}
	w.m = New(settings, rand.New(rand.NewPCG(1, 2)), newID, slog.New(slog.DiscardHandler))
	image := metadata.Empty(testClusterID)
	w.loader = metadata.NewLoader(image)
	w.m.Reset(image, 0, w.now)
	w.apply(w.m.Bootstrap())
	return w
}

// apply appends the records of a decision and gives its reply.
func (w *world) apply(d Decision) any {
	w.t.Helper()
	if len(d.Records) == 0 {
		return d.Reply
	}
	// What is applied is what the log will hold, not what was in memory.
	records, err := metarecord.DecodeAll(metarecord.EncodeAll(d.Records))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.loader.Add(w.loader.NextOffset(), 1, records); err != nil {
		w.t.Fatal(err)
	}
	w.m.Apply(w.loader.Take(), w.loader.NextOffset())
	return d.Reply
}

func (w *world) advance(d time.Duration) {
	w.now = w.now.Add(d)
	w.m.At(w.now)
}

func (w *world) register(id int32, rack string) *kmsg.BrokerRegistrationResponse {
	w.t.Helper()
	req := w.registration(id, rack)
	resp := w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse)
	if resp.ErrorCode == 0 {
		w.epochs[id] = resp.BrokerEpoch
	}
	return resp
}

func (w *world) registration(id int32, rack string) *kmsg.BrokerRegistrationRequest {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version, req.BrokerID, req.ClusterID, req.IncarnationID = 4, id, testClusterID, uuid.Random()
	req.PreviousBrokerEpoch = -1
	if rack != "" {
		req.Rack = &rack
	}
	if _, ok := w.dirs[id]; !ok {
		w.dirs[id] = uuid.Random()
	}
	req.LogDirs = [][16]byte{w.dirs[id]}
	for _, f := range features() {
		e := kmsg.NewBrokerRegistrationRequestFeature()
		e.Name, e.MinSupportedVersion, e.MaxSupportedVersion = f.name, f.min, f.max
		req.Features = append(req.Features, e)
	}
	return req
}

func (w *world) beat(id int32, change func(*kmsg.BrokerHeartbeatRequest)) *kmsg.BrokerHeartbeatResponse {
	w.t.Helper()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.Version, req.BrokerID, req.BrokerEpoch, req.CurrentMetadataOffset = 2, id, w.epochs[id], w.m.Image().Offset()
	if change != nil {
		change(req)
	}
	return w.apply(w.m.BrokerHeartbeat(req)).(*kmsg.BrokerHeartbeatResponse)
}

// up registers nodes and puts them into service.
func (w *world) up(ids ...int32) {
	w.t.Helper()
	for _, id := range ids {
		if resp := w.register(id, ""); resp.ErrorCode != 0 {
			w.t.Fatalf("register %d: %s", id, errcode.Code(resp.ErrorCode).Name())
		}
		if resp := w.beat(id, nil); resp.IsFenced {
			w.t.Fatalf("node %d is fenced", id)
		}
	}
}

// silence lets time pass until nodes are fenced, while the others go on.
func (w *world) silence(ids ...int32) {
	w.t.Helper()
	for range 5 {
		w.advance(2 * time.Second)
		for _, b := range w.m.Image().Brokers() {
			if !b.Fenced && !slices.Contains(ids, b.ID) {
				w.beat(b.ID, nil)
			}
		}
	}
	w.fence()
}

// fence fences who is silent.
func (w *world) fence() {
	w.t.Helper()
	for {
		d, found := w.m.FenceSilent()
		if !found {
			return
		}
		w.apply(d)
	}
}

func newTopic(name string, partitions int32, factor int16, configs ...string) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, factor
	for i := 0; i < len(configs); i += 2 {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: configs[i], Value: &configs[i+1]})
	}
	return t
}

func assigned(name string, replicas ...[]int32) kmsg.CreateTopicsRequestTopic {
	t := newTopic(name, -1, -1)
	for i, r := range replicas {
		t.ReplicaAssignment = append(t.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: r})
	}
	return t
}

func (w *world) create(topics ...kmsg.CreateTopicsRequestTopic) []kmsg.CreateTopicsResponseTopic {
	w.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.Topics = 7, topics
	return w.apply(w.m.CreateTopics(req)).(*kmsg.CreateTopicsResponse).Topics
}

func (w *world) mustCreate(topics ...kmsg.CreateTopicsRequestTopic) *metadata.Topic {
	w.t.Helper()
	for _, r := range w.create(topics...) {
		if r.ErrorCode != 0 {
			w.t.Fatalf("create %s: %s: %s", r.Topic, errcode.Code(r.ErrorCode).Name(), *r.ErrorMessage)
		}
	}
	return w.m.Image().TopicByName(topics[0].Topic)
}

func (w *world) partition(topic string, partition int) *metadata.Partition {
	w.t.Helper()
	t := w.m.Image().TopicByName(topic)
	if t == nil || partition >= len(t.Partitions) {
		w.t.Fatalf("no partition %s-%d", topic, partition)
	}
	return t.Partitions[partition]
}

func (w *world) wantPartition(topic string, partition int, leader int32, isr, elr []int32) {
	w.t.Helper()
	p := w.partition(topic, partition)
	if p.Leader != leader || !slices.Equal(p.ISR, isr) || !slices.Equal(p.ELR, elr) {
		w.t.Fatalf("%s-%d: leader %d, ISR %v, ELR %v; want %d, %v, %v", topic, partition, p.Leader, p.ISR, p.ELR, leader, isr, elr)
	}
}

// alterISR has the leader of a partition propose an ISR.
func (w *world) alterISR(topic string, partition int32, change func(*kmsg.AlterPartitionRequest, *kmsg.AlterPartitionRequestTopicPartition), isr ...int32) errcode.Code {
	w.t.Helper()
	p := w.partition(topic, int(partition))
	in := kmsg.NewAlterPartitionRequestTopicPartition()
	in.Partition, in.LeaderEpoch, in.PartitionEpoch = partition, p.LeaderEpoch, p.PartitionEpoch
	if p.RecoveringUnclean {
		in.LeaderRecoveryState = metarecord.Recovered
	}
	for _, id := range isr {
		n := kmsg.NewAlterPartitionRequestTopicPartitionNewEpochISR()
		n.BrokerID, n.BrokerEpoch = id, w.epochs[id]
		in.NewEpochISR = append(in.NewEpochISR, n)
	}
	req := kmsg.NewPtrAlterPartitionRequest()
	req.Version, req.BrokerID, req.BrokerEpoch = 3, p.Leader, w.epochs[p.Leader]
	t := kmsg.NewAlterPartitionRequestTopic()
	t.TopicID = w.m.Image().TopicByName(topic).ID
	if change != nil {
		change(req, &in)
	}
	t.Partitions = append(t.Partitions, in)
	req.Topics = append(req.Topics, t)
	resp := w.apply(w.m.AlterPartition(req)).(*kmsg.AlterPartitionResponse)
	if resp.ErrorCode != 0 {
		return errcode.Code(resp.ErrorCode)
	}
	out := resp.Topics[0].Partitions[0]
	after := w.m.Image().Partition(resp.Topics[0].TopidID, partition)
	if out.ErrorCode == 0 && (out.LeaderID != after.Leader || out.LeaderEpoch != after.LeaderEpoch || out.PartitionEpoch != after.PartitionEpoch ||
		!slices.Equal(out.ISR, after.ISR)) {
		w.t.Fatalf("the answer %+v is not what became of the partition: %+v", out, after)
	}
	return errcode.Code(out.ErrorCode)
}

func (w *world) registerService(kind controllerv1.ServiceKind, id int32) int64 {
	w.t.Helper()
	incarnation := uuid.Random()
	d, err := w.m.RegisterService(&controllerv1.RegisterServiceRequest{Kind: kind, Id: id, IncarnationId: incarnation[:], ClusterId: testClusterID})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.apply(d).(*controllerv1.RegisterServiceResponse).GetEpoch()
}

func (w *world) beatService(kind controllerv1.ServiceKind, id int32, epoch int64, wantShutdown bool) *controllerv1.ServiceHeartbeatResponse {
	w.t.Helper()
	d, err := w.m.ServiceHeartbeat(&controllerv1.ServiceHeartbeatRequest{
		Kind: kind, Id: id, Epoch: epoch, WantShutdown: wantShutdown, AppliedOffset: w.m.Image().Offset(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.apply(d).(*controllerv1.ServiceHeartbeatResponse)
}

// check checks what must hold for every image.
func (w *world) check() error {
	image := w.m.Image()
	for t := range image.Topics() {
		for i, p := range t.Partitions {
			if err := w.checkPartition(p); err != nil {
				return fmt.Errorf("%s-%d: %w: %+v", t.Name, i, err, *p)
			}
		}
	}
	return nil
}

func (w *world) checkPartition(p *metadata.Partition) error {
	switch {
	case !isISROf(p, p.ISR):
		return errors.New("the ISR has nodes that are no replicas")
	case !isISROf(p, p.ELR):
		return errors.New("the ELR has nodes that are no replicas")
	case slices.ContainsFunc(p.ELR, func(n int32) bool { return slices.Contains(p.ISR, n) }):
		return errors.New("the ELR overlaps the ISR")
	case p.Leader != metadata.NoLeader && !slices.Contains(p.ISR, p.Leader):
		return errors.New("the leader is not in the ISR")
	case p.Leader != metadata.NoLeader && !w.m.isActive(p.Leader):
		return errors.New("the leader is not in service")
	case len(p.Directories) != 0 && len(p.Directories) != len(p.Replicas):
		return errors.New("there is not a directory for each replica")
	case !containsAll(p.Replicas, p.AddingReplicas) || !containsAll(p.Replicas, p.RemovingReplicas):
		return errors.New("replicas come or go that are none")
	}
	for _, n := range p.ISR {
		if b := w.m.Image().Broker(n); b == nil || b.Fenced {
			return fmt.Errorf("node %d is in the ISR and not in service", n)
		}
	}
	return nil
}

func TestBootstrap(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	image := w.m.Image()
	for name, level := range map[string]int16{"metadata.version": 33, "eligible.leader.replicas.version": 1, "group.version": 1,
		"share.version": 2, "streams.version": 1, "transaction.version": 2} {
		if image.FeatureLevel(name) != level {
			t.Errorf("%s is at level %d, want %d", name, image.FeatureLevel(name), level)
		}
	}
	if got := image.Config(metadata.ResourceBroker, "")[minInsyncReplicas]; got != "2" {
		t.Errorf("min.insync.replicas is %q", got)
	}
}
