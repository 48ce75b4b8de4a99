package handler

import (
	"context"
	"slices"
	"sync"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

const (
	// leaderWait bounds how long a look-up waits for a partition's leader to be there and to answer as such. It is short:
	// the client asks again, and meanwhile the connection can do something else.
	leaderWait = 5 * time.Second
	// The pause between attempts, when the metadata does not change meanwhile.
	minLeaderRetry = 20 * time.Millisecond
	maxLeaderRetry = 500 * time.Millisecond
)

// leaderCall is what a request wants of the leader of one partition. It may be asked twice, since asking changes nothing
// or does so only once.
type leaderCall struct {
	topic     string
	partition int32
	// topicID and leader are where the call went last.
	topicID uuid.UUID
	leader  int32
	// code is the outcome; pending says that there is none yet.
	code    errcode.Code
	pending bool
}

// answer ends a call.
func (c *leaderCall) answer(code errcode.Code) { c.code, c.pending = code, false }

// askLeader asks a node for the calls at some indexes, which it leads, and ends each of them. An error ends none: nothing
// was learned from the node.
type askLeader func(ctx context.Context, node storage.Node, metadataOffset int64, indexes []int) error

// callLeaders sends pending calls to the leaders of their partitions, all that a node leads at once, and follows the
// leadership for a while. In the end no call is pending.
func (h *Handlers) callLeaders(ctx context.Context, r *Request, calls []leaderCall, ask askLeader) {
	began := h.Now()
	defer func() { r.Waited += h.Now().Sub(began) }()
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	for pause := minLeaderRetry; ; pause = min(2*pause, maxLeaderRetry) {
		img := h.Image()
		h.askLeaders(ctx, calls, routeCalls(img, calls), img.Offset(), ask)
		settleCalls(calls, h.Now().Sub(began) >= unknownTopicGrace)
		if !slices.ContainsFunc(calls, func(c leaderCall) bool { return c.pending }) {
			return
		}
		h.awaitNewer(ctx, img.Offset(), pause)
		if ctx.Err() != nil {
			break
		}
	}
	for i := range calls {
		calls[i].pending = false
	}
}

// routeCalls finds the leaders of the pending calls: node id to indexes. Those without a leader get the reason.
func routeCalls(img metadata.Reader, calls []leaderCall) map[int32][]int {
	routes := make(map[int32][]int)
	for i := range calls {
		c := &calls[i]
		if !c.pending {
			continue
		}
		topic, partition := partitionOf(img, uuid.Zero, c.topic, c.partition)
		switch {
		case partition == nil:
			c.code = errcode.UnknownTopicOrPartition
		case partition.Leader < 0:
			c.code = errcode.NotLeaderOrFollower
		default:
			c.topicID, c.leader = topic.ID, partition.Leader
			routes[c.leader] = append(routes[c.leader], i)
		}
	}
	return routes
}

// askLeaders asks the nodes beside each other. Calls that a node did not answer get NotLeaderOrFollower.
func (h *Handlers) askLeaders(ctx context.Context, calls []leaderCall, routes map[int32][]int, offset int64, ask askLeader) {
	var wg sync.WaitGroup
	for id, indexes := range routes {
		one := func() {
			node, err := h.Storage(id)
			if err == nil {
				err = ask(ctx, node, offset, indexes)
			}
			if err == nil {
				return
			}
			h.Logger.Debug("a storage node has not answered a look-up", "node", id, "error", err)
			for _, i := range indexes {
				calls[i].code = errcode.NotLeaderOrFollower
			}
		}
		if len(routes) == 1 {
			one()
			return
		}
		wg.Go(one)
	}
	wg.Wait()
}

// settleCalls makes those calls pending again whose error may go away by itself, and ends the others. A topic that is
// unknown may have been made through another gateway just now, so that is believed only after a moment.
func settleCalls(calls []leaderCall, believeUnknown bool) {
	for i := range calls {
		c := &calls[i]
		c.code = byName(c.code)
		switch c.code {
		case errcode.NotLeaderOrFollower, errcode.LeaderNotAvailable, errcode.ReplicaNotAvailable, errcode.BrokerNotAvailable, errcode.NetworkException:
			c.code = errcode.NotLeaderOrFollower
			c.pending = true
		case errcode.UnknownTopicOrPartition:
			c.pending = !believeUnknown
		default:
			c.pending = false
		}
	}
}

// byName is a storage node's code for a client that has asked for a topic by its name, and so may not know UNKNOWN_TOPIC_ID: nodes
// are always asked by id, and the topic may be gone, or another one by then.
func byName(code errcode.Code) errcode.Code {
	if code == errcode.UnknownTopicId {
		return errcode.UnknownTopicOrPartition
	}
	return code
}

// awaitNewer waits until the image is beyond an offset, but not longer than the pause.
func (h *Handlers) awaitNewer(ctx context.Context, offset int64, pause time.Duration) {
	pauseCtx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if h.Await(pauseCtx, offset+1) != nil {
		<-pauseCtx.Done()
	}
}
