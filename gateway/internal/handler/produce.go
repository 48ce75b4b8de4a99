package handler

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// Produce (0), versions 3 to 13: append record batches.
//
// Version 5 answers the log start offset, 8 errors of single records, 9 is flexible, 10 names the new leader and its
// address, 13 has topic ids instead of names. acks=0 has no answer; an error closes the connection instead.
//
// The batches are slices of the frame as it came from the socket, and go to the leaders of their partitions in one append for each
// node. A leadership error is not the client's business as long as the request's time-out lasts and nothing can have been
// written, or the producer is idempotent so that writing again does no harm (produce_order.go).
// Differences to Kafka: null records are answered with INVALID_REQUEST, where Kafka never answers.

// errAcksZero closes the connection of a producer that wants no answer, which is how it learns of an error.
var errAcksZero = errors.New("a produce request with acks=0 failed")

// unknownTopicGrace is how long a produce request waits for a topic that this gateway does not know: another one may have
// told the client of it a moment ago.
const unknownTopicGrace = 100 * time.Millisecond

// adminClientID is the client id with which Kafka's tools may write to internal topics.
const adminClientID = "__admin_client"

// Positions in the header of a record batch.
const (
	batchHeaderSize   = 61
	batchMagicAt      = 16
	batchAttributesAt = 21
	batchProducerIDAt = 43
	transactionalBit  = 1 << 4
)

// partState is how far a partition of a produce request is.
type partState int8

const (
	// partPending is to be sent, for the first time or again. Its result says why it was not accepted before.
	partPending partState = iota
	// partSent is on its way to a storage node.
	partSent
	// partDone has its result.
	partDone
)

// producePart is one partition of a produce request.
type producePart struct {
	topic     int32
	partition int32
	// at and size are where the records are in the body; size -1 for null.
	at, size int
	// node and attempt say where the part was sent last, and in which attempt.
	node    int32
	attempt int32
	// state and result belong to the callback of the append while the part is sent.
	state  partState
	result storage.PartitionAppendResult
}

// produceTopic is one topic of a produce request, by name or by id.
type produceTopic struct {
	name  string
	id    uuid.UUID
	parts int
}

// produce is a produce request on its way. It is owned by whoever sends it; while appends are out, each of their callbacks owns
// the parts of its node, and the last of them owns the whole.
type produce struct {
	h    *Handlers
	r    *Request
	ctx  context.Context
	done func(*wire.Message, error)

	// transactionalID is empty without one, and identified says that the request has one, which may be empty, too.
	transactionalID string
	identified      bool
	transactional   bool
	acks            int16
	timeoutMs       int32
	deadline        time.Time
	sequence        uint64
	topics          []produceTopic
	parts           []producePart

	// attempts counts the times that pending parts were sent; nodes are those of the present attempt.
	attempts int32
	nodes    []int32
	// sentAt is when the first append went out, imageOffset the metadata offset of the last attempt.
	sentAt      time.Time
	imageOffset int64
	// out is the number of appends whose result is still to come, and one more while others may be sent.
	out     atomic.Int32
	settled func(*produce)
}

// producePool keeps requests that are done.
type producePool struct{ requests sync.Pool }

func (p *producePool) get() *produce {
	if q, _ := p.requests.Get().(*produce); q != nil {
		return q
	}
	return new(produce)
}

func (p *producePool) put(q *produce) {
	clear(q.topics)
	clear(q.parts)
	topics, parts, nodes := q.topics[:0], q.parts[:0], q.nodes[:0]
	*q = produce{topics: topics, parts: parts, nodes: nodes}
	p.requests.Put(q)
}

// producesOrder is the Order of Produce.
func producesOrder(*Request) Order { return Produces }

// startProduce is the Start of Produce.
func (h *Handlers) startProduce(ctx context.Context, r *Request, done func(*wire.Message, error)) {
	p := h.produces.get()
	p.h, p.r, p.ctx, p.done = h, r, ctx, done
	if !p.decode(r) {
		r.Frame.Free()
		h.produces.put(p)
		done(nil, wire.ErrMalformed)
		return
	}
	if p.transactional && !p.identified {
		p.failAll(errcode.TransactionalIdAuthorizationFailed)
	}
	p.deadline = r.Arrived.Add(time.Duration(max(p.timeoutMs, 0)) * time.Millisecond)
	r.Conn.produces.start(p)
}

