package control

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

func TestRegistrationRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, r *kmsg.BrokerRegistrationRequest)
		want   errcode.Code
	}{
		"another cluster":      {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.ClusterID = "x" }, errcode.InconsistentClusterId},
		"migrating":            {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.IsMigratingZkBroker = true }, errcode.BrokerIdNotRegistered},
		"no directories":       {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.LogDirs = nil }, errcode.InvalidRegistration},
		"reserved directory":   {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.LogDirs[0] = uuid.LostDir }, errcode.InvalidRegistration},
		"directory twice":      {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.LogDirs = append(r.LogDirs, r.LogDirs...) }, errcode.InvalidRegistration},
		"directory of another": {func(w *world, r *kmsg.BrokerRegistrationRequest) { r.LogDirs[0] = w.dirs[1] }, errcode.InvalidRegistration},
		"no metadata.version":  {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.Features = r.Features[1:] }, errcode.InvalidRegistration},
		"old metadata.version": {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.Features[0].MaxSupportedVersion = 20 }, errcode.UnsupportedVersion},
		"without a feature":    {func(_ *world, r *kmsg.BrokerRegistrationRequest) { r.Features = r.Features[:2] }, errcode.UnsupportedVersion},
		"id of one that is up": {func(w *world, r *kmsg.BrokerRegistrationRequest) { r.BrokerID, r.LogDirs[0] = 1, w.dirs[1] }, errcode.DuplicateBrokerRegistration},
		"a new node":           {func(*world, *kmsg.BrokerRegistrationRequest) {}, errcode.None},
		"with unknown features": {func(_ *world, r *kmsg.BrokerRegistrationRequest) {
			r.Features = append(r.Features, kmsg.BrokerRegistrationRequestFeature{Name: "x", MaxSupportedVersion: 3})
		}, errcode.None},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1)
			req := w.registration(2, "")
			c.change(w, req)
			resp := w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse)
			if errcode.Code(resp.ErrorCode) != c.want {
				t.Fatalf("got %s, want %s", errcode.Code(resp.ErrorCode).Name(), c.want.Name())
			}
		})
	}
}

func TestRegistrationIsAmendedByTheSameIncarnation(t *testing.T) {
	w := newWorld(t, nil)
	req := w.registration(1, "")
	first := w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse)
	w.epochs[1] = first.BrokerEpoch
	w.beat(1, nil)
	rack := "r"
	req.Rack = &rack
	second := w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse)
	b := w.m.Image().Broker(1)
	if second.ErrorCode != 0 || second.BrokerEpoch != first.BrokerEpoch || b.Fenced || *b.Rack != "r" {
		t.Fatalf("%+v, %+v", second, b)
	}
	if r := w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.CurrentMetadataOffset = first.BrokerEpoch }); r.IsCaughtUp {
		t.Fatal("it has not seen its own registration and counts as caught up")
	}
}

func TestNewIncarnationAfterTheSession(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	epoch := w.epochs[1]
	if r := w.register(1, ""); errcode.Code(r.ErrorCode) != errcode.DuplicateBrokerRegistration {
		t.Fatalf("%+v", r)
	}
	w.advance(10 * time.Second)
	if r := w.register(1, ""); r.ErrorCode != 0 || r.BrokerEpoch <= epoch {
		t.Fatalf("%+v", r)
	}
	if b := w.m.Image().Broker(1); !b.Fenced {
		t.Fatal("a new incarnation is in service at once")
	}
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch = 1, epoch
	if r := w.apply(w.m.BrokerHeartbeat(req)).(*kmsg.BrokerHeartbeatResponse); errcode.Code(r.ErrorCode) != errcode.StaleBrokerEpoch {
		t.Fatalf("%+v", r)
	}
}

