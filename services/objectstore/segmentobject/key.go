package segmentobject

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

const (
	// keyVersion is the part of a key that says how the rest is made.
	keyVersion = "v1"
	keySuffix  = ".seg"
	// MaxPrefixBytes keeps the custom metadata, which has the prefix in it, within what Kafka allows it by default.
	MaxPrefixBytes = 96
)

// CheckPrefix says what is wrong with a prefix of keys.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxPrefixBytes {
		return fmt.Errorf("%d bytes, want %d at most", len(prefix), MaxPrefixBytes)
	}
	for part := range strings.SplitSeq(prefix, "/") {
		if prefix != "" && (part == "" || part == "." || part == "..") {
			return fmt.Errorf("%q is no path: want names with one / between them, and none at the ends", prefix)
		}
	}
	for _, c := range prefix {
		if c <= ' ' || c > '~' || strings.ContainsRune(`\{}^%[]"<>#|`+"`", c) {
			return fmt.Errorf("%q has the character %q, which object stores treat in different ways", prefix, c)
		}
	}
	return nil
}

// Root is what the keys of all objects of a cluster begin with, a slash at the end.
func Root(prefix, clusterID string) string {
	if prefix != "" {
		prefix += "/"
	}
	return prefix + keyVersion + "/" + clusterID + "/"
}

// PartitionRoot is what the keys of a partition's objects begin with, a slash at the end. Two hexadecimal digits of a
// checksum stand before the topic, so that a store that splits its load by key has 256 places to do so, and a partition
// is still listed by one prefix.
func PartitionRoot(prefix, clusterID string, topic uuid.UUID, partition int32) string {
	spread := Checksum(binary.BigEndian.AppendUint32(topic[:len(topic):len(topic)], uint32(partition)))
	return fmt.Sprintf("%s%02x/%s/%d/", Root(prefix, clusterID), byte(spread), topic, partition)
}

// Key is the key of a segment's object. No key begins with another key and a slash, which some stores would not allow.
func Key(prefix, clusterID string, s *objectstore.SegmentMetadata) string {
	return fmt.Sprintf("%s%020d-%d-%s%s", PartitionRoot(prefix, clusterID, s.TopicID, s.Partition), s.BaseOffset,
		s.LastLeaderEpoch(), s.ID, keySuffix)
}

// ParseKey finds the segment that a key is about; false when the key is not one of this prefix and cluster.
func ParseKey(prefix, clusterID, key string) (*objectstore.SegmentMetadata, bool) {
	rest, ok := strings.CutPrefix(key, Root(prefix, clusterID))
	if !ok {
		return nil, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 {
		return nil, false
	}
	name, ok := strings.CutSuffix(parts[3], keySuffix)
	if !ok {
		return nil, false
	}
	// An id may have a minus sign in it, so only the first two divide.
	fields := strings.SplitN(name, "-", 3)
	if len(fields) != 3 {
		return nil, false
	}
	if rest, negative := strings.CutPrefix(name[len(fields[0])+1:], "-1-"); negative {
		fields[1], fields[2] = "-1", rest
	}
	topic, err1 := uuid.Parse(parts[1])
	partition, err2 := strconv.ParseInt(parts[2], 10, 32)
	base, err3 := strconv.ParseInt(fields[0], 10, 64)
	epoch, err4 := strconv.ParseInt(fields[1], 10, 32)
	id, err5 := uuid.Parse(fields[2])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil {
		return nil, false
	}
	s := &objectstore.SegmentMetadata{TopicID: topic, Partition: int32(partition), BaseOffset: base, ID: id}
	if epoch >= 0 {
		s.LeaderEpochs = []objectstore.EpochStart{{Epoch: int32(epoch), StartOffset: base}}
	}
	// A key that is written otherwise than Key does, such as with a plus sign, is somebody else's.
	return s, Key(prefix, clusterID, s) == key
}
