package coordinatorclient

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	commonv1 "chancery/proto/common/v1"
	coordinatorv1 "chancery/proto/coordinator/v1"
	"chancery/services/clients/instances"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
	"chancery/services/transport"
)

// fakeImage is an image with shards of groups and instances at local addresses.
type fakeImage struct {
	metadata.Reader
	offset int64
	owners []int32
	// members are the instances that are registered; their address is "local:" and their id.
	members []int32
}

func (i *fakeImage) Offset() int64 { return i.offset }

func (i *fakeImage) Shard(_ metadata.ShardKind, shard int32) metadata.Shard {
	return metadata.Shard{Owner: i.owners[shard]}
}

func (i *fakeImage) TopicByName(string) *metadata.Topic {
	return &metadata.Topic{Partitions: make([]*metadata.Partition, len(i.owners))}
}

func (i *fakeImage) Services(metadata.ServiceKind) []*metadata.Service {
	var out []*metadata.Service
	for _, id := range i.members {
		out = append(out, i.Service(metadata.Coordinator, id))
	}
	return out
}

func (i *fakeImage) Service(_ metadata.ServiceKind, id int32) *metadata.Service {
	for _, m := range i.members {
		if m == id {
			return &metadata.Service{ID: id, Endpoints: []metadata.Endpoint{{Name: metadata.GRPCEndpoint, Host: "local:" + strconv.Itoa(int(id))}}}
		}
	}
	return nil
}

// fakeCoordinator is one instance.
type fakeCoordinator struct {
	coordinatorv1.UnimplementedCoordinatorServer
	mu     sync.Mutex
	calls  int
	last   *coordinatorv1.HandleRequest
	answer func() error
	// takes is how long an answer takes.
	takes time.Duration
}

func (f *fakeCoordinator) Handle(ctx context.Context, req *coordinatorv1.HandleRequest) (*coordinatorv1.HandleResponse, error) {
	if f.takes > 0 {
		select {
		case <-time.After(f.takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.last = req
	if f.answer != nil {
		if err := f.answer(); err != nil {
			return nil, err
		}
	}
	return &coordinatorv1.HandleResponse{Reply: &commonv1.EnvelopeReply{Body: req.GetEnvelope().GetBody()}}, nil
}

// fixture is a client, the image that it sees, and two instances with the ids 1 and 2.
type fixture struct {
	client    *Client
	mu        sync.Mutex
	image     *fakeImage
	moved     chan struct{}
	instances map[int32]*fakeCoordinator
}

func newFixture(image *fakeImage) *fixture {
	f := &fixture{image: image, moved: make(chan struct{}), instances: map[int32]*fakeCoordinator{1: {}, 2: {}}}
	local := transport.NewLocal(transport.NewPool())
	coordinatorv1.RegisterCoordinatorServer(local.Channel("1"), f.instances[1])
	coordinatorv1.RegisterCoordinatorServer(local.Channel("2"), f.instances[2])
	f.client = New(instances.Config{Image: f.current, Await: f.await, Dialer: transport.NewDialer(transport.Options{}, local)})
	return f
}

func (f *fixture) current() metadata.Reader {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.image
}

func (f *fixture) await(ctx context.Context, offset int64) error {
	for {
		f.mu.Lock()
		image, moved := f.image, f.moved
		f.mu.Unlock()
		if image.offset >= offset {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fixture) move(image *fakeImage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.image = image
	close(f.moved)
	f.moved = make(chan struct{})
}

func envelope(key kmsg.Key) *commonv1.Envelope {
	return &commonv1.Envelope{ApiKey: int32(key), Body: []byte("body")}
}

func TestRoutesByTheImage(t *testing.T) {
	f := newFixture(&fakeImage{offset: 33, owners: []int32{1, 2}, members: []int32{1, 2}})
	for shard, owner := range map[int32]int32{0: 1, 1: 2} {
		reply, err := f.client.Handle(t.Context(), metadata.GroupShard, shard, envelope(kmsg.JoinGroup))
		if err != nil || string(reply.GetBody()) != "body" {
			t.Fatalf("got %v, %v", reply, err)
		}
		got := f.instances[owner].last
		if got.GetShard() != shard || got.GetKind() != coordinatorv1.ShardKind_SHARD_KIND_GROUP || got.GetEnvelope().GetMetadataOffset() != 33 {
			t.Errorf("shard %d: owner %d got %v", shard, owner, got)
		}
	}
}

func TestFollowsAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(&fakeImage{offset: 1, owners: []int32{-1}, members: []int32{1, 2}})
		f.instances[1].answer = func() error { return errcode.NotCoordinator.Err() }
		// First nobody owns the shard, then one who has already lost it, then the right one.
		time.AfterFunc(time.Second, func() { f.move(&fakeImage{offset: 2, owners: []int32{1}, members: []int32{1, 2}}) })
		time.AfterFunc(2*time.Second, func() { f.move(&fakeImage{offset: 3, owners: []int32{2}, members: []int32{1, 2}}) })
		start := time.Now()
		if _, err := f.client.Handle(t.Context(), metadata.GroupShard, 0, envelope(kmsg.JoinGroup)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("took %v", d)
		}
		if n := f.instances[1].calls; n == 0 || n > 10 {
			t.Errorf("the old owner was asked %d times", n)
		}
	})
}

func TestNoOwnerIsNotAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, image := range map[string]*fakeImage{
			"nobody owns the shard":       {owners: []int32{-1}, members: []int32{1}},
			"the owner is not registered": {owners: []int32{5}, members: []int32{1}},
			"the owner is not there":      {owners: []int32{6}, members: []int32{6}},
		} {
			f := newFixture(image)
			start := time.Now()
			_, err := f.client.Handle(t.Context(), metadata.GroupShard, 0, envelope(kmsg.JoinGroup))
			if errcode.Of(err) != errcode.CoordinatorNotAvailable || time.Since(start) > ownerWait+retryPauseMax {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start = time.Now()
			_, err = f.client.Handle(ctx, metadata.GroupShard, 0, envelope(kmsg.JoinGroup))
			if errcode.Of(err) != errcode.CoordinatorNotAvailable || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
			cancel()
		}
	})
}

