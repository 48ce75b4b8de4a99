package controllerclient

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc"

	commonv1 "chancery/proto/common/v1"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/transport"
)

// fakeController is one controller of a quorum that a test plays.
type fakeController struct {
	controllerv1.UnimplementedControllerServer
	mu    sync.Mutex
	calls []string
	// answer is what every call gets; nil means success.
	answer func(ctx context.Context) error
	// beat answers heartbeats.
	beat  func(*controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error)
	epoch int64
}

func (f *fakeController) called(ctx context.Context, name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

func (f *fakeController) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

func (f *fakeController) set(answer func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeController) Handle(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error) {
	if err := f.called(ctx, "handle"); err != nil {
		return nil, err
	}
	if e.GetApiKey() == int32(kmsg.AllocateProducerIDs) {
		resp := kmsg.NewPtrAllocateProducerIDsResponse()
		resp.ProducerIDStart = 5000
		return &commonv1.EnvelopeReply{Body: resp.AppendTo(nil)}, nil
	}
	return &commonv1.EnvelopeReply{Body: e.GetBody(), MetadataOffset: 12}, nil
}

func (f *fakeController) RegisterService(ctx context.Context, _ *controllerv1.RegisterServiceRequest) (*controllerv1.RegisterServiceResponse, error) {
	if err := f.called(ctx, "register"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.epoch++
	return &controllerv1.RegisterServiceResponse{Epoch: f.epoch}, nil
}

func (f *fakeController) ServiceHeartbeat(ctx context.Context, req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
	if err := f.called(ctx, "heartbeat"); err != nil {
		return nil, err
	}
	return f.beat(req)
}

func (f *fakeController) FollowMetadata(s grpc.BidiStreamingServer[controllerv1.FollowMetadataRequest, controllerv1.FollowMetadataResponse]) error {
	return f.called(s.Context(), "follow")
}

func notActive(hint string) func(context.Context) error {
	return func(context.Context) error { return transport.WithHint(errcode.NotController.Err(), hint) }
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// quorum is controllers c1 to c3, of which a test makes some; the others do not answer a dial.
func quorum(t *testing.T, controllers map[string]*fakeController) *Client {
	t.Helper()
	local := transport.NewLocal(transport.NewPool())
	for name, c := range controllers {
		controllerv1.RegisterControllerServer(local.Channel(name), c)
	}
	client, err := New(Config{
		Targets: []string{"local:c1", "local:c2", "local:c3"},
		Dialer:  transport.NewDialer(transport.Options{}, local),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func createTopics() *commonv1.Envelope {
	return &commonv1.Envelope{ApiKey: int32(kmsg.CreateTopics), ApiVersion: 7, Body: []byte("body")}
}

func heartbeat() *commonv1.Envelope {
	return &commonv1.Envelope{ApiKey: int32(kmsg.BrokerHeartbeat), Body: []byte("body")}
}

func TestFindsTheActiveController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c2, c3 := &fakeController{answer: notActive("local:c3")}, &fakeController{}
		client := quorum(t, map[string]*fakeController{"c2": c2, "c3": c3})
		start := time.Now()
		for range 3 {
			reply, err := client.Handle(t.Context(), createTopics())
			if err != nil || string(reply.GetBody()) != "body" || reply.GetMetadataOffset() != 12 {
				t.Fatalf("got %v, %v", reply, err)
			}
		}
		if c2.count() != 1 || c3.count() != 3 {
			t.Errorf("c2 was asked %d times, c3 %d times", c2.count(), c3.count())
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("waited %v for an active controller that was there", d)
		}
	})
}

func TestWaitsForAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c1, c2 := &fakeController{answer: notActive("local:c2")}, &fakeController{answer: notActive("local:c1")}
		client := quorum(t, map[string]*fakeController{"c1": c1, "c2": c2})
		time.AfterFunc(2*time.Second, func() { c2.set(nil) })
		if _, err := client.Handle(t.Context(), createTopics()); err != nil {
			t.Fatal(err)
		}
		if n := c1.count() + c2.count(); n > 80 {
			t.Errorf("asked %d times in two seconds", n)
		}
	})
}

func TestAnswersAreFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c1 := &fakeController{answer: func(context.Context) error { return errcode.TopicAlreadyExists.Err() }}
		client := quorum(t, map[string]*fakeController{"c1": c1})
		if _, err := client.Handle(t.Context(), createTopics()); errcode.Of(err) != errcode.TopicAlreadyExists || c1.count() != 1 {
			t.Errorf("got %v after %d calls", err, c1.count())
		}
	})
}

