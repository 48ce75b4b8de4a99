package e2e_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// franz is github.com/twmb/franz-go.
type franz struct{}

func (franz) name() string { return "franz-go" }

func (franz) producerOptions(j produceJob) []kgo.Opt {
	codec := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[j.codec]
	opts := []kgo.Opt{kgo.SeedBrokers(j.bootstrap...), kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(5 * time.Millisecond)}
	switch j.acks {
	case 0:
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	case 1:
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	return opts
}

func (f franz) produce(ctx context.Context, j produceJob) error {
	cl, err := kgo.NewClient(f.producerOptions(j)...)
	if err != nil {
		return err
	}
	defer cl.Close()
	var mu sync.Mutex
	var firstErr error
	for seq := range j.n {
		record := &kgo.Record{Topic: j.source.topic, Key: j.source.key(seq), Value: j.source.value(seq)}
		cl.Produce(ctx, record, func(r *kgo.Record, err error) {
			if err != nil {
				mu.Lock()
				firstErr = cmpErr(firstErr, err)
				mu.Unlock()
				return
			}
			at := position{r.Partition, r.Offset}
			if j.acks == 0 {
				at.offset = -1
			}
			j.acked(seq, at)
		})
	}
	err = cl.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(firstErr, err)
}

// cmpErr keeps the first error.
func cmpErr(first, err error) error {
	if first != nil {
		return first
	}
	return err
}

func (franz) readAll(ctx context.Context, bootstrap, topics []string, partitions int32, each func(consumed) bool) error {
	assignment := map[string]map[int32]kgo.Offset{}
	for _, topic := range topics {
		assignment[topic] = map[int32]kgo.Offset{}
		for p := range partitions {
			assignment[topic][p] = kgo.NewOffset().AtStart()
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumePartitions(assignment))
	if err != nil {
		return err
	}
	defer cl.Close()
	for more := true; more; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			more = more && each(consumed{r.Topic, r.Partition, r.Offset, r.Key, r.Value})
		})
	}
	return nil
}

func (franz) join(ctx context.Context, bootstrap []string, group string, topics []string, each func(consumed)) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { each(consumed{r.Topic, r.Partition, r.Offset, r.Key, r.Value}) })
	}
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	return cl.CommitUncommittedOffsets(endCtx)
}

// endTime is how long a member may take to commit and leave.
const endTime = 20 * time.Second
