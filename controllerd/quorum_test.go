package controllerd_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
)

// voters are the directories of the voters by their ids, and observers the same of those that would be voters.
func (c *cluster) voters() (voters, observers map[int32]uuid.UUID) {
	c.t.Helper()
	req := kmsg.NewPtrDescribeQuorumRequest()
	req.Version = 2
	req.Topics = []kmsg.DescribeQuorumRequestTopic{{Topic: "__cluster_metadata", Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}
	p := request[*kmsg.DescribeQuorumResponse](c, req).Topics[0].Partitions[0]
	read := func(states []kmsg.DescribeQuorumResponseTopicPartitionReplicaState) map[int32]uuid.UUID {
		out := map[int32]uuid.UUID{}
		for _, r := range states {
			out[r.ReplicaID] = r.ReplicaDirectoryID
		}
		return out
	}
	return read(p.CurrentVoters), read(p.Observers)
}

// awaitVoters waits for a state of the quorum.
func (c *cluster) awaitVoters(what string, condition func(voters, observers map[int32]uuid.UUID) bool) (voters, observers map[int32]uuid.UUID) {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		voters, observers = c.voters()
		if condition(voters, observers) {
			return voters, observers
		}
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("no %s: voters %v, observers %v", what, voters, observers)
		}
	}
}

func (c *cluster) addVoter(id int32, directoryID uuid.UUID) errcode.Code {
	c.t.Helper()
	req := kmsg.NewPtrAddRaftVoterRequest()
	req.Version, req.VoterID, req.VoterDirectoryID, req.TimeoutMillis = 1, id, directoryID, int32(patience.Milliseconds())
	req.Listeners = []kmsg.AddRaftVoterRequestListener{{Name: "CONTROLLER", Host: "localhost", Port: 1}}
	return errcode.Code(request[*kmsg.AddRaftVoterResponse](c, req).ErrorCode)
}

func (c *cluster) removeVoter(id int32, directoryID uuid.UUID) errcode.Code {
	c.t.Helper()
	req := kmsg.NewPtrRemoveRaftVoterRequest()
	req.VoterID, req.VoterDirectoryID = id, directoryID
	return errcode.Code(request[*kmsg.RemoveRaftVoterResponse](c, req).ErrorCode)
}

func (c *cluster) upgradeQuorum() {
	c.t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.Version = 2
	req.FeatureUpdates = []kmsg.UpdateFeaturesRequestFeatureUpdate{{Feature: "kraft.version", MaxVersionLevel: 1, UpgradeType: 1}}
	if resp := request[*kmsg.UpdateFeaturesResponse](c, req); resp.ErrorCode != 0 {
		c.t.Fatalf("%+v", resp)
	}
}

// join starts one more controller, which waits to be added.
func (c *cluster) join() int32 {
	c.t.Helper()
	config := c.configs[0]
	config.NodeID = int32(len(c.configs) + 1)
	config.Dir, config.Address, config.Voters = c.t.TempDir(), addressOf(config.NodeID), nil
	config.JoinTargets, config.QuorumAddress = []string{addressOf(1), addressOf(2)}, freeAddresses(c.t, 1)[0]
	c.configs = append(c.configs, config)
	c.controllers = append(c.controllers, (*controllerd.Server)(nil))
	c.start(len(c.configs) - 1)
	return config.NodeID
}

// TestVotersComeAndGo adds a fourth controller, restarts it, and removes the one that is active.
func TestVotersComeAndGo(t *testing.T) {
	c := newCluster(t, 3)
	c.startAll()
	c.active()
	if code := c.addVoter(4, uuid.Random()); code != errcode.UnsupportedVersion {
		t.Fatalf("with static voters: %s", code.Name())
	}
	c.upgradeQuorum()
	id := c.join()
	voters, observers := c.awaitVoters("controller that would join", func(_, observers map[int32]uuid.UUID) bool { return len(observers) == 1 })
	directoryID := observers[id]
	if len(voters) != 3 || voters[1].IsZero() || directoryID.IsZero() {
		t.Fatalf("voters %v, observers %v", voters, observers)
	}
	if code := c.removeVoter(id, directoryID); code != errcode.VoterNotFound {
		t.Fatalf("remove an observer: %s", code.Name())
	}
	begin := time.Now()
	if code := c.addVoter(id, directoryID); code != 0 {
		t.Fatalf("add: %s", code.Name())
	}
	t.Logf("added in %s", time.Since(begin))
	if code := c.addVoter(id, directoryID); code != errcode.DuplicateVoter {
		t.Fatalf("add again: %s", code.Name())
	}
	voters, _ = c.awaitVoters("four voters", func(voters, observers map[int32]uuid.UUID) bool {
		return len(voters) == 4 && voters[id] == directoryID && len(observers) == 0
	})
	c.stop(int(id - 1))
	c.start(int(id - 1))
	active := c.active()
	gone := c.configs[active].NodeID
	begin = time.Now()
	if code := c.removeVoter(gone, voters[gone]); code != 0 {
		t.Fatalf("remove the active controller: %s", code.Name())
	}
	c.awaitVoters("three voters", func(now, _ map[int32]uuid.UUID) bool {
		_, there := now[gone]
		return len(now) == 3 && !there
	})
	t.Logf("removed in %s", time.Since(begin))
	select {
	case err := <-c.controllers[active].Failed():
		t.Logf("the removed controller ends: %v", err)
	case <-time.After(patience):
		t.Fatal("the removed controller goes on")
	}
	c.stop(active)
	n := c.startNode(7)
	if topic := createTopic(c, "after", 1, 1); topic.ErrorCode != 0 {
		t.Fatalf("%+v", topic)
	}
	n.beat(false)
}
