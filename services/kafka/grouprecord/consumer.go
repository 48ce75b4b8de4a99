package grouprecord

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"

	"chancery/services/kafka/uuid"
)

// The record types of consumer groups (KIP-848). TypeConsumerPartitions is what brokers before 4.1 kept of topics; it is only
// deleted.
const (
	TypeConsumerGroup        int16 = 3
	TypeConsumerPartitions   int16 = 4
	TypeConsumerMember       int16 = 5
	TypeConsumerTarget       int16 = 6
	TypeConsumerTargetMember int16 = 7
	TypeConsumerCurrent      int16 = 8
	TypeConsumerRegex        int16 = 16
)

// Consumer is a record of a consumer group: its key, and the one part of the value that belongs to its type. All parts are
// nil in a deletion.
type Consumer struct {
	Type  int16
	Group string
	// Name is the member's id, or the regular expression; empty for what the group has once.
	Name string

	Epoch   *ConsumerEpoch
	Member  *ConsumerMember
	Target  *ConsumerTarget
	Planned *ConsumerPlanned
	Current *ConsumerCurrent
	Regex   *ConsumerRegex
	// Partitions says that the value is the outdated one of TypeConsumerPartitions, which is not read.
	Partitions bool
}

// ConsumerEpoch is the group's epoch and the hash of what its topics look like.
type ConsumerEpoch struct {
	Epoch        int32
	MetadataHash int64
}

// ConsumerMember is what a member says about itself.
type ConsumerMember struct {
	InstanceID, RackID *string
	ClientID           string
	ClientHost         string
	// Topics are sorted.
	Topics             []string
	Regex              *string
	RebalanceTimeoutMs int32
	Assignor           *string
	// Classic is set for a member that speaks the classic protocol.
	Classic *ClassicMember
}

// ClassicMember is what only members that speak the classic protocol have.
type ClassicMember struct {
	SessionTimeoutMs int32
	Protocols        []ClassicProtocol
}

// ClassicProtocol is an assignor that a member knows, with its subscription.
type ClassicProtocol struct {
	Name     string
	Metadata []byte
}

// ConsumerTarget is the epoch for which the target assignment was made, and when; 0 when that is not known.
type ConsumerTarget struct {
	Epoch       int32
	TimestampMs int64
}

// ConsumerPlanned is what a member is to have.
type ConsumerPlanned struct{ Topics []TopicPartitions }

// TopicPartitions are partitions of a topic. Epochs, nil or of the same length, are those at which a member was given them.
type TopicPartitions struct {
	TopicID    uuid.UUID
	Partitions []int32
	Epochs     []int32
}

// ConsumerCurrent is what a member has and must give up, and how far it has come.
type ConsumerCurrent struct {
	Epoch, PreviousEpoch     int32
	State                    int8
	Assigned, PendingRemoval []TopicPartitions
}

// ConsumerRegex is the topics that a regular expression stands for, as of an offset of the metadata log.
type ConsumerRegex struct {
	Topics      []string
	Version     int64
	TimestampMs int64
}

// consumerValueVersion is the only version of the values.
const consumerValueVersion int16 = 0

// hasName says whether the key of a type names a member or an expression beside the group.
func hasName(recordType int16) bool {
	switch recordType {
	case TypeConsumerMember, TypeConsumerTargetMember, TypeConsumerCurrent, TypeConsumerRegex:
		return true
	}
	return false
}

// AppendConsumerKey appends the key of a consumer group's record.
func AppendConsumerKey(dst []byte, r *Consumer) []byte {
	dst = kbin.AppendInt16(dst, r.Type)
	dst = kbin.AppendString(dst, r.Group)
	if hasName(r.Type) {
		dst = kbin.AppendString(dst, r.Name)
	}
	return dst
}

