package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
)

// AlterReplicaLogDirs (34), versions 1 to 2: replicas move to other log directories of the node that the client means. Where it has
// not said which, every live node is asked, and each replica in a directory of that path moves.

func (h *Handlers) alterReplicaLogDirs(ctx context.Context, r *Request, q *kmsg.AlterReplicaLogDirsRequest) (kmsg.Response, error) {
	type partition struct {
		topic string
		id    int32
	}
	codes := map[partition]int16{}
	for _, a := range h.askMeant(ctx, r) {
		own, _ := a.resp.(*kmsg.AlterReplicaLogDirsResponse)
		if own == nil {
			h.Logger.Warn("a storage node has not taken a change of log directories", "node", a.node, "error", a.err)
			continue
		}
		for _, t := range own.Topics {
			for _, p := range t.Partitions {
				at := partition{t.Topic, p.Partition}
				// Nodes without the replica or the directory say so; what counts is what one that has them says.
				if code, ok := codes[at]; !ok || moreTelling(p.ErrorCode, code) {
					codes[at] = p.ErrorCode
				}
			}
		}
	}
	resp := kmsg.NewPtrAlterReplicaLogDirsResponse()
	index := map[string]int{}
	for _, d := range q.Dirs {
		for _, t := range d.Topics {
			i, ok := index[t.Topic]
			if !ok {
				i = len(resp.Topics)
				index[t.Topic] = i
				out := kmsg.NewAlterReplicaLogDirsResponseTopic()
				out.Topic = t.Topic
				resp.Topics = append(resp.Topics, out)
			}
			for _, id := range t.Partitions {
				out := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				out.Partition, out.ErrorCode = id, int16(errcode.BrokerNotAvailable)
				if code, ok := codes[partition{t.Topic, id}]; ok {
					out.ErrorCode = code
				}
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, out)
			}
		}
	}
	return resp, nil
}

// moreTelling says whether a code says more about a replica than another: success most, that there is no such replica or
// directory least.
func moreTelling(code, than int16) bool {
	rank := func(c int16) int {
		switch errcode.Code(c) {
		case errcode.None:
			return 2
		case errcode.ReplicaNotAvailable, errcode.UnknownTopicOrPartition, errcode.LogDirNotFound:
			return 0
		}
		return 1
	}
	return rank(code) > rank(than)
}
