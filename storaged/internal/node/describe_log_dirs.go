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
	byDir := map[*logdir.Dir][]*replica.Replica{}
	for _, r := range n.all() {
		if r.Dir() != nil && named(req, r) {
			byDir[r.Dir()] = append(byDir[r.Dir()], r)
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
		out.IsCordoned = slices.Contains(cordoned, d.ID())
		out.Topics = describeReplicas(byDir[d])
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp
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

func describeReplicas(replicas []*replica.Replica) []kmsg.DescribeLogDirsResponseDirTopic {
	slices.SortFunc(replicas, func(a, b *replica.Replica) int {
		return cmp.Or(cmp.Compare(a.Topic(), b.Topic()), cmp.Compare(a.Key().Partition, b.Key().Partition))
	})
	var out []kmsg.DescribeLogDirsResponseDirTopic
	for _, r := range replicas {
		if r.Log() == nil {
			continue
		}
		if len(out) == 0 || out[len(out)-1].Topic != r.Topic() {
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = r.Topic()
			out = append(out, t)
		}
		v := r.View()
		p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		p.Partition, p.Size = r.Key().Partition, r.Log().Size()
		p.OffsetLag = max(v.HighWatermark-v.LogEnd, 0)
		t := &out[len(out)-1]
		t.Partitions = append(t.Partitions, p)
	}
	return out
}