func TestNodeIsFencedUntilCaughtUp(t *testing.T) {
	w := newWorld(t, nil)
	w.register(1, "")
	if r := w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.CurrentMetadataOffset = w.epochs[1] - 1 }); !r.IsFenced || r.IsCaughtUp {
		t.Fatalf("%+v", r)
	}
	if r := w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.WantFence = true }); !r.IsFenced || !r.IsCaughtUp {
		t.Fatalf("%+v", r)
	}
	if r := w.beat(1, nil); r.IsFenced || !r.IsCaughtUp || w.m.Image().Broker(1).Fenced {
		t.Fatalf("%+v", r)
	}
	if r := w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.WantFence = true }); !r.IsFenced || r.ShouldShutdown {
		t.Fatalf("%+v", r)
	}
}

func TestFencingMovesLeaders(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2, 3)
	w.mustCreate(assigned("a", []int32{1, 2, 3}, []int32{2, 3, 1}))
	w.mustCreate(assigned("alone", []int32{1}))
	before := w.partition("a", 0)
	w.silence(1)
	if !w.m.Image().Broker(1).Fenced {
		t.Fatal("the silent node is not fenced")
	}
	w.wantPartition("a", 0, 2, []int32{2, 3}, nil)
	w.wantPartition("a", 1, 2, []int32{2, 3}, nil)
	w.wantPartition("alone", 0, metadata.NoLeader, nil, []int32{1})
	after := w.partition("a", 0)
	if after.LeaderEpoch != before.LeaderEpoch+1 || after.PartitionEpoch != before.PartitionEpoch+1 {
		t.Fatalf("epochs %d and %d", after.LeaderEpoch, after.PartitionEpoch)
	}
	if p := w.partition("a", 1); p.LeaderEpoch != 0 || p.PartitionEpoch != 1 {
		t.Fatalf("a follower's end changed the leader's epoch: %+v", p)
	}
	w.silence(2)
	w.wantPartition("a", 0, 3, []int32{3}, []int32{2})
	w.silence(3)
	w.wantPartition("a", 0, metadata.NoLeader, nil, []int32{2, 3})
	w.beat(1, nil)
	w.wantPartition("a", 0, metadata.NoLeader, nil, []int32{2, 3})
	w.wantPartition("alone", 0, 1, []int32{1}, nil)
	w.beat(3, nil)
	w.wantPartition("a", 0, 3, []int32{3}, []int32{2})
	w.beat(2, nil)
	if code := w.alterISR("a", 0, nil, 3, 2); code != 0 {
		t.Fatal(code.Name())
	}
	w.wantPartition("a", 0, 3, []int32{3, 2}, nil)
}

func TestUncleanShutdownLosesELR(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	w.silence(1)
	w.wantPartition("a", 0, 2, []int32{2}, []int32{1})
	// It comes back without a clean shutdown: what it had is not to be relied on.
	w.register(1, "")
	w.wantPartition("a", 0, 2, []int32{2}, nil)
	w.beat(1, nil)
	w.silence(2)
	w.wantPartition("a", 0, metadata.NoLeader, nil, []int32{2})

	// After a clean shutdown it is.
	clean := w.registration(2, "")
	clean.PreviousBrokerEpoch = w.epochs[2]
	w.epochs[2] = w.apply(w.m.RegisterBroker(clean)).(*kmsg.BrokerRegistrationResponse).BrokerEpoch
	w.wantPartition("a", 0, metadata.NoLeader, nil, []int32{2})
	w.beat(2, nil)
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

func TestLastKnownLeader(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1}))
	w.advance(10 * time.Second)
	w.register(1, "")
	p := w.partition("a", 0)
	if p.Leader != metadata.NoLeader || !slices.Equal(p.LastKnownELR, []int32{1}) || len(p.ISR)+len(p.ELR) != 0 {
		t.Fatalf("%+v", p)
	}
	// Nobody else can have more, so the last leader leads again, and says that it recovers.
	w.beat(1, nil)
	p = w.partition("a", 0)
	if p.Leader != 1 || !p.RecoveringUnclean || p.LastKnownELR != nil {
		t.Fatalf("%+v", p)
	}
	if code := w.alterISR("a", 0, nil, 1); code != 0 {
		t.Fatal(code.Name())
	}
	if p = w.partition("a", 0); p.RecoveringUnclean {
		t.Fatalf("%+v", p)
	}
}

