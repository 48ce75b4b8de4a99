package recordbatch

import (
	"bytes"
	"fmt"
	"testing"

	"chancery/services/kafka/errcode"

	"pgregory.net/rapid"
)

// TestFilter compares what a filter leaves of a batch with a batch that was built of the same records.
func TestFilter(t *testing.T) {
	codecs := NewCodecs()
	filter := &Filter{Codecs: codecs}
	rapid.Check(t, func(t *rapid.T) {
		o := NewOptions()
		o.BaseOffset, o.LeaderEpoch, o.Codec = 100, 3, Compression(rapid.IntRange(0, 4).Draw(t, "codec"))
		o.ProducerID, o.ProducerEpoch, o.BaseSequence, o.Transactional = 7, 1, 40, rapid.Bool().Draw(t, "transactional")
		if rapid.Bool().Draw(t, "log append time") {
			o.AppendTimeMs = 5000
		}
		if rapid.Bool().Draw(t, "has horizon") {
			o.DeleteHorizonMs = 900
		}
		b := NewBuilder(codecs, o)
		n := rapid.IntRange(1, 20).Draw(t, "records")
		keep := map[int64]bool{}
		for i := range n {
			value := []byte(fmt.Sprint("value ", i))
			if rapid.IntRange(0, 3).Draw(t, "tombstone") == 0 {
				value = nil
			}
			b.Append(1000+int64(rapid.IntRange(-50, 50).Draw(t, "time")), fmt.Append(nil, i), value, RecordHeader{Key: "h"})
			keep[100+int64(i)] = rapid.IntRange(0, 2).Draw(t, "keep") > 0
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(batch)
		how := Filtering{
			Keep: func(r *Record) bool { return keep[r.Offset] }, DeleteHorizonMs: 777_000,
			Marker: rapid.Bool().Draw(t, "marker"), KeepEmpty: rapid.Bool().Draw(t, "keep empty"),
		}
		got, err := filter.Apply(batch, &how)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(batch, before) {
			t.Fatal("the batch itself was changed")
		}
		compareFiltered(t, codecs, batch, got, keep, &how)
	})
}

// compareFiltered checks a filtered batch record by record.
func compareFiltered(t *rapid.T, codecs *Codecs, batch []byte, got Filtered, keep map[int64]bool, how *Filtering) {
	type plain struct {
		offset, timestamp int64
		key, value        string
		null              bool
		headers           int
	}
	list := func(b []byte) (out []plain) {
		records := codecs.Records(b, 1<<20)
		for records.Next() {
			r := records.Record()
			out = append(out, plain{r.Offset, r.Timestamp, string(r.Key), string(r.Value), r.Value == nil, r.HeaderCount()})
		}
		if records.Err() != nil {
			t.Fatal(records.Err())
		}
		return out
	}
	var want []plain
	tombstones, newest := false, NoTimestamp
	for _, r := range list(batch) {
		if keep[r.offset] {
			want = append(want, r)
			tombstones = tombstones || r.null
			newest = max(newest, r.timestamp)
		}
	}
	if len(want) == 0 && !how.KeepEmpty {
		if got.Batch != nil {
			t.Fatal("something remains of nothing")
		}
		return
	}
	if !CheckCRC(got.Batch) || fmt.Sprint(list(got.Batch)) != fmt.Sprint(want) || got.Kept != len(want) {
		t.Fatalf("records %+v, want %+v", list(got.Batch), want)
	}
	old, h := Header(batch), Header(got.Batch)
	if h.BaseOffset() != old.BaseOffset() || h.LastOffset() != old.LastOffset() || h.LastSequence() != old.LastSequence() ||
		h.LeaderEpoch() != old.LeaderEpoch() || h.ProducerEpoch() != old.ProducerEpoch() || h.IsTransactional() != old.IsTransactional() ||
		h.TimestampType() != old.TimestampType() {
		t.Fatalf("%s, before it was %s", h, old)
	}
	horizon, has := h.DeleteHorizon()
	oldHorizon, had := old.DeleteHorizon()
	switch {
	case len(want) == 0:
		if has || h.MaxTimestamp() != old.MaxTimestamp() {
			t.Fatalf("an empty batch with a horizon, or another time: %s", h)
		}
		return
	case had && horizon != oldHorizon:
		t.Fatalf("horizon %d, it was %d", horizon, oldHorizon)
	case !had && has != (tombstones || how.Marker) || !had && has && horizon != how.DeleteHorizonMs:
		t.Fatalf("horizon %d %v", horizon, has)
	}
	if h.Compression() != old.Compression() || h.MaxTimestamp() != newest {
		t.Fatalf("%s with largest time %d, want %d", h, h.MaxTimestamp(), newest)
	}
}

func TestFilterRefusesDamage(t *testing.T) {
	b := NewBuilder(nil, NewOptions())
	b.Append(1, []byte("key"), []byte("value"))
	batch, _ := b.Build()
	batch[len(batch)-3] ^= 1
	f := &Filter{Codecs: NewCodecs()}
	if _, err := f.Apply(batch, &Filtering{Keep: func(*Record) bool { return true }}); errcode.Of(err) != errcode.CorruptMessage {
		t.Fatal(err)
	}
	if _, err := f.Apply(batch[:20], &Filtering{}); errcode.Of(err) != errcode.CorruptMessage {
		t.Fatal(err)
	}
}

func FuzzFilter(f *testing.F) {
	codecs := NewCodecs()
	for codec := None; codec <= Zstd; codec++ {
		o := NewOptions()
		o.Codec = codec
		b := NewBuilder(codecs, o)
		b.Append(1, []byte("a"), nil)
		b.Append(2, []byte("b"), []byte("x"), RecordHeader{Key: "h"})
		batch, _ := b.Build()
		f.Add(batch, uint8(1))
	}
	filter := &Filter{Codecs: codecs}
	f.Fuzz(func(t *testing.T, batch []byte, mask uint8) {
		if len(batch) < HeaderSize || len(batch) > 1<<16 {
			return
		}
		Header(batch).setLength(len(batch))
		Header(batch).setCRC(ComputeCRC(batch))
		out, err := filter.Apply(batch, &Filtering{
			Keep: func(r *Record) bool { return mask&(1<<(r.Offset&7)) != 0 }, DeleteHorizonMs: 5, KeepEmpty: true,
		})
		if err == nil && !CheckCRC(out.Batch) {
			t.Fatal("a bad batch came out")
		}
	})
}
