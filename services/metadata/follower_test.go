package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/metarecord"
)

// fakeSource hands out streams that the test plays the controller of.
type fakeSource struct {
	opened chan *fakeStream
}

// fakeStream is the controller's side of a stream.
type fakeStream struct {
	ctx context.Context
	out chan *controllerv1.FollowMetadataResponse
	mu  sync.Mutex
	got []*controllerv1.FollowMetadataRequest
}

func (s *fakeSource) Open(ctx context.Context) (Stream, error) {
	stream := &fakeStream{ctx: ctx, out: make(chan *controllerv1.FollowMetadataResponse, 1000)}
	select {
	case s.opened <- stream:
		return stream, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *fakeStream) Send(m *controllerv1.FollowMetadataRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, m)
	return s.ctx.Err()
}

func (s *fakeStream) Recv() (*controllerv1.FollowMetadataResponse, error) {
	select {
	case m, ok := <-s.out:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// first is the follower's first message; acks are the offsets of the later ones.
func (s *fakeStream) first() *controllerv1.FollowMetadataRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[0]
}

func (s *fakeStream) acks() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var offsets []int64
	for _, m := range s.got[1:] {
		offsets = append(offsets, m.GetAppliedOffset())
	}
	return offsets
}

func (s *fakeStream) snapshot(cluster string, offset int64, epoch int32, records ...metarecord.Record) {
	s.out <- &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotBegin{
		SnapshotBegin: &controllerv1.SnapshotBegin{ClusterId: cluster, Offset: offset, Epoch: epoch}}}
	for _, frame := range metarecord.EncodeAll(records) {
		s.out <- &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotChunk{
			SnapshotChunk: &controllerv1.SnapshotChunk{Records: [][]byte{frame}}}}
	}
	s.out <- &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_SnapshotEnd{SnapshotEnd: &controllerv1.SnapshotEnd{}}}
}

func (s *fakeStream) batch(base int64, epoch int32, records ...metarecord.Record) {
	s.out <- &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_Batch{
		Batch: &controllerv1.Batch{BaseOffset: base, Epoch: epoch, Records: metarecord.EncodeAll(records)}}}
}

func (s *fakeStream) heartbeat(highWatermark int64) {
	s.out <- &controllerv1.FollowMetadataResponse{Event: &controllerv1.FollowMetadataResponse_Heartbeat{
		Heartbeat: &controllerv1.Heartbeat{ActiveControllerId: 7, ActiveControllerAddress: "h:1", Epoch: 3, HighWatermark: highWatermark}}}
}

func feature(name string, level int16) metarecord.Record {
	return &metarecord.FeatureLevelRecord{Name: name, FeatureLevel: level}
}

// publications records what a publisher was told, as "offset+features".
type publications struct {
	mu   sync.Mutex
	seen []string
	// block, when it is set, is waited for in each call.
	block chan struct{}
}

func (p *publications) Publish(ctx context.Context, d *Delta, i *Image) {
	if p.block != nil {
		select {
		case <-p.block:
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprintf("%d>%d", d.Base().Offset(), i.Offset()))
}

func (p *publications) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.seen, " ")
}

