package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"golang.org/x/sync/errgroup"

	"chancery/services/testkit"
)

// transactionVersions are the two ways in which clients write transactions: an older client adds partitions by itself and keeps
// its epoch, a newer one does neither (KIP-890).
func transactionVersions() map[string][]kgo.Opt {
	return map[string][]kgo.Opt{
		"version 1": {kgo.MaxVersions(kversion.V3_9_0())},
		"version 2": nil,
	}
}

// TestZombieIsFenced: of two producers with one transactional id the first can neither write nor commit, and nothing of its
// transaction is seen.
func TestZombieIsFenced(t *testing.T) {
	onEachShape(t, func(t *testing.T, c cluster) {
		for name, opts := range transactionVersions() {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
				defer cancel()
				topic := "zombie-" + strings.ReplaceAll(name, " ", "-") + "-" + strconv.Itoa(int(rand.Int32()))
				createTopics(ctx, t, admin(t, c.bootstrap), 3, c.replicas, nil, topic)
				opts := append([]kgo.Opt{kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic)}, opts...)
				first, second := newClient(t, c.bootstrap, opts...), newClient(t, c.bootstrap, opts...)
				produce := func(cl *kgo.Client, value string) error {
					if err := cl.BeginTransaction(); err != nil {
						return err
					}
					return cl.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr()
				}
				if err := produce(first, "zombie"); err != nil {
					t.Fatal(err)
				}
				if err := produce(second, "heir"); err != nil {
					t.Fatal(err)
				}
				err := first.EndTransaction(ctx, kgo.TryCommit)
				if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
					t.Fatalf("the first producer's commit: %v", err)
				}
				if err := second.EndTransaction(ctx, kgo.TryCommit); err != nil {
					t.Fatal(err)
				}
				awaitStable(ctx, t, admin(t, c.bootstrap), topic)
				if got := committedValues(ctx, t, c.bootstrap, topic); !slices.Equal(got, []string{"heir"}) {
					t.Fatalf("committed are %v", got)
				}
			})
		}
	})
}

// TestTransactionVersionIsAFeature: clients go by the finalized level of transaction.version, which can be changed either way.
func TestTransactionVersionIsAFeature(t *testing.T) {
	a := testkit.StartAll(t, testkit.AllOptions{})
	bootstrap := []string{a.Bootstrap}
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
	defer cancel()
	adm := admin(t, bootstrap)
	createTopics(ctx, t, adm, 2, 1, nil, "leveled")
	epochs := func() int16 {
		described, err := adm.DescribeTransactions(ctx, "leveled")
		if err == nil {
			err = described["leveled"].Err
		}
		if err != nil {
			t.Fatal(err)
		}
		return described["leveled"].ProducerEpoch
	}
	for i, level := range []int16{2, 1, 2} {
		if i > 0 {
			setTransactionVersion(ctx, t, bootstrap, level)
		}
		cl := newClient(t, bootstrap, kgo.TransactionalID("leveled"), kgo.DefaultProduceTopic("leveled"))
		var first int16
		for round := range int16(3) {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			if err := cl.ProduceSync(ctx, kgo.StringRecord(fmt.Sprintf("%d-%d", level, round))).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
				t.Fatal(err)
			}
			awaitStable(ctx, t, adm, "leveled")
			if round == 0 {
				first = epochs()
			}
		}
		want := first
		if level == 2 {
			want += 2
		}
		if got := epochs(); got != want {
			t.Errorf("at level %d the epoch went from %d to %d", level, first, got)
		}
		cl.Close()
	}
	if got := committedValues(ctx, t, bootstrap, "leveled"); len(got) != 9 {
		t.Fatalf("committed are %v", got)
	}
}

// setTransactionVersion raises transaction.version to 2 or lowers it to 1.
func setTransactionVersion(ctx context.Context, t *testing.T, bootstrap []string, level int16) {
	t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.TimeoutMillis = 10_000
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType = "transaction.version", level, 1
	if level < 2 {
		update.UpgradeType = 2 // a safe downgrade
	}
	req.FeatureUpdates = append(req.FeatureUpdates, update)
	resp, err := req.RequestWith(ctx, newClient(t, bootstrap))
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatalf("transaction.version to %d: %v", level, err)
	}
}

