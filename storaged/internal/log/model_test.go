package log

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"chancery/services/kafka/recordbatch"
	"chancery/services/storage"

	"pgregory.net/rapid"
)

// model is what a log should be: the batches in it, and where it starts.
type model struct {
	batches []modelBatch
	start   int64
	end     int64
	// history are the batches that count for the producers, also those that retention has removed.
	history []modelBatch
}

type modelBatch struct {
	base, next int64
	epoch      int32
	bytes      []byte
}

func (m *model) add(b []byte) {
	h := recordbatch.Header(b)
	x := modelBatch{base: h.BaseOffset(), next: h.NextOffset(), epoch: h.LeaderEpoch(), bytes: b}
	m.batches, m.history = append(m.batches, x), append(m.history, x)
	m.end = x.next
}

func (m *model) truncate(offset int64) {
	cut := func(list []modelBatch) []modelBatch {
		for len(list) > 0 && list[len(list)-1].next > offset {
			list = list[:len(list)-1]
		}
		return list
	}
	if offset >= m.end {
		return
	}
	m.end = offset
	for _, b := range m.batches {
		if b.base < offset && offset < b.next {
			m.end = b.base
		}
	}
	m.batches, m.history = cut(m.batches), cut(m.history)
	m.start = min(m.start, m.end)
}

// truncations are the offsets to cut the log at so that it does not end in a gap: where it ends then is not on disk.
func (m *model) truncations() []int64 {
	var out []int64
	for i, b := range m.batches {
		if b.base < m.start {
			continue
		}
		out = append(out, b.next)
		if i > 0 && m.batches[i-1].next == b.base {
			out = append(out, b.base, b.base+(b.next-b.base)/2)
		}
	}
	return out
}

func (m *model) producers() []Producer {
	l := &Log{}
	for _, b := range m.history {
		h := recordbatch.Header(b.bytes)
		if !h.HasProducerID() {
			continue
		}
		if h.IsControl() {
			rs := recordbatch.RecordsOf(b.bytes)
			rs.Next()
			marker, _ := recordbatch.ParseEndTxnMarker(rs.Record())
			l.producers.ended(h, marker)
		} else {
			l.producers.appended(h)
		}
	}
	return l.ActiveProducers()
}

// machine runs a log against the model.
type machine struct {
	*fixture
	m         model
	epoch     int32
	sequences map[int64]int32
}

func (x *machine) check(t *rapid.T) {
	if x.LogEndOffset() != x.m.end || x.LogStartOffset() != x.m.start {
		t.Fatalf("log [%d, %d), model [%d, %d)", x.LogStartOffset(), x.LogEndOffset(), x.m.start, x.m.end)
	}
	if got, want := fmt.Sprint(x.ActiveProducers()), fmt.Sprint(x.m.producers()); got != want {
		t.Fatalf("producers\n%s, model\n%s", got, want)
	}
	var want []byte
	for _, b := range x.m.batches {
		if b.next > x.m.start {
			want = append(want, b.bytes...)
		}
	}
	x.t = t
	if got := x.all(x.m.start); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, model %d", len(got), len(want))
	}
	for i, b := range x.m.batches {
		if b.next <= x.m.start || i > 0 && x.m.batches[i-1].epoch == b.epoch {
			continue
		}
		end := x.m.end
		for _, c := range x.m.batches[i:] {
			if c.epoch != b.epoch {
				end = c.base
				break
			}
		}
		if got := x.EndOffsetForEpoch(b.epoch); got != (storage.EpochEndOffset{Epoch: b.epoch, EndOffset: end}) && x.LatestEpoch() >= b.epoch {
			t.Fatalf("epoch %d ends at %v, model %d", b.epoch, got, end)
		}
	}
}

func (x *machine) draw(t *rapid.T, offset int64) []byte {
	s := spec{
		records: rapid.IntRange(1, 5).Draw(t, "records"), bytes: rapid.IntRange(0, 400).Draw(t, "bytes"),
		timestamp: rapid.Int64Range(-1, 100000).Draw(t, "timestamp"), pid: rapid.Int64Range(0, 3).Draw(t, "producer"),
	}
	s.txn = s.pid == 3
	if s.txn && rapid.Bool().Draw(t, "marker") {
		kind := rapid.SampledFrom([]recordbatch.ControlType{recordbatch.Abort, recordbatch.Commit}).Draw(t, "kind")
		b := recordbatch.MarkerBatch(3, 0, recordbatch.EndTxnMarker{Type: kind}, s.timestamp)
		recordbatch.Header(b).SetBaseOffset(offset)
		recordbatch.Header(b).SetLeaderEpoch(x.epoch)
		return b
	}
	s.sequence = x.sequences[s.pid]
	x.sequences[s.pid] += int32(s.records)
	return makeBatch(t, offset, x.epoch, s)
}

func (x *machine) step(t *rapid.T) {
	var err error
	switch op := rapid.IntRange(0, 13).Draw(t, "op"); op {
	case 0, 1, 2, 3:
		var batches []recordbatch.Batch
		for range rapid.IntRange(1, 6).Draw(t, "batches") {
			b := x.draw(t, x.m.end)
			x.m.add(b)
			batches = append(batches, recordbatch.BatchOf(bytes.Clone(b)))
		}
		err = x.Append(batches)
	case 4, 5:
		var run []byte
		for range rapid.IntRange(1, 6).Draw(t, "batches") {
			b := x.draw(t, x.m.end+rapid.Int64Range(0, 3).Draw(t, "gap"))
			x.m.add(b)
			run = append(run, b...)
		}
		err = x.AppendAsFollower(buffers(run, rapid.IntRange(1, 3000).Draw(t, "piece")))
	case 6:
		x.epoch++
	case 7:
		err = x.Roll()
	case 8:
		if places := x.m.truncations(); len(places) > 0 {
			offset := rapid.SampledFrom(places).Draw(t, "truncate to")
			x.m.truncate(offset)
			err = x.TruncateTo(offset)
		}
	case 9:
		if rapid.IntRange(0, 5).Draw(t, "fully") == 0 {
			offset := rapid.Int64Range(0, x.m.end+10).Draw(t, "start at")
			x.m = model{start: offset, end: offset}
			err = x.TruncateFullyAndStartAt(offset)
		}
	case 10:
		x.SetHighWatermark(x.m.end)
		offset := rapid.Int64Range(x.m.start, x.m.end).Draw(t, "log start")
		x.m.start = offset
		err = x.SetLogStartOffset(offset)
	case 11:
		err = x.Flush()
	case 12:
		x.reopen(rapid.Bool().Draw(t, "crash"))
	case 13:
		x.SetHighWatermark(x.m.end)
		x.config.RetentionBytes = rapid.Int64Range(-1, 5000).Draw(t, "retention")
		_, err = x.DeleteRetired(x.clock)
		x.m.start = x.LogStartOffset()
		x.config.RetentionBytes = -1
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "log")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		x := &machine{epoch: 1, sequences: map[int64]int32{}}
		x.fixture = newFixture(t, dir, func(o *Options) {
			o.Config.SegmentBytes, o.Config.IndexIntervalBytes, o.ProducerIDExpiration = 2000, 150, 1<<62
			o.Config.CleanupCompact = true // the model's leader sends gaps
			if rapid.Bool().Draw(t, "files do not stay open") {
				o.OpenFiles = NewOpenFiles(0)
			}
		})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			x.t = t
			x.step(t)
			x.check(t)
		}
		x.Abandon()
	})
}
