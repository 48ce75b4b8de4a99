package statemachine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"chancery/services/kafka/errcode"
	"chancery/services/kafka/recordbatch"
)

// register is a machine with one number, to which commands add. Its durable value is what reads see.
type register struct {
	newest, durable int
	parked          []Ticket
	due             time.Time
}

type add struct {
	by int
	// park leaves the caller without an answer until the next tick.
	park bool
	// read asks for the durable value, without a record.
	read bool
	many int
	// wait asks for the newest value, when it is durable, without a record.
	wait bool
	// pad makes the record larger.
	pad int
}

type sum struct{ by, pad int }

type effects = Effects[sum, int]

func (m *register) Decide(now time.Time, t Ticket, c add, out *effects) {
	switch {
	case c.park:
		m.parked = append(m.parked, t)
		m.due = now.Add(time.Minute)
	case c.read:
		out.AnswerNow(t, m.durable)
	case c.wait:
		out.Answer(t, m.newest)
	case c.many > 0:
		out.Split()
		for range c.many {
			out.Append(sum{c.by, c.pad})
		}
		out.Answer(t, m.newest+c.many*c.by)
	default:
		out.Append(sum{c.by, c.pad})
		out.Answer(t, m.newest+c.by)
	}
}

func (m *register) Apply(r sum) { m.newest += r.by }

func (m *register) Commit(_ time.Time, _ int64, r sum, _ *effects) { m.durable += r.by }

func (m *register) Rollback(_ time.Time, _ []sum, _ []errcode.Code, _ *effects) { m.newest = m.durable }

func (m *register) Loaded(time.Time, *effects) {}

func (m *register) Due() time.Time { return m.due }

func (m *register) Tick(_ time.Time, out *effects) {
	m.due = time.Time{}
	for _, t := range m.parked {
		out.AnswerNow(t, -1)
	}
	m.parked = nil
}

type sumCodec struct{}

func (sumCodec) Encode(dst []byte, r sum) ([]byte, int, bool) {
	dst = append(dst, 'k')
	return append(fmt.Append(dst, r.by), strings.Repeat(" ", r.pad)...), len(dst), true
}

func (sumCodec) Decode(_ recordbatch.Header, r *recordbatch.Record) (sum, bool, error) {
	if string(r.Key) != "k" {
		return sum{}, false, nil
	}
	var s sum
	_, err := fmt.Sscan(string(r.Value), &s.by)
	return s, true, err
}

// fakeLog is a log in memory whose appends end as the test says.
type fakeLog struct {
	mu      sync.Mutex
	batches [][]byte
	end     int64
	loads   int
	// outcome decides about an append: nil writes it. It may block.
	outcome func() error
	loadErr error
	gate    chan struct{}
	// limit is the largest batch that it takes; 0 for none.
	limit int
}