func TestUncleanElection(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(func() kmsg.CreateTopicsRequestTopic {
		topic := assigned("a", []int32{1, 2})
		value := "true"
		topic.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "unclean.leader.election.enable", Value: &value}}
		return topic
	}())
	w.mustCreate(assigned("b", []int32{1, 2}))
	for _, topic := range []string{"a", "b"} {
		if code := w.alterISR(topic, 0, nil, 1); code != 0 {
			t.Fatal(code.Name())
		}
	}
	w.silence(1)
	w.wantPartition("b", 0, metadata.NoLeader, nil, []int32{1})
	w.wantPartition("a", 0, 2, []int32{2}, nil)
	if p := w.partition("a", 0); !p.RecoveringUnclean {
		t.Fatalf("%+v", p)
	}
	elect := func(kind int8) errcode.Code {
		req := kmsg.NewPtrElectLeadersRequest()
		req.Version, req.ElectionType = 2, kind
		req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "b", Partitions: []int32{0}}}
		return errcode.Code(w.apply(w.m.ElectLeaders(req)).(*kmsg.ElectLeadersResponse).Topics[0].Partitions[0].ErrorCode)
	}
	if code := elect(electionTypePreferred); code != errcode.PreferredLeaderNotAvailable {
		t.Fatal(code.Name())
	}
	if code := elect(electionTypeUnclean); code != 0 {
		t.Fatal(code.Name())
	}
	w.wantPartition("b", 0, 2, []int32{2}, nil)
	if code := elect(electionTypeUnclean); code != errcode.ElectionNotNeeded {
		t.Fatal(code.Name())
	}
}

func TestUncleanElectionLater(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	w.alterISR("a", 0, nil, 1)
	w.silence(1)
	if d, more := w.m.ElectUncleanLeaders(); len(d.Records) != 0 || more {
		t.Fatalf("%d records", len(d.Records))
	}
	w.alter(incremental(topicResource, "a", alteration("unclean.leader.election.enable", opSet, "true")))
	d, _ := w.m.ElectUncleanLeaders()
	w.apply(d)
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

func TestElectLeadersErrors(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(assigned("a", []int32{1}))
	req := kmsg.NewPtrElectLeadersRequest()
	req.Version = 2
	req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "a", Partitions: []int32{0, 5, -1}}, {Topic: "nope", Partitions: []int32{0}}}
	resp := w.apply(w.m.ElectLeaders(req)).(*kmsg.ElectLeadersResponse)
	var codes []errcode.Code
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			codes = append(codes, errcode.Code(p.ErrorCode))
		}
	}
	want := []errcode.Code{errcode.ElectionNotNeeded, errcode.UnknownTopicOrPartition, errcode.UnknownTopicOrPartition, errcode.UnknownTopicOrPartition}
	if !slices.Equal(codes, want) {
		t.Fatalf("got %v", codes)
	}
	req.ElectionType = 7
	if resp := w.apply(w.m.ElectLeaders(req)).(*kmsg.ElectLeadersResponse); errcode.Code(resp.ErrorCode) != errcode.InvalidRequest {
		t.Fatalf("%+v", resp)
	}
	req.ElectionType, req.Topics = 0, nil
	if resp := w.apply(w.m.ElectLeaders(req)).(*kmsg.ElectLeadersResponse); resp.ErrorCode != 0 || len(resp.Topics) != 0 {
		t.Fatalf("%+v", resp)
	}
}

