package metarecord

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
)

// golden reads a file of lines that end in the hex of a record; what stands before it is returned too.
func golden(t testing.TB, file string) (labels []string, frames [][]byte) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		frame, err := hex.DecodeString(fields[len(fields)-1])
		if err != nil {
			t.Fatal(err)
		}
		labels, frames = append(labels, fields[0]), append(frames, frame)
	}
	return labels, frames
}

// TestKafkaLog reads what Apache Kafka wrote, and must write the same bytes again in the same version.
func TestKafkaLog(t *testing.T) {
	offsets, frames := golden(t, "apache-kafka-4.4.txt")
	seen := make(map[Type]int)
	for i, frame := range frames {
		r, err := Decode(frame)
		if err != nil {
			t.Fatalf("offset %s: %v", offsets[i], err)
		}
		seen[r.RecordType()]++
		if again := AppendVersion(nil, r, int16(frame[2])); !bytes.Equal(again, frame) {
			t.Errorf("offset %s: %s\n read %x\nwrote %x", offsets[i], r.RecordType(), frame, again)
		}
		if again := Encode(r); !bytes.Equal(again, frame) {
			t.Errorf("offset %s: %s is of version %d, we write version %d", offsets[i], r.RecordType(), frame[2], again[2])
		}
	}
	if seen[Partition] == 0 || seen[RegisterBroker] == 0 || seen[NoOp] == 0 || seen[BeginTransaction] == 0 {
		t.Errorf("the file lacks records: %v", seen)
	}
}

// TestKafkaReadsOurs pins the bytes of records of each type that Kafka's own decoder has read back with the right value in
// each field (testdata/kafka-decoder.txt has what it showed, for the record types that Kafka knows).
func TestKafkaReadsOurs(t *testing.T) {
	names, frames := golden(t, "ours.txt")
	for i, r := range samples() {
		if i >= len(frames) || names[i] != r.RecordType().String() || !bytes.Equal(Encode(r), frames[i]) {
			t.Errorf("%s %x is not in testdata/ours.txt", r.RecordType(), Encode(r))
		}
	}
}

func ids(n ...byte) []uuid.UUID {
	var out []uuid.UUID
	for _, b := range n {
		out = append(out, uuid.UUID{b, 15: b})
	}
	return out
}

func ptr(s string) *string { return &s }

// samples are one record of each type, no two fields of which have the same value.
func samples() []Record {
	id := uuid.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	endpoints := []Endpoint{{"GRPC", "host", 9092, 0}, {"SSL", "other", 65535, 1}}
	features := []Feature{{"metadata.version", 7, 33}, {"x", -1, 0}}
	change := NewPartitionChange(id, 21)
	change.ISR, change.Leader, change.Replicas = []int32{22}, 23, []int32{24, 25}
	change.RemovingReplicas, change.AddingReplicas, change.LeaderRecoveryState = []int32{26}, []int32{}, Recovering
	change.EligibleLeaderReplicas, change.LastKnownELR, change.Directories = []int32{27}, []int32{28}, ids(29, 30)
	return []Record{
		&RegisterBrokerRecord{1, false, id, 2, endpoints, features, ptr("rack"), true, false, ids(3, 4), ids(5)},
		&UnregisterBrokerRecord{1, 2},
		&TopicRecord{"topic", id},
		&PartitionRecord{1, id, []int32{2, 3}, []int32{3}, []int32{4}, []int32{5}, 6, Recovering, 7, 8, ids(9, 10), []int32{11}, []int32{12}},
		&ConfigRecord{2, "topic", "retention.ms", ptr("5")},
		change,
		&FenceBrokerRecord{1, 2},
		&UnfenceBrokerRecord{1, 2},
		&RemoveTopicRecord{id},
		&DelegationTokenRecord{"User:a", "User:b", []string{"User:c", "User:d"}, 1, 2, 3, "token"},
		&UserScramCredentialRecord{"alice", 1, []byte("salt"), []byte("stored"), []byte("server"), 4096},
		&FeatureLevelRecord{"share.version", 2},
		&ClientQuotaRecord{[]QuotaEntity{{"user", ptr("alice")}, {"client-id", nil}}, "producer_byte_rate", 1.5, true},
		&ProducerIDsRecord{1, 2, 3000},
		&BrokerRegistrationChangeRecord{1, 2, FencedUnfence, ControlledShutdownEnter, ids(3), []uuid.UUID{}},
		&AccessControlEntryRecord{id, 2, "topic", 3, "User:bob", "*", 4, 5},
		&RemoveAccessControlEntryRecord{id},
		&NoOpRecord{},
		&ZkMigrationStateRecord{2},
		&RemoveUserScramCredentialRecord{"alice", 2},
		&BeginTransactionRecord{ptr("name")},
		&EndTransactionRecord{},
		&AbortTransactionRecord{ptr("reason")},
		&RemoveDelegationTokenRecord{"token"},
		&RegisterControllerRecord{1, id, true, endpoints, features},
		&ClearElrRecord{"topic"},
		&UnregisterControllerRecord{1},
		&RegisterServiceRecord{1, 2, 3, id, endpoints, ptr("rack"), "4.4", true},
		&ServiceChangeRecord{1, 2, 3, true},
		&UnregisterServiceRecord{1, 2, 3},
		&ShardRecord{1, 2, 3, 4},
	}
}

func TestSamplesAreComplete(t *testing.T) {
	all := samples()
	if len(all) != len(specs) {
		t.Errorf("%d samples for %d record types", len(all), len(specs))
	}
	for _, r := range all {
		for v := range specs[r.RecordType()].version + 1 {
			decoded, err := Decode(AppendVersion(nil, r, v))
			if err != nil {
				t.Errorf("%s version %d: %v", r.RecordType(), v, err)
			}
			if v == specs[r.RecordType()].version && !reflect.DeepEqual(decoded, r) {
				t.Errorf("%s: wrote %+v, read %+v", r.RecordType(), r, decoded)
			}
		}
	}
}