// committedValues reads what read_committed sees of a topic.
func committedValues(ctx context.Context, t *testing.T, bootstrap []string, topic string) []string {
	t.Helper()
	adm := admin(t, bootstrap)
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	cl := newClient(t, bootstrap, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	var values []string
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("what is committed in %s cannot be read to the end, %v is missing", topic, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	cl.Close()
	return values
}

// TestTransactionsWhileServicesDie kills every kind of process in turn, while sessions read, process and write in transactions, and
// writers commit and abort transactions over several partitions. In the end each input was processed once, and readers have
// seen each committed transaction whole, and nothing of an aborted or an open one. CHANCERY_E2E_ROUNDS=100 makes it a long one (-timeout 0).
func TestTransactionsWhileServicesDie(t *testing.T) {
	for name, opts := range transactionVersions() {
		t.Run(name, func(t *testing.T) {
			properties := maps.Clone(quickFencing)
			properties["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "1000"
			p := testkit.StartPlayground(t, testkit.PlaygroundOptions{Properties: properties})
			w := startTransactions(t, p, opts)
			for round := range number(t, "CHANCERY_E2E_ROUNDS", 1) {
				for _, process := range []string{
					fmt.Sprintf("storage-%d", round%3+1), fmt.Sprintf("coordinator-%d", round%2+1),
					fmt.Sprintf("gateway-%d", round%2+1), fmt.Sprintf("controller-%d", round%3+1),
				} {
					p.Kill(process)
					w.awaitProgress("the kill of " + process)
					p.Restart(process)
					if strings.HasPrefix(process, "storage") {
						awaitInSync(t, w.adm, "ledger")
						awaitInSync(t, w.adm, "output")
					}
				}
				// Who was paused comes back in the belief that nothing has changed.
				for _, process := range []string{fmt.Sprintf("coordinator-%d", round%2+1), fmt.Sprintf("storage-%d", round%3+1)} {
					p.Pause(process)
					w.awaitProgress("the pause of " + process)
					p.Resume(process)
					awaitInSync(t, w.adm, "ledger")
				}
			}
			w.finish()
		})
	}
}

// transactions is work in transactions.
type transactions struct {
	t       *testing.T
	p       *testkit.Playground
	opts    []kgo.Opt
	adm     *kadm.Client
	stop    context.CancelFunc
	workers errgroup.Group
	// The reader of the ledger goes on until everything has been read.
	stopReading context.CancelFunc
	readers     errgroup.Group

	mu sync.Mutex
	// inputs is how many input records there are, sessions, writes and relays how many transactions have ended well.
	inputs, sessions, writes, relays int
	ledger                           *ledger
}

type outcome int8

const (
	// open is for a transaction that its writer has not ended, unclear for one of whose end nothing is known.
	open outcome = iota
	unclear
	committed
	aborted
)

const (
	sessionsAtWork = 2
	writersAtWork  = 3
	relaysAtWork   = 2
)

func startTransactions(t *testing.T, p *testkit.Playground, opts []kgo.Opt) *transactions {
	w := &transactions{t: t, p: p, opts: opts, adm: admin(t, p.Bootstrap)}
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTime)
	defer cancel()
	two := map[string]*string{"min.insync.replicas": kadm.StringPtr("2")}
	createTopics(ctx, t, w.adm, 4, 3, two, "input", "output")
	createTopics(ctx, t, w.adm, ledgerPartition, 3, two, "ledger")
	var work context.Context
	work, w.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	w.ledger = newLedger(w)
	w.workers.Go(func() error { return w.feed(work) })
	var reading context.Context
	reading, w.stopReading = context.WithCancel(context.WithoutCancel(t.Context()))
	w.readers.Go(func() error { return w.again(reading, func() error { return w.ledger.read(reading, "the reader") }) })
	for n := range sessionsAtWork {
		w.workers.Go(func() error { return w.again(work, func() error { return w.session(work, n) }) })
	}
	for n := range writersAtWork {
		w.workers.Go(func() error {
			return w.again(work, func() error { return w.ledger.write(work, fmt.Sprintf("writer-%d", n)) })
		})
	}
	for n := range relaysAtWork {
		w.workers.Go(func() error {
			return w.again(work, func() error { return w.ledger.relay(work, fmt.Sprintf("relay-%d", n)) })
		})
	}
	t.Cleanup(func() {
		w.stop()
		w.stopReading()
		_, _ = w.workers.Wait(), w.readers.Wait()
	})
	w.awaitProgress("the start")
	return w
}

// again makes a worker anew whenever it has failed: its client then does not know what became of its last transaction.
func (w *transactions) again(ctx context.Context, work func() error) error {
	for ctx.Err() == nil {
		if err := work(); err != nil && ctx.Err() == nil {
			w.t.Logf("a worker begins again: %v", err)
		}
	}
	return nil
}

func (w *transactions) client(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(append([]kgo.Opt{kgo.SeedBrokers(w.p.Bootstrap...), kgo.MetadataMinAge(quickMetadata)}, w.opts...), opts...)...)
}

// feed writes the input, each record once.
func (w *transactions) feed(ctx context.Context) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.p.Bootstrap...), kgo.MetadataMinAge(quickMetadata), kgo.DefaultProduceTopic("input"))
	if err != nil {
		return err
	}
	defer cl.Close()
	for n := 0; ctx.Err() == nil; n++ {
		if err := cl.ProduceSync(context.WithoutCancel(ctx), kgo.StringRecord(strconv.Itoa(n))).FirstErr(); err != nil {
			return fmt.Errorf("input %d: %w", n, err)
		}
		w.count(&w.inputs)
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}

