package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/controllerd/internal/control"
	"chancery/controllerd/internal/feed"
	"chancery/controllerd/internal/memlog"
	"chancery/controllerd/internal/metalog"
	controllerv1 "chancery/proto/controller/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/metarecord"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
)

const patience = 20 * time.Second

// running is a controller at work.
type running struct {
	*Controller
	cancel context.CancelFunc
	done   chan struct{}
}

func start(t *testing.T, store *memlog.Store, id int32) *running {
	t.Helper()
	c := New(Options{
		ID: id, Address: fmt.Sprintf("controller-%d:1", id), ClusterID: "cluster", Log: store.Node(id), Feed: feed.New(), Acks: feed.NewAcks(),
		Control:       control.Settings{Node: configdef.NewNode(nil), SessionTimeout: time.Minute, ControllerID: id},
		SnapshotBytes: 4 << 10, SnapshotInterval: time.Hour,
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{Controller: c, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		c.Run(ctx)
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.cancel()
	<-r.done
}

// registration makes a member out of a number, so that it can be found again.
func registration(n int32) func(*control.Manager) (control.Decision, error) {
	incarnation := uuid.Random()
	return func(m *control.Manager) (control.Decision, error) {
		return m.RegisterService(&controllerv1.RegisterServiceRequest{
			Kind: controllerv1.ServiceKind_SERVICE_KIND_GATEWAY, Id: n, IncarnationId: incarnation[:],
		})
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// checkLog checks what must hold for every log: no gap, no epoch that goes back.
func checkLog(t *testing.T, store *memlog.Store) {
	t.Helper()
	batches := store.Batches()
	for i, b := range batches {
		if i > 0 && (b.BaseOffset != batches[i-1].EndOffset() || b.Epoch < batches[i-1].Epoch) {
			t.Fatalf("batch at offset %d of epoch %d after %d of epoch %d", b.BaseOffset, b.Epoch, batches[i-1].EndOffset(), batches[i-1].Epoch)
		}
	}
}

// TestEveryAnswerIsTrue has two controllers take turns while answers and requests of the quorum are lost, and compares what
// callers were told with what the log holds: what was confirmed is there, what was refused is not.
func TestEveryAnswerIsTrue(t *testing.T) {
	for round := range uint64(20) {
		random := rand.New(rand.NewPCG(round, 1))
		store := memlog.NewStore()
		controllers := []*running{start(t, store, 1), start(t, store, 2)}
		var mu sync.Mutex
		store.SetFault(func() memlog.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch random.IntN(20) {
			case 0:
				return memlog.LostAnswer
			case 1:
				return memlog.LostRequest
			}
			return memlog.NoFault
		})
		store.Elect(1)
		confirmed, refused := map[int32]bool{}, map[int32]bool{}
		var callers sync.WaitGroup
		for n := range int32(200) {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := controllers[n%2].Do(ctx, 0, registration(n))
				for range 100 {
					if errcode.Of(err) != errcode.NotController {
						break
					}
					// What was refused may be tried again.
					<-time.After(time.Millisecond)
					_, err = controllers[n%2].Do(ctx, 0, registration(n))
				}
				mu.Lock()
				defer mu.Unlock()
				switch errcode.Of(err) {
				case errcode.None:
					confirmed[n] = true
				case errcode.NotController:
					refused[n] = true
				}
			})
			mu.Lock()
			pause, elect, leader := random.IntN(2), random.IntN(20), random.Int32N(2)+1
			mu.Unlock()
			if elect == 0 {
				store.Elect(leader)
			}
			if pause == 0 {
				<-time.After(time.Millisecond)
			}
		}
		callers.Wait()
		store.SetFault(nil)
		store.Elect(2)
		eventually(t, "controller 2 is active", controllers[1].IsActive)
		if _, err := controllers[1].Do(t.Context(), 0, registration(1000)); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		image := controllers[1].Feed.Image()
		for n := range confirmed {
			if image.Service(metadata.Gateway, n) == nil {
				t.Fatalf("round %d: %d was confirmed and is lost", round, n)
			}
		}
		for n := range refused {
			if image.Service(metadata.Gateway, n) != nil {
				t.Fatalf("round %d: %d was refused and is there", round, n)
			}
		}
		checkLog(t, store)
		eventually(t, "both controllers see the same", func() bool {
			return reflect.DeepEqual(dump(controllers[0].Feed.Image()), dump(controllers[1].Feed.Image()))
		})
		t.Logf("round %d: %d confirmed, %d refused", round, len(confirmed), len(refused))
		controllers[0].stop()
		controllers[1].stop()
	}
}

// dump is everything in an image.
func dump(i *metadata.Image) []string {
	var all []string
	for r := range i.Records() {
		all = append(all, string(metarecord.Encode(r)))
	}
	slices.Sort(all)
	return append(all, fmt.Sprint(i.Offset(), i.Epoch()))
}

func TestLeaderClaimsAgainAfterAFailedAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlog.NewStore()
		c := start(t, store, 1)
		store.Elect(1)
		eventually(t, "active", c.IsActive)
		for i, fault := range []memlog.Fault{memlog.LostRequest, memlog.LostAnswer} {
			var once sync.Once
			store.SetFault(func() (f memlog.Fault) {
				once.Do(func() { f = fault })
				return f
			})
			_, err := c.Do(t.Context(), 0, registration(int32(i)))
			if lost := fault == memlog.LostRequest; lost != (errcode.Of(err) == errcode.NotController) || !lost && err != nil {
				t.Fatalf("fault %d: got %v", fault, err)
			}
			begin := time.Now()
			eventually(t, "active again", func() bool {
				_, err := c.Do(t.Context(), 0, registration(int32(100+i)))
				return err == nil
			})
			if took := time.Since(begin); took > time.Second {
				t.Fatalf("active again only after %s", took)
			}
		}
		checkLog(t, store)
	})
}

