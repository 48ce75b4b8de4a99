package handler

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/internaltopic"
	"chancery/services/metadata"
)

// WriteTxnMarkers (27), versions 1 and 2: ends transactions in partitions, whatever their coordinator says. Operators use it against
// transactions that hang. Version 2 says by which transaction.version.
//
// Each marker goes to the leaders of its partitions, and for the offsets topic to the owners of the shards.

// markerTarget is who writes a marker: a storage node, or the owner of a group shard.
type markerTarget struct {
	group bool
	id    int32
}

// markerPart is what one of them writes, and where its answers belong.
type markerPart struct {
	request kmsg.WriteTxnMarkersRequest
	places  []*int16
}

func (h *Handlers) writeTxnMarkers(ctx context.Context, r *Request, q *kmsg.WriteTxnMarkersRequest) (kmsg.Response, error) {
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Markers = make([]kmsg.WriteTxnMarkersResponseMarker, len(q.Markers))
	img := h.Image()
	parts := map[markerTarget]*markerPart{}
	for i := range q.Markers {
		m, out := &q.Markers[i], &resp.Markers[i]
		out.Default()
		out.ProducerID = m.ProducerID
		out.Topics = make([]kmsg.WriteTxnMarkersResponseMarkerTopic, len(m.Topics))
		for j, t := range m.Topics {
			topic := &out.Topics[j]
			topic.Topic, topic.Partitions = t.Topic, make([]kmsg.WriteTxnMarkersResponseMarkerTopicPartition, len(t.Partitions))
			for k, p := range t.Partitions {
				place := &topic.Partitions[k]
				place.Partition = p
				target, code := markerTargetOf(img, t.Topic, p)
				if place.ErrorCode = int16(code); code != errcode.None {
					continue
				}
				if parts[target] == nil {
					parts[target] = &markerPart{request: kmsg.WriteTxnMarkersRequest{Version: q.Version}}
				}
				parts[target].add(m, t.Topic, p, &place.ErrorCode)
			}
		}
	}
	began := h.Now()
	var wg sync.WaitGroup
	for target, part := range parts {
		wg.Go(func() { h.writeMarkersAt(ctx, r, target, part) })
	}
	wg.Wait()
	r.Waited += h.Now().Sub(began)
	// As with Apache Kafka, nothing is said about markers that were for no partition.
	for i := range resp.Markers {
		m := &resp.Markers[i]
		m.Topics = slices.DeleteFunc(m.Topics, func(t kmsg.WriteTxnMarkersResponseMarkerTopic) bool { return len(t.Partitions) == 0 })
	}
	resp.Markers = slices.DeleteFunc(resp.Markers, func(m kmsg.WriteTxnMarkersResponseMarker) bool { return len(m.Topics) == 0 })
	return resp, nil
}

// markerTargetOf finds who writes a partition's markers.
func markerTargetOf(img metadata.Reader, topic string, partition int32) (markerTarget, errcode.Code) {
	if topic == internaltopic.ConsumerOffsets {
		if t := img.TopicByName(topic); t != nil && partition >= 0 && int(partition) < len(t.Partitions) {
			return markerTarget{group: true, id: partition}, errcode.None
		}
		return markerTarget{}, errcode.UnknownTopicOrPartition
	}
	leader, code := leaderOf(img, topic, partition)
	if code == errcode.InvalidTopicException {
		code = errcode.UnknownTopicOrPartition
	}
	return markerTarget{id: leader}, code
}

// add adds one partition; each has a marker of its own, which keeps the answers in the order of the places.
func (p *markerPart) add(m *kmsg.WriteTxnMarkersRequestMarker, topic string, partition int32, place *int16) {
	one := *m
	one.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: topic, Partitions: []int32{partition}}}
	p.request.Markers = append(p.request.Markers, one)
	p.places = append(p.places, place)
}

func (h *Handlers) writeMarkersAt(ctx context.Context, r *Request, target markerTarget, part *markerPart) {
	ctx, cancel := context.WithTimeout(ctx, h.config.RequestTimeout)
	defer cancel()
	answer, err := h.askForMarkers(ctx, r, target, &part.request)
	for i, place := range part.places {
		switch {
		case err != nil:
			*place = int16(errcode.NotLeaderOrFollower)
		case i < len(answer.Markers) && len(answer.Markers[i].Topics) == 1 && len(answer.Markers[i].Topics[0].Partitions) == 1:
			*place = answer.Markers[i].Topics[0].Partitions[0].ErrorCode
		default:
			*place = int16(errcode.UnknownServerError)
		}
	}
	if err != nil {
		h.Logger.Warn("markers cannot be written", "error", err)
	}
}

func (h *Handlers) askForMarkers(ctx context.Context, r *Request, target markerTarget, q *kmsg.WriteTxnMarkersRequest) (*kmsg.WriteTxnMarkersResponse, error) {
	body := q.AppendTo(nil)
	answer := kmsg.NewPtrWriteTxnMarkersResponse()
	answer.Version = q.Version
	if target.group {
		reply, err := h.askShardOf(ctx, r, metadata.GroupShard, target.id, body)
		if err != nil {
			return nil, err
		}
		return answer, answer.ReadFrom(reply)
	}
	node, err := h.Storage(target.id)
	if err != nil {
		return nil, err
	}
	reply, err := node.Handle(ctx, &storagev1.HandleRequest{Envelope: h.envelope(r, body)})
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", target.id, err)
	}
	return answer, answer.ReadFrom(reply.GetReply().GetBody())
}