func (l *fakeLog) Load(ctx context.Context, each func(recordbatch.Header, *recordbatch.Record) error) (int64, error) {
	if l.gate != nil {
		select {
		case <-l.gate:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loads++
	if l.loadErr != nil {
		return 0, l.loadErr
	}
	for _, b := range l.batches {
		records := recordbatch.RecordsOf(b)
		for records.Next() {
			if err := each(recordbatch.Header(b), records.Record()); err != nil {
				return 0, err
			}
		}
	}
	return l.end, nil
}

func (l *fakeLog) Append(_ context.Context, batches [][]byte, end int64, done func(int64, error)) {
	go func() {
		var err error
		if l.outcome != nil {
			err = l.outcome()
		}
		l.mu.Lock()
		base := l.end
		if err == nil && end != base {
			err = ErrOutcomeUnknown
		}
		for _, b := range batches {
			if err == nil && l.limit > 0 && len(b) > l.limit {
				err = errcode.MessageTooLarge.Err()
			}
		}
		for _, b := range batches {
			if err == nil {
				l.write(b)
			}
		}
		l.mu.Unlock()
		done(base, err)
	}()
}

func (l *fakeLog) write(batch []byte) {
	recordbatch.Header(batch).SetBaseOffset(l.end)
	l.batches = append(l.batches, batch)
	l.end += int64(recordbatch.Header(batch).Count())
}

func newTestShard(l *fakeLog) *Shard[add, sum, int] {
	return NewShard(Config[add, sum, int]{
		Name:           "test-0",
		New:            func() Machine[add, sum, int] { return &register{} },
		Codec:          sumCodec{},
		Log:            l,
		MaxBatchBytes:  400,
		MaxQueuedBytes: 1000,
		AnswerTimeout:  5 * time.Second,
		Logger:         slog.New(slog.DiscardHandler),
	})
}

func start(l *fakeLog) *Shard[add, sum, int] {
	s := newTestShard(l)
	s.Start()
	synctest.Wait()
	return s
}

func TestCommandsBecomeDurableInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := &fakeLog{outcome: func() error { <-gate; return nil }}
		s := start(l)
		defer s.Stop(t.Context())
		answers := make(chan int, 10)
		for range 5 {
			go func() {
				n, err := s.Do(t.Context(), add{by: 1})
				if err != nil {
					t.Error(err)
				}
				answers <- n
			}()
			synctest.Wait()
		}
		if n, _ := s.Do(t.Context(), add{read: true}); n != 0 || len(answers) != 0 {
			t.Fatalf("%d is seen, %d answered, and nothing is durable", n, len(answers))
		}
		gate <- struct{}{}
		synctest.Wait()
		if n, _ := s.Do(t.Context(), add{read: true}); n != 1 || len(answers) != 1 {
			t.Fatalf("%d is seen, %d answered", n, len(answers))
		}
		gate <- struct{}{}
		synctest.Wait()
		if n, _ := s.Do(t.Context(), add{read: true}); n != 5 || len(answers) != 5 {
			t.Fatalf("%d is seen, %d answered", n, len(answers))
		}
		if len(l.batches) != 2 || s.Stats().Batches.Load() != 2 {
			t.Fatalf("%d batches: what came during the first must go out together", len(l.batches))
		}
	})
}

func TestFailedAppendTakesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := make(chan error)
		l := &fakeLog{outcome: func() error { return <-failures }}
		s := start(l)
		defer s.Stop(t.Context())
		errs := make(chan error, 10)
		for range 2 {
			go func() {
				_, err := s.Do(t.Context(), add{by: 1})
				errs <- err
			}()
			synctest.Wait()
		}
		failures <- errcode.NotEnoughReplicas.Err()
		synctest.Wait()
		for range 2 {
			if err := <-errs; errcode.Of(err) != errcode.CoordinatorNotAvailable || errors.Is(err, ErrNotDecided) {
				t.Fatal(err)
			}
		}
		go func() { failures <- nil }()
		if n, err := s.Do(t.Context(), add{by: 1}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if l.loads != 1 {
			t.Fatalf("%d loads", l.loads)
		}
	})
}

// TestWhoWritesTooMuchFailsAlone: those whose commands were decided before are served, and those after may come again.
func TestWhoWritesTooMuchFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := &fakeLog{limit: 400, outcome: func() error { <-gate; return nil }}
		s := start(l)
		defer s.Stop(t.Context())
		const first, before, much, waits, after = 0, 1, 2, 3, 4
		commands := []add{first: {by: 1}, before: {by: 1}, much: {by: 1, pad: 500}, waits: {wait: true}, after: {by: 1}}
		codes := make([]errcode.Code, len(commands))
		for i, c := range commands {
			go func() {
				_, err := s.Do(t.Context(), c)
				codes[i] = errcode.Of(err)
			}()
			synctest.Wait()
		}
		for range 3 {
			gate <- struct{}{}
			synctest.Wait()
		}
		want := []errcode.Code{first: errcode.None, before: errcode.None, much: errcode.UnknownServerError,
			waits: errcode.CoordinatorNotAvailable, after: errcode.CoordinatorNotAvailable}
		if !slices.Equal(codes, want) {
			t.Fatalf("%v, want %v", codes, want)
		}
		go func() { gate <- struct{}{} }()
		if n, err := s.Do(t.Context(), add{by: 1}); n != 3 || err != nil {
			t.Fatal(n, err)
		}
	})
}