func TestBalanceLeaders(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}, []int32{2, 1}))
	w.silence(1)
	w.beat(1, nil)
	w.wantPartition("a", 0, 2, []int32{2}, nil)
	if d, _ := w.m.BalanceLeaders(); len(d.Records) != 0 {
		t.Fatal("a replica out of sync was elected")
	}
	w.alterISR("a", 0, nil, 2, 1)
	d, more := w.m.BalanceLeaders()
	if more || len(d.Records) != 1 {
		t.Fatalf("%d records", len(d.Records))
	}
	w.apply(d)
	w.wantPartition("a", 0, 1, []int32{2, 1}, nil)
}

func TestControlledShutdown(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}, []int32{2, 1}))
	want := func(r *kmsg.BrokerHeartbeatRequest) { r.WantShutdown = true }
	if r := w.beat(1, want); r.ShouldShutdown || r.IsFenced {
		t.Fatalf("%+v", r)
	}
	w.wantPartition("a", 0, 2, []int32{2}, nil)
	w.wantPartition("a", 1, 2, []int32{2}, nil)
	if !w.m.Image().Broker(1).InControlledShutdown {
		t.Fatal("nobody knows that it leaves")
	}
	// The other node has not heard of its new role yet.
	if r := w.beat(1, want); r.ShouldShutdown {
		t.Fatal("it may stop before the new leader knows")
	}
	if code := w.alterISR("a", 0, nil, 2, 1); code != errcode.IneligibleReplica {
		t.Fatal(code.Name())
	}
	if r := w.create(assigned("b", []int32{1})); errcode.Code(r[0].ErrorCode) != errcode.InvalidReplicaAssignment {
		t.Fatalf("%+v", r)
	}
	w.m.Applied(storageKind, 2, w.epochs[2], w.m.Image().Offset())
	if r := w.beat(1, want); !r.ShouldShutdown || !w.m.Image().Broker(1).Fenced {
		t.Fatalf("%+v", r)
	}
	w.register(1, "")
	if r := w.beat(1, nil); r.IsFenced || w.m.Image().Broker(1).InControlledShutdown {
		t.Fatal("it cannot come back")
	}
}

// TestSilenceDuringShutdown: a node that was about to stop and is fenced on the way may not lead again before it has
// registered again, since no record takes back that it was leaving.
func TestSilenceDuringShutdown(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1}, []int32{2}))
	w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.WantShutdown = true })
	w.silence(1)
	if r := w.beat(1, nil); !r.IsFenced || !w.m.Image().Broker(1).Fenced {
		t.Fatalf("%+v", r)
	}
	if p := w.partition("a", 0); p.Leader != metadata.NoLeader {
		t.Fatalf("%+v", p)
	}
	w.advance(10 * time.Second)
	w.register(1, "")
	if r := w.beat(1, nil); r.IsFenced {
		t.Fatal("it cannot come back")
	}
}

func TestShutdownOfTheLastNode(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	w.mustCreate(assigned("a", []int32{1}))
	for n := 0; ; n++ {
		if r := w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.WantShutdown = true }); r.ShouldShutdown {
			break
		}
		if n > 3 {
			t.Fatal("it may not stop")
		}
	}
	clean := w.registration(1, "")
	clean.PreviousBrokerEpoch = w.epochs[1]
	w.epochs[1] = w.apply(w.m.RegisterBroker(clean)).(*kmsg.BrokerRegistrationResponse).BrokerEpoch
	w.beat(1, nil)
	p := w.partition("a", 0)
	if p.Leader != 1 || p.RecoveringUnclean {
		t.Fatalf("%+v", p)
	}
}

