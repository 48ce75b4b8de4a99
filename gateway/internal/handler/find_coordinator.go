package handler

import (
	"context"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/routing"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// FindCoordinator (10), versions 0 to 6: where to go with a group, a transactional id or a share partition.
//
// The answer is the leader of the key's partition of the internal topic, with the address that Metadata gives that node;
// any gateway serves it. A topic that is not there yet is made. Version 1 adds the key's type, 3 is flexible, 4 asks for
// several keys, 6 adds share partitions.

// The types of keys.
const (
	groupKey       int8 = 0
	transactionKey int8 = 1
	shareKey       int8 = 2
)

func (h *Handlers) findCoordinator(ctx context.Context, r *Request, req *kmsg.FindCoordinatorRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	keys := req.CoordinatorKeys
	if req.Version < 4 {
		keys = []string{req.CoordinatorKey}
	}
	for _, key := range keys {
		resp.Coordinators = append(resp.Coordinators, h.coordinatorOf(ctx, r, req.CoordinatorType, key))
	}
	if req.Version < 4 {
		c := &resp.Coordinators[0]
		resp.NodeID, resp.Host, resp.Port, resp.ErrorCode = c.NodeID, c.Host, c.Port, c.ErrorCode
		resp.ErrorMessage = kmsg.StringPtr(errcode.Code(c.ErrorCode).Message())
		if c.ErrorCode == 0 {
			resp.ErrorMessage = kmsg.StringPtr(errcode.None.Name())
		}
		resp.Coordinators = nil
	}
	return resp, nil
}

// coordinatorOf finds the coordinator of one key.
func (h *Handlers) coordinatorOf(ctx context.Context, r *Request, kind int8, key string) kmsg.FindCoordinatorResponseCoordinator {
	out := kmsg.NewFindCoordinatorResponseCoordinator()
	out.Key, out.NodeID, out.Port = key, -1, -1
	out.ErrorMessage = kmsg.StringPtr("")
	node, code := h.coordinatorNode(ctx, r, kind, key)
	if code != errcode.None {
		out.ErrorCode = int16(code)
		if code == errcode.InvalidRequest {
			out.ErrorMessage = kmsg.StringPtr(code.Message())
		}
		return out
	}
	out.NodeID, out.Host, out.Port = node.ID, node.Host, node.Port
	return out
}

func (h *Handlers) coordinatorNode(ctx context.Context, r *Request, kind int8, key string) (routing.Node, errcode.Code) {
	var shard metadata.ShardKind
	var place func(n int) int32
	switch kind {
	case groupKey:
		shard, place = metadata.GroupShard, func(n int) int32 { return hash.GroupPartition(key, n) }
	case transactionKey:
		shard, place = metadata.TransactionShard, func(n int) int32 { return hash.TransactionPartition(key, n) }
	case shareKey:
		group, topic, partition, ok := parseShareKey(key)
		if !ok || r.Version < 6 {
			return routing.Node{}, errcode.InvalidRequest
		}
		shard, place = metadata.ShareShard, func(n int) int32 { return hash.SharePartition(group, topic, partition, n) }
	default:
		return routing.Node{}, errcode.InvalidRequest
	}
	topic := h.shardTopic(ctx, r, shard)
	if topic == nil {
		return routing.Node{}, errcode.CoordinatorNotAvailable
	}
	leader := topic.Partitions[place(len(topic.Partitions))].Leader
	node, live := h.Addresses.Node(h.Image(), r.Conn.Listener, routing.Client{ID: r.clientID(), Host: r.Conn.Host}, leader)
	if !live {
		return routing.Node{}, errcode.CoordinatorNotAvailable
	}
	return node, errcode.None
}

// parseShareKey reads "group:topic id:partition"; the group may have colons itself.
func parseShareKey(key string) (group string, topic uuid.UUID, partition int32, ok bool) {
	rest, number, found := cutLast(key)
	group, id, foundID := cutLast(rest)
	n, err := strconv.ParseInt(number, 10, 32)
	topic, idErr := uuid.Parse(id)
	ok = found && foundID && err == nil && idErr == nil && strings.TrimSpace(group) != ""
	return group, topic, int32(n), ok
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}
