package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"chancery/controllerd/internal/metalog"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/metarecord"
	"chancery/services/metadata"
	"chancery/services/transport"
)

const clusterID = "the-cluster"

func configBatch(base int64, epoch int32, n int) *metalog.Batch {
	var records []metarecord.Record
	for i := range n {
		value := fmt.Sprint(base + int64(i))
		records = append(records, &metarecord.ConfigRecord{ResourceType: int8(metadata.ResourceGroup), ResourceName: value, Name: "x", Value: &value})
	}
	return &metalog.Batch{BaseOffset: base, Epoch: epoch, Records: metarecord.EncodeAll(records)}
}

func newFeed(t *testing.T) *Feed {
	t.Helper()
	f := New()
	f.Reset(metadata.Empty(clusterID), -1)
	f.SetHolder(metalog.Holder{Epoch: 1, ID: 1, Address: "controller-1:1"})
	return f
}

func offer(t *testing.T, f *Feed, b *metalog.Batch) {
	t.Helper()
	if err := f.Offer(b, nil); err != nil {
		t.Fatal(err)
	}
}

func TestOffer(t *testing.T) {
	f := newFeed(t)
	offer(t, f, configBatch(0, 1, 3))
	offer(t, f, configBatch(0, 1, 3))
	offer(t, f, configBatch(3, 1, 1))
	s := f.State()
	if s.Next != 4 || s.Epoch != 1 || s.Image.Offset() != 3 || len(s.Image.ConfigResources(metadata.ResourceGroup)) != 4 {
		t.Fatalf("%+v", s)
	}
	if epoch, ok := f.EpochAt(3); !ok || epoch != 1 {
		t.Fatalf("epoch %d, %t", epoch, ok)
	}
	if _, ok := f.EpochAt(1); ok {
		t.Fatal("a batch begins at offset 1")
	}
	if err := f.Offer(configBatch(9, 1, 1), nil); !errors.Is(err, metadata.ErrReplay) {
		t.Fatalf("got %v", err)
	}
	if f.State().Loaded {
		t.Fatal("a feed with a gap counts as loaded")
	}
}

func TestTransactionsStayHidden(t *testing.T) {
	f := newFeed(t)
	offer(t, f, configBatch(0, 1, 1))
	offer(t, f, &metalog.Batch{BaseOffset: 1, Epoch: 1, Records: append(metarecord.EncodeAll([]metarecord.Record{&metarecord.BeginTransactionRecord{}}), configBatch(2, 1, 1).Records...)})
	s := f.State()
	if !s.InTransaction || s.Next != 3 || s.Image.Offset() != 0 {
		t.Fatalf("%+v", s)
	}
	// A follower that comes now gets a snapshot of what is visible, and the transaction's part so far.
	snapshot, err := f.snapshotFor()
	if err != nil || snapshot.end != 1 {
		t.Fatalf("snapshot to offset %d, %v", snapshot.end, err)
	}
	offer(t, f, &metalog.Batch{BaseOffset: 3, Epoch: 1, Records: metarecord.EncodeAll([]metarecord.Record{&metarecord.EndTransactionRecord{}})})
	if s := f.State(); s.InTransaction || s.Image.Offset() != 3 || len(s.Image.ConfigResources(metadata.ResourceGroup)) != 2 {
		t.Fatalf("%+v", s)
	}
}

func TestBegin(t *testing.T) {
	f := newFeed(t)
	offer(t, f, configBatch(0, 1, 2))
	offer(t, f, configBatch(2, 1, 2))
	offer(t, f, configBatch(4, 3, 2))
	for _, c := range []struct {
		from  int64
		epoch int32
		want  bool
	}{
		{0, -1, true}, {2, 1, false}, {4, 1, false}, {6, 3, false},
		{1, 1, true}, {2, 2, true}, {4, 3, true}, {6, 1, true}, {7, 3, true},
	} {
		if got := f.begin(c.from, c.epoch); got != c.want {
			t.Errorf("from %d of epoch %d: snapshot %t, want %t", c.from, c.epoch, got, c.want)
		}
	}
	// Without the first batches the snapshot is the only way.
	f.limit = 1
	offer(t, f, configBatch(6, 3, 1))
	for _, c := range []struct {
		from  int64
		epoch int32
		want  bool
	}{{0, -1, true}, {4, 1, true}, {6, 3, false}, {7, 3, false}} {
		if got := f.begin(c.from, c.epoch); got != c.want {
			t.Errorf("trimmed, from %d of epoch %d: snapshot %t, want %t", c.from, c.epoch, got, c.want)
		}
	}
	if _, _, ok := f.after(2); ok {
		t.Error("a batch that is gone was found")
	}
}