func TestNothingIsRepeatedBlindly(t *testing.T) {
	lost := func(context.Context) error { return context.Canceled } // as from a controller that stops in the middle
	synctest.Test(t, func(t *testing.T) {
		c1, c2 := &fakeController{answer: lost}, &fakeController{}
		client := quorum(t, map[string]*fakeController{"c1": c1, "c2": c2})
		if _, err := client.Handle(t.Context(), createTopics()); errcode.Of(err) != errcode.NetworkException {
			t.Errorf("got %v", err)
		}
		if c1.count() != 1 || c2.count() != 0 {
			t.Error("a request that may have been carried out was repeated")
		}
		// The next one goes to another controller, and one that may be repeated goes on until it is answered.
		if _, err := client.Handle(t.Context(), createTopics()); err != nil {
			t.Error(err)
		}
		client.SetActive("local:c1")
		if _, err := client.Handle(t.Context(), heartbeat()); err != nil {
			t.Error(err)
		}
	})
}

func TestAControllerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c1, c2 := &fakeController{answer: hang}, &fakeController{}
		client := quorum(t, map[string]*fakeController{"c1": c1, "c2": c2})
		start := time.Now()
		if _, err := client.Handle(t.Context(), heartbeat()); err != nil || time.Since(start) != attemptTimeout {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
	})
}

func TestTheDeadlineHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := quorum(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err := client.Handle(ctx, createTopics())
		if errcode.Of(err) != errcode.RequestTimedOut || time.Since(start) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		if _, err = client.Handle(t.Context(), createTopics()); errcode.Of(err) != errcode.RequestTimedOut {
			t.Errorf("got %v", err)
		}
	})
}

func TestTypedRequest(t *testing.T) {
	client := quorum(t, map[string]*fakeController{"c1": {}})
	resp, err := client.Request(t.Context(), kmsg.NewPtrAllocateProducerIDsRequest(), Sender{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.(*kmsg.AllocateProducerIDsResponse).ProducerIDStart; got != 5000 {
		t.Errorf("got %d", got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Handle(t.Context(), createTopics()); errcode.Of(err) != errcode.NetworkException {
		t.Errorf("after the close: %v", err)
	}
}

func TestOpenGoesRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controllers := map[string]*fakeController{"c1": {}, "c2": {}, "c3": {}}
		client := quorum(t, controllers)
		for range 6 {
			if _, err := client.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for name, c := range controllers {
			if c.count() != 2 {
				t.Errorf("%s was followed %d times", name, c.count())
			}
		}
	})
}

func member(t *testing.T, c *fakeController) *Member {
	t.Helper()
	return NewMember(quorum(t, map[string]*fakeController{"c1": c}), MemberConfig{
		Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, ID: 7, AppliedOffset: func() int64 { return 42 }, Logger: slog.New(slog.DiscardHandler)})
}

func TestMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var beats []*controllerv1.ServiceHeartbeatRequest
		fenced, forgotten, hold := true, false, true
		c := &fakeController{beat: func(req *controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			beats = append(beats, req)
			if forgotten {
				forgotten = false
				return nil, errcode.StaleBrokerEpoch.Err()
			}
			return &controllerv1.ServiceHeartbeatResponse{Fenced: fenced, ShouldShutdown: !hold}, nil
		}}
		m := member(t, c)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if m.Ready() == nil || m.Epoch() != 1 {
			t.Errorf("fenced, but ready: %v, epoch %d", m.Ready(), m.Epoch())
		}
		mu.Lock()
		if len(beats) < 15 || beats[0].GetAppliedOffset() != 42 || beats[0].GetEpoch() != 1 {
			t.Errorf("while fenced it says so %d times: %v", len(beats), beats)
		}
		fenced, beats = false, nil
		mu.Unlock()
		if err := m.Await(t.Context()); err != nil || m.Ready() != nil {
			t.Errorf("%v, %v", err, m.Ready())
		}
		<-time.After(20 * time.Second)
		mu.Lock()
		if n := len(beats); n < 10 || n > 12 {
			t.Errorf("%d heartbeats in 20 s", n)
		}
		forgotten = true
		mu.Unlock()
		<-time.After(3 * time.Second)
		if m.Ready() != nil || m.Epoch() != 2 {
			t.Errorf("not back: %v, epoch %d", m.Ready(), m.Epoch())
		}
		time.AfterFunc(time.Second, func() { mu.Lock(); hold = false; mu.Unlock() })
		start := time.Now()
		if err := m.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("left after %v", d)
		}
		if m.Ready() == nil {
			t.Error("ready although it leaves")
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestMemberWaitsForAnEarlierIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeController{
			answer: func(context.Context) error { return errcode.DuplicateBrokerRegistration.Err() },
			beat: func(*controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
				return &controllerv1.ServiceHeartbeatResponse{ShouldShutdown: true}, nil
			},
		}
		m := member(t, c)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(9 * time.Second)
		c.set(nil)
		if err := m.Await(t.Context()); err != nil {
			t.Error(err)
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestMemberStopsWithoutControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeController{beat: func(*controllerv1.ServiceHeartbeatRequest) (*controllerv1.ServiceHeartbeatResponse, error) {
			return &controllerv1.ServiceHeartbeatResponse{}, nil
		}}
		m := member(t, c)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.Await(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.set(hang)
		start := time.Now()
		if err := m.Stop(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > leaveTimeout {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		never := member(t, &fakeController{answer: hang})
		if err := never.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := never.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
