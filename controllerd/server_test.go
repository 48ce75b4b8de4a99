package controllerd_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/telemetry"
	"chancery/services/testkit/ports"
	"chancery/services/transport"
)

const patience = 30 * time.Second

func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// cluster is some controllers in this process, which reach each other through a local registry.
type cluster struct {
	t           testing.TB
	local       *transport.Local
	dialer      *transport.Dialer
	configs     []controllerd.Config
	controllers []*controllerd.Server
	client      *controllerclient.Client
	// metrics are for the controllers; nil for none.
	metrics *telemetry.Metrics
}

func addressOf(id int32) string { return transport.LocalAddress(fmt.Sprintf("controller-%d", id)) }

func newCluster(t testing.TB, n int) *cluster {
	t.Helper()
	pool := transport.NewPool()
	c := &cluster{t: t, local: transport.NewLocal(pool)}
	c.dialer = transport.NewDialer(transport.Options{Pool: pool}, c.local)
	var voters []controllerd.Voter
	if n > 1 {
		for i, a := range freeAddresses(t, n) {
			voters = append(voters, controllerd.Voter{ID: int32(i + 1), Address: a})
		}
	}
	var targets []string
	for i := range n {
		config := controllerd.DefaultConfig()
		config.NodeID = int32(i + 1)
		config.Dir = t.TempDir()
		config.Address = addressOf(config.NodeID)
		config.Voters = voters
		config.UnsafeNoFsync = true
		config.BallastBytes = 0
		config.WALSegmentBytes = 4 << 20
		config.SessionTimeout = time.Minute
		if n > 1 {
			config.ElectionTimeout = 200 * time.Millisecond
		}
		c.configs = append(c.configs, config)
		targets = append(targets, config.Address)
	}
	c.controllers = make([]*controllerd.Server, n)
	client, err := controllerclient.New(controllerclient.Config{Targets: targets, Dialer: c.dialer, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	c.client = client
	t.Cleanup(func() {
		_ = client.Close()
		c.stopAll()
	})
	return c
}

func freeAddresses(t testing.TB, n int) []string {
	t.Helper()
	addresses, err := ports.FreeAddresses(n)
	if err != nil {
		t.Fatal(err)
	}
	return addresses
}

func (c *cluster) start(i int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), patience)
	defer cancel()
	deps := controllerd.Deps{Registrar: c.local.Channel(fmt.Sprintf("controller-%d", i+1)), Dialer: c.dialer, Logger: testLogger(c.t)}
	if c.metrics != nil {
		deps.Meter, deps.Registry = c.metrics.Meter("controllerd"), c.metrics.Registerer()
	}
	s, err := controllerd.New(c.configs[i], deps)
	if err == nil {
		err = s.Start(ctx)
	}
	if err != nil {
		c.t.Errorf("controller %d: %v", i+1, err)
		return
	}
	c.controllers[i] = s
}

func (c *cluster) startAll() {
	c.t.Helper()
	var all sync.WaitGroup
	for i := range c.configs {
		all.Go(func() { c.start(i) })
	}
	all.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

func (c *cluster) stop(i int) {
	s := c.controllers[i]
	if s == nil {
		return
	}
	c.controllers[i] = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), patience)
	defer cancel()
	begin := time.Now()
	defer func() { c.t.Logf("stopped controller %d in %s", i+1, time.Since(begin)) }()
	if err := s.Stop(ctx); err != nil {
		c.t.Errorf("stop controller %d: %v", i+1, err)
	}
}

func (c *cluster) stopAll() {
	var all sync.WaitGroup
	for i := range c.controllers {
		all.Go(func() { c.stop(i) })
	}
	all.Wait()
}

// active waits until one of the controllers is active.
func (c *cluster) active() int {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, s := range c.controllers {
			if s != nil && s.Active() {
				return i
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatal("no controller is active")
		}
	}
}

