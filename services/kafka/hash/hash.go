// Package hash is the arithmetic by which Kafka spreads keys over partitions.
//
// It owns the functions; it must never know what is hashed.
package hash

import (
	"encoding/binary"
	"strconv"
	"unicode/utf8"

	"chancery/services/kafka/uuid"
)

// String is Java's String.hashCode, which works on UTF-16 code units.
func String(s string) int32 {
	var h int32
	for i := 0; i < len(s); {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		i += size
		if r < 0x10000 {
			h = 31*h + r
			continue
		}
		// Two surrogates stand for a character outside the basic plane.
		r -= 0x10000
		h = 31*h + (0xd800 + r>>10)
		h = 31*h + (0xdc00 + r&0x3ff)
	}
	return h
}

// TableSlot is where a key stands in a Java HashMap with so many keys, which is gone through in the order of the slots.
func TableSlot(key string, keys int) int32 {
	size := int32(16)
	for int(size)*3/4 < keys {
		size *= 2
	}
	h := uint32(String(key))
	return int32(h^h>>16) & (size - 1)
}

// Partition is the partition of a key with a hash, among n: its magnitude modulo n, where the smallest number, which
// has no magnitude, counts as 0. It is 0 when n is not positive.
func Partition(h int32, n int) int32 {
	if n <= 0 {
		return 0
	}
	if h < 0 {
		h = -h
	}
	if h < 0 {
		h = 0
	}
	return h % int32(n)
}

// GroupPartition is the partition of __consumer_offsets that keeps a group. TransactionPartition and SharePartition
// are the same for __transaction_state and __share_group_state.
func GroupPartition(groupID string, n int) int32 { return Partition(String(groupID), n) }

// TransactionPartition is the partition of __transaction_state that keeps a transactional id.
func TransactionPartition(transactionalID string, n int) int32 {
	return Partition(String(transactionalID), n)
}

// SharePartition is the partition of __share_group_state that keeps a share-partition.
func SharePartition(groupID string, topic uuid.UUID, partition int32, n int) int32 {
	return Partition(String(ShareKey(groupID, topic, partition)), n)
}

// ShareKey is the key of a share-partition: group, topic id and partition with colons between.
func ShareKey(groupID string, topic uuid.UUID, partition int32) string {
	return groupID + ":" + topic.String() + ":" + strconv.Itoa(int(partition))
}

// RemoteLogMetadataPartition is the partition of __remote_log_metadata that keeps the segments of a partition.
func RemoteLogMetadataPartition(topic uuid.UUID, partition int32, n int) int32 {
	if n <= 0 {
		return 0
	}
	long := func(b []byte) int32 {
		u := binary.BigEndian.Uint64(b)
		return int32(uint32(u) ^ uint32(u>>32))
	}
	h := (31+long(topic[8:]))*31 + long(topic[:8])
	h = h*31 + partition
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(h))
	return int32(uint32(Murmur2(b[:]))&0x7fffffff) % int32(n)
}

// Murmur2 is the 32-bit murmur2 hash with the seed that Kafka's producers use.
func Murmur2(data []byte) int32 {
	const (
		seed  uint32 = 0x9747b28c
		mix   uint32 = 0x5bd1e995
		shift        = 24
	)
	h := seed ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data)
		k *= mix
		k ^= k >> shift
		k *= mix
		h = h*mix ^ k
	}
	for i := len(data) - 1; i >= 0; i-- {
		h ^= uint32(data[i]) << (8 * i)
	}
	if len(data) > 0 {
		h *= mix
	}
	h ^= h >> 13
	h *= mix
	h ^= h >> 15
	return int32(h)
}

// KeyPartition is the partition that Kafka's producers choose for a record's key.
func KeyPartition(key []byte, n int) int32 {
	if n <= 0 {
		return 0
	}
	return int32(uint32(Murmur2(key))&0x7fffffff) % int32(n)
}
