package handler

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// Metadata (3), versions 0 to 13: nodes, topics, partitions and their leaders.
//
// Version 1 tells null (all topics) from empty (none), 4 lets a client forbid auto-creation, 5 has offline replicas, 7
// leader epochs, 8 to 10 authorized operations of the cluster, 10 topic ids, 12 asks by id, 13 has a top-level error.
// The nodes are the storage nodes that are not fenced, with addresses of gateways. A topic that is made because it
// was asked for is unknown in the first answer, as with Kafka, and there for the next request.

// wantedTopics is what a Metadata request asks for.
type wantedTopics struct {
	all   bool
	names []string
	ids   []uuid.UUID
}

func (h *Handlers) metadata(ctx context.Context, r *Request, req *kmsg.MetadataRequest) (kmsg.Response, error) {
	if r.Version == 0 && int32(binary.BigEndian.Uint32(r.Body)) < 0 {
		return nil, wire.ErrMalformed
	}
	wanted, code := wantedOf(req)
	if code != errcode.None {
		return metadataError(req, code), nil
	}
	img := h.Image()
	resp := kmsg.NewPtrMetadataResponse()
	for _, id := range wanted.ids {
		if t := img.Topic(id); t != nil {
			wanted.names = append(wanted.names, t.Name)
			continue
		}
		unknown := kmsg.NewMetadataResponseTopic()
		unknown.ErrorCode, unknown.TopicID = int16(errcode.UnknownTopicId), id
		resp.Topics = append(resp.Topics, unknown)
	}
	operations := r.Version >= 8 && req.IncludeTopicAuthorizedOperations
	h.addTopics(img, r, resp, wanted, operations)
	if !wanted.all && (r.Version < 4 || req.AllowAutoTopicCreation) && h.config.AutoCreateTopics {
		h.createUnknown(ctx, r, resp)
	}
	h.addNodes(img, r, resp)
	id := img.ClusterID()
	resp.ClusterID = &id
	if r.Version >= 8 && r.Version <= 10 && req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = clusterOperations
	}
	return resp, nil
}

// wantedOf sorts out the topics of a request, each once.
func wantedOf(req *kmsg.MetadataRequest) (wantedTopics, errcode.Code) {
	var w wantedTopics
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		w.all = true
		return w, errcode.None
	}
	seen := make(map[string]bool, len(req.Topics))
	for _, t := range req.Topics {
		id := uuid.UUID(t.TopicID)
		if req.Version < 12 && (t.Topic == nil || !id.IsZero()) || t.Topic == nil && id.IsZero() {
			return w, errcode.InvalidRequest
		}
		if !id.IsZero() {
			if !slices.Contains(w.ids, id) {
				w.ids = append(w.ids, id)
			}
			continue
		}
		if !seen[*t.Topic] {
			seen[*t.Topic] = true
			w.names = append(w.names, *t.Topic)
		}
	}
	if len(w.ids) > 0 {
		// A request that names any topic by id is about ids alone, as with Kafka.
		w.names = nil
	}
	return w, errcode.None
}

func metadataError(req *kmsg.MetadataRequest, code errcode.Code) kmsg.Response {
	resp := kmsg.NewPtrMetadataResponse()
	resp.ErrorCode = int16(code)
	for _, t := range req.Topics {
		answer := kmsg.NewMetadataResponseTopic()
		answer.Topic = t.Topic
		if answer.Topic == nil {
			answer.Topic = kmsg.StringPtr("")
		}
		answer.TopicID, answer.ErrorCode = t.TopicID, int16(code)
		resp.Topics = append(resp.Topics, answer)
	}
	return resp
}

func (h *Handlers) addTopics(img metadata.Reader, r *Request, resp *kmsg.MetadataResponse, wanted wantedTopics, operations bool) {
	add := func(t kmsg.MetadataResponseTopic) {
		if operations {
			t.AuthorizedOperations = topicOperations
		}
		resp.Topics = append(resp.Topics, t)
	}
	if wanted.all {
		for t := range img.Topics() {
			add(describeTopic(img, t, r.Version))
		}
		return
	}
	for _, name := range wanted.names {
		if t := img.TopicByName(name); t != nil {
			add(describeTopic(img, t, r.Version))
			continue
		}
		unknown := kmsg.NewMetadataResponseTopic()
		unknown.Topic, unknown.IsInternal = &name, internaltopic.Is(name)
		unknown.ErrorCode = int16(errcode.UnknownTopicOrPartition)
		if !validTopicName(name) {
			unknown.ErrorCode = int16(errcode.InvalidTopicException)
		}
		add(unknown)
	}
}

func describeTopic(img metadata.Reader, t *metadata.Topic, version int16) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = &t.Name, t.ID, internaltopic.Is(t.Name)
	out.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.Partitions))
	for i, p := range t.Partitions {
		d := &out.Partitions[i]
		d.Default()
		d.Partition, d.Leader, d.LeaderEpoch = int32(i), p.Leader, p.LeaderEpoch
		d.Replicas, d.ISR = p.Replicas, p.ISR
		if version == 0 {
			// Version 0 has no other way to say which replicas are away.
			d.Replicas, d.ISR = liveOf(img, p.Replicas), liveOf(img, p.ISR)
		}
		if version >= 5 {
			d.OfflineReplicas = offlineReplicas(img, p)
		}
		switch {
		case img.Broker(p.Leader) == nil:
			d.ErrorCode, d.Leader = int16(errcode.LeaderNotAvailable), -1
		case len(d.Replicas) < len(p.Replicas) || len(d.ISR) < len(p.ISR):
			d.ErrorCode = int16(errcode.ReplicaNotAvailable)
		}
	}
	return out
}

// addNodes lists the storage nodes. Any of them takes what is meant for the controller; which one is named depends on
// the client, so that they share the work.
func (h *Handlers) addNodes(img metadata.Reader, r *Request, resp *kmsg.MetadataResponse) {
	nodes := h.nodes(img, r, false)
	for _, n := range nodes {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack = n.ID, n.Host, n.Port, n.Rack
		resp.Brokers = append(resp.Brokers, b)
	}
	resp.ControllerID = controllerOf(r, nodes)
}

func (h *Handlers) nodes(img metadata.Reader, r *Request, fencedToo bool) []routing.Node {
	return h.Addresses.Nodes(img, r.Conn.Listener, routing.Client{ID: r.clientID(), Host: r.Conn.Host}, fencedToo)
}

// controllerOf picks a live node to name as the controller; -1 when there is none.
func controllerOf(r *Request, nodes []routing.Node) int32 {
	var live []int32
	for _, n := range nodes {
		if !n.Fenced {
			live = append(live, n.ID)
		}
	}
	if len(live) == 0 {
		return -1
	}
	return live[routing.Spread(routing.Client{ID: r.clientID(), Host: r.Conn.Host}, len(live))]
}
