package e2e_test

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/sync/errgroup"
)

// saramaClient is github.com/IBM/sarama.
type saramaClient struct{}

func (saramaClient) name() string { return "sarama" }

func (saramaClient) config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.ClientID = "e2e-sarama"
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	c.Consumer.Group.Session.Timeout = memberTime
	c.Consumer.Return.Errors = true
	return c
}

func (s saramaClient) produce(ctx context.Context, j produceJob) error {
	c := s.config()
	c.Producer.Compression = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}[j.codec]
	c.Producer.RequiredAcks = sarama.RequiredAcks(j.acks)
	c.Producer.Return.Successes = true
	c.Producer.Flush.Frequency = 5 * time.Millisecond
	c.Producer.Partitioner = sarama.NewHashPartitioner
	if j.source.keys == 0 {
		c.Producer.Partitioner = sarama.NewRoundRobinPartitioner
	}
	if j.acks == -1 {
		c.Producer.Idempotent = true
		c.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewAsyncProducer(j.bootstrap, c)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error {
		for m := range producer.Successes() {
			at := position{m.Partition, m.Offset}
			if j.acks == 0 {
				at.offset = -1
			}
			j.acked(m.Metadata.(int), at)
		}
		return nil
	})
	g.Go(func() error {
		var first error
		for e := range producer.Errors() {
			first = cmpErr(first, e)
		}
		return first
	})
	g.Go(func() error {
		defer producer.AsyncClose()
		for seq := range j.n {
			m := &sarama.ProducerMessage{Topic: j.source.topic, Value: sarama.ByteEncoder(j.source.value(seq)), Metadata: seq}
			if key := j.source.key(seq); key != nil {
				m.Key = sarama.ByteEncoder(key)
			}
			select {
			case producer.Input() <- m:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return g.Wait()
}

func (s saramaClient) readAll(ctx context.Context, bootstrap, topics []string, partitions int32, each func(consumed) bool) error {
	consumer, err := sarama.NewConsumer(bootstrap, s.config())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages := make(chan *sarama.ConsumerMessage)
	g, groupCtx := errgroup.WithContext(ctx)
	for _, topic := range topics {
		for p := range partitions {
			pc, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
			if err != nil {
				return err
			}
			g.Go(func() error { return forward(groupCtx, pc, messages) })
		}
	}
	g.Go(func() error {
		defer cancel()
		for {
			select {
			case m := <-messages:
				if !each(consumed{m.Topic, m.Partition, m.Offset, m.Key, m.Value}) {
					return nil
				}
			case <-groupCtx.Done():
				return groupCtx.Err()
			}
		}
	})
	return errors.Join(g.Wait(), consumer.Close())
}

func forward(ctx context.Context, pc sarama.PartitionConsumer, messages chan<- *sarama.ConsumerMessage) error {
	for {
		select {
		case m := <-pc.Messages():
			select {
			case messages <- m:
			case <-ctx.Done():
			}
		case err := <-pc.Errors():
			return errors.Join(err, pc.Close())
		case <-ctx.Done():
			return pc.Close()
		}
	}
}

func (s saramaClient) join(ctx context.Context, bootstrap []string, group string, topics []string, each func(consumed)) error {
	g, err := sarama.NewConsumerGroup(bootstrap, group, s.config())
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		for err := range g.Errors() {
			select {
			case failed <- err:
			default:
			}
		}
		close(failed)
	}()
	for ctx.Err() == nil {
		if err = g.Consume(ctx, topics, saramaHandler{each}); err != nil {
			break
		}
	}
	err = errors.Join(err, g.Close())
	return errors.Join(err, <-failed)
}

// saramaHandler passes on what a member is given.
type saramaHandler struct{ each func(consumed) }

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		h.each(consumed{m.Topic, m.Partition, m.Offset, m.Key, m.Value})
		session.MarkMessage(m, "")
	}
	return nil
}
