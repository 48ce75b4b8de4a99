package handler

import (
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// maxTopicName is the longest name of a topic.
const maxTopicName = 249

// validTopicName says whether a topic may have this name.
func validTopicName(name string) bool {
	if name == "" || name == "." || name == ".." || len(name) > maxTopicName {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// The operations that exist for a kind of resource, as a bit for each of Kafka's operation codes. Without access rules
// everybody may do them all.
const (
	clusterOperations int32 = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
	topicOperations   int32 = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
)

// replicaOnline says whether a replica of a partition can serve: its node is there and its log directory too.
func replicaOnline(img metadata.Reader, p *metadata.Partition, i int) bool {
	b := img.Broker(p.Replicas[i])
	if b == nil || b.Fenced {
		return false
	}
	if i >= len(p.Directories) {
		return true
	}
	return directoryOnline(b, p.Directories[i])
}

func directoryOnline(b *metadata.Broker, dir uuid.UUID) bool {
	switch dir {
	case uuid.UnassignedDir, uuid.MigratingDir:
		return true
	case uuid.LostDir:
		return false
	}
	if len(b.Directories) == 0 {
		return true
	}
	for _, d := range b.Directories {
		if d == dir {
			return true
		}
	}
	return false
}

// offlineReplicas are the replicas that cannot serve, for whatever reason.
func offlineReplicas(img metadata.Reader, p *metadata.Partition) []int32 {
	var out []int32
	for i := range p.Replicas {
		if !replicaOnline(img, p, i) {
			out = append(out, p.Replicas[i])
		}
	}
	return out
}

// liveOf drops the nodes that are away.
func liveOf(img metadata.Reader, nodes []int32) []int32 {
	out := make([]int32, 0, len(nodes))
	for _, id := range nodes {
		if b := img.Broker(id); b != nil && !b.Fenced {
			out = append(out, id)
		}
	}
	return out
}

// partitionOf finds a partition by the topic's id, or by its name when the id is zero, and the topic itself.
func partitionOf(img metadata.Reader, id uuid.UUID, name string, partition int32) (*metadata.Topic, *metadata.Partition) {
	var t *metadata.Topic
	if id.IsZero() {
		t = img.TopicByName(name)
	} else {
		t = img.Topic(id)
	}
	if t == nil || partition < 0 || int(partition) >= len(t.Partitions) {
		return t, nil
	}
	return t, t.Partitions[partition]
}
