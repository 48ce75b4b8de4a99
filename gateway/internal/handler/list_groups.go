package handler

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/metadata"
)

// ListGroups (16), versions 0 to 5: the groups of a node, or of the cluster where the client has not said which node it
// means. Version 4 filters by state, 5 by type; the coordinators do that.
//
// Kafka's brokers list the groups that they coordinate, so clients ask all of them and put the lists together. Here a
// node's groups are those whose partition of the internal topic it leads, which is the node that FindCoordinator names.

func (h *Handlers) listGroups(ctx context.Context, r *Request, req *kmsg.ListGroupsRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrListGroupsResponse()
	topic := h.Image().TopicByName(shardTopicName(metadata.GroupShard))
	if topic == nil {
		return resp, nil // nobody has made a group yet
	}
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	began := h.Now()
	replies, err := h.Coordinator.HandleAll(ctx, metadata.GroupShard, h.envelope(r, r.Body))
	r.Waited += h.Now().Sub(began)
	if err != nil {
		h.Logger.Warn("groups cannot be listed", "error", err)
		resp.ErrorCode = int16(coordinatorCode(err))
		return resp, nil
	}
	for _, reply := range replies {
		part := kmsg.NewPtrListGroupsResponse()
		part.SetVersion(req.Version)
		if err := part.ReadFrom(reply.GetBody()); err != nil {
			h.Logger.Error("a coordinator's answer to ListGroups is broken", "error", err)
			resp.ErrorCode = int16(errcode.UnknownServerError)
			return resp, nil
		}
		if part.ErrorCode != 0 {
			resp.ErrorCode, resp.Groups = part.ErrorCode, nil
			return resp, nil
		}
		for _, g := range part.Groups {
			shard := hash.GroupPartition(g.Group, len(topic.Partitions))
			if r.Conn.NodeID == UnknownNode || topic.Partitions[shard].Leader == r.Conn.NodeID {
				resp.Groups = append(resp.Groups, g)
			}
		}
	}
	return resp, nil
}
