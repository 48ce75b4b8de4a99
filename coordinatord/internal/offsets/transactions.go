package offsets

import "iter"

// AddPending adds the offset that a transaction of a producer will commit.
func (t *Table) AddPending(producerID int64, group string, k Key, v *Value) {
	key := pendingKey{group, k}
	offsets := t.pending[producerID]
	if offsets == nil {
		offsets = map[pendingKey]*Value{}
		t.pending[producerID] = offsets
	}
	if offsets[key] == nil {
		t.open[key]++
	}
	offsets[key] = v
}

// DropPending forgets what open transactions have for a partition, because its offset was deleted after them.
func (t *Table) DropPending(group string, k Key) {
	key := pendingKey{group, k}
	if t.open[key] == 0 {
		return
	}
	for producerID, offsets := range t.pending {
		delete(offsets, key)
		if len(offsets) == 0 {
			delete(t.pending, producerID)
		}
	}
	delete(t.open, key)
}

// EndTransaction ends the open transaction of a producer, if there is one. With commit its offsets become the newest and
// the durable ones, unless a later commit outside the transaction is there: the position in the log decides, so that
// compaction of the log cannot change the outcome.
func (t *Table) EndTransaction(producerID int64, commit bool) {
	offsets := t.pending[producerID]
	delete(t.pending, producerID)
	for key, v := range offsets {
		if t.open[key]--; t.open[key] == 0 {
			delete(t.open, key)
		}
		if !commit {
			continue
		}
		newest, durable := t.Newest(key.group, key.key), t.Durable(key.group, key.key)
		if durable != nil && durable.RecordOffset > v.RecordOffset {
			continue
		}
		// A commit that is under way comes after the marker in the log.
		if newest == durable {
			t.Set(key.group, key.key, v)
		}
		t.Commit(key.group, key.key, v)
	}
}

// IsOpen says whether a transaction that has not ended has an offset for a partition.
func (t *Table) IsOpen(group string, k Key) bool {
	return len(t.open) > 0 && t.open[pendingKey{group, k}] > 0
}

// HasOpen says whether a transaction that has not ended has offsets of a group.
func (t *Table) HasOpen(group string) bool {
	for range t.AllOpen(group) {
		return true
	}
	return false
}

// AllOpen are the partitions of a group for which open transactions have offsets, in no order.
func (t *Table) AllOpen(group string) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		for key := range t.open {
			if key.group == group && !yield(key.key) {
				return
			}
		}
	}
}
