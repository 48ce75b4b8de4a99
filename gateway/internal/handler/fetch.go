package handler

import (
	"context"
	"time"

	"chancery/gateway/internal/session"
	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// Fetch (1), versions 4 to 18: read record batches.
//
// Version 5 has log start offsets, 7 sessions (KIP-227), 9 leader epochs, 11 racks and preferred read replicas, 12 is
// flexible and finds divergence, 13 has topic ids, 16 gives the address of a new leader.
//
// A session names the partitions; the image says where they are. One node is asked once, with the client's own wait. With several
// nodes, all are asked first without waiting; if that is too little they are asked again, all with the client's wait, and
// the first to answer ends the wait of the others. Records are never read here: they go from the node's result into the message.
// Replicas of partitions do not fetch through gateways: whatever the replica id, the reader is taken for a consumer.
//
// A client that has told its rack, and the node that it talks to, reads from that node when it is a follower. One that has
// not told the node cannot follow a preferred read replica, so the gateway does it for it.

// fetchRetryWait bounds how long a fetch waits for the new leader of a partition before the client is told to look itself.
const fetchRetryWait = 500 * time.Millisecond

// fetchRequest is a decoded request.
type fetchRequest struct {
	maxWaitMs    int32
	minBytes     int32
	maxBytes     int32
	isolation    int8
	sessionID    int32
	sessionEpoch int32
	wanted       []session.Read
	forgotten    []session.Key
	rack         string
}

// fetchesOrder is the Order of Fetch: without a session, fetches have nothing to do with each other.
func fetchesOrder(r *Request) Order {
	if r.Version < 7 {
		return Fetches
	}
	in := wire.NewReader(r.Body)
	at := 17 // max wait, min bytes, max bytes, isolation, after the replica id
	if r.Version >= 15 {
		at = 13
	}
	in.Bytes(at)
	in.Int32()
	if in.Int32() == session.FinalEpoch && !in.Failed() {
		return Fetches
	}
	return Alone
}

func decodeFetch(r *Request) (*fetchRequest, bool) {
	v := r.Version
	flexible, ids := v >= 12, v >= 13
	q := &fetchRequest{sessionEpoch: session.FinalEpoch}
	in := wire.NewReader(r.Body)
	if v < 15 {
		in.Int32() // replica id
	}
	q.maxWaitMs, q.minBytes, q.maxBytes, q.isolation = in.Int32(), in.Int32(), in.Int32(), in.Int8()
	if v >= 7 {
		q.sessionID, q.sessionEpoch = in.Int32(), in.Int32()
	}
	for range in.Count(flexible, 2) {
		key := decodeTopic(&in, flexible, ids)
		n := in.Count(flexible, 16)
		if q.wanted == nil && n > 0 {
			q.wanted = make([]session.Read, 0, n)
		}
		for range n {
			q.wanted = append(q.wanted, decodeFetchPartition(&in, v, key))
			if in.Failed() {
				return nil, false
			}
		}
		if flexible {
			in.SkipTags()
		}
	}
	if v >= 7 {
		decodeForgotten(&in, q, flexible, ids)
	}
	if v >= 11 {
		q.rack = string(in.String(flexible))
	}
	if flexible {
		in.SkipTags()
	}
	return q, !in.Failed()
}

// decodeTopic reads the name or id of a topic.
func decodeTopic(in *wire.Reader, flexible, ids bool) session.Key {
	if ids {
		return session.Key{TopicID: in.UUID()}
	}
	return session.Key{Topic: string(in.String(flexible))}
}

func decodeFetchPartition(in *wire.Reader, v int16, key session.Key) session.Read {
	p := session.Read{Key: key, LeaderEpoch: -1, LastFetchedEpoch: -1, LogStartOffset: -1}
	p.Partition = in.Int32()
	if v >= 9 {
		p.LeaderEpoch = in.Int32()
	}
	p.FetchOffset = in.Int64()
	if v >= 12 {
		p.LastFetchedEpoch = in.Int32()
	}
	if v >= 5 {
		p.LogStartOffset = in.Int64()
	}
	p.MaxBytes = in.Int32()
	if v >= 12 {
		in.SkipTags()
	}
	return p
}

func decodeForgotten(in *wire.Reader, q *fetchRequest, flexible, ids bool) {
	for range in.Count(flexible, 2) {
		key := decodeTopic(in, flexible, ids)
		for range in.Count(flexible, 4) {
			key.Partition = in.Int32()
			q.forgotten = append(q.forgotten, key)
		}
		if flexible {
			in.SkipTags()
		}
		if in.Failed() {
			return
		}
	}
}

// fetch is the Handle of Fetch.
func (h *Handlers) fetch(ctx context.Context, r *Request) (*wire.Message, error) {
	q, ok := decodeFetch(r)
	if !ok {
		return nil, wire.ErrMalformed
	}
	about, code := h.Sessions.Begin(h.Now(), q.sessionID, q.sessionEpoch, r.Version >= 13, q.wanted, q.forgotten)
	if code != errcode.None {
		return h.fetchResponse(r, nil, session.Answer{Error: code}), nil
	}
	f := &fetching{h: h, r: r, q: q, reads: about.Reads, results: make([]storage.FetchPartitionResult, len(about.Reads)),
		outcomes: make([]session.Outcome, len(about.Reads)), places: make([]place, len(about.Reads))}
	f.run(ctx)
	answer := about.Finish(h.Now(), f.outcome())
	return h.fetchResponse(r, f, answer), nil
}

// place is where a partition is read.
type place struct {
	topicID uuid.UUID
	// node is noNode for a partition that cannot be read, whose result is set already.
	node int32
	// unknown says that the topic or partition does not exist, which does not end the wait for others.
	unknown bool
}

const noNode int32 = -1

// fetching is a fetch on its way; reads, places, results and outcomes have the same index.
type fetching struct {
	h        *Handlers
	r        *Request
	q        *fetchRequest
	reads    []session.Read
	places   []place
	results  []storage.FetchPartitionResult
	outcomes []session.Outcome

	nodes       []int32
	imageOffset int64
	// failed says that a partition has an error that ends the wait.
	failed bool
}

// failedResult is the result of a partition that could not be read.
func failedResult(code errcode.Code) storage.FetchPartitionResult {
	return storage.FetchPartitionResult{
		Error: code, HighWatermark: -1, LastStableOffset: -1, LogStartOffset: -1, PreferredReadReplica: -1,
		Diverging: storage.NoDivergence, Leader: storage.NoLeader,
	}
}

// run reads all partitions. A partition whose leader is changing is looked for again for a moment.
func (f *fetching) run(ctx context.Context) {
	began := f.h.Now()
	defer func() { f.r.Waited += f.h.Now().Sub(began) }()
	wait := time.Duration(max(f.q.maxWaitMs, 0)) * time.Millisecond
	retryUntil := began.Add(min(wait, fetchRetryWait))
	for {
		f.route()
		f.ask(ctx, wait-f.h.Now().Sub(began))
		left := retryUntil.Sub(f.h.Now())
		if !f.leadershipLost() || left <= 0 {
			return
		}
		moved, cancel := context.WithTimeout(ctx, left)
		err := f.h.Await(moved, f.imageOffset+1)
		cancel()
		if err != nil {
			return
		}
		f.release()
	}
}

// route finds the node of each partition.
func (f *fetching) route() {
	img := f.h.Image()
	f.imageOffset, f.failed, f.nodes = img.Offset(), false, f.nodes[:0]
	ids := f.r.Version >= 13
	for i := range f.reads {
		read, at := &f.reads[i], &f.places[i]
		topic, partition := partitionOf(img, read.TopicID, read.Topic, read.Partition)
		at.node, at.unknown = noNode, false
		switch {
		case ids && (topic == nil || read.TopicID.IsZero()):
			at.unknown = true
			f.results[i] = failedResult(errcode.UnknownTopicId)
		case partition == nil:
			at.unknown = true
			f.results[i] = failedResult(errcode.UnknownTopicOrPartition)
		default:
			at.topicID = topic.ID
			at.node = f.nodeOf(partition)
			if at.node == noNode {
				f.refuse(i)
				continue
			}
			f.addNode(at.node)
		}
	}
}

func (f *fetching) addNode(id int32) {
	for _, n := range f.nodes {
		if n == id {
			return
		}
	}
	f.nodes = append(f.nodes, id)
}

// refuse tells that nobody leads a partition for now.
func (f *fetching) refuse(i int) {
	f.failed = true
	f.places[i].node = noNode
	f.results[i] = failedResult(errcode.NotLeaderOrFollower)
}

// nodeOf is the leader, or the follower that the client has chosen.
func (f *fetching) nodeOf(p *metadata.Partition) int32 {
	if f.q.rack != "" && f.r.Conn.NodeID != p.Leader {
		for _, id := range p.Replicas {
			if id == f.r.Conn.NodeID {
				return id
			}
		}
	}
	if p.Leader < 0 {
		return noNode
	}
	return p.Leader
}

// leadershipLost says whether a partition's leader has changed on the way.
func (f *fetching) leadershipLost() bool {
	for i := range f.results {
		if f.results[i].Error == errcode.NotLeaderOrFollower {
			return true
		}
	}
	return false
}

// release gives back all records.
func (f *fetching) release() {
	for i := range f.results {
		f.results[i].Records.Release()
	}
}

// outcome sums the results up for the session.
func (f *fetching) outcome() []session.Outcome {
	for i := range f.results {
		res := &f.results[i]
		f.outcomes[i] = session.Outcome{
			HighWatermark: res.HighWatermark, LogStartOffset: res.LogStartOffset, Bytes: res.Records.Len(),
			Failed: res.Error != errcode.None, Preferred: res.PreferredReadReplica >= 0, Diverging: res.Diverging != storage.NoDivergence,
		}
	}
	return f.outcomes
}
