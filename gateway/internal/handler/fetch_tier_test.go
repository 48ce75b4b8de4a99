package handler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/pacer"
	"chancery/gateway/internal/session"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/kafka/uuid"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/storagerpc"
)

// fakeTier answers reads as it is told, by partition.
type fakeTier struct {
	Tiering
	mu     sync.Mutex
	asked  map[int32]*tieringv1.ReadRequest
	answer func(ctx context.Context, q *tieringv1.ReadRequest) (*storagerpc.TierRead, error)
}

func (f *fakeTier) Read(ctx context.Context, q *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
	f.mu.Lock()
	f.asked[q.GetPartition()] = q
	f.mu.Unlock()
	return f.answer(ctx, q)
}

// freed counts buffers that were given back.
type freed struct{ n int }

func (f *freed) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (f *freed) Put(*[]byte)       { f.n++ }

// records are some bytes in a buffer that tells when it is freed.
func records(n int, pool mem.BufferPool) storage.Records {
	data := make([]byte, max(n, 1<<20)) // smaller ones are not counted
	data = data[:n:cap(data)]
	return storage.Records{Buffers: mem.BufferSlice{mem.NewBuffer(&data, pool)}}
}

// tierFetch is a fetch of partitions whose local results are given: bytes of records, or -1 for one that is in the remote tier.
func tierFetch(tier *fakeTier, isolation int8, partitionBytes int32, local ...int) *fetching {
	tier.asked = map[int32]*tieringv1.ReadRequest{}
	f := &fetching{
		h: &Handlers{config: Config{Node: configdef.NewNode(map[string]string{"remote.fetch.max.wait.ms": "500"})}, Deps: Deps{
			Tiering: tier, Pacer: pacer.New(time.Now), Logger: slog.New(slog.DiscardHandler), Now: time.Now,
			Image: func() metadata.Reader { return metadata.Empty("c") },
		}},
		r: &Request{Conn: &Conn{NodeID: UnknownNode}}, q: &fetchRequest{isolation: isolation},
	}
	for i, n := range local {
		read := session.Read{FetchOffset: int64(100 + i), MaxBytes: partitionBytes}
		read.Partition = int32(i)
		res := storage.FetchPartitionResult{HighWatermark: 1000}
		if n < 0 {
			res.Tiered, res.TieredEpoch, res.TieredLeaderEpoch = true, 3, 5
			res.AbortedTransactions = []storage.AbortedTransaction{{ProducerID: 1, FirstOffset: 5}, {ProducerID: 2, FirstOffset: 150}}
		} else {
			res.Records = records(n, &freed{})
		}
		f.reads, f.places, f.results = append(f.reads, read), append(f.places, place{topicID: uuid.UUID{7}}), append(f.results, res)
	}
	return f
}

// TestShareOfColdPartitions: local records come first, the remote partitions share what is left, and one that leads the fetch gets
// something in any case.
func TestShareOfColdPartitions(t *testing.T) {
	for name, tt := range map[string]struct {
		local          []int
		max, partition int32
		want           map[int32]int32 // bytes that each partition is asked for
		minOne         []int32
	}{
		"one alone":                 {[]int{-1}, 1000, 5000, map[int32]int32{0: 1000 / 1}, []int32{0}},
		"its own bound":             {[]int{-1}, 1000, 300, map[int32]int32{0: 300}, []int32{0}},
		"two share":                 {[]int{-1, -1}, 1000, 5000, map[int32]int32{0: 500, 1: 500}, []int32{0}},
		"what is left":              {[]int{400, -1, -1}, 1000, 5000, map[int32]int32{1: 300, 2: 300}, nil},
		"nothing is left":           {[]int{1000, -1, -1}, 1000, 5000, map[int32]int32{1: 1}, nil},
		"more than all is taken":    {[]int{2000, -1, -1}, 1000, 5000, map[int32]int32{1: 1}, nil},
		"it leads, all is taken":    {[]int{-1, 1000}, 1000, 5000, map[int32]int32{0: 500}, []int32{0}},
		"it leads, some is left":    {[]int{-1, 100, -1}, 1000, 5000, map[int32]int32{0: 450, 2: 450}, []int32{0}},
		"all local":                 {[]int{10, 20}, 1000, 5000, map[int32]int32{}, nil},
		"behind an empty local one": {[]int{0, -1}, 1000, 5000, map[int32]int32{1: 1000}, []int32{1}},
	} {
		tier := &fakeTier{answer: func(context.Context, *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
			return &storagerpc.TierRead{}, nil
		}}
		f := tierFetch(tier, storage.ReadUncommitted, tt.partition, tt.local...)
		f.readTier(t.Context(), tt.max)
		if len(tier.asked) != len(tt.want) {
			t.Errorf("%s: asked for were %v", name, tier.asked)
		}
		for p, q := range tier.asked {
			if q.GetMaxBytes() != tt.want[p] || q.GetMinOne() != slices.Contains(tt.minOne, p) {
				t.Errorf("%s: %d bytes of partition %d, at least one batch %v, want %d", name, q.GetMaxBytes(), p, q.GetMinOne(), tt.want[p])
			}
			if q.GetFetchOffset() != int64(100+p) || q.GetEpoch() != 3 || q.GetLeaderEpoch() != 5 || q.GetReadCommitted() || q.GetTopicId()[0] != 7 {
				t.Errorf("%s: %+v", name, q)
			}
		}
	}
}