func TestFailedDirectory(t *testing.T) {
	w := newWorld(t, nil)
	good, bad := uuid.Random(), uuid.Random()
	req := w.registration(1, "")
	req.LogDirs = [][16]byte{good, bad}
	w.epochs[1] = w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse).BrokerEpoch
	w.beat(1, nil)
	w.up(2)
	topic := w.mustCreate(assigned("a", []int32{1, 2}, []int32{1, 2}))
	assign := kmsg.NewPtrAssignReplicasToDirsRequest()
	assign.BrokerID, assign.BrokerEpoch = 1, w.epochs[1]
	for i, dir := range []uuid.UUID{good, bad} {
		assign.Directories = append(assign.Directories, kmsg.AssignReplicasToDirsRequestDirectory{ID: dir,
			Topics: []kmsg.AssignReplicasToDirsRequestDirectoryTopic{{TopicID: topic.ID,
				Partitions: []kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{{Partition: int32(i)}, {Partition: 9}}}}})
	}
	resp := w.apply(w.m.AssignReplicasToDirs(assign)).(*kmsg.AssignReplicasToDirsResponse)
	for i, d := range resp.Directories {
		codes := d.Topics[0].Partitions
		if codes[0].ErrorCode != 0 || errcode.Code(codes[1].ErrorCode) != errcode.UnknownTopicOrPartition {
			t.Fatalf("directory %d: %+v", i, codes)
		}
	}
	w.beat(1, func(r *kmsg.BrokerHeartbeatRequest) { r.OfflineLogDirs = [][16]byte{bad} })
	w.wantPartition("a", 0, 1, []int32{1, 2}, nil)
	w.wantPartition("a", 1, 2, []int32{2}, nil)
	if b := w.m.Image().Broker(1); b.Fenced || !slices.Equal(b.Directories, []uuid.UUID{good}) {
		t.Fatalf("%+v", b)
	}
	// A replica that turns out to be in a failed directory cannot stay in sync either.
	assign.Directories = assign.Directories[1:]
	assign.Directories[0].Topics[0].Partitions[0].Partition = 0
	w.apply(w.m.AssignReplicasToDirs(assign))
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

func TestAlterPartition(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world, *kmsg.AlterPartitionRequest, *kmsg.AlterPartitionRequestTopicPartition)
		isr    []int32
		want   errcode.Code
	}{
		"shrink":    {nil, []int32{1}, 0},
		"expand":    {nil, []int32{1, 2, 3}, 0},
		"no change": {nil, []int32{1, 2}, 0},
		"unknown broker epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.NewEpochISR[1].BrokerEpoch = -1
		}, []int32{1, 2}, 0},
		"other broker epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.NewEpochISR[1].BrokerEpoch = 1
		}, []int32{1, 2}, errcode.IneligibleReplica},
		"fenced replica":     {nil, []int32{1, 2, 4}, errcode.IneligibleReplica},
		"not a replica":      {nil, []int32{1, 5}, errcode.InvalidRequest},
		"replica twice":      {nil, []int32{1, 2, 2}, errcode.InvalidRequest},
		"without the leader": {nil, []int32{2}, errcode.InvalidRequest},
		"empty":              {nil, nil, errcode.InvalidRequest},
		"from a follower": {func(w *world, r *kmsg.AlterPartitionRequest, _ *kmsg.AlterPartitionRequestTopicPartition) {
			r.BrokerID, r.BrokerEpoch = 2, w.epochs[2]
		}, []int32{1, 2}, errcode.InvalidRequest},
		"old leader epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.LeaderEpoch--
		}, []int32{1}, errcode.FencedLeaderEpoch},
		"future leader epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.LeaderEpoch++
		}, []int32{1}, errcode.NotController},
		"old partition epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.PartitionEpoch--
		}, []int32{1}, errcode.InvalidUpdateVersion},
		"future epoch": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.PartitionEpoch++
		}, []int32{1}, errcode.NotController},
		"unknown partition": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.Partition = 9
		}, []int32{1}, errcode.UnknownTopicOrPartition},
		"starts to recover": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.LeaderRecoveryState = metarecord.Recovering
		}, []int32{1}, errcode.InvalidRequest},
		"unknown state": {func(_ *world, _ *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			p.LeaderRecoveryState = 9
		}, []int32{1}, errcode.InvalidRequest},
		"stale sender": {func(_ *world, r *kmsg.AlterPartitionRequest, _ *kmsg.AlterPartitionRequestTopicPartition) {
			r.BrokerEpoch--
		}, []int32{1}, errcode.StaleBrokerEpoch},
		"version 2 has no epochs": {func(_ *world, r *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) {
			r.Version = 2
			p.NewISR, p.NewEpochISR = []int32{1, 2}, nil
		}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1, 2, 3, 4)
			w.mustCreate(assigned("a", []int32{1, 2, 3, 4}))
			w.silence(4)
			if code := w.alterISR("a", 0, nil, 1, 2); code != 0 {
				t.Fatal(code.Name())
			}
			// The leader's epoch shall not be 0, so that one below it is no special value.
			var change func(*kmsg.AlterPartitionRequest, *kmsg.AlterPartitionRequestTopicPartition)
			if c.change != nil {
				change = func(r *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition) { c.change(w, r, p) }
			}
			if code := w.alterISR("a", 0, change, c.isr...); code != c.want {
				t.Fatalf("got %s, want %s", code.Name(), c.want.Name())
			}
			if err := w.check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestUnregisterBroker(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	unregister := func(id int32) errcode.Code {
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = id
		return errcode.Code(w.apply(w.m.UnregisterBroker(req)).(*kmsg.UnregisterBrokerResponse).ErrorCode)
	}
	if code := unregister(999); code != errcode.BrokerIdNotRegistered {
		t.Fatal(code.Name())
	}
	if code := unregister(1); code != 0 || w.m.Image().Broker(1) != nil {
		t.Fatal(code.Name())
	}
	w.wantPartition("a", 0, 2, []int32{2}, nil)
	if _, err := w.m.checkBrokerEpoch(1, w.epochs[1]); errcode.Of(err) != errcode.StaleBrokerEpoch {
		t.Fatal(err)
	}
}

