package handler

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
)

// autoCreateGather is how long a topic's creation waits for others that are asked for at the same time. It is well below
// the pause after which clients ask again, and then find the topic.
const autoCreateGather = 50 * time.Millisecond

// topicCreation knows which topics are being made because they were asked for, so that a thousand clients that ask for the
// same one make the controller no work.
type topicCreation struct {
	mu       sync.Mutex
	inFlight map[string]bool
}

// begin gives those of names that nobody is making yet; end must be called for them.
func (c *topicCreation) begin(names []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var mine []string
	for _, n := range names {
		if !c.inFlight[n] {
			c.inFlight[n] = true
			mine = append(mine, n)
		}
	}
	return mine
}

func (c *topicCreation) end(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		delete(c.inFlight, n)
	}
}

// createUnknown has the topics made that a Metadata response says are unknown. As in Kafka the response does not wait for
// them.
func (h *Handlers) createUnknown(ctx context.Context, r *Request, resp *kmsg.MetadataResponse) {
	var names []string
	for _, t := range resp.Topics {
		if t.ErrorCode == int16(errcode.UnknownTopicOrPartition) {
			names = append(names, *t.Topic)
		}
	}
	h.startCreation(ctx, r, names, autoCreateGather)
}

// createTopics has the controller make topics with the settings that auto-creation gives them, internal topics with their
// own, and returns when this gateway knows them, they failed, or ctx ends; the controller goes on in the last case.
func (h *Handlers) createTopics(ctx context.Context, r *Request, names []string) {
	select {
	case <-h.startCreation(ctx, r, names, 0):
	case <-ctx.Done():
	}
}

// startCreation makes the topics that nobody is making yet, after a pause, and gives what is closed when it is done.
func (h *Handlers) startCreation(ctx context.Context, r *Request, names []string, pause time.Duration) <-chan struct{} {
	done := make(chan struct{})
	if names = h.creating.begin(names); len(names) == 0 {
		close(done)
		return done
	}
	// The request is over before the topics are made; they are wanted also when the client has gone meanwhile.
	r = &Request{ClientID: r.ClientID, Conn: r.Conn}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.config.RequestTimeout)
	time.AfterFunc(pause, func() {
		defer cancel()
		defer close(done)
		defer h.creating.end(names)
		h.createNow(ctx, r, names)
	})
	return done
}

func (h *Handlers) createNow(ctx context.Context, r *Request, names []string) {
	q := kmsg.NewPtrCreateTopicsRequest()
	q.SetVersion(h.byKey[q.Key()].Max)
	q.TimeoutMillis = int32(h.config.RequestTimeout.Milliseconds())
	for _, name := range names {
		q.Topics = append(q.Topics, h.autoTopic(name))
	}
	r.Key, r.Version = q.Key(), q.Version
	e := h.envelope(r, q.AppendTo(nil))
	reply, err := h.Controller.Handle(ctx, e)
	if err != nil {
		h.Logger.Warn("topics that were asked for could not be made", "topics", names, "error", err)
		return
	}
	resp := kmsg.NewPtrCreateTopicsResponse()
	resp.SetVersion(q.Version)
	if err := resp.ReadFrom(reply.GetBody()); err != nil {
		h.Logger.Error("the controller's answer to CreateTopics is broken", "error", err)
		return
	}
	for _, t := range resp.Topics {
		if code := errcode.Code(t.ErrorCode); code != errcode.None && code != errcode.TopicAlreadyExists {
			h.Logger.Warn("a topic that was asked for could not be made", "topic", t.Topic, "code", code.Name())
		}
	}
	h.awaitReply(ctx, reply)
}

// autoTopic is how a topic is made that nobody has configured: an internal one has its own settings, others those that this
// gateway's configuration gives, or else the controller's.
func (h *Handlers) autoTopic(name string) kmsg.CreateTopicsRequestTopic {
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, -1, -1
	node := h.config.Node
	if spec, ok := internaltopic.For(name, node); ok {
		t.NumPartitions, t.ReplicationFactor = spec.Partitions, spec.ReplicationFactor
		for _, key := range slices.Sorted(maps.Keys(spec.Configs)) {
			value := spec.Configs[key]
			t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: key, Value: &value})
		}
		return t
	}
	if node.IsSet("num.partitions") {
		t.NumPartitions = int32(node.Int("num.partitions"))
	}
	if node.IsSet("default.replication.factor") {
		t.ReplicationFactor = int16(node.Int("default.replication.factor"))
	}
	return t
}