// follow runs a test with a started follower in a bubble with fake time.
func follow(t *testing.T, change func(*Config), test func(t *testing.T, f *Follower, source *fakeSource)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		source := &fakeSource{opened: make(chan *fakeStream)}
		c := Config{Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, ID: 4, Source: source, Logger: slog.New(slog.DiscardHandler)}
		if change != nil {
			change(&c)
		}
		f := NewFollower(c)
		if err := f.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, f, source)
		if err := f.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestFollow(t *testing.T) {
	follow(t, func(c *Config) { c.MemberEpoch = func() int64 { return 11 } }, func(t *testing.T, f *Follower, source *fakeSource) {
		p := &publications{}
		f.Subscribe(p)
		if f.Ready() == nil || f.Image().Offset() != -1 || f.ActiveController().ID != -1 {
			t.Error("ready before the first image")
		}
		s := <-source.opened
		synctest.Wait()
		if m := s.first(); m.GetFromOffset() != 0 || m.GetLastEpoch() != -1 || m.GetId() != 4 || m.GetMemberEpoch() != 11 {
			t.Errorf("first message %v", m)
		}
		s.snapshot("c", 9, 2, feature("a", 1), feature("b", 1))
		synctest.Wait()
		if f.Ready() == nil {
			t.Error("ready before the high watermark is known")
		}
		s.heartbeat(10)
		synctest.Wait()
		if f.Ready() == nil {
			t.Error("ready before the high watermark is reached")
		}
		s.batch(10, 2, feature("a", 2))
		s.heartbeat(10)
		if err := f.AwaitReady(t.Context()); err != nil || f.Ready() != nil {
			t.Errorf("not ready: %v", err)
		}
		if a := f.ActiveController(); a != (ActiveController{7, "h:1", 3}) {
			t.Errorf("active controller %+v", a)
		}
		done := make(chan error)
		go func() { done <- f.Await(t.Context(), 12) }()
		synctest.Wait()
		s.batch(11, 3, feature("a", 3), feature("b", 0))
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if f.Image().FeatureLevel("a") != 3 || f.Image().ClusterID() != "c" || f.Image().Epoch() != 3 {
			t.Errorf("features %v", f.Image().Features())
		}
		if got := p.String(); got != "-1>9 9>10 10>12" {
			t.Errorf("published %s", got)
		}
		if got := s.acks(); !slices.Equal(got, []int64{9, 10, 12}) {
			t.Errorf("acknowledged %v", got)
		}
		f.Acknowledge()
		synctest.Wait()
		if got := s.acks(); !slices.Equal(got, []int64{9, 10, 12, 12}) {
			t.Errorf("acknowledged %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Await(ctx, 13); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("awaited what never came: %v", err)
		}
	})
}

func TestFollowLateSubscriber(t *testing.T) {
	follow(t, nil, func(t *testing.T, f *Follower, source *fakeSource) {
		s := <-source.opened
		s.snapshot("c", 9, 2, feature("a", 1))
		s.batch(10, 2, feature("b", 1))
		synctest.Wait()
		p := &publications{}
		f.Subscribe(p)
		synctest.Wait()
		s.batch(11, 2, feature("c", 1))
		synctest.Wait()
		if got := p.String(); got != "-1>10 10>11" {
			t.Errorf("published %s", got)
		}
	})
}

func TestFollowGoesToAnotherController(t *testing.T) {
	follow(t, nil, func(t *testing.T, f *Follower, source *fakeSource) {
		s := <-source.opened
		s.snapshot("c", 9, 2, feature("a", 1))
		s.batch(10, 5, feature("b", 1))
		synctest.Wait()
		began := time.Now()
		for range 10 {
			time.Sleep(500 * time.Millisecond) //nolint:forbidigo // fake time
			s.heartbeat(10)
		}
		// Heartbeats keep the stream; after the last one it is given up.
		s = <-source.opened
		if waited := time.Since(began); waited < 7*time.Second || waited > 8*time.Second {
			t.Errorf("another controller after %s", waited)
		}
		synctest.Wait()
		if m := s.first(); m.GetFromOffset() != 11 || m.GetLastEpoch() != 5 {
			t.Errorf("first message %v", m)
		}
		s.batch(11, 5, feature("c", 1))
		synctest.Wait()
		if got := s.acks(); !slices.Equal(got, []int64{11}) {
			t.Errorf("acknowledged %v", got)
		}
		// A stream that ends is replaced soon.
		close(s.out)
		began = time.Now()
		s = <-source.opened
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("another stream after %s", waited)
		}
		synctest.Wait()
		if m := s.first(); m.GetFromOffset() != 12 {
			t.Errorf("first message %v", m)
		}
		s.heartbeat(11)
		synctest.Wait()
		if got := s.acks(); !slices.Equal(got, []int64{11}) {
			t.Errorf("acknowledged %v", got)
		}
	})
}

