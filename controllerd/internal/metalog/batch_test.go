package metalog

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBatchRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batch{
			BaseOffset:  rapid.Int64Min(0).Draw(t, "base"),
			Epoch:       rapid.Int32Min(0).Draw(t, "epoch"),
			TimestampMs: rapid.Int64Min(0).Draw(t, "timestamp"),
			Records:     rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 1, 20).Draw(t, "records"),
		}
		data := b.Encode()
		got, err := DecodeBatch(data)
		if err != nil {
			t.Fatal(err)
		}
		if got.BaseOffset != b.BaseOffset || got.Epoch != b.Epoch || got.TimestampMs != b.TimestampMs ||
			!slices.EqualFunc(got.Records, b.Records, bytes.Equal) {
			t.Fatalf("got %+v, want %+v", got, b)
		}
		if got.EndOffset() != b.BaseOffset+int64(len(b.Records)) {
			t.Fatalf("end offset %d", got.EndOffset())
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "flip")
		data[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := DecodeBatch(data); err == nil {
			t.Fatalf("a flipped bit in byte %d went unnoticed", at)
		}
	})
}

func FuzzDecodeBatch(f *testing.F) {
	b := Batch{BaseOffset: 7, Epoch: 2, Records: [][]byte{{1, 20, 0, 0}, {}}}
	f.Add(b.Encode())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := DecodeBatch(data); err == nil && len(got.Records) == 0 {
			t.Fatal("a batch without records")
		}
		_, _ = SplitRecords(data)
	})
}
