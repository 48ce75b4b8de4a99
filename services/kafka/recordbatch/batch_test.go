package recordbatch

import (
	"bytes"
	"reflect"
	"testing"

	"chancery/services/kafka/errcode"

	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"
)

var allCodecs = []Compression{None, Gzip, Snappy, LZ4, Zstd}

func TestBuildAndRead(t *testing.T) {
	c := NewCodecs()
	rapid.Check(t, func(t *rapid.T) {
		records := drawRecords(t)
		o := NewOptions()
		o.BaseOffset = rapid.Int64Range(0, 1<<40).Draw(t, "base offset")
		o.LeaderEpoch = rapid.Int32Min(0).Draw(t, "epoch")
		o.Codec = rapid.SampledFrom(allCodecs).Draw(t, "codec")
		o.Level = rapid.IntRange(-3, 20).Draw(t, "level")
		o.ProducerID, o.ProducerEpoch, o.BaseSequence = 7, 2, rapid.Int32Min(0).Draw(t, "sequence")
		b := NewBuilder(c, o)
		for _, r := range records {
			b.Append(r.timestamp, r.key, r.value, r.headers...)
		}
		raw, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !CheckCRC(raw) {
			t.Fatal("CRC")
		}
		checkWithKmsg(t, raw, o, len(records))
		rs := c.Records(raw, 1<<20)
		for i, want := range records {
			if !rs.Next() {
				t.Fatal(i, rs.Err())
			}
			got := rs.Record()
			if got.Offset != o.BaseOffset+int64(i) || got.Timestamp != want.timestamp || !same(got.Key, want.key) || !same(got.Value, want.value) {
				t.Fatalf("record %d: got %+v, want %+v", i, got, want)
			}
			if hs := got.Headers(); !reflect.DeepEqual(hs, want.headers) {
				t.Fatalf("headers: got %v, want %v", hs, want.headers)
			}
		}
		if rs.Next() || rs.Err() != nil {
			t.Fatal("after the last record:", rs.Err())
		}
	})
}

func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// checkWithKmsg reads the header with another implementation.
func checkWithKmsg(t *rapid.T, raw []byte, o BatchOptions, n int) {
	var k kmsg.RecordBatch
	if err := k.ReadFrom(raw); err != nil {
		t.Fatal(err)
	}
	h := Header(raw)
	if k.FirstOffset != o.BaseOffset || k.PartitionLeaderEpoch != o.LeaderEpoch || k.Magic != 2 || uint32(k.CRC) != h.CRC() ||
		k.LastOffsetDelta != int32(n-1) || k.NumRecords != int32(n) || k.ProducerID != 7 || k.ProducerEpoch != 2 ||
		k.FirstSequence != o.BaseSequence || k.FirstTimestamp != h.BaseTimestamp() || k.MaxTimestamp != h.MaxTimestamp() {
		t.Fatalf("%+v", k)
	}
	if h.LastSequence() < 0 || DecrementSequence(h.LastSequence(), int32(n-1)) != o.BaseSequence {
		t.Fatal("sequence")
	}
}

func TestIterateBuffersAsBytes(t *testing.T) {
	c := NewCodecs()
	rapid.Check(t, func(t *rapid.T) {
		var run []byte
		var starts []int
		for range rapid.IntRange(0, 6).Draw(t, "batches") {
			starts = append(starts, len(run))
			b := NewBuilder(c, NewOptions())
			for _, r := range drawRecords(t) {
				b.Append(r.timestamp, r.key, r.value, r.headers...)
			}
			raw, _ := b.Build()
			run = append(run, raw...)
		}
		whole := len(run)
		if len(starts) > 0 && rapid.Bool().Draw(t, "cut") {
			run = run[:rapid.IntRange(0, len(run)).Draw(t, "length")]
			for len(starts) > 0 {
				last := starts[len(starts)-1]
				if last+HeaderSize <= len(run) && last+Header(run[last:]).Size() <= len(run) {
					break
				}
				whole = last
				starts = starts[:len(starts)-1]
			}
		}
		for name, it := range map[string]Iterator{"bytes": Iterate(run), "buffers": IterateBuffers(split(t, run))} {
			i := 0
			for it.Next() {
				if it.Position() != starts[i] || !it.CheckCRC() || !bytes.Equal(it.Header()[:HeaderSize], run[starts[i]:starts[i]+HeaderSize]) {
					t.Fatalf("%s: batch %d at %d", name, i, it.Position())
				}
				i++
			}
			if it.Err() != nil || i != len(starts) || it.Position() != whole {
				t.Fatalf("%s: %d batches of %d, rest at %d not %d: %v", name, i, len(starts), it.Position(), whole, it.Err())
			}
		}
	})
}

