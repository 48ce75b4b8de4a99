package sim

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/storaged/simulation"
)

const (
	replicationFactor = 3
	// settleTime is how long a healed cluster may take until everything has come together.
	settleTime = 3 * time.Minute
	// startTime is how long a new cluster may take.
	startTime = time.Minute
)

// Run plays a seed and says what happened, and what was wrong.
func Run(o Options) (Report, error) {
	w := &World{
		o: o, random: rand.New(rand.NewPCG(o.Seed, 0x5eed)), cut: map[[2]int]bool{}, lastArrival: map[[2]int]time.Duration{},
		checker: newChecker(), digest: newDigest(),
	}
	w.report.Faults = map[string]int{}
	w.shape = shape{nodes: 3 + w.draw(3), partitions: 1 + w.draw(3), minISR: 2, unclean: w.chance(25)}
	if w.chance(20) {
		w.shape.minISR = 1
	}
	w.note("seed %d: %+v", o.Seed, w.shape)
	w.build()
	w.until(startTime, "the cluster has started", w.begin)
	limit := w.report.Events + o.Events
	for w.failure == nil && w.report.Events < limit {
		w.step()
	}
	if w.failure == nil {
		w.heal()
		w.until(settleTime, "everything has come together", w.together)
	}
	if w.failure == nil {
		w.checker.finish(w)
	}
	w.report.Time, w.report.Digest = w.now, w.digest.Sum64()
	return w.report, w.failure
}

// build puts the cluster together.
func (w *World) build() {
	image := metadata.Empty(clusterID)
	w.quorum = quorum{loader: metadata.NewLoader(image), image: image}
	for id := range int32(3) {
		w.controllers = append(w.controllers, w.newController(101+id))
	}
	for i := range w.shape.nodes {
		w.nodes = append(w.nodes, w.newNode(int32(i+1)))
	}
	for _, c := range w.controllers {
		w.start(&c.process)
	}
	w.claim(w.controllers[0])
	w.admin = w.newClient("admin")
	w.start(&w.admin.process)
	w.refresh(w.admin)
	w.healed = true // Nothing goes wrong before there is a topic.
	w.after(100*time.Millisecond, func() {
		for _, n := range w.nodes {
			w.boot(n)
		}
	})
	w.after(2*time.Second, w.createTopic)
}

func (w *World) createTopic() {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topicName, -1, -1
	for i := range w.shape.partitions {
		a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		a.Partition = int32(i)
		for _, r := range w.random.Perm(w.shape.nodes)[:replicationFactor] {
			a.Replicas = append(a.Replicas, int32(r+1))
		}
		t.ReplicaAssignment = append(t.ReplicaAssignment, a)
	}
	set := func(name, value string) {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: &value})
	}
	set("min.insync.replicas", strconv.Itoa(w.shape.minISR))
	set("unclean.leader.election.enable", strconv.FormatBool(w.shape.unclean))
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.Topics = 7, append(req.Topics, t)
	w.request(&w.admin.process, &w.admin.controller, req, func(resp kmsg.Response) {
		r, ok := resp.(*kmsg.CreateTopicsResponse)
		if !ok || r.Topics[0].ErrorCode != 0 && errcode.Code(r.Topics[0].ErrorCode) != errcode.TopicAlreadyExists {
			w.later(&w.admin.process, time.Second, w.createTopic)
		}
	})
}

// keys are all partitions.
func (w *World) keys() []simulation.Key {
	topic := w.quorum.image.TopicByName(topicName)
	if topic == nil {
		return nil
	}
	var out []simulation.Key
	for i := range topic.Partitions {
		out = append(out, simulation.Key{TopicID: topic.ID, Partition: int32(i)})
	}
	return out
}

// until lets things happen until nothing is missing any more.
func (w *World) until(limit time.Duration, what string, missing func() string) {
	end, next := w.now+limit, w.now
	for w.failure == nil {
		w.step()
		if w.now < next {
			continue
		}
		next = w.now + 500*time.Millisecond
		why := missing()
		if why == "" {
			return
		}
		if w.now > end {
			w.fail("in %s it did not come to pass that %s: %s", limit, what, why)
		}
	}
}

// begin starts the work and the faults, once every replica is in sync.
func (w *World) begin() string {
	keys := w.keys()
	if len(keys) == 0 {
		return "there is no topic"
	}
	for _, k := range keys {
		if missing := w.missing(k); missing != "" {
			return missing
		}
	}
	w.healed = false
	for _, k := range keys {
		w.producers = append(w.producers, w.newProducer(k, storage.AcksAll, true))
		w.producers = append(w.producers, w.newProducer(k, storage.AcksAll, w.chance(40)))
		if w.chance(30) {
			w.producers = append(w.producers, w.newProducer(k, storage.AcksLeader, false))
		}
		w.consumers = append(w.consumers, w.newConsumer(k))
	}
	for _, p := range w.producers {
		w.start(&p.process)
		w.refresh(p.client)
		w.produce(p)
	}
	for _, c := range w.consumers {
		w.start(&c.process)
		w.refresh(c.client)
		w.consume(c)
	}
	all, total := faults(), 0
	for _, f := range all {
		total += f.weight
	}
	w.strike(all, total)
	return ""
}
