package cleaner

import (
	"cmp"
	"slices"

	"chancery/services/kafka/recordbatch"
	"chancery/storaged/internal/log"
)

// transactions follows the transactions of a log while its batches are read in order.
type transactions struct {
	// coming are aborted transactions whose first record has not been reached, sorted by it.
	coming []log.AbortedTxn
	// aborted are those that are under way, committed the producers whose transaction under way was not aborted.
	aborted   map[int64]*abortedTxn
	committed map[int64]bool
}

type abortedTxn struct {
	log.AbortedTxn
	// seen says that a record of the transaction is still in the log.
	seen bool
}

func newTransactions() *transactions {
	return &transactions{aborted: map[int64]*abortedTxn{}, committed: map[int64]bool{}}
}

// expect announces aborted transactions. One that reaches over several segments comes with each of them.
func (t *transactions) expect(list []log.AbortedTxn) {
	t.coming = append(t.coming, list...)
	slices.SortStableFunc(t.coming, func(a, b log.AbortedTxn) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
}

// reach begins the aborted transactions up to an offset.
func (t *transactions) reach(offset int64) {
	n := 0
	for ; n < len(t.coming) && t.coming[n].FirstOffset <= offset; n++ {
		a := t.coming[n]
		if t.aborted[a.ProducerID] == nil {
			t.aborted[a.ProducerID] = &abortedTxn{AbortedTxn: a}
		}
	}
	t.coming = t.coming[n:]
}

// data takes in a batch of data and says whether it has been aborted.
func (t *transactions) data(h recordbatch.Header) bool {
	t.reach(h.LastOffset())
	if !h.IsTransactional() {
		return false
	}
	if a := t.aborted[h.ProducerID()]; a != nil {
		a.seen = true
		return true
	}
	t.committed[h.ProducerID()] = true
	return false
}

// marker takes in a control batch and says whether nothing is left of its transaction, so that it may go in time. When a
// record of an aborted transaction is left the transaction is given, since the index must keep it.
func (t *transactions) marker(batch []byte) (superfluous bool, kept *log.AbortedTxn, err error) {
	h := recordbatch.Header(batch)
	t.reach(h.LastOffset())
	if h.Count() == 0 {
		return true, nil, nil // its record went in an earlier pass
	}
	records := recordbatch.RecordsOf(batch)
	if !records.Next() {
		return false, nil, records.Err()
	}
	kind, err := recordbatch.ControlTypeOf(records.Record().Key)
	if err != nil {
		return false, nil, err
	}
	id := h.ProducerID()
	switch kind {
	case recordbatch.Abort:
		a := t.aborted[id]
		delete(t.aborted, id)
		if a != nil && a.seen {
			return false, &a.AbortedTxn, nil
		}
		return true, nil, nil
	case recordbatch.Commit:
		seen := t.committed[id]
		delete(t.committed, id)
		return !seen, nil, nil
	default:
		return false, nil, nil
	}
}
