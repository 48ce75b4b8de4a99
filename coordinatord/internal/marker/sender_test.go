package marker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	storagev1 "chancery/proto/storage/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
)

// world is metadata, nodes and owners of group shards, which answer as the test says.
type world struct {
	t  *testing.T
	mu sync.Mutex

	image *metadata.Image
	moved chan struct{}
	// written are the markers that were written, as "id/partition"; requests counts the requests by destination.
	written  []written
	requests map[destination]int
	// answer decides about one partition of a marker; nil writes all.
	answer func(d destination, m *kmsg.WriteTxnMarkersRequestMarker, topic string, partition int32) errcode.Code
	// broken are destinations that cannot be reached, paused those that never answer.
	broken, paused map[destination]bool
}

type written struct {
	to        destination
	producer  int64
	commit    bool
	topic     string
	partition int32
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, image: metadata.Empty("c"), moved: make(chan struct{}), requests: map[destination]int{}, broken: map[destination]bool{}, paused: map[destination]bool{}}
	w.topic("t", 1, 1, 2)
	w.topic("__consumer_offsets", 1, 1)
	return w
}

// topic makes a topic whose partitions are led by these nodes.
func (w *world) topic(name string, leaders ...int32) uuid.UUID {
	id := uuid.Random()
	records := []metarecord.Record{&metarecord.TopicRecord{Name: name, TopicID: id}}
	for p, leader := range leaders {
		records = append(records, &metarecord.PartitionRecord{TopicID: id, PartitionID: int32(p), Replicas: []int32{leader}, ISR: []int32{leader}, Leader: leader})
	}
	w.push(records...)
	return id
}

func (w *world) push(records ...metarecord.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, err := w.image.Apply(w.image.Offset()+1, 1, records...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.image = d.Image()
	close(w.moved)
	w.moved = make(chan struct{})
}

func (w *world) sender() *Sender {
	s := New(Config{
		Image: func() metadata.Reader { w.mu.Lock(); defer w.mu.Unlock(); return w.image },
		Await: w.await,
		Nodes: func(id int32) (storage.Node, error) { return node{w: w, id: id}, nil },
		Group: func(_ context.Context, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
			return w.handle(destination{group: true, id: shard}, e)
		},
		Timeout: time.Minute,
		Logger:  slog.New(slog.DiscardHandler),
	})
	w.t.Cleanup(s.Close)
	return s
}

func (w *world) await(ctx context.Context, offset int64) error {
	for {
		w.mu.Lock()
		at, moved := w.image.Offset(), w.moved
		w.mu.Unlock()
		if at >= offset {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type node struct {
	storage.Node
	w  *world
	id int32
}

func (n node) Handle(ctx context.Context, req *storagev1.HandleRequest) (*storagev1.HandleResponse, error) {
	if n.w.paused[destination{id: n.id}] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reply, err := n.w.handle(destination{id: n.id}, req.GetEnvelope())
	if err != nil {
		return nil, err
	}
	return &storagev1.HandleResponse{Reply: reply}, nil
}

func (w *world) handle(d destination, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = int16(e.GetApiVersion())
	if err := req.ReadFrom(e.GetBody()); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[d]++
	if w.broken[d] {
		return nil, errors.New("nobody is there")
	}
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	resp.Version = req.Version
	for i := range req.Markers {
		m := &req.Markers[i]
		out := kmsg.WriteTxnMarkersResponseMarker{ProducerID: m.ProducerID}
		for _, t := range m.Topics {
			o := kmsg.WriteTxnMarkersResponseMarkerTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				code := errcode.None
				if w.answer != nil {
					code = w.answer(d, m, t.Topic, p)
				}
				if code == errcode.None {
					w.written = append(w.written, written{d, m.ProducerID, m.Committed, t.Topic, p})
				}
				o.Partitions = append(o.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: int16(code)})
			}
			out.Topics = append(out.Topics, o)
		}
		resp.Markers = append(resp.Markers, out)
	}
	return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.written)
}

// marker is one of producer 7 whose end can be waited for.
func marker(partitions ...Partition) (Marker, chan time.Time) {
	done := make(chan time.Time, 1)
	return Marker{
		TransactionalID: "tx", ProducerID: 7, Commit: true, Partitions: partitions, Wanted: func() bool { return true },
		Done: func() { done <- time.Now() },
	}, done
}

func TestMarkersGoToLeadersAndShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, done := marker(Partition{"t", 0}, Partition{"t", 1}, Partition{"t", 2}, Partition{"__consumer_offsets", 1})
		w.sender().Send(m)
		<-done
		want := map[written]bool{
			{destination{id: 1}, 7, true, "t", 0}: true, {destination{id: 1}, 7, true, "t", 1}: true, {destination{id: 2}, 7, true, "t", 2}: true,
			{destination{group: true, id: 1}, 7, true, "__consumer_offsets", 1}: true,
		}
		for _, x := range w.written {
			if !want[x] {
				t.Errorf("%+v", x)
			}
			delete(want, x)
		}
		if len(want) != 0 || w.requests[destination{id: 1}] != 1 {
			t.Fatalf("missing %+v, requests %+v", want, w.requests)
		}
	})
}