func TestProducerIDs(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1)
	allocate := func(id int32, epoch int64, trusted bool) *kmsg.AllocateProducerIDsResponse {
		req := kmsg.NewPtrAllocateProducerIDsRequest()
		req.BrokerID, req.BrokerEpoch = id, epoch
		return w.apply(w.m.AllocateProducerIDs(req, trusted)).(*kmsg.AllocateProducerIDsResponse)
	}
	if r := allocate(1, w.epochs[1], true); r.ErrorCode != 0 || r.ProducerIDStart != 0 || r.ProducerIDLen != 1000 {
		t.Fatalf("%+v", r)
	}
	if r := allocate(-1, -1, true); r.ErrorCode != 0 || r.ProducerIDStart != 1000 {
		t.Fatalf("%+v", r)
	}
	for _, r := range []*kmsg.AllocateProducerIDsResponse{allocate(1, 0, true), allocate(-1, -1, false)} {
		if errcode.Code(r.ErrorCode) != errcode.StaleBrokerEpoch {
			t.Fatalf("%+v", r)
		}
	}
}

// TestReassignmentDropsELR: a replica that a reassignment takes away leaves the eligible leaders too.
func TestReassignmentDropsELR(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	w.silence(1)
	w.wantPartition("a", 0, 2, []int32{2}, []int32{1})
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	to := kmsg.AlterPartitionAssignmentsRequestTopicPartition{Replicas: []int32{2}}
	req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "a", Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{to}}}
	w.apply(w.m.AlterPartitionReassignments(req))
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

