package app

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"chancery/controllerd"
	"chancery/services/transport"
)

// controllerConfig is what the settings say about a controller.
func controllerConfig(p *parts) (controllerd.Config, error) {
	n := p.node
	c := controllerd.DefaultConfig()
	c.NodeID = p.id
	c.ClusterID = n.String("cluster.id")
	c.Dir = n.String("metadata.log.dir")
	c.Address = p.address(localController)
	c.EtcdEndpoints = n.List("controller.etcd.endpoints")
	c.EtcdPrefix = n.String("controller.etcd.prefix")
	c.SessionTimeout = n.Duration("broker.session.timeout.ms")
	c.SnapshotBytes = n.Long("metadata.log.max.record.bytes.between.snapshots")
	c.SnapshotInterval = n.Duration("metadata.log.max.snapshot.interval.ms")
	c.LogSegmentBytes = n.Long("metadata.log.segment.bytes")
	c.LogSegmentAge = n.Duration("metadata.log.segment.ms")
	c.RetentionBytes = n.Long("metadata.max.retention.bytes")
	c.Retention = n.Duration("metadata.max.retention.ms")
	c.UncleanElectionCheckInterval = n.Duration("unclean.leader.election.interval.ms")
	c.LeaderImbalanceCheckInterval = 0
	if n.Bool("auto.leader.rebalance.enable") {
		c.LeaderImbalanceCheckInterval = time.Duration(n.Long("leader.imbalance.check.interval.seconds")) * time.Second
	}
	c.NumPartitions = int32(n.Int("num.partitions"))
	c.DefaultReplicationFactor = int16(n.Int("default.replication.factor"))
	c.DeleteTopicEnable = n.Bool("delete.topic.enable")
	c.Properties = p.settings.Map()
	if n.IsSet("controller.quorum.election.timeout.ms") {
		// Kafka's default is made for its own quorum; this one's finds out by itself what suits it.
		c.ElectionTimeout = n.Duration("controller.quorum.election.timeout.ms")
	}
	// A process that runs everything is a quorum of one, which needs no port, whatever a shared file says of others.
	if p.inOneProcess() {
		return c, nil
	}
	for _, text := range n.List("controller.quorum.voters") {
		v, err := parseVoter(text)
		if err != nil {
			return c, fmt.Errorf("controller.quorum.voters: %w", err)
		}
		c.Voters = append(c.Voters, v)
	}
	return c, nil
}

// parseVoter reads "id@host:port".
func parseVoter(text string) (controllerd.Voter, error) {
	id, address, ok := strings.Cut(text, "@")
	n, err := strconv.ParseInt(id, 10, 32)
	if !ok || err != nil || n < 0 {
		return controllerd.Voter{}, fmt.Errorf("%q is not id@host:port, such as 1@ctl1:9093", text)
	}
	if _, _, err := transport.SplitAddress(address); err != nil {
		return controllerd.Voter{}, fmt.Errorf("voter %d: %w", n, err)
	}
	return controllerd.Voter{ID: int32(n), Address: address}, nil
}
