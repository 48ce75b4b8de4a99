package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"chancery/services/kafka/errcode"

	"pgregory.net/rapid"
)

// reseal recomputes the checksum after an edit.
func reseal(b []byte) []byte {
	Header(b).setCRC(ComputeCRC(b))
	return b
}

func TestValidateRefuses(t *testing.T) {
	c := NewCodecs()
	good := func() []byte { return build(t, nil, NewOptions(), simple(3)) }
	edit := func(f func(h Header)) []byte {
		b := good()
		f(b)
		return reseal(b)
	}
	zip := func(codec Compression) []byte {
		o := NewOptions()
		o.Codec, o.Level = codec, 3
		return build(t, c, o, simple(3))
	}
	control := NewOptions()
	control.Control = true
	tests := []struct {
		name  string
		in    []byte
		rules func(r *Rules)
		want  errcode.Code
		atLog bool
	}{
		{"nothing", nil, nil, errcode.InvalidRecord, false},
		{"three bytes", []byte{1, 2, 3}, nil, errcode.InvalidRecord, false},
		{"magic 1", edit(func(h Header) { h[offsetMagic] = 1 }), nil, errcode.InvalidRecord, false},
		{"magic 3", edit(func(h Header) { h[offsetMagic] = 3 }), nil, errcode.CorruptMessage, false},
		{"garbage", bytes.Repeat([]byte{7}, 100), nil, errcode.CorruptMessage, false},
		{"two batches", append(good(), good()...), nil, errcode.InvalidRecord, false},
		{"a broken second batch", append(good(), bytes.Repeat([]byte{7}, 100)...), nil, errcode.CorruptMessage, false},
		{"bad CRC", func() []byte { b := good(); b[len(b)-1] ^= 1; return b }(), nil, errcode.CorruptMessage, false},
		{"too large", good(), func(r *Rules) { r.MaxMessageBytes = 100 }, errcode.MessageTooLarge, false},
		{"larger than a segment", good(), func(r *Rules) { r.SegmentBytes = 100 }, errcode.RecordListTooLarge, false},
		{"base offset", edit(func(h Header) { h.SetBaseOffset(1) }), nil, errcode.InvalidRecord, true},
		{"no records", edit(func(h Header) { h.setCount(0); h.setLastOffsetDelta(0) }), nil, errcode.InvalidRecord, true},
		{"negative count", edit(func(h Header) { h.setCount(-1) }), nil, errcode.InvalidRecord, true},
		{"negative last offset", edit(func(h Header) { h.setLastOffsetDelta(-1) }), nil, errcode.InvalidRecord, true},
		{"count and offsets differ", edit(func(h Header) { h.setCount(2) }), nil, errcode.InvalidRecord, true},
		{"fewer records", edit(func(h Header) { h.setCount(4); h.setLastOffsetDelta(3) }), nil, errcode.InvalidRecord, true},
		{"more records", edit(func(h Header) { h.setCount(2); h.setLastOffsetDelta(1) }), nil, errcode.InvalidRecord, true},
		{"huge count", edit(func(h Header) { h.setCount(math.MaxInt32); h.setLastOffsetDelta(math.MaxInt32 - 1) }), nil, errcode.InvalidRecord, true},
		{"control batch", build(t, nil, control, simple(1)), nil, errcode.InvalidRecord, true},
		{"producer without sequence", edit(func(h Header) { h.setProducer(1, 0, -1) }), nil, errcode.InvalidRecord, true},
		{"unknown codec", edit(func(h Header) { h.setAttributes(5) }), nil, errcode.UnknownServerError, true},
		{"not gzip", edit(func(h Header) { h.setAttributes(1) }), nil, errcode.UnknownServerError, true},
		{"zstd before version 7", zip(Zstd), func(r *Rules) { r.APIVersion = 6 }, errcode.UnsupportedCompressionType, false},
		{"no key", build(t, nil, NewOptions(), []rec{{key: []byte("k")}, {}}), func(r *Rules) { r.Compacted = true }, errcode.InvalidRecord, true},
		{"no key, header only", build(t, nil, NewOptions(), []rec{{}}), func(r *Rules) { r.Compacted, r.HeaderOnly = true, true }, errcode.InvalidRecord, true},
		{"too early", good(), func(r *Rules) { r.NowMs = -3600000 }, errcode.InvalidTimestamp, true},
		{"too late", good(), func(r *Rules) { r.TimestampBeforeMaxMs = 1000 }, errcode.InvalidTimestamp, true},
		{"too late, header only", good(), func(r *Rules) { r.TimestampBeforeMaxMs, r.HeaderOnly = 1000, true }, errcode.InvalidTimestamp, true},
		{"append time from a client", edit(func(h Header) { h.setAttributes(8) }), func(r *Rules) { r.TimestampType = LogAppendTime }, errcode.InvalidTimestamp, true},
		{"decompresses too far", zip(Gzip), func(r *Rules) { r.MaxDecompressedBytes = 100 }, errcode.InvalidRecord, true},
		{"too large once recompressed", zip(Gzip), func(r *Rules) { r.Recompress, r.MaxMessageBytes = true, 150 }, errcode.MessageTooLarge, false},
	}
	for _, tt := range tests {
		r := rules()
		if tt.rules != nil {
			tt.rules(r)
		}
		err := c.Validate(one(tt.in), r, new(Batch))
		var v *ValidationError
		if errcode.Of(err) != tt.want || !errors.As(err, &v) || v.AtLog != tt.atLog {
			t.Errorf("%s: got %v (at log: %v), want %v (%v)", tt.name, err, v != nil && v.AtLog, tt.want, tt.atLog)
		}
	}
}

