package handler

import (
	"bytes"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/session"
)

func FuzzDecodeProduce(f *testing.F) {
	for v := int16(3); v <= 13; v++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = v, -1, 7
		req.Topics = []kmsg.ProduceRequestTopic{
			{Topic: "a", Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 1, Records: []byte("abc")}, {Partition: 2}}},
			{Topic: "bb", Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 3, Records: make([]byte, 70)}}},
		}
		f.Add(v, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, v int16, body []byte) {
		if v < 3 || v > 13 {
			t.Skip()
		}
		r := &Request{Version: v, Body: body, Frame: mem.SliceBuffer(body), Conn: &Conn{}}
		p := &produce{r: r}
		if !p.decode(r) {
			return
		}
		// What we take, the reference decoder takes too, and finds the same in it.
		q := kmsg.NewPtrProduceRequest()
		q.Version = v
		if err := q.ReadFrom(body); err != nil {
			t.Fatalf("decoded, but: %v", err)
		}
		if p.acks != q.Acks || p.timeoutMs != q.TimeoutMillis || len(p.topics) != len(q.Topics) {
			t.Fatalf("%+v, want %+v", p, q)
		}
		at := 0
		for i, x := range q.Topics {
			if p.topics[i].name != x.Topic || p.topics[i].id != x.TopicID || p.topics[i].parts != len(x.Partitions) {
				t.Fatalf("topic %d: %+v, want %+v", i, p.topics[i], x)
			}
			for _, y := range x.Partitions {
				part := p.parts[at]
				at++
				if part.partition != y.Partition || int(part.topic) != i || (part.size < 0) != (y.Records == nil) {
					t.Fatalf("%+v, want %+v", part, y)
				}
				if part.size >= 0 && !bytes.Equal(body[part.at:part.at+part.size], y.Records) {
					t.Fatal("other records")
				}
				p.idempotent(&part)
			}
		}
	})
}

func FuzzDecodeFetch(f *testing.F) {
	for v := int16(4); v <= 18; v++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionID, req.SessionEpoch, req.Rack = v, 1, 2, 3, 4, 5, "r"
		req.Topics = []kmsg.FetchRequestTopic{{Topic: "a", Partitions: []kmsg.FetchRequestTopicPartition{
			{Partition: 1, CurrentLeaderEpoch: 2, FetchOffset: 3, LastFetchedEpoch: 4, LogStartOffset: 5, PartitionMaxBytes: 6},
		}}}
		req.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{{Topic: "b", Partitions: []int32{1, 2}}}
		f.Add(v, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, v int16, body []byte) {
		if v < 4 || v > 18 {
			t.Skip()
		}
		r := &Request{Version: v, Body: body}
		order := fetchesOrder(r)
		got, ok := decodeFetch(r)
		if !ok {
			return
		}
		q := kmsg.NewPtrFetchRequest()
		q.Version = v
		if err := q.ReadFrom(body); err != nil {
			if v >= 12 {
				return // tagged fields that we skip may be broken inside
			}
			t.Fatalf("decoded, but: %v", err)
		}
		if got.maxWaitMs != q.MaxWaitMillis || got.minBytes != q.MinBytes || got.maxBytes != q.MaxBytes || got.isolation != q.IsolationLevel ||
			got.sessionID != q.SessionID || got.sessionEpoch != q.SessionEpoch || got.rack != q.Rack {
			t.Fatalf("%+v, want %+v", got, q)
		}
		if (order == Fetches) != (q.SessionEpoch == session.FinalEpoch) {
			t.Fatalf("order %d with session epoch %d", order, q.SessionEpoch)
		}
		at := 0
		for _, x := range q.Topics {
			for _, y := range x.Partitions {
				w := got.wanted[at]
				at++
				if w.Topic != x.Topic || w.TopicID != x.TopicID || w.Partition != y.Partition || w.FetchOffset != y.FetchOffset || w.MaxBytes != y.PartitionMaxBytes ||
					w.LeaderEpoch != y.CurrentLeaderEpoch || w.LastFetchedEpoch != y.LastFetchedEpoch {
					t.Fatalf("%+v, want %+v", w, y)
				}
			}
		}
		if at != len(got.wanted) {
			t.Fatalf("%d partitions, want %d", len(got.wanted), at)
		}
		at = 0
		for _, x := range q.ForgottenTopics {
			for _, p := range x.Partitions {
				if w := got.forgotten[at]; w.Topic != x.Topic || w.TopicID != x.TopicID || w.Partition != p {
					t.Fatalf("%+v, want %+v %d", w, x, p)
				}
				at++
			}
		}
	})
}