func request[R kmsg.Response](c *cluster, req kmsg.Request) R {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	resp, err := c.client.Request(ctx, req, controllerclient.Sender{Trusted: true})
	if err != nil {
		c.t.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp.(R)
}

// node plays a storage node: it registers, follows the log and sends heartbeats.
type node struct {
	c        *cluster
	id       int32
	epoch    int64
	follower *metadata.Follower
}

func (c *cluster) startNode(id int32) *node {
	c.t.Helper()
	n := &node{c: c, id: id}
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.Version = 4
	req.BrokerID, req.IncarnationID = id, uuid.Random()
	for _, s := range c.controllers {
		if s != nil {
			req.ClusterID = s.ClusterID()
		}
	}
	req.LogDirs = [][16]byte{uuid.Random()}
	f := kmsg.NewBrokerRegistrationRequestFeature()
	for name, level := range map[string]int16{"metadata.version": 33, "eligible.leader.replicas.version": 1, "group.version": 1,
		"share.version": 2, "streams.version": 1, "transaction.version": 2} {
		f.Name, f.MinSupportedVersion, f.MaxSupportedVersion = name, 0, level
		req.Features = append(req.Features, f)
	}
	resp := request[*kmsg.BrokerRegistrationResponse](c, req)
	if resp.ErrorCode != 0 {
		c.t.Fatalf("register node %d: %s", id, errcode.Code(resp.ErrorCode).Name())
	}
	n.epoch = resp.BrokerEpoch
	n.follower = metadata.NewFollower(metadata.Config{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, ID: id, Source: c.client, Logger: testLogger(c.t),
		MemberEpoch: func() int64 { return n.epoch },
	})
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	if err := n.follower.Start(ctx); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = n.follower.Stop(context.WithoutCancel(c.t.Context())) })
	if err := n.follower.Await(ctx, n.epoch); err != nil {
		c.t.Fatal(err)
	}
	if beat := n.beat(false); beat.IsFenced {
		c.t.Fatalf("node %d is fenced: %+v", id, beat)
	}
	return n
}

func (n *node) beat(wantShutdown bool) *kmsg.BrokerHeartbeatResponse {
	n.c.t.Helper()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.Version = 2
	req.BrokerID, req.BrokerEpoch, req.WantShutdown = n.id, n.epoch, wantShutdown
	req.CurrentMetadataOffset = n.follower.Image().Offset()
	return request[*kmsg.BrokerHeartbeatResponse](n.c, req)
}

func (n *node) await(what string, condition func(*metadata.Image) bool) {
	n.c.t.Helper()
	n.awaitWith(what, func() {}, condition)
}

// awaitWith waits until the node's image is as it should be, and does something again and again meanwhile.
func (n *node) awaitWith(what string, meanwhile func(), condition func(*metadata.Image) bool) {
	n.c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition(n.follower.Image()) {
		select {
		case <-tick.C:
			meanwhile()
		case <-deadline:
			n.c.t.Fatalf("no %s", what)
		}
	}
}

func createTopic(c *cluster, name string, partitions int32, factor int16) kmsg.CreateTopicsResponseTopic {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 10_000
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, factor
	req.Topics = append(req.Topics, topic)
	return request[*kmsg.CreateTopicsResponse](c, req).Topics[0]
}

func TestOneController(t *testing.T) {
	c := newCluster(t, 1)
	begin := time.Now()
	c.startAll()
	t.Logf("started in %s", time.Since(begin))
	n := c.startNode(7)
	begin = time.Now()
	if topic := createTopic(c, "a", 3, 1); topic.ErrorCode != 0 || topic.NumPartitions != 3 {
		t.Fatalf("%+v", topic)
	}
	t.Logf("topic made in %s", time.Since(begin))
	if topic := n.follower.Image().TopicByName("a"); topic == nil || len(topic.Partitions) != 3 || topic.Partitions[2].Leader != 7 {
		t.Fatal("the answer came before the leader knew")
	}
	image := n.follower.Image()
	features := image.Features()
	if features["metadata.version"] != 33 || image.Config(metadata.ResourceBroker, "")["min.insync.replicas"] != "1" {
		t.Fatalf("features %v", features)
	}

	id := c.controllers[0].ClusterID()
	c.stop(0)
	begin = time.Now()
	c.startAll()
	t.Logf("restarted in %s", time.Since(begin))
	if got := c.controllers[0].ClusterID(); got != id {
		t.Fatalf("cluster id %s, want %s", got, id)
	}
	if topic := createTopic(c, "a", 3, 1); topic.ErrorCode != int16(errcode.TopicAlreadyExists) {
		t.Fatalf("%+v", topic)
	}
	n.beat(false)
	// The claim is read from the log soon after the controller decides by it.
	c.awaitQuorum("one voter and a leader of the second epoch", func(p kmsg.DescribeQuorumResponseTopicPartition) bool {
		return p.LeaderID == 1 && p.LeaderEpoch == 2 && len(p.CurrentVoters) == 1 && p.HighWatermark > 0
	})
}

