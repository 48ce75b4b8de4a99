package e2e_test

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"golang.org/x/sync/errgroup"
)

// kafkaGo is github.com/segmentio/kafka-go.
type kafkaGo struct{}

func (kafkaGo) name() string { return "kafka-go" }

func (kafkaGo) produce(ctx context.Context, j produceJob) error {
	// The library's default transport is one for the whole process, and would not know of the new topic for seconds.
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP(j.bootstrap...), Transport: transport, Topic: j.source.topic, Balancer: &kafka.Hash{},
		RequiredAcks: kafka.RequiredAcks(j.acks), BatchSize: 2000, BatchBytes: 512 << 10, BatchTimeout: 5 * time.Millisecond,
		Compression: map[string]compress.Compression{"none": compress.None, "gzip": compress.Gzip, "snappy": compress.Snappy, "lz4": compress.Lz4, "zstd": compress.Zstd}[j.codec],
		Completion: func(messages []kafka.Message, err error) {
			for _, m := range messages {
				if err != nil {
					continue // WriteMessages tells it.
				}
				at := position{int32(m.Partition), m.Offset}
				if j.acks == 0 {
					at.offset = -1
				}
				j.acked(m.WriterData.(int), at)
			}
		},
	}
	messages := make([]kafka.Message, j.n)
	for seq := range messages {
		messages[seq] = kafka.Message{Key: j.source.key(seq), Value: j.source.value(seq), WriterData: seq}
	}
	return errors.Join(w.WriteMessages(ctx, messages...), w.Close())
}

func (kafkaGo) readAll(ctx context.Context, bootstrap, topics []string, partitions int32, each func(consumed) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages := make(chan kafka.Message, 1000)
	g, groupCtx := errgroup.WithContext(ctx)
	for _, topic := range topics {
		for p := range partitions {
			r := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, Topic: topic, Partition: int(p), MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 200 * time.Millisecond})
			g.Go(func() error {
				defer r.Close()
				return pass(groupCtx, r, messages)
			})
		}
	}
	g.Go(func() error {
		defer cancel()
		for {
			select {
			case m := <-messages:
				if !each(consumed{m.Topic, int32(m.Partition), m.Offset, m.Key, m.Value}) {
					return nil
				}
			case <-groupCtx.Done():
				return groupCtx.Err()
			}
		}
	})
	return g.Wait()
}

func pass(ctx context.Context, r *kafka.Reader, messages chan<- kafka.Message) error {
	for {
		m, err := r.FetchMessage(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case messages <- m:
		case <-ctx.Done():
			return nil
		}
	}
}

// commitEvery is how many messages a member reads between two commits.
const commitEvery = 1000

func (kafkaGo) join(ctx context.Context, bootstrap []string, group string, topics []string, each func(consumed)) error {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, GroupID: group, GroupTopics: topics, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 200 * time.Millisecond,
		StartOffset: kafka.FirstOffset, HeartbeatInterval: 500 * time.Millisecond})
	var pending []kafka.Message
	commit := func() error {
		endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		err := r.CommitMessages(endCtx, pending...)
		pending = pending[:0]
		return err
	}
	for {
		m, err := r.FetchMessage(ctx)
		if ctx.Err() != nil {
			return errors.Join(commit(), r.Close())
		}
		if err != nil {
			return errors.Join(err, r.Close())
		}
		each(consumed{m.Topic, int32(m.Partition), m.Offset, m.Key, m.Value})
		m.Value, m.Key = nil, nil
		if pending = append(pending, m); len(pending) == commitEvery {
			if err := commit(); err != nil {
				return errors.Join(err, r.Close())
			}
		}
	}
}