// AppendConsumerValue appends the value of a consumer group's record. It says false for a deletion, which has none.
func AppendConsumerValue(dst []byte, r *Consumer) ([]byte, bool) {
	at := len(dst)
	dst = kbin.AppendInt16(dst, consumerValueVersion)
	switch {
	case r.Epoch != nil:
		dst = kbin.AppendInt32(dst, r.Epoch.Epoch)
		dst = appendLongTag(dst, r.Epoch.MetadataHash)
	case r.Member != nil:
		dst = appendMember(dst, r.Member)
	case r.Target != nil:
		dst = kbin.AppendInt32(dst, r.Target.Epoch)
		dst = appendLongTag(dst, r.Target.TimestampMs)
	case r.Planned != nil:
		dst = append(appendTopics(dst, r.Planned.Topics), 0)
	case r.Current != nil:
		dst = kbin.AppendInt32(dst, r.Current.Epoch)
		dst = kbin.AppendInt32(dst, r.Current.PreviousEpoch)
		dst = kbin.AppendInt8(dst, r.Current.State)
		dst = appendTopics(dst, r.Current.Assigned)
		dst = append(appendTopics(dst, r.Current.PendingRemoval), 0)
	case r.Regex != nil:
		dst = appendStrings(dst, r.Regex.Topics)
		dst = kbin.AppendInt64(dst, r.Regex.Version)
		dst = append(kbin.AppendInt64(dst, r.Regex.TimestampMs), 0)
	default:
		return dst[:at], false
	}
	return dst, true
}

// appendLongTag appends the tagged fields of a value that has one int64 with tag 0, left out when it is 0.
func appendLongTag(dst []byte, v int64) []byte {
	if v == 0 {
		return append(dst, 0)
	}
	return kbin.AppendInt64(append(dst, 1, 0, 8), v)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = kbin.AppendCompactArrayLen(dst, len(list))
	for _, s := range list {
		dst = kbin.AppendCompactString(dst, s)
	}
	return dst
}

func appendTopics(dst []byte, topics []TopicPartitions) []byte {
	dst = kbin.AppendCompactArrayLen(dst, len(topics))
	for i := range topics {
		t := &topics[i]
		dst = kbin.AppendUuid(dst, t.TopicID)
		dst = appendInts(dst, t.Partitions)
		if t.Epochs == nil {
			dst = append(dst, 0)
			continue
		}
		size := kbin.UvarintLen(uint32(len(t.Epochs)+1)) + 4*len(t.Epochs)
		dst = kbin.AppendUvarint(append(dst, 1, 0), uint32(size))
		dst = appendInts(dst, t.Epochs)
	}
	return dst
}

func appendInts(dst []byte, list []int32) []byte {
	dst = kbin.AppendCompactArrayLen(dst, len(list))
	for _, n := range list {
		dst = kbin.AppendInt32(dst, n)
	}
	return dst
}

func appendMember(dst []byte, m *ConsumerMember) []byte {
	dst = kbin.AppendCompactNullableString(dst, m.InstanceID)
	dst = kbin.AppendCompactNullableString(dst, m.RackID)
	dst = kbin.AppendCompactString(dst, m.ClientID)
	dst = kbin.AppendCompactString(dst, m.ClientHost)
	dst = appendStrings(dst, m.Topics)
	dst = kbin.AppendCompactNullableString(dst, m.Regex)
	dst = kbin.AppendInt32(dst, m.RebalanceTimeoutMs)
	dst = kbin.AppendCompactNullableString(dst, m.Assignor)
	if m.Classic == nil {
		return append(dst, 0)
	}
	// A nullable structure begins with a byte that says that it is there.
	tag := kbin.AppendInt32([]byte{1}, m.Classic.SessionTimeoutMs)
	tag = kbin.AppendCompactArrayLen(tag, len(m.Classic.Protocols))
	for _, p := range m.Classic.Protocols {
		tag = kbin.AppendCompactString(tag, p.Name)
		tag = append(kbin.AppendCompactBytes(tag, p.Metadata), 0)
	}
	tag = append(tag, 0)
	dst = kbin.AppendUvarint(append(dst, 1, 0), uint32(len(tag)))
	return append(dst, tag...)
}

var errShort = errors.New("the bytes end too early")

// decodeConsumer reads a record of a consumer group.
func decodeConsumer(recordType int16, key, value []byte) (*Consumer, error) {
	k := kbin.Reader{Src: key[2:]}
	r := &Consumer{Type: recordType, Group: k.String()}
	if hasName(recordType) {
		r.Name = k.String()
	}
	if !k.Ok() {
		return nil, fmt.Errorf("key of record type %d: %w", recordType, errShort)
	}
	if value == nil {
		return r, nil
	}
	v := kbin.Reader{Src: value}
	if version := v.Int16(); v.Ok() && version != consumerValueVersion {
		return nil, fmt.Errorf("record type %d of group %q: unknown value version %d", recordType, r.Group, version)
	}
	readConsumer(&v, r)
	if !v.Ok() {
		return nil, fmt.Errorf("record type %d of group %q: %w", recordType, r.Group, errShort)
	}
	return r, nil
}

