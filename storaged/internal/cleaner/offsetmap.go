package cleaner

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// slotBytes is the memory that a key takes: 16 bytes of hash and its offset, as in Kafka.
const slotBytes = 24

// offsetMap knows the newest offset of each key, in bounded memory: of a key it keeps 128 bits of SHA-256. Two keys with the
// same bits would lose one of them, which nobody can bring about, on purpose or by chance.
type offsetMap struct {
	slots []slot
	n     int
	// most is how many keys the map takes: above it, searches would be long.
	most int
	// latest is the offset up to which the map knows all keys.
	latest int64
}

type slot struct {
	high, low uint64
	// next is the key's offset + 1; 0 for an empty slot.
	next int64
}

// newOffsetMap makes a map within a bound of memory; where fewer keys can come it is smaller.
func newOffsetMap(memoryBytes int64, loadFactor float64, keys int64) *offsetMap {
	slots := max(2, memoryBytes/slotBytes)
	if loadFactor > 0 && float64(keys+1)/loadFactor < float64(slots) {
		slots = max(2, int64(float64(keys+1)/loadFactor)+1)
	}
	m := &offsetMap{slots: make([]slot, slots), latest: -1}
	m.most = min(max(1, int(float64(slots)*loadFactor)), int(slots)-1)
	return m
}

// find gives the slot of a key: its own, or the empty one where it belongs.
func (m *offsetMap) find(key []byte) *slot {
	sum := sha256.Sum256(key)
	high, low := binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:16])
	at, _ := bits.Mul64(high, uint64(len(m.slots)))
	for {
		s := &m.slots[at]
		if s.next == 0 {
			s.high, s.low = high, low
			return s
		}
		if s.high == high && s.low == low {
			return s
		}
		if at++; at == uint64(len(m.slots)) {
			at = 0
		}
	}
}

// put notes a key's offset. It is false, and nothing is noted, when the key is new and the map full.
func (m *offsetMap) put(key []byte, offset int64) bool {
	s := m.find(key)
	if s.next == 0 {
		if m.n >= m.most {
			return false
		}
		m.n++
	}
	s.next = offset + 1
	m.latest = offset
	return true
}

// get gives a key's newest offset; -1 when there is none.
func (m *offsetMap) get(key []byte) int64 { return m.find(key).next - 1 }

// utilization is how much of the map is in use.
func (m *offsetMap) utilization() float64 { return float64(m.n) / float64(len(m.slots)) }
