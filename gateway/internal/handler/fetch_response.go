package handler

import (
	"encoding/binary"

	"chancery/gateway/internal/session"
	"chancery/gateway/internal/wire"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
)

// fetchResponse makes the answer. It takes over the records of f, which is nil when the session failed.
func (h *Handlers) fetchResponse(r *Request, f *fetching, answer session.Answer) *wire.Message {
	v := r.Version
	m := h.newMessage(r)
	m.B = wire.AppendInt32(m.B, 0) // throttle time
	if v >= 7 {
		m.B = wire.AppendInt16(m.B, int16(answer.Error))
		m.B = wire.AppendInt32(m.B, answer.SessionID)
	}
	w := fetchWriter{h: h, r: r, m: m, f: f}
	if f != nil {
		bytes := 0
		for i := range f.results {
			bytes += f.results[i].Records.Buffers.Len()
		}
		if bytes > 0 {
			m.OnRelease(h.fetched.hold(bytes))
		}
		w.topics(answer.Tell)
	} else {
		m.B = wire.AppendCount(m.B, 0, v >= 12)
	}
	if v >= 12 {
		m.B = h.appendNodeEndpoints(m.B, r, w.leaders, v >= 16)
	}
	return m
}

// fetchWriter writes the topics of a fetch response.
type fetchWriter struct {
	h *Handlers
	r *Request
	m *wire.Message
	f *fetching
	// leaders are the nodes whose addresses go with the response.
	leaders []int32
}

// run is the end of the run of partitions of one topic that begins at i, and how many of them are told.
func (w *fetchWriter) run(i int, tell []bool) (end, told int) {
	first := w.f.reads[i].Key
	for end = i; end < len(w.f.reads); end++ {
		k := w.f.reads[end].Key
		if k.TopicID != first.TopicID || k.Topic != first.Topic {
			break
		}
		if tell == nil || tell[end] {
			told++
		}
	}
	return end, told
}

func (w *fetchWriter) topics(tell []bool) {
	flexible := w.r.Version >= 12
	topics := 0
	for i := 0; i < len(w.f.reads); {
		end, told := w.run(i, tell)
		if told > 0 {
			topics++
		}
		i = end
	}
	w.m.B = wire.AppendCount(w.m.B, topics, flexible)
	for i := 0; i < len(w.f.reads); {
		end, told := w.run(i, tell)
		if told > 0 {
			w.topic(i, end, told, tell)
		} else {
			w.drop(i, end)
		}
		i = end
	}
}

// drop gives back what is not told.
func (w *fetchWriter) drop(i, end int) {
	for ; i < end; i++ {
		w.f.results[i].Records.Release()
	}
}

func (w *fetchWriter) topic(i, end, told int, tell []bool) {
	flexible := w.r.Version >= 12
	key := w.f.reads[i].Key
	if w.r.Version >= 13 {
		w.m.B = append(w.m.B, key.TopicID[:]...)
	} else {
		w.m.B = wire.AppendString(w.m.B, key.Topic, flexible)
	}
	w.m.B = wire.AppendCount(w.m.B, told, flexible)
	for ; i < end; i++ {
		if tell == nil || tell[i] {
			w.partition(i)
		} else {
			w.drop(i, i+1)
		}
	}
	if flexible {
		w.m.B = append(w.m.B, 0)
	}
}

func (w *fetchWriter) partition(i int) {
	v := w.r.Version
	flexible := v >= 12
	res := &w.f.results[i]
	code := res.Error
	if code == errcode.KafkaStorageError && v <= 5 {
		// Clients of that age do not know the code, and would give up.
		code = errcode.NotLeaderOrFollower
	}
	b := w.m.B
	b = wire.AppendInt32(b, w.f.reads[i].Partition)
	b = wire.AppendInt16(b, int16(code))
	b = wire.AppendInt64(b, res.HighWatermark)
	b = wire.AppendInt64(b, res.LastStableOffset)
	if v >= 5 {
		b = wire.AppendInt64(b, res.LogStartOffset)
	}
	b = w.aborted(b, i)
	if v >= 11 {
		b = wire.AppendInt32(b, res.PreferredReadReplica)
	}
	n := res.Records.Len()
	if flexible {
		b = binary.AppendUvarint(b, uint64(n)+1)
	} else {
		b = wire.AppendInt32(b, int32(n))
	}
	w.m.B = b
	w.m.AddRecords(res.Records)
	res.Records = storage.Records{}
	if flexible {
		w.tags(i)
	}
}

// aborted appends the aborted transactions: an empty list, not null, for whoever reads committed, and for what is unknown.
func (w *fetchWriter) aborted(b []byte, i int) []byte {
	flexible := w.r.Version >= 12
	res := &w.f.results[i]
	committed := w.f.q.isolation == storage.ReadCommitted && res.Error == errcode.None
	if !committed && !w.f.places[i].unknown {
		return wire.AppendNullCount(b, flexible)
	}
	b = wire.AppendCount(b, len(res.AbortedTransactions), flexible)
	for _, t := range res.AbortedTransactions {
		b = wire.AppendInt64(b, t.ProducerID)
		b = wire.AppendInt64(b, t.FirstOffset)
		if flexible {
			b = append(b, 0)
		}
	}
	return b
}

// tags appends the tagged fields of a partition.
func (w *fetchWriter) tags(i int) {
	res := &w.f.results[i]
	diverging := res.Diverging != storage.NoDivergence
	leader := storage.NoLeader
	if w.r.Version >= 16 && (res.Error == errcode.NotLeaderOrFollower || res.Error == errcode.FencedLeaderEpoch) {
		leader = w.leaderOf(i)
	}
	count := byte(0)
	if diverging {
		count++
	}
	if leader != storage.NoLeader {
		count++
	}
	b := append(w.m.B, count)
	if diverging {
		b = append(b, 0, 13)
		b = wire.AppendInt32(b, res.Diverging.Epoch)
		b = wire.AppendInt64(b, res.Diverging.EndOffset)
		b = append(b, 0)
	}
	if leader != storage.NoLeader {
		b = appendCurrentLeader(b, 1, leader)
	}
	w.m.B = b
}

// leaderOf is the newest that is known of a partition's leader: by the node or by the image.
func (w *fetchWriter) leaderOf(i int) storage.CurrentLeader {
	leader := w.f.results[i].Leader
	read := &w.f.reads[i]
	_, p := partitionOf(w.h.Image(), read.TopicID, read.Topic, read.Partition)
	if p != nil && p.LeaderEpoch >= leader.Epoch {
		leader = storage.CurrentLeader{ID: p.Leader, Epoch: p.LeaderEpoch}
	}
	if leader.ID >= 0 {
		w.leaders = append(w.leaders, leader.ID)
	}
	return leader
}