// TestMarkersComeAgainUntilTheyAreWritten, whatever the reason was, and only where they are not yet.
func TestMarkersComeAgainUntilTheyAreWritten(t *testing.T) {
	for _, code := range []errcode.Code{
		errcode.NotLeaderOrFollower, errcode.UnknownTopicOrPartition, errcode.NotEnoughReplicas, errcode.NotEnoughReplicasAfterAppend,
		errcode.RequestTimedOut, errcode.KafkaStorageError, errcode.UnknownServerError, errcode.CoordinatorLoadInProgress,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			failures := 5
			w.answer = func(_ destination, _ *kmsg.WriteTxnMarkersRequestMarker, _ string, partition int32) errcode.Code {
				if partition == 1 && failures > 0 {
					failures--
					return code
				}
				return errcode.None
			}
			m, done := marker(Partition{"t", 0}, Partition{"t", 1})
			w.sender().Send(m)
			<-done
			if w.count() != 2 || failures != 0 {
				t.Fatalf("%s: %+v", code, w.written)
			}
		})
	}
}

// TestMarkersFollowTheLeader: when the metadata says who leads now, a marker does not wait for its pause, nor for a node that is paused.
func TestMarkersFollowTheLeader(t *testing.T) {
	former := destination{id: 2}
	for _, c := range []struct {
		name string
		away func(w *world)
		// within is how soon the marker is written by the new leader.
		within time.Duration
	}{
		{"from a broken node", func(w *world) { w.broken[former] = true }, time.Millisecond},
		{"from a paused node", func(w *world) { w.paused[former] = true }, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				c.away(w)
				m, done := marker(Partition{"t", 2})
				w.sender().Send(m)
				<-time.After(10*time.Second + 3*time.Millisecond)
				began := time.Now()
				r := metarecord.NewPartitionChange(w.image.TopicByName("t").ID, 2)
				r.Leader = 1
				w.push(r)
				if at := <-done; at.Sub(began) > c.within || w.written[0].to != (destination{id: 1}) {
					t.Fatalf("%s later: %+v", at.Sub(began), w.written)
				}
			})
		})
	}
}

func TestMarkersOfDeletedTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.sender()
		m, done := marker(Partition{"gone", 0}, Partition{"t", 9}, Partition{"t", 0})
		began := time.Now()
		s.Send(m)
		if at := <-done; at != began {
			t.Fatal("a partition that this instance knew, and that is gone, holds nothing up")
		}
		// Another instance may have known a topic that this one is about to hear of.
		m, done = marker(Partition{"new", 0})
		m.Resumed = true
		s.Send(m)
		<-time.After(time.Second)
		w.topic("new", 1)
		<-done
		if !slices.Contains(w.written, written{destination{id: 1}, 7, true, "new", 0}) {
			t.Fatalf("%+v", w.written)
		}
		m, done = marker(Partition{"never", 0})
		m.Resumed = true
		began = time.Now()
		s.Send(m)
		if at := <-done; at.Sub(began) < unknownGrace || at.Sub(began) > 2*unknownGrace {
			t.Fatal(at.Sub(began))
		}
	})
}

// TestRefusedMarkers: one that is too late has nothing to end; one of a coordinator that was replaced goes on for as long as it is
// wanted.
func TestRefusedMarkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		code := errcode.InvalidProducerEpoch
		w.answer = func(destination, *kmsg.WriteTxnMarkersRequestMarker, string, int32) errcode.Code { return code }
		s := w.sender()
		m, done := marker(Partition{"t", 0})
		s.Send(m)
		<-done
		code = errcode.TransactionCoordinatorFenced
		wanted := true
		m, done = marker(Partition{"t", 0})
		m.Wanted = func() bool { w.mu.Lock(); defer w.mu.Unlock(); return wanted }
		s.Send(m)
		<-time.After(time.Minute)
		w.mu.Lock()
		wanted = false
		before := w.requests[destination{id: 1}]
		w.mu.Unlock()
		<-time.After(time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(done) != 0 || before < 10 || w.requests[destination{id: 1}] > before+1 {
			t.Fatalf("%d requests, then %d", before, w.requests[destination{id: 1}])
		}
	})
}

// TestManyMarkersShareRequests: what comes while requests are under way goes out together.
func TestManyMarkersShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var all sync.WaitGroup
		s := w.sender()
		for range 500 {
			m, _ := marker(Partition{"t", 0}, Partition{"t", 1})
			all.Add(1)
			m.Done = all.Done
			s.Send(m)
		}
		all.Wait()
		if n := w.requests[destination{id: 1}]; w.count() != 1000 || n > 500 {
			t.Fatalf("%d markers in %d requests", w.count(), n)
		}
	})
}

func TestCloseDropsWhatIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.broken[destination{id: 1}] = true
		s := w.sender()
		m, done := marker(Partition{"t", 0})
		s.Send(m)
		<-time.After(time.Second)
		s.Close()
		s.Send(m)
		<-time.After(time.Minute)
		if len(done) != 0 {
			t.Fatal("it says that the markers are written")
		}
	})
}