// session reads the input and writes it to the output, in transactions with its offsets. Every fifth one is aborted.
func (w *transactions) session(ctx context.Context, n int) error {
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(w.p.Bootstrap...), kgo.MetadataMinAge(quickMetadata), kgo.TransactionalID(fmt.Sprintf("session-%d", n)), kgo.ConsumerGroup("processors"),
		kgo.ConsumeTopics("input"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DefaultProduceTopic("output"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.TransactionTimeout(5 * time.Second), kgo.SessionTimeout(6 * time.Second),
	}, w.opts...)
	s, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		return err
	}
	defer s.Close()
	for ctx.Err() == nil {
		fetches := s.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := s.Begin(); err != nil {
			return err
		}
		var failed kgo.FirstErrPromise
		fetches.EachRecord(func(r *kgo.Record) {
			s.Produce(context.WithoutCancel(ctx), &kgo.Record{Value: r.Value}, failed.Promise())
		})
		try := kgo.TransactionEndTry(failed.Err() == nil && rand.IntN(5) > 0)
		done, err := s.End(context.WithoutCancel(ctx), try)
		if err != nil {
			return fmt.Errorf("end of a session's transaction: %w", err)
		}
		if done {
			w.count(&w.sessions)
		}
	}
	return nil
}

// count counts a transaction that has ended well.
func (w *transactions) count(n *int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n++
}

func (w *transactions) counts() (inputs, sessions, writes, relays int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inputs, w.sessions, w.writes, w.relays
}

// awaitProgress waits until everything has gone on.
func (w *transactions) awaitProgress(after string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), recoveryTime)
	defer cancel()
	begin := time.Now()
	inputs, sessions, writes, relays := w.counts()
	defer func() {
		if w.t.Failed() {
			w.explain()
		}
	}()
	await(ctx, w.t, "progress after "+after, func() (bool, error) {
		i, s, wr, r := w.counts()
		if i > inputs+5 && s > sessions+2 && wr > writes+5 && r > relays+2 {
			return true, nil
		}
		return false, fmt.Errorf("inputs %d to %d, sessions %d to %d, writes %d to %d, relays %d to %d",
			inputs, i, sessions, s, writes, wr, relays, r)
	})
	w.t.Logf("everything goes on %s after %s", time.Since(begin).Round(time.Millisecond), after)
}

