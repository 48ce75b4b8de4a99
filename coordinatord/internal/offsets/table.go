// Package offsets holds the committed offsets of the groups of one shard.
//
// It owns two views of them: the newest one, by which commands are decided, and the durable one, which clients read. It
// must never decide who may commit or what expires.
package offsets

import (
	"iter"

	"chancery/services/kafka/grouprecord"
)

// Value is a committed offset; immutable once it is in a table, but for the record's offset.
type Value struct {
	grouprecord.Offset
	// RecordOffset is where the commit is in the shard's log, -1 before it is durable.
	RecordOffset int64
}

// Key is a partition of a topic.
type Key struct {
	Topic     string
	Partition int32
}

// entry is one partition of a group. The two values differ only while a record that changes it is under way.
type entry struct {
	newest, durable *Value
	// underWay counts those records, also one that deletes what is not there yet.
	underWay int
}

type topicOffsets map[int32]*entry

type groupOffsets map[string]topicOffsets

// Table is the offsets of all groups of a shard. It belongs to one goroutine.
type Table struct {
	groups map[string]groupOffsets
	// durable counts the durable values.
	durable int

	// pending are the offsets of transactions that have not ended, by producer id: they become visible with the
	// transaction's commit marker.
	pending map[int64]map[pendingKey]*Value
	// endings are the transactions whose marker is on its way.
	endings map[*Ending]bool
	// open counts for each partition of a group the transactions that have an offset for it.
	open map[pendingKey]int
}

type pendingKey struct {
	group string
	key   Key
}

// NewTable makes an empty table.
func NewTable() *Table {
	return &Table{
		groups:  map[string]groupOffsets{},
		pending: map[int64]map[pendingKey]*Value{},
		endings: map[*Ending]bool{},
		open:    map[pendingKey]int{},
	}
}

// Len is the number of durable offsets.
func (t *Table) Len() int { return t.durable }

func (t *Table) find(group string, k Key) *entry {
	return t.groups[group][k.Topic][k.Partition]
}

func (t *Table) findOrMake(group string, k Key) *entry {
	g := t.groups[group]
	if g == nil {
		g = groupOffsets{}
		t.groups[group] = g
	}
	topic := g[k.Topic]
	if topic == nil {
		topic = topicOffsets{}
		g[k.Topic] = topic
	}
	e := topic[k.Partition]
	if e == nil {
		e = &entry{}
		topic[k.Partition] = e
	}
	return e
}

// tidy drops an entry that says nothing any more.
func (t *Table) tidy(group string, k Key, e *entry) {
	if e.newest != nil || e.durable != nil || e.underWay > 0 {
		return
	}
	g := t.groups[group]
	delete(g[k.Topic], k.Partition)
	if len(g[k.Topic]) == 0 {
		delete(g, k.Topic)
	}
	if len(g) == 0 {
		delete(t.groups, group)
	}
}

// Set changes the newest value; nil deletes it. Commit or Revert follows.
func (t *Table) Set(group string, k Key, v *Value) {
	e := t.findOrMake(group, k)
	e.newest = v
	e.underWay++
}

// Commit makes a value, which Set has set before, the durable one; nil deletes it.
func (t *Table) Commit(group string, k Key, v *Value) {
	e := t.findOrMake(group, k)
	e.underWay = max(e.underWay-1, 0)
	t.makeDurable(e, v)
	t.tidy(group, k, e)
}

func (t *Table) makeDurable(e *entry, v *Value) {
	if e.durable != nil {
		t.durable--
	}
	if v != nil {
		t.durable++
	}
	e.durable = v
}

// Revert takes a Set back and makes the durable value the newest again.
func (t *Table) Revert(group string, k Key) {
	if e := t.find(group, k); e != nil {
		e.newest = e.durable
		e.underWay = max(e.underWay-1, 0)
		t.tidy(group, k, e)
	}
}

// Newest is the newest value, nil when there is none.
func (t *Table) Newest(group string, k Key) *Value {
	if e := t.find(group, k); e != nil {
		return e.newest
	}
	return nil
}

// Durable is the durable value, nil when there is none.
func (t *Table) Durable(group string, k Key) *Value {
	if e := t.find(group, k); e != nil {
		return e.durable
	}
	return nil
}

// Has says whether a group has offsets by the newest view, or in transactions that have not ended.
func (t *Table) Has(group string) bool {
	for range t.AllNewest(group) {
		return true
	}
	return t.HasOpen(group)
}

// AllNewest are a group's offsets by the newest view, in no order. The table must not change meanwhile.
func (t *Table) AllNewest(group string) iter.Seq2[Key, *Value] {
	return t.all(group, func(e *entry) *Value { return e.newest })
}

// AllDurable are a group's offsets by the durable view, in no order. The table must not change meanwhile.
func (t *Table) AllDurable(group string) iter.Seq2[Key, *Value] {
	return t.all(group, func(e *entry) *Value { return e.durable })
}

func (t *Table) all(group string, view func(*entry) *Value) iter.Seq2[Key, *Value] {
	return func(yield func(Key, *Value) bool) {
		for topic, partitions := range t.groups[group] {
			for p, e := range partitions {
				if v := view(e); v != nil && !yield(Key{topic, p}, v) {
					return
				}
			}
		}
	}
}
