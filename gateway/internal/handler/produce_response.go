package handler

import (
	"encoding/binary"

	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// response makes the answer, whose topics and partitions are in the order of the request. A topic without partitions is
// left out, as by Kafka.
func (p *produce) response() *wire.Message {
	v := p.r.Version
	flexible := v >= 9
	m := p.h.newMessage(p.r)
	topics := 0
	for i := range p.topics {
		if p.topics[i].parts > 0 {
			topics++
		}
	}
	b := wire.AppendCount(m.B, topics, flexible)
	next := 0
	var leaders []int32
	for i := range p.topics {
		t := &p.topics[i]
		if t.parts == 0 {
			continue
		}
		if v >= 13 {
			b = append(b, t.id[:]...)
		} else {
			b = wire.AppendString(b, t.name, flexible)
		}
		b = wire.AppendCount(b, t.parts, flexible)
		for j := next; j < next+t.parts; j++ {
			part := &p.parts[j]
			p.nameLeader(part)
			if part.result.Leader.ID >= 0 {
				leaders = append(leaders, part.result.Leader.ID)
			}
			b = appendProducePart(b, v, part)
		}
		next += t.parts
		if flexible {
			b = append(b, 0)
		}
	}
	b = wire.AppendInt32(b, 0) // throttle time
	if flexible {
		b = p.h.appendNodeEndpoints(b, p.r, leaders, v >= 10)
	}
	m.B = b
	return m
}

// nameLeader completes what a producer is told of a leader that has changed, and turns errors of the way to a node into
// the one that makes a producer look for the leader.
func (p *produce) nameLeader(part *producePart) {
	res := &part.result
	if !leadershipLost(res.Error) {
		res.Leader = storage.NoLeader
		return
	}
	res.Error, res.BaseOffset = errcode.NotLeaderOrFollower, -1
	t := &p.topics[part.topic]
	if _, partition := partitionOf(p.h.Image(), t.id, t.name, part.partition); partition != nil && partition.LeaderEpoch >= res.Leader.Epoch {
		res.Leader = storage.CurrentLeader{ID: partition.Leader, Epoch: partition.LeaderEpoch}
	}
}

func appendProducePart(b []byte, v int16, part *producePart) []byte {
	flexible := v >= 9
	res := &part.result
	b = wire.AppendInt32(b, part.partition)
	b = wire.AppendInt16(b, int16(res.Error))
	b = wire.AppendInt64(b, res.BaseOffset)
	b = wire.AppendInt64(b, res.LogAppendTimeMs)
	if v >= 5 {
		b = wire.AppendInt64(b, res.LogStartOffset)
	}
	if v >= 8 {
		b = wire.AppendCount(b, len(res.RecordErrors), flexible)
		for _, e := range res.RecordErrors {
			b = wire.AppendInt32(b, e.BatchIndex)
			b = wire.AppendNullableString(b, optional(e.Message), flexible)
			if flexible {
				b = append(b, 0)
			}
		}
		b = wire.AppendNullableString(b, optional(res.ErrorMessage), flexible)
	}
	if !flexible {
		return b
	}
	if v < 10 || res.Leader == storage.NoLeader {
		return append(b, 0)
	}
	return appendCurrentLeader(append(b, 1), 0, res.Leader)
}

// appendCurrentLeader appends the tagged field with the leader of a partition.
func appendCurrentLeader(b []byte, tag uint64, l storage.CurrentLeader) []byte {
	b = binary.AppendUvarint(b, tag)
	b = append(b, 9)
	b = wire.AppendInt32(b, l.ID)
	b = wire.AppendInt32(b, l.Epoch)
	return append(b, 0)
}

// appendNodeEndpoints ends a flexible response: with the addresses of leaders that it names, where the version has them.
func (h *Handlers) appendNodeEndpoints(b []byte, r *Request, leaders []int32, has bool) []byte {
	if !has || len(leaders) == 0 {
		return append(b, 0)
	}
	var nodes []routing.Node
	for _, n := range h.nodes(h.Image(), r, false) {
		for _, l := range leaders {
			if n.ID == l {
				nodes = append(nodes, n)
				break
			}
		}
	}
	if len(nodes) == 0 {
		return append(b, 0)
	}
	body := wire.AppendCount(nil, len(nodes), true)
	for _, n := range nodes {
		body = wire.AppendInt32(body, n.ID)
		body = wire.AppendString(body, n.Host, true)
		body = wire.AppendInt32(body, n.Port)
		body = wire.AppendNullableString(body, n.Rack, true)
		body = append(body, 0)
	}
	b = append(b, 1, 0)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

// optional makes null of an empty text.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