// decode reads the request. The records stay where they are.
func (p *produce) decode(r *Request) bool {
	flexible, ids := r.Version >= 9, r.Version >= 13
	in := wire.NewReader(r.Body)
	var id []byte
	id, p.identified = in.NullableString(flexible)
	p.transactionalID = string(id)
	p.acks, p.timeoutMs = in.Int16(), in.Int32()
	p.transactional = false
	for range in.Count(flexible, 2) {
		t := produceTopic{}
		if ids {
			t.id = in.UUID()
		} else {
			t.name = string(in.String(flexible))
		}
		t.parts = in.Count(flexible, 5)
		p.topics = append(p.topics, t)
		for range t.parts {
			part := producePart{topic: int32(len(p.topics) - 1), partition: in.Int32()}
			part.at, part.size = in.Span(flexible)
			if flexible {
				in.SkipTags()
			}
			if in.Failed() {
				return false
			}
			p.parts = append(p.parts, part)
			if part.size >= batchHeaderSize && batchFlag(r.Body[part.at:], transactionalBit) {
				p.transactional = true
			}
		}
		if flexible {
			in.SkipTags()
		}
		if in.Failed() {
			return false
		}
	}
	if flexible {
		in.SkipTags()
	}
	p.dropRepeated()
	return !in.Failed()
}

// dropRepeated keeps the last of what a request has for one partition, as Kafka does: the others are neither written nor answered.
func (p *produce) dropRepeated() {
	type key struct {
		name      string
		id        uuid.UUID
		partition int32
	}
	if len(p.parts) < 2 {
		return
	}
	last := make(map[key]int, len(p.parts))
	for i := range p.parts {
		t := &p.topics[p.parts[i].topic]
		last[key{t.name, t.id, p.parts[i].partition}] = i
	}
	if len(last) == len(p.parts) {
		return
	}
	kept := p.parts[:0]
	for i, part := range p.parts {
		t := &p.topics[part.topic]
		if last[key{t.name, t.id, part.partition}] == i {
			kept = append(kept, part)
		} else {
			t.parts--
		}
	}
	p.parts = kept
}

// batchFlag says whether the first batch of some records is of the present format and has an attribute.
func batchFlag(records []byte, bit uint16) bool {
	return records[batchMagicAt] == 2 && binary.BigEndian.Uint16(records[batchAttributesAt:])&bit != 0
}

// idempotent says whether the part's batch has a producer id, so that the leader knows it when it comes again.
func (p *produce) idempotent(part *producePart) bool {
	if part.size < batchHeaderSize {
		return false
	}
	records := p.r.Body[part.at:]
	return records[batchMagicAt] == 2 && int64(binary.BigEndian.Uint64(records[batchProducerIDAt:])) >= 0
}

func (p *produce) failAll(code errcode.Code) {
	for i := range p.parts {
		p.fail(&p.parts[i], code)
	}
}

func (p *produce) fail(part *producePart, code errcode.Code) {
	part.state = partDone
	part.result = storage.PartitionAppendResult{
		Error: code, BaseOffset: -1, LogAppendTimeMs: -1, LogStartOffset: -1, Leader: storage.NoLeader,
	}
}

// attempt sends all pending parts to where the image says. The function in settled is called once all of them have a
// result or are pending again; that may be before attempt returns.
func (p *produce) attempt() {
	img := p.h.Image()
	p.imageOffset = img.Offset()
	p.attempts++
	p.nodes = p.nodes[:0]
	for i := range p.parts {
		part := &p.parts[i]
		if part.state == partPending {
			p.route(img, part)
		}
		if part.state == partSent && !slices.Contains(p.nodes, part.node) {
			p.nodes = append(p.nodes, part.node)
		}
	}
	if p.sentAt.IsZero() {
		p.sentAt = p.h.Now()
	}
	p.out.Store(1)
	for _, node := range p.nodes {
		p.send(node)
	}
	p.landed()
}

// route finds the node of a pending part, or why there is none.
func (p *produce) route(img metadata.Reader, part *producePart) {
	t := &p.topics[part.topic]
	topic, partition := partitionOf(img, t.id, t.name, part.partition)
	ids := p.r.Version >= 13
	switch {
	case ids && (topic == nil || t.id.IsZero()):
		p.refuse(part, errcode.UnknownTopicId)
	case partition == nil:
		p.refuse(part, errcode.UnknownTopicOrPartition)
	case part.size < 0:
		p.fail(part, errcode.InvalidRequest)
	case p.acks < storage.AcksAll || p.acks > storage.AcksLeader:
		p.fail(part, errcode.InvalidRequiredAcks)
	case internaltopic.Is(topic.Name) && !p.admin():
		p.fail(part, errcode.InvalidTopicException)
	case partition.Leader < 0:
		p.refuse(part, errcode.NotLeaderOrFollower)
		part.result.Leader = storage.CurrentLeader{ID: -1, Epoch: partition.LeaderEpoch}
	default:
		part.result.TopicID = topic.ID
		part.node, part.attempt, part.state = partition.Leader, p.attempts, partSent
	}
}

// admin says whether the client is one of Kafka's administrative tools.
func (p *produce) admin() bool { return p.r.clientID() == adminClientID }