// awaitQuorum waits until the quorum is described like that.
func (c *cluster) awaitQuorum(what string, condition func(kmsg.DescribeQuorumResponseTopicPartition) bool) {
	c.t.Helper()
	req := kmsg.NewPtrDescribeQuorumRequest()
	req.Version = 2
	req.Topics = []kmsg.DescribeQuorumRequestTopic{{Topic: "__cluster_metadata", Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		p := request[*kmsg.DescribeQuorumResponse](c, req).Topics[0].Partitions[0]
		if condition(p) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("no %s: %+v", what, p)
		}
	}
}

func TestSilentNodeIsFenced(t *testing.T) {
	c := newCluster(t, 1)
	c.startAll()
	n1, n2 := c.startNode(1), c.startNode(2)
	if topic := createTopic(c, "a", 4, 2); topic.ErrorCode != 0 {
		t.Fatalf("%+v", topic)
	}
	id := n1.follower.Image().TopicByName("a").ID
	c.stop(0)
	c.configs[0].SessionTimeout = time.Second
	c.startAll()
	// Should the second node be fenced, too, since the machine is busy, then only after the first, and its next heartbeat ends that.
	n2.awaitWith("new leaders", func() { n2.beat(false) }, func(i *metadata.Image) bool {
		return i.Broker(1).Fenced && !slices.ContainsFunc(i.Topic(id).Partitions, func(p *metadata.Partition) bool { return p.Leader != 2 })
	})
	n2.awaitWith("unfenced node", func() { n1.beat(false) }, func(i *metadata.Image) bool { return !i.Broker(1).Fenced })
}

func TestControlledShutdown(t *testing.T) {
	c := newCluster(t, 1)
	c.startAll()
	n1, n2 := c.startNode(1), c.startNode(2)
	if topic := createTopic(c, "a", 4, 2); topic.ErrorCode != 0 {
		t.Fatalf("%+v", topic)
	}
	id := n1.follower.Image().TopicByName("a").ID
	stops := false
	n2.awaitWith("leave to stop", func() { stops = n1.beat(true).ShouldShutdown; n2.beat(false) }, func(*metadata.Image) bool { return stops })
	n2.await("new leaders", func(i *metadata.Image) bool {
		return !slices.ContainsFunc(i.Topic(id).Partitions, func(p *metadata.Partition) bool { return p.Leader != 2 })
	})
}

func TestThreeControllers(t *testing.T) {
	c := newCluster(t, 3)
	begin := time.Now()
	c.startAll()
	first := c.active()
	t.Logf("three started in %s", time.Since(begin))
	n := c.startNode(7)
	for i := range 5 {
		begin := time.Now()
		if topic := createTopic(c, fmt.Sprintf("before-%d", i), 1, 1); topic.ErrorCode != 0 {
			t.Fatalf("%+v", topic)
		}
		t.Logf("topic made in %s", time.Since(begin))
	}
	begin = time.Now()
	c.stop(first)
	second := c.active()
	t.Logf("another is active after %s", time.Since(begin))
	if first == second {
		t.Fatal("the same controller is active")
	}
	begin = time.Now()
	if topic := createTopic(c, "after", 1, 1); topic.ErrorCode != 0 {
		t.Fatalf("%+v", topic)
	}
	t.Logf("topic made in %s", time.Since(begin))
	n.await("topics", func(i *metadata.Image) bool { return i.TopicCount() == 6 })
	c.start(first)
	if t.Failed() {
		return
	}
	for i, s := range c.controllers {
		if s.ClusterID() != c.controllers[0].ClusterID() {
			t.Fatalf("controller %d has another cluster id", i+1)
		}
	}
}
