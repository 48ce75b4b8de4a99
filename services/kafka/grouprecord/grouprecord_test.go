package grouprecord

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
)

// The golden bytes are those that Apache Kafka 4.4 writes for these values.
func TestGolden(t *testing.T) {
	id := uuid.UUID{0: 1, 15: 2}
	leader, protocol := "m", "range"
	group := &kmsg.GroupMetadataValue{
		ProtocolType: "consumer", Generation: 3, Protocol: &protocol, Leader: &leader, CurrentStateTimestamp: 1700000000000,
		Members: []kmsg.GroupMetadataValueMember{{
			MemberID: "m", ClientID: "c", ClientHost: "/h", RebalanceTimeoutMillis: 5, SessionTimeoutMillis: 6,
			Subscription: []byte{1}, Assignment: []byte{2},
		}},
	}
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"offset key", AppendOffsetKey(nil, "g", "t", 7), "0001" + "000167" + "000174" + "00000007"},
		{"group key", AppendGroupKey(nil, "g"), "0002" + "000167"},
		{"offset", AppendOffsetValue(nil, &Offset{Offset: 5, LeaderEpoch: 1, Metadata: "n", CommitTimestampMs: 1700000000000, ExpireTimestampMs: NoTimestamp, TopicID: id}),
			"0004" + "0000000000000005" + "00000001" + "026e" + "0000018bcfe56800" + "010010" + "01000000000000000000000000000002"},
		{"offset without topic id", AppendOffsetValue(nil, &Offset{Offset: 5, LeaderEpoch: -1, CommitTimestampMs: 1700000000000, ExpireTimestampMs: NoTimestamp}),
			"0004" + "0000000000000005" + "ffffffff" + "01" + "0000018bcfe56800" + "00"},
		{"offset with expiry", AppendOffsetValue(nil, &Offset{Offset: 5, LeaderEpoch: 1, Metadata: "n", CommitTimestampMs: 1700000000000, ExpireTimestampMs: 1700000000001}),
			"0001" + "0000000000000005" + "00016e" + "0000018bcfe56800" + "0000018bcfe56801"},
		{"group", AppendGroupValue(nil, group), "0003" + "0008636f6e73756d6572" + "00000003" + "000572616e6765" + "00016d" + "0000018bcfe56800" + "00000001" +
			"00016d" + "ffff" + "000163" + "00022f68" + "00000005" + "00000006" + "0000000101" + "0000000102"},
		{"empty group", AppendGroupValue(nil, &kmsg.GroupMetadataValue{CurrentStateTimestamp: -1}), "0003" + "0000" + "00000000" + "ffff" + "ffff" + "ffffffffffffffff" + "00000000"},
	} {
		if got := hex.EncodeToString(tt.got); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestOldOffsetVersions(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  Offset
	}{
		{"0000" + "0000000000000005" + "00016e" + "0000000000000009", Offset{5, -1, "n", 9, -1, uuid.Zero}},
		{"0001" + "0000000000000005" + "00016e" + "0000000000000009" + "000000000000000a", Offset{5, -1, "n", 9, 10, uuid.Zero}},
		{"0002" + "0000000000000005" + "00016e" + "0000000000000009", Offset{5, -1, "n", 9, -1, uuid.Zero}},
		{"0003" + "0000000000000005" + "00000002" + "00016e" + "0000000000000009", Offset{5, 2, "n", 9, -1, uuid.Zero}},
	} {
		value, err := hex.DecodeString(tt.value)
		if err != nil {
			t.Fatal(err)
		}
		for _, recordType := range []byte{0, 1} {
			key := AppendOffsetKey(nil, "g", "t", 7)
			key[1] = recordType
			r, err := Decode(key, value)
			if err != nil || *r.Offset != tt.want || r.Group != "g" || r.Topic != "t" || r.Partition != 7 {
				t.Errorf("%s: %+v %v", tt.value, r, err)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	key := AppendOffsetKey(nil, "g", "t", 7)
	for name, tt := range map[string]struct{ key, value []byte }{
		"no key":        {nil, nil},
		"short key":     {key[:5], nil},
		"new version":   {key, []byte{0, 5, 0}},
		"short value":   {key, []byte{0, 4, 0}},
		"no version":    {key, []byte{0}},
		"short group":   {AppendGroupKey(nil, "g"), []byte{0, 3, 0}},
		"group version": {AppendGroupKey(nil, "g"), []byte{0, 9}},
	} {
		if _, err := Decode(tt.key, tt.value); err == nil || errors.Is(err, ErrUnknownType) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Decode([]byte{0, 11, 0, 0}, nil); !errors.Is(err, ErrUnknownType) {
		t.Errorf("another kind of group: %v", err)
	}
	if r, err := Decode(key, nil); err != nil || r.Offset != nil || r.Type != TypeOffsetCommit {
		t.Errorf("tombstone: %+v %v", r, err)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 20, 200)
		o := Offset{
			Offset: rapid.Int64().Draw(t, "offset"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"), Metadata: text.Draw(t, "metadata"),
			CommitTimestampMs: rapid.Int64().Draw(t, "time"), ExpireTimestampMs: NoTimestamp,
			TopicID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		}
		group, topic, p := text.Draw(t, "group"), text.Draw(t, "topic"), rapid.Int32().Draw(t, "partition")
		r, err := Decode(AppendOffsetKey(nil, group, topic, p), AppendOffsetValue(nil, &o))
		if err != nil || *r.Offset != o || r.Group != group || r.Topic != topic || r.Partition != p {
			t.Fatalf("%+v %v", r, err)
		}
		v := kmsg.NewGroupMetadataValue()
		v.Version = groupMetadataValueVersion
		v.ProtocolType, v.Generation, v.CurrentStateTimestamp = text.Draw(t, "type"), rapid.Int32().Draw(t, "generation"), rapid.Int64().Draw(t, "since")
		for range rapid.IntRange(0, 3).Draw(t, "members") {
			m := kmsg.NewGroupMetadataValueMember()
			m.MemberID, m.ClientID, m.ClientHost = text.Draw(t, "id"), text.Draw(t, "client"), text.Draw(t, "host")
			m.Subscription = rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "subscription")
			m.Assignment = rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "assignment")
			v.Members = append(v.Members, m)
		}
		r, err = Decode(AppendGroupKey(nil, group), AppendGroupValue(nil, &v))
		if err != nil || r.Group != group {
			t.Fatalf("%+v %v", r, err)
		}
		if len(v.Members) == 0 {
			r.Metadata.Members = nil
		}
		if !reflect.DeepEqual(*r.Metadata, v) {
			t.Fatalf("%+v\n%+v", *r.Metadata, v)
		}
	})
}

// FuzzDecode makes sure that no bytes in the log can do harm, and that what is understood is written back the same.
func FuzzDecode(f *testing.F) {
	f.Add(AppendOffsetKey(nil, "g", "t", 7), AppendOffsetValue(nil, &Offset{Offset: 5, ExpireTimestampMs: NoTimestamp}))
	f.Add(AppendGroupKey(nil, "g"), AppendGroupValue(nil, &kmsg.GroupMetadataValue{}))
	f.Add([]byte{0, 2, 0, 1, 'g'}, []byte{0, 3, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 127, 255, 255, 255})
	f.Add(AppendConsumerKey(nil, &Consumer{Type: TypeConsumerMember, Group: "g", Name: "m"}), []byte{0, 0, 0, 0, 2, 'c', 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 3, 1, 0, 0})
	f.Add([]byte{0, 8, 0, 1, 'g', 0, 1, 'm'}, []byte{0, 0, 0, 0, 0, 4, 0, 0, 0, 3, 1, 1, 1, 0})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := Decode(key, value)
		if err == nil && r.Consumer != nil {
			fuzzConsumer(t, r.Consumer)
			return
		}
		if err != nil || r.Offset == nil {
			return
		}
		again, err := Decode(AppendOffsetKey(nil, r.Group, r.Topic, r.Partition), AppendOffsetValue(nil, r.Offset))
		if err != nil || again.Group != r.Group || again.Topic != r.Topic || again.Partition != r.Partition || again.Offset.Offset != r.Offset.Offset {
			t.Fatalf("%+v %+v %v", r, again, err)
		}
	})
}