func TestUnknownOutcomeLoadsAnew(t *testing.T) {
	for _, written := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLog{}
			s := start(l)
			defer s.Stop(t.Context())
			if n, err := s.Do(t.Context(), add{by: 1}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			l.outcome = func() error {
				if written {
					l.mu.Lock()
					defer l.mu.Unlock()
					b := recordbatch.NewBuilder(nil, recordbatch.NewOptions())
					b.Append(0, []byte("k"), []byte("10"))
					batch, err := b.Build()
					if err != nil {
						return err
					}
					l.write(batch)
				}
				return ErrOutcomeUnknown
			}
			l.gate = make(chan struct{})
			if _, err := s.Do(t.Context(), add{by: 10}); errcode.Of(err) != errcode.CoordinatorNotAvailable {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.CoordinatorLoadInProgress || !errors.Is(err, ErrNotDecided) {
				t.Fatal(err)
			}
			l.outcome = nil
			close(l.gate)
			synctest.Wait()
			want := 2
			if written {
				want = 12
			}
			if n, err := s.Do(t.Context(), add{by: 1}); n != want || err != nil {
				t.Fatal(n, err)
			}
		})
	}
}

func TestFencedShardEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLog{outcome: func() error { return ErrFenced }}
		s := start(l)
		parked := make(chan error, 1)
		go func() {
			_, err := s.Do(t.Context(), add{park: true})
			parked <- err
		}()
		synctest.Wait()
		_, err := s.Do(t.Context(), add{by: 1})
		if errcode.Of(err) != errcode.NotCoordinator || errors.Is(err, ErrNotDecided) {
			t.Fatal(err)
		}
		if err := <-parked; errcode.Of(err) != errcode.NotCoordinator {
			t.Fatal(err)
		}
		<-s.Done()
		if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.NotCoordinator || !errors.Is(err, ErrNotDecided) {
			t.Fatal(err)
		}
		s.Stop(t.Context())
	})
}

func TestStopBringsAppendsToTheirEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := start(&fakeLog{outcome: func() error { <-gate; return nil }})
		errs := make(chan error, 3)
		for _, c := range []add{{by: 1}, {by: 1}, {park: true}} {
			go func() {
				_, err := s.Do(t.Context(), c)
				errs <- err
			}()
			synctest.Wait()
		}
		stopped := make(chan struct{})
		go func() { s.Stop(t.Context()); close(stopped) }()
		synctest.Wait()
		if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.NotCoordinator || !errors.Is(err, ErrNotDecided) {
			t.Fatal(err)
		}
		gate <- struct{}{}
		gate <- struct{}{}
		<-stopped
		failed := 0
		for range 3 {
			if err := <-errs; err != nil {
				failed++
				if errcode.Of(err) != errcode.NotCoordinator || errors.Is(err, ErrNotDecided) {
					t.Fatal(err)
				}
			}
		}
		if failed != 1 {
			t.Fatalf("%d failed; only the one that was parked should", failed)
		}
	})
}

func TestStopDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := start(&fakeLog{outcome: func() error { <-gate; return nil }})
		go func() {
			if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.NotCoordinator {
				t.Error(err)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Stop(ctx)
		close(gate)
	})
}

func TestStopAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := newTestShard(&fakeLog{})
		never.Stop(t.Context())
		never.Start()
		<-never.Done()
		loading := start(&fakeLog{gate: make(chan struct{})})
		if loading.Serving() {
			t.Fatal("serves while it loads")
		}
		loading.Stop(t.Context())
		if _, err := loading.Do(t.Context(), add{}); errcode.Of(err) != errcode.NotCoordinator {
			t.Fatal(err)
		}
		broken := start(&fakeLog{loadErr: errors.New("broken")})
		<-broken.Done()
		broken.Stop(t.Context())
	})
}

func TestAnswersDoNotWaitForASilentLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := &fakeLog{outcome: func() error { <-gate; return nil }}
		s := start(l)
		defer s.Stop(t.Context())
		began := time.Now()
		if _, err := s.Do(t.Context(), add{by: 1}); errcode.Of(err) != errcode.CoordinatorNotAvailable {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 5*time.Second {
			t.Fatal(d)
		}
		close(gate)
		synctest.Wait()
		if n, _ := s.Do(t.Context(), add{read: true}); n != 1 {
			t.Fatalf("the record must become durable all the same: %d", n)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := start(&fakeLog{outcome: func() error { <-gate; return nil }})
		defer s.Stop(t.Context())
		refused := 0
		errs := make(chan error, 100)
		for range 100 {
			go func() {
				_, err := s.Do(t.Context(), add{by: 1})
				errs <- err
			}()
			synctest.Wait()
		}
		close(gate)
		for range 100 {
			if err := <-errs; err != nil {
				refused++
				if errcode.Of(err) != errcode.CoordinatorNotAvailable || !errors.Is(err, ErrNotDecided) {
					t.Fatal(err)
				}
			}
		}
		if refused == 0 || refused == 100 {
			t.Fatal(refused)
		}
		if n, _ := s.Do(t.Context(), add{read: true}); n != 100-refused {
			t.Fatalf("%d of %d", n, 100-refused)
		}
	})
}

func TestBatchesAreSplitWhereTheyMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLog{}
		s := start(l)
		defer s.Stop(t.Context())
		if n, err := s.Do(t.Context(), add{by: 1, many: 100}); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		if len(l.batches) < 3 {
			t.Fatalf("%d batches", len(l.batches))
		}
		for _, b := range l.batches {
			if len(b) > 400 {
				t.Fatalf("a batch of %d bytes", len(b))
			}
		}
	})
}

func TestTimersFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(&fakeLog{})
		defer s.Stop(t.Context())
		began := time.Now()
		if n, err := s.Do(t.Context(), add{park: true}); n != -1 || err != nil || time.Since(began) != time.Minute {
			t.Fatal(n, err, time.Since(began))
		}
	})
}

func TestCallerMayLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(&fakeLog{})
		defer s.Stop(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Do(ctx, add{park: true}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if !s.Tell(add{by: 3}) {
			t.Fatal("not told")
		}
		synctest.Wait()
		if n, _ := s.Do(t.Context(), add{read: true}); n != 3 {
			t.Fatal(n)
		}
	})
}

// framedCodec puts what is above 1000 into the transaction of producer by/1000, and ends it with what is below 0.
type framedCodec struct{ sumCodec }

func (framedCodec) Frame(r sum) Frame {
	switch {
	case r.by > 1000:
		return Frame{ProducerID: int64(r.by / 1000), ProducerEpoch: 3}
	case r.by < 0:
		return Frame{ProducerID: int64(-r.by), ProducerEpoch: 3, Control: true}
	}
	return PlainFrame()
}

// TestTransactionsHaveTheirOwnBatches: records of a transaction share batches with no others, a marker has one for itself,
// and all of them go out with one append.
func TestTransactionsHaveTheirOwnBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		l := &fakeLog{outcome: func() error { <-gate; return nil }}
		s := newTestShard(l)
		s.config.Codec = framedCodec{}
		s.Start()
		synctest.Wait()
		defer s.Stop(t.Context())
		for _, by := range []int{1, 2, 3, 7001, 7002, 8001, -7, 5} {
			if !s.Tell(add{by: by}) {
				t.Fatal("not told")
			}
			synctest.Wait()
		}
		gate <- struct{}{}
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		type batch struct {
			producer               int64
			transactional, control bool
			count                  int
			sequence               int32
		}
		var got []batch
		for _, b := range l.batches {
			h := recordbatch.Header(b)
			got = append(got, batch{h.ProducerID(), h.IsTransactional(), h.IsControl(), int(h.Count()), h.BaseSequence()})
		}
		want := []batch{{-1, false, false, 1, -1}, {-1, false, false, 2, -1}, {7, true, false, 2, 0}, {8, true, false, 1, 0},
			{7, true, true, 1, -1}, {-1, false, false, 1, -1}}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v", got)
		}
		if n, _ := s.Do(t.Context(), add{read: true}); n != 1+2+3+7001+7002+8001-7+5 {
			t.Fatal(n)
		}
	})
}

// TestCommandsTogether: commands that are handed over together follow one another and share a batch; those of a shard that does not
// serve are all refused.
func TestCommandsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &fakeLog{}
		s := start(l)
		replies, errs := s.DoEach(t.Context(), []add{{by: 1}, {by: 2}, {by: 3}})
		if !slices.Equal(replies, []int{1, 3, 6}) || errors.Join(errs...) != nil || len(l.batches) != 1 {
			t.Fatalf("%v, %v in %d batches", replies, errs, len(l.batches))
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if replies, errs = s.DoEach(ctx, []add{{by: 4}, {park: true}}); replies[0] != 10 || errs[0] != nil || !errors.Is(errs[1], context.Canceled) {
			t.Fatalf("%v, %v", replies, errs)
		}
		s.Stop(t.Context())
		_, errs = s.DoEach(t.Context(), []add{{by: 1}, {by: 2}})
		for _, err := range errs {
			if errcode.Of(err) != errcode.NotCoordinator || !errors.Is(err, ErrNotDecided) {
				t.Errorf("after the end: %v", err)
			}
		}
	})
}
