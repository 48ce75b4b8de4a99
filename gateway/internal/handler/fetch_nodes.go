package handler

import (
	"context"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// ask fetches from all nodes, waiting at most wait for the client's minimum of bytes.
func (f *fetching) ask(ctx context.Context, wait time.Duration) {
	if len(f.nodes) == 0 {
		return
	}
	maxBytes := f.h.fetched.room(min(f.q.maxBytes, f.h.config.FetchMaxBytes))
	minBytes := min(f.q.minBytes, maxBytes)
	if f.failed || wait < 0 {
		wait = 0
	}
	if len(f.nodes) == 1 {
		f.askOne(ctx, f.nodes[0], wait, minBytes, maxBytes)
	} else {
		f.askSeveral(ctx, wait, minBytes, maxBytes)
	}
	f.followPreferred(ctx, maxBytes)
	f.readTier(ctx, maxBytes)
}

// askOne fetches from one node on this goroutine.
func (f *fetching) askOne(ctx context.Context, node int32, wait time.Duration, minBytes, maxBytes int32) {
	res, err := f.fetchFrom(ctx, node, wait, minBytes, maxBytes)
	f.take(node, res, err)
}

// fetchFrom sends the partitions of a node to it.
func (f *fetching) fetchFrom(ctx context.Context, node int32, wait time.Duration, minBytes, maxBytes int32) (*storage.FetchResult, error) {
	to, err := f.h.Storage(node)
	if err != nil {
		return nil, err
	}
	req := &storage.FetchRequest{
		ReplicaID: storage.ConsumerReplicaID, ReplicaEpoch: -1, MaxWaitMs: int32(wait.Milliseconds()),
		MinBytes: minBytes, MaxBytes: maxBytes, Isolation: f.q.isolation, RackID: f.q.rack, MetadataOffset: f.imageOffset,
	}
	n := len(f.reads)
	if len(f.nodes) > 1 {
		n = f.countOf(node)
	}
	req.Partitions = make([]storage.FetchPartition, 0, n)
	for i := range f.reads {
		if f.places[i].node != node {
			continue
		}
		read := &f.reads[i]
		req.Partitions = append(req.Partitions, storage.FetchPartition{
			TopicID: f.places[i].topicID, Partition: read.Partition, CurrentLeaderEpoch: read.LeaderEpoch,
			FetchOffset: read.FetchOffset, LastFetchedEpoch: read.LastFetchedEpoch, LogStartOffset: -1, MaxBytes: read.MaxBytes,
		})
	}
	return to.Fetch(ctx, req)
}

func (f *fetching) countOf(node int32) int {
	n := 0
	for i := range f.places {
		if f.places[i].node == node {
			n++
		}
	}
	return n
}

// take distributes a node's results, which are in the order of its partitions.
func (f *fetching) take(node int32, res *storage.FetchResult, err error) {
	k := 0
	for i := range f.places {
		if f.places[i].node != node {
			continue
		}
		if err != nil || k >= len(res.Partitions) {
			f.results[i] = failedResult(errcode.NotLeaderOrFollower)
			f.failed = true
			continue
		}
		f.results[i] = res.Partitions[k]
		if f.r.Version < 13 {
			f.results[i].Error = byName(f.results[i].Error)
		}
		res.Partitions[k].Records = storage.Records{}
		k++
	}
	if err != nil {
		f.h.Logger.Debug("a storage node has not answered a fetch", "node", node, "error", err)
	}
	res.Release()
}

// enough says whether what is there ends the wait.
func (f *fetching) enough(minBytes int32) bool {
	bytes := 0
	for i := range f.results {
		res := &f.results[i]
		if f.places[i].unknown {
			continue
		}
		if res.Error != errcode.None || res.Diverging != storage.NoDivergence || res.PreferredReadReplica >= 0 || res.Tiered {
			return true
		}
		bytes += res.Records.Len()
	}
	return bytes >= int(minBytes)
}

// nodeAnswer is what came from one node.
type nodeAnswer struct {
	node int32
	res  *storage.FetchResult
	err  error
}

// askSeveral asks all nodes without waiting, and then, if that is too little, with the client's wait: the first answer
// ends the wait of the others, which then give what they have.
func (f *fetching) askSeveral(ctx context.Context, wait time.Duration, minBytes, maxBytes int32) {
	// The limit is shared out, so that the whole stays within it.
	share := max(maxBytes/int32(len(f.nodes)), 1)
	f.askAll(ctx, func(ctx context.Context, node int32) (*storage.FetchResult, error) {
		return f.fetchFrom(ctx, node, 0, 0, share)
	}, false)
	if wait <= 0 || f.enough(minBytes) {
		return
	}
	need := make(map[int32]int32, len(f.nodes))
	total := int32(0)
	for i := range f.results {
		n := int32(f.results[i].Records.Len())
		total += n
		need[f.places[i].node] -= n
	}
	f.release()
	f.askAll(ctx, func(ctx context.Context, node int32) (*storage.FetchResult, error) {
		others := total + need[node]
		return f.fetchFrom(ctx, node, wait, max(minBytes-others, 1), share)
	}, true)
}

// askAll asks every node on a goroutine of its own and takes the answers here.
func (f *fetching) askAll(ctx context.Context, ask func(context.Context, int32) (*storage.FetchResult, error), firstEnds bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan nodeAnswer, len(f.nodes))
	for _, node := range f.nodes {
		go func() {
			res, err := ask(ctx, node)
			answers <- nodeAnswer{node, res, err}
		}()
	}
	// The answers are taken when all are there: until then the goroutines read what take changes.
	got := make([]nodeAnswer, 0, len(f.nodes))
	for range f.nodes {
		got = append(got, <-answers)
		if firstEnds {
			cancel()
		}
	}
	for _, a := range got {
		f.take(a.node, a.res, a.err)
	}
}

// followPreferred reads from the replicas that leaders have named, for a client that cannot go there by itself.
func (f *fetching) followPreferred(ctx context.Context, maxBytes int32) {
	if f.q.rack == "" || f.r.Conn.NodeID != UnknownNode {
		return
	}
	f.nodes = f.nodes[:0]
	for i := range f.results {
		f.places[i].node = noNode
		if to := f.results[i].PreferredReadReplica; to >= 0 && f.results[i].Error == errcode.None {
			f.results[i].Records.Release()
			f.places[i].node = to
			f.addNode(to)
		}
	}
	for _, node := range f.nodes {
		// The preferred replica of one rack is one node, or very few: one after the other will do. There is no wait, since
		// what the leaders have told is due now.
		f.askOne(ctx, node, 0, 0, maxBytes)
	}
}
