package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ledger is a topic to which transactions are written that have a record in each of its partitions, with the transaction's name, and
// all that is seen of them.
type ledger struct {
	w *transactions

	mu      sync.Mutex
	history *serialHistory
	// next is the position of each reader in each partition.
	next map[string]map[int32]int64
}

const ledgerPartition = 10

func newLedger(w *transactions) *ledger {
	return &ledger{w: w, history: newSerialHistory(ledgerPartition), next: map[string]map[int32]int64{}}
}

// tell notes something that has happened.
func (l *ledger) tell(f func(h *serialHistory)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.history)
}

// begin names a writer's next transaction.
func (l *ledger) begin(writer string) (id string) {
	l.tell(func(h *serialHistory) {
		id = writer + "-" + strconv.Itoa(len(h.told))
		h.begin(writer, id)
	})
	return id
}

// read reads with read_committed while the ledger is written, until ctx ends.
func (l *ledger) read(ctx context.Context, reader string) error {
	cl, err := l.w.client(kgo.ConsumeTopics("ledger"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			l.tell(func(h *serialHistory) {
				if l.next[reader] == nil {
					l.next[reader] = map[int32]int64{}
				}
				l.next[reader][r.Partition] = r.Offset + 1
				if !r.Attrs.IsControl() {
					h.read(reader, r.Partition, r.Offset, string(r.Value))
				}
			})
		})
	}
	return nil
}

// awaitRead waits until a reader has read everything that is stable.
func (l *ledger) awaitRead(ctx context.Context, t *testing.T, reader string) {
	t.Helper()
	await(ctx, t, "the ledger to be read to its end", func() (bool, error) {
		ends, err := l.w.adm.ListCommittedOffsets(ctx, "ledger")
		if err != nil {
			return false, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		var behind error
		ends.Each(func(o kadm.ListedOffset) {
			if l.next[reader][o.Partition] < o.Offset {
				behind = fmt.Errorf("partition %d is read to %d of %d", o.Partition, l.next[reader][o.Partition], o.Offset)
			}
		})
		return behind == nil, behind
	})
}

// check looks for anomalies in all that was seen.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	findings := l.history.check()
	for i, f := range findings {
		if t.Error(f); i == 20 {
			t.Fatalf("and %d more", len(findings)-i-1)
		}
	}
	var counts [aborted + 1]int
	consumed := 0
	for _, told := range l.history.told {
		counts[told.outcome]++
		if told.outcome == committed {
			consumed += len(told.reads)
		}
	}
	t.Logf("%d transactions were committed, %d aborted, of %d the end is not known; %d records were consumed in transactions",
		counts[committed], counts[aborted], counts[unclear], consumed)
}

// write writes transactions to the ledger, and aborts every third of them.
func (l *ledger) write(ctx context.Context, writer string) error {
	cl, err := l.w.client(kgo.TransactionalID(writer), kgo.DefaultProduceTopic("ledger"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionTimeout(10*time.Second))
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		if err := l.writeOne(context.WithoutCancel(ctx), cl, writer); err != nil {
			return err
		}
		l.w.count(&l.w.writes)
	}
	return nil
}

func (l *ledger) writeOne(ctx context.Context, cl *kgo.Client, writer string) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	id := l.begin(writer)
	try := l.produce(ctx, cl.Produce, id)
	if err := cl.EndTransaction(ctx, try); err != nil {
		return fmt.Errorf("end of a writer's transaction: %w", err)
	}
	if bool(try) {
		l.tell(func(h *serialHistory) { h.end(id) })
	}
	return nil
}

// produce writes a transaction's records, and decides how it is to end.
func (l *ledger) produce(ctx context.Context, produce func(context.Context, *kgo.Record, func(*kgo.Record, error)), id string) kgo.TransactionEndTry {
	var failed kgo.FirstErrPromise
	for p := range int32(ledgerPartition) {
		produce(ctx, &kgo.Record{Partition: p, Value: []byte(id)}, failed.Promise())
	}
	try := failed.Err() == nil && rand.IntN(3) > 0
	l.tell(func(h *serialHistory) {
		if try {
			h.committing(id)
		} else {
			h.aborting(id)
		}
	})
	return kgo.TransactionEndTry(try)
}

// relay reads the ledger and writes to it what it has read about, in transactions with its offsets: what two relays write depends on
// one another.
func (l *ledger) relay(ctx context.Context, writer string) error {
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(l.w.p.Bootstrap...), kgo.MetadataMinAge(quickMetadata), kgo.TransactionalID(writer), kgo.ConsumerGroup(writer),
		kgo.ConsumeTopics("ledger"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DefaultProduceTopic("ledger"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.TransactionTimeout(5 * time.Second), kgo.SessionTimeout(6 * time.Second),
	}, l.w.opts...)
	s, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		return err
	}
	defer s.Close()
	for ctx.Err() == nil {
		fetches := s.PollFetches(ctx)
		if ctx.Err() != nil || fetches.NumRecords() == 0 {
			continue
		}
		if err := s.Begin(); err != nil {
			return err
		}
		id := l.begin(writer)
		l.tell(func(h *serialHistory) {
			fetches.EachRecord(func(r *kgo.Record) { h.consume(id, r.Partition, r.Offset, string(r.Value)) })
		})
		try := l.produce(context.WithoutCancel(ctx), s.Produce, id)
		done, err := s.End(context.WithoutCancel(ctx), try)
		switch {
		case err != nil:
			return fmt.Errorf("end of a relay's transaction: %w", err)
		case done:
			l.tell(func(h *serialHistory) { h.end(id) })
			l.w.count(&l.w.relays)
		default:
			// Where the group has rebalanced, the session has aborted what was to be committed.
			l.tell(func(h *serialHistory) { h.aborting(id) })
		}
	}
	return nil
}
