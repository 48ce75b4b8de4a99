package coldread_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"chancery/services/kafka/recordbatch"
	"chancery/services/kafka/uuid"
	"chancery/services/objectstore"
	"chancery/services/objectstore/coldread"
	"chancery/services/objectstore/segmentobject"
)

// fakeManager keeps segments in memory, and fails as it is told.
type fakeManager struct {
	mu       sync.Mutex
	logs     map[uuid.UUID][]byte
	indexes  map[uuid.UUID]*objectstore.Indexes
	ranges   [][2]int64
	indexed  int
	onFetch  func(ctx context.Context, s *objectstore.SegmentMetadata, start, end int64) error
	onIndex  func(s *objectstore.SegmentMetadata) error
	onStream func(p []byte, at int64) (int, error)
}

func newFake() *fakeManager {
	return &fakeManager{logs: make(map[uuid.UUID][]byte), indexes: make(map[uuid.UUID]*objectstore.Indexes)}
}

func (f *fakeManager) CopyLogSegmentData(_ context.Context, s *objectstore.SegmentMetadata, d *objectstore.SegmentData) ([]byte, error) {
	log := make([]byte, s.SizeBytes)
	if _, err := d.Log.ReadAt(log, 0); err != nil && err != io.EOF {
		return nil, err
	}
	x := d.Indexes
	var sums segmentobject.Summer
	sums.Write(log)
	x.BlockCRCs, x.SegmentCRC = sums.Sums()
	f.logs[s.ID], f.indexes[s.ID] = log, &x
	return nil, nil
}

func (f *fakeManager) FetchLogSegment(ctx context.Context, s *objectstore.SegmentMetadata, start, end int64) (io.ReadCloser, error) {
	f.mu.Lock()
	f.ranges = append(f.ranges, [2]int64{start, end})
	log, hook, stream := f.logs[s.ID], f.onFetch, f.onStream
	f.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, s, start, end); err != nil {
			return nil, err
		}
	}
	if log == nil {
		return nil, &objectstore.Error{Kind: objectstore.ErrNotFound, Op: "get", Key: s.ID.String()}
	}
	body := io.NopCloser(bytes.NewReader(log[min(start, int64(len(log))):min(end, int64(len(log)))]))
	if stream != nil {
		body = &damagedBody{r: body, at: start, damage: stream}
	}
	return body, nil
}

type damagedBody struct {
	r      io.ReadCloser
	at     int64
	damage func(p []byte, at int64) (int, error)
}

func (d *damagedBody) Read(p []byte) (int, error) {
	n, err := d.r.Read(p[:min(len(p), 64<<10)])
	if n > 0 {
		k, damage := d.damage(p[:n], d.at)
		d.at += int64(n)
		if damage != nil {
			return k, damage
		}
		n = k
	}
	return n, err
}

func (d *damagedBody) Close() error { return d.r.Close() }

func (f *fakeManager) FetchIndexes(_ context.Context, s *objectstore.SegmentMetadata) (*objectstore.Indexes, error) {
	f.mu.Lock()
	f.indexed++
	x, hook := f.indexes[s.ID], f.onIndex
	f.mu.Unlock()
	if hook != nil {
		if err := hook(s); err != nil {
			return nil, err
		}
	}
	if x == nil {
		return nil, &objectstore.Error{Kind: objectstore.ErrNotFound, Op: "get", Key: s.ID.String()}
	}
	return x, nil
}

func (f *fakeManager) DeleteLogSegmentData(_ context.Context, segments []*objectstore.SegmentMetadata) []error {
	for _, s := range segments {
		delete(f.logs, s.ID)
		delete(f.indexes, s.ID)
	}
	return nil
}

func (f *fakeManager) Close() error { return nil }

func (f *fakeManager) requests() [][2]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([][2]int64(nil), f.ranges...)
}

// history is a partition as it was written: the truth that reads are compared with.
type history struct {
	segments []coldread.Segment
	// batches are all batches in order, starts the base offset of each.
	batches [][]byte
	starts  []int64
	end     int64
}

// segmentShape says what a made-up segment is like.
type segmentShape struct {
	batches    int
	batchBytes func() int
	codec      recordbatch.Compression
	aborted    []abortedEntry
}

type abortedEntry struct{ producerID, first, last, lastStable int64 }

var (
	topic  = uuid.UUID{7}
	codecs = recordbatch.NewCodecs()
)

