package node

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/storaged/internal/logdir"
	"chancery/storaged/internal/replica"
)

// DescribeLogDirs (35), versions 1 to 5: the log directories of this node and the replicas in them. Version 4 adds the
// size of the volume, 5 whether the directory is cordoned.

func (n *Node) describeLogDirs(req *kmsg.DescribeLogDirsRequest) *kmsg.DescribeLogDirsResponse {
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	byDir := map[*logdir.Dir][]held{}
	for _, r := range n.all() {
		if r.Log() == nil || !named(req, r) {
			continue
		}
		v := r.View()
		byDir[r.Dir()] = append(byDir[r.Dir()], held{r, r.Log().Size(), max(v.HighWatermark-v.LogEnd, 0), false})
	}
	for _, c := range n.moves.Copies() {
		if named(req, c.Replica) {
			byDir[c.Dir] = append(byDir[c.Dir], held{c.Replica, c.Size, c.Replica.View().LogEnd - c.LogEnd, true})
		}
	}
	cordoned := n.cordoned()
	for _, d := range n.o.Dirs.All() {
		out := kmsg.NewDescribeLogDirsResponseDir()
		out.Dir = d.Path()
		total, usable, err := d.Space()
		if err != nil || d.Err() != nil {
			out.ErrorCode = int16(errcode.KafkaStorageError)
			resp.Dirs = append(resp.Dirs, out)
			continue
		}
		out.TotalBytes, out.UsableBytes = total, usable
		out.IsCordoned = isCordoned(cordoned, d)
		out.Topics = describeReplicas(byDir[d])
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp
}

// held is what a log directory has of a replica: the replica itself, or the copy that is to take its place.
type held struct {
	replica   *replica.Replica
	size, lag int64
	future    bool
}

// named says whether a request asks for a replica; null topics ask for all.
func named(req *kmsg.DescribeLogDirsRequest, r *replica.Replica) bool {
	if req.Topics == nil {
		return true
	}
	return slices.ContainsFunc(req.Topics, func(t kmsg.DescribeLogDirsRequestTopic) bool {
		return t.Topic == r.Topic() && slices.Contains(t.Partitions, r.Key().Partition)
	})
}

func describeReplicas(replicas []held) []kmsg.DescribeLogDirsResponseDirTopic {
	slices.SortFunc(replicas, func(a, b held) int {
		return cmp.Or(cmp.Compare(a.replica.Topic(), b.replica.Topic()), cmp.Compare(a.replica.Key().Partition, b.replica.Key().Partition))
	})
	var out []kmsg.DescribeLogDirsResponseDirTopic
	for _, h := range replicas {
		if len(out) == 0 || out[len(out)-1].Topic != h.replica.Topic() {
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = h.replica.Topic()
			out = append(out, t)
		}
		p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		p.Partition, p.Size, p.OffsetLag, p.IsFuture = h.replica.Key().Partition, h.size, h.lag, h.future
		t := &out[len(out)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return out
}
