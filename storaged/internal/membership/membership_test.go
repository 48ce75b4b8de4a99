package membership

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

// fakeController answers as a script says.
type fakeController struct {
	mu        sync.Mutex
	down      bool
	forget    bool
	mustWait  int
	epoch     int64
	beats     []*kmsg.BrokerHeartbeatRequest
	registers []*kmsg.BrokerRegistrationRequest
}

func (c *fakeController) Request(_ context.Context, req kmsg.Request, _ controllerclient.Sender) (kmsg.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return nil, errors.New("down")
	}
	switch r := req.(type) {
	case *kmsg.BrokerRegistrationRequest:
		c.registers = append(c.registers, r)
		c.epoch += 10
		c.forget = false
		return &kmsg.BrokerRegistrationResponse{BrokerEpoch: c.epoch}, nil
	case *kmsg.BrokerHeartbeatRequest:
		c.beats = append(c.beats, r)
		resp := &kmsg.BrokerHeartbeatResponse{IsFenced: r.WantFence}
		if c.forget {
			resp.ErrorCode = int16(errcode.StaleBrokerEpoch)
		}
		if r.WantShutdown {
			c.mustWait--
			resp.ShouldShutdown = c.mustWait <= 0
		}
		return resp, nil
	}
	return nil, errors.New("unexpected request")
}

func (c *fakeController) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// pass lets fake time pass.
func pass(d time.Duration) { <-time.After(d) }

type fixture struct {
	member     *Member
	controller *fakeController
	mu         sync.Mutex
	applied    int64
}

func (f *fixture) apply(offset int64) {
	f.mu.Lock()
	f.applied = offset
	f.mu.Unlock()
	f.member.Nudge()
}

func start(t *testing.T) *fixture {
	f := &fixture{controller: &fakeController{}}
	none := func() []uuid.UUID { return nil }
	f.member = New(Config{
		NodeID:      1,
		ClusterID:   func() string { return "c" },
		Incarnation: uuid.Random(),
		Endpoints:   []metadata.Endpoint{{Name: metadata.GRPCEndpoint, Host: "h", Port: 1}},
		LogDirs:     func() []uuid.UUID { return []uuid.UUID{{2}, {1}} },
		OfflineDirs: none, Cordoned: none,
		PreviousEpoch: -1,
		Applied: func() int64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.applied
		},
		Registered: func(int64) {},
		Fatal:      func(err error) { t.Error(err) },
		Interval:   2 * time.Second,
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
	}, f.controller)
	f.member.Start(t.Context())
	t.Cleanup(f.member.Stop)
	return f
}

func TestUnfencedOnceItsRegistrationIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		synctest.Wait()
		if f.member.Epoch() != 10 || f.member.Ready() == nil {
			t.Fatalf("epoch %d, ready %v", f.member.Epoch(), f.member.Ready())
		}
		begin := time.Now()
		f.apply(10)
		synctest.Wait()
		if err := f.member.Ready(); err != nil || time.Since(begin) != 0 {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
		if dirs := f.controller.registers[0].LogDirs; dirs[0][0] != 1 || dirs[1][0] != 2 {
			t.Fatalf("directories are not sorted: %v", dirs)
		}
	})
}

func TestRegistersAnewWhenForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.apply(100)
		synctest.Wait()
		f.controller.set(func() { f.controller.forget = true })
		pass(2 * time.Second)
		synctest.Wait()
		if f.member.Epoch() != 20 || f.member.Ready() != nil {
			t.Fatalf("epoch %d, %v", f.member.Epoch(), f.member.Ready())
		}
		if a, b := f.controller.registers[0], f.controller.registers[1]; a.IncarnationID != b.IncarnationID {
			t.Fatal("the incarnation changed")
		}
	})
}

func TestControllerAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.apply(100)
		synctest.Wait()
		f.controller.set(func() { f.controller.down = true })
		pass(time.Minute)
		f.controller.set(func() { f.controller.down = false })
		pass(2 * time.Second)
		synctest.Wait()
		if f.member.Epoch() != 10 || f.member.Ready() != nil {
			t.Fatalf("epoch %d, %v", f.member.Epoch(), f.member.Ready())
		}
	})
}

func TestLeavesWhenTheControllerLetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.apply(100)
		synctest.Wait()
		f.controller.set(func() { f.controller.mustWait = 5 })
		begin := time.Now()
		if err := f.member.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 4*leavePause {
			t.Fatalf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.controller.set(func() { f.controller.mustWait = 1000 })
		if err := f.member.Leave(ctx); err != nil {
			t.Fatal("once let go, a member stays let go")
		}
	})
}

func TestLeavesWithoutAControllerAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.apply(100)
		synctest.Wait()
		f.controller.set(func() { f.controller.down = true })
		begin := time.Now()
		if err := f.member.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < leavePatience || took > 2*leavePatience {
			t.Fatalf("took %v", took)
		}
	})
}
