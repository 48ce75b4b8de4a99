package internaltopic

import (
	"testing"

	"chancery/services/kafka/configdef"
)

func TestFor(t *testing.T) {
	n := configdef.NewNode(map[string]string{"offsets.topic.replication.factor": "1", "share.coordinator.state.topic.num.partitions": "4"})
	for _, c := range []struct {
		name        string
		partitions  int32
		replication int16
		config      string
		want        string
		internal    bool
	}{
		{ConsumerOffsets, 50, 1, "segment.bytes", "104857600", true},
		{TransactionState, 50, 3, "min.insync.replicas", "2", true},
		{ShareGroupState, 4, 3, "retention.ms", "-1", true},
		{RemoteLogMetadata, 50, 3, "remote.storage.enable", "false", false},
	} {
		s, ok := For(c.name, n)
		if !ok || s.Name != c.name || s.Partitions != c.partitions || s.ReplicationFactor != c.replication || s.Configs[c.config] != c.want {
			t.Errorf("%s: %+v", c.name, s)
		}
		if err := n.CheckTopic(s.Configs, nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if Is(c.name) != c.internal {
			t.Errorf("%s: internal %v", c.name, !c.internal)
		}
	}
	if _, ok := For("topic", n); ok || Is("topic") || Is(ClusterMetadata) {
		t.Error("an ordinary topic is taken for an internal one")
	}
}
