package segmentobject

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
)

// Layout is one of the ways to make keys. The custom metadata of a segment says which one its key has, so that a store may get
// another one without losing what it holds.
type Layout byte

const (
	// ByTopicID is for stores that machines alone look at:
	//
	//	{prefix}/v1/{cluster}/{two digits}/{topic id}/{partition}/{base offset}-{epoch}-{segment id}.seg
	//
	// Two hexadecimal digits of a checksum stand before the topic, so that a store that splits its load by key has 256 places
	// to do so, and a partition is still listed by one prefix.
	ByTopicID Layout = iota
	// ByTopicName is for stores whose objects people look at. The name ends as that of a log does in Kafka, and what stands
	// before its first dot is the offset, which kafka-dump-log.sh wants:
	//
	//	{prefix}/v1/{cluster}/{topic}/{topic id}/{partition}/{base offset}.{epoch}-{segment id}.log
	ByTopicName
)

const (
	// keyVersion is the part of a key that says how the rest is made.
	keyVersion    = "v1"
	byIDSuffix    = ".seg"
	byNameSuffix  = ".log"
	byIDDivider   = "-"
	byNameDivider = "."
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

// ListPrefix is what the keys of a partition's objects begin with, a slash at the end. Where that takes the topic's name, which
// is not known, it is what the keys of all objects begin with.
func (l Layout) ListPrefix(prefix, clusterID string, topic uuid.UUID, partition int32) string {
	if l == ByTopicName {
		return Root(prefix, clusterID)
	}
	return partitionRoot(prefix, clusterID, topic, partition)
}

func partitionRoot(prefix, clusterID string, topic uuid.UUID, partition int32) string {
	spread := Checksum(binary.BigEndian.AppendUint32(topic[:len(topic):len(topic)], uint32(partition)))
	return fmt.Sprintf("%s%02x/%s/%d/", Root(prefix, clusterID), byte(spread), topic, partition)
}

// Key is the key of a segment's object. No key begins with another key and a slash, which some stores would not allow.
func (l Layout) Key(prefix, clusterID string, s *objectstore.SegmentMetadata) string {
	if l == ByTopicName {
		return fmt.Sprintf("%s%s/%s/%d/%020d%s%d-%s%s", Root(prefix, clusterID), s.Topic, s.TopicID, s.Partition,
			s.BaseOffset, byNameDivider, s.LastLeaderEpoch(), s.ID, byNameSuffix)
	}
	return fmt.Sprintf("%s%020d%s%d-%s%s", partitionRoot(prefix, clusterID, s.TopicID, s.Partition),
		s.BaseOffset, byIDDivider, s.LastLeaderEpoch(), s.ID, byIDSuffix)
}

// ParseKey finds the segment that a key of any layout is about; false when the key is not one of this prefix and cluster.
func ParseKey(prefix, clusterID, key string) (*objectstore.SegmentMetadata, bool) {
	rest, ok := strings.CutPrefix(key, Root(prefix, clusterID))
	if !ok {
		return nil, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 4 {
		return nil, false
	}
	layout, divider := ByTopicID, byIDDivider
	name, ok := strings.CutSuffix(parts[3], byIDSuffix)
	if !ok {
		layout, divider = ByTopicName, byNameDivider
		if name, ok = strings.CutSuffix(parts[3], byNameSuffix); !ok {
			return nil, false
		}
	}
	offset, name, ok := strings.Cut(name, divider)
	if !ok {
		return nil, false
	}
	// An epoch that is not known is -1, and an id may have a minus sign in it.
	sign := ""
	if strings.HasPrefix(name, "-") {
		sign, name = "-", name[1:]
	}
	epochText, idText, ok := strings.Cut(name, "-")
	if !ok {
		return nil, false
	}
	topic, err1 := uuid.Parse(parts[1])
	partition, err2 := strconv.ParseInt(parts[2], 10, 32)
	base, err3 := strconv.ParseInt(offset, 10, 64)
	epoch, err4 := strconv.ParseInt(sign+epochText, 10, 32)
	id, err5 := uuid.Parse(idText)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil {
		return nil, false
	}
	s := &objectstore.SegmentMetadata{TopicID: topic, Partition: int32(partition), BaseOffset: base, ID: id}
	if layout == ByTopicName {
		s.Topic = parts[0]
	}
	if epoch >= 0 {
		s.LeaderEpochs = []objectstore.EpochStart{{Epoch: int32(epoch), StartOffset: base}}
	}
	// A key that is written otherwise than Key does, such as with a plus sign, is somebody else's.
	return s, layout.Key(prefix, clusterID, s) == key
}