// explain logs what is known of the transactions and the group's offsets when the work does not go on.
func (w *transactions) explain() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 10*time.Second)
	defer cancel()
	listed, err := w.adm.ListTransactions(ctx, nil, nil)
	w.t.Logf("transactions: %v", err)
	for _, x := range listed.Sorted() {
		described, err := w.adm.DescribeTransactions(ctx, x.TxnID)
		w.t.Logf("%+v, %v", described[x.TxnID], err)
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = "processors"
	req.Groups = append(req.Groups, g)
	cl, err := w.client()
	if err != nil {
		return
	}
	defer cl.Close()
	resp, err := req.RequestWith(ctx, cl)
	w.t.Logf("offsets of the group: %+v, %v", resp, err)
	producers, err := w.adm.DescribeProducers(ctx, kadm.TopicsSet{"input": {0: {}}, "output": {0: {}, 1: {}, 2: {}, 3: {}}, "__consumer_offsets": {15: {}}})
	w.t.Logf("producers: %+v, %v", producers, err)
}

// finish ends the work, has what is left of the input processed, and looks at what there is.
func (w *transactions) finish() {
	t := w.t
	t.Helper()
	w.stop()
	if err := w.workers.Wait(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*recoveryTime)
	defer cancel()
	w.drain(ctx)
	inputs, sessions, writes, relays := w.counts()
	t.Logf("%d inputs, %d transactions of sessions, %d of writers, %d of relays", inputs, sessions, writes, relays)

	seen := map[string]int{}
	for _, v := range committedValues(ctx, t, w.p.Bootstrap, "output") {
		seen[v]++
	}
	for n := range inputs {
		if c := seen[strconv.Itoa(n)]; c != 1 {
			t.Errorf("input %d was processed %d times", n, c)
		}
	}
	// The one has read while everything was written, the other reads what there is in the end.
	const again = "who reads again"
	reading, stop := context.WithCancel(ctx)
	w.readers.Go(func() error { return w.ledger.read(reading, again) })
	w.ledger.awaitRead(ctx, t, "the reader")
	w.ledger.awaitRead(ctx, t, again)
	stop()
	w.stopReading()
	if err := w.readers.Wait(); err != nil {
		t.Error(err)
	}
	w.ledger.check(t)
}

// drain waits until the sessions that follow have processed the whole input, and nothing is open.
func (w *transactions) drain(ctx context.Context) {
	w.t.Helper()
	work, stop := context.WithCancel(ctx)
	var last errgroup.Group
	last.Go(func() error { return w.again(work, func() error { return w.session(work, 0) }) })
	inputs := endOffsets(ctx, w.t, w.adm, "input")
	await(ctx, w.t, "the whole input to be processed", func() (bool, error) {
		got, err := w.adm.FetchOffsets(ctx, "processors")
		if err != nil {
			return false, err
		}
		for p, end := range inputs {
			if o, ok := got.Lookup(p.topic, p.index); end > 0 && (!ok || o.At < end) {
				return false, fmt.Errorf("%v is processed to %d of %d", p, o.At, end)
			}
		}
		return true, nil
	})
	stop()
	_ = last.Wait()
	awaitStable(ctx, w.t, w.adm, "output", "ledger")
}

// awaitStable waits until no transaction is open in topics: EndTxn is answered before the markers are written.
func awaitStable(ctx context.Context, t *testing.T, adm *kadm.Client, topics ...string) {
	t.Helper()
	await(ctx, t, "all transactions to end", func() (bool, error) {
		stable, err := adm.ListCommittedOffsets(ctx, topics...)
		if err != nil {
			return false, err
		}
		ends, err := adm.ListEndOffsets(ctx, topics...)
		if err != nil {
			return false, err
		}
		var open error
		ends.Each(func(o kadm.ListedOffset) {
			if s, ok := stable.Lookup(o.Topic, o.Partition); !ok || s.Offset != o.Offset {
				open = fmt.Errorf("%s-%d is stable to %d of %d", o.Topic, o.Partition, s.Offset, o.Offset)
			}
		})
		return open == nil, open
	})
}