// refuse gives a part an error that may go away by itself.
func (p *produce) refuse(part *producePart, code errcode.Code) {
	p.fail(part, code)
	part.state = partPending
}

// send appends the parts of a node with one request.
func (p *produce) send(node int32) {
	n := 0
	for i := range p.parts {
		if part := &p.parts[i]; part.attempt == p.attempts && part.node == node {
			n++
		}
	}
	req := &storage.AppendRequest{
		Acks:            p.acks,
		TimeoutMs:       p.timeLeftMs(),
		MetadataOffset:  p.imageOffset,
		WriterEpoch:     storage.NoWriterEpoch,
		APIVersion:      p.r.Version,
		TransactionalID: p.transactionalID,
		Partitions:      make([]storage.PartitionAppend, 0, n),
	}
	if p.admin() {
		req.WriterEpoch = storage.AdminWriterEpoch
	}
	buffers := make(storage.Buffers, 0, n)
	for i := range p.parts {
		part := &p.parts[i]
		if part.attempt != p.attempts || part.node != node {
			continue
		}
		at := p.r.BodyAt + part.at
		buffers = append(buffers, p.r.Frame.Slice(at, at+part.size))
		k := len(buffers)
		req.Partitions = append(req.Partitions, storage.PartitionAppend{
			TopicID: part.result.TopicID, Partition: part.partition, Records: buffers[k-1 : k : k],
		})
	}
	p.out.Add(1)
	to, err := p.h.Storage(node)
	if err != nil {
		buffers.Free()
		p.notSent(node)
		p.landed()
		return
	}
	to.Append(req, func(res *storage.AppendResult) {
		p.take(node, res)
		p.landed()
	})
}

// notSent gives the parts of a node that cannot be reached back.
func (p *produce) notSent(node int32) {
	for i := range p.parts {
		if part := &p.parts[i]; part.attempt == p.attempts && part.node == node {
			p.refuse(part, errcode.NotLeaderOrFollower)
		}
	}
}

// take distributes a node's results, which are in the order of its parts.
func (p *produce) take(node int32, res *storage.AppendResult) {
	k := 0
	for i := range p.parts {
		part := &p.parts[i]
		if part.attempt != p.attempts || part.node != node || k >= len(res.Partitions) {
			continue
		}
		part.result = res.Partitions[k]
		k++
		if p.r.Version < 13 {
			part.result.Error = byName(part.result.Error)
		}
		part.state = partDone
		if leadershipLost(part.result.Error) && (!part.result.OutcomeUnknown || p.idempotent(part)) {
			part.state = partPending
		}
	}
}

// leadershipLost says whether an error means that somebody else leads the partition now, or soon.
func leadershipLost(code errcode.Code) bool {
	switch code {
	case errcode.NotLeaderOrFollower, errcode.FencedLeaderEpoch, errcode.NetworkException, errcode.BrokerNotAvailable,
		errcode.ReplicaNotAvailable, errcode.LeaderNotAvailable:
		return true
	}
	return false
}

func (p *produce) timeLeftMs() int32 {
	left := p.deadline.Sub(p.h.Now()).Milliseconds()
	return int32(max(0, min(left, int64(max(p.timeoutMs, 0)))))
}

// landed ends one append, or the sending of them; the last one settles the attempt.
func (p *produce) landed() {
	if p.out.Add(-1) == 0 {
		p.settled(p)
	}
}

// again says whether parts are pending that may still be sent; those whose time has run out get their last error.
func (p *produce) again(now time.Time) bool {
	again := false
	for i := range p.parts {
		part := &p.parts[i]
		if part.state != partPending {
			continue
		}
		limit := p.deadline
		if code := part.result.Error; code == errcode.UnknownTopicOrPartition || code == errcode.UnknownTopicId {
			limit = p.r.Arrived.Add(unknownTopicGrace)
		}
		if now.Before(limit) && p.ctx.Err() == nil {
			again = true
			continue
		}
		part.state = partDone
	}
	return again
}

// finish answers the request and gives everything back.
func (p *produce) finish() {
	h, r, done := p.h, p.r, p.done
	if !p.sentAt.IsZero() {
		r.Waited = h.Now().Sub(p.sentAt)
	}
	var m *wire.Message
	var err error
	if p.acks == storage.AcksNone {
		err = p.errorOfAcksZero()
	} else {
		m = p.response()
	}
	h.produces.put(p)
	r.Frame.Free()
	h.Pacer.Produced(r.Arrived)
	done(m, err)
}

func (p *produce) errorOfAcksZero() error {
	for i := range p.parts {
		if code := p.parts[i].result.Error; code != errcode.None {
			return fmt.Errorf("%w: %s", errAcksZero, code.Name())
		}
	}
	return nil
}
