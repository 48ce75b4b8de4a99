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

// autoCreateWait bounds how long a Metadata request waits for the topics that it makes: usually they are there by then,
// and the client's next request finds them.
const autoCreateWait = time.Second

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

// createUnknown makes the topics that a Metadata response says are unknown.
func (h *Handlers) createUnknown(ctx context.Context, r *Request, resp *kmsg.MetadataResponse) {
	var names []string
	for _, t := range resp.Topics {
		if t.ErrorCode == int16(errcode.UnknownTopicOrPartition) {
			names = append(names, *t.Topic)
		}
	}
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, autoCreateWait)
	defer cancel()
	h.createTopics(ctx, r, names)
}

// createTopics has the controller make topics with the settings that auto-creation gives them, internal topics with their
// own, and returns when this gateway knows them, they failed, or ctx ends; the controller goes on in the last case.
func (h *Handlers) createTopics(ctx context.Context, r *Request, names []string) {
	names = h.creating.begin(names)
	if len(names) == 0 {
		return
	}
	done := make(chan struct{})
	// The request is over when this returns, which may be before the topics are made.
	r = &Request{ClientID: r.ClientID, Conn: r.Conn}
	go func() {
		defer close(done)
		defer h.creating.end(names)
		// The topics are wanted also when the client has gone meanwhile.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.config.RequestTimeout)
		defer cancel()
		h.createNow(ctx, r, names)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
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