func readConsumer(v *kbin.Reader, r *Consumer) {
	switch r.Type {
	case TypeConsumerGroup:
		r.Epoch = &ConsumerEpoch{Epoch: v.Int32()}
		readTags(v, func(tag kbin.Reader) { r.Epoch.MetadataHash = tag.Int64() })
	case TypeConsumerPartitions:
		r.Partitions = true
	case TypeConsumerMember:
		r.Member = readMember(v)
	case TypeConsumerTarget:
		r.Target = &ConsumerTarget{Epoch: v.Int32()}
		readTags(v, func(tag kbin.Reader) { r.Target.TimestampMs = tag.Int64() })
	case TypeConsumerTargetMember:
		r.Planned = &ConsumerPlanned{Topics: readTopics(v)}
	case TypeConsumerCurrent:
		r.Current = &ConsumerCurrent{
			Epoch: v.Int32(), PreviousEpoch: v.Int32(), State: v.Int8(), Assigned: readTopics(v), PendingRemoval: readTopics(v),
		}
	case TypeConsumerRegex:
		r.Regex = &ConsumerRegex{Topics: readStrings(v), Version: v.Int64(), TimestampMs: v.Int64()}
	}
}

// readTags reads tagged fields and gives that with tag 0 to first. Others are of later versions and have no meaning here.
func readTags(v *kbin.Reader, first func(tag kbin.Reader)) {
	for n := v.Uvarint(); n > 0 && v.Ok(); n-- {
		tag, size := v.Uvarint(), v.Uvarint()
		if uint64(size) > uint64(len(v.Src)) {
			v.Span(len(v.Src) + 1) // marks the reader as failed
			return
		}
		body := v.Span(int(size))
		if tag == 0 && first != nil {
			first(kbin.Reader{Src: body})
		}
	}
}

// readCount reads the length of an array of elements that take at least size bytes each.
func readCount(v *kbin.Reader, size int) int {
	n := int(v.CompactArrayLen())
	if n < 0 || n > len(v.Src)/size {
		if n > 0 {
			v.Span(len(v.Src) + 1) // marks the reader as failed
		}
		return 0
	}
	return n
}

func readStrings(v *kbin.Reader) []string {
	list := make([]string, readCount(v, 1))
	for i := range list {
		list[i] = v.CompactString()
	}
	return list
}

func readInts(v *kbin.Reader) []int32 {
	list := make([]int32, readCount(v, 4))
	for i := range list {
		list[i] = v.Int32()
	}
	return list
}

func readTopics(v *kbin.Reader) []TopicPartitions {
	list := make([]TopicPartitions, readCount(v, 18))
	for i := range list {
		list[i].TopicID = v.Uuid()
		list[i].Partitions = readInts(v)
		readTags(v, func(tag kbin.Reader) {
			if epochs := readInts(&tag); tag.Ok() && len(epochs) == len(list[i].Partitions) {
				list[i].Epochs = epochs
			}
		})
	}
	return list
}

func readMember(v *kbin.Reader) *ConsumerMember {
	m := &ConsumerMember{
		InstanceID: v.CompactNullableString(), RackID: v.CompactNullableString(),
		ClientID: v.CompactString(), ClientHost: v.CompactString(),
		Topics: readStrings(v), Regex: v.CompactNullableString(), RebalanceTimeoutMs: v.Int32(), Assignor: v.CompactNullableString(),
	}
	readTags(v, func(tag kbin.Reader) {
		if tag.Int8() < 0 {
			return
		}
		c := &ClassicMember{SessionTimeoutMs: tag.Int32()}
		c.Protocols = make([]ClassicProtocol, readCount(&tag, 3))
		for i := range c.Protocols {
			c.Protocols[i] = ClassicProtocol{Name: tag.CompactString(), Metadata: slices.Clone(tag.CompactBytes())}
			readTags(&tag, nil)
		}
		if tag.Ok() {
			m.Classic = c
		}
	})
	return m
}