// write adds a segment to a history and copies it. Record i of all has the timestamp 1000+10*i.
func (h *history) write(t testing.TB, f *fakeManager, random *rand.Rand, shape segmentShape) {
	t.Helper()
	const indexInterval = 4096
	base := h.end
	var log []byte
	x := objectstore.Indexes{LeaderEpochs: []objectstore.EpochStart{{Epoch: 3, StartOffset: 0}}}
	since := 0
	for range shape.batches {
		options := recordbatch.NewOptions()
		options.BaseOffset, options.LeaderEpoch, options.Codec = h.end, 3, shape.codec
		b := recordbatch.NewBuilder(codecs, options)
		for left := shape.batchBytes(); ; {
			n := min(left, 1+random.IntN(100_000))
			value := make([]byte, n)
			for i := 0; i+8 <= n; i += 8 {
				binary.LittleEndian.PutUint64(value[i:], random.Uint64())
			}
			b.Append(1000+10*h.end, nil, value)
			h.end++
			if left -= n; left <= 0 {
				break
			}
		}
		batch, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		if since > indexInterval {
			x.Offset = binary.BigEndian.AppendUint32(x.Offset, uint32(recordbatch.Header(batch).BaseOffset()-base))
			x.Offset = binary.BigEndian.AppendUint32(x.Offset, uint32(len(log)))
			x.Time = binary.BigEndian.AppendUint64(x.Time, uint64(1000+10*(recordbatch.Header(batch).BaseOffset()-1)))
			x.Time = binary.BigEndian.AppendUint32(x.Time, uint32(recordbatch.Header(batch).BaseOffset()-1-base))
			since = 0
		}
		since += len(batch)
		h.batches = append(h.batches, batch)
		h.starts = append(h.starts, recordbatch.Header(batch).BaseOffset())
		log = append(log, batch...)
	}
	for _, a := range shape.aborted {
		x.Transaction = binary.BigEndian.AppendUint16(x.Transaction, 0)
		for _, v := range []int64{a.producerID, a.first, a.last, a.lastStable} {
			x.Transaction = binary.BigEndian.AppendUint64(x.Transaction, uint64(v))
		}
	}
	m := &objectstore.SegmentMetadata{
		TopicID: topic, Topic: "t", Partition: 1, ID: uuid.Random(), BaseOffset: base, EndOffset: h.end - 1,
		MaxTimestampMs: 1000 + 10*(h.end-1), SizeBytes: int64(len(log)), LeaderEpochs: x.LeaderEpochs, TxnIndexEmpty: len(shape.aborted) == 0,
	}
	if _, err := f.CopyLogSegmentData(t.Context(), m, &objectstore.SegmentData{Log: bytes.NewReader(log), Indexes: x}); err != nil {
		t.Fatal(err)
	}
	h.segments = append(h.segments, coldread.Segment{SegmentMetadata: m, FirstOffset: base, LastOffset: h.end - 1})
}

// from is all batches from the one that holds an offset on, in one piece.
func (h *history) from(offset int64) []byte {
	for i := len(h.starts) - 1; i >= 0; i-- {
		if h.starts[i] <= offset {
			return bytes.Join(h.batches[i:], nil)
		}
	}
	return nil
}

func sized(n int) func() int { return func() int { return n } }

func newReader(t testing.TB, m objectstore.RemoteStorageManager, change func(*coldread.Config, *coldread.Deps)) *coldread.Reader {
	t.Helper()
	config := coldread.DefaultConfig()
	config.MemoryBytes = 32 << 20
	config.ReadAheadMaxBytes = 8 << 20
	deps := coldread.Deps{Meter: noop.Meter{}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&config, &deps)
	}
	r, err := coldread.New(m, config, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// read is one read, as bytes.
func read(ctx context.Context, r *coldread.Reader, req coldread.ReadRequest) ([]byte, *coldread.ReadResult, error) {
	result, err := r.Read(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	defer result.Records.Release()
	data, err := result.Records.ReadAll()
	return data, result, err
}

// consume reads from an offset to the end, as a consumer does.
func consume(t testing.TB, r *coldread.Reader, h *history, offset int64, maxBytes int) []byte {
	t.Helper()
	var all []byte
	for offset < h.end {
		data, result, err := read(t.Context(), r, coldread.ReadRequest{Segments: h.segments, Offset: offset, MaxBytes: maxBytes, MinOneBatch: true})
		if err != nil {
			t.Fatalf("read at %d: %v", offset, err)
		}
		if len(data) == 0 || result.NextOffset <= offset {
			t.Fatalf("read at %d: %d bytes, next %d", offset, len(data), result.NextOffset)
		}
		all = append(all, data...)
		offset = result.NextOffset
	}
	return all
}
