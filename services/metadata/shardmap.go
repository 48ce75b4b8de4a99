package metadata

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shardCount is how many parts a shardMap has. With 100,000 entries a change copies about 400 of them.
const shardCount = 256

// shardMap is an immutable map in parts, so that a new version shares the parts that did not change.
type shardMap[K comparable, V any] struct {
	seed   maphash.Seed
	shards *[shardCount]map[K]V
	size   int
}

func newShardMap[K comparable, V any](seed maphash.Seed) shardMap[K, V] {
	return shardMap[K, V]{seed: seed, shards: new([shardCount]map[K]V)}
}

func (m shardMap[K, V]) shard(k K) uint8 { return uint8(maphash.Comparable(m.seed, k)) }

func (m shardMap[K, V]) get(k K) (V, bool) {
	v, ok := m.shards[m.shard(k)][k]
	return v, ok
}

// all gives the entries in no order.
func (m shardMap[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, shard := range m.shards {
			for k, v := range shard {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// shardMapEditor makes the next version of a shardMap. It copies a part at its first change and owns it from then on.
type shardMapEditor[K comparable, V any] struct {
	shardMap[K, V]
	changed bool
	owned   [shardCount]bool
}

func (e *shardMapEditor[K, V]) own(k K) map[K]V {
	if !e.changed {
		shards := *e.shards
		e.shards = &shards
		e.changed = true
	}
	i := e.shard(k)
	if !e.owned[i] {
		e.owned[i] = true
		e.shards[i] = maps.Clone(e.shards[i])
		if e.shards[i] == nil {
			e.shards[i] = make(map[K]V)
		}
	}
	return e.shards[i]
}

func (e *shardMapEditor[K, V]) set(k K, v V) {
	shard := e.own(k)
	before := len(shard)
	shard[k] = v
	e.size += len(shard) - before
}

func (e *shardMapEditor[K, V]) remove(k K) {
	shard := e.own(k)
	before := len(shard)
	delete(shard, k)
	e.size += len(shard) - before
}
