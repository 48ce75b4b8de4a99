package handler

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/gateway/internal/wire"
	commonv1 "chancery/proto/common/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/hash"
	"chancery/services/metadata"
)

// rebalanceWait bounds requests that wait for a group's other members. The coordinator ends the wait by the group's own
// time-outs; this only keeps a lost request from living for ever.
const rebalanceWait = time.Hour

// shardTopicName is the internal topic whose partitions are the shards of a kind.
func shardTopicName(kind metadata.ShardKind) string {
	switch kind {
	case metadata.TransactionShard:
		return "__transaction_state"
	case metadata.ShareShard:
		return "__share_group_state"
	default:
		return "__consumer_offsets"
	}
}

// shardTopicWait bounds how long a request waits for the internal topic that it needs.
const shardTopicWait = time.Second

// shardTopic is the internal topic of a kind of shards, which is made when it is not there. It is nil when that takes
// longer than a client should wait; it asks again.
func (h *Handlers) shardTopic(ctx context.Context, r *Request, kind metadata.ShardKind) *metadata.Topic {
	name := shardTopicName(kind)
	if t := h.Image().TopicByName(name); t != nil && len(t.Partitions) > 0 {
		return t
	}
	ctx, cancel := context.WithTimeout(ctx, shardTopicWait)
	defer cancel()
	h.createTopics(ctx, r, []string{name})
	if t := h.Image().TopicByName(name); t != nil && len(t.Partitions) > 0 {
		return t
	}
	return nil
}

// askShard sends a request, or the part of one, to the owner of a shard and gives the response body.
func (h *Handlers) askShard(ctx context.Context, r *Request, kind metadata.ShardKind, place func(n int) int32, body []byte) ([]byte, error) {
	topic := h.shardTopic(ctx, r, kind)
	if topic == nil {
		return nil, errcode.CoordinatorNotAvailable.Err()
	}
	return h.askShardOf(ctx, r, kind, place(len(topic.Partitions)), body)
}

func (h *Handlers) askShardOf(ctx context.Context, r *Request, kind metadata.ShardKind, shard int32, body []byte) ([]byte, error) {
	reply, err := h.askOwner(ctx, r, kind, shard, h.envelope(r, body))
	return reply.GetBody(), err
}

// askOwner sends an envelope to the owner of a shard.
func (h *Handlers) askOwner(ctx context.Context, r *Request, kind metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	timeout := h.config.RequestTimeout
	if api := h.byKey[r.Key]; api != nil && api.EndsOnDrain {
		timeout = rebalanceWait
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := h.Coordinator.Handle(ctx, kind, shard, e)
	if err != nil {
		h.Logger.Debug("a coordinator has refused or not answered", "api", r.Key, "shard", shard, "error", err)
		return nil, err
	}
	h.awaitReply(ctx, reply)
	return reply, nil
}

// coordinatorCode is what a client is told when a coordinator gave no answer.
func coordinatorCode(err error) errcode.Code {
	switch code := errcode.Of(err); code {
	case errcode.NetworkException, errcode.RequestTimedOut, errcode.BrokerNotAvailable, errcode.None:
		return errcode.CoordinatorNotAvailable
	default:
		return code
	}
}

// toGroup makes a Handle for a request about one group: it goes to the group's coordinator, byte for byte, and so does
// the answer back. The function group finds the group's name, failed makes the answer when there is none.
func toGroup[Q any, PQ request[Q]](group func(PQ) string, failed func(PQ, errcode.Code) kmsg.Response) func(*Handlers, context.Context, *Request) (*wire.Message, error) {
	return toShard(metadata.GroupShard, hash.GroupPartition, group, failed)
}

// toTransaction is toGroup for a request about one transactional id.
func toTransaction[Q any, PQ request[Q]](id func(PQ) string, failed func(PQ, errcode.Code) kmsg.Response) func(*Handlers, context.Context, *Request) (*wire.Message, error) {
	return toShard(metadata.TransactionShard, hash.TransactionPartition, id, failed)
}

func toShard[Q any, PQ request[Q]](kind metadata.ShardKind, place func(id string, n int) int32, id func(PQ) string, failed func(PQ, errcode.Code) kmsg.Response) func(*Handlers, context.Context, *Request) (*wire.Message, error) {
	return func(h *Handlers, ctx context.Context, r *Request) (*wire.Message, error) {
		q := PQ(new(Q))
		q.SetVersion(r.Version)
		if err := q.ReadFrom(r.Body); err != nil {
			return nil, wire.ErrMalformed
		}
		began := h.Now()
		key := id(q)
		reply, err := h.askShard(ctx, r, kind, func(n int) int32 { return place(key, n) }, r.Body)
		r.Waited += h.Now().Sub(began)
		if err != nil {
			return h.encode(r, failed(q, coordinatorCode(err))), nil
		}
		m := h.newMessage(r)
		m.B = append(m.B, reply...)
		return m, nil
	}
}

// groupPart is the part of a request that is for the groups of one shard.
type groupPart struct {
	shard int32
	// groups are indexes into the request's list.
	groups []int
	// err is set when the shard gave no answer.
	err error
}

// splitGroups sorts groups by their shards; nil without the internal topic.
func (h *Handlers) splitGroups(ctx context.Context, r *Request, groups []string) []groupPart {
	if len(groups) == 0 {
		return nil
	}
	topic := h.shardTopic(ctx, r, metadata.GroupShard)
	if topic == nil {
		return nil
	}
	var parts []groupPart
	at := make(map[int32]int)
	for i, g := range groups {
		shard := hash.GroupPartition(g, len(topic.Partitions))
		k, known := at[shard]
		if !known {
			k = len(parts)
			at[shard] = k
			parts = append(parts, groupPart{shard: shard})
		}
		parts[k].groups = append(parts[k].groups, i)
	}
	return parts
}

// askGroups sends each shard its part of a request about several groups, beside each other. The function body makes the
// part of the request, take reads the response; take is called by one goroutine at a time. The groups of parts with an error
// have no answer.
func (h *Handlers) askGroups(ctx context.Context, r *Request, parts []groupPart, body func(groups []int) []byte, take func(p *groupPart, reply []byte) error) {
	began := h.Now()
	var wg sync.WaitGroup
	var taking sync.Mutex
	for i := range parts {
		p := &parts[i]
		b := body(p.groups)
		wg.Go(func() {
			reply, err := h.askShardOf(ctx, r, metadata.GroupShard, p.shard, b)
			if err == nil {
				taking.Lock()
				defer taking.Unlock()
				err = take(p, reply)
			}
			p.err = err
		})
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
}

// groupCodes gives each of n groups the error that it is answered with when nothing came for it.
func groupCodes(n int, parts []groupPart) []errcode.Code {
	codes := make([]errcode.Code, n)
	for i := range codes {
		codes[i] = errcode.CoordinatorNotAvailable
	}
	for _, p := range parts {
		code := errcode.UnknownServerError
		if p.err != nil {
			code = coordinatorCode(p.err)
		}
		for _, i := range p.groups {
			codes[i] = code
		}
	}
	return codes
}
