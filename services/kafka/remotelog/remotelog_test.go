package remotelog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
)

func genUUID(t *rapid.T) uuid.UUID {
	var u uuid.UUID
	copy(u[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
	return u
}

func genRecord(t *rapid.T) Record {
	p := Partition{TopicID: genUUID(t), Partition: rapid.Int32().Draw(t, "partition")}
	topic := rapid.String().Draw(t, "topic")
	var custom []byte
	if rapid.Bool().Draw(t, "custom") {
		custom = append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "metadata")...)
	}
	switch rapid.IntRange(0, 2).Draw(t, "type") {
	case 0:
		s := &Segment{
			Topic: topic, Partition: p, ID: genUUID(t), StartOffset: rapid.Int64().Draw(t, "start"), EndOffset: rapid.Int64().Draw(t, "end"),
			BrokerID: rapid.Int32().Draw(t, "broker"), MaxTimestampMs: rapid.Int64().Draw(t, "max"), EventTimestampMs: rapid.Int64().Draw(t, "event"),
			SizeBytes: rapid.Int32().Draw(t, "size"), CustomMetadata: custom, State: SegmentState(rapid.Int8().Draw(t, "state")),
			TxnIndexEmpty: rapid.Bool().Draw(t, "empty"),
		}
		for range rapid.IntRange(0, 5).Draw(t, "epochs") {
			s.LeaderEpochs = append(s.LeaderEpochs, EpochStart{rapid.Int32().Draw(t, "epoch"), rapid.Int64().Draw(t, "offset")})
		}
		return s
	case 1:
		return &SegmentUpdate{Topic: topic, Partition: p, ID: genUUID(t), BrokerID: 1, EventTimestampMs: 5, CustomMetadata: custom, State: DeleteStarted}
	}
	return &PartitionDelete{Topic: topic, Partition: p, BrokerID: 2, EventTimestampMs: 6, State: PartitionStarted}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRecord(t)
		b := Append(nil, r)
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("got %+v (%v), want %+v", got, err, r)
		}
		if n := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); n < len(b) {
			if _, err := Decode(b[:n]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
		}
	})
}

// TestBytes holds the format to bytes that were put together by hand from the message definitions.
func TestBytes(t *testing.T) {
	id := uuid.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	for want, r := range map[string]Record{
		"010000" + "0274" + hex.EncodeToString(id[:]) + "00000003" + "00" + hex.EncodeToString(id[:]) + "00" +
			"0000000000000005" + "0000000000000009" + "00000001" + "0000000000000007" + "0000000000000008" +
			"02" + "00000002" + "0000000000000005" + "00" + "00000064" + "00" + "00" + "01000101": &Segment{
			Topic: "t", Partition: Partition{id, 3}, ID: id, StartOffset: 5, EndOffset: 9, BrokerID: 1, MaxTimestampMs: 7, EventTimestampMs: 8,
			LeaderEpochs: []EpochStart{{2, 5}}, SizeBytes: 100, TxnIndexEmpty: true,
		},
		"010100" + "0274" + hex.EncodeToString(id[:]) + "00000003" + "00" + hex.EncodeToString(id[:]) + "00" +
			"00000001" + "0000000000000008" + "03abcd" + "01" + "00": &SegmentUpdate{
			Topic: "t", Partition: Partition{id, 3}, ID: id, BrokerID: 1, EventTimestampMs: 8, CustomMetadata: []byte{0xab, 0xcd}, State: CopyFinished,
		},
		"010200" + "0274" + hex.EncodeToString(id[:]) + "00000003" + "00" + "00000001" + "0000000000000008" + "02" + "00": &PartitionDelete{
			Topic: "t", Partition: Partition{id, 3}, BrokerID: 1, EventTimestampMs: 8, State: PartitionFinished,
		},
	} {
		if got := hex.EncodeToString(Append(nil, r)); got != want {
			t.Errorf("%T:\n%s, want\n%s", r, got, want)
		}
	}
}

func TestMayFollow(t *testing.T) {
	allowed := map[[2]SegmentState]bool{
		{CopyStarted, CopyStarted}: true, {CopyStarted, CopyFinished}: true, {CopyStarted, DeleteStarted}: true,
		{CopyFinished, CopyFinished}: true, {CopyFinished, DeleteStarted}: true,
		{DeleteStarted, DeleteStarted}: true, {DeleteStarted, DeleteFinished}: true, {DeleteFinished, DeleteFinished}: true,
	}
	for from := CopyStarted; from <= DeleteFinished; from++ {
		for to := CopyStarted; to <= DeleteFinished; to++ {
			if got := to.MayFollow(from); got != allowed[[2]SegmentState{from, to}] {
				t.Errorf("%s after %s: %v", to, from, got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	id := uuid.Random()
	f.Add(Append(nil, &Segment{Topic: "t", ID: id, LeaderEpochs: []EpochStart{{1, 2}}, TxnIndexEmpty: true, CustomMetadata: []byte("x")}))
	f.Add(Append(nil, &SegmentUpdate{Topic: "t", ID: id}))
	f.Add(Append(nil, &PartitionDelete{Topic: "t"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil || r == nil {
			return
		}
		// What was read can be written, and reads as the same again; unknown tags are lost.
		again, err := Decode(Append(nil, r))
		if err != nil || !bytes.Equal(Append(nil, again), Append(nil, r)) {
			t.Fatalf("%+v became %+v (%v)", r, again, err)
		}
	})
}
