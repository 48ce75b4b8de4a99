package recordbatch

import (
	"testing"

	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"
)

// split cuts bytes into buffers at random places.
func split(t *rapid.T, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := rapid.IntRange(1, len(b)).Draw(t, "piece")
		out = append(out, mem.SliceBuffer(b[:n:n]))
		b = b[n:]
	}
	return out
}

func one(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

type rec struct {
	timestamp  int64
	key, value []byte
	headers    []RecordHeader
}

func bytesOrNil(t *rapid.T, label string) []byte {
	if rapid.IntRange(0, 4).Draw(t, label+" null") == 0 {
		return nil
	}
	return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, label)...)
}

func drawRecords(t *rapid.T) []rec {
	n := rapid.IntRange(1, 20).Draw(t, "records")
	out := make([]rec, n)
	for i := range out {
		out[i] = rec{
			timestamp: rapid.Int64Range(0, 1<<45).Draw(t, "timestamp"),
			key:       bytesOrNil(t, "key"), value: bytesOrNil(t, "value"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "headers") {
			out[i].headers = append(out[i].headers, RecordHeader{Key: rapid.String().Draw(t, "header"), Value: bytesOrNil(t, "header value")})
		}
	}
	return out
}

func build(t testing.TB, c *Codecs, o BatchOptions, records []rec) []byte {
	t.Helper()
	b := NewBuilder(c, o)
	for _, r := range records {
		b.Append(r.timestamp, r.key, r.value, r.headers...)
	}
	out, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func simple(n int) []rec {
	out := make([]rec, n)
	for i := range out {
		out[i] = rec{timestamp: 1000 + int64(i), key: []byte{'k', byte('0' + i%10)}, value: []byte("some value that repeats, repeats, repeats")}
	}
	return out
}

// rules are those of a topic with Kafka's defaults at a late time.
func rules() *Rules {
	return &Rules{
		Topic: "t", Partition: 3, APIVersion: 9, NowMs: 1 << 45, MaxMessageBytes: 1048588, MaxDecompressedBytes: 1 << 30,
		SegmentBytes: 1 << 30, TimestampBeforeMaxMs: 1<<63 - 1, TimestampAfterMaxMs: 3600000,
	}
}