// TestColdAnswers: time that is over is an empty answer, an offset that is gone is out of range, anything else a storage error; and
// no answer holds memory that nobody releases.
func TestColdAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(ctx context.Context, pool mem.BufferPool) (*storagerpc.TierRead, error)
		code   errcode.Code
		bytes  int
		freed  int
		took   time.Duration
	}{
		"records": {func(_ context.Context, p mem.BufferPool) (*storagerpc.TierRead, error) {
			return &storagerpc.TierRead{Records: records(900, p), EndOffset: 150}, nil
		}, errcode.None, 900, 0, 0},
		"too many behind the first": {func(_ context.Context, p mem.BufferPool) (*storagerpc.TierRead, error) {
			return &storagerpc.TierRead{Records: records(901, p), EndOffset: 150}, nil
		}, errcode.None, 0, 1, 0},
		"gone": {func(context.Context, mem.BufferPool) (*storagerpc.TierRead, error) {
			return nil, errcode.OffsetOutOfRange.Err()
		}, errcode.OffsetOutOfRange, 0, 0, 0},
		"late": {func(ctx context.Context, _ mem.BufferPool) (*storagerpc.TierRead, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, errcode.None, 0, 0, 500 * time.Millisecond},
		"late there": {func(context.Context, mem.BufferPool) (*storagerpc.TierRead, error) {
			return nil, errcode.RequestTimedOut.Err()
		}, errcode.None, 0, 0, 0},
		"the store fails": {func(context.Context, mem.BufferPool) (*storagerpc.TierRead, error) { return nil, errors.New("?") }, errcode.KafkaStorageError, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := &freed{}
				tier := &fakeTier{answer: func(ctx context.Context, _ *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
					return tt.answer(ctx, pool)
				}}
				f := tierFetch(tier, storage.ReadUncommitted, 5000, 100, -1)
				began := time.Now()
				f.readTier(t.Context(), 1000)
				res := &f.results[1]
				if res.Error != tt.code || res.Records.Len() != tt.bytes || pool.n != tt.freed || time.Since(began) != tt.took {
					t.Errorf("%s, %d bytes, %d buffers freed, after %s", res.Error.Name(), res.Records.Len(), pool.n, time.Since(began))
				}
				if (res.HighWatermark == 1000) != (tt.code == errcode.None) || len(res.AbortedTransactions) != 0 {
					t.Errorf("%+v", res)
				}
				if f.results[0].Records.Len() != 100 || f.results[0].Error != errcode.None {
					t.Errorf("the local partition: %+v", f.results[0])
				}
			})
		})
	}
}

// TestColdPartitionsWaitTogether: several partitions that are late take the time of one.
func TestColdPartitionsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &fakeTier{answer: func(ctx context.Context, _ *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		f := tierFetch(tier, storage.ReadUncommitted, 5000, -1, -1, -1)
		f.results[2].Error = errcode.NotLeaderOrFollower
		began := time.Now()
		f.readTier(t.Context(), 1000)
		if len(tier.asked) != 2 || time.Since(began) != 500*time.Millisecond || f.results[2].Error != errcode.NotLeaderOrFollower {
			t.Errorf("%d were asked for, it took %s, the failed one: %s", len(tier.asked), time.Since(began), f.results[2].Error.Name())
		}
	})
}

// TestAbortedTransactionsOfBothTiers: those that ended in the local log count as far as they began before the records' end, each once,
// and only for readers of committed records.
func TestAbortedTransactionsOfBothTiers(t *testing.T) {
	list := func(pairs ...int64) (out []storage.AbortedTransaction) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, storage.AbortedTransaction{ProducerID: pairs[i], FirstOffset: pairs[i+1]})
		}
		return out
	}
	for name, tt := range map[string]struct {
		isolation int8
		end       int64
		remote    []storage.AbortedTransaction
		want      []storage.AbortedTransaction
	}{
		"uncommitted":             {storage.ReadUncommitted, 200, nil, nil},
		"both":                    {storage.ReadCommitted, 151, list(9, 50), list(9, 50, 1, 5, 2, 150)},
		"one begins at the end":   {storage.ReadCommitted, 150, nil, list(1, 5)},
		"known in both":           {storage.ReadCommitted, 150, list(1, 5), list(1, 5)},
		"another one of the same": {storage.ReadCommitted, 150, list(1, 4), list(1, 4, 1, 5)},
	} {
		tier := &fakeTier{answer: func(_ context.Context, q *tieringv1.ReadRequest) (*storagerpc.TierRead, error) {
			if q.GetReadCommitted() != (tt.isolation == storage.ReadCommitted) {
				t.Errorf("%s: read committed %v", name, q.GetReadCommitted())
			}
			return &storagerpc.TierRead{Records: records(10, &freed{}), EndOffset: tt.end, AbortedTransactions: tt.remote}, nil
		}}
		f := tierFetch(tier, tt.isolation, 5000, -1)
		f.readTier(t.Context(), 1000)
		if got := f.results[0].AbortedTransactions; !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
