package control

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

const (
	gatewayKind     = controllerv1.ServiceKind_SERVICE_KIND_GATEWAY
	coordinatorKind = controllerv1.ServiceKind_SERVICE_KIND_COORDINATOR
)

func TestRegisterServiceRefused(t *testing.T) {
	w := newWorld(t, nil)
	epoch := w.registerService(gatewayKind, 1)
	w.beatService(gatewayKind, 1, epoch, false)
	incarnation := uuid.Random()
	for name, c := range map[string]struct {
		req  *controllerv1.RegisterServiceRequest
		want errcode.Code
	}{
		"storage node":      {&controllerv1.RegisterServiceRequest{Kind: controllerv1.ServiceKind_SERVICE_KIND_STORAGE, IncarnationId: incarnation[:]}, errcode.InvalidRequest},
		"no incarnation":    {&controllerv1.RegisterServiceRequest{Kind: gatewayKind}, errcode.InvalidRequest},
		"another cluster":   {&controllerv1.RegisterServiceRequest{Kind: gatewayKind, IncarnationId: incarnation[:], ClusterId: "x"}, errcode.InconsistentClusterId},
		"bad port":          {&controllerv1.RegisterServiceRequest{Kind: gatewayKind, IncarnationId: incarnation[:], Endpoints: []*controllerv1.Endpoint{{Port: 70000}}}, errcode.InvalidRequest},
		"id is taken":       {&controllerv1.RegisterServiceRequest{Kind: gatewayKind, Id: 1, IncarnationId: incarnation[:]}, errcode.DuplicateBrokerRegistration},
		"another kind":      {&controllerv1.RegisterServiceRequest{Kind: coordinatorKind, Id: 1, IncarnationId: incarnation[:]}, errcode.None},
		"without an origin": {&controllerv1.RegisterServiceRequest{Kind: gatewayKind, Id: 2, IncarnationId: incarnation[:]}, errcode.None},
	} {
		if _, err := w.m.RegisterService(c.req); errcode.Of(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want.Name())
		}
	}
}

func TestServiceLife(t *testing.T) {
	w := newWorld(t, nil)
	epoch := w.registerService(gatewayKind, 1)
	if s := w.m.Image().Service(metadata.Gateway, 1); s == nil || !s.Fenced || s.Epoch != epoch {
		t.Fatalf("%+v", s)
	}
	if r := w.beatService(gatewayKind, 1, epoch, false); r.GetFenced() || w.m.Image().Service(metadata.Gateway, 1).Fenced {
		t.Fatal("it is fenced though it has caught up")
	}
	w.silence()
	if s := w.m.Image().Service(metadata.Gateway, 1); s == nil || !s.Fenced {
		t.Fatal("it is silent and not fenced")
	}
	if r := w.beatService(gatewayKind, 1, epoch, false); r.GetFenced() {
		t.Fatal("it cannot come back")
	}
	w.silence()
	w.advance(2 * time.Minute)
	w.silence()
	if w.m.Image().Service(metadata.Gateway, 1) != nil {
		t.Fatal("it is never forgotten")
	}
	for _, c := range []struct {
		epoch int64
		want  errcode.Code
	}{{epoch, errcode.BrokerIdNotRegistered}} {
		_, err := w.m.ServiceHeartbeat(&controllerv1.ServiceHeartbeatRequest{Kind: gatewayKind, Id: 1, Epoch: c.epoch})
		if errcode.Of(err) != c.want {
			t.Fatal(err)
		}
	}
	epoch = w.registerService(gatewayKind, 1)
	if _, err := w.m.ServiceHeartbeat(&controllerv1.ServiceHeartbeatRequest{Kind: gatewayKind, Id: 1, Epoch: epoch - 1}); errcode.Of(err) != errcode.StaleBrokerEpoch {
		t.Fatal(err)
	}
	w.beatService(gatewayKind, 1, epoch, false)
	if r := w.beatService(gatewayKind, 1, epoch, true); !r.GetShouldShutdown() || w.m.Image().Service(metadata.Gateway, 1) != nil {
		t.Fatalf("%+v", r)
	}
}

// owners counts the shards of each owner, and checks that no epoch is 0 or goes back.
func (w *world) owners(kind metadata.ShardKind, before map[int32]metadata.Shard) map[int32]int {
	w.t.Helper()
	owners := map[int32]int{}
	for id, s := range w.m.Image().Shards() {
		if id.Kind != kind {
			continue
		}
		owners[s.Owner]++
		if b, ok := before[id.Shard]; ok && (s.Owner == b.Owner) != (s.Epoch == b.Epoch) || s.Epoch < before[id.Shard].Epoch || s.Epoch < 1 {
			w.t.Fatalf("shard %d went from %+v to %+v", id.Shard, before[id.Shard], s)
		}
	}
	return owners
}

func (w *world) shards(kind metadata.ShardKind) map[int32]metadata.Shard {
	all := map[int32]metadata.Shard{}
	for id, s := range w.m.Image().Shards() {
		if id.Kind == kind {
			all[id.Shard] = s
		}
	}
	return all
}

func (w *world) assign() {
	w.t.Helper()
	if w.m.ShardsChanged() {
		w.apply(w.m.AssignShards())
	}
}

func TestShards(t *testing.T) {
	t.Run("coordinators", func(t *testing.T) { testShards(t, coordinatorKind, metadata.GroupShard, "__consumer_offsets") })
	t.Run("tiering", func(t *testing.T) {
		testShards(t, controllerv1.ServiceKind_SERVICE_KIND_TIERING, metadata.RemoteLogShard, "__remote_log_metadata")
	})
}