func TestOutcomes(t *testing.T) {
	lost := func() error { return context.Canceled }
	for name, c := range map[string]struct {
		key   kmsg.Key
		first error
		want  errcode.Code
		calls int
	}{
		"the owner's own answer":       {kmsg.JoinGroup, errcode.CoordinatorLoadInProgress.Err(), errcode.CoordinatorLoadInProgress, 1},
		"lost, and not to be repeated": {kmsg.JoinGroup, lost(), errcode.CoordinatorNotAvailable, 1},
		"lost, and repeated":           {kmsg.OffsetCommit, lost(), errcode.None, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(&fakeImage{owners: []int32{1}, members: []int32{1}})
				first := c.first
				f.instances[1].answer = func() error {
					defer func() { first = nil }()
					return first
				}
				_, err := f.client.Handle(t.Context(), metadata.GroupShard, 0, envelope(c.key))
				if errcode.Of(err) != c.want || f.instances[1].calls != c.calls {
					t.Errorf("got %v after %d calls", err, f.instances[1].calls)
				}
			})
		})
	}
}

func TestHandleAll(t *testing.T) {
	f := newFixture(&fakeImage{owners: []int32{2, 1, 2, -1, 1}, members: []int32{1, 2}})
	replies, err := f.client.HandleAll(t.Context(), metadata.GroupShard, envelope(kmsg.ListGroups))
	if err != nil || len(replies) != 2 || f.instances[1].calls != 1 || f.instances[2].calls != 1 {
		t.Errorf("%d replies, %v", len(replies), err)
	}
	if f.instances[1].last.GetShard() != -1 {
		t.Errorf("asked for shard %d", f.instances[1].last.GetShard())
	}
	f.instances[2].answer = func() error { return errcode.CoordinatorLoadInProgress.Err() }
	if _, err := f.client.HandleAll(t.Context(), metadata.GroupShard, envelope(kmsg.ListGroups)); errcode.Of(err) != errcode.CoordinatorLoadInProgress {
		t.Errorf("got %v", err)
	}
}

func TestLocalInstancesAndUpdates(t *testing.T) {
	f := newFixture(&fakeImage{owners: []int32{1, 9}, members: []int32{1}})
	local := transport.NewLocal(transport.NewPool())
	here := &fakeCoordinator{}
	coordinatorv1.RegisterCoordinatorServer(local.Channel("x"), here)
	f.client.AddLocal(9, local.Channel("x"))
	for shard := range int32(2) {
		if _, err := f.client.Handle(t.Context(), metadata.GroupShard, shard, envelope(kmsg.Heartbeat)); err != nil {
			t.Fatal(err)
		}
	}
	if here.calls != 1 || f.client.instances.Connections() != 1 {
		t.Errorf("%d calls in the process, %d connections", here.calls, f.client.instances.Connections())
	}
	f.client.Update(&fakeImage{members: []int32{1}})
	if f.client.instances.Connections() != 1 {
		t.Error("the connection to a live instance was closed")
	}
	f.client.Update(&fakeImage{members: []int32{2}})
	if f.client.instances.Connections() != 0 {
		t.Error("the connection to an instance that is gone stays")
	}
	if err := f.client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.client.Handle(t.Context(), metadata.GroupShard, 0, envelope(kmsg.Heartbeat)); errcode.Of(err) != errcode.CoordinatorNotAvailable {
		t.Errorf("after the close: %v", err)
	}
}

// TestPausedOwner: an owner that has lost the shard and does not answer is not waited for; one that is about to answer is.
func TestPausedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			key   kmsg.Key
			takes time.Duration
			moves time.Duration
			by    int
			code  errcode.Code
			limit time.Duration
		}{
			{kmsg.OffsetCommit, time.Hour, 5 * time.Second, 2, errcode.None, 5*time.Second + movedGraceRepeatable},
			{kmsg.OffsetCommit, time.Hour, 100 * time.Millisecond, 2, errcode.None, moveLook + movedGraceRepeatable},
			{kmsg.JoinGroup, time.Hour, 5 * time.Second, 1, errcode.CoordinatorNotAvailable, 5*time.Second + movedGrace},
			{kmsg.JoinGroup, time.Hour, 100 * time.Millisecond, 1, errcode.CoordinatorNotAvailable, moveLook + movedGrace},
			{kmsg.JoinGroup, 5*time.Second + movedGrace - time.Second, 5 * time.Second, 1, errcode.None, 5*time.Second + movedGrace},
		} {
			f := newFixture(&fakeImage{offset: 33, owners: []int32{1}, members: []int32{1, 2}})
			f.instances[1].takes = x.takes
			go func() {
				<-time.After(x.moves)
				f.move(&fakeImage{offset: 34, owners: []int32{2}, members: []int32{1, 2}})
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			began := time.Now()
			_, err := f.client.Handle(ctx, metadata.GroupShard, 0, envelope(x.key))
			cancel()
			if errcode.Of(err) != x.code && (err != nil || x.code != errcode.None) || f.instances[2].calls != x.by-1 || time.Since(began) > x.limit {
				t.Errorf("%s: %v after %s, %d calls of the new owner", x.key.Name(), err, time.Since(began), f.instances[2].calls)
			}
		}
	})
}
