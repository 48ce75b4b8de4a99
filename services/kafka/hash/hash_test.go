package hash

import (
	"math"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
)

func TestString(t *testing.T) {
	for s, want := range map[string]int32{
		"": 0, "a": 97, "hello": 99162322, "group": 98629247, "polygenelubricants": math.MinInt32, "é": 233,
		"\U0001F600": 1772899, "a\U0001F600b": 57849694,
	} {
		if got := String(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var want int32
		for _, u := range utf16.Encode([]rune(s)) {
			want = 31*want + int32(u)
		}
		if got := String(s); got != want {
			t.Fatalf("%q: got %d, want %d", s, got, want)
		}
	})
}

func TestTableSlot(t *testing.T) {
	for key, slots := range map[string][2]int32{"range": {9, 9}, "roundrobin": {10, 10}, "sticky": {8, 24}, "cooperative-sticky": {15, 15}, "é𝄞x": {5, 21}} {
		if a, b := TableSlot(key, 12), TableSlot(key, 13); a != slots[0] || b != slots[1] {
			t.Errorf("%s: %d, %d", key, a, b)
		}
	}
}

func TestPartition(t *testing.T) {
	for _, c := range []struct {
		h    int32
		n    int
		want int32
	}{{math.MinInt32, 50, 0}, {-51, 50, 1}, {99, 50, 49}, {5, 0, 0}, {math.MaxInt32, 1, 0}} {
		if got := Partition(c.h, c.n); got != c.want {
			t.Errorf("%d mod %d: got %d, want %d", c.h, c.n, got, c.want)
		}
	}
	if got := GroupPartition("console-consumer-1", 50); got != TransactionPartition("console-consumer-1", 50) {
		t.Errorf("groups and transactions differ: %d", got)
	}
	if got := ShareKey("g", uuid.UUID{15: 1}, 3); got != "g:AAAAAAAAAAAAAAAAAAAAAQ:3" {
		t.Errorf("share key %s", got)
	}
	if got := SharePartition("g", uuid.UUID{}, 0, 50); got < 0 || got >= 50 {
		t.Errorf("share partition %d", got)
	}
}

func TestMurmur2(t *testing.T) {
	// Known answers of Kafka's own implementation.
	for s, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := Murmur2([]byte(s)); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
	if KeyPartition([]byte("abc"), 10) != 479470107%10 || KeyPartition(nil, 0) != 0 {
		t.Error("wrong partition of a key")
	}
	if p := RemoteLogMetadataPartition(uuid.UUID{1, 2, 3}, 7, 50); p < 0 || p >= 50 {
		t.Errorf("partition %d", p)
	}
}
