package handler

import (
	"context"
	"slices"
	"sync"
	"time"

	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/kafka/errcode"
	"chancery/services/storage"
	"chancery/services/storagerpc"
)

// Partitions whose offset is below the local log are read from the remote tier, all beside each other, for at most
// remote.fetch.max.wait.ms. What has not come by then is answered as empty, without an error: what was asked for is still
// being read into the cache, where the client's next fetch finds it.
//
// Beside producers these reads wait for their turn first (package pacer), for up to half of that time, and bring less.

// besideRecords bounds the wait for a turn of a fetch that has records of other partitions already.
const besideRecords = 50 * time.Millisecond

// readTier reads the partitions that the nodes have marked.
func (f *fetching) readTier(ctx context.Context, maxBytes int32) {
	var cold []int
	left, leads := int(maxBytes), false
	for i := range f.results {
		res := &f.results[i]
		if res.Tiered && res.Error == errcode.None {
			leads = leads || left == int(maxBytes)
			cold = append(cold, i)
		}
		left -= res.Records.Len()
	}
	if len(cold) == 0 {
		return
	}
	share := int32(max(left, 0) / len(cold))
	if leads {
		// Partitions take turns to be the first: if the local ones behind it took everything each time, it would never be read.
		share = max(share, maxBytes/int32(len(cold)+1))
	}
	longest := f.h.remoteFetchMaxWait(f.r)
	turn := longest / 2
	if left < int(maxBytes) {
		turn = min(turn, besideRecords)
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	var wg sync.WaitGroup
	for n, i := range cold {
		size := min(share, f.reads[i].MaxBytes)
		if share <= 0 && n > 0 {
			break
		}
		// As for local reads, the first partition gives something even if it is more than was asked for.
		read := func() { f.readCold(ctx, i, max(size, 1), leads && n == 0, turn) }
		if len(cold) == 1 {
			read()
			return
		}
		wg.Go(read)
	}
	wg.Wait()
}

// remoteFetchMaxWait bounds how long a fetch waits for the remote tier; it may be altered while the gateway runs.
func (h *Handlers) remoteFetchMaxWait(r *Request) time.Duration {
	return h.nodeConfig(h.Image(), r).Duration("remote.fetch.max.wait.ms")
}

// readCold reads one partition, when it is its turn.
func (f *fetching) readCold(ctx context.Context, i int, maxBytes int32, minOne bool, turn time.Duration) {
	res, read := &f.results[i], &f.reads[i]
	id := f.places[i].topicID
	local := res.AbortedTransactions
	res.AbortedTransactions = nil
	granted := f.h.Pacer.Wait(ctx, int(maxBytes), turn)
	if granted == 0 {
		return
	}
	less := granted < int(maxBytes)
	got, err := f.h.Tiering.Read(ctx, &tieringv1.ReadRequest{
		TopicId: id[:], Partition: read.Partition, FetchOffset: read.FetchOffset, Epoch: res.TieredEpoch, LeaderEpoch: res.TieredLeaderEpoch,
		MaxBytes: int32(granted),
		// What is larger than a turn, but not than what was asked for, comes all the same.
		MinOne: minOne || less, ReadCommitted: f.q.isolation == storage.ReadCommitted,
	})
	if err != nil {
		f.h.Pacer.Settle(granted, 0)
		f.coldFailed(ctx, i, err)
		return
	}
	f.h.Pacer.Settle(granted, got.Records.Len())
	if got.Records.Len() > int(maxBytes) && !minOne {
		got.Records.Release()
		return
	}
	res.Records = got.Records
	if f.q.isolation == storage.ReadCommitted {
		res.AbortedTransactions = mergeAborted(got, local)
	}
}

// mergeAborted puts the transactions that ended in the remote part, and those that ended in the local one, together, as far as
// they began before the records' end.
func mergeAborted(got *storagerpc.TierRead, local []storage.AbortedTransaction) []storage.AbortedTransaction {
	out := got.AbortedTransactions
	for _, a := range local {
		if a.FirstOffset < got.EndOffset && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// coldFailed answers a partition that could not be read. Time that is over, and an owner that is not there, are no errors.
func (f *fetching) coldFailed(ctx context.Context, i int, err error) {
	res := &f.results[i]
	switch code := errcode.Of(err); {
	case code == errcode.OffsetOutOfRange:
		*res = failedResult(code)
	case ctx.Err() != nil, code == errcode.RequestTimedOut:
		f.h.Logger.Debug("a read from the remote tier takes longer", "partition", f.reads[i].Partition, "error", err)
	default:
		f.h.Logger.Warn("cannot read from the remote tier", "topic_id", f.places[i].topicID, "partition", f.reads[i].Partition,
			"offset", f.reads[i].FetchOffset, "error", err)
		*res = failedResult(errcode.KafkaStorageError)
	}
}