// TestReassignmentReplaced: a reassignment takes the place of one under way, and can be completed.
func TestReassignmentReplaced(t *testing.T) {
	for name, c := range map[string]struct{ second, replicas, adding, removing []int32 }{
		"back to where it was":            {[]int32{1, 2}, []int32{1, 2}, nil, nil},
		"without the one that was coming": {[]int32{2, 1}, []int32{2, 1}, nil, nil},
		"one of those that were to go":    {[]int32{3, 1}, []int32{3, 1, 2}, []int32{3}, []int32{2}},
		"yet another":                     {[]int32{3, 4}, []int32{3, 4, 1, 2}, []int32{3, 4}, []int32{1, 2}},
		"all":                             {[]int32{1, 2, 3}, []int32{1, 2, 3}, []int32{3}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.up(1, 2, 3, 4)
			w.mustCreate(assigned("a", []int32{1, 2}))
			for _, target := range [][]int32{{3, 2}, c.second} {
				req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
				req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "a",
					Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Replicas: target}}}}
				w.apply(w.m.AlterPartitionReassignments(req))
			}
			p := w.partition("a", 0)
			if !slices.Equal(p.Replicas, c.replicas) || !slices.Equal(p.AddingReplicas, c.adding) || !slices.Equal(p.RemovingReplicas, c.removing) {
				t.Fatalf("%+v", p)
			}
			if isReassigning(p) {
				w.alterISR("a", 0, nil, p.Replicas...)
			}
			if p = w.partition("a", 0); !slices.Equal(p.Replicas, c.second) || isReassigning(p) {
				t.Fatalf("%+v", p)
			}
		})
	}
}

func TestReassignment(t *testing.T) {
	w := newWorld(t, nil)
	w.up(1, 2, 3, 4)
	w.mustCreate(assigned("a", []int32{1, 2}))
	reassign := func(partition int32, replicas []int32) errcode.Code {
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "a",
			Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Partition: partition, Replicas: replicas}}}}
		return errcode.Code(w.apply(w.m.AlterPartitionReassignments(req)).(*kmsg.AlterPartitionAssignmentsResponse).Topics[0].Partitions[0].ErrorCode)
	}
	list := func() []kmsg.ListPartitionReassignmentsResponseTopic {
		return w.m.ListPartitionReassignments(kmsg.NewPtrListPartitionReassignmentsRequest()).Reply.(*kmsg.ListPartitionReassignmentsResponse).Topics
	}
	for name, c := range map[string]struct {
		got, want errcode.Code
	}{
		"to where it is":    {reassign(0, []int32{1, 2}), 0},
		"nothing to cancel": {reassign(0, nil), errcode.NoReassignmentInProgress},
		"unknown broker":    {reassign(0, []int32{1, 99}), errcode.InvalidReplicaAssignment},
		"no replicas":       {reassign(0, []int32{}), errcode.InvalidReplicaAssignment},
		"same twice":        {reassign(0, []int32{1, 1}), errcode.InvalidReplicaAssignment},
		"unknown partition": {reassign(7, []int32{1, 2}), errcode.UnknownTopicOrPartition},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", name, c.got.Name(), c.want.Name())
		}
	}
	if len(list()) != 0 {
		t.Fatalf("%+v", list())
	}
	if code := reassign(0, []int32{3, 4}); code != 0 {
		t.Fatal(code.Name())
	}
	p := w.partition("a", 0)
	if !slices.Equal(p.Replicas, []int32{3, 4, 1, 2}) || !slices.Equal(p.AddingReplicas, []int32{3, 4}) || !slices.Equal(p.RemovingReplicas, []int32{1, 2}) || p.Leader != 1 {
		t.Fatalf("%+v", p)
	}
	if got := list(); len(got) != 1 || len(got[0].Partitions) != 1 {
		t.Fatalf("%+v", got)
	}
	if code := w.alterISR("a", 0, nil, 1, 2, 3); code != 0 {
		t.Fatal(code.Name())
	}
	if code := w.alterISR("a", 0, nil, 1, 2, 3, 4); code != errcode.NewLeaderElected {
		t.Fatal(code.Name())
	}
	p = w.partition("a", 0)
	if !slices.Equal(p.Replicas, []int32{3, 4}) || p.AddingReplicas != nil || p.RemovingReplicas != nil || p.Leader != 3 || len(list()) != 0 {
		t.Fatalf("%+v", p)
	}
	reassign(0, []int32{4, 1})
	if code := reassign(0, nil); code != 0 {
		t.Fatal(code.Name())
	}
	if p = w.partition("a", 0); !slices.Equal(p.Replicas, []int32{4, 3}) && !slices.Equal(p.Replicas, []int32{3, 4}) || isReassigning(p) {
		t.Fatalf("%+v", p)
	}
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
	v1 := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	v1.Version, v1.AllowReplicationFactorChange = 1, false
	v1.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: "a",
		Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{{Replicas: []int32{1, 2, 3}}}}}
	resp := w.apply(w.m.AlterPartitionReassignments(v1)).(*kmsg.AlterPartitionAssignmentsResponse)
	if code := errcode.Code(resp.Topics[0].Partitions[0].ErrorCode); code != errcode.InvalidReplicationFactor {
		t.Fatal(code.Name())
	}
}

