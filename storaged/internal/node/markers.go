package node

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"
	"chancery/storaged/internal/replica"
)

// WriteTxnMarkers (27), versions 1 and 2: ends transactions in partitions that this node leads. Version 2 says by which
// transaction.version.

// writeTxnMarkers answers when every marker has reached all in-sync replicas, or has failed.
func (n *Node) writeTxnMarkers(ctx context.Context, req *kmsg.WriteTxnMarkersRequest) *kmsg.WriteTxnMarkersResponse {
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Markers = make([]kmsg.WriteTxnMarkersResponseMarker, len(req.Markers))
	var written sync.WaitGroup
	for i := range req.Markers {
		m, out := &req.Markers[i], &resp.Markers[i]
		out.Default()
		out.ProducerID = m.ProducerID
		var parts []storage.PartitionAppend
		var places []*int16
		for _, t := range m.Topics {
			topic := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			topic.Topic = t.Topic
			topic.Partitions = make([]kmsg.WriteTxnMarkersResponseMarkerTopicPartition, len(t.Partitions))
			known := n.applied.load().TopicByName(t.Topic)
			for j, p := range t.Partitions {
				place := &topic.Partitions[j]
				place.Default()
				place.Partition = p
				if known == nil || n.lookup(replica.Key{TopicID: known.ID, Partition: p}) == nil {
					place.ErrorCode = int16(errcode.UnknownTopicOrPartition)
					continue
				}
				switch {
				case m.ProducerID < 0 || m.ProducerEpoch == recordbatch.NoProducerEpoch:
					// Nobody has such an id. Apache Kafka cannot make a batch of it, and says no more than that.
					place.ErrorCode = int16(errcode.UnknownServerError)
					continue
				case m.ProducerEpoch < 0:
					place.ErrorCode = int16(errcode.InvalidProducerEpoch)
					continue
				}
				parts = append(parts, storage.PartitionAppend{TopicID: known.ID, Partition: p})
				places = append(places, &place.ErrorCode)
			}
			out.Topics = append(out.Topics, topic)
		}
		if len(parts) == 0 {
			continue
		}
		written.Add(1)
		n.appendMarkers(ctx, m, parts, func(result *storage.AppendResult) {
			for k := range result.Partitions {
				*places[k] = int16(result.Partitions[k].Error)
			}
			written.Done()
		})
	}
	written.Wait()
	return resp
}

// appendMarkers writes one marker to several partitions.
func (n *Node) appendMarkers(ctx context.Context, m *kmsg.WriteTxnMarkersRequestMarker, parts []storage.PartitionAppend, done func(*storage.AppendResult)) {
	marker := replica.Marker{
		EndTxnMarker:       recordbatch.EndTxnMarker{Type: recordbatch.Abort, CoordinatorEpoch: m.CoordinatorEpoch},
		TransactionVersion: int16(m.TransactionVersion),
	}
	if m.Committed {
		marker.Type = recordbatch.Commit
	}
	now := time.Now()
	for i := range parts {
		batch := recordbatch.MarkerBatch(m.ProducerID, m.ProducerEpoch, marker.EndTxnMarker, now.UnixMilli())
		parts[i].Records = storage.Buffers{mem.SliceBuffer(batch)}
	}
	timeout := n.o.Static.Duration("request.timeout.ms")
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, deadline.Sub(now))
	}
	op := replica.NewMarkerOp(&storage.AppendRequest{
		Acks: storage.AcksAll, TimeoutMs: int32(timeout.Milliseconds()), WriterEpoch: storage.NoWriterEpoch,
		APIVersion: newestProduce, Partitions: parts,
	}, marker, done)
	for i := range parts {
		n.place(op, i)
	}
	op.Watch(timeout)
}

// newestProduce decides nothing for a marker.
const newestProduce = 13