func TestValidateNamesRecords(t *testing.T) {
	c := NewCodecs()
	r := rules()
	r.Compacted = true
	err := c.Validate(one(build(t, nil, NewOptions(), []rec{{key: []byte("k")}, {}, {}})), r, new(Batch))
	var v *ValidationError
	if !errors.As(err, &v) || len(v.Records) != 2 || v.Records[0].Index != 1 ||
		v.Records[0].Message != "Compacted topic cannot accept message without key in topic partition t-3" {
		t.Fatalf("%+v", v)
	}
	const text = "One or more records have been rejected due to 2 record errors in total, and only showing the first three errors at " +
		"most: [RecordError(batchIndex=1, message='Compacted topic cannot accept message without key in topic partition t-3'), "
	if !strings.HasPrefix(v.Err.Text, text) {
		t.Fatal(v.Err.Text)
	}
}

// TestValidateStamps checks what a leader changes in batches that pass.
func TestValidateStamps(t *testing.T) {
	c := NewCodecs()
	rapid.Check(t, func(t *rapid.T) {
		records := drawRecords(t)
		o := NewOptions()
		o.Codec, o.Level = rapid.SampledFrom(allCodecs).Draw(t, "codec"), 3
		b := NewBuilder(c, o)
		for _, x := range records {
			b.Append(x.timestamp, x.key, x.value, x.headers...)
		}
		in, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		r := rules()
		r.TimestampType = rapid.SampledFrom([]TimestampType{CreateTime, LogAppendTime}).Draw(t, "timestamp type")
		r.Recompress = rapid.Bool().Draw(t, "recompress")
		r.Codec, r.Level = rapid.SampledFrom(allCodecs).Draw(t, "topic codec"), rapid.IntRange(1, 9).Draw(t, "level")
		if rapid.Bool().Draw(t, "wrong max timestamp") {
			Header(in).setMaxTimestamp(12)
			reseal(in)
		}
		original := bytes.Clone(in)
		var got Batch
		if err := c.Validate(split(t, in), r, &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(original, in) {
			t.Fatal("the client's bytes were changed")
		}
		codec := o.Codec
		if r.Recompress {
			codec = r.Codec
		}
		got.Header().SetBaseOffset(100)
		got.Header().SetLeaderEpoch(6)
		out := got.Bytes()
		h := Header(out)
		maximum := r.NowMs
		if r.TimestampType == CreateTime {
			maximum = NoTimestamp
			for _, x := range records {
				maximum = max(maximum, x.timestamp)
			}
		}
		if !CheckCRC(out) || h.Compression() != codec || h.TimestampType() != r.TimestampType || h.MaxTimestamp() != maximum ||
			h.Count() != int32(len(records)) || h.LastOffset() != 99+int64(len(records)) || got.Rebuilt != (codec != o.Codec) {
			t.Fatal(h, h.TimestampType(), h.MaxTimestamp(), maximum, CheckCRC(out))
		}
		rs := c.Records(out, 1<<20)
		for i, want := range records {
			if !rs.Next() {
				t.Fatal(rs.Err())
			}
			x := rs.Record()
			if r.TimestampType == LogAppendTime {
				want.timestamp = r.NowMs
			}
			if x.Offset != 100+int64(i) || x.Timestamp != want.timestamp || !same(x.Key, want.key) || !same(x.Value, want.value) || len(x.Headers()) != len(want.headers) {
				t.Fatalf("record %d: %+v, want %+v", i, x, want)
			}
		}
	})
}

// TestValidateRecompressesAnySize: a batch that is compressed anew has the records that were sent, however large their fields
// are beside the buffers on the way.
func TestValidateRecompressesAnySize(t *testing.T) {
	c := NewCodecs()
	var records []rec
	for size := 0; size < 2300; size += 29 {
		field := bytes.Repeat([]byte{byte('a' + size%26)}, size)
		records = append(records, rec{timestamp: 5, key: []byte("k"), value: field}, rec{timestamp: 6, key: field, value: []byte("v")},
			rec{timestamp: 7, headers: []RecordHeader{{Key: "h", Value: field}}})
	}
	r := rules()
	r.Recompress = true
	for _, from := range []Compression{None, Gzip} {
		o := NewOptions()
		o.Codec, o.Level = from, 1
		in := build(t, c, o, records)
		for _, to := range allCodecs {
			r.Codec, r.Level = to, 1
			var got Batch
			if err := c.Validate(one(in), r, &got); err != nil {
				t.Fatal(from, to, err)
			}
			rs := c.Records(got.Bytes(), 1<<20)
			for i, want := range records {
				if !rs.Next() {
					t.Fatal(from, to, i, rs.Err())
				}
				if x := rs.Record(); !same(x.Key, want.key) || !same(x.Value, want.value) || len(x.Headers()) != len(want.headers) ||
					len(want.headers) > 0 && !same(x.Headers()[0].Value, want.headers[0].Value) {
					t.Fatalf("%s to %s: record %d with fields of %d, %d bytes has become another one", from, to, i, len(want.key), len(want.value))
				}
			}
		}
	}
}

// TestValidateWrongDeltas: inside compressed batches wrong offset deltas are put right, elsewhere they are left.
func TestValidateWrongDeltas(t *testing.T) {
	c := NewCodecs()
	for _, codec := range allCodecs {
		o := NewOptions()
		o.Codec, o.Level = codec, 3
		b := NewBuilder(c, o)
		b.AppendAt(5, 10, []byte("a"), nil)
		b.AppendAt(300, 11, nil, bytes.Repeat([]byte("b"), 5000))
		b.lastDelta = 1
		in, _ := b.Build()
		var got Batch
		if err := c.Validate(one(in), rules(), &got); err != nil {
			t.Fatal(codec, err)
		}
		rs := c.Records(got.Bytes(), 1<<20)
		var offsets []int64
		for rs.Next() {
			offsets = append(offsets, rs.Record().Offset)
		}
		want := []int64{0, 1}
		if codec == None {
			want = []int64{5, 300}
		}
		if rs.Err() != nil || len(offsets) != 2 || offsets[0] != want[0] || offsets[1] != want[1] || got.Rebuilt != (codec != None) {
			t.Errorf("%s: %v %v", codec, offsets, rs.Err())
		}
	}
}

func TestValidateHeaderOnlySkipsRecords(t *testing.T) {
	c := NewCodecs()
	o := NewOptions()
	o.Codec = Zstd
	in := build(t, c, o, simple(3))
	broken := append(in[:len(in)-4:len(in)-4], 1, 2, 3, 4)
	reseal(broken)
	r := rules()
	if err := c.Validate(one(broken), r, new(Batch)); err == nil {
		t.Fatal("broken records passed")
	}
	r.HeaderOnly = true
	if err := c.Validate(one(broken), r, new(Batch)); err != nil {
		t.Fatal(err)
	}
}

func TestValidateControlFromCoordinator(t *testing.T) {
	r := rules()
	r.Origin, r.Recompress, r.Codec = FromCoordinator, true, Gzip
	var got Batch
	err := NewCodecs().Validate(one(MarkerBatch(1, 0, EndTxnMarker{Type: Commit}, 5)), r, &got)
	if err != nil || got.Rebuilt {
		t.Fatal(err, "a control batch must not be compressed")
	}
}

func TestValidateAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector changes what is allocated")
	}
	c := NewCodecs()
	r := rules()
	for _, tt := range []struct {
		codec Compression
		most  float64
	}{{None, 0}, {LZ4, 1}, {Snappy, 1}, {Gzip, 1}, {Zstd, 1}} {
		o := NewOptions()
		o.Codec, o.Level = tt.codec, 9
		buffers := one(build(t, c, o, simple(200)))
		batch := new(Batch)
		allocations := testing.AllocsPerRun(50, func() {
			if err := c.Validate(buffers, r, batch); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s: %v", tt.codec, allocations)
		if allocations > tt.most {
			t.Errorf("%s: %v allocations", tt.codec, allocations)
		}
	}
}

func FuzzValidate(f *testing.F) {
	c := NewCodecs()
	for _, codec := range allCodecs {
		o := NewOptions()
		o.Codec, o.Level = codec, 3
		f.Add(build(f, c, o, simple(3)), false, int8(codec+1)%5)
	}
	f.Fuzz(func(t *testing.T, in []byte, recompress bool, codec int8) {
		if len(in) >= HeaderSize && binary.BigEndian.Uint32(in[offsetLength:]) == uint32(len(in)-LogOverhead) {
			in = reseal(bytes.Clone(in))
		}
		r := rules()
		r.MaxDecompressedBytes = 1 << 20
		r.TimestampAfterMaxMs = math.MaxInt64
		r.Recompress, r.Codec, r.Level = recompress, Compression(uint8(codec)%5), 3
		var got Batch
		if err := c.Validate(one(in), r, &got); err != nil {
			return
		}
		out := got.Bytes()
		if !CheckCRC(out) {
			t.Fatal("the stamped batch has a bad checksum")
		}
		rs := c.Records(out, 1<<20)
		for rs.Next() {
			rs.Record().Headers()
		}
		if rs.Err() != nil {
			t.Fatal("records passed that cannot be read:", rs.Err())
		}
	})
}

func BenchmarkValidate(b *testing.B) {
	c := NewCodecs()
	r := rules()
	for _, codec := range allCodecs {
		for _, n := range []int{1, 1000} {
			o := NewOptions()
			o.Codec, o.Level = codec, 9
			buffers := one(build(b, c, o, simple(n)))
			name := codec.String() + "/1"
			if n > 1 {
				name = codec.String() + "/1000"
			}
			b.Run(name, func(b *testing.B) {
				b.SetBytes(int64(buffers.Len()))
				b.ReportAllocs()
				batch := new(Batch)
				for b.Loop() {
					if err := c.Validate(buffers, r, batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