// TestCleanShutdownOfAnotherRun: a clean stop counts only for the run that the controller has heard of last. What was written in a later one
// may be lost.
func TestCleanShutdownOfAnotherRun(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	earlier := w.epochs[1]
	w.silence(1)
	w.up(1)
	if code := w.alterISR("a", 0, nil, 2, 1); code != 0 {
		t.Fatal(code.Name())
	}
	w.silence(1)
	w.wantPartition("a", 0, 2, []int32{2}, []int32{1})
	req := w.registration(1, "")
	req.PreviousBrokerEpoch = earlier
	w.apply(w.m.RegisterBroker(req))
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

// TestUnregisteredNodeLeavesTheELR: nobody knows what a node did after it was unregistered, so what it had does not count when it
// comes back.
func TestUnregisteredNodeLeavesTheELR(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2)
	w.mustCreate(assigned("a", []int32{1, 2}))
	w.silence(1)
	w.wantPartition("a", 0, 2, []int32{2}, []int32{1})
	req := kmsg.NewPtrUnregisterBrokerRequest()
	req.BrokerID = 1
	w.apply(w.m.UnregisterBroker(req))
	again := w.registration(1, "")
	again.PreviousBrokerEpoch = w.epochs[1]
	w.apply(w.m.RegisterBroker(again))
	w.wantPartition("a", 0, 2, []int32{2}, nil)
}

// TestEligibleReplicaWaitsForTheISR: as long as there is an ISR, its members have more than a replica of the ELR, which must not lead
// before them, however much it is preferred.
func TestEligibleReplicaWaitsForTheISR(t *testing.T) {
	w := newWorld(t, map[string]string{"min.insync.replicas": "2"})
	w.up(1, 2, 3)
	w.mustCreate(assigned("t", []int32{2, 1, 3}))
	w.silence(1, 2)
	w.wantPartition("t", 0, 3, []int32{3}, []int32{2})
	// Node 2 comes back without having lost anything.
	req := w.registration(2, "")
	req.PreviousBrokerEpoch = w.epochs[2]
	w.epochs[2] = w.apply(w.m.RegisterBroker(req)).(*kmsg.BrokerRegistrationResponse).BrokerEpoch
	w.beat(2, nil)
	w.wantPartition("t", 0, 3, []int32{3}, []int32{2})
	d, _ := w.m.BalanceLeaders()
	w.apply(d)
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	resp := w.apply(w.m.ElectLeaders(elect)).(*kmsg.ElectLeadersResponse)
	if code := errcode.Code(resp.Topics[0].Partitions[0].ErrorCode); code != errcode.PreferredLeaderNotAvailable {
		t.Error(code.Name())
	}
	w.wantPartition("t", 0, 3, []int32{3}, []int32{2})
	// Without an ISR it is the best there is.
	w.silence(3)
	w.wantPartition("t", 0, 2, []int32{2}, []int32{3})
}