func TestFollowBadBatches(t *testing.T) {
	for what, bad := range map[string]func(*fakeStream){
		"gap":            func(s *fakeStream) { s.batch(12, 2, feature("x", 1)) },
		"old epoch":      func(s *fakeStream) { s.batch(11, 1, feature("x", 1)) },
		"does not fit":   func(s *fakeStream) { s.batch(11, 2, feature("x", 1), &metarecord.RemoveTopicRecord{}) },
		"broken records": func(s *fakeStream) { s.batch(11, 2); s.batch(11, 2, &metarecord.TopicRecord{}) },
	} {
		t.Run(what, func(t *testing.T) {
			follow(t, nil, func(t *testing.T, f *Follower, source *fakeSource) {
				p := &publications{}
				f.Subscribe(p)
				s := <-source.opened
				s.snapshot("c", 9, 2, feature("a", 1), feature("b", 1))
				s.batch(10, 2, feature("c", 1))
				synctest.Wait()
				bad(s)
				s.batch(12, 2, feature("x", 1))
				s = <-source.opened
				synctest.Wait()
				if m := s.first(); m.GetFromOffset() != 0 {
					t.Errorf("first message %v", m)
				}
				if f.Image().FeatureLevel("x") != 0 {
					t.Error("part of a bad batch is to be seen")
				}
				// An older snapshot is no help, a newer one is.
				s.snapshot("c", 8, 2)
				s = <-source.opened
				s.snapshot("c", 20, 2, feature("a", 1), feature("y", 1))
				s.batch(21, 2, feature("z", 1))
				synctest.Wait()
				features := f.Image().Features()
				if len(features) != 3 || features["y"] != 1 || f.Image().Offset() != 21 {
					t.Errorf("features %v at %d", features, f.Image().Offset())
				}
				if got := p.String(); got != "-1>9 9>10 10>20 20>21" {
					t.Errorf("published %s", got)
				}
			})
		})
	}
}

func TestFollowAnotherCluster(t *testing.T) {
	follow(t, func(c *Config) { c.ClusterID = "mine" }, func(t *testing.T, f *Follower, source *fakeSource) {
		s := <-source.opened
		s.snapshot("theirs", 9, 2, feature("a", 1))
		if err := <-f.Failed(); err == nil || !strings.Contains(err.Error(), "cluster theirs") {
			t.Errorf("failed with %v", err)
		}
		if f.Image().Offset() != -1 {
			t.Error("the image of another cluster was taken")
		}
	})
}

func TestFollowSlowPublisher(t *testing.T) {
	follow(t, nil, func(t *testing.T, f *Follower, source *fakeSource) {
		p := &publications{block: make(chan struct{})}
		f.Subscribe(p)
		s := <-source.opened
		s.snapshot("c", 9, 2, feature("a", 1))
		synctest.Wait()
		// A publisher that takes long does not make the controller look silent, even when the queue is full.
		for n := range int64(200) {
			s.batch(10+n, 2, feature("b", int16(1+n)))
		}
		time.Sleep(10 * silenceLimit) //nolint:forbidigo // fake time
		if f.Image().Offset() != -1 || len(s.acks()) != 0 {
			t.Error("an image is to be seen that the publisher has not finished with")
		}
		close(p.block)
		synctest.Wait()
		if f.Image().Offset() != 209 {
			t.Errorf("image at %d", f.Image().Offset())
		}
		// What waited was published in few steps, and the last of it acknowledged.
		if got := p.String(); strings.Count(got, ">") > 20 || !strings.HasSuffix(got, ">209") {
			t.Errorf("published %s", got)
		}
		if acks := s.acks(); len(acks) == 0 || acks[len(acks)-1] != 209 || len(acks) > 20 {
			t.Errorf("acknowledged %v", acks)
		}
	})
}

func TestFollowTransaction(t *testing.T) {
	follow(t, nil, func(t *testing.T, f *Follower, source *fakeSource) {
		s := <-source.opened
		s.snapshot("c", -1, -1)
		s.batch(0, 1, &metarecord.BeginTransactionRecord{}, feature("a", 1))
		synctest.Wait()
		if f.Image().Offset() != -1 || f.Image().FeatureLevel("a") != 0 {
			t.Error("half a transaction is to be seen")
		}
		// The rest comes over another stream.
		close(s.out)
		s = <-source.opened
		synctest.Wait()
		if m := s.first(); m.GetFromOffset() != 2 {
			t.Errorf("first message %v", m)
		}
		s.batch(2, 1, feature("b", 1), &metarecord.EndTransactionRecord{})
		synctest.Wait()
		if f.Image().Offset() != 3 || len(f.Image().Features()) != 2 {
			t.Errorf("features %v at %d", f.Image().Features(), f.Image().Offset())
		}
	})
}