func testShards(t *testing.T, members controllerv1.ServiceKind, shards metadata.ShardKind, topic string) {
	w := newWorld(t, nil)
	w.up(1)
	epochs := map[int32]int64{}
	join := func(id int32) {
		epochs[id] = w.registerService(members, id)
		w.assign()
		w.beatService(members, id, epochs[id], false)
		w.assign()
	}
	want := func(before map[int32]metadata.Shard, counts map[int32]int) {
		t.Helper()
		got := w.owners(shards, before)
		if len(got) != len(counts) {
			t.Fatalf("got %v, want %v", got, counts)
		}
		for id, n := range counts {
			if got[id] != n {
				t.Fatalf("got %v, want %v", got, counts)
			}
		}
	}
	join(1)
	w.mustCreate(newTopic(topic, 50, 1))
	w.assign()
	want(nil, map[int32]int{1: 50})
	before := w.shards(shards)
	join(2)
	want(before, map[int32]int{1: 25, 2: 25})
	w.assign()
	before = w.shards(shards)
	join(3)
	want(before, map[int32]int{1: 17, 2: 17, 3: 16})
	moved := 0
	for n, s := range w.shards(shards) {
		if s.Owner != before[n].Owner {
			moved++
			if s.Owner != 3 {
				t.Fatalf("shard %d moved from %d to %d for no need", n, before[n].Owner, s.Owner)
			}
		}
	}
	if moved != 16 {
		t.Fatalf("%d shards moved", moved)
	}

	// One that leaves gives its shards away first, and goes then.
	before = w.shards(shards)
	if r := w.beatService(members, 2, epochs[2], true); r.GetShouldShutdown() {
		t.Fatal("it may go at once")
	}
	w.assign()
	want(before, map[int32]int{1: 25, 3: 25})
	if r := w.beatService(members, 2, epochs[2], true); !r.GetShouldShutdown() {
		t.Fatal("it may not go")
	}
	w.assign()
	want(nil, map[int32]int{1: 25, 3: 25})

	// One that falls silent loses them when it is fenced.
	before = w.shards(shards)
	for range 5 {
		w.advance(2 * time.Second)
		w.beat(1, nil)
		w.beatService(members, 3, epochs[3], false)
	}
	w.fence()
	w.assign()
	want(before, map[int32]int{3: 50})

	// The last one leaves them to nobody.
	before = w.shards(shards)
	w.beatService(members, 3, epochs[3], true)
	want(before, map[int32]int{-1: 50})
	w.beatService(members, 3, epochs[3], true)
	before = w.shards(shards)
	join(4)
	want(before, map[int32]int{4: 50})

	// So does the end of the topic; epochs go on when it is made again.
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{topic}
	before = w.shards(shards)
	w.apply(w.m.DeleteTopics(req))
	w.assign()
	want(before, map[int32]int{-1: 50})
	before = w.shards(shards)
	w.mustCreate(newTopic(topic, 50, 1))
	w.assign()
	want(before, map[int32]int{4: 50})
	if w.m.ShardsChanged() || len(w.m.AssignShards().Records) != 0 {
		t.Fatal("there is always something to do")
	}
}

func TestRegisterControllerNeedsTrust(t *testing.T) {
	w := newWorld(t, nil)
	register := func(id int32, trusted bool) errcode.Code {
		req := kmsg.NewPtrControllerRegistrationRequest()
		req.ControllerID, req.IncarnationID = id, uuid.Random()
		return errcode.Code(w.apply(w.m.RegisterController(req, trusted)).(*kmsg.ControllerRegistrationResponse).ErrorCode)
	}
	if code := register(1, false); code != errcode.ClusterAuthorizationFailed {
		t.Fatal(code.Name())
	}
	if code := register(2, true); code != 0 || len(w.m.Image().Controllers()) != 1 {
		t.Fatal(code.Name())
	}
	unregister := kmsg.NewPtrUnregisterControllerRequest()
	unregister.ControllerID = 998
	if r := w.apply(w.m.UnregisterController(unregister)).(*kmsg.UnregisterControllerResponse); errcode.Code(r.ErrorCode) != errcode.ControllerIdNotRegistered {
		t.Fatalf("%+v", r)
	}
}

func TestServiceWhoseConnectionHasEnded(t *testing.T) {
	w := newWorld(t, nil)
	epoch := w.registerService(coordinatorKind, 1)
	fenced := func() bool {
		w.fence()
		return w.m.Image().Service(metadata.Coordinator, 1).Fenced
	}
	beat := func(connection string) {
		w.beatService(coordinatorKind, 1, epoch, false)
		w.m.Connected(metadata.Coordinator, 1, connection)
	}
	beat("first")
	beat("second")
	w.m.Disconnected(metadata.Coordinator, 1, "first")
	w.advance(2 * time.Second)
	if fenced() {
		t.Fatal("it is fenced though it has been heard on another connection since")
	}
	w.m.Disconnected(metadata.Coordinator, 1, "second")
	w.advance(reconnectTime / 2)
	beat("third")
	w.advance(2 * time.Second)
	if fenced() {
		t.Fatal("it is fenced though it has come back")
	}
	w.m.Disconnected(metadata.Coordinator, 1, "third")
	if due := w.m.NextExpiry(); due.IsZero() || due.After(w.now.Add(reconnectTime)) {
		t.Fatalf("the session ends at %s", due)
	}
	w.advance(reconnectTime + time.Millisecond)
	if !fenced() {
		t.Fatal("it is not fenced though its connection has ended")
	}
}