// drawRecord makes a record of a type with random fields, in the form in which it is read: empty lists that cannot be
// null are nil.
func drawRecord(t *rapid.T) Record {
	kind := rapid.SampledFrom(samples()).Draw(t, "kind").RecordType()
	r := specs[kind].make()
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		drawField(t, v.Type().Field(i).Name, v.Field(i), nullable(kind, v.Type().Field(i).Name))
	}
	return r
}

// nullable says whether a list may be null on the wire, so that nil and empty differ.
func nullable(kind Type, field string) bool {
	switch kind {
	case PartitionChange:
		return true
	case Partition:
		return field == "EligibleLeaderReplicas" || field == "LastKnownELR"
	}
	return field == "CordonedLogDirs"
}

func drawField(t *rapid.T, name string, v reflect.Value, nullable bool) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, name) >> (64 - v.Type().Bits()))
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(rapid.Uint64().Draw(t, name) >> (64 - v.Type().Bits()))
	case reflect.Float64:
		v.SetFloat(rapid.Float64().Draw(t, name))
	case reflect.String:
		v.SetString(rapid.String().Draw(t, name))
	case reflect.Array:
		reflect.Copy(v, reflect.ValueOf(rapid.SliceOfN(rapid.Byte(), v.Len(), v.Len()).Draw(t, name)))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name) {
			v.Set(reflect.New(v.Type().Elem()))
			drawField(t, name, v.Elem(), false)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			drawField(t, v.Type().Field(i).Name, v.Field(i), false)
		}
	case reflect.Slice:
		n := rapid.IntRange(-1, 5).Draw(t, name)
		if n < 0 || n == 0 && !nullable {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			drawField(t, name, v.Index(i), false)
		}
	default:
		t.Fatalf("no values for a %s", v.Kind())
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		frame := Encode(r)
		decoded, err := Decode(frame)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if !reflect.DeepEqual(r, decoded) {
			t.Fatalf("wrote %+v, read %+v", r, decoded)
		}
		for n := range len(frame) {
			if _, err := Decode(frame[:n]); err == nil {
				t.Fatalf("%d of %d bytes of %+v were accepted", n, len(frame), r)
			}
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"nothing":                 {nil, ErrCorrupt},
		"frame version 0":         {[]byte{0, 20, 0, 0}, ErrUnknownVersion},
		"unknown type":            {[]byte{1, 6, 0, 0}, ErrUnknownType},
		"type beyond 16 bits":     {[]byte{1, 0xff, 0xff, 0x7f, 0, 0}, ErrUnknownType},
		"unknown version":         {[]byte{1, 20, 1, 0}, ErrUnknownVersion},
		"bytes left over":         {[]byte{1, 20, 0, 0, 0}, ErrCorrupt},
		"huge list":               {append(append([]byte{1, 3, 2}, make([]byte, 20)...), 0xff, 0xff, 0xff, 0xff, 0x0f), ErrCorrupt},
		"null name":               {append([]byte{1, 2, 0, 0}, make([]byte, 17)...), ErrCorrupt},
		"tag beyond the end":      {[]byte{1, 20, 0, 1, 5, 9}, ErrCorrupt},
		"tag longer than its use": {[]byte{1, 23, 0, 1, 0, 3, 2, 'x', 'y'}, ErrCorrupt},
	} {
		if _, err := Decode(c.frame); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
}

func TestUnknownTagsAreSkipped(t *testing.T) {
	r, err := Decode([]byte{1, 23, 0, 2, 0, 2, 2, 'x', 7, 3, 1, 2, 3})
	if err != nil || *r.(*BeginTransactionRecord).Name != "x" {
		t.Errorf("got %+v, %v", r, err)
	}
	// A tag that came in a later version is unknown to an earlier one.
	change := NewPartitionChange(uuid.UUID{}, 0)
	change.LastKnownELR = []int32{1}
	frame := Encode(change)
	frame[2] = 1
	r, err = Decode(frame)
	if err != nil || r.(*PartitionChangeRecord).LastKnownELR != nil {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestBatches(t *testing.T) {
	frames := EncodeAll(samples())
	records, err := DecodeAll(frames)
	if err != nil || !reflect.DeepEqual(records, samples()) {
		t.Errorf("got %v, %v", records, err)
	}
	frames[3] = frames[3][:5]
	if _, err := DecodeAll(frames); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "record 3 of") {
		t.Errorf("got %v", err)
	}
	if Type(6).Known() || Type(6).String() != "UNKNOWN_RECORD_6" || !Shard.Known() {
		t.Error("wrong about which types are known")
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range samples() {
		f.Add(Encode(r))
	}
	_, frames := golden(f, "apache-kafka-4.4.txt")
	for _, frame := range frames {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r, err := Decode(frame)
		if err != nil {
			return
		}
		again, err := Decode(Encode(r))
		if err != nil {
			t.Fatalf("%+v cannot be read again: %v", r, err)
		}
		// NaN differs from itself, so the bytes are compared.
		if !bytes.Equal(Encode(again), Encode(r)) {
			t.Fatalf("wrote %+v, read %+v", r, again)
		}
	})
}

func benchmarkRecord() *PartitionRecord {
	return &PartitionRecord{
		PartitionID: 5, TopicID: uuid.UUID{1}, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}, Leader: 1,
		Directories: ids(1, 2, 3),
	}
}

func BenchmarkDecode(b *testing.B) {
	frame := Encode(benchmarkRecord())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	r := benchmarkRecord()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], r)
	}
}