// source opens streams to a server in this process.
type source struct {
	channel *transport.Channel
	opened  atomic.Int32
}

func (s *source) Open(ctx context.Context) (metadata.Stream, error) {
	s.opened.Add(1)
	return controllerv1.NewControllerClient(s.channel).FollowMetadata(ctx)
}

// followable is the part of the service that followers use.
type followable struct {
	controllerv1.UnimplementedControllerServer
	server *Server
}

func (f followable) FollowMetadata(stream grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
	return f.server.Serve(stream)
}

type setup struct {
	feed    *Feed
	acks    *Acks
	contact atomic.Bool
	active  atomic.Bool
	stop    chan struct{}
	source  *source
}

func newSetup(t *testing.T) *setup {
	s := &setup{feed: newFeed(t), acks: NewAcks(), stop: make(chan struct{})}
	s.contact.Store(true)
	channel := transport.NewLocal(transport.NewPool()).Channel("controller")
	controllerv1.RegisterControllerServer(channel, followable{server: &Server{Feed: s.feed, Acks: s.acks, InContact: s.contact.Load, IsActive: s.active.Load, Stopping: s.stop}})
	s.source = &source{channel: channel}
	return s
}

func (s *setup) follow(t *testing.T, id int32) *metadata.Follower {
	t.Helper()
	f := metadata.NewFollower(metadata.Config{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, ID: id, Source: s.source,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), MemberEpoch: func() int64 { return 5 },
	})
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFollowersSeeEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t)
		offer(t, s.feed, configBatch(0, 1, 3))
		s.feed.limit = 1
		early := s.follow(t, 1)
		if err := early.Await(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		offer(t, s.feed, configBatch(3, 1, 4))
		offer(t, s.feed, configBatch(7, 1, 4))
		late := s.follow(t, 2)
		for _, f := range []*metadata.Follower{early, late} {
			if err := f.Await(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // Who is active is told beside the log.
			if got := f.Image(); got.Offset() != 10 || len(got.ConfigResources(metadata.ResourceGroup)) != 11 || got.ClusterID() != clusterID {
				t.Fatalf("offset %d", got.Offset())
			}
			if a := f.ActiveController(); a.ID != 1 || a.Address != "controller-1:1" {
				t.Fatalf("%+v", a)
			}
		}
		synctest.Wait()
		for id := range int32(2) {
			who := Follower{Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, ID: id + 1}
			err := s.acks.Await(t.Context(), func() <-chan struct{} { return nil }, func() bool {
				ack, _ := s.acks.Get(who)
				return ack.Offset == 10 && ack.Epoch == 5
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		s.feed.SetHolder(metalog.Holder{Epoch: 2, ID: 2, Address: "controller-2:1"})
		synctest.Wait()
		if a := early.ActiveController(); a.ID != 2 {
			t.Fatalf("%+v", a)
		}
		for _, f := range []*metadata.Follower{early, late} {
			if err := f.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestStandbyWithoutContactGoesSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t)
		offer(t, s.feed, configBatch(0, 1, 1))
		f := s.follow(t, 1)
		if err := f.Await(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if n := s.source.opened.Load(); n != 1 {
			t.Fatalf("%d streams while all was well", n)
		}
		s.contact.Store(false)
		<-time.After(10 * time.Second)
		if n := s.source.opened.Load(); n < 2 {
			t.Fatal("the follower stays with a controller that is out of contact")
		}
		if err := f.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

// rawStream is a server's stream whose messages a test looks at.
type rawStream struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan *controllerv1.FollowMetadataRequest
	mu       sync.Mutex
	sent     []*controllerv1.FollowMetadataResponse
	block    chan struct{}
}

func (r *rawStream) Context() context.Context { return r.ctx }

func (r *rawStream) Recv() (*controllerv1.FollowMetadataRequest, error) {
	select {
	case req, ok := <-r.requests:
		if !ok {
			return nil, io.EOF
		}
		return req, nil
	case <-r.ctx.Done():
		return nil, r.ctx.Err()
	}
}

func (r *rawStream) SendMsg(m any) error {
	if r.block != nil {
		<-r.block
	}
	resp, ok := m.(*controllerv1.FollowMetadataResponse)
	if !ok {
		resp = &controllerv1.FollowMetadataResponse{}
		if err := proto.Unmarshal(m.(transport.Encoded), resp); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, resp)
	return nil
}

func TestReportersGetNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t)
		offer(t, s.feed, configBatch(0, 1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		stream := &rawStream{ctx: ctx, requests: make(chan *controllerv1.FollowMetadataRequest, 2)}
		stream.requests <- &controllerv1.FollowMetadataRequest{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, Id: 2, AcksOnly: true}
		ended := make(chan error, 1)
		server := &Server{Feed: s.feed, Acks: s.acks, InContact: s.contact.Load, IsActive: s.active.Load, Stopping: s.stop}
		go func() { ended <- server.Serve(stream) }()
		stream.requests <- &controllerv1.FollowMetadataRequest{AppliedOffset: 0, Relayed: []*controllerv1.FollowerAck{
			{Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, Id: 7, MemberEpoch: 3, AppliedOffset: 9},
		}}
		synctest.Wait()
		offer(t, s.feed, configBatch(1, 1, 1))
		<-time.After(time.Second)
		if ack, _ := s.acks.Get(Follower{Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, ID: 7}); ack.Offset != 9 || ack.Epoch != 3 {
			t.Fatalf("%+v", ack)
		}
		if ack, _ := s.acks.Get(Follower{Kind: controllerv1.ServiceKind_SERVICE_KIND_CONTROLLER, ID: 2}); ack.CaughtUp.IsZero() {
			t.Fatalf("%+v", ack)
		}
		stream.mu.Lock()
		for _, m := range stream.sent {
			if m.GetHeartbeat() == nil {
				t.Errorf("sent %v", m)
			}
		}
		stream.mu.Unlock()
		close(stream.requests)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		cancel()
	})
}

func TestSlowFollowerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t)
		offer(t, s.feed, configBatch(0, 1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream := &rawStream{ctx: ctx, requests: make(chan *controllerv1.FollowMetadataRequest, 1), block: make(chan struct{})}
		stream.requests <- &controllerv1.FollowMetadataRequest{LastEpoch: -1}
		ended := make(chan error, 1)
		server := &Server{Feed: s.feed, Acks: s.acks, InContact: s.contact.Load, IsActive: s.active.Load, Stopping: s.stop}
		go func() { ended <- server.Serve(stream) }()
		synctest.Wait()
		s.feed.limit = 1
		for base := int64(1); base < 10; base++ {
			offer(t, s.feed, configBatch(base, 1, 1))
		}
		close(stream.block)
		if err := <-ended; err == nil {
			t.Fatal("a follower that is too far behind goes on")
		}
	})
}

func TestStandbyDoesNotTakeFollowersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t)
		offer(t, s.feed, configBatch(0, 1, 1))
		server := &Server{Feed: s.feed, Acks: s.acks, InContact: s.contact.Load, IsActive: s.active.Load, Stopping: s.stop}
		serve := func() (*rawStream, <-chan error) {
			stream := &rawStream{ctx: t.Context(), requests: make(chan *controllerv1.FollowMetadataRequest, 1)}
			stream.requests <- &controllerv1.FollowMetadataRequest{FromOffset: 2, LastEpoch: 1}
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(stream) }()
			return stream, ended
		}
		if _, ended := serve(); <-ended == nil {
			t.Fatal("a standby that is behind serves")
		}
		stream, ended := serve()
		synctest.Wait()
		offer(t, s.feed, configBatch(1, 1, 1))
		offer(t, s.feed, configBatch(2, 1, 1))
		synctest.Wait()
		stream.mu.Lock()
		batches := slices.DeleteFunc(slices.Clone(stream.sent), func(m *controllerv1.FollowMetadataResponse) bool { return m.GetHeartbeat() != nil })
		if len(batches) != 1 || batches[0].GetBatch().GetBaseOffset() != 2 {
			t.Errorf("sent %v", stream.sent)
		}
		stream.mu.Unlock()
		close(stream.requests)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

func TestOtherClustersAreRefused(t *testing.T) {
	s := newSetup(t)
	stream := &rawStream{ctx: t.Context(), requests: make(chan *controllerv1.FollowMetadataRequest, 1)}
	stream.requests <- &controllerv1.FollowMetadataRequest{ClusterId: "another"}
	server := &Server{Feed: s.feed, Acks: s.acks, InContact: s.contact.Load, IsActive: s.active.Load, Stopping: s.stop}
	if err := server.Serve(stream); err == nil {
		t.Fatal("a member of another cluster may follow")
	}
	stream.requests <- &controllerv1.FollowMetadataRequest{}
	server.Feed = New()
	if err := server.Serve(stream); err == nil {
		t.Fatal("a controller without metadata serves it")
	}
}
