// Package internaltopic says which topics are the cluster's own and how they are made.
//
// It owns their names, sizes and configs; it must never make one.
package internaltopic

import (
	"strconv"

	"chancery/services/kafka/configdef"
)

// The internal topics.
const (
	ConsumerOffsets   = "__consumer_offsets"
	TransactionState  = "__transaction_state"
	ShareGroupState   = "__share_group_state"
	RemoteLogMetadata = "__remote_log_metadata"
	ClusterMetadata   = "__cluster_metadata"
)

// Is says whether clients see the topic as internal. Like Kafka, that is not so of __remote_log_metadata, which clients
// may read, nor of __cluster_metadata, which they never see.
func Is(name string) bool {
	switch name {
	case ConsumerOffsets, TransactionState, ShareGroupState:
		return true
	}
	return false
}

// Spec is how an internal topic is made.
type Spec struct {
	Name              string
	Partitions        int32
	ReplicationFactor int16
	// Configs are set on the topic when it is made.
	Configs map[string]string
}

// For gives how a topic is made in a cluster with these settings; false for a topic that is not internal.
func For(name string, n *configdef.Node) (Spec, bool) {
	s := Spec{Name: name}
	number := func(config string) string { return strconv.FormatInt(n.Long(config), 10) }
	switch name {
	case ConsumerOffsets:
		s.Partitions = int32(n.Int("offsets.topic.num.partitions"))
		s.ReplicationFactor = int16(n.Int("offsets.topic.replication.factor"))
		s.Configs = map[string]string{
			"cleanup.policy":   "compact",
			"compression.type": "producer",
			"segment.bytes":    number("offsets.topic.segment.bytes"),
		}
	case TransactionState:
		s.Partitions = int32(n.Int("transaction.state.log.num.partitions"))
		s.ReplicationFactor = int16(n.Int("transaction.state.log.replication.factor"))
		s.Configs = map[string]string{
			"cleanup.policy":                 "compact",
			"compression.type":               "uncompressed",
			"unclean.leader.election.enable": "false",
			"min.insync.replicas":            number("transaction.state.log.min.isr"),
			"segment.bytes":                  number("transaction.state.log.segment.bytes"),
		}
	case ShareGroupState:
		s.Partitions = int32(n.Int("share.coordinator.state.topic.num.partitions"))
		s.ReplicationFactor = int16(n.Int("share.coordinator.state.topic.replication.factor"))
		s.Configs = map[string]string{
			"cleanup.policy":      "delete",
			"retention.ms":        "-1",
			"compression.type":    "producer",
			"min.insync.replicas": number("share.coordinator.state.topic.min.isr"),
			"segment.bytes":       number("share.coordinator.state.topic.segment.bytes"),
		}
	case RemoteLogMetadata:
		s.Partitions = int32(n.Int("rlmm.config.remote.log.metadata.topic.num.partitions"))
		s.ReplicationFactor = int16(n.Int("rlmm.config.remote.log.metadata.topic.replication.factor"))
		s.Configs = map[string]string{
			"cleanup.policy":        "delete",
			"retention.ms":          number("rlmm.config.remote.log.metadata.topic.retention.ms"),
			"remote.storage.enable": "false",
			"min.insync.replicas":   number("rlmm.config.remote.log.metadata.topic.min.isr"),
		}
	default:
		return Spec{}, false
	}
	return s, true
}