func TestNothingUnseatsTheController(t *testing.T) {
	store := memlog.NewStore()
	c := start(t, store, 1)
	store.Elect(1)
	eventually(t, "active", c.IsActive)
	var broken func() (control.Decision, error)
	for name, decide := range map[string]func(*control.Manager) (control.Decision, error){
		"a decision that breaks off": func(*control.Manager) (control.Decision, error) { return broken() },
		"a record that does not fit": func(*control.Manager) (control.Decision, error) {
			return control.Decision{Records: []metarecord.Record{&metarecord.RemoveTopicRecord{TopicID: uuid.Random()}}}, nil
		},
		"an error": func(*control.Manager) (control.Decision, error) { return control.Decision{}, errors.New("no") },
	} {
		if _, err := c.Do(t.Context(), 0, decide); errcode.Of(err) != errcode.UnknownServerError {
			t.Fatalf("%s: got %v", name, err)
		}
	}
	if _, err := c.Do(t.Context(), 0, registration(1)); err != nil {
		t.Fatal(err)
	}
	if holder := c.Feed.State().Holder; holder.Epoch != 1 {
		t.Fatalf("epoch %d", holder.Epoch)
	}
}

func TestLargeDecisionIsATransaction(t *testing.T) {
	store := memlog.NewStore()
	c := start(t, store, 1)
	store.Elect(1)
	eventually(t, "active", c.IsActive)
	large := func(atomic bool, kind string) func(*control.Manager) (control.Decision, error) {
		return func(*control.Manager) (control.Decision, error) {
			d := control.Decision{Atomic: atomic}
			for i := range 3000 {
				value := fmt.Sprintf("%0500d", i)
				d.Records = append(d.Records, &metarecord.ConfigRecord{
					ResourceType: int8(metadata.ResourceGroup), ResourceName: fmt.Sprintf("%s-%d", kind, i), Name: "x", Value: &value,
				})
			}
			return d, nil
		}
	}
	before := len(store.Batches())
	for _, atomic := range []bool{true, false} {
		if _, err := c.Do(t.Context(), 0, large(atomic, fmt.Sprint(atomic))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(store.Batches()) - before; n < 4 {
		t.Fatalf("%d batches, want several", n)
	}
	for _, b := range store.Batches() {
		if size := sizeOf(b.Records); size > 1<<20 {
			t.Fatalf("a batch of %d bytes", size)
		}
	}
	if n := len(c.Feed.Image().ConfigResources(metadata.ResourceGroup)); n != 6000 {
		t.Fatalf("%d resources", n)
	}
	checkLog(t, store)
}

// TestFailoverInATransaction plays a controller that dies while a large change is half in the log.
func TestFailoverInATransaction(t *testing.T) {
	store := memlog.NewStore()
	first := start(t, store, 1)
	store.Elect(1)
	eventually(t, "active", first.IsActive)
	if _, err := first.Do(t.Context(), 0, registration(1)); err != nil {
		t.Fatal(err)
	}
	first.stop()
	term, err := store.Node(1).Claim(t.Context(), "x:1")
	if err != nil {
		t.Fatal(err)
	}
	half := metarecord.EncodeAll([]metarecord.Record{&metarecord.BeginTransactionRecord{},
		&metarecord.UnregisterServiceRecord{Kind: int8(metadata.Gateway), ID: 1, Epoch: first.Feed.Image().Service(metadata.Gateway, 1).Epoch}})
	if err := term.Append(t.Context(), metalog.Batch{BaseOffset: term.EndOffset(), Epoch: term.Epoch(), Records: half}); err != nil {
		t.Fatal(err)
	}
	second := start(t, store, 2)
	store.Elect(2)
	eventually(t, "active", second.IsActive)
	if _, err := second.Do(t.Context(), 0, registration(2)); err != nil {
		t.Fatal(err)
	}
	image := second.Feed.Image()
	if image.Service(metadata.Gateway, 1) == nil || image.Service(metadata.Gateway, 2) == nil {
		t.Fatal("half a transaction took effect")
	}
}

func TestRestartFindsEverything(t *testing.T) {
	store := memlog.NewStore()
	c := start(t, store, 1)
	store.Elect(1)
	eventually(t, "active", c.IsActive)
	for n := range int32(300) {
		if _, err := c.Do(t.Context(), 0, registration(n)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a snapshot", func() bool {
		_, err := store.Node(1).Snapshot(t.Context())
		return err == nil && store.Batches()[0].BaseOffset > 0
	})
	want := dump(c.Feed.Image())
	c.stop()
	again := start(t, store, 1)
	eventually(t, "the same image", func() bool { return slices.Equal(dump(again.Feed.Image()), want) })
}

func TestConcurrentRequestsShareAppends(t *testing.T) {
	store := memlog.NewStore()
	c := start(t, store, 1)
	store.Elect(1)
	eventually(t, "active", c.IsActive)
	before := len(store.Batches())
	var callers sync.WaitGroup
	var firsts sync.Map
	for range 500 {
		callers.Go(func() {
			allocate := func() (Answer, error) {
				return c.Do(t.Context(), 0, func(m *control.Manager) (control.Decision, error) {
					req := kmsg.NewPtrAllocateProducerIDsRequest()
					req.BrokerID, req.BrokerEpoch = -1, -1
					return m.AllocateProducerIDs(req, true), nil
				})
			}
			answer, err := allocate()
			// A controller between two terms says that it is none; whoever asks does so again, as all clients do.
			for errcode.Of(err) == errcode.NotController && t.Context().Err() == nil {
				runtime.Gosched()
				answer, err = allocate()
			}
			if err != nil {
				t.Error(err)
				return
			}
			if _, twice := firsts.LoadOrStore(answer.Reply.(*kmsg.AllocateProducerIDsResponse).ProducerIDStart, true); twice {
				t.Error("a block was given twice")
			}
		})
	}
	callers.Wait()
	t.Logf("500 requests in %d batches", len(store.Batches())-before)
}
