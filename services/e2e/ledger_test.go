package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ledgerReader reads the writers' transactions with read_committed while they are being written, and compares each record with
// what its writer has done by then.
type ledgerReader struct {
	w *transactions

	mu sync.Mutex
	// reads are the partitions in which each transaction was read.
	reads map[string][]int32
	// next is the position in each partition, last the number of the newest transaction of each writer there.
	next  map[int32]int64
	last  map[int32]map[string]int64
	wrong []string
}

func newLedgerReader(w *transactions) *ledgerReader {
	return &ledgerReader{w: w, reads: map[string][]int32{}, next: map[int32]int64{}, last: map[int32]map[string]int64{}}
}

// run reads until ctx ends.
func (r *ledgerReader) run(ctx context.Context) error {
	cl, err := r.w.client(kgo.ConsumeTopics("ledger"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(r.look)
	}
	return nil
}

// look compares one record.
func (r *ledgerReader) look(record *kgo.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if record.Offset < r.next[record.Partition] {
		r.complain("partition %d goes back from %d to %d", record.Partition, r.next[record.Partition], record.Offset)
	}
	r.next[record.Partition] = record.Offset + 1
	if record.Attrs.IsControl() {
		return
	}
	id := string(record.Value)
	switch o, known := r.w.outcome(id); {
	case !known:
		r.complain("%s was never begun", id)
	case o == open:
		r.complain("%s is read at %d of partition %d while it is open", id, record.Offset, record.Partition)
	case o == aborted:
		r.complain("%s is read at %d of partition %d though it was aborted", id, record.Offset, record.Partition)
	}
	r.reads[id] = append(r.reads[id], record.Partition)
	writer, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if r.last[record.Partition] == nil {
		r.last[record.Partition] = map[string]int64{}
	}
	if last := r.last[record.Partition][writer]; err != nil || n <= last {
		r.complain("in partition %d transaction %s follows number %d of its writer", record.Partition, id, last)
	}
	r.last[record.Partition][writer] = n
}

func (r *ledgerReader) complain(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// finish waits until everything that is stable has been read, and says what was wrong: also transactions that were not read whole.
func (r *ledgerReader) finish(ctx context.Context, t *testing.T) {
	t.Helper()
	await(ctx, t, "the ledger to be read to its end", func() (bool, error) {
		ends, err := r.w.adm.ListCommittedOffsets(ctx, "ledger")
		if err != nil {
			return false, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		var behind error
		ends.Each(func(o kadm.ListedOffset) {
			if r.next[o.Partition] < o.Offset {
				behind = fmt.Errorf("partition %d is read to %d of %d", o.Partition, r.next[o.Partition], o.Offset)
			}
		})
		return behind == nil, behind
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, partitions := range r.reads {
		seen := map[int32]bool{}
		for _, p := range partitions {
			seen[p] = true
		}
		if len(partitions) != ledgerPartition || len(seen) != ledgerPartition {
			r.complain("%s is read in the partitions %v", id, partitions)
		}
	}
	for i, text := range r.wrong {
		if t.Error(text); i == 20 {
			t.Fatalf("and %d more", len(r.wrong)-i-1)
		}
	}
	t.Logf("%d transactions were read while they were written", len(r.reads))
}
