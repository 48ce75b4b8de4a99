package offsets

import "iter"

// AddPending adds the offset that a transaction of a producer will commit, and gives the one that it replaces; nil for none.
func (t *Table) AddPending(producerID int64, group string, k Key, v *Value) *Value {
	key := pendingKey{group, k}
	offsets := t.pending[producerID]
	if offsets == nil {
		offsets = map[pendingKey]*Value{}
		t.pending[producerID] = offsets
	}
	before := offsets[key]
	if before == nil {
		t.open[key]++
	}
	offsets[key] = v
	return before
}

// RestorePending takes back an AddPending that gave before. What was added later must have been taken back.
func (t *Table) RestorePending(producerID int64, group string, k Key, before *Value) {
	key := pendingKey{group, k}
	offsets := t.pending[producerID]
	if offsets[key] == nil {
		return
	}
	if before != nil {
		offsets[key] = before
		return
	}
	t.forgetPending(producerID, key)
}

func (t *Table) forgetPending(producerID int64, key pendingKey) {
	t.close(key)
	if delete(t.pending[producerID], key); len(t.pending[producerID]) == 0 {
		delete(t.pending, producerID)
	}
}

// DropPending forgets what open transactions have for a partition, because its offset was deleted after them. What they get
// later, and is not durable yet, stays.
func (t *Table) DropPending(group string, k Key) {
	key := pendingKey{group, k}
	if t.open[key] == 0 {
		return
	}
	for producerID, offsets := range t.pending {
		if v := offsets[key]; v != nil && v.RecordOffset >= 0 {
			t.forgetPending(producerID, key)
		}
	}
	for e := range t.endings {
		if v := e.offsets[key]; v != nil && v.RecordOffset >= 0 {
			delete(e.offsets, key)
			t.close(key)
		}
	}
}

// Ending is a transaction whose marker is on its way. Its partitions stay open until that is settled.
type Ending struct {
	producerID int64
	offsets    map[pendingKey]*Value
}

// BeginEnd takes the open transaction of a producer out of the way of its next one. Settle or CancelEnd follows.
func (t *Table) BeginEnd(producerID int64) *Ending {
	e := &Ending{producerID: producerID, offsets: t.pending[producerID]}
	delete(t.pending, producerID)
	t.endings[e] = true
	return e
}

// CancelEnd takes BeginEnd back. What was begun later must have been taken back.
func (t *Table) CancelEnd(e *Ending) {
	delete(t.endings, e)
	if len(e.offsets) > 0 {
		t.pending[e.producerID] = e.offsets
	}
}

// Settle ends a transaction. With commit its offsets become the newest and the durable ones, unless a later commit outside the
// transaction is there: the position in the log decides, so that compaction of the log cannot change the outcome.
func (t *Table) Settle(e *Ending, commit bool) {
	delete(t.endings, e)
	for key, v := range e.offsets {
		t.close(key)
		if !commit {
			continue
		}
		e := t.findOrMake(key.group, key.key)
		if e.durable != nil && e.durable.RecordOffset > v.RecordOffset {
			continue
		}
		// A commit or a deletion that is under way comes after the marker in the log.
		if e.underWay == 0 {
			e.newest = v
		}
		t.makeDurable(e, v)
	}
}

func (t *Table) close(key pendingKey) {
	if t.open[key]--; t.open[key] == 0 {
		delete(t.open, key)
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

// Having are the partitions of groups with an offset of which something holds, be it the newest or that of a transaction that has
// not ended. Each comes once, in no order.
func (t *Table) Having(holds func(topic string, v *Value) bool) iter.Seq2[string, Key] {
	found := map[pendingKey]struct{}{}
	look := func(offsets map[pendingKey]*Value) {
		for key, v := range offsets {
			if holds(key.key.Topic, v) {
				found[key] = struct{}{}
			}
		}
	}
	for group := range t.groups {
		for k, v := range t.AllNewest(group) {
			if holds(k.Topic, v) {
				found[pendingKey{group, k}] = struct{}{}
			}
		}
	}
	for _, offsets := range t.pending {
		look(offsets)
	}
	for e := range t.endings {
		look(e.offsets)
	}
	return func(yield func(string, Key) bool) {
		for key := range found {
			if !yield(key.group, key.key) {
				return
			}
		}
	}
}