// fuzzConsumer writes a record that was read, and reads it again.
func fuzzConsumer(t *testing.T, r *Consumer) {
	value, has := AppendConsumerValue(nil, r)
	if !has {
		value = nil
	}
	if r.Partitions {
		return // its value is never written
	}
	again, err := Decode(AppendConsumerKey(nil, r), value)
	if err != nil || !reflect.DeepEqual(again.Consumer, r) {
		t.Fatalf("%+v %+v %v", r, again.Consumer, err)
	}
}

// The golden bytes of consumer groups follow the schemas of Apache Kafka 4.4: compact forms, tagged fields left out at their defaults.
func TestGoldenConsumer(t *testing.T) {
	id := uuid.UUID{0: 1, 15: 2}
	topic := "01000000000000000000000000000002"
	regex, uniform := "", "uniform"
	for _, tt := range []struct {
		name       string
		record     Consumer
		key, value string
	}{
		{"epoch", Consumer{Type: TypeConsumerGroup, Group: "g", Epoch: &ConsumerEpoch{Epoch: 7, MetadataHash: 258}},
			"0003" + "000167", "0000" + "00000007" + "010008" + "0000000000000102"},
		{"epoch without hash", Consumer{Type: TypeConsumerGroup, Group: "g", Epoch: &ConsumerEpoch{Epoch: 7}}, "0003" + "000167", "0000" + "00000007" + "00"},
		{"member", Consumer{Type: TypeConsumerMember, Group: "g", Name: "m", Member: &ConsumerMember{
			ClientID: "c", ClientHost: "/h", Topics: []string{"t"}, Regex: &regex, RebalanceTimeoutMs: 5, Assignor: &uniform,
		}}, "0005" + "000167" + "00016d", "0000" + "00" + "00" + "0263" + "032f68" + "02" + "0274" + "01" + "00000005" + "08756e69666f726d" + "00"},
		{"classic member", Consumer{Type: TypeConsumerMember, Group: "g", Name: "m", Member: &ConsumerMember{
			ClientID: "c", ClientHost: "/h", Topics: []string{}, Regex: &regex, RebalanceTimeoutMs: -1,
			Classic: &ClassicMember{SessionTimeoutMs: 9, Protocols: []ClassicProtocol{{Name: "r", Metadata: []byte{1}}}},
		}}, "0005" + "000167" + "00016d", "0000" + "00" + "00" + "0263" + "032f68" + "01" + "01" + "ffffffff" + "00" +
			"01000c" + "01" + "00000009" + "02" + "0272" + "0201" + "00" + "00"},
		{"target", Consumer{Type: TypeConsumerTarget, Group: "g", Target: &ConsumerTarget{Epoch: 3, TimestampMs: 5}}, "0006" + "000167",
			"0000" + "00000003" + "010008" + "0000000000000005"},
		{"target of a member", Consumer{Type: TypeConsumerTargetMember, Group: "g", Name: "m", Planned: &ConsumerPlanned{
			Topics: []TopicPartitions{{TopicID: id, Partitions: []int32{0, 2}}},
		}}, "0007" + "000167" + "00016d", "0000" + "02" + topic + "03" + "00000000" + "00000002" + "00" + "00"},
		{"current", Consumer{Type: TypeConsumerCurrent, Group: "g", Name: "m", Current: &ConsumerCurrent{
			Epoch: 4, PreviousEpoch: 3, State: 1, Assigned: []TopicPartitions{{TopicID: id, Partitions: []int32{1}, Epochs: []int32{4}}},
			PendingRemoval: []TopicPartitions{},
		}}, "0008" + "000167" + "00016d", "0000" + "00000004" + "00000003" + "01" + "02" + topic + "02" + "00000001" + "0100" + "05" + "02" + "00000004" + "01" + "00"},
		{"regex", Consumer{Type: TypeConsumerRegex, Group: "g", Name: "a.*", Regex: &ConsumerRegex{Topics: []string{"ab"}, Version: 1, TimestampMs: 2}},
			"0010" + "000167" + "0003612e2a", "0000" + "02" + "036162" + "0000000000000001" + "0000000000000002" + "00"},
		{"deletion", Consumer{Type: TypeConsumerPartitions, Group: "g"}, "0004" + "000167", ""},
	} {
		key := AppendConsumerKey(nil, &tt.record)
		value, has := AppendConsumerValue(nil, &tt.record)
		if hex.EncodeToString(key) != tt.key || hex.EncodeToString(value) != tt.value || has != (tt.value != "") {
			t.Errorf("%s:\n got %x %x\nwant %s %s", tt.name, key, value, tt.key, tt.value)
		}
		if !has {
			value = nil
		}
		decoded, err := Decode(key, value)
		if err != nil || !reflect.DeepEqual(*decoded.Consumer, tt.record) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", tt.name, err, decoded.Consumer, tt.record)
		}
	}
}