func TestIterateBadBytes(t *testing.T) {
	good := build(t, nil, NewOptions(), simple(1))
	edit := func(f func(b []byte)) []byte {
		b := append([]byte{}, good...)
		f(b)
		return b
	}
	tests := []struct {
		name string
		run  []byte
		want errcode.Code
	}{
		{"magic 3", edit(func(b []byte) { b[offsetMagic] = 3 }), errcode.CorruptMessage},
		{"magic -1", edit(func(b []byte) { b[offsetMagic] = 255 }), errcode.CorruptMessage},
		{"length 13", edit(func(b []byte) { Header(b).setLength(LogOverhead + 13) }), errcode.CorruptMessage},
		{"length negative", edit(func(b []byte) { b[offsetLength] = 0x80 }), errcode.CorruptMessage},
		{"shorter than a header", edit(func(b []byte) { Header(b).setLength(HeaderSize - 1) }), errcode.CorruptMessage},
		{"length huge", edit(func(b []byte) { b[offsetLength] = 0x7f }), errcode.None},
		{"short", []byte{1, 2, 3}, errcode.None},
	}
	for _, tt := range tests {
		it := Iterate(tt.run)
		if it.Next() || errcode.Of(it.Err()) != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, it.Err(), tt.want)
		}
	}
}

func TestMarkerBatch(t *testing.T) {
	m := EndTxnMarker{Type: Abort, CoordinatorEpoch: 9}
	raw := MarkerBatch(5, 1, m, 77)
	h := Header(raw)
	if !CheckCRC(raw) || !h.IsControl() || !h.IsTransactional() || h.ProducerID() != 5 || h.MaxTimestamp() != 77 {
		t.Fatal(h)
	}
	rs := RecordsOf(raw)
	if !rs.Next() {
		t.Fatal(rs.Err())
	}
	got, err := ParseEndTxnMarker(rs.Record())
	if err != nil || got != m {
		t.Fatal(got, err)
	}
	var k kmsg.EndTxnMarker
	if err := k.ReadFrom(rs.Record().Value); err != nil || k.CoordinatorEpoch != 9 {
		t.Fatal(k, err)
	}
}

func TestNoAllocationPerRecord(t *testing.T) {
	raw := build(t, nil, NewOptions(), simple(100))
	buffers := one(raw)
	allocations := testing.AllocsPerRun(100, func() {
		it := IterateBuffers(buffers)
		for it.Next() {
			rs := RecordsOf(it.Bytes())
			for rs.Next() {
				_ = rs.Record().Key
			}
		}
	})
	if allocations > 0 {
		t.Fatal(allocations)
	}
}

func FuzzIterate(f *testing.F) {
	f.Add(build(f, nil, NewOptions(), simple(3)), uint16(70))
	c := NewCodecs()
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		n := min(int(cut), len(b))
		it := IterateBuffers(mem.BufferSlice{mem.SliceBuffer(b[:n]), mem.SliceBuffer(b[n:])})
		flat := Iterate(b)
		for it.Next() {
			if !flat.Next() || flat.Position() != it.Position() || flat.Header().Magic() != it.Header().Magic() {
				t.Fatal("buffers and bytes differ")
			}
			if it.Header().Magic() != Magic {
				continue
			}
			if flat.CheckCRC() != it.CheckCRC() {
				t.Fatal("checksums differ")
			}
			rs := c.Records(flat.Bytes(), 1<<16)
			for rs.Next() {
				rs.Record().Headers()
			}
		}
		if flat.Next() {
			t.Fatal("buffers end before bytes")
		}
	})
}
